"""The selection of a command: rows, columns, view of payloads, and secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wireyard.cli.decoding.cells import body_view
from wireyard.errors import UsageError
from wireyard.formats import Format, get_format
from wireyard.formats.base import Row
from wireyard.formats.rows import pick_columns
from wireyard.layout import Column
from wireyard.schema import CAPTURED, COMMON, schema_of
from wireyard.streams.conditions import bind, every_column, parse
from wireyard.streams.plan import Plan, make_plan

if TYPE_CHECKING:
    from wireyard.payloads import Rule
    from wireyard.payloads.columns import PayloadColumns

PARENT = Column("parent_offset", "int64", "offset of the packet it is inside of", unit="bytes")
"""Additional column of a packet inside another."""

_ROW = ("offset", "length", "status", "error")
"""Columns that are always read, because faults are reported even if they are not selected."""

_TIMES = {"ns": "ns", "ms since epoch": "ms"}
"""Units of columns that are times since 1970, and their names in CSV output."""


@dataclass(frozen=True)
class Request:
    """The options of the command line, before they are checked against a format."""

    columns: tuple[str, ...] | None
    where: tuple[str, ...]
    mode: str
    payload: str | None
    rules: tuple[Rule, ...]
    """Rules by which payloads are decoded."""
    payload_bytes: int | None
    secrets: bool
    nested: bool
    spreadsheet: bool
    max_packet_bytes: int | None
    lenient: bool
    """Whether conditions may be on columns that other formats have."""
    csv: bool
    """Whether rows are written as CSV, which shows payloads as text by default."""


@dataclass(frozen=True)
class Selection:
    """A request applied to one format. Its properties raise `UsageError` if it does not fit."""

    format: Format
    request: Request
    captured: bool
    """Whether the stream is of a capture, so that rows have the columns of captures."""

    @property
    def payload(self) -> str:
        """The view of payloads."""
        return self.request.payload or ("text" if self.request.csv else "hex")

    @property
    def times(self) -> dict[str, str]:
        """The shown columns that are times since 1970, each with its unit."""
        return {c.name: _TIMES[c.unit] for c in self.columns if c.unit in _TIMES}

    @cached_property
    def opener(self) -> PayloadColumns | None:
        """The decoder of payloads; None without rules."""
        if not self.request.rules:
            return None
        from wireyard.payloads.columns import PayloadColumns

        return PayloadColumns(self.format, self.request.rules)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of tables; the columns of decoded payloads come last."""
        schema = schema_of(self.columns)
        for field in self.opener.fields if self.opener else ():
            schema = schema.append(field)
        return schema

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns to show, without those of other formats if there may be several."""
        columns = pick_columns(self.format, self._known_names(), captured=self.captured)
        return tuple(c for c in columns if self.payload != "none" or not self._is_body(c))

    def _known_names(self) -> tuple[str, ...] | None:
        """Return the names of columns to show; one that is not there is answered by the nearest."""
        known = [each.name for each in pick_columns(self.format, None, captured=self.captured)]
        for name in self._names or ():
            close = get_close_matches(name, known, 1)
            if name not in known and close:
                here = f"{self.format.name} has no column '{name}'"
                raise UsageError(f"{here}; there is '{close[0]}'")
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        names = self.request.columns
        if names is None or not self.request.lenient:
            return names
        known = {each.name for each in pick_columns(self.format, None, captured=self.captured)}
        elsewhere = every_column() - known
        return tuple(name for name in names if name not in elsewhere)

    @cached_property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns to show; a body in another view than bytes has the kind ``json``."""
        if self._view is None:
            return self.columns
        return tuple(replace(c, kind="json") if self._is_body(c) else c for c in self.columns)

    def shape(self, row: Row) -> tuple[Row, tuple[Column, ...]]:
        """Return a row and its columns to show; rows with another `format` have their own."""
        row, columns = self._shape(row)
        return row, (*columns, *self._row_columns)

    @property
    def _row_columns(self) -> tuple[Column, ...]:
        """The columns of decoded payloads in rows."""
        if self.opener is None:
            return ()
        from wireyard.payloads.columns import ROW_COLUMNS

        return ROW_COLUMNS

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """The columns to show in a table for people."""
        return (*self.shown_columns, *self._row_columns)

    def _shape(self, row: Row) -> tuple[Row, tuple[Column, ...]]:
        if self.request.columns is not None:
            return row, self.shown_columns
        if PARENT.name in row:
            nested = get_format(row["format"])
            return row, (*pick_columns(nested, None, captured=self.captured), PARENT)
        own = self.format.inner.other_rows.get(row["format"])
        if own is None:
            return row, self.shown_columns
        shown = {column.name: column for column in self.shown_columns}
        columns = [replace(own[at], kind=shown[at].kind) for at in own if at in shown]
        common = (*COMMON, *CAPTURED) if self.captured else COMMON
        renamed = {column.name: row.get(at) for at, column in own.items()}
        return {**row, **renamed}, (*common, *columns)

    @property
    def shown_body(self) -> tuple[str, Callable[[Row], Any]] | None:
        """The name and the view of the body column; None if it is shown as bytes."""
        return None if self._view is None else (self.format.body.column, self._view)

    def _is_body(self, column: Column) -> bool:
        return column.name == self.format.body.column

    @cached_property
    def _view(self) -> Callable[[Row], Any] | None:
        choice, most_bytes = self.payload, self.request.payload_bytes
        as_bytes = choice == "none" or (choice == "hex" and most_bytes is None)
        if as_bytes or self.request.csv or not any(map(self._is_body, self.columns)):
            return None
        return body_view(self.format, choice, most_bytes)

    @cached_property
    def row_plan(self) -> Plan:
        """The plan that finds the rows; the scalar reader reads their values."""
        captured = [column.name for column in CAPTURED] if self.captured else []
        return self._plan((*_ROW, *captured))

    @property
    def redacts(self) -> bool:
        """Whether secrets must be removed from the shown columns."""
        shown = {column.name for column in self.columns}
        return not (self.request.secrets or shown.isdisjoint(self.format.secrets.columns))

    @cached_property
    def column_plan(self) -> Plan:
        """The plan that reads the shown columns, and those needed to find secrets in them."""
        names = [column.name for column in self.columns]
        if self.redacts:
            names += self.format.secrets.reads
        names += self.opener.needed if self.opener else []
        return self.plan_of(names)

    def plan_of(self, names: Iterable[str]) -> Plan:
        """Return the plan that reads some columns, and those that are always read."""
        return self._plan(tuple(dict.fromkeys((*names, "stream", *_ROW))))

    def _plan(self, names: tuple[str, ...]) -> Plan:
        request, captured = self.request, self.captured
        where, limit = request.where, request.max_packet_bytes
        how = {"captured": captured, "lenient": request.lenient}
        return make_plan(self.format, names, where, request.mode, limit, **how)

    @cached_property
    def matches_nothing(self) -> bool:
        """Whether the format has none of the columns of the conditions, or of those to show."""
        request = self.request
        if self._names == () != request.columns:
            return True
        wanted = parse(request.where)
        return bind(wanted, self.format, captured=self.captured, lenient=request.lenient).never
