"""The tables `streams`, `ledger` of their bytes, and `files` of captures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from wireyard.streams.source import file_sha256

if TYPE_CHECKING:
    from wireyard.captures.connections.stream import Stream
    from wireyard.captures.live.stream import LiveStream
    from wireyard.captures.read import FrameSpan
    from wireyard.formats.base import Row

_TIME: Final = pa.timestamp("us", tz="UTC")
_NS_PER_US: Final = 1000
STREAMS: Final = pa.schema(
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
        ("paired", pa.bool_()),
        ("sliced", pa.bool_()),
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
`begun`: whether the capture shows the first byte; `paired`: whether it has packets of the other
direction, which has no row here if it has no bytes; `sliced`: whether the capture says that it is a
slice of another one; `ended`: ``fin``, ``rst``, or null where it shows no end."""
_TIMELESS: Final = [field for field in STREAMS if field.type != _TIME]
LEDGER: Final = (
    "bytes_read",
    "bytes_ok",
    "bytes_malformed",
    "bytes_garbage",
    "bytes_tail",
    "packets_ok",
    "packets_malformed",
)
"""The ledger's columns of a stream; the first is always the sum of the other bytes."""
LEDGER_TABLE: Final = pa.schema(
    [("source", pa.string()), ("stream", pa.string()), *((name, pa.int64()) for name in LEDGER)]
)
"""The table ``ledger``."""


FILES: Final = pa.schema(
    [
        ("source", pa.string()),
        ("file", pa.string()),
        ("first_frame", pa.int64()),
        ("frames", pa.int64()),
        ("last_ns", pa.int64()),
        ("sha256", pa.string()),
    ]
)
"""The table ``files``, with a row for each file. Frames are numbered over all files of a rotated
capture, so frame `f` of the source is frame ``f - first_frame + 1`` of its file; files that are not
captures have no frames. `last_ns` is the time of the last frame: until then the file shows what
happened, whatever that frame brings; null where connections were captured again, by taps that may
have other clocks. `sha256` is null for files that are remote or still grow."""


def describe_beginning(stream: Stream | LiveStream) -> dict[str, Any]:
    """Return the endpoints of a stream, and whether its beginning was captured, by columns."""
    return {
        "transport": stream.protocol,
        "src_addr": stream.src.address,
        "src_port": stream.src.port,
        "dst_addr": stream.dst.address,
        "dst_port": stream.dst.port,
        "opened": stream.opened,
        "begun": stream.begun,
    }


def file_rows(source: str, spans: Sequence[FrameSpan] = ()) -> list[Row]:
    """Return the rows of the table ``files`` of a source; reads the files for their hashes.

    `spans` are the files of a capture; empty for a source that is one file. The folder of a store
    has no rows.
    """
    files = [span._asdict() for span in spans]
    if not files and not os.path.isdir(source):
        files = [{"file": source}]
    return [{"source": source, **row, "sha256": file_sha256(row["file"])} for row in files]


def describe_stream(stream: Stream) -> dict[str, Any]:
    """Return the columns of `STREAMS` that only a capture has."""
    first_ns, last_ns = stream.span_ns or (None, None)
    ended_frame, ended_ns = stream.closed or (None, None)
    return {
        **describe_beginning(stream),
        "paired": stream.paired,
        "ended": stream.ended,
        "first_ns": first_ns,
        "last_ns": last_ns,
        "ended_frame": ended_frame,
        "ended_ns": ended_ns,
    }


def streams_table(streams: Iterable[Row]) -> pa.Table:
    """Return streams as a table.

    `streams` have columns of `STREAMS`, without the timestamps; missing ones are null.
    """
    rows = list(streams)
    columns = {}
    for field in _TIMELESS:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_boolean(field.type):
            values = [None if value is None else bool(value) for value in values]
        columns[field.name] = pa.array(values, field.type)
    return with_timestamps(pa.table(columns))


def with_timestamps(streams: pa.Table) -> pa.Table:
    """Return the table `streams`, given its columns without timestamps; others are dropped."""
    columns = {}
    for field in STREAMS:
        if field.type == _TIME:
            ns = streams[f"{field.name.removesuffix('_at')}_ns"]
            us = ns.fill_null(0).to_numpy() // _NS_PER_US  # before 1970 too
            missing = ns.is_null().to_numpy(zero_copy_only=False)
            columns[field.name] = pa.array(us, mask=missing).cast(_TIME)
        else:
            columns[field.name] = streams[field.name]
    return pa.table(columns, schema=STREAMS)
