"""The validated request of a read: columns, a filter, a mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from wireyard.errors import UsageError
from wireyard.formats.base import Format
from wireyard.formats.rows import pick_columns
from wireyard.layout import Column
from wireyard.schema import schema_of
from wireyard.streams.conditions import Condition, Mask, Where, bind, parse
from wireyard.streams.framer import Framer

__all__ = ["MODES", "Condition", "Plan", "Where", "make_plan"]

MODES = ("permissive", "dropmalformed", "failfast")
"""Malformed rows are kept with their error, left out, or raise."""


@dataclass(frozen=True)
class Plan:
    """A read of streams of one format."""

    format: Format
    columns: tuple[Column, ...]
    condition_columns: tuple[Column, ...]
    """The columns that the conditions use; empty without a filter."""
    mask: Mask | None
    """The conditions as a mask of rows; None if all rows are wanted."""
    mode: str
    max_packet_bytes: int
    schema: pa.Schema = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", schema_of(self.columns))

    def framer(self, position: int = 0, context: int | None = None) -> Framer:
        """Return a framer at `position` of a stream."""
        return Framer(self.format, self.max_packet_bytes, position, context)

    def conditions(self) -> Plan:
        """Return the plan that reads the condition columns of all rows."""
        return Plan(
            self.format, self.condition_columns, (), None, "permissive", self.max_packet_bytes
        )

    @property
    def validates(self) -> bool:
        """Whether every packet is checked as a whole, whatever the columns."""
        shown = {column.name for column in (*self.columns, *self.condition_columns)}
        return self.mode != "permissive" or not shown.isdisjoint({"status", "error"})


def make_plan(
    format: Format,
    columns: Sequence[str] | None = None,
    where: Where = (),
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
    *,
    captured: bool = False,
    lenient: bool = False,
) -> Plan:
    """Validate a request and return it as a plan; `captured` adds the columns of captures.

    If `lenient`, conditions may use columns of other formats. `UsageError` is raised for an unknown
    column, operator or mode, or a filter on a nested column.
    """
    if columns is not None and not columns:
        raise UsageError("no column was asked for")
    if mode.lower() not in MODES:
        raise UsageError(f"unknown mode '{mode}'; there are: {', '.join(MODES)}")
    picked = pick_columns(format, columns, captured=captured)
    wanted = bind(parse(where), format, captured=captured, lenient=lenient)
    return Plan(
        format,
        picked,
        wanted.columns,
        wanted.mask,
        mode.lower(),
        max_packet_bytes or format.framing.max_packet_bytes,
    )
