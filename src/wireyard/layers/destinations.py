"""The table ``destinations``: messages and bytes by destination and minute, summed part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.tables import as_fact_table

NEEDED: Final = (
    "source", "destination", "destination_kind", "sent_ms", "captured_ns", "producer", "stream",
    "length",
)  # fmt: skip
"""The columns of ``messages`` that are read."""
_MINUTE_MS: Final = 60_000
_NS_PER_MS: Final = 1_000_000
_KEY: Final = ("source", "destination", "destination_kind", "minute_ms")


def count_messages(messages: pa.Table) -> pa.Table:
    """Count a part of the messages by source, destination, minute and producer.

    `messages` has the columns `NEEDED` of any rows of the table ``messages``. `destinations` adds
    up the counts of all parts.
    """
    producers = pc.coalesce(*(messages[name].cast(pa.string()) for name in ("producer", "stream")))
    rows = pa.table(
        {
            **{name: messages[name].cast(pa.string()) for name in _KEY[:3]},
            "minute_ms": _minutes(messages),
            "producer": producers,
            "bytes": messages["length"],
        }
    )
    return rows.group_by([*_KEY, "producer"], use_threads=False).aggregate(
        [([], "count_all"), ("bytes", "sum")]
    )


def _minutes(messages: pa.Table) -> pa.Array:
    """Return the start of each message's minute; null where wire and capture have no time."""
    captured = messages["captured_ns"]
    ms = pa.array(captured.fill_null(0).to_numpy() // _NS_PER_MS)
    times = pc.coalesce(messages["sent_ms"], pc.if_else(captured.is_valid(), ms, None))
    is_known = times.is_valid().to_numpy()
    times_ms = times.fill_null(0).to_numpy()
    starts = times_ms - times_ms % _MINUTE_MS
    # Near the smallest int64 the subtraction wraps around.
    return pa.array(starts, mask=~is_known | (starts > times_ms))


def destinations(counts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of `DESTINATIONS` from the counts of all parts."""
    whole = pa.concat_tables(counts)
    by_producer = whole.group_by([*_KEY, "producer"], use_threads=False).aggregate(
        [("count_all", "sum"), ("bytes_sum", "sum")]
    )
    sums = by_producer.group_by(list(_KEY), use_threads=False).aggregate(
        [("count_all_sum", "sum"), ("bytes_sum_sum", "sum"), ([], "count_all")]
    )
    sums = sums.sort_by([(name, "ascending") for name in (_KEY[0], _KEY[3], *_KEY[1:3])])
    columns: dict[str, Any] = {name: sums[name] for name in _KEY}
    columns |= {
        "messages": sums["count_all_sum_sum"],
        "bytes": sums["bytes_sum_sum_sum"],
        "producers": sums["count_all"],
    }
    return as_fact_table("destinations", columns)
