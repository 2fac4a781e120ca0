"""Batches as JSON Lines, a column at a time: what `json_line` writes, without a row in Python.

Rows with what columns do not hold as packets do (lists, errors) are written one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.cli.jsonl import json_line
from wireyard.cli.reading import OpenInput, read_parts
from wireyard.cli.rows import packet_of_row
from wireyard.cli.selection import Selection
from wireyard.layout import Column
from wireyard.memory import SLACK
from wireyard.schema import CAPTURED, COMMON, as_numbers, scalar_of
from wireyard.streams import line_kernels
from wireyard.streams.batches import BlockReader
from wireyard.streams.blocks import Block
from wireyard.streams.framer import OK

__all__ = ["write_lines"]

_OK = scalar_of(OK, pa.string())

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_PLAIN = ("string", "binary", "int32", "int64", "offset", "bool")
"""The kinds of columns that hold what packets do."""
_OF_STREAMS = tuple(column.name for column in (*COMMON, *CAPTURED))
_NUMBER_BYTES = 20


def write_lines(reading: OpenInput, file: IO[bytes]) -> None:
    """Write the selected rows of a reading.

    Raises
    ------
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    selection = reading.selection
    for reader, batch in read_parts(reading, selection.line_plan):
        if batch.num_rows:
            for piece in _lines(reader, batch, selection):
                file.write(piece)


def _lines(reader: BlockReader, batch: pa.RecordBatch, selection: Selection) -> Iterator[Any]:
    """Yield the lines of a batch, many at a time."""
    columns, rows = selection.shown_columns, batch.num_rows
    text, lines = _write(batch, columns, rows)
    bounds = np.cumsum([len(block.offsets) for _, block in reader.parts])
    start = 0
    for row in np.flatnonzero(_odd(reader, batch, selection)).tolist():
        yield text[lines[start] : lines[row]].data
        part = int(np.searchsorted(bounds, row, "right"))
        number = row - int(bounds[part - 1] if part else 0)
        yield _line(batch, row, reader.parts[part][1], number, selection)
        start = row + 1
    yield text[lines[start] : lines[rows]].data


def _odd(reader: BlockReader, batch: pa.RecordBatch, selection: Selection) -> Bytes:
    """Return non-zero for each row that is written by itself."""
    odd = np.zeros(batch.num_rows, np.uint8)
    if reader.found_bad:
        from pyarrow import compute as pc  # costs more than to read a small capture

        odd |= as_numbers(pc.not_equal(batch["status"], _OK))
    secret = selection.format.secret_columns if selection.redacts else ()
    for column in selection.shown_columns:
        if column.kind not in _PLAIN or column.name in secret:
            odd |= _valid(batch[column.name])
    return odd


def _line(
    batch: pa.RecordBatch, row: int, block: Block, number: int, selection: Selection
) -> bytes:
    """Return one row as `json_line` writes what the scalar reader says of it."""
    names = [name for name in _OF_STREAMS if name in batch.schema.names]
    (place,) = batch.select(names).slice(row, 1).to_pylist()
    return json_line(
        {**place, **packet_of_row(block, number, place, selection)}, selection.shown_columns
    )


def _write(batch: pa.RecordBatch, columns: Sequence[Column], rows: int) -> tuple[Bytes, Ints]:
    """Return all rows as lines, and where each begins; odd ones mean nothing."""
    names = [
        np.frombuffer(f'{"," if place else "{"}"{column.name}":'.encode(), np.uint8)
        for place, column in enumerate(columns)
    ]
    most = sum(
        _most_bytes(batch[column.name], column.kind) + rows * len(name)
        for column, name in zip(columns, names, strict=True)
    )
    cells = np.empty(most + SLACK, np.uint8)
    ends = np.empty((len(columns), rows + 1), np.int64)
    at = 0
    for column, name, row_ends in zip(columns, names, ends, strict=True):
        at = _put(batch[column.name], column.kind, name, cells, at, row_ends)
    out, lines = np.empty(at + 2 * rows + SLACK, np.uint8), np.empty(rows + 1, np.int64)
    line_kernels.join_cells(cells, ends, out, lines)
    return out, lines


def _most_bytes(values: pa.Array, kind: str) -> int:
    """Return how many bytes the values of a column may take."""
    if kind not in ("string", "binary"):
        return len(values) * _NUMBER_BYTES
    offsets, _ = _texts(values)
    factor = line_kernels.ESCAPED_BYTES if kind == "string" else 2
    return factor * int(offsets[-1] - offsets[0]) + 4 * len(values)


def _put(values: pa.Array, kind: str, name: Bytes, cells: Bytes, at: int, ends: Ints) -> int:
    valid = _valid(values)
    if kind == "string":
        return line_kernels.put_texts(*_texts(values), valid, name, cells, at, ends)
    if kind == "binary":
        return line_kernels.put_hex(*_texts(values), valid, name, cells, at, ends)
    if kind == "bool":
        flags = _bits(values.buffers()[1], values)
        return line_kernels.put_flags(flags, valid, name, cells, at, ends)
    if kind in _PLAIN:
        whole = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
        numbers = whole[values.offset : values.offset + len(values)].astype(np.int64)
        return line_kernels.put_numbers(numbers, valid, name, cells, at, ends)
    # Null in all rows that are not odd.
    zeros = np.zeros(len(values), np.uint8)
    return line_kernels.put_flags(zeros, zeros, name, cells, at, ends)


def _texts(values: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return offsets and bytes of a column of text or bytes."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return ends, np.frombuffer(data or b"", np.uint8)


def _valid(values: pa.Array) -> Bytes:
    """Return 1 for each row that is not null, else 0."""
    bitmap = values.buffers()[0]
    return np.ones(len(values), np.uint8) if bitmap is None else _bits(bitmap, values)


def _bits(bitmap: pa.Buffer, values: pa.Array) -> Bytes:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)]
