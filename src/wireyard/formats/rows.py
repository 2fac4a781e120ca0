"""Rows of any format: the choice of their columns, and rows of the scalar reader as batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from wireyard.formats.base import Format, Row
from wireyard.formats.property_rows import property_text
from wireyard.java import storable
from wireyard.layout import Column
from wireyard.schema import CAPTURED, COMMON, array_of, arrow_type, choose_columns, schema_of


def pick_columns(
    format: Format, columns: Sequence[str] | None, *, captured: bool = False
) -> tuple[Column, ...]:
    """Return the named columns in that order, or all if None.

    With `captured`, those of captures are among them. A UsageError is raised for a name that is no
    column of the format, or is given twice.
    """
    common = (*COMMON, *CAPTURED) if captured else COMMON
    return choose_columns(format.name, (*common, *format.columns), columns)


def rows_to_batch(columns: Sequence[Column], rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a batch; values that a row does not have are null."""
    given = set(chain.from_iterable(rows))
    kinds = [arrow_type(column.kind) for column in columns]
    arrays = [
        array_of(_values(column, rows), kind) if column.name in given else pa.nulls(len(rows), kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _values(column: Column, rows: Sequence[Row]) -> list[Any]:
    values = [row.get(column.name) for row in rows]
    if column.kind == "string":
        return [None if value is None else storable(value) for value in values]
    if column.kind == "properties":
        return [None if value is None else _property_entries(value) for value in values]
    if column.kind == "name_values":
        return [None if value is None else _named_texts(value) for value in values]
    return values


def _property_entries(properties: Mapping[str, tuple[str, Any]]) -> list[tuple[str, Row]]:
    return [
        (storable(name), {"type": kind, "value": storable(property_text(kind, value))})
        for name, (kind, value) in properties.items()
    ]


def _named_texts(entries: Sequence[Row]) -> list[Row]:
    return [{"name": entry["name"], "value": _value_text(entry["value"])} for entry in entries]


def _value_text(value: Any) -> str | None:
    """Return a value of any kind as text: bytes in hexadecimal, several values as a JSON array."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
