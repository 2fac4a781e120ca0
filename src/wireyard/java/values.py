"""The values of a serialization stream, as frozen values and as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

MAX_DEPTH = 64
"""Deepest nesting of objects. Each level takes a few of the thousand Python frames of a thread;
real bodies are trees of a dozen levels at most."""

MAX_REPEATED = 1 << 26
"""Most elements, characters and bytes that repeated references may add: a stream of a kilobyte can
refer to 2^100 elements. 64 Mi is above any body that could be printed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JavaError(ValueError):
    """Bytes that are no serialization stream, or one over a limit.

    Parameters
    ----------
    code
        ``truncated``, ``bad_java`` or ``limit_exceeded``.
    field
        The element of the stream at fault, in the words of the serialization specification.
    offset
        Offset of the fault in the input, in bytes.
    problem
        Description of the fault, as a predicate: ``needs 4 bytes, 2 left``.
    """

    def __init__(self, code: str, field: str, offset: int, problem: str) -> None:
        self.code = code
        self.field = field
        self.offset = offset
        self.problem = problem
        super().__init__(code, field, offset, problem)

    def __str__(self) -> str:
        return f"'{self.field}' {self.problem} at byte {self.offset}"


class JavaValue(NamedTuple):
    """One immutable value and its Java type.

    `type` is ``boolean byte short integer long float double string character bytes big_integer
    big_decimal date`` (a date is ms since epoch) or ``enum`` (class and constant, with a dot
    between).
    """

    type: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class JavaCollection:
    """A collection or an array, with its elements in stream order.

    It can contain itself. Two are equal only if they are the same object.
    """

    class_name: str
    kind: str
    """``list``, ``set``, ``map`` (elements are pairs), ``primitives`` (elements are plain Python
    values), or ``wrapper`` (the one element is the wrapped collection)."""
    items: list[Any] = field(repr=False)
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An object of an unknown class: its offset, and its bytes."""

    class_name: str
    offset: int
    _cut: Callable[[], bytes] = field(repr=False)

    @property
    def data(self) -> bytes:
        """The object as a serialization stream of its own.

        Raises
        ------
        JavaError
            The objects extracted from this stream repeat too much of it.
        """
        return self._cut()


def plain(value: Any) -> Any:
    """Return a value as plain Python: ``None bool int float str bytes Decimal list dict``.

    A date becomes an aware ``datetime`` in UTC, or milliseconds if it is out of the range of that;
    an enum constant its text; a set a list, which keeps its order and may hold lists. A map's keys
    have to be scalars. An `Opaque` stays one; its `data` then raises no error. An object that is
    referred to twice becomes one Python object in both places.

    Raises
    ------
    JavaError
        A collection that contains itself, nesting or repetition beyond the limits, or a map with
        keys that are equal or unhashable in Python.

    Limits
    ------
    `MAX_DEPTH` and `MAX_REPEATED`.
    """
    return _Plain().convert(value, 0)[0]


class _Plain:
    """A conversion of one graph; every object is converted once."""

    def __init__(self) -> None:
        self.done: dict[int, tuple[Any, int] | None] = {}
        self.repeated = 0

    def convert(self, value: Any, depth: int) -> tuple[Any, int]:
        """Return `value` as plain Python, and its size with all repeated objects written out."""
        if value is None:
            return None, 1
        known = id(value) in self.done
        result = self.done.get(id(value))
        if result is not None:
            self.repeated += result[1]
            if self.repeated > MAX_REPEATED:
                problem = f"are {self.repeated} elements, at most {MAX_REPEATED} are allowed"
                raise JavaError("limit_exceeded", "repeated objects", _offset(value), problem)
            return result
        if known:
            raise JavaError("bad_java", value.class_name, value.offset, "contains itself")
        if isinstance(value, JavaCollection):
            if depth >= MAX_DEPTH:
                problem = f"is nested more than {MAX_DEPTH} deep"
                raise JavaError("limit_exceeded", value.class_name, value.offset, problem)
            self.done[id(value)] = None
            result = self.collection(value, depth + 1)
        elif isinstance(value, Opaque):
            result = value, 1 + len(value.data)
        else:
            result = _scalar(value)
        self.done[id(value)] = result
        return result

    def collection(self, value: JavaCollection, depth: int) -> tuple[Any, int]:
        if value.kind == "primitives":
            return list(value.items), 1 + len(value.items)
        if value.kind == "map":
            return self.map(value, depth)
        pairs = [self.convert(item, depth) for item in value.items]
        if value.kind == "wrapper":
            return pairs[0]
        return [item for item, _ in pairs], 1 + sum(size for _, size in pairs)

    def map(self, value: JavaCollection, depth: int) -> tuple[Any, int]:
        entries: dict[Any, Any] = {}
        total = 1
        for key, item in value.items:
            name, size = self.convert(key, depth)
            if isinstance(key, JavaCollection | Opaque):
                problem = f"has a key of class {key.class_name}"
                raise JavaError("bad_java", value.class_name, value.offset, problem)
            if name in entries:
                # Integer 1, Long 1 and true are three keys in Java and one in Python.
                problem = f"has more than one key {name!r:.40}"
                raise JavaError("bad_java", value.class_name, value.offset, problem)
            entries[name], item_size = self.convert(item, depth)
            total += size + item_size
        return entries, total


def _offset(value: Any) -> int:
    return value.offset if isinstance(value, JavaCollection | Opaque) else 0


def _scalar(value: JavaValue) -> tuple[Any, int]:
    if value.type != "date":
        return value.value, 1 + len(value.value) if isinstance(value.value, str | bytes) else 1
    try:
        return _EPOCH + timedelta(milliseconds=value.value), 1
    except OverflowError:
        return value.value, 1
