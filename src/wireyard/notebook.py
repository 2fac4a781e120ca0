"""Tables for notebooks: timestamps beside integers, and a view as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats import get_format, names
from wireyard.schema import CAPTURED
from wireyard.text import PAYLOADS, payload_text, printable

__all__ = ["Shown", "show", "with_times"]

_UNITS: Mapping[str, str] = {"ns": "ns", "ms since epoch": "ms"}
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 to 9999."""
_CELL_BYTES = 200


@cache
def _times() -> Mapping[str, str]:
    """Return the units of all columns that are times since 1970."""
    columns = [*CAPTURED, *(one for name in names() for one in get_format(name).columns)]
    return {one.name: _UNITS[one.unit] for one in columns if one.unit and one.unit in _UNITS}


def with_times(table: pa.Table) -> pa.Table:
    """Add a timestamp in UTC behind each column of integers that are times since 1970.

    It is called as the column, without its unit and with ``_at``: ``captured_at`` behind
    ``captured_ns``. Of 0, by which JMQ writes that there is no time, it is null, and of times that
    Python has none for, before the year 1 or after 9999.

    Examples
    --------
    >>> import wireyard
    >>> wireyard.with_times(wireyard.read(b"", "jmq")).schema.field("timestamp_at").type
    TimestampType(timestamp[ms, tz=UTC])
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name in table.column_names:
        columns[name] = values = table[name]
        if name in _times() and pa.types.is_int64(values.type):
            unit = _times()[name]
            is_time = pc.not_equal(values, 0)
            if unit == "ms":  # nanoseconds of 64 bits are within some centuries
                is_time = pc.and_(is_time, pc.greater_equal(values, _FIRST_MS))
                is_time = pc.and_(is_time, pc.less(values, _END_MS))
            there = pc.if_else(is_time, values, pa.scalar(None, values.type))
            columns[f"{name.removesuffix('_ns')}_at"] = there.cast(pa.timestamp(unit, "UTC"))
    return pa.table(columns)


@dataclass(frozen=True)
class Shown:
    """The beginning of a table, which notebooks show as HTML."""

    table: pa.Table
    rows: int

    def _repr_html_(self) -> str:
        part = with_times(self.table.slice(0, self.rows))
        filled = [name for name in part.column_names if part[name].null_count < len(part)]
        head = "".join(f"<th>{escape(name)}</th>" for name in filled)
        body = "".join(
            f"<tr>{''.join(_cells(row))}</tr>" for row in part.select(filled).to_pylist()
        )
        count = f"{len(part):,} of {self.table.num_rows:,} rows"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{count}</p>"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cells of a row: payloads as text where they are text, other bytes as hex."""
    for name, value in row.items():
        if isinstance(value, bytes):
            text = payload_text(value, _CELL_BYTES) if name in PAYLOADS else value.hex()
        else:
            text = "" if value is None else printable(str(value))
        yield f"<td>{escape(text)}</td>"


def show(table: Any, rows: int = 20) -> Shown:
    """Return the first rows of a table for a notebook, without columns that are empty in them.

    Parameters
    ----------
    table
        A table of `read`, or a reader of `scan`, of which only the first batch with rows is read.
    """
    if isinstance(table, pa.RecordBatchReader):
        batches = (batch for batch in table if batch.num_rows)
        first = next(batches, None)
        table = pa.Table.from_batches([] if first is None else [first], table.schema)
    return Shown(table, rows)
