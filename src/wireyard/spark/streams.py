"""The table of all streams of a lake's inputs."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from wireyard.captures import stream_table
from wireyard.spark.lake import Input

__all__ = ["captured_streams", "streams_table"]


def streams_table(inputs: Iterable[Input]) -> pa.Table:
    """Return a row for every stream of the inputs; what only captures tell is null of others."""
    return stream_table.streams_table(
        {
            "source": each.source,
            "stream": one.stream,
            "format": one.format,
            **one.facts,
            "bytes_read": one.counts["bytes_read"],
        }
        for each in sorted(inputs, key=lambda each: each.source)
        for one in each.streams
    )


def captured_streams(inputs: Iterable[Input]) -> pa.Table:
    """Return the rows of `streams_table` that captures tell something of."""
    streams = streams_table(inputs)
    return streams.filter(streams["transport"].is_valid())
