"""Compiled decoder of the properties of 5.0, from packets to columns.

Columns have every value as text. Packets with a property that their type does not allow, a repeated
property, a forbidden value, or text that JSON would escape are left to the scalar reader.

The text of values takes at most `TEXT_BYTES_PER_BYTE` bytes for each byte on the wire: a pair of
empty texts is 5 bytes on the wire and 8 as JSON, an integer of 4 bytes is 5 with its identifier and
10 as text.

Axis: e = properties of all rows.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes
from wireyard.formats.mqtt.layout import CONNECT, PACKET_TYPES, PROPERTIES, PROPERTIES_BY_NAME
from wireyard.memory import copy_bytes, load_u8, load_u16, put_i64, valid_utf8


class Numbers(Protocol):
    """An array of integers."""

    def __getitem__(self, place: int, /) -> Any: ...
    def __setitem__(self, place: int, value: int, /) -> None: ...


TEXT_BYTES_PER_BYTE: Final = 2
LEAST_PROPERTY_BYTES: Final = 2

_BYTE, _TWO, _FOUR, _VARIABLE, _TEXT, _BINARY, _PAIR = range(1, 8)
_ONCE, _NOT_ZERO, _TRUTH, _TOPIC = 8, 16, 32, 64
_KIND: Final = 7
_CODES: Final = 128
_TOPIC_ALIAS: Final = 35


def _kinds() -> tuple[int, ...]:
    """Return the kind and the rules of each property by packet type, as bits; 0 if not allowed."""
    order = ("byte", "two", "four", "variable", "text", "binary", "pair")
    kinds = [0] * (16 * _CODES)
    for code, known in PROPERTIES.items():
        for packet in known.packets & PACKET_TYPES.keys():
            once = 0 if packet in known.repeats else _ONCE
            rules = (_NOT_ZERO if known.low else 0) | (_TRUTH if known.high == 1 else 0)
            topic = _TOPIC if known.name == "response_topic" else 0
            kind = (order.index(known.kind) + 1) | once | rules | topic
            kinds[packet * _CODES + code] = kind
    # It must not be without a method; that rule is left to the scalar reader.
    kinds[CONNECT * _CODES + PROPERTIES_BY_NAME["authentication_data"].code] = 0
    return tuple(kinds)


KINDS: Final = _kinds()


@inlined
def is_plain(data: Bytes, at: int, size: int) -> bool:
    """Return whether text is valid and has no character that JSON escapes, such as U+0000."""
    plain = True
    high = 0
    for place in range(size):
        char = load_u8(data, at + place)
        plain &= (char >= 0x20) & (char != 0x22) & (char != 0x5C)
        high |= char
    return plain and (high < 0x80 or valid_utf8(data, at, size))


@inlined
def is_text(data: Bytes, at: int, size: int, topic: bool) -> bool:
    """Return whether text is valid, without U+0000, and for a topic without wildcards."""
    odd = False
    high = 0
    for place in range(size):
        char = load_u8(data, at + place)
        odd |= (char == 0) | (topic & ((char == 0x2B) | (char == 0x23)))
        high |= char
    return not odd and (high < 0x80 or valid_utf8(data, at, size))


@inlined
def put_hex(out: Bytes, at: int, data: Bytes, start: int, size: int) -> int:
    """Write bytes in hexadecimal."""
    for place in range(size):
        value = load_u8(data, start + place)
        high, low = value >> 4, value & 15
        out[at] = high + 48 + (high > 9) * 39
        out[at + 1] = low + 48 + (low > 9) * 39
        at += 2
    return at


@inlined
def put_quoted(out: Bytes, at: int, data: Bytes, start: int, size: int) -> int:
    """Write text that needs no escaping between quotation marks."""
    out[at] = 0x22
    copy_bytes(out, at + 1, data, start, size)
    out[at + 1 + size] = 0x22
    return at + size + 2


@inlined
def put_pair(out: Bytes, at: int, data: Bytes, start: int, end: int) -> int:
    """Write a pair of texts as a JSON array; return its end, or -1 for the scalar reader."""
    size = load_u16(data, start) if end - start >= 2 else end
    value = start + 2 + size
    if value + 2 > end:
        return -1
    value_size = load_u16(data, value)
    if value + 2 + value_size > end:
        return -1
    if not is_plain(data, start + 2, size) or not is_plain(data, value + 2, value_size):
        return -1
    out[at] = 0x5B
    at = put_quoted(out, at + 1, data, start + 2, size)
    out[at] = 0x2C
    out[at + 1] = 0x20
    at = put_quoted(out, at + 2, data, value + 2, value_size)
    out[at] = 0x5D
    return at + 1


@inlined
def decode_properties(
    data: Bytes,
    at: int,
    end: int,
    text: Bytes,
    text_at: int,
    codes: Numbers,
    offsets: Numbers,
    entry: int,
    kinds: Numbers,
    packet_type: int,
    unnamed: bool,
) -> int:
    """Decode the properties of one packet; return the number of entries then, -1 to reject.

    `entry` is the number of entries before. `unnamed` is whether the topic is empty, so that a
    topic alias is required.
    """
    seen = 0
    while at < end:
        code = load_u8(data, at)
        rules = kinds[packet_type * _CODES + code] if code < _CODES else 0
        at += 1
        bit = 1 << (code & 63)
        if rules == 0 or (rules & _ONCE and seen & bit):
            return -1
        seen |= bit
        kind = rules & _KIND
        left = end - at
        if kind == _PAIR:
            text_at = put_pair(text, text_at, data, at, end)
            if text_at < 0:
                return -1
            at += 2 + load_u16(data, at)
            at += 2 + load_u16(data, at)
        elif kind >= _TEXT:
            size = load_u16(data, at) if left >= 2 else left
            at += 2
            if size > end - at:
                return -1
            if kind == _BINARY:
                text_at = put_hex(text, text_at, data, at, size)
            elif is_text(data, at, size, rules & _TOPIC != 0):
                copy_bytes(text, text_at, data, at, size)
                text_at += size
            else:
                return -1
            at += size
        else:
            value = width = 0
            if kind == _VARIABLE:
                digit = 0x80
                while digit >= 0x80 and width < min(left, 4):
                    digit = load_u8(data, at + width)
                    value |= (digit & 0x7F) << 7 * width
                    width += 1
                if digit >= 0x80 or (width > 1 and digit == 0):
                    return -1
            else:
                width = (kind == _BYTE) + 2 * (kind == _TWO) + 4 * (kind == _FOUR)
                if width > left:
                    return -1
                for place in range(width):
                    value = value << 8 | load_u8(data, at + place)
            if (rules & _NOT_ZERO and value == 0) or (rules & _TRUTH and value > 1):
                return -1
            text_at = put_i64(text, text_at, value)
            at += width
        codes[entry] = code
        entry += 1
        offsets[entry] = text_at
    return -1 if unnamed and not seen >> _TOPIC_ALIAS & 1 else entry
