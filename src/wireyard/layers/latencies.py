"""The table ``latencies``: time in queue and time to acknowledge, computed from deliveries.

A row is one delivery, not a percentile of many: percentiles of parts cannot be merged into those of
the whole, and users group by different columns (destination, client, minute). Each row follows from
one delivery, so any part of the deliveries gives a part of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools, Ints
from wireyard.layers.grouping import text_codes
from wireyard.layers.tables import LATENCIES, as_fact_table, as_text

_COMPUTED: Final = ("queue_ns", "acknowledge_ns")
NEEDED: Final = (
    *(column.name for column in LATENCIES if column.name not in _COMPUTED),
    "retained",
)
"""The columns of ``deliveries`` that are read."""
DELAYS: Final = ("message_key", "delivery_time_ms")
"""The columns of ``messages`` that are read."""
_NS_PER_MS: Final = 1_000_000
_LAST_MS: Final = (2**63 - 1) // _NS_PER_MS


def delayed(messages: pa.Table) -> pa.Table:
    """Return the columns `DELAYS` of the few messages that were sent with a delivery delay."""
    times = messages["delivery_time_ms"]
    has_delay = pc.and_(pc.greater(times, 0), pc.less_equal(times, _LAST_MS))
    return as_text(messages.select(DELAYS).filter(pc.fill_null(has_delay, False)))


def queue_times(deliveries: pa.Table, delays: pa.Table | None = None) -> pa.Array:
    """Return the time that the message of each delivery spent in the queue, in nanoseconds.

    It is null where there is no queue: a will waits for its connection to break, and a retained
    value for a subscription. A delivery delay is by the producer's clock. `deliveries` has the
    columns `NEEDED` of any rows of the table; `delays` is the result of `delayed` for all their
    messages. MQTT has no delays.
    """
    sent, delivered = (_times(deliveries, name) for name in ("sent_ns", "delivered_ns"))
    is_live = pc.equal(deliveries["retained"], False).fill_null(False).to_numpy()
    published = _is(deliveries, "origin", "publish") & is_live
    has_queue = _is(deliveries, "protocol", "jms") | published
    known = (sent >= 0) & (delivered >= 0) & has_queue
    due = sent
    if delays is not None and delays.num_rows:
        place = pc.index_in(_texts(deliveries, "message_key"), _texts(delays, "message_key"))
        later = pc.multiply(delays["delivery_time_ms"], _NS_PER_MS).take(place)
        due = np.maximum(sent, later.fill_null(0).to_numpy())
    return pa.array(np.where(known, delivered - due, 0), mask=~known)


def latencies(deliveries: pa.Table, delays: pa.Table | None = None) -> pa.Table:
    """Return a part of the table of latencies; arguments as for `queue_times`."""
    rows = deliveries.select(NEEDED)
    if rows["delivered_ns"].null_count:
        rows = rows.filter(rows["delivered_ns"].is_valid())
    delivered, done = (_times(rows, name) for name in ("delivered_ns", "acknowledged_ns"))
    known = (delivered >= 0) & (done >= 0)
    columns = {name: rows[name] for name in NEEDED if name != "retained"}
    columns["queue_ns"] = queue_times(rows, delays)
    columns["acknowledge_ns"] = pa.array(np.where(known, done - delivered, 0), mask=~known)
    return as_fact_table("latencies", columns)


def with_latencies(
    part: tuple[str, pa.Table], delays: pa.Table | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield a part of a table, and after a part of ``deliveries`` its part of ``latencies``."""
    name, table = part
    yield part
    if name == "deliveries":
        yield "latencies", latencies(table, delays)


def _times(table: pa.Table, name: str) -> Ints:
    """Return a column of times, with -1 for null and for times before 1970.

    Without other negative numbers no difference of two times overflows.
    """
    times: Ints = table[name].fill_null(-1).to_numpy()
    return np.maximum(times, -1)


def _is(table: pa.Table, name: str, text: str) -> Bools:
    """Return which rows have this text in a column."""
    codes, texts = text_codes(table[name])
    is_text: Bools = codes == texts.index(text).as_py()
    return is_text & (codes >= 0)


def _texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(pa.string())
