"""What of a stream a command shows: which rows, which columns, how its body, what stays secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from wireyard.cli.bodies import body_column, body_view
from wireyard.cli.where import parse_conditions
from wireyard.formats import Format
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.schema import pick_columns
from wireyard.streams.plan import Plan, make_plan

__all__ = ["Request", "Selection"]

_ROW = ("offset", "length", "status", "error")
"""Columns that every reading needs: what was wrong is told even where nobody asked for it."""

_STRUCTURED = ("binary", "items", "properties")
"""Kinds of columns that never decide about another column."""


@dataclass(frozen=True)
class Request:
    """The options of the command line, before there is a format to check them against."""

    columns: tuple[str, ...] | None
    where: tuple[str, ...]
    mode: str
    body: str
    secrets: bool
    max_packet_bytes: int | None


@dataclass(frozen=True)
class Selection:
    """A request for one format, checked. Raises `UsageError` where it is used first."""

    format: Format
    request: Request

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns to show."""
        columns = pick_columns(self.format, self.request.columns)
        body = body_column(self.format)
        return tuple(c for c in columns if self.request.body != "none" or c != body)

    @cached_property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns to show; a body that is shown otherwise is no column of bytes."""
        if self._view is None:
            return self.columns
        body = body_column(self.format)
        return tuple(replace(c, kind="json") if c == body else c for c in self.columns)

    @property
    def shown_body(self) -> tuple[str, Callable[[Row], Any]] | None:
        """The name of the column whose body is shown otherwise than as bytes, and how."""
        body = body_column(self.format)
        return None if body is None or self._view is None else (body.name, self._view)

    @cached_property
    def _view(self) -> Callable[[Row], Any] | None:
        choice = self.request.body
        if choice in ("hex", "none") or body_column(self.format) not in self.columns:
            return None
        return body_view(self.format, choice)

    def row_plan(self) -> Plan:
        """Return the plan that finds the rows; what is in them is read one by one."""
        return self._plan(_ROW)

    def column_plan(self) -> Plan:
        """Return the plan that reads the columns, and those that say what in them is secret."""
        names = [column.name for column in self.columns]
        if not self.request.secrets:
            names += [c.name for c in self.format.columns if c.kind not in _STRUCTURED]
        return self._plan(tuple(dict.fromkeys((*names, *_ROW))))

    def _plan(self, names: tuple[str, ...]) -> Plan:
        where = parse_conditions(self.format, self.request.where)
        limit = self.request.max_packet_bytes
        return make_plan(self.format, names, where, self.request.mode, limit)
