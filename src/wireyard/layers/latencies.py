"""How long messages waited: the table ``latencies``, made of deliveries and messages by columns.

A row is a delivery, and not a percentile of many: percentiles of parts cannot be put together to
those of the whole, and users group by what they are after (destination, client, minute). The rows
are narrow, and each is made of one delivery, so any part of the deliveries gives a part of the
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.grouping import text_codes
from wireyard.layers.tables import LATENCIES, as_fact_table

__all__ = ["DELAYS", "NEEDED", "delayed", "latencies", "queue_times", "with_latencies"]

_MADE: Final = ("queue_ns", "acknowledge_ns")
NEEDED: Final = (
    *(column.name for column in LATENCIES if column.name not in _MADE),
    "retained",
)
"""Columns of deliveries that are looked at."""
DELAYS: Final = ("message_key", "delivery_time_ms")
"""Columns of messages that are looked at."""
_NS_PER_MS: Final = 1_000_000
_LAST_MS: Final = (2**63 - 1) // _NS_PER_MS


def delayed(messages: pa.Table) -> pa.Table:
    """Return the `DELAYS` of the messages that a producer wanted to be delivered later: few."""
    times = messages["delivery_time_ms"]
    asked = pc.and_(pc.greater(times, 0), pc.less_equal(times, _LAST_MS))
    return messages.select(DELAYS).filter(pc.fill_null(asked, False))


def queue_times(deliveries: pa.Table, delays: pa.Table | None = None) -> pa.Array:
    """Return how long the message of each delivery was in the queue, in nanoseconds.

    It is null where there is no queue: a will waits for its connection to break, and a retained
    value for somebody to subscribe. A delivery delay is by the producer's clock.

    Parameters
    ----------
    deliveries
        Columns `NEEDED` of some rows.
    delays
        What `delayed` returns of all their messages; MQTT has no delays.
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
    """Yield a part of a table, and behind one of deliveries how long they took."""
    name, table = part
    yield part
    if name == "deliveries":
        yield "latencies", latencies(table, delays)


def _times(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return times; -1 where there is none, or one before 1970, which no delivery has.

    So no difference of two of them overflows.
    """
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = table[name].fill_null(-1).to_numpy()
    return np.maximum(found, -1)


def _is(table: pa.Table, name: str, text: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where a column of text is this."""
    codes, texts = text_codes(table[name])
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = codes == texts.index(text).as_py()
    return found & (codes >= 0)


def _texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(pa.string())
