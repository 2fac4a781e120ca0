"""What a reader is asked for, checked once: columns, a filter on header columns, a mode."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.errors import UsageError
from wireyard.formats.base import Format
from wireyard.layout import Column
from wireyard.schema import pick_columns, schema_of
from wireyard.streams.framer import Framer

__all__ = ["FILTERED_KINDS", "MODES", "Condition", "Plan", "make_plan"]

MODES = ("permissive", "dropmalformed", "failfast")
"""Bad rows are kept with their error, left out, or end the read."""

Condition = tuple[str, str, Any]
"""Column, operator (``== != < <= > >= in``), value."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda expression, values: expression.isin(list(values)),
}
FILTERED_KINDS: dict[str, type] = {"bool": bool, "int32": int, "int64": int, "string": str}
"""The kinds of columns that conditions take, and what a value is in Python."""
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class Plan:
    """One read of one format."""

    format: Format
    columns: tuple[Column, ...]
    condition_columns: tuple[Column, ...]
    """The columns that decide whether a packet is wanted; empty without a filter."""
    expression: pc.Expression | None
    mode: str
    max_packet_bytes: int
    schema: pa.Schema = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", schema_of(self.columns))

    def framer(self, position: int = 0, context: int | None = None) -> Framer:
        """Return a framer of the stream that stands at `position`."""
        return Framer(self.format, self.max_packet_bytes, position, context)

    def conditions(self) -> Plan:
        """Return the read that answers the filter: its columns, all rows, nothing dropped."""
        return Plan(
            self.format, self.condition_columns, (), None, "permissive", self.max_packet_bytes
        )

    @property
    def validates(self) -> bool:
        """Whether every packet is checked whole, so that no verdict depends on the columns."""
        shown = {column.name for column in (*self.columns, *self.condition_columns)}
        return self.mode != "permissive" or not shown.isdisjoint({"status", "error"})


def make_plan(
    format: Format,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    mode: str = "permissive",
    max_packet_bytes: int | None = None,
    *,
    captured: bool = False,
) -> Plan:
    """Check a request and return it as a plan; `captured` with the columns of captures.

    Raises
    ------
    UsageError
        An unknown column, operator or mode, or a filter on a column with structure.
    """
    if columns is not None and not columns:
        raise UsageError("no column was asked for")
    if mode.lower() not in MODES:
        raise UsageError(f"unknown mode '{mode}'; there are: {', '.join(MODES)}")
    picked = pick_columns(format, columns, captured=captured)
    expression: pc.Expression | None = None
    if isinstance(where, str):
        raise UsageError("a filter is a list of (column, operator, value)")
    names = list(dict.fromkeys(name for name, _, _ in where))
    condition_columns = pick_columns(format, names, captured=captured) if names else ()
    kinds = {column.name: column.kind for column in condition_columns}
    for name, sign, value in where:
        _check_condition(name, kinds[name], sign, value)
        term = _OPERATORS[sign](pc.field(name), value)
        expression = term if expression is None else expression & term
    return Plan(
        format,
        picked,
        condition_columns,
        expression,
        mode.lower(),
        max_packet_bytes or format.max_packet_bytes,
    )


def _check_condition(name: str, kind: str, sign: str, value: Any) -> None:
    wanted = FILTERED_KINDS.get(kind)
    if wanted is None:
        raise UsageError(f"'{name}' cannot be filtered by; it is {kind}")
    if sign not in _OPERATORS:
        raise UsageError(f"unknown operator '{sign}'; there are: {', '.join(_OPERATORS)}")
    if sign == "in" and (isinstance(value, str) or not isinstance(value, Collection)):
        raise UsageError(f"'{name}' in takes a list of values, not {value!r:.60}")
    for one in value if sign == "in" else (value,):
        if type(one) is not wanted or (wanted is int and one not in _INT64):
            raise UsageError(f"'{name}' is {kind}; it cannot be compared with {one!r:.60}")
