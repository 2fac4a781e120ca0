"""Values for fields of packets: good ones, and garbage that no field should choke on."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from wireyard.errors import EncodeError

__all__ = ["GARBAGE", "PROPERTY_VALUES", "TEXT", "TIMES", "blamed", "long"]

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.datetimes(
    min_value=datetime(1900, 1, 1), timezones=st.just(UTC)
).map(lambda when: when.replace(microsecond=when.microsecond // 1000 * 1000))


def long(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    """Integers of a field of so many bits."""
    top = 1 << bits - signed
    return st.integers(-top if signed else 0, top - 1)


_EXACT = st.one_of(
    st.tuples(st.just("boolean"), st.booleans()),
    *(
        st.tuples(st.just(kind), long(bits))
        for kind, bits in (("byte", 8), ("short", 16), ("integer", 32), ("long", 64))
    ),
    st.tuples(st.just("float"), st.floats(width=32) | long(20)),
    st.tuples(st.just("double"), st.floats() | long(64)),
    st.tuples(st.just("string"), st.text(st.characters(exclude_categories=[]), max_size=20)),
)
PROPERTY_VALUES = st.one_of(
    st.booleans(),
    long(64),
    st.floats(),
    st.text(st.characters(exclude_categories=[]), max_size=20),
    _EXACT,
)
"""Values of properties, plain and exact; object properties need bytes that Java wrote."""


class _Odd:
    """Compares, hashes and converts to numbers only by raising."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    def __index__(self) -> int:
        raise ArithmeticError

    __hash__ = None  # type: ignore[assignment]


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 5),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.sampled_from(["\0", "\ud800", "x" * 70_000, "QQ", "PING", "1.2.3.4", "1.2.3.4:5"]),
    st.binary(max_size=20),
    st.sampled_from([bytes(16), bytes(70_000), bytearray(3), memoryview(b"x")]),
    st.datetimes(),
    st.sampled_from([Decimal(1), timedelta(1), object(), int, len, ..., NotImplemented, _Odd()]),
)
GARBAGE = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
        st.frozensets(st.integers(), max_size=2),
    ),
    max_leaves=6,
)
"""Anything; some of it is good for some fields."""


def blamed(error: EncodeError, name: str) -> bool:
    """Return whether an error names the field `name`, or a part of it.

    A property and an entry of a body have names of their own. What is not allowed beside `foreign`
    has its own name too.
    """
    parts = {
        "properties": ("property", "type of property"),
        "body": ("body", "type of body"),
        "foreign": ("",),
    }
    return error.field == name or error.field.startswith(parts.get(name, ("\0",)))


def field_names(packet_class: Any) -> list[str]:
    return [field.name for field in fields(packet_class)]
