"""Floating point in kernels against `wireyard.java` and ``repr``, bit pattern by bit pattern."""

from __future__ import annotations

import itertools
import random
import struct
from math import isfinite, isnan

import numpy as np
import pytest

from wireyard.accelerate import COMPILED, kernel
from wireyard.arrays import Bytes, Ints
from wireyard.decimals import put_double, put_float, put_repr
from wireyard.java.text import double_text, float_text
from wireyard.memory import SLACK

LONGEST = len("-1.2345678901234567E-300")


DOUBLE, FLOAT, REPR = range(3)
"""What Java writes of a double and of a float, and what Python writes of a double."""


@kernel
def write(kind: int, bits: Ints, out: Bytes, stops: Ints) -> int:
    at = 0
    for item in range(bits.size):
        if kind == DOUBLE:
            at = put_double(out, at, bits[item])
        elif kind == FLOAT:
            at = put_float(out, at, bits[item])
        else:
            at = put_repr(out, at, bits[item])
        stops[item] = at
    return at


def texts_of(kind: int, bits: Ints) -> list[str]:
    out = np.zeros(LONGEST * len(bits) + SLACK, np.uint8)
    stops = np.zeros(len(bits), np.int64)
    write(kind, bits, out, stops)
    text = out.tobytes().decode()
    return [text[a:b] for a, b in itertools.pairwise([0, *stops.tolist()])]


def double_of(bits: int) -> float:
    value: float = struct.unpack(">d", struct.pack(">Q", bits % 2**64))[0]
    return value


def float_of(bits: int) -> float:
    value: float = struct.unpack(">f", struct.pack(">I", bits % 2**32))[0]
    return value


def check(values: list[int], double: bool) -> None:
    """Compare the texts of these bit patterns with the scalar ones."""
    found = texts_of(DOUBLE if double else FLOAT, np.array(values, np.int64))
    expected = [
        double_text(double_of(bits)) if double else float_text(float_of(bits)) for bits in values
    ]
    wrong = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert not wrong, wrong[:5]
    # What Python writes is a double, if it is finite.
    numbers = [double_of(bits) if double else float_of(bits) for bits in values]
    finite = [number for number in numbers if isfinite(number)]
    found = texts_of(REPR, np.array(finite, np.float64).view(np.int64))
    wrong = [pair for pair in zip(found, map(repr, finite), strict=True) if pair[0] != pair[1]]
    assert not wrong, wrong[:5]


def doubles(values: list[float]) -> list[int]:
    return [int(bits) for bits in np.array(values, np.float64).view(np.int64)]


def floats(values: list[float]) -> list[int]:
    with np.errstate(over="ignore"):
        narrow = np.array(values, np.float64).astype(np.float32)
    return [int(bits) for bits in narrow.view(np.int32)]


def with_neighbours(bits: list[int]) -> list[int]:
    near = {pattern + by for pattern in bits for by in (-2, -1, 0, 1, 2)}
    return sorted(pattern for pattern in near if -(2**63) <= pattern < 2**63)


# What the documentation of Java's two methods, and the report of the bug in the old ones, show.
DOCUMENTED_DOUBLES = [
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (1.0, "1.0"),
    (-1.5, "-1.5"),
    (0.1, "0.1"),
    (100.0, "100.0"),
    (1e-3, "0.001"),
    (9.999e-4, "9.999E-4"),
    (9999999.0, "9999999.0"),
    (1e7, "1.0E7"),
    (2e23, "2.0E23"),
    (1e23, "1.0E23"),
    (8.41e21, "8.41E21"),
    (2.2250738585072014e-308, "2.2250738585072014E-308"),
    (5e-324, "4.9E-324"),
    (1e-323, "9.9E-324"),
    (1.7976931348623157e308, "1.7976931348623157E308"),
    (float("inf"), "Infinity"),
    (float("-inf"), "-Infinity"),
    (float("nan"), "NaN"),
]
DOCUMENTED_FLOATS = [
    (0x00000001, "1.4E-45"),
    (0x00800000, "1.1754944E-38"),
    (0x7F7FFFFF, "3.4028235E38"),
    (0x3DCCCCCD, "0.1"),
    (0x80000000, "-0.0"),
    (0xFF800000, "-Infinity"),
    (0x7FC00000, "NaN"),
    (0x4B189680, "1.0E7"),
]


def test_documented_doubles() -> None:
    values, expected = zip(*DOCUMENTED_DOUBLES, strict=True)
    assert texts_of(DOUBLE, np.array(values).view(np.int64)) == list(expected)


def test_documented_floats() -> None:
    bits, expected = zip(*DOCUMENTED_FLOATS, strict=True)
    assert texts_of(FLOAT, np.array(bits)) == list(expected)


def test_powers_of_two_and_ten_and_their_neighbours() -> None:
    powers = [2.0**power for power in range(-1074, 1024)]
    powers += [float(f"1e{power}") for power in range(-323, 309)]
    check(with_neighbours(doubles(powers)), True)
    check(with_neighbours(floats(powers)), False)


def test_subnormals() -> None:
    rng = random.Random(3)
    check([*range(2000), *(rng.getrandbits(rng.randrange(1, 53)) for _ in range(2000))], True)
    check([*range(2000), *(rng.getrandbits(rng.randrange(1, 24)) for _ in range(2000))], False)


def test_edges_of_every_field() -> None:
    for double, exponent_bits, fraction_bits in ((True, 11, 52), (False, 8, 23)):
        top = (1 << fraction_bits) - 1
        fractions = [0, 1, 2, 3, top // 2, top // 2 + 1, top - 1, top]
        patterns = [
            exponent << fraction_bits | fraction
            for exponent in range(1 << exponent_bits)
            for fraction in fractions
        ]
        check(patterns, double)
        sign = 1 << (exponent_bits + fraction_bits)
        check([pattern - sign for pattern in patterns[::7]], double)


def test_numbers_people_write() -> None:
    rng = random.Random(4)
    values = [float(whole) for whole in range(-1200, 1200)]
    values += [whole / 100 for whole in range(-1200, 1200)]
    values += [float(f"{digits}e{power}") for digits in (1, 2, 25, 999) for power in range(-30, 30)]
    values += [rng.random() * 1000 for _ in range(2000)]
    values += [float(rng.getrandbits(bits)) for bits in range(1, 70) for _ in range(20)]
    check(doubles(values), True)
    check(floats(values), False)


@pytest.mark.parametrize("double", [True, False])
def test_random_bits(double: bool) -> None:
    rng = np.random.default_rng(5)
    limit = 2**63 if double else 2**31
    bits = rng.integers(-limit, limit, 1_000_000 if COMPILED else 5_000, dtype=np.int64)
    found = texts_of(DOUBLE if double else FLOAT, bits)
    kind = ("<i8", "<f8") if double else ("<i4", "<f4")
    values = bits.astype(kind[0]).view(kind[1])
    read = np.array([float(text) for text in found])
    if not double:
        read = read.astype(np.float32)
    assert np.array_equal(read, values, equal_nan=True)
    assert not any(isnan(value) and text != "NaN" for text, value in zip(found, read, strict=True))
    check(bits[: 20_000 if COMPILED else 2_000].tolist(), double)
