"""Rows that layers make, as batches of the tables of facts."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.layers.tables import TABLES, text_array
from wireyard.layout import Column
from wireyard.schema import arrow_type

__all__ = ["FACTS", "fact_batch", "with_times"]

FACTS = tuple(TABLES)
"""The tables that are made anew from all of bronze with every commit."""
_AT = pa.timestamp("us", tz="UTC")
_NS_PER_US = 1000


def fact_batch(table: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows of a table as a batch, with a timestamp ``x_at`` behind every moment ``x_ns``."""
    arrays = []
    for column in TABLES[table]:
        values = _values(rows, column.name)
        kind = arrow_type(column.kind)
        arrays.append(text_array(values) if kind == pa.string() else pa.array(values, kind))
        if _is_moment(column):
            moments = [None if ns is None else ns // _NS_PER_US for ns in values]
            arrays.append(pa.array(moments, _AT))
    return pa.RecordBatch.from_arrays(arrays, schema=_schema_of(table))


def with_times(name: str, table: pa.Table) -> pa.Table:
    """Return a part of a table with a timestamp ``x_at`` behind every moment ``x_ns``.

    Text is a dictionary and its indices, in all parts.
    """
    arrays, fields = [], []
    for column in TABLES[name]:
        values = table[column.name]
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        elif not pa.types.is_dictionary(values.type):
            values = values.cast(arrow_type(column.kind))
        arrays.append(values)
        fields.append(pa.field(column.name, values.type))
        if _is_moment(column):
            arrays.append(_floor_us(values))
            fields.append(pa.field(f"{column.name.removesuffix('_ns')}_at", _AT))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _floor_us(values: pa.ChunkedArray) -> pa.Array:
    """Return nanoseconds as the microseconds that they lie in, before 1970 too."""
    missing = pc.is_null(values).to_numpy(zero_copy_only=False)
    us = values.fill_null(0).to_numpy() // _NS_PER_US
    return pa.array(us, mask=missing).cast(_AT)


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:  # which a layer that has nothing for a column leaves out
        return [row.get(name) for row in rows]


def _schema_of(table: str) -> pa.Schema:
    fields = []
    for column in TABLES[table]:
        fields.append(pa.field(column.name, arrow_type(column.kind)))
        if _is_moment(column):
            fields.append(pa.field(f"{column.name.removesuffix('_ns')}_at", _AT))
    return pa.schema(fields)


def _is_moment(column: Column) -> bool:
    return "since 1970" in (column.unit or "")
