"""Batches as JSON Lines, a column at a time: what `json_line` writes, without a row in Python.

Rows that are no well-formed packets are written one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.arena import pooled
from wireyard.cli.jsonl import json_line
from wireyard.cli.reading import OpenInput, read_parts
from wireyard.cli.rows import packet_of_row
from wireyard.cli.selection import Selection
from wireyard.memory import SLACK
from wireyard.schema import CAPTURED, COMMON, arrow_type, as_numbers, scalar_of
from wireyard.streams import line_kernels
from wireyard.streams.batches import BlockReader
from wireyard.streams.blocks import Block
from wireyard.streams.framer import OK
from wireyard.streams.redaction import Redactor

__all__ = ["write_lines"]

_OK = scalar_of(OK, pa.string())

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_ODD_KINDS: Final = ("properties", "error")
"""The kinds of columns that do not hold all that rows do, or that only bad rows have."""
_OF_STREAMS = tuple(column.name for column in (*COMMON, *CAPTURED))
_NUMBER_BYTES: Final = 20
_NULL_BYTES: Final = 4
_ROWS_AT_ONCE: Final = 1 << 12
"""So few that the cells of all columns are in the cache when they become lines."""
_NAMED: Final = arrow_type("name_values").value_type
_SHAPES: Final = {
    "number": line_kernels.BARE,
    "text": line_kernels.TEXT_VALUE,
    "binary": line_kernels.TEXT_VALUE,
    "pair": line_kernels.PAIR,
}
"""How values of names and values stand in JSON."""


def write_lines(reading: OpenInput, file: IO[bytes]) -> None:
    """Write the selected rows of a reading.

    Raises
    ------
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    selection = reading.selection
    redactor = Redactor(selection.format)
    for reader, batch in read_parts(reading, selection.column_plan):
        shown = redactor.redact(batch)[0] if selection.redacts else batch
        for piece in _lines(reader, shown, selection):
            file.write(piece)


def _lines(reader: BlockReader, batch: pa.RecordBatch, selection: Selection) -> Iterator[Any]:
    """Yield the lines of a batch, many at a time."""
    kinds = selection.format.named_values
    names = [column.name for column in selection.shown_columns]
    keys = _keys(names)
    odd = np.flatnonzero(_odd(reader, batch, selection))
    bounds = np.cumsum([len(block.offsets) for _, block in reader.parts])
    for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
        some = batch.slice(first, _ROWS_AT_ONCE)
        cells = [_cells(some[name], kinds) for name in names]
        text, lines = _joined(zip(keys, cells, strict=True), "}\n", some.num_rows)
        start = 0
        for row in odd[slice(*odd.searchsorted((first, first + some.num_rows)))].tolist():
            yield text[lines[start] : lines[row - first]].data
            part = int(np.searchsorted(bounds, row, "right"))
            number = row - int(bounds[part - 1] if part else 0)
            yield _line(batch, row, reader.parts[part][1], number, selection)
            start = row - first + 1
        yield text[lines[start] : lines[-1]].data


def _odd(reader: BlockReader, batch: pa.RecordBatch, selection: Selection) -> Bytes:
    """Return non-zero for each row that is written by itself."""
    odd = np.zeros(batch.num_rows, np.uint8)
    if reader.found_bad:
        from pyarrow import compute as pc  # costs more than to read a small capture

        odd |= as_numbers(pc.not_equal(batch["status"], _OK))
    for column in selection.shown_columns:
        if column.kind in _ODD_KINDS:
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


class _Cells(NamedTuple):
    """The values of a column as JSON: the most bytes they take, and the kernel that writes them."""

    most_bytes: int
    put: Callable[[Bytes, int, Ints], int]


def _keys(names: Iterable[str]) -> list[str]:
    """Return what stands before each value of an object."""
    return [f'{"," if place else "{"}"{name}":' for place, name in enumerate(names)]


def _joined(
    columns: Iterable[tuple[str, _Cells | None]], end: str, rows: int
) -> tuple[Bytes, Ints]:
    """Return rows as text, and where in it each begins.

    Parameters
    ----------
    columns
        The cells of each column, and the text before them in every row; both in ASCII.
    end
        What ends a row.
    """
    between: list[str] = []
    found: list[_Cells] = []
    text = ""
    for key, cells in columns:
        text += key
        if cells is None:
            text += "null"
        else:
            between.append(text)
            found.append(cells)
            text = ""
    between.append(text + end)
    written = pooled(sum(cells.most_bytes for cells in found) + SLACK, np.uint8)
    ends = np.empty((len(found), rows + 1), np.int64)
    at = 0
    for cells, row_ends in zip(found, ends, strict=True):
        at = cells.put(written, at, row_ends)
    bounds = np.cumsum([0, *map(len, between)])
    out = pooled(at + int(bounds[-1]) * rows + SLACK, np.uint8)
    starts = np.empty(rows + 1, np.int64)
    padded = np.frombuffer("".join(between).encode() + bytes(SLACK), np.uint8)
    line_kernels.join_cells(written, ends, padded, bounds, out, starts)
    return out, starts


def _cells(values: pa.Array, kinds: Mapping[str, str]) -> _Cells | None:
    """Return the cells of a column; None if all are null.

    Parameters
    ----------
    kinds
        Those of `Format.named_values`.
    """
    kind, rows = values.type, len(values)
    if values.null_count == rows or pa.types.is_struct(kind) or pa.types.is_map(kind):
        return None  # else only odd rows have one
    valid, nulls = _valid(values), _NULL_BYTES * rows
    if pa.types.is_list(kind):
        return _lists(values, valid, kinds)
    if pa.types.is_integer(kind):
        numbers = as_numbers(values).astype(np.int64)
        return _Cells(_NUMBER_BYTES * rows, partial(line_kernels.put_numbers, numbers, valid))
    if pa.types.is_boolean(kind):
        flags = _bits(values.buffers()[1], values)
        return _Cells(_NUMBER_BYTES * rows, partial(line_kernels.put_flags, flags, valid))
    offsets, data = _texts(values)
    size = int(offsets[-1] - offsets[0])
    if pa.types.is_binary(kind):
        return _Cells(2 * size + nulls, partial(line_kernels.put_hex, offsets, data, valid))
    put = partial(line_kernels.put_texts, offsets, data, valid)
    return _Cells(line_kernels.ESCAPED_BYTES * size + nulls, put)


def _lists(values: pa.Array, valid: Bytes, kinds: Mapping[str, str]) -> _Cells:
    """Return the cells of a column of lists."""
    columns: Iterable[tuple[str, _Cells | None]]
    ends = _ends(values)
    entries = values.values.slice(ends[0], ends[-1] - ends[0])
    if pa.types.is_struct(entries.type):
        fields = {one.name: entries.field(at) for at, one in enumerate(entries.type)}
        cells = {name: _cells(field, kinds) for name, field in fields.items()}
        if entries.type == _NAMED:
            cells["value"] = _named(fields["name"], fields["value"], kinds)
        columns, end = zip(_keys(cells), cells.values(), strict=True), "}"
    else:
        columns, end = [("", _cells(entries, kinds))], ""
    text, bounds = _joined(columns, end, len(entries))
    put = partial(line_kernels.put_lists, ends - ends[0], valid, text, bounds)
    return _Cells(int(bounds[-1]) + len(entries) + _NULL_BYTES * len(values), put)


def _named(names: pa.Array, values: pa.Array, kinds: Mapping[str, str]) -> _Cells | None:
    """Return the cells of values that columns have as text, and JSON as what they are."""
    if values.null_count == len(values):
        return None
    encoded = names.dictionary_encode()
    shapes = np.array([_SHAPES[kinds[name]] for name in encoded.dictionary.to_pylist()], np.uint8)
    offsets, data = _texts(values)
    shape = shapes[as_numbers(encoded.indices)]
    put = partial(line_kernels.put_named, offsets, data, _valid(values), shape)
    size = line_kernels.ESCAPED_BYTES * int(offsets[-1] - offsets[0])
    return _Cells(size + _NULL_BYTES * len(values), put)


def _ends(values: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of a column of text, bytes or lists."""
    ends = np.frombuffer(values.buffers()[1], np.int32)
    return ends[values.offset : values.offset + len(values) + 1]


def _texts(values: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return offsets and bytes of a column of text or bytes."""
    return _ends(values), np.frombuffer(values.buffers()[2] or b"", np.uint8)


def _valid(values: pa.Array) -> Bytes:
    """Return 1 for each row that is not null, else 0."""
    bitmap = values.buffers()[0]
    return np.ones(len(values), np.uint8) if bitmap is None else _bits(bitmap, values)


def _bits(bitmap: pa.Buffer, values: pa.Array) -> Bytes:
    start, stop = values.offset, values.offset + len(values)
    held = np.frombuffer(bitmap, np.uint8)[start >> 3 : -(-stop // 8)]
    return np.unpackbits(held, bitorder="little")[start & 7 :][: len(values)]
