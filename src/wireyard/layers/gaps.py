"""Rows of several inputs, by input and stream, and the gaps between packets of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import dense_ids, split_rows, text_codes
from wireyard.layers.records import GAP

DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
"""The columns of packets that name their stream and its direction."""
PLACE: Final = (*DIRECTION, "offset", "length", "captured_ns")
"""The columns that every packet needs to be put in order."""
BETWEEN: Final = "\0"
"""Between the parts of a key: it is in no path and no address."""


# --- inputs ---------------------------------------------------------------------------------


def of_inputs(rows: pa.Table, values: Mapping[str, int], other: int = 0) -> Ints:
    """Return the value of the input of each row."""
    codes, texts = text_codes(rows["source"])
    of_text: Ints = np.array([values.get(text, other) for text in texts.to_pylist()] + [other])
    return of_text[codes]


def by_source(rows: pa.Table, numbers: Mapping[str, int]) -> list[pa.Table]:
    """Divide rows by the numbers of their inputs, which are from 0 on; others have none."""
    count = max(numbers.values(), default=-1) + 1
    of_row = of_inputs(rows, numbers, count)
    if len(of_row) and of_row[0] < count and (of_row == of_row[0]).all():
        return [rows if number == of_row[0] else rows.slice(0, 0) for number in range(count)]
    return split_rows(rows, of_row, count + 1)[:count]


def of_sources(rows: pa.Table, sources: Iterable[str]) -> pa.ChunkedArray:
    """Return which rows are of some inputs."""
    return pc.is_in(rows["source"].cast(pa.string()), pa.array(sources, pa.string()))


def source_keys(rows: pa.Table, keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the keys of rows with their inputs: other inputs may have the same keys."""
    return pc.binary_join_element_wise(
        rows["source"].cast(pa.string()), keys.cast(pa.string()), BETWEEN
    )


# --- streams --------------------------------------------------------------------------------


def stream_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return the keys of the streams of rows."""
    return source_keys(rows, rows["stream"])


def each_stream(packets: pa.Table) -> tuple[pa.Table, Ints]:
    """Return a row for each stream, with the columns `DIRECTION`, and the stream of each packet."""
    codes = (text_codes(packets[name])[0] for name in ("source", "stream"))
    of_row, count = dense_ids(*codes)
    first = np.empty(count, np.int64)
    first[of_row[::-1]] = np.arange(len(of_row))[::-1]
    return packets.select(DIRECTION).take(pa.array(first)), of_row.astype(np.int64)


def streams_of(parts: Sequence[pa.Table]) -> pa.Array:
    """Return the `stream_keys` of the distinct streams of packets."""
    chunks = [chunk for part in parts for chunk in stream_keys(each_stream(part)[0]).chunks]
    return pc.unique(pa.chunked_array(chunks, pa.string()))


def torn_streams(packets: pa.Table) -> pa.Array:
    """Return the `stream_keys` of connections with a stream whose first packet is missing."""
    streams, of_row = each_stream(packets)
    starts = np.full(streams.num_rows, np.iinfo(np.int64).max)
    np.minimum.at(starts, of_row, packets["offset"].to_numpy())
    connections = [*map(connection_of, streams.to_pylist())]
    torn = {connections[number] for number in np.flatnonzero(starts > 0)}
    is_torn = pa.array([each in torn for each in connections], pa.bool_())
    return stream_keys(streams.filter(is_torn)).combine_chunks()


# --- gaps -----------------------------------------------------------------------------------


def times_of(packets: pa.Table) -> Ints:
    """Return when packets were captured; 0 where that is not known."""
    times: Ints = packets["captured_ns"].fill_null(0).to_numpy()
    return times


def with_gaps(packets: pa.Table, gap_ns: Mapping[str, int]) -> tuple[pa.Table, pa.Table]:
    """Return packets by stream and offset with a row for each gap, and the rows of gaps alone.

    A gap is between two packets, or before the first of a stream. Unlike that of a capture, it has
    a time: that of the next packet of its stream, or the time of the last packet in any gap of its
    input, `gap_ns`, if that is earlier.
    """
    stream = each_stream(packets)[1]
    starts, lengths = (packets[name].to_numpy() for name in ("offset", "length"))
    order = np.lexsort([starts, stream])
    stream, starts, lengths = stream[order], starts[order], lengths[order]
    previous_ends = np.append(0, (starts + lengths)[:-1])
    previous_ends[np.append(True, stream[1:] != stream[:-1])] = 0
    after_gap = np.flatnonzero(starts > previous_ends)
    rows, count = packets.select(PLACE).take(pa.array(order[after_gap])), len(after_gap)
    columns = {
        **{name: rows[name] for name in DIRECTION},
        "offset": pa.array(previous_ends[after_gap]),
        "length": pa.array((starts - previous_ends)[after_gap]),
        "status": pa.array([GAP] * count, pa.string()),
        "captured_ns": pa.array(np.minimum(times_of(rows), of_inputs(rows, gap_ns))),
        "frame": pa.array(np.zeros(count, np.int64)),
    }
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in packets.schema
    ]
    gaps = pa.table(arrays, schema=packets.schema)
    placed = np.insert(order, after_gap, packets.num_rows + np.arange(count))
    return pa.concat_tables([packets, gaps]).take(pa.array(placed)), gaps
