r"""Conditions on rows: a parser for their text, and masks that Arrow filters by.

    condition:   comparisons with AND, OR, NOT and parentheses; NOT binds closest, then AND
    comparison:  COLUMN OPERATOR VALUE, the operator one of == != < <= > >= in contains ~
    value:       text in '...' or "..." with \ before a quote or a backslash; or without quotes, up
                 to AND, OR or a closing parenthesis; after in, several with commas between them

``contains`` takes a part of the text, ``~`` a regular expression of RE2, whose time is linear.
``topic`` is compared (== and !=) with a topic filter where + or # stands for levels: no topic of a
message has them. A time since 1970 may be written as it is printed, 2026-11-21T20:22:47.5Z.

As in SQL, a row with null in the column of a comparison matches neither the comparison nor its
negation. The same holds for every row of a format without that column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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

Condition: TypeAlias = tuple[str, str, Any]
"""Column, operator (``== != < <= > >= in contains ~``), value."""
Where: TypeAlias = str | Sequence[Condition | str]
"""A condition as text, or several conditions, all of which have to hold."""

ALIASES: Mapping[str, str] = MappingProxyType({"topic": "destination", "destination": "topic"})
"""Column to use in a condition if a format does not have the named one."""

FILTERED_KINDS: Mapping[str, type] = MappingProxyType(
    {"bool": bool, "int32": int, "int64": int, "string": str}
)
"""The kinds of columns that can be compared, with the Python type of a value."""

_COMPARED_AS: Mapping[str, pa.DataType] = MappingProxyType(
    {"bool": pa.bool_(), "int32": pa.int64(), "int64": pa.int64(), "string": pa.string()}
)
"""The Arrow types of values, which may be wider than those of their column."""

Mask: TypeAlias = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Rows -> for each, whether the condition holds; null for unknown."""

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
"""Arrow's functions. They are called directly, because evaluating an `Expression` loads pandas."""
_IN = "in"
_CONTAINS, _REGEX = "contains", "~"
_SIGNS = (*_FUNCTIONS, _IN, _CONTAINS, _REGEX)
_MOST_REGEX = 1000
_TOPIC = "topic"
_PER_SECOND: Mapping[str, int] = MappingProxyType({"ns": 10**9, "ms since epoch": 10**3})
"""Units of columns that are times since 1970."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?)?Z?")
_A_TIME = "2026-11-21T20:22:47.5Z"
_CAPTURED_NS = next(column for column in CAPTURED if column.name == "captured_ns")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = range(-(1 << 63), 1 << 63)
_MOST_DEPTH = 64
"""Deepest nesting of parentheses and NOT; each level takes a few frames of Python's stack."""
_MOST_COMPARISONS = 1000
_HEAD = re.compile(r"(?P<name>\w+)\s*(?P<sign>==|!=|<=|>=|<|>|~|\b(?i:in|contains)\b)")
_ASSIGNED = re.compile(r"\w+\s*(?==)")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""", re.DOTALL)
_JOINS = re.compile(r"\s(?:and|or)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Comparison:
    """One comparison; `at` is its position in the text, from 1 on, None if it was not parsed."""

    column: str
    sign: str
    value: Any
    at: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Negation:
    """A negated condition."""

    part: Tree


@dataclass(frozen=True)
class Junction:
    """Several conditions joined by AND (`all`) or OR."""

    all: bool
    parts: tuple[Tree, ...]


Tree: TypeAlias = Comparison | Negation | Junction


@dataclass(frozen=True)
class BoundFilter:
    """A condition on the rows of one format."""

    columns: tuple[Column, ...]
    """The columns that the condition uses, each once."""
    mask: Mask | None
    """None if every row matches."""
    missing: tuple[str, ...]
    """The columns that the format does not have."""

    @property
    def never(self) -> bool:
        """Whether no row can match because the format has none of the columns."""
        return bool(self.missing) and not self.columns


def parse(where: Where) -> Tree | None:
    """Return conditions as a tree, None if there are none.

    A syntax error is a `UsageError` with its position.
    """
    if isinstance(where, str):
        where = [where]
    parts = [
        _Parser(part).parse() if isinstance(part, str) else Comparison(*part) for part in where
    ]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))


def bind(
    tree: Tree | None, format: Format, *, captured: bool, lenient: bool = False
) -> BoundFilter:
    """Return a condition as a filter of a format's rows.

    `captured` adds the columns of captures. With `lenient`, comparisons with a column of another
    format are unknown (null). `UsageError` is raised for an unknown column or operator, a nested
    column, or a value that does not fit the column.
    """
    if tree is None:
        return BoundFilter((), None, ())
    known = {column.name: column for column in pick_columns(format, None, captured=captured)}
    columns: dict[str, Column] = {}
    missing: dict[str, None] = {}
    for comparison in comparisons(tree):
        name = comparison.column
        column = known.get(name) or known.get(ALIASES.get(name, ""))
        if column is not None:
            columns[column.name] = column
        elif lenient and name in every_column():
            missing[name] = None
        elif lenient:
            raise UsageError(_position(comparison) + _unknown(name))
        else:
            pick_columns(format, [name], captured=captured)  # raises, and lists the columns

    from pyarrow import compute as pc  # slow to import

    def mask(part: Tree) -> Mask:
        if isinstance(part, Negation):
            inner = mask(part.part)
            return lambda rows: pc.invert(inner(rows))
        if isinstance(part, Junction):
            masks = [*map(mask, part.parts)]
            join = pc.and_kleene if part.all else pc.or_kleene
            return lambda rows: reduce(join, (each(rows) for each in masks))
        column = known.get(part.column) or known.get(ALIASES.get(part.column, ""))
        if column is None:
            return lambda rows: pa.nulls(rows.num_rows, pa.bool_())
        name, value, kind = column.name, _value(part, column), _COMPARED_AS[column.kind]
        if part.sign == _IN:
            return partial(_is_in, name, array_of(list(value), kind))
        if pattern := _pattern(part, name, value):
            matching = partial(_matches, name, pattern)
            return (lambda rows: pc.invert(matching(rows))) if part.sign == "!=" else matching
        compare, compared = getattr(pc, _FUNCTIONS[part.sign]), scalar_of(value, kind)
        return lambda rows: compare(rows[name], compared)

    return BoundFilter(tuple(columns.values()), mask(tree), tuple(missing))


def _is_in(name: str, values: pa.Array, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return whether each row has one of the values, null for null."""
    from pyarrow import compute as pc

    # `is_in` is false for null; the comparison with itself makes it null.
    column = rows[name].cast(values.type)
    return pc.or_kleene(pc.is_in(column, value_set=values), pc.not_equal(column, column))


def _pattern(comparison: Comparison, column: str, value: Any) -> str | None:
    """Return the regular expression that a comparison searches for, None for other comparisons."""
    if comparison.sign == _CONTAINS:
        return re.escape(str(value))
    if comparison.sign == _REGEX:
        if len(value) > _MOST_REGEX:
            raise UsageError(f"{_position(comparison)}over {_MOST_REGEX} characters")
        try:
            _matches(
                column, value, pa.RecordBatch.from_arrays([array_of([""], pa.string())], [column])
            )
        except pa.ArrowInvalid as error:
            raise UsageError(f"{_position(comparison)}{error}") from None
        return str(value)
    is_filter = not {"+", "#"}.isdisjoint(value.split("/")) if column == _TOPIC else False
    return filter_pattern(value) if is_filter and comparison.sign in ("==", "!=") else None


def filter_pattern(filter: str) -> str:
    """Return a regular expression for the topics that a filter matches (MQTT 5.0, 4.7)."""
    if filter == "#":
        return "^(?:[^$]|$)"
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in filter.split("/")]
    if filter.startswith("+"):  # as "#", it matches no topic that begins with $
        levels[0] = "(?:[^$/][^/]*)?"
    if filter.endswith("/#"):
        return f"^{'/'.join(levels[:-1])}(?:/|$)"
    return f"^{'/'.join(levels)}$"


def _matches(name: str, pattern: str, rows: pa.RecordBatch) -> pa.BooleanArray:
    from pyarrow import compute as pc

    return pc.match_substring_regex(rows[name].cast(pa.string()), pattern)


def comparisons(tree: Tree) -> Iterator[Comparison]:
    """Yield the comparisons of a condition, in order."""
    if isinstance(tree, Comparison):
        yield tree
    elif isinstance(tree, Negation):
        yield from comparisons(tree.part)
    else:
        for part in tree.parts:
            yield from comparisons(part)


def time_ns(text: str) -> int:
    """Return a time, as it is written in conditions, in nanoseconds since 1970.

    `UsageError` is raised if it is neither ISO 8601 nor a number.
    """
    try:
        return int(_read(_CAPTURED_NS, text))
    except ValueError:
        raise UsageError(f"{text}: is no time, such as {_A_TIME}") from None


def every_column() -> set[str]:
    """Return the names of the columns of all formats."""
    own = {column.name for name in names() for column in get_format(name).columns}
    return own | {column.name for column in (*COMMON, *CAPTURED)}


def _unknown(name: str) -> str:
    close = get_close_matches(name, sorted(every_column()), 1)
    return f"no format has a column '{name}'" + (f"; there is '{close[0]}'" if close else "")


def _position(comparison: Comparison) -> str:
    """Return the position of a comparison, as the beginning of a message."""
    if comparison.at is None:
        return ""
    return f"condition '{comparison.text}', character {comparison.at}: "


def _value(comparison: Comparison, column: Column) -> Any:
    """Return the value of a comparison in the type of its column; parsed values are text."""
    name, kind, sign, value = column.name, column.kind, comparison.sign, comparison.value
    wanted = FILTERED_KINDS.get(kind)
    if wanted is None:
        raise UsageError(f"{_position(comparison)}'{name}' cannot be filtered by; it is {kind}")
    if sign not in _SIGNS:
        raise UsageError(f"unknown operator '{sign}'; there are: {', '.join(_SIGNS)}")
    if sign in (_CONTAINS, _REGEX) and kind != "string":
        raise UsageError(f"{_position(comparison)}{name} is {kind}; {sign} is for text")
    if comparison.at is not None:
        try:
            value = [_read(column, text) for text in value]
        except (ValueError, KeyError):
            is_time = column.unit in _PER_SECOND
            wanted_text = f"a time, such as {_A_TIME}" if is_time else kind
            raise UsageError(f"{_position(comparison)}{name} is {wanted_text}") from None
        value = value if sign == "in" else value[0]
    if sign == "in" and (isinstance(value, str) or not isinstance(value, Collection)):
        raise UsageError(f"'{name}' in takes a list of values, not {value!r:.60}")
    for item in value if sign == "in" else (value,):
        if type(item) is not wanted or (wanted is int and item not in _INT64):
            problem = f"'{name}' is {kind}; it cannot be compared with {item!r:.60}"
            raise UsageError(_position(comparison) + problem)
        if isinstance(item, str) and not is_utf8(item):
            raise UsageError(f"{_position(comparison)}{item!r:.60} is not UTF-8")
    return value


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: bytes of the command line may be none."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _read(column: Column, text: str) -> Any:
    """Return text as a value of a column."""
    if column.kind == "bool":
        return {"true": True, "false": False}[text.lower()]
    per_second = _PER_SECOND.get(column.unit or "")
    if per_second and (time := _TIME.fullmatch(text)):
        day, clock, fraction = time.groups()
        since = datetime.fromisoformat(f"{day}T{clock or '00:00'}+00:00") - _EPOCH
        part = int((fraction or "").ljust(9, "0")) * per_second // 10**9
        return (since.days * 86_400 + since.seconds) * per_second + part
    return text if column.kind == "string" else int(text, 0)


class _Parser:
    """A recursive descent parser of one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._left = _MOST_COMPARISONS + 1

    def parse(self) -> Tree:
        tree = self._disjunction()
        if self._text[self._at :].strip():
            raise self._fault("AND, OR or the end is expected")
        return tree

    def _disjunction(self) -> Tree:
        parts = [self._conjunction()]
        while self._take_word("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Junction(False, tuple(parts))

    def _conjunction(self) -> Tree:
        parts = [self._term()]
        while self._take_word("and"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _term(self) -> Tree:
        self._skip_space()
        head = _HEAD.match(self._text, self._at)
        if head is not None:
            return self._comparison(head)
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise self._fault(f"over {_MOST_DEPTH} parentheses inside each other")
        try:
            if self._take_word("not"):
                return Negation(self._term())
            if not self._text.startswith("(", self._at):
                if assigned := _ASSIGNED.match(self._text, self._at):
                    self._at = assigned.end()
                    raise self._fault("= is no operator; == compares")
                raise self._fault(f"COLUMN OPERATOR VALUE is expected; {' '.join(_SIGNS)}")
            opened = self._at
            self._at += 1
            tree = self._disjunction()
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
            values = self._listed()
            self._skip_space()
            if not self._text.startswith(")", self._at):
                raise self._fault("')' is expected")
            self._at += 1
            return values
        return self._listed()

    def _listed(self) -> list[str]:
        values = [self._single(",")]
        while self._text.startswith(",", self._at):
            self._at += 1
            values.append(self._single(","))
        return values

    def _single(self, until: str = "") -> str:
        """Return one value, which ends before the character `until` too."""
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
        value = self._text[start : self._at].strip()
        if not value:
            raise self._fault("a value is expected; '' is the empty text")
        return value

    def _take_word(self, word: str) -> bool:
        self._skip_space()
        match = re.compile(rf"{word}\b", re.IGNORECASE).match(self._text, self._at)
        if match is None:
            return False
        self._at = match.end()
        return True

    def _skip_space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _fault(self, problem: str) -> UsageError:
        return UsageError(f"condition '{self._text}', character {self._at + 1}: {problem}")
