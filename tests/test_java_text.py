"""Modified UTF-8, and numbers as text by the definition that ``Double.toString`` has."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard import java

ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", ""),
        ("61c3a9e282ac", "aé€"),
        ("f09f9880", "\U0001f600"),
        ("eda0bdedb880", "\U0001f600"),
        ("eda0bdedb880f09f9880", "\U0001f600\U0001f600"),
        ("c080", "\0"),
        ("00c080", "\0\0"),
        ("61eda08062", "a\ud800b"),
        ("edb880eda0bd", "\ude00\ud83d"),
        ("eda0bdeda0bdedb880", "\ud83d\U0001f600"),
        ("eda0bdc080edb880", "\ud83d\0\ude00"),
    ],
)
def test_text_is_decoded_leniently(data: str, expected: str) -> None:
    assert java.decode_text(bytes.fromhex(data)) == expected
    assert java.decode_text(memoryview(bytes.fromhex(data))) == expected


@pytest.mark.parametrize(
    "data",
    ["80", "c1bf", "c0", "c081", "e08080", "e0c080", "f0808080", "f4908080", "ff", "eda0", "c3"],
)
def test_anything_else_is_refused(data: str) -> None:
    for around in (b"", b"\xc0\x80", b"\xed\xa0\xbd\xed\xb8\x80"):
        with pytest.raises(UnicodeDecodeError):
            java.decode_text(around + bytes.fromhex(data))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", ""),
        ("aé€", "61c3a9e282ac"),
        ("\0", "c080"),
        ("\U0001f600", "eda0bdedb880"),
        ("\U0010ffff", "edafbfedbfbf"),
        ("\U00010000", "eda080edb080"),
        ("\ud800", "eda080"),
    ],
)
def test_text_is_encoded_as_java_does(text: str, data: str) -> None:
    assert java.encode_modified(text).hex() == data


@given(ANY_TEXT)
def test_modified_utf8_comes_back(text: str) -> None:
    data = java.encode_modified(text)
    assert b"\0" not in data
    # Two lone halves in a row are a pair, in Java and on the wire.
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert java.decode_text(data) == joined


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (123456.789, "123456.789"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-1e10, "-1.0E10"),
        (0.001, "0.001"),
        (0.0012, "0.0012"),
        (9.99e-4, "9.99E-4"),
        (5e-324, "4.9E-324"),
        (1e-323, "9.9E-324"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (2e23, "2.0E23"),
        (2.0**-44, "5.684341886080802E-14"),
        (9007199254740993.0, "9.007199254740992E15"),
    ],
)
def test_doubles(value: float, text: str) -> None:
    assert java.double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
        (1e10, "1.0E10"),
        (16777216.0, "1.6777216E7"),
        (2.0**-149, "1.4E-45"),
        (2.0**-126, "1.1754944E-38"),
        (3.4028234663852886e38, "3.4028235E38"),
        (6948141056.0, "6.948141E9"),
        (8388608.0 * 2.0**100, "1.0633824E37"),
    ],
)
def test_floats(value: float, text: str) -> None:
    assert java.float_text(value) == text


def test_a_float_beyond_floats_has_no_text() -> None:
    with pytest.raises(OverflowError):
        java.float_text(1e39)


class Kind:
    """Neighbours of a number among the doubles or the floats."""

    def __init__(self, code: str, integer: str) -> None:
        self.form = struct.Struct(">" + code)
        self.integer = struct.Struct(">" + integer)

    def at(self, bits: int) -> float:
        value: float = self.form.unpack(self.integer.pack(bits))[0]
        return value

    def bits(self, value: float) -> int:
        bits: int = self.integer.unpack(self.form.pack(value))[0]
        return bits


DOUBLE = Kind("d", "Q")
FLOAT = Kind("f", "I")


def parts(text: str) -> tuple[int, int]:
    """Return digits, at least two, and exponent of a text."""
    number, _, exponent = text.lstrip("-").partition("E")
    whole, _, fraction = number.partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0") if len(digits.rstrip("0")) > 1 else digits[:1].ljust(2, "0")
    return int(kept), int(exponent or 0) - len(fraction) + len(digits) - len(kept)


def check_definition(kind: Kind, value: float, text: str) -> None:
    exact = Fraction(abs(value))
    bits = kind.bits(abs(value))
    low = (exact + Fraction(kind.at(bits - 1))) / 2
    above = kind.at(bits + 1)
    high = (exact + Fraction(above)) / 2 if above < math.inf else 2 * exact - low

    def rounds(number: Fraction) -> bool:
        return low < number < high or (bits % 2 == 0 and number in (low, high))

    digits, exponent = parts(text)
    unit = Fraction(10) ** exponent
    assert rounds(digits * unit)
    distance = abs(digits * unit - exact)
    for other in (digits - 1, digits + 1):
        if rounds(other * unit):
            away = abs(other * unit - exact)
            assert (distance, digits % 2) < (away, other % 2)
    if digits >= 100:
        shorter = digits // 10
        assert not any(rounds(other * 10 * unit) for other in (shorter, shorter + 1))


def samples(kind: Kind, top: int, count: int) -> list[float]:
    source = random.Random(19)
    bits = [source.randrange(1, top) for _ in range(count)]
    bits += range(1, 200)
    bits += [top - 1, top - 2]
    values = [kind.at(number) for number in bits]
    # The gap below a power of two is half the one above it.
    values += [kind.at(kind.bits(1.0) * exponent // 64) for exponent in range(1, 120)]
    values += [source.randrange(1, 10**6) / 1000 for _ in range(count)]
    return values


@pytest.mark.parametrize(
    ("kind", "top", "powers"),
    [(DOUBLE, 0x7FF << 52, range(-1074, 1024)), (FLOAT, 0xFF << 23, range(-149, 128))],
)
def test_texts_are_the_shortest_and_nearest(kind: Kind, top: int, powers: range) -> None:
    write = java.double_text if kind is DOUBLE else java.float_text
    for value in [*samples(kind, top, 2_000), *(2.0**power for power in powers)]:
        value = kind.at(kind.bits(value))
        check_definition(kind, value, write(value))
        assert write(-value) == "-" + write(value)


@given(st.floats(allow_nan=False))
def test_double_texts_come_back(value: float) -> None:
    text = java.double_text(value)
    assert float(text) == value
    size = abs(value)
    assert ("E" in text) == (math.isfinite(size) and size != 0 and not 1e-3 <= size < 1e7)
