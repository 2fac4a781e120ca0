"""Rows as Arrow and Parquet, in bounded memory and with no secret in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO

import pyarrow as pa

from wireyard.cli.reading import OpenInput, read_parts
from wireyard.errors import UsageError
from wireyard.schema import schema_of
from wireyard.streams.redaction import Redactor

__all__ = ["read_tables", "write_arrow", "write_parquet"]

_ROW_GROUP_BYTES = 16 << 20
"""Large enough that a reader of one column has long runs to read, small enough to be held thrice
(as batches, as columns, encoded)."""
_MOST_HELD = 64
"""Tables of a row group that are held one by one."""
_COPIED_BATCHES = 4
"""Batches, each of a window of the stream, whose memory is held whole at a time."""


def _read_batches(reading: OpenInput) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows and columns of an input."""
    selection = reading.selection
    redactor = Redactor(selection.format)
    names = [column.name for column in selection.columns]
    for _, batch in read_parts(reading, selection.column_plan):
        shown = redactor.redact(batch)[0] if selection.redacts else batch
        yield shown.select(names)


def read_tables(
    readings: Iterator[OpenInput],
) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """Return the rows of several inputs as batches of one schema, and the schema.

    Raises
    ------
    DecodeError
        While reading, in mode ``failfast``: the first bad row.
    UsageError
        Bodies are to be shown otherwise than as bytes, or nested packets. While reading: a stream
        of another format than the first. There is no stream of any format.
    """
    first = next(readings, None)
    if first is None:
        raise UsageError("there is no stream of a known format, so no table; --format makes one")
    if first.selection.shown_body is not None:
        choice = first.selection.request.body
        raise UsageError(f"--body {choice} is for table and jsonl; these tables hold bytes")

    if first.selection.request.nested:
        raise UsageError("--nested is for table and jsonl; a table holds packets of one format")

    def batches() -> Iterator[pa.RecordBatch]:
        for reading in chain([first], readings):
            format, wanted = reading.selection.format, first.selection.format
            if format != wanted:
                other = f"{wanted.name}, but {reading.streams[0].name} {format.name}"
                raise UsageError(f"one table has one format; the first stream is {other}")
            yield from _read_batches(reading)

    return batches(), schema_of(first.selection.columns)


def write_arrow(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: IO[bytes]) -> None:
    """Write batches as an Arrow IPC stream."""
    with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: IO[bytes]) -> None:
    """Write batches as a Parquet file of one schema, row groups of `_ROW_GROUP_BYTES` in memory."""
    from pyarrow import parquet

    sink = pa.PythonFile(file, mode="w")
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in _gathered(batches, schema):
            writer.write_table(table, row_group_size=table.num_rows)


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of batches as tables of one row group each."""
    held: list[pa.Table] = []
    held_bytes = 0
    for table in _copied(batches, schema):
        held.append(table)
        held_bytes += table.nbytes
        if len(held) == _MOST_HELD:  # each has more memory than its rows if these are few
            held = [pa.concat_tables(held).combine_chunks()]
        if held_bytes >= _ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)


def _copied(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Copy batches a few at a time: the columns of one share memory with those not selected."""
    batches = iter(batches)
    while some := list(islice(batches, _COPIED_BATCHES)):
        yield pa.Table.from_batches(some, schema).combine_chunks()
