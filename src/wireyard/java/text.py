"""Text of Java: modified UTF-8, and numbers in the form of ``toString``."""

from __future__ import annotations

import re
import struct
from decimal import ROUND_FLOOR, Context, Decimal
from math import inf, isfinite, nextafter

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")

_EXACT = Context(prec=1100, rounding=ROUND_FLOOR)
"""Enough digits for exact sums and halves of doubles, which have at most 767 significant ones."""

_NON_FINITE = {inf: "Infinity", -inf: "-Infinity"}


def decode_text(data: bytes | memoryview) -> str:
    """Decode text of standard UTF-8 or of the modified UTF-8 of ``DataOutputStream.writeUTF``.

    Beside standard UTF-8 it accepts C0 80 as NUL, and surrogates of three bytes each. A pair
    becomes one character, a lone one stays a lone surrogate.

    Raises
    ------
    UnicodeDecodeError
        Any other sequence; also a ``ValueError``.
    """
    raw = bytes(data)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # C0 begins no sequence of standard UTF-8, so nothing else is replaced.
        text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    # UTF-16 joins pairs.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def encode_modified(text: str) -> bytes:
    """Encode `text` as ``DataOutputStream.writeUTF`` does, without the length."""
    if text.isascii() and "\0" not in text:
        return text.encode()
    halves = _ASTRAL.sub(_surrogates, text)
    return halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def _surrogates(match: re.Match[str]) -> str:
    above = ord(match[0]) - 0x10000
    return chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))


def storable(text: str) -> str:
    """Escape lone surrogates, which Java text and paths may have, but Arrow may not (errata 8)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def double_text(value: float) -> str:
    """Return a double as text, as ``Double.toString`` of Java 19 and later does."""
    size = abs(value)
    even = struct.pack(">d", value)[-1] % 2 == 0
    return _text(value, nextafter(size, 0.0), nextafter(size, inf), even)


def float_text(value: float) -> str:
    """Return `value` as a float and that as text, as ``Float.toString`` of Java 19 and later does.

    Raises
    ------
    OverflowError
        A finite value beyond the range of floats.
    """
    packed = struct.pack(">f", value)
    value = struct.unpack(">f", packed)[0]
    bits = int.from_bytes(packed, "big") & 0x7FFFFFFF
    below, above = (
        struct.unpack(">f", bit.to_bytes(4, "big"))[0] for bit in (max(bits - 1, 0), bits + 1)
    )
    return _text(value, below, above, bits % 2 == 0)


def _text(value: float, below: float, above: float, even: bool) -> str:
    """Format `value`, given the magnitudes of its neighbours and if its significand is even."""
    if not isfinite(value):
        return _NON_FINITE.get(value, "NaN")
    sign = "-" if str(value)[0] == "-" else ""
    if not value:
        return sign + "0.0"
    _, digits, exponent = _shortest(Decimal(abs(value)), below, above, even).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    # Number of digits before the point; plain text has up to 3 leading zeros, or 7 such digits.
    point = len(digits) + exponent
    if -2 <= point <= 0:
        return f"{sign}0.{'0' * -point}{text}"
    if 0 < point <= 7:
        return f"{sign}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return f"{sign}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _shortest(exact: Decimal, below: float, above: float, even: bool) -> Decimal:
    """Return the decimal that ``Double.toString`` specifies.

    Of the decimals that round to `exact`, it is one of the least length of at least 2; of those the
    nearest; of two equally near ones that with an even last digit.
    """
    low = _EXACT.divide(_EXACT.add(exact, Decimal(below)), 2)
    if above < inf:
        high = _EXACT.divide(_EXACT.add(exact, Decimal(above)), 2)
    else:
        high = _EXACT.subtract(_EXACT.multiply(exact, 2), low)  # as far above as `low` is below
    for length in range(2, 18):
        unit = Decimal((0, (1,), exact.adjusted() - length + 1))
        down = _EXACT.quantize(exact, unit)
        fits = [
            number
            for number in (down, _EXACT.add(down, unit))
            if low < number < high or (even and number in (low, high))
        ]
        if fits:
            return min(fits, key=lambda number: (_distance(number, exact), _last_digit(number) % 2))
    raise AssertionError("17 digits distinguish every double from its neighbours")


def _distance(number: Decimal, other: Decimal) -> Decimal:
    return _EXACT.subtract(number, other).copy_abs()


def _last_digit(number: Decimal) -> int:
    return number.as_tuple().digits[-1]
