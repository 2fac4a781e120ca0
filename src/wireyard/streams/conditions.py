"""Conditions on rows: as they are typed, and as what Arrow filters by.

    condition:   any of these with AND, OR, NOT and parentheses; NOT binds closest, then AND
    comparison:  COLUMN OPERATOR VALUE, the operator one of == != < <= > >= in
    value:       text in '...' or "..." with a backslash before what would end it; or as it is, up
                 to AND, OR or a parenthesis that closes; several with commas between them after in

A row that has no value in the column of a comparison matches neither it nor its opposite, as in
SQL. So does every row of a format that does not have the column at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from wireyard.errors import UsageError
from wireyard.formats import get_format, names
from wireyard.formats.base import Format
from wireyard.formats.rows import pick_columns
from wireyard.layout import Column
from wireyard.schema import CAPTURED, COMMON, array_of, scalar_of

__all__ = [
    "ALIASES",
    "FILTERED_KINDS",
    "BoundFilter",
    "Condition",
    "Where",
    "bind",
    "parse",
]

Condition: TypeAlias = tuple[str, str, Any]
"""Column, operator (``== != < <= > >= in``), value."""
Where: TypeAlias = str | Sequence[Condition | str]
"""A condition as text, or several of either kind that all have to hold."""

ALIASES: Mapping[str, str] = MappingProxyType({"topic": "destination", "destination": "topic"})
"""Names that conditions take for another: where a format lacks the one, the other is meant."""

FILTERED_KINDS: Mapping[str, type] = MappingProxyType(
    {"bool": bool, "int32": int, "int64": int, "string": str}
)
"""The kinds of columns that conditions take, and what a value is in Python."""

_COMPARED_AS: Mapping[str, pa.DataType] = MappingProxyType(
    {"bool": pa.bool_(), "int32": pa.int64(), "int64": pa.int64(), "string": pa.string()}
)
"""The types of values, which may be larger than those of their column."""

Mask: TypeAlias = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Rows -> which of them a condition holds for; null where it is not known."""

_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "==": "equal",
        "!=": "not_equal",
        "<": "less",
        "<=": "less_equal",
        ">": "greater",
        ">=": "greater_equal",
    }
)
"""Those of Arrow. They are called, and make no `Expression`: to evaluate one loads pandas."""
_IN = "in"
_INT64 = range(-(1 << 63), 1 << 63)
_MOST_DEPTH = 64
"""Parentheses and NOTs inside each other; each takes a few frames of Python's stack."""
_MOST_COMPARISONS = 1000
_HEAD = re.compile(r"(?P<name>\w+)\s*(?P<sign>==|!=|<=|>=|<|>|\b(?i:in)\b)")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""", re.DOTALL)
_JOINS = re.compile(r"\s(?:and|or)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Comparison:
    """One comparison; `at` is where it stands in the text, from 1 on, None if it was no text."""

    column: str
    sign: str
    value: Any
    at: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Negation:
    """What is true where its part is false."""

    part: Tree


@dataclass(frozen=True)
class Junction:
    """Parts of which all have to hold, or any."""

    all: bool
    parts: tuple[Tree, ...]


Tree: TypeAlias = Comparison | Negation | Junction


@dataclass(frozen=True)
class BoundFilter:
    """A condition for one format."""

    columns: tuple[Column, ...]
    """The columns that decide, each once."""
    mask: Mask | None
    """None if every row matches."""
    missing: tuple[str, ...]
    """The columns that the format does not have."""

    @property
    def never(self) -> bool:
        """Whether the format has none of the columns, so that no row can match."""
        return bool(self.missing) and not self.columns


def parse(where: Where) -> Tree | None:
    """Return conditions as a tree, None if there is none.

    Raises
    ------
    UsageError
        Text of another form, with the place in it; a column that no format has.
    """
    if isinstance(where, str):
        where = [where]
    parts = [_Parser(one).parse() if isinstance(one, str) else Comparison(*one) for one in where]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))


def bind(
    tree: Tree | None, format: Format, *, captured: bool, lenient: bool = False
) -> BoundFilter:
    """Return a condition as a filter of a format's rows.

    Parameters
    ----------
    captured
        Whether rows have the columns of captures.
    lenient
        Whether the format may lack columns; no comparison with one is then true or false.

    Raises
    ------
    UsageError
        An unknown column or operator, a column with structure, or a value that is none of its
        kind.
    """
    if tree is None:
        return BoundFilter((), None, ())
    known = {column.name: column for column in pick_columns(format, None, captured=captured)}
    columns: dict[str, Column] = {}
    missing: dict[str, None] = {}
    for one in _comparisons(tree):
        column = known.get(one.column) or known.get(ALIASES.get(one.column, ""))
        if column is not None:
            columns[column.name] = column
        elif lenient and one.column in _every_column():
            missing[one.column] = None
        elif lenient:
            raise UsageError(_where(one) + _unknown(one.column))
        else:
            pick_columns(format, [one.column], captured=captured)  # which says what there is

    from pyarrow import compute as pc  # costs more than to read a small capture

    def mask(part: Tree) -> Mask:
        if isinstance(part, Negation):
            inner = mask(part.part)
            return lambda rows: pc.invert(inner(rows))
        if isinstance(part, Junction):
            masks = [*map(mask, part.parts)]
            join = pc.and_kleene if part.all else pc.or_kleene
            return lambda rows: reduce(join, (one(rows) for one in masks))
        column = known.get(part.column) or known.get(ALIASES.get(part.column, ""))
        if column is None:
            return lambda rows: pa.nulls(rows.num_rows, pa.bool_())
        name, value, kind = column.name, _value(part, column), _COMPARED_AS[column.kind]
        if part.sign == _IN:
            return partial(_is_in, name, array_of(list(value), kind))
        compare, compared = getattr(pc, _FUNCTIONS[part.sign]), scalar_of(value, kind)
        return lambda rows: compare(rows[name], compared)

    return BoundFilter(tuple(columns.values()), mask(tree), tuple(missing))


def _is_in(name: str, values: pa.Array, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows have one of some values; Arrow says of null that it is in no list."""
    from pyarrow import compute as pc

    column = rows[name].cast(values.type)
    return pc.or_kleene(pc.is_in(column, value_set=values), pc.not_equal(column, column))


def _comparisons(tree: Tree) -> Iterator[Comparison]:
    if isinstance(tree, Comparison):
        yield tree
    elif isinstance(tree, Negation):
        yield from _comparisons(tree.part)
    else:
        for part in tree.parts:
            yield from _comparisons(part)


def _every_column() -> set[str]:
    own = {column.name for name in names() for column in get_format(name).columns}
    return own | {column.name for column in (*COMMON, *CAPTURED)}


def _unknown(name: str) -> str:
    close = get_close_matches(name, sorted(_every_column()), 1)
    return f"no format has a column '{name}'" + (f"; there is '{close[0]}'" if close else "")


def _where(one: Comparison) -> str:
    """Return the place of a comparison, as the beginning of a message."""
    return "" if one.at is None else f"condition '{one.text}', character {one.at}: "


def _value(one: Comparison, column: Column) -> Any:
    """Return what a comparison compares with, which was text if it was typed."""
    name, kind, sign, value = column.name, column.kind, one.sign, one.value
    wanted = FILTERED_KINDS.get(kind)
    if wanted is None:
        raise UsageError(f"{_where(one)}'{name}' cannot be filtered by; it is {kind}")
    if sign not in (*_FUNCTIONS, _IN):
        known = ", ".join((*_FUNCTIONS, _IN))
        raise UsageError(f"unknown operator '{sign}'; there are: {known}")
    if one.at is not None:
        try:
            value = [_read(kind, text) for text in value]
        except (ValueError, KeyError):
            raise UsageError(f"{_where(one)}{name} is {kind}, not like that") from None
        value = value if sign == "in" else value[0]
    if sign == "in" and (isinstance(value, str) or not isinstance(value, Collection)):
        raise UsageError(f"'{name}' in takes a list of values, not {value!r:.60}")
    for item in value if sign == "in" else (value,):
        if type(item) is not wanted or (wanted is int and item not in _INT64):
            problem = f"'{name}' is {kind}; it cannot be compared with {item!r:.60}"
            raise UsageError(_where(one) + problem)
    return value


def _read(kind: str, text: str) -> Any:
    """Return typed text as a value of a column kind."""
    if kind == "bool":
        return {"true": True, "false": False}[text.lower()]
    return text if kind == "string" else int(text, 0)


class _Parser:
    """Reads one text by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._left = _MOST_COMPARISONS + 1

    def parse(self) -> Tree:
        tree = self._any()
        if self._text[self._at :].strip():
            raise self._fault("AND, OR or the end is expected")
        return tree

    def _any(self) -> Tree:
        parts = [self._every()]
        while self._take_word("or"):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else Junction(False, tuple(parts))

    def _every(self) -> Tree:
        parts = [self._one()]
        while self._take_word("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _one(self) -> Tree:
        self._skip_space()
        head = _HEAD.match(self._text, self._at)
        if head is not None:
            return self._comparison(head)
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise self._fault(f"over {_MOST_DEPTH} parentheses inside each other")
        try:
            if self._take_word("not"):
                return Negation(self._one())
            if not self._text.startswith("(", self._at):
                raise self._fault("COLUMN OPERATOR VALUE is expected; == != < <= > >= in")
            opened = self._at
            self._at += 1
            tree = self._any()
            self._skip_space()
            if not self._text.startswith(")", self._at):
                self._at = opened
                raise self._fault("nothing closes this parenthesis")
            self._at += 1
            return tree
        finally:
            self._depth -= 1

    def _comparison(self, head: re.Match[str]) -> Comparison:
        at = self._at + 1
        self._left -= 1
        if not self._left:
            raise self._fault(f"over {_MOST_COMPARISONS} comparisons")
        self._at = head.end()
        name, sign = head["name"], head["sign"].lower()
        values = self._values() if sign == "in" else [self._single()]
        return Comparison(name, sign, values, at, self._text)

    def _values(self) -> list[str]:
        """Return the values after ``in``, with or without parentheses around them."""
        self._skip_space()
        if self._text.startswith("(", self._at):
            self._at += 1
            found = self._listed()
            self._skip_space()
            if not self._text.startswith(")", self._at):
                raise self._fault("')' is expected")
            self._at += 1
            return found
        return self._listed()

    def _listed(self) -> list[str]:
        found = [self._single(",")]
        while self._text.startswith(",", self._at):
            self._at += 1
            found.append(self._single(","))
        return found

    def _single(self, until: str = "") -> str:
        """Return one value, and stand behind it."""
        quoted = _QUOTED.match(self._text, self._at)
        if quoted is not None:
            self._at = quoted.end()
            return re.sub(r"\\(.)", r"\1", quoted[1] if quoted[1] is not None else quoted[2])
        self._skip_space()
        start, depth = self._at, 0
        while self._at < len(self._text):
            char = self._text[self._at]
            if (char == ")" and not depth) or char in (until or "\0"):
                break
            depth += (char == "(") - (char == ")")
            if not depth and _JOINS.match(self._text, self._at):
                break
            self._at += 1
        return self._text[start : self._at].strip()

    def _take_word(self, word: str) -> bool:
        self._skip_space()
        found = re.compile(rf"{word}\b", re.IGNORECASE).match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        return True

    def _skip_space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _fault(self, problem: str) -> UsageError:
        return UsageError(f"condition '{self._text}', character {self._at + 1}: {problem}")
