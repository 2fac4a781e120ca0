"""Packet fields that accept plain Python values: names, letters, texts and times beside numbers.

A packet holds exactly the values of the wire. A field declared with `Takes` converts its argument
when the packet is made, so equal packets have equal fields however they were written::

    packet_type: Takes[int | str, int] = Takes(code_of(PACKET_TYPES))

The conversion rejects values of the wrong type; `encode` rejects values that do not fit on the
wire. Both raise an `EncodeError` with the name of the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from wireyard.errors import EncodeError
from wireyard.layout import Field, Layout

Given_contra = TypeVar("Given_contra", contravariant=True)
Held_co = TypeVar("Held_co", covariant=True)
Convert = Callable[[str, Any], Any]
"""``(name of the field, argument)`` -> the value that the packet holds. Raises `EncodeError`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SHOWN = 64
"""Longest bytes that `repr` prints; of longer ones it prints their number."""


class Takes(Generic[Given_contra, Held_co]):
    """A field of a frozen packet with a converter: accepts ``Given``, holds ``Held``.

    It is a descriptor so that type checkers see both types in a dataclass. `convert` converts an
    argument to the value that is held; a value of that type stays unchanged. A field without a
    default is required.
    """

    def __init__(self, convert: Callable[[str, Any], Held_co], *default: Held_co) -> None:
        self._convert = convert
        self._default = default

    def __set_name__(self, owner: type[PlainFields], name: str) -> None:
        owner._converters = {**owner._converters, name: self._convert}

    def __get__(self, packet: object, owner: Any = None) -> Held_co:
        # Called only by `dataclass`, to get the default; instances have a slot of this name.
        if not self._default:
            raise AttributeError
        return self._default[0]

    def __set__(self, packet: object, value: Given_contra) -> None:
        raise AttributeError


class PlainFields:
    """Base of packets with `Takes` fields: converts them; its `repr` leaves out default values."""

    __slots__ = ()

    _converters: ClassVar[Mapping[str, Convert]] = {}
    _spelled: ClassVar[Mapping[str, str]] = {}
    """By field: the attribute with the readable form of its value, which `repr` prints."""

    def __post_init__(self) -> None:
        for name, convert in self._converters.items():
            given = getattr(self, name)
            held = convert(name, given)
            if held is not given:
                object.__setattr__(self, name, held)

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]  # every packet is a dataclass
            value = getattr(self, field.name)
            if field.repr and value != field.default:
                shown.append(f"{field.name}={self._shown(field.name, value)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _shown(self, name: str, value: Any) -> str:
        if isinstance(value, bytes) and (len(value) > _MAX_SHOWN or self._is_secret(name)):
            return f"<{len(value)} bytes>"
        spelled = getattr(self, self._spelled[name]) if name in self._spelled else None
        if spelled is not None and self._converters[name](name, spelled) == value:
            return repr(spelled)
        return repr(value)

    def _is_secret(self, name: str) -> bool:
        """Return whether a field holds a password."""
        return False


# --- converters -----------------------------------------------------------------------------


def whole(name: str, value: Any) -> int:
    """Return an integer; a bool is not one."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise EncodeError(name, value, "an integer is needed")
    return value


def in_range(field: Field, value: Any) -> int:
    """Return an integer that fits into a header field."""
    number = whole(field.name, value)
    try:
        struct.pack(">" + field.code, number)
    except struct.error as error:
        raise EncodeError(field.name, value, str(error)) from None
    return number


def maybe(convert: Convert) -> Convert:
    """Return a converter that leaves None unchanged and converts other values by `convert`."""
    return lambda name, value: None if value is None else convert(name, value)


def flag(name: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise EncodeError(name, value, "true or false is needed")
    return value


def octets(name: str, value: Any) -> bytes:
    """Return bytes."""
    if not isinstance(value, bytes):
        raise EncodeError(name, value, "bytes are needed")
    return value


def octets_or_none(name: str, value: Any) -> bytes | None:
    """Return bytes; empty bytes become None, as the decoder returns them."""
    return None if value is None else octets(name, value) or None


def octets_or_text(name: str, value: Any) -> bytes:
    """Return bytes; text is encoded as UTF-8."""
    if not isinstance(value, str):
        return octets(name, value)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise EncodeError(name, value, "half of a surrogate pair has no UTF-8") from None


def milliseconds(name: str, value: Any) -> int:
    """Return a time in ms since epoch; also converts a `datetime` that has a time zone."""
    if not isinstance(value, datetime):
        return whole(name, value)
    if value.tzinfo is None:
        raise EncodeError(name, value, "a time needs its time zone")
    return (value - _EPOCH) // timedelta(milliseconds=1)


def code_of(names: Mapping[int, str]) -> Callable[[str, Any], int]:
    """Return a converter of a code, which also accepts its name in `names`."""
    codes = {text: code for code, text in names.items()}

    def convert(name: str, value: Any) -> int:
        if not isinstance(value, str):
            return whole(name, value)
        if value not in codes:
            raise EncodeError(name, value, "there is no such name")
        return codes[value]

    return convert


def bits_of(flags: Mapping[str, int]) -> Callable[[str, Any], int]:
    """Return a converter of flags, which also accepts their letters, in any order."""

    def convert(name: str, value: Any) -> int:
        if not isinstance(value, str):
            return whole(name, value)
        if unknown := [letter for letter in value if letter not in flags]:
            raise EncodeError(name, value, f"{unknown[0]!r} is none of {''.join(flags)}")
        return sum(flags[letter] for letter in set(value))

    return convert


def flag_letters(bit_flags: int, flags: Mapping[str, int]) -> str:
    """Return the letters of the set flags, in bit order."""
    return "".join(letter for letter, bit in flags.items() if bit_flags & bit)


def pack_header(layout: Layout, packet: object, computed: Mapping[str, int]) -> bytes:
    """Encode the fields of a header: those of the packet, and `computed` ones.

    A value that does not fit raises an EncodeError.
    """
    values = []
    for field in layout.fields:
        value = computed[field.name] if field.name in computed else getattr(packet, field.name)
        values.append(value if field.kind == "bytes" else in_range(field, value))
    return layout.struct.pack(*values)
