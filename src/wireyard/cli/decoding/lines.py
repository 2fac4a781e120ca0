"""Batches as JSON Lines, formatted column by column, without Python objects for rows.

The lines are those of `row_line`. Columns only have text that every engine accepts: lone
surrogates are escaped, and an object is text. So rows that the compiled reader left to the scalar
reader are written from the scalar reader's values, unless the texts of the format are plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arena import pooled
from wireyard.arrays import Bytes, Int32s, Ints
from wireyard.cli.decoding.cells import row_line
from wireyard.cli.decoding.large import hex_pieces, large_rows, large_value
from wireyard.cli.decoding.reading import OpenInput, read_parts
from wireyard.cli.decoding.selection import Selection
from wireyard.formats.properties import TYPES
from wireyard.memory import SLACK
from wireyard.schema import CAPTURED, arrow_type, as_array, as_numbers
from wireyard.streams import line_kernels
from wireyard.streams.batches import ScalarRows
from wireyard.streams.redaction import Redactor
from wireyard.text import PAYLOADS

_OF_STREAMS: Final = ("source", "stream", *(column.name for column in CAPTURED))
"""Columns that come from the source of a row, not from its bytes."""
_NUMBER_BYTES: Final = 20
_NULL_BYTES: Final = 4
_ROWS_AT_ONCE: Final = 1 << 12
"""Few enough that the cells of all columns are in the cache when they are joined to lines."""
_DOUBLE_BYTES: Final = 24
_NAMED: Final = arrow_type("name_values").value_type
_SHAPES: Final = {
    "number": line_kernels.BARE,
    "text": line_kernels.TEXT_VALUE,
    "binary": line_kernels.TEXT_VALUE,
    "pair": line_kernels.PAIR,
}
"""JSON shapes of the values of name-value pairs, by kind."""
_FLOATS: Final = {"float": np.float32, "double": np.float64}
_PROPERTY_SHAPES: Final = {
    **dict.fromkeys(TYPES.values(), line_kernels.BARE),
    **dict.fromkeys(("string", "object"), line_kernels.TEXT_VALUE),
    **dict.fromkeys(_FLOATS, line_kernels.DOUBLE),
}
"""JSON shapes of property values, by type."""


def write_lines(reading: OpenInput, file: IO[bytes]) -> None:
    """Write the selected rows of a reading.

    In mode ``failfast``, the first bad row raises a `DecodeError`.
    """
    selection = reading.selection
    redactor = Redactor(selection.format)
    apart = not selection.format.texts.are_plain
    for decoded, batch in read_parts(reading, selection.column_plan, apart=apart):
        shown = redactor.redact(batch) if selection.redacts else batch
        for piece in _lines(decoded.scalar_rows, shown, selection):
            file.write(piece)


def _lines(scalar_rows: ScalarRows, batch: pa.RecordBatch, selection: Selection) -> Iterator[Any]:
    """Yield the lines of a batch, many at a time."""
    kinds = {name: _SHAPES[kind] for name, kind in selection.format.texts.kinds.items()}
    names = [column.name for column in selection.shown_columns]
    keys = _keys(names)
    plain = selection.format.texts.are_plain
    scalar = scalar_rows.numbers[: 0 if plain else None]
    bodies = [name for name in names if name in PAYLOADS]
    cuts = {*range(0, batch.num_rows, _ROWS_AT_ONCE), batch.num_rows}
    large = {*large_rows(batch, bodies)} - {*scalar.tolist()}
    cuts |= {cut for row in large for cut in (row, row + 1)}
    for first, stop in pairwise(sorted(cuts)):
        part = batch.slice(first, stop - first)
        if first in large:
            yield from _large_line(part, names, bodies, keys, kinds)
            continue
        cells = [_cells(part[name], kinds) for name in names]
        text, lines = _joined(zip(keys, cells, strict=True), "}\n", part.num_rows)
        in_part = scalar[slice(*scalar.searchsorted((first, first + part.num_rows)))]
        start = 0
        for row, line in _single_lines(scalar_rows, batch, in_part, selection):
            yield text[lines[start] : lines[row - first]].data
            yield line
            start = row - first + 1
        yield text[lines[start] : lines[-1]].data


def _large_line(
    row: pa.RecordBatch,
    names: Sequence[str],
    bodies: Sequence[str],
    keys: Sequence[str],
    kinds: Mapping[str, int],
) -> Iterator[Any]:
    """Yield the line of a row with large values in pieces: they are in the place of empty ones."""
    values = {name: row[name] for name in names}
    large = [(name, data) for name in bodies if (data := large_value(values[name])) is not None]
    empty = pa.array([b""], pa.binary())
    cells = [
        _cells(value if name not in dict(large) else empty, kinds) for name, value in values.items()
    ]
    text, lines = _joined(zip(keys, cells, strict=True), "}\n", 1)
    rest = text[: lines[-1]].tobytes()
    for name, data in large:
        head, key, rest = rest.partition(f'"{name}":"'.encode())
        yield head + key
        yield from hex_pieces(data)
    yield rest


def _single_lines(
    scalar_rows: ScalarRows, batch: pa.RecordBatch, rows: Ints, selection: Selection
) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers of rows from the scalar reader, each with its line."""
    if not len(rows):
        return
    names = [name for name in _OF_STREAMS if name in batch.schema.names]
    known = batch.select(names).take(as_array(rows)).to_pylist()
    places = scalar_rows.numbers.searchsorted(rows)
    for row, at, place in zip(rows.tolist(), places.tolist(), known, strict=True):
        values = scalar_rows.row(at)
        shown = values if selection.request.secrets else selection.format.secrets.redact(values)
        yield row, row_line(*selection.shape({**place, **shown}))


class _Cells(NamedTuple):
    """The values of a column as JSON: an upper bound of their bytes, and the kernel that writes."""

    most_bytes: int
    put: Callable[[Bytes, int, Ints], int]


def _keys(names: Iterable[str]) -> list[str]:
    """Return the text before each value of an object."""
    return [f'{"," if place else "{"}"{name}":' for place, name in enumerate(names)]


def _joined(
    columns: Iterable[tuple[str, _Cells | None]], end: str, rows: int
) -> tuple[Bytes, Ints]:
    """Return rows as text, and the offset of each row in it.

    `columns` has for each column the text before its values, in ASCII, and its cells; None for null
    in all rows. `end` is the text at the end of a row.
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


def _cells(values: pa.Array, named: Mapping[str, int]) -> _Cells | None:
    """Return the cells of a column; None if all are null.

    `named` has the shapes of values that have a name, by name.
    """
    kind, rows = values.type, len(values)
    if values.null_count == rows:
        return None
    valid, nulls = _valid(values), _NULL_BYTES * rows
    if pa.types.is_struct(kind):
        return _structs(values, valid)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _lists(values, valid, named)
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


def _lists(values: pa.Array, valid: Bytes, named: Mapping[str, int]) -> _Cells:
    """Return the cells of a column of lists, or of properties."""
    columns: Iterable[tuple[str, _Cells | None]]
    ends = _ends(values)
    entries = values.values.slice(ends[0], ends[-1] - ends[0])
    opening, end = line_kernels.BRACKET, ""
    if pa.types.is_map(values.type):
        key, value = _fields(entries).values()
        kind, text = _fields(value).values()
        cells = [_cells(key, {}), _cells(kind, {}), _typed(kind, text, _PROPERTY_SHAPES)]
        columns = zip(("", ':{"type":', ',"value":'), cells, strict=True)
        opening, end = line_kernels.BRACE, "}"
    elif pa.types.is_struct(entries.type):
        fields = _fields(entries)
        by_name = {name: _cells(field, {}) for name, field in fields.items()}
        if entries.type == _NAMED:
            by_name["value"] = _typed(fields["name"], fields["value"], named)
        columns, end = zip(_keys(by_name), by_name.values(), strict=True), "}"
    else:
        columns = [("", _cells(entries, {}))]
    text, bounds = _joined(columns, end, len(entries))
    put = partial(line_kernels.put_lists, opening, ends - ends[0], valid, text, bounds)
    return _Cells(int(bounds[-1]) + len(entries) + _NULL_BYTES * len(values), put)


def _structs(values: pa.Array, valid: Bytes) -> _Cells:
    """Return the cells of a column of structs: objects."""
    by_name = _fields(values)
    keys = [key.lstrip("{") for key in _keys(by_name)]
    cells = [_cells(field, {}) for field in by_name.values()]
    text, bounds = _joined(zip(keys, cells, strict=True), "", len(values))
    entries = np.arange(len(values) + 1, dtype=np.int32)
    put = partial(line_kernels.put_lists, line_kernels.BRACE, entries, valid, text, bounds)
    return _Cells(int(bounds[-1]) + (_NULL_BYTES + 1) * len(values), put)


def _fields(values: pa.Array) -> dict[str, pa.Array]:
    """Return the columns that a column of structs consists of."""
    return {field.name: values.field(at) for at, field in enumerate(values.type)}


def _typed(labels: pa.Array, values: pa.Array, shapes: Mapping[str, int]) -> _Cells | None:
    """Return the cells of values that are text in the column, and typed in JSON.

    `labels` are the names or the types of the values; `shapes` has the JSON shapes by label.
    """
    if values.null_count == len(values):
        return None
    encoded = labels.dictionary_encode()
    known, codes = encoded.dictionary.to_pylist(), as_numbers(encoded.indices)
    shape = np.array([shapes[label] for label in known], np.uint8)[codes]
    doubles = np.empty(len(values) if line_kernels.DOUBLE in shape else 0, np.float64)
    for code, label in enumerate(known):
        if shapes[label] == line_kernels.DOUBLE:
            where = np.flatnonzero(codes == code)
            read = values.take(as_array(where)).cast(pa.from_numpy_dtype(_FLOATS[label]))
            doubles[where] = np.frombuffer(read.buffers()[1], _FLOATS[label])
    offsets, data = _texts(values)
    bits = doubles.view(np.int64)
    put = partial(line_kernels.put_typed, offsets, data, _valid(values), shape, bits)
    size = line_kernels.ESCAPED_BYTES * int(offsets[-1] - offsets[0])
    return _Cells(size + _NULL_BYTES * len(values) + _DOUBLE_BYTES * len(doubles), put)


def _ends(values: pa.Array) -> Int32s:
    """Return the offsets of a column of text, bytes or lists."""
    ends = np.frombuffer(values.buffers()[1], np.int32)
    return ends[values.offset : values.offset + len(values) + 1]


def _texts(values: pa.Array) -> tuple[Int32s, Bytes]:
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
