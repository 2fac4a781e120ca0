"""Arrow batches as CSV (RFC 4180), formatted column by column.

Lines end with LF. Text is quoted and may contain line breaks; null is an empty cell, and empty text
is ``""``. Times are ISO 8601 in UTC, nested values JSON, payloads in the chosen notation, other
bytes hexadecimal.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from wireyard.cli.decoding.cells import NOTATIONS, UNSAFE, json_text, shown_bytes
from wireyard.cli.decoding.large import hex_pieces, large_rows, large_value, pieces_of
from wireyard.text import CONTROL, PAYLOADS, printable

_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint16)
_NOT_PLAIN = "[^ -~]"
"""Characters that a terminal may not show as they are."""
_UNSAFE = f"[{UNSAFE}]"
_FORMULA = "^([\t\r]|[\\pZ\\pC]*[=+\\-@\uff1d\uff0b\uff0d\uff20])"
"""Beginnings of formulas: a sign, also one of full width, behind what looks like nothing."""
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800  # seconds since 1970
_IN_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class CsvWriter:
    """Writer of batches of one schema as CSV, in UTF-8; at most one batch is in memory.

    `payload` is the notation of payloads, a key of `PAYLOAD_TEXTS`. Payloads are cut after
    `payload_bytes`, with a note of how many bytes were cut; None to cut none. `times` are the
    integer columns that are times since 1970, each with its unit: ``ms`` or ``ns``.

    For a spreadsheet, the file begins with a byte order mark, text that a spreadsheet would take
    for a formula gets an apostrophe in front, and characters that change how text looks are
    escaped. For a terminal, control characters are escaped.
    """

    def __init__(
        self,
        schema: pa.Schema,
        file: IO[bytes],
        payload: str = "text",
        *,
        payload_bytes: int | None = None,
        times: Mapping[str, str] = MappingProxyType({}),
        spreadsheet: bool = False,
        terminal: bool = False,
    ) -> None:
        self._file = file
        self._payload, self._payload_bytes = payload, payload_bytes
        self._times, self._spreadsheet, self._terminal = times, spreadsheet, terminal
        head = pa.table([pa.array([], pa.string())] * len(schema), names=schema.names)
        if spreadsheet:
            file.write("\ufeff".encode())
        csv.write_csv(head, pa.PythonFile(file, mode="w"))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        start = 0
        for row in self._large_rows(batch):
            _write_cells(self._columns(batch.slice(start, row - start)), self._file)
            self._write_large(batch.slice(row, 1))
            start = row + 1
        _write_cells(self._columns(batch.slice(start)), self._file)

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        named = zip(batch.schema.names, batch.columns, strict=True)
        return [self._cells(name, values) for name, values in named]

    def _large_rows(self, batch: pa.RecordBatch) -> list[int]:
        """Return the rows with a payload that is written in pieces."""
        is_plain = self._payload in ("text", "hex") and self._payload_bytes is None
        if not is_plain or self._spreadsheet or self._terminal:
            return []
        return large_rows(batch, [name for name in PAYLOADS if name in batch.schema.names])

    def _write_large(self, row: pa.RecordBatch) -> None:
        """Write one row, whose payloads are large, cell by cell."""
        for place, (name, values) in enumerate(zip(row.schema.names, row.columns, strict=True)):
            self._file.write(b"," * (place > 0))
            if name in PAYLOADS and (data := large_value(values)) is not None:
                self._file.write(b'"')
                for text in _text_pieces(data, self._payload):
                    self._file.write(text.replace(b'"', b'""'))
                self._file.write(b'"')
            else:
                cell = BytesIO()
                _write_cells([self._cells(name, values)], cell)
                self._file.write(cell.getvalue()[:-1])
        self._file.write(b"\n")

    def close(self) -> None:
        """End the file; nothing is left to write."""

    def _cells(self, name: str, values: pa.Array) -> pa.Array:
        """Return the cells of a column: text, numbers or truth values."""
        kind = values.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            notation = self._payload if name in PAYLOADS else "hex"
            cut = self._payload_bytes if name in PAYLOADS else None
            return self._guarded(_binary_texts(values, notation, cut))
        if pa.types.is_timestamp(kind):
            return _time_texts(values.cast(pa.int64()), kind.unit)
        if name in self._times and pa.types.is_int64(kind):
            return _time_texts(values, self._times[name])
        if pa.types.is_nested(kind):
            return self._guarded(_json_texts(values))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._guarded(values)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        return values if number or pa.types.is_boolean(kind) else values.cast(pa.string())

    def _guarded(self, texts: pa.Array) -> pa.Array:
        """Return texts that are safe for spreadsheets and terminals, as far as requested."""
        if self._terminal and pc.any(pc.match_substring_regex(texts, _NOT_PLAIN)).as_py():
            shown = [None if text is None else printable(text) for text in texts.to_pylist()]
            texts = pa.array(shown, texts.type)
        if not self._spreadsheet:
            return texts
        if pc.any(pc.match_substring_regex(texts, _UNSAFE)).as_py():
            escaped = partial(re.compile(_UNSAFE).sub, lambda at: printable(at[0]))
            shown = [None if text is None else escaped(text) for text in texts.to_pylist()]
            texts = pa.array(shown, texts.type)
        formula = pc.match_substring_regex(texts, _FORMULA)
        formula = pc.and_not(formula, pc.match_substring_regex(texts, _NUMBER))
        return pc.if_else(formula, _join("'", texts), _join(texts))


def _write_cells(columns: Sequence[pa.Array], file: IO[bytes]) -> None:
    cells = pa.table(columns, names=[str(number) for number in range(len(columns))])
    options = csv.WriteOptions(include_header=False)
    csv.write_csv(cells, pa.PythonFile(file, mode="w"), options)


def write_csv(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: IO[bytes], **how: Any
) -> None:
    """Write batches as CSV; `how` are the parameters of `CsvWriter`."""
    writer = CsvWriter(schema, file, **how)
    for batch in batches:
        writer.write(batch)


# --- bytes ----------------------------------------------------------------------------------


def _binary_texts(values: pa.Array, notation: str, most: int | None) -> pa.Array:
    """Convert bytes to text, cut after `most` bytes with a note of how many were cut."""
    values, show = values.cast(pa.large_binary()), PAYLOAD_TEXTS[notation]
    long = pc.fill_null(pc.greater(pc.binary_length(values), most), False)
    if most is None or notation == "hash" or not pc.any(long).as_py():
        return show(values)
    cut = [shown_bytes(data, notation, most) for data in values.filter(long).to_pylist()]
    short = pc.if_else(long, pa.scalar(None, values.type), values)
    return pc.replace_with_mask(show(short), long, pa.array(cut, pa.large_string()))


def _text_pieces(data: memoryview, notation: str) -> Iterator[bytes]:
    """Yield a payload as `PAYLOAD_TEXTS` has it, in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    controls = re.compile(CONTROL.encode())
    is_text = notation == "text"
    try:
        for piece in pieces_of(data) if is_text else ():
            decoder.decode(piece)
            is_text &= controls.search(piece) is None
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        is_text = False
    if is_text:
        yield from map(bytes, pieces_of(data))
    else:
        yield b"0x" * (notation == "text")
        yield from hex_pieces(data)


def _parts(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the offsets of large binaries, beginning at 0, and their bytes."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    held = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    return bounds - bounds[0], held


def _with_nulls(texts: pa.Array, values: pa.Array) -> pa.Array:
    if not values.null_count:
        return texts
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, texts.type))


def _hex_texts(values: pa.Array) -> pa.Array:
    """Return bytes as hexadecimal."""
    bounds, data = _parts(values.cast(pa.large_binary()))
    buffers = [None, pa.py_buffer(2 * bounds), pa.py_buffer(_HEX[data])]
    return _with_nulls(pa.Array.from_buffers(pa.large_string(), len(values), buffers), values)


def _each(show: Callable[[bytes], str]) -> Callable[[pa.Array], pa.Array]:
    def texts(values: pa.Array) -> pa.Array:
        shown = [None if data is None else show(data) for data in values.to_pylist()]
        return pa.array(shown, pa.large_string())

    return texts


def _plain_texts(values: pa.Array) -> pa.Array:
    """Return bytes as text if they are printable UTF-8, else as ``0x`` and hexadecimal."""
    bounds, data = _parts(values)
    binary, filled = np.zeros(len(values), np.bool_), np.flatnonzero(np.diff(bounds))
    highest = np.maximum.reduceat(data, bounds[filled]) if len(filled) else data
    for row in filled[highest > 0x7F].tolist():
        try:
            data[bounds[row] : bounds[row + 1]].tobytes().decode()
        except UnicodeDecodeError:
            binary[row] = True
    is_binary = pa.array(binary)
    texts = pc.if_else(is_binary, pa.scalar(b"", pa.large_binary()), values).cast(pa.large_string())
    has_controls = pc.fill_null(pc.match_substring_regex(texts, CONTROL), False)
    is_binary = pc.or_(is_binary, has_controls)
    if not pc.any(is_binary).as_py():
        return texts
    shown = _join("0x", _hex_texts(values.filter(is_binary)))
    return pc.replace_with_mask(texts, is_binary, shown)


PAYLOAD_TEXTS: Mapping[str, Callable[[pa.Array], pa.Array]] = MappingProxyType(
    {
        "text": _plain_texts,
        "hex": _hex_texts,
        **{name: _each(NOTATIONS[name]) for name in ("base64", "hash")},
    }
)
"""Notations of payloads by name; ``hash`` is SHA-256. ``hex`` and ``base64`` are reversible."""


# --- times and nested values ----------------------------------------------------------------


def _time_texts(values: pa.Array, unit: str) -> pa.Array:
    """Return times since 1970 as ISO 8601 in UTC; 0, and years beyond 1 to 9999, stay numbers."""
    per_second = _IN_SECOND[unit]
    # For fine units the bounds exceed an int64, and are clamped to it.
    first, last = (
        max(min(year * per_second, 2**63 - 1), -(2**63)) for year in (_YEAR_1, _YEAR_10000)
    )
    dated = pc.and_(pc.greater_equal(values, first), pc.less(values, last))
    dated = pc.and_(dated, pc.not_equal(values, 0))
    moments = pc.if_else(dated, values, 0).cast(pa.timestamp(unit))
    texts = pc.replace_substring(moments.cast(pa.string()), " ", "T")
    return pc.if_else(dated, _join(texts, "Z"), values.cast(pa.large_string()))


def _json_texts(values: pa.Array) -> pa.Array:
    """Return nested values as compact JSON, null where they are null."""
    return _with_nulls(_as_json(values), values)


def _as_json(values: pa.Array) -> pa.Array:
    """Return values as JSON texts, ``null`` where they are null."""
    kind = values.type
    if pa.types.is_struct(kind):
        texts = _struct_json(values)
    elif pa.types.is_map(kind):
        entry = _join(_as_json(values.keys), ":", _as_json(values.items))
        texts = _joined(values, entry, "{", "}")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = _joined(values, _as_json(values.values), "[", "]")
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        texts = values.cast(pa.string())
    elif pa.types.is_floating(kind):
        finite = pc.is_finite(values)
        texts = values.cast(pa.large_string())
        texts = pc.if_else(finite, texts, _join('"', texts, '"'))
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = _join('"', _hex_texts(values), '"')
    elif pa.types.is_timestamp(kind):
        texts = _join('"', _time_texts(values.cast(pa.int64()), kind.unit), '"')
    else:
        texts = _quoted(values.cast(pa.string()))
    return pc.fill_null(_with_nulls(texts.cast(pa.large_string()), values), "null")


def _join(*parts: Any) -> pa.Array:
    """Concatenate texts row by row; a part is a column, or a string for all rows."""
    large = [
        pa.scalar(part, pa.large_string())
        if isinstance(part, str)
        else part.cast(pa.large_string())
        for part in (*parts, "")
    ]
    return pc.binary_join_element_wise(*large)


def _struct_json(values: pa.Array) -> pa.Array:
    if not values.type.num_fields:
        return pa.array(["{}"] * len(values), pa.large_string())
    pieces: list[Any] = []
    for place, field in enumerate(values.type):
        pieces += ["," if place else "{", f"{json_text(field.name)}:"]
        # Unlike `flatten`, `field` does not apply the nulls of the struct.
        pieces.append(_as_json(values.field(place)))
    return _join(*pieces, "}")


def _joined(values: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """Return each list as JSON text, given the JSON texts of the items of all lists."""
    offsets = pc.cast(values.offsets, pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, items)
    return _join(opening, pc.binary_join(lists, pa.scalar(",", pa.large_string())), closing)


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings."""
    if pc.any(pc.match_substring_regex(texts, f'[\x00-\x1f"\\\\{UNSAFE}]')).as_py():
        shown = [None if text is None else json_text(text) for text in texts.to_pylist()]
        return pa.array(shown, pa.large_string())
    return _join('"', texts, '"')
