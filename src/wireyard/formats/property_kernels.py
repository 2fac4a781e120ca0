"""The marshalled property section to columns, the common case: what formats' kernels take in.

A section with anything rare about it (an OBJECT, a repeated or empty name, text that is not both
UTF-8 and modified UTF-8, a value or an end that the writer gives other bytes, more than
`MAX_UNIQUE_NAMES` names, any broken rule) is rejected, and the scalar reader gives its row. Text
goes to one region of `text` per column, `capacity` bytes apart. `TEXT_BYTES_PER_BYTE` times the
section is enough for each: the worst case is a double of 13 bytes (name 3, type 2, value 8) printed
with 24 characters.

Axes: e = properties of all rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, TEXT, array, kernel, piece
from wireyard.arena import claim_bytes
from wireyard.decimals import put_double, put_float
from wireyard.formats.properties import TYPES
from wireyard.memory import (
    Bytes,
    copy_bytes,
    copy_text,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_word,
    put_i64,
    store_word,
    valid_utf8,
)

__all__ = [
    "MAX_UNIQUE_NAMES",
    "PROPERTY_TEXTS",
    "TEXT_BYTES_PER_BYTE",
    "put_texts",
    "put_texts_again",
    "take_properties",
    "word_of",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Pairs = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]

PROPERTY_TEXTS: Final = ("property name", "property type", "property value")
"""The regions of `text` that properties take, next to each other."""
TEXT_BYTES_PER_BYTE: Final = 2
MAX_UNIQUE_NAMES: Final = 64
"""Names are compared each with each up to this count; the scalar reader takes longer lists."""

_INTS: Final = array("int64")
_END_BYTES: Final = 4
_SPREAD: Final = 0x1E37_79B9_7F4A_7C15
"""Odd, without a pattern: the upper bits of a product with it hang on all of the other factor."""
_INFINITE_32, _INFINITE_64 = 0x7F80_0000, 0x7FF0_0000_0000_0000
_NAN_32, _NAN_64 = 0x7FC0_0000, 0x7FF8_0000_0000_0000
"""The NaN that Java writes; others have the bits of infinity and more."""
_VALUE_BYTES: Final = 0x84842110
"""Bytes of a value by its type code, one hexadecimal digit each, from type 0 at the right."""


def word_of(text: str) -> int:
    """Return the first eight characters of ASCII text as the word that stores them."""
    return int.from_bytes(text.encode("ascii")[:8].ljust(8, b"\0"), "little")


_KINDS: Final = ("", *TYPES.values())
_KIND_WORDS: Final = np.array([word_of(kind) for kind in _KINDS], np.int64)
_KIND_SIZES: Final = np.array([len(kind) for kind in _KINDS], np.int64)


@piece
def put_value(
    out: Bytes, at: int, data: Bytes, start: int, kind: int, width: int, stop: int
) -> int:
    """Write a property value of a fixed width in the JMS string conversion.

    Return the position after it, or -1 for a value that the writer gives other bytes: a NaN that is
    not Java's one, or a boolean that is neither 0 nor 1 (errata 34, 43).
    """
    if start + 8 <= stop:
        # One way for all widths: which type comes next cannot be predicted.
        value = load_i64(data, start) >> (64 - 8 * width)
    else:
        value = load_i8(data, start)
        for place in range(1, width):
            value = value << 8 | load_u8(data, start + place)
    if kind == 7:
        if value & 0x7FFF_FFFF_FFFF_FFFF > _INFINITE_64 and value != _NAN_64:
            return -1
        return put_double(out, at, value)
    if kind == 6:
        if value & 0x7FFF_FFFF > _INFINITE_32 and value != _NAN_32:
            return -1
        return put_float(out, at, value)
    if kind == 1:
        if value >> 1 != 0:
            return -1
        store_word(out, at, 0x65757274 if value else 0x65736C6166)
        return at + (4 if value else 5)
    return put_i64(out, at, value)


@piece
def is_written_text(data: Bytes, at: int, size: int) -> bool:
    """Return whether text beyond ASCII without NUL is UTF-8 and modified UTF-8 at once."""
    odd = 0
    for place in range(at, at + size):
        byte = load_u8(data, place)
        odd |= (byte == 0) | (byte >= 0xF0)  # C0 80, or a pair of surrogates, is written
    return odd == 0 and valid_utf8(data, at, size)


@piece
def name_hash(data: Bytes, at: int, size: int, stop: int) -> int:
    """Return a number that is the same for names that are."""
    if size >= 8:
        word = load_word(data, at) ^ (load_word(data, at + size - 8) * 31)
    elif at + 8 <= stop:
        word = load_word(data, at) & ((1 << 8 * size) - 1)
    else:
        word = 0
        for place in range(size):
            word |= load_u8(data, at + place) << 8 * place
    return word * 31 + size & 0x7FFF_FFFF_FFFF_FFFF


@piece
def is_among(hashes: Ints, count: int, word: int) -> bool:
    """Return whether one of the first `count` hashes is `word`."""
    found = False
    for earlier in range(count):
        found = found or hashes[earlier] == word
    return found


@piece
def take_properties(
    data: Bytes,
    at: int,
    end: int,
    stop: int,
    text: Bytes,
    capacity: int,
    used: Ints,
    region: int,
    entry: int,
    entry_offsets: Grid32,
    hashes: Ints,
) -> int:
    """Read a marshalled section; return the number of the entry after its last, -1 to reject.

    Names, types and values go to the regions of `text` from `region` on; `entry` is the number of
    the next entry of all rows.
    """
    if end - at < 8 or load_i32(data, at) != 1:
        return -1
    count = load_i32(data, at + 4)
    at += 8
    if count < 0 or count > MAX_UNIQUE_NAMES or count > (end - at) // 6:
        return -1
    name_from = region * capacity
    type_from = name_from + capacity
    value_from = type_from + capacity
    name_at = used[region] + name_from
    type_at = used[region + 1] + type_from
    value_at = used[region + 2] + value_from
    seen = 0
    for place in range(count):
        if end - at < 2:
            return -1
        size = load_u16(data, at)
        at += 2
        if size == 0 or size + 2 > end - at:
            return -1
        # Few names fall on one of 64 bits, so few have to be compared with those before them.
        word = name_hash(data, at, size, stop)
        bit = 1 << (word * _SPREAD >> 57 & 63)
        if seen & bit and is_among(hashes, place, word):
            return -1
        seen |= bit
        hashes[place] = word
        if copy_text(text, name_at, data, at, size, stop) and not is_written_text(data, at, size):
            return -1
        name_at += size
        at += size
        kind = load_i16(data, at)
        at += 2
        if kind < 1 or kind > 8:
            return -1
        store_word(text, type_at, _KIND_WORDS[kind])
        type_at += _KIND_SIZES[kind]
        if kind == 8:
            if end - at < 2:
                return -1
            size = load_u16(data, at)
            at += 2
            if size > end - at:
                return -1
            odd = copy_text(text, value_at, data, at, size, stop)
            if odd and not is_written_text(data, at, size):
                return -1
            value_at += size
        else:
            size = _VALUE_BYTES >> 4 * kind & 15
            if size > end - at:
                return -1
            value_at = put_value(text, value_at, data, at, kind, size, stop)
            if value_at < 0:
                return -1
        at += size
        entry += 1
        entry_offsets[0, entry] = name_at - name_from
        entry_offsets[1, entry] = type_at - type_from
        entry_offsets[2, entry] = value_at - value_from
    if at != end:
        return -1
    used[region] = name_at - name_from
    used[region + 1] = type_at - type_from
    used[region + 2] = value_at - value_from
    return entry


@piece
def clear(used: Ints, bits: Grid8, rejected: Bytes) -> None:
    """Begin a batch: nothing is used, not null, or rejected."""
    for place in range(used.shape[0]):
        used[place] = 0
    for field in range(bits.shape[0]):
        for place in range(bits.shape[1]):
            bits[field, place] = 0
    for row in range(rejected.shape[0]):
        rejected[row] = 0


@piece
def count_rejected(rejected: Bytes) -> int:
    """Return how many rows are rejected."""
    count = 0
    for row in range(rejected.shape[0]):
        count += rejected[row]
    return count


@piece
def put_texts(
    text: Bytes,
    capacity: int,
    ends: Bytes,
    used: Ints,
    body_bytes: int,
    numbers: Ints,
    out: Bytes,
    at: int,
    extents: Pairs,
) -> int:
    """Claim what follows the arrays of a batch at `at`, and copy texts there; return the end.

    First the bodies, which are there already; then the regions of `text`, and of `ends` one for
    each of `PROPERTY_TEXTS`. `numbers` are those of the arrays: of texts, ends and bodies. `used`
    says how large each region of `text` is, and behind them how many properties there are. If the
    end is behind that of `out`, nothing was copied.
    """
    regions = numbers.shape[0] - 1
    texts = regions - len(PROPERTY_TEXTS)
    end_bytes = _END_BYTES * (used[texts] + 1)
    at = claim_bytes(extents, numbers[regions], body_bytes, at)
    for region in range(regions):
        size = used[region] if region < texts else end_bytes
        at = claim_bytes(extents, numbers[region], size, at)
    if at > out.shape[0]:
        return at
    for region in range(regions):
        number = numbers[region]
        if number < 0:
            continue
        if region < texts:
            copy_bytes(out, extents[number, 0], text, region * capacity, used[region])
        else:
            start = (region - texts) * (ends.shape[0] // len(PROPERTY_TEXTS))
            copy_bytes(out, extents[number, 0], ends, start, end_bytes)
    return at


@kernel(I64(TEXT, I64, TEXT, _INTS, I64, _INTS, TEXT, I64, array("int64", 2)))
def put_texts_again(
    text: Bytes,
    capacity: int,
    ends: Bytes,
    used: Ints,
    body_bytes: int,
    numbers: Ints,
    out: Bytes,
    at: int,
    extents: Pairs,
) -> int:
    """Do as `put_texts` does, where there was no room for them."""
    return put_texts(text, capacity, ends, used, body_bytes, numbers, out, at, extents)
