"""The table of all streams: which format, between whom, from when to when, how it ended."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from wireyard.spark.lake import Input

__all__ = ["captured_streams", "streams_table"]

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("stream", pa.string()),
        ("format", pa.string()),
        ("transport", pa.string()),
        ("src_addr", pa.string()),
        ("src_port", pa.int32()),
        ("dst_addr", pa.string()),
        ("dst_port", pa.int32()),
        ("bytes_read", pa.int64()),
        ("bytes_gap", pa.int64()),
        ("opened", pa.bool_()),
        ("begun", pa.bool_()),
        ("ended", pa.string()),
        *(
            (f"{name}_{unit}", kind)
            for name in ("ended", "first", "last")
            for unit, kind in (("ns", pa.int64()), ("at", _TIME))
        ),
        ("ended_frame", pa.int64()),
    ]
)
"""The table ``streams``. `opened`: whether the capture shows that its sender opened the connection;
`begun`: whether the capture shows the first byte; `ended`: ``fin``,
``rst``, or null where it shows no end."""


def streams_table(inputs: Iterable[Input]) -> pa.Table:
    """Return a row for every stream of the inputs; what only captures tell is null of others."""
    rows = []
    for each in sorted(inputs, key=lambda each: each.source):
        for one in each.streams:
            row = {"source": each.source, "stream": one.stream, "format": one.format, **one.facts}
            row["bytes_read"] = one.counts["bytes_read"]
            for name in ("opened", "begun"):
                flag = row.get(name)
                row[name] = None if flag is None else bool(flag)
            for name in ("ended", "first", "last"):
                time_ns = row.get(f"{name}_ns")
                row[f"{name}_at"] = None if time_ns is None else time_ns // 1000
            rows.append(row)
    return pa.Table.from_pylist(rows, _SCHEMA)


def captured_streams(inputs: Iterable[Input]) -> pa.Table:
    """Return the rows of `streams_table` that captures tell something of."""
    streams = streams_table(inputs)
    return streams.filter(streams["transport"].is_valid())
