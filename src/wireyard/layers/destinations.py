"""How much was sent where, minute by minute: counted from messages, a part of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.tables import as_fact_table

__all__ = ["NEEDED", "count_messages", "destinations"]

NEEDED: Final = (
    "source", "destination", "destination_kind", "sent_ms", "captured_ns", "producer", "stream",
    "length",
)  # fmt: skip
"""Columns of messages that are looked at."""
_MINUTE_MS: Final = 60_000
_NS_PER_MS: Final = 1_000_000
_KEY: Final = ("source", "destination", "destination_kind", "minute_ms")


def count_messages(messages: pa.Table) -> pa.Table:
    """Return how many messages there are by source, destination, minute and producer.

    Parameters
    ----------
    messages
        Columns `NEEDED` of some rows of the table of messages.

    Returns
    -------
    counts
        Small, and to be put together with those of other parts by `destinations`.
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
    """Return when each minute began; null where neither the wire nor a capture has a time."""
    captured = messages["captured_ns"]
    ms = pa.array(captured.fill_null(0).to_numpy() // _NS_PER_MS)
    times = pc.coalesce(messages["sent_ms"], pc.if_else(captured.is_valid(), ms, None))
    there = times.is_valid().to_numpy()
    found = times.fill_null(0).to_numpy()
    begun = found - found % _MINUTE_MS
    # The first minute of all began before the first number.
    return pa.array(begun, mask=~there | (begun > found))


def destinations(counts: Sequence[pa.Table]) -> pa.Table:
    """Return rows of `DESTINATIONS` from what was counted in all parts."""
    whole = pa.concat_tables(counts)
    by_producer = whole.group_by([*_KEY, "producer"], use_threads=False).aggregate(
        [("count_all", "sum"), ("bytes_sum", "sum")]
    )
    found = by_producer.group_by(list(_KEY), use_threads=False).aggregate(
        [("count_all_sum", "sum"), ("bytes_sum_sum", "sum"), ([], "count_all")]
    )
    found = found.sort_by([(name, "ascending") for name in (_KEY[0], _KEY[3], *_KEY[1:3])])
    columns: dict[str, Any] = {name: found[name] for name in _KEY}
    columns |= {
        "messages": found["count_all_sum_sum"],
        "bytes": found["bytes_sum_sum_sum"],
        "producers": found["count_all"],
    }
    return as_fact_table("destinations", columns)
