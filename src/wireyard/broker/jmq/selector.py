"""Message selectors: the conditions of JMS 2.0, section 3.8.1, in a subset of SQL-92.

A condition is true, false or unknown (None), and a message is selected where it is true. Values of
types that cannot be compared compare as false, a missing value as unknown. IN and LIKE of a value
that is no text are unknown too, so NOT IN does not select it.

Rules of this file:

1. A selector becomes nested functions of the values of a message, once. How deep they nest is
   limited, chains of operators of one kind do not nest, and LIKE takes time in proportion to text
   times pattern.
2. What can be known to be wrong without a message, is an error of the selector.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

MAX_CHARACTERS: Final = 8192
MAX_DEPTH: Final = 50
_CACHED: Final = 256

HEADERS: Final = frozenset(
    {
        "JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID",
        "JMSType",
    }
)  # fmt: skip
"""The header fields that a selector may name."""

_RESERVED: Final = frozenset(
    ["NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"]
)
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|\d+(?:[eE][+-]?\d+[fFdD]?|[fFdD]))
    |(?P<int>0[xX][0-9a-fA-F]+|\d+)[lL]?
    |(?P<string>'(?:[^']|'')*')
    |(?P<name>[^\W\d][\w$]*|\$[\w$]*)
    |(?P<sign><>|<=|>=|[=<>+\-*/(),])
    |(?P<end>$))""",
    re.VERBOSE,
)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_CALCULATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_CONDITIONS, _NUMBERS = ("condition", "boolean", "any"), ("number", "any")
"""Kinds of terms that may stand for a condition, and for a number."""

Values = Mapping[str, Any]
"""Header fields and properties of a message by name; those that it does not have are missing."""
Function = Callable[[Values], Any]


class SelectorError(ValueError):
    """A selector that is none; its text is one line."""


class Selector:
    """A condition on messages; of equal texts there is one, as long as it is in use a lot.

    A `SelectorError` is raised if the text is no selector, or is over the limits.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise SelectorError(f"has {len(text)} characters, over {MAX_CHARACTERS}")
        self.text = text
        self._function = _Parser(text).parse()

    @staticmethod
    @lru_cache(_CACHED)
    def of(text: str) -> Selector:
        """Return the selector of a text."""
        return Selector(text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def matches(self, values: Values) -> bool:
        """Return whether a message is selected."""
        return self._function(values) is True


class _Term(NamedTuple):
    """A part of a selector, and the type of its value as far as that is known without a message."""

    function: Function
    kind: str
    """``number string boolean condition any``."""
    name: str | None = None
    """The identifier that it consists of."""


class _Parser:
    """A parser by recursive descent, with one token in sight."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = self._depth = 0

    @property
    def _next(self) -> str:
        """The next token: a sign, a word in capitals if it is reserved, or its kind."""
        return self._tokens[self._at][0]

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _accept(self, *kinds: str) -> str | None:
        """Take the next token if it is one of these; return it."""
        kind = self._next
        if kind not in kinds:
            return None
        self._at += 1
        return kind

    def _expect(self, kind: str) -> str:
        if self._next != kind:
            self._fail(f"needs {kind}")
        return self._take()

    def _fail(self, problem: str) -> None:
        _, shown, place = self._tokens[self._at]
        where = f"before '{shown}' at character {place + 1}" if shown else "at its end"
        raise SelectorError(f"{problem} {where}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"is nested more than {MAX_DEPTH} deep")

    def parse(self) -> Function:
        """Parse the whole text."""
        term = self._either()
        if self._next != "end":
            self._fail("needs an operator")
        return self._of(term, _CONDITIONS)

    def _of(self, term: _Term, kinds: tuple[str, ...]) -> Function:
        """Return the function of a term, which has to be of one of some kinds."""
        if term.kind not in kinds:
            self._fail(f"needs a {kinds[0]}")
        return term.function

    def _either(self) -> _Term:
        return self._joined(self._both, "OR", True)

    def _both(self) -> _Term:
        return self._joined(self._negated, "AND", False)

    def _joined(self, part: Callable[[], _Term], word: str, decides: bool) -> _Term:
        term = part()
        if self._next != word:
            return term
        parts = [self._of(term, _CONDITIONS)]
        while self._accept(word):
            parts.append(self._of(part(), _CONDITIONS))
        return _Term(_unless_one_is(decides, parts), "condition")

    def _negated(self) -> _Term:
        if not self._accept("NOT"):
            return self._comparison()
        self._deeper()
        term = _Term(_negate(self._of(self._negated(), _CONDITIONS)), "condition")
        self._depth -= 1
        return term

    def _comparison(self) -> _Term:
        left = self._sum()
        sign = self._accept(*_COMPARISONS)
        if sign is not None:
            return self._compared(left, sign, self._sum())
        if self._accept("IS"):
            is_not = self._accept("NOT")
            self._expect("NULL")
            name = self._name_of(left)
            function: Function = lambda values: values.get(name) is None  # noqa: E731
        else:
            is_not = self._accept("NOT")
            if self._accept("BETWEEN"):
                return _Term(self._between(left, is_not is not None), "condition")
            if self._accept("IN"):
                function = _is_in(self._name_of(left), self._strings())
            elif self._accept("LIKE"):
                function = self._pattern(self._name_of(left))
            elif is_not:
                self._fail("needs BETWEEN, IN or LIKE")
            else:
                return left
        return _Term(_negate(function) if is_not else function, "condition")

    def _compared(self, left: _Term, sign: str, right: _Term) -> _Term:
        kinds = {left.kind, right.kind} - {"any"}
        if len(kinds) > 1 or "condition" in kinds:
            self._fail("compares values of two types")
        if sign not in ("=", "<>") and kinds - {"number"}:
            self._fail(f"compares by {sign} what is no number")
        return _Term(_compare(sign, left.function, right.function), "condition")

    def _name_of(self, term: _Term) -> str:
        if term.name is None:
            self._fail("needs a name")
        return term.name or ""

    def _between(self, left: _Term, is_not: bool) -> Function:
        """Return BETWEEN, which is two comparisons; NOT BETWEEN is two others, and no negation."""
        middle = self._of(left, _NUMBERS)
        low = self._of(self._sum(), _NUMBERS)
        self._expect("AND")
        high = self._of(self._sum(), _NUMBERS)
        above, below = ("<", ">") if is_not else (">=", "<=")
        return _unless_one_is(is_not, [_compare(above, middle, low), _compare(below, middle, high)])

    def _strings(self) -> frozenset[str]:
        self._expect("(")
        options = {self._expect("string")}
        while self._accept(","):
            options.add(self._expect("string"))
        self._expect(")")
        return frozenset(options)

    def _pattern(self, name: str) -> Function:
        pattern, escape = self._expect("string"), None
        if self._accept("ESCAPE"):
            escape = self._expect("string")
            if len(escape) != 1:
                raise SelectorError("has an escape of more or less than one character")
        return _is_like(name, pattern, escape)

    def _sum(self) -> _Term:
        return self._calculated(self._product, "+", "-")

    def _product(self) -> _Term:
        return self._calculated(self._signed, "*", "/")

    def _calculated(self, part: Callable[[], _Term], *signs: str) -> _Term:
        term = part()
        if self._next not in signs:
            return term
        first, rest = self._of(term, _NUMBERS), []
        while sign := self._accept(*signs):
            rest.append((sign, self._of(part(), _NUMBERS)))
        return _Term(_chain(first, rest), "number")

    def _signed(self) -> _Term:
        sign = self._accept("+", "-")
        if sign is None:
            return self._value()
        self._deeper()
        inner = self._of(self._signed(), _NUMBERS)
        self._depth -= 1
        return _Term(_chain(lambda values: 0, [(sign, inner)]), "number")

    def _value(self) -> _Term:
        kind = self._next
        if kind == "(":
            self._take()
            self._deeper()
            term = self._either()
            self._expect(")")
            self._depth -= 1
            return term._replace(name=None)
        if kind in ("TRUE", "FALSE"):
            self._take()
            is_true = kind == "TRUE"
            return _Term(lambda values: is_true, "boolean")
        if kind not in ("int", "float", "string", "name"):
            self._fail("needs a value")
        shown = self._take()
        if kind == "name":
            is_header = shown.startswith("JMS") and not shown.startswith(("JMSX", "JMS_"))
            if is_header and shown not in HEADERS:
                raise SelectorError(f"names {shown}, which no selector may")
            return _Term(operator.methodcaller("get", shown), "any", shown)
        value: Any = shown
        if kind == "int":
            value = _wrapped(_integer(shown))
        elif kind == "float":
            value = float(shown.rstrip("fFdD"))
        return _Term(lambda values: value, "string" if kind == "string" else "number")


def _integer(shown: str) -> int:
    """Return a whole number as Java reads it: a 0 in front makes it octal."""
    if shown[:2] in ("0x", "0X"):
        return int(shown, 16)
    try:
        return int(shown, 8 if shown[0] == "0" else 10)
    except ValueError:
        raise SelectorError(f"has {shown}, which is no octal number") from None


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Return the kind, the text and the place of each token."""
    tokens = []
    at = 0
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise SelectorError(f"has '{text[at]}' at character {at + 1}, which begins nothing")
        kind = str(found.lastgroup)
        shown, place = found[kind], found.start(kind)
        if kind == "name" and shown.upper() in _RESERVED:
            kind = shown.upper()
        elif kind == "sign":
            kind = shown
        elif kind == "string":
            shown = shown[1:-1].replace("''", "'")
        tokens.append((kind, shown, place))
        if kind == "end":
            return tokens
        at = found.end()


# --- functions of values --------------------------------------------------------------------


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _compare(sign: str, left: Function, right: Function) -> Function:
    compare = _COMPARISONS[sign]
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


def _negate(inner: Function) -> Function:
    def function(values: Values) -> bool | None:
        value = inner(values)
        return not value if isinstance(value, bool) else None

    return function


def _unless_one_is(decides: bool, parts: list[Function]) -> Function:
    """Return OR or AND: `decides` if a part is that, else unknown if a part is unknown."""

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


def _chain(first: Function, rest: list[tuple[str, Function]]) -> Function:
    """Return a sum or a product, from left to right."""

    def function(values: Values) -> Any:
        value = first(values)
        for sign, part in rest:
            value = _calculate(sign, value, part(values))
        return value

    return function


def _calculate(sign: str, a: Any, b: Any) -> Any:
    """Calculate as Java does: whole numbers of 64 bits, else double."""
    if a is None or b is None or {_kind(a), _kind(b)} != {"number"}:
        return None
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        if sign == "/" and b == 0:
            is_none = a == 0 or math.isnan(a)
            return math.nan if is_none else math.copysign(math.inf, a) * math.copysign(1, b)
        return _CALCULATIONS[sign](a, b)
    if sign != "/":
        return _wrapped(_CALCULATIONS[sign](a, b))
    return _wrapped(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)) if b else None


def _wrapped(value: int) -> int:
    """Return a whole number as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def _is_in(name: str, options: frozenset[str]) -> Function:
    def function(values: Values) -> bool | None:
        value = values.get(name)
        return value in options if isinstance(value, str) else None

    return function


def _is_like(name: str, pattern: str, escape: str | None) -> Function:
    """Return LIKE: ``%`` is any text, ``_`` any character, unless behind the escape character."""
    pieces = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise SelectorError("has an escape character without one behind it")
            pieces[-1] += re.escape(following)
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    first, *rest = pieces
    # The earliest place of each piece leaves the most room for those behind it: no other is tried.
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    whole = re.compile(first + middle + "".join(f".*{piece}" for piece in rest[-1:]), re.DOTALL)

    def function(values: Values) -> bool | None:
        text = values.get(name)
        return whole.fullmatch(text) is not None if isinstance(text, str) else None

    return function
