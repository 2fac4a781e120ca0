"""Kernels that format floating point numbers as Java and Python do.

Both write the shortest decimal that is parsed to the same value, and among equally short ones the
closest. But if one digit suffices, ``Double.toString`` and ``Float.toString`` since Java 19 write
the closest decimal of two digits: 4.9E-324, which is 5e-324 in Python. The algorithm is Raffaele
Giulietti's Schubfach: the value and both ends of its rounding interval are scaled by one power of
ten, precisely enough that every later comparison is exact.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined, instruction
from wireyard.arrays import Bytes, Grid
from wireyard.memory import ASCII_ZEROS, bit_length, divide, put_leading, spread_digits, store_word

# --- powers of ten --------------------------------------------------------------------------

_LEAST: Final = -324
"""The least power of ten that scales a double; `_GREATEST` is the greatest."""
_GREATEST: Final = 292
_MASK_63: Final = (1 << 63) - 1


def _scale(power: int) -> int:
    """Return floor(10**power * 2**r) + 1, with r such that the floor has 126 bits."""
    if power >= 0:
        whole: int = 10**power
        return (whole << 126 >> whole.bit_length()) + 1
    divisor: int = 10**-power
    return (1 << 125 + divisor.bit_length()) // divisor + 1


def _scales() -> Grid:
    """Return 10**-k for each k as two words, the upper and the lower 63 bits."""
    scales = [_scale(-k) for k in range(_LEAST, _GREATEST + 1)]
    return np.array([(scale >> 63, scale & _MASK_63) for scale in scales], np.int64)


_SCALES: Final = _scales()
_POWERS: Final = np.array([10**power for power in range(19)], np.int64)

# floor(log10(2**q)), floor(log10(3/4 * 2**q)) and floor(log2(10**e)) as one multiplication and
# one shift; exact for every exponent a double can have.
_LOG10_2: Final = 661_971_961_083  # log10(2) * 2**41
_LOG10_3_4: Final = -274_743_187_321  # log10(3/4) * 2**41
_LOG2_10: Final = 913_124_641_741  # log2(10) * 2**38


def _emit_round_to_odd(ir: Any, builder: Any, upper: Any, lower: Any, value: Any) -> Any:
    wide, word = ir.IntType(128), ir.IntType(64)

    def product(scale: Any, shift: int) -> Any:
        made = builder.mul(builder.zext(scale, wide), builder.zext(value, wide))
        return builder.lshr(made, ir.Constant(wide, shift))

    scaled = builder.add(product(upper, 1), product(lower, 64))
    whole = builder.trunc(builder.lshr(scaled, ir.Constant(wide, 63)), word)
    rest = builder.and_(builder.trunc(scaled, word), ir.Constant(word, _MASK_63))
    odd = builder.icmp_unsigned("!=", rest, ir.Constant(word, 0))
    return builder.or_(whole, builder.zext(odd, word))


@instruction(_emit_round_to_odd)
def _round_to_odd(upper: int, lower: int, value: int) -> int:
    """Return value * scale / 2**127, odd if it is not exact, so that comparisons stay exact."""
    scaled = (upper * value >> 1) + (lower * value >> 64)
    return scaled >> 63 | (scaled & _MASK_63 != 0)


# --- the shortest decimal -------------------------------------------------------------------


@inlined
def _shortest(significand: int, exponent: int, uneven: bool, floor: int) -> tuple[int, int]:
    """Return digits and power of ten of the shortest decimal for significand * 2**exponent.

    `uneven` values begin a binade: the next lower value is half as far as the next higher one.
    Digits below `floor` are not shortened by one digit.
    """
    # Everything is in quarters, so that the ends of the interval are integers.
    value = significand << 2
    if uneven:
        lower = value - 1
        power = (exponent * _LOG10_2 + _LOG10_3_4) >> 41
    else:
        lower = value - 2
        power = exponent * _LOG10_2 >> 41
    shift = exponent + (-power * _LOG2_10 >> 38) + 2
    g1, g0 = _SCALES[power - _LEAST, 0], _SCALES[power - _LEAST, 1]
    middle = _round_to_odd(g1, g0, value << shift)
    # The ends read back as the value only if its significand is even (ties to even).
    odd = significand & 1
    least = _round_to_odd(g1, g0, lower << shift) + odd
    most = _round_to_odd(g1, g0, (value + 2) << shift) - odd

    # All cases are computed without branches, because which one applies cannot be predicted.
    below = middle >> 2
    short = 10 * divide(below, 10)
    short_fits = least <= short << 2
    one_short = short_fits != ((short + 10) << 2 <= most)
    below_fits = least <= below << 2
    one_long = below_fits != ((below + 1) << 2 <= most)
    # Both fit or neither does: the closer one, the even one of two equally close.
    distance = middle - ((2 * below + 1) << 1)
    nearer_below = (distance < 0) | ((distance == 0) & (below & 1 == 0))
    take_below = (one_long & below_fits) | (nearer_below & ~one_long)
    digits = below + 1 - take_below
    if one_short & (below >= floor):
        digits = short + 10 * (1 - short_fits)
    return digits, power


@inlined
def _digits_of(fraction: int, shift: int, width: int, uneven: bool, floor: int) -> tuple[int, int]:
    """Return digits and power of ten for fraction / 2**shift, the fraction of `width` bits."""
    if 0 < shift <= width and fraction & ((1 << shift) - 1) == 0:
        return fraction >> shift, 0
    return _shortest(fraction, -shift, uneven, floor)


# --- Java's layout --------------------------------------------------------------------------


@inlined
def _put_decimal(out: Bytes, at: int, digits: int, power: int) -> int:
    """Write digits * 10**power, without an exponent from 1e-3 to below 1e7, else with one."""
    # Scaled to 17 digits: one, then two words of eight.
    length = bit_length(digits) * _LOG10_2 >> 41
    if digits >= _POWERS[length]:
        length += 1
    digits *= int(_POWERS[17 - length])
    point = power + length
    upper = divide(digits, 100_000_000)
    first = divide(upper, 100_000_000)
    middle = spread_digits(upper - 100_000_000 * first)
    last = spread_digits(digits - 100_000_000 * upper)
    count = 1 + (bit_length(middle) + 7 >> 3)
    if last != 0:
        count = 9 + (bit_length(last) + 7 >> 3)
    first += 0x30
    middle += ASCII_ZEROS
    last += ASCII_ZEROS

    # Each store may write past its digits; the next one overwrites that.
    if point > 7 or point < -2:
        store_word(out, at, first | 0x2E00)  # d.
        store_word(out, at + 2, middle)
        store_word(out, at + 10, last)
        return _put_exponent(out, at + 1 + max(count, 2), point - 1)
    # The same stores for both layouts without an exponent. Below 1, "0." and zeros come before the
    # digits, and the digits that are moved for a point are written where no digit is.
    inside = point > 0
    before = point if inside else 17
    store_word(out, at, 0x30302E30)  # 0.00
    at += 0 if inside else 2 - point
    store_word(out, at, first)
    store_word(out, at + 1, middle)
    store_word(out, at + 9, last)
    store_word(out, at + before, 0x2E)  # .
    store_word(out, at + before + 1, middle >> 8 * (before - 1 & 7))
    store_word(out, at + 9 + inside, last)
    return at + max(count, (point + 1) * inside) + inside


@inlined
def _put_exponent(out: Bytes, at: int, exponent: int) -> int:
    if exponent < 0:
        store_word(out, at, 0x2D45)  # E-
        return put_leading(out, at + 2, -exponent)
    store_word(out, at, 0x45)  # E
    return put_leading(out, at + 1, exponent)


@inlined
def _put_number(
    out: Bytes, at: int, negative: bool, exponent: int, fraction: int, double: bool
) -> int:
    """Write the number that has these fields in an IEEE 754 double or float."""
    if double:
        width, top, bias, tiny = 52, 0x7FF, 1075, 3
    else:
        width, top, bias, tiny = 23, 0xFF, 150, 8
    if exponent == top and fraction != 0:
        store_word(out, at, 0x4E614E)  # NaN
        return at + 3
    if negative:
        store_word(out, at, 0x2D)
        at += 1
    if exponent == top:
        store_word(out, at, 0x7974696E69666E49)  # Infinity
        return at + 8
    if exponent == 0 and fraction == 0:
        store_word(out, at, 0x302E30)  # 0.0
        return at + 3

    uneven = fraction == 0 and exponent > 1
    finer = 0
    if exponent > 0:
        fraction |= 1 << width
    else:
        exponent = 1
        if fraction < tiny:  # so few bits that a second digit needs a finer scale
            fraction *= 10
            finer = 1
    # From 100 on, one digit less still leaves two.
    digits, power = _digits_of(fraction, bias - exponent, width, uneven, 100)
    return _put_decimal(out, at, digits, power - finer)


@inlined
def put_double(out: Bytes, at: int, bits: int) -> int:
    """Write the double with these 64 bits and return the position after it."""
    return _put_number(out, at, bits < 0, (bits >> 52) & 0x7FF, bits & 0xF_FFFF_FFFF_FFFF, True)


@inlined
def put_float(out: Bytes, at: int, bits: int) -> int:
    """Write the float with these 32 bits and return the position after it."""
    return _put_number(
        out, at, bits & 0x8000_0000 != 0, (bits >> 23) & 0xFF, bits & 0x7F_FFFF, False
    )


# --- Python's layout ------------------------------------------------------------------------


@inlined
def put_repr(out: Bytes, at: int, bits: int) -> int:
    """Write the finite double with these 64 bits as ``repr`` does; return the position after it.

    It has no exponent from 1e-4 to below 1e16, else one of two digits or more.
    """
    exponent, fraction = (bits >> 52) & 0x7FF, bits & 0xF_FFFF_FFFF_FFFF
    if bits < 0:
        store_word(out, at, 0x2D)
        at += 1
    if exponent == 0 and fraction == 0:
        store_word(out, at, 0x302E30)  # 0.0
        return at + 3
    uneven = fraction == 0 and exponent > 1
    if exponent > 0:
        fraction |= 1 << 52
    else:
        exponent = 1
    digits, power = _digits_of(fraction, 1075 - exponent, 52, uneven, 0)
    while digits % 10 == 0:
        digits = divide(digits, 10)
        power += 1
    length = bit_length(digits) * _LOG10_2 >> 41
    if digits >= _POWERS[length]:
        length += 1
    point = power + length
    first, stop, behind = 0, length, 1
    plain = -4 < point <= 16
    if plain:
        first, stop, behind = min(0, point - 1), max(length, point + 1), point
    for place in range(first, stop):
        if place == behind:
            store_word(out, at, 0x2E)
            at += 1
        digit = digits // _POWERS[length - 1 - place] % 10 if 0 <= place < length else 0
        store_word(out, at, 0x30 + digit)
        at += 1
    if plain:
        return at
    exponent = abs(point - 1)
    store_word(out, at, 0x302D65 if point < 1 else 0x302B65)  # e-0 or e+0
    return put_leading(out, at + 2 + (exponent < 10), exponent)
