"""Column kinds as Arrow types, and Arrow arrays from and to numpy and Python values.

Only types that every engine supports: signed integers, 32-bit offsets, no unions, dictionaries or
views. The columns of every row come first, then those of the format.

Arrays are made from buffers here, and read as buffers. `pyarrow.array`, `pyarrow.scalar` and
`to_numpy` import pandas to check for its types, which takes longer than reading a capture of a
megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.arrays import Bools
from wireyard.errors import UsageError
from wireyard.layout import Column

__all__ = [
    "CAPTURED",
    "COMMON",
    "Repeated",
    "array_of",
    "arrow_type",
    "as_array",
    "as_numbers",
    "choose_columns",
    "empty_batch",
    "repeat_texts",
    "scalar_of",
    "schema_of",
]

COMMON = (
    Column("source", "string", "the source as it was given"),
    Column("stream", "string", "the directed stream; for a raw file its path"),
    Column("offset", "int64", "offset of the row's bytes in the stream", unit="bytes"),
    Column("length", "int64", "number of the row's bytes", unit="bytes"),
    Column("format", "string", "name of the format, and after a slash its dialect, if given"),
    Column("status", "string", "ok, malformed, garbage, tail or gap"),
    Column("error", "error", "the broken rule and its position; null if none"),
)
"""The columns that every row has, whatever its format."""

CAPTURED = (
    Column("captured_ns", "int64", "capture time of its last byte", unit="ns"),
    Column("frame", "int64", "number of the captured frame that completed it, from 1"),
    Column("src_addr", "string", "source address"),
    Column("src_port", "int32", "source port"),
    Column("dst_addr", "string", "destination address"),
    Column("dst_port", "int32", "destination port"),
)
"""The additional columns of rows from captures, after the common ones."""

_TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "offset": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "error": pa.struct(
        [
            ("code", pa.string()),
            ("field", pa.string()),
            ("offset", pa.int64()),
            ("message", pa.string()),
            ("spec", pa.string()),
        ]
    ),
    "items": pa.list_(pa.struct([("type", pa.int32()), ("value", pa.binary())])),
    "int32s": pa.list_(pa.int32()),
    "filters": pa.list_(
        pa.struct(
            [
                ("filter", pa.string()),
                ("qos", pa.int32()),
                ("no_local", pa.bool_()),
                ("retain_as_published", pa.bool_()),
                ("retain_handling", pa.int32()),
                ("ignored_bits", pa.int32()),
            ]
        )
    ),
    "name_values": pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
    "properties": pa.map_(pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])),
}


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a column kind."""
    return _TYPES[kind]


def choose_columns(
    owner: str, columns: Iterable[Column], names: Sequence[str] | None
) -> tuple[Column, ...]:
    """Return the columns of a format or a table with these names, or all if None.

    Raises
    ------
    UsageError
        A name that is no column of the owner, or is given twice.
    """
    known = {column.name: column for column in columns}
    if names is None:
        return tuple(known.values())
    for name in names:
        if name not in known:
            raise UsageError(f"{owner} has no column '{name}'; it has {', '.join(known)}")
    if len(set(names)) < len(names):
        raise UsageError("a column was asked for twice")
    return tuple(known[name] for name in names)


_MOST_REPEATED = 16
"""Most columns that are cached, because every stream of a capture has new values."""


class Repeated:
    """A cache of columns with one repeated value or null, which are returned as slices."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str | int | None], pa.Array] = {}

    def column(self, kind: str, value: str | int | None, rows: int) -> pa.Array:
        """Return a column of a kind with `value` in each of so many rows."""
        array = self._columns.get((kind, value))
        if array is None or len(array) < rows:
            if len(self._columns) == _MOST_REPEATED:
                del self._columns[next(iter(self._columns))]
            array = self._repeat(kind, value, 2 * rows)
            self._columns[kind, value] = array
        return array.slice(0, rows)

    @staticmethod
    def _repeat(kind: str, value: str | int | None, rows: int) -> pa.Array:
        if value is None:
            return pa.nulls(rows, arrow_type(kind))
        if isinstance(value, str):
            return repeat_texts([value], [rows])
        return as_array(np.full(rows, value, kind))


def repeat_texts(texts: Sequence[str], counts: Sequence[int]) -> pa.StringArray:
    """Return a column of texts, each repeated in `counts` rows."""
    raw = [text.encode() for text in texts]
    ends = np.zeros(sum(counts) + 1, np.int32)
    np.repeat(np.array([len(text) for text in raw], np.int32), counts).cumsum(out=ends[1:])
    data = b"".join(map(mul, raw, counts))
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))


def as_array(values: npt.NDArray[Any], unknown: Bools | None = None) -> pa.Array:
    """Return integers (without a copy) or booleans as an Arrow array.

    Parameters
    ----------
    unknown
        Whether each is null; None if none is.
    """
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    held = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    validity = None if unknown is None else _bits(~unknown)
    return pa.Array.from_buffers(kind, len(values), [validity, held])


def as_numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return an Arrow array of integers (without a copy) or booleans, without nulls, as numpy's."""
    start, stop = array.offset, array.offset + len(array)
    held = array.buffers()[1] or b""
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(held, np.uint8), bitorder="little")
        return bits[start:stop].astype(np.bool_)
    return np.frombuffer(held, str(array.type))[start:stop]


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values of a column's type as an Arrow array.

    Parameters
    ----------
    values
        None is null. A struct is a mapping, whose missing fields are null; a list is a sequence, a
        map a sequence of pairs.
    """
    absent = [value is None for value in values]
    validity = _bits(~np.array(absent, np.bool_)) if any(absent) else None
    if pa.types.is_boolean(kind):
        buffers = [validity, _bits(np.array([bool(value) for value in values], np.bool_))]
        return pa.Array.from_buffers(kind, len(values), buffers)
    if pa.types.is_integer(kind):
        numbers = np.array([0 if value is None else value for value in values], str(kind))
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])
    if pa.types.is_struct(kind):
        fields = [
            array_of([_field(value, field.name) for value in values], field.type) for field in kind
        ]
        return pa.Array.from_buffers(kind, len(values), [validity], children=fields)
    if pa.types.is_string(kind):
        values = [b"" if value is None else value.encode() for value in values]
    parts = [() if value is None else value for value in values]
    ends = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    buffers = [validity, pa.py_buffer(ends)]
    if pa.types.is_list(kind):
        items = [array_of(list(chain.from_iterable(parts)), kind.value_type)]
        return pa.Array.from_buffers(kind, len(parts), buffers, children=items)
    if pa.types.is_map(kind):
        pairs = [{"key": key, "value": value} for key, value in chain.from_iterable(parts)]
        items = [array_of(pairs, pa.struct([kind.key_field, kind.item_field]))]
        return pa.Array.from_buffers(kind, len(parts), buffers, children=items)
    buffers.append(pa.py_buffer(b"".join(part or b"" for part in parts)))
    return pa.Array.from_buffers(kind, len(parts), buffers)


def _field(value: Mapping[str, Any] | None, name: str) -> Any:
    return None if value is None else value.get(name)


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value of a column's type as an Arrow scalar, to compare a column with."""
    return array_of([value], kind)[0]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _bits(values: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """Return `columns` as an Arrow schema."""
    return pa.schema([pa.field(column.name, arrow_type(column.kind)) for column in columns])
