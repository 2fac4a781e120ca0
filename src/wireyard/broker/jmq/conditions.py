"""Conditions of selectors: functions of the values of a message, with three-valued logic."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip

Values = Mapping[str, Any]
"""Header fields and properties of a message by name; those that it does not have are missing."""
Function = Callable[[Values], Any]


class SelectorError(ValueError):
    """A selector that is none; its text is one line."""


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def compare(sign: str, left: Function, right: Function) -> Function:
    """Return a comparison of two values."""
    compare = COMPARISONS[sign]
    is_order = sign not in ("=", "<>")

    def function(values: Values) -> bool | None:
        a, b = left(values), right(values)
        if a is None or b is None:
            return None
        kind = _kind(a)
        if kind != _kind(b) or (is_order and kind != "number"):
            return False
        if type(a) is not type(b):
            a, b = float(a), float(b)
        return compare(a, b)

    return function


def negate(inner: Function) -> Function:
    """Return NOT."""

    def function(values: Values) -> bool | None:
        value = inner(values)
        return not value if isinstance(value, bool) else None

    return function


def all_of(parts: list[Function]) -> Function:
    """Return AND: false if a part is false, else unknown if a part is unknown."""
    return _unless_one_is(False, parts)


def any_of(parts: list[Function]) -> Function:
    """Return OR: true if a part is true, else unknown if a part is unknown."""
    return _unless_one_is(True, parts)


def _unless_one_is(decides: bool, parts: list[Function]) -> Function:
    """Return a function that is `decides` if a part is, else unknown if a part is unknown."""

    def function(values: Values) -> bool | None:
        result: bool | None = not decides
        for part in parts:
            value: object = part(values)
            if value is decides:
                return decides
            if value is not (not decides):
                result = None
        return result

    return function


def chain(first: Function, rest: list[tuple[str, Function]]) -> Function:
    """Return a sum or a product, from left to right."""

    def function(values: Values) -> Any:
        value = first(values)
        for sign, part in rest:
            value = _calculate(sign, value, part(values))
        return value

    return function


def _calculate(sign: str, a: Any, b: Any) -> Any:
    """Calculate as Java does: whole numbers of 64 bits, else double."""
    if not _is_number(a) or not _is_number(b):
        return None
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        if sign == "/" and b == 0:
            return (
                math.nan
                if a == 0 or math.isnan(a)
                else math.copysign(math.inf, a) * (math.copysign(1, b))
            )
    elif sign == "/":
        if b == 0:
            return None
        quotient = abs(a) // abs(b)
        return wrapped(quotient if (a < 0) == (b < 0) else -quotient)
    value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
    return value if isinstance(value, float) else wrapped(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def wrapped(value: int) -> int:
    """Return a whole number as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def negative(inner: Function) -> Function:
    """Return the negative of a number."""
    return lambda values: _calculate("-", 0, inner(values))


def is_in(name: str, options: frozenset[str]) -> Function:
    """Return IN."""

    def function(values: Values) -> bool | None:
        value = values.get(name)
        return None if value is None else isinstance(value, str) and value in options

    return function


def is_null(name: str) -> Function:
    """Return IS NULL."""
    return lambda values: values.get(name) is None


def is_like(name: str, pattern: str, escape: str | None) -> Function:
    """Return LIKE: ``%`` is any text, ``_`` any character, unless behind the escape character."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise SelectorError("has an escape character without one behind it")
            pieces[-1].append(re.escape(following))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    first, *rest = (re.compile("".join(piece), re.DOTALL) for piece in pieces)
    last, last_size = rest[-1] if rest else first, len(pieces[-1])

    def function(values: Values) -> bool | None:
        text = values.get(name)
        if not isinstance(text, str):
            return None if text is None else False
        if not rest:
            return first.fullmatch(text) is not None
        found = first.match(text)
        # The earliest place of each piece leaves the most room for those behind it.
        for piece in rest[:-1]:
            found = found and piece.search(text, found.end())
        behind = len(text) - last_size
        return found is not None and behind >= found.end() and bool(last.match(text, behind))

    return function
