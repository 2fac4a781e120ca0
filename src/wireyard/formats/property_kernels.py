"""The marshalled property section to columns, the common case, and the passes over such packets.

JMQ packets and GPackets share both: the kernel of each format has the passes over its header, and
calls those of this file for properties and bodies.

A section with anything rare about it (an OBJECT, a repeated or empty name, text that is not both
UTF-8 and modified UTF-8, a value or an end that the writer gives other bytes, more than
`MAX_UNIQUE_NAMES` names, any broken rule) is rejected, and the scalar reader gives its row. Text
goes to one region of `text` per column, `capacity` bytes apart. `TEXT_BYTES_PER_BYTE` times the
section is enough for each: the worst case is a double of 13 bytes (name 3, type 2, value 8) printed
with 24 characters.

Axes: r = rows, e = properties of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import numpy as np

from wireyard.accelerate import I64, array, kernel, piece, record
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
    place_of,
    put_i64,
    store_word,
    valid_utf8,
)

__all__ = [
    "BODY_BYTES",
    "COUNTS",
    "ENTRIES",
    "MAX_UNIQUE_NAMES",
    "PROPERTY_TEXTS",
    "STOP",
    "TEXT_BYTES_PER_BYTE",
    "BatchBuffer",
    "Columns",
    "Frames",
    "Texts",
    "clear",
    "fill_bodies",
    "fill_properties",
    "finish",
    "put_texts_again",
    "word_of",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Offsets = np.ndarray[tuple[int], np.dtype[np.int32]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid64 = np.ndarray[tuple[int, int], np.dtype[np.int64]]

PROPERTY_TEXTS: Final = ("property name", "property type", "property value")
"""The regions of `text` that properties take, next to each other."""
TEXT_BYTES_PER_BYTE: Final = 2
MAX_UNIQUE_NAMES: Final = 64
"""Names are compared each with each up to this count; the scalar reader takes longer lists."""

COUNTS: Final = ("properties", "body bytes", "stop")
"""What `Texts.used` has behind the bytes of each text: how many properties there are, the bytes of
bodies, and where behind the arrays all of them end."""
ENTRIES, BODY_BYTES, STOP = (place - len(COUNTS) for place in range(len(COUNTS)))
_REGIONS_BACK: Final = len(PROPERTY_TEXTS) + len(COUNTS)
_PROPERTY_BITS_BACK, _BODY_BITS_BACK = 2, 1
_END_BYTES: Final = 4
_SPREAD: Final = 0x1E37_79B9_7F4A_7C15
"""Odd, without a pattern: the upper bits of a product with it hang on all of the other factor."""
_INFINITE_32, _INFINITE_64 = 0x7F80_0000, 0x7FF0_0000_0000_0000
_NAN_32, _NAN_64 = 0x7FC0_0000, 0x7FF8_0000_0000_0000
"""The NaN that Java writes; others have the bits of infinity and more."""
_VALUE_BYTES: Final = 0x84842110
"""Bytes of a value by its type code, one hexadecimal digit each, from type 0 at the right."""


class Frames(NamedTuple):
    """Packets of a window. Axis: r."""

    stop: int
    """Nothing is read at or behind it."""
    starts: Annotated[Ints, "int64"]
    sizes: Annotated[Ints, "int64"]


class Columns(NamedTuple):
    """The arrays that the columns of packets are made of."""

    i32: Annotated[Grid32, array("int32", 2)]
    """Shape (field, r)."""
    i64: Annotated[Grid64, array("int64", 2)]
    text_offsets: Annotated[Grid32, array("int32", 2)]
    """Where the texts of rows end, in their regions; shape (text of a row, r + 1)."""
    map_offsets: Annotated[Offsets, "int32"]
    """Where the properties of rows end; r + 1."""
    bodies: Annotated[Bytes, "uint8"]
    body_offsets: Annotated[Offsets, "int32"]
    bits: Annotated[Grid8, array("uint8", 2)]
    """What is not null: shape (column that can be null, r / 8), properties and bodies last."""
    rejected: Annotated[Bytes, "uint8"]
    """Whether the scalar reader has to give a row; r."""


class Texts(NamedTuple):
    """Text on its way to columns: in the regions of `text`, each of `capacity` bytes."""

    text: Annotated[Bytes, "uint8"]
    capacity: int
    used: Annotated[Ints, "int64"]
    """Bytes of each region; then `COUNTS`. The regions of properties are the last."""
    entry_offsets: Annotated[Grid32, array("int32", 2)]
    """Where the names, types and values of properties end; shape (3, e + 1)."""
    ends: Annotated[Bytes, "uint8"]
    """The same as bytes."""
    hashes: Annotated[Ints, "int64"]
    """Room for those of the names of one packet; `MAX_UNIQUE_NAMES`."""


class BatchBuffer(NamedTuple):
    """The buffer of a batch, in which arrays lie already."""

    body: Annotated[Bytes, "uint8"]
    used: int
    """Where the arrays end."""
    numbers: Annotated[Ints, "int64"]
    """Those of the arrays that follow: texts, the three of `entry_offsets`, bodies; -1 for one
    that no column needs."""
    extents: Annotated[Grid64, array("int64", 2)]
    """Where each array begins, and its size."""


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
def take_properties(data: Bytes, at: int, end: int, stop: int, texts: Texts, entry: int) -> int:
    """Read a marshalled section; return the number of the entry after its last, -1 to reject.

    `entry` is the number of the next entry of all rows.
    """
    if end - at < 8 or load_i32(data, at) != 1:
        return -1
    count = load_i32(data, at + 4)
    at += 8
    if count < 0 or count > MAX_UNIQUE_NAMES or count > (end - at) // 6:
        return -1
    text, used, entry_offsets, hashes = texts.text, texts.used, texts.entry_offsets, texts.hashes
    region = used.shape[0] - _REGIONS_BACK
    name_from = region * texts.capacity
    type_from = name_from + texts.capacity
    value_from = type_from + texts.capacity
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


# --- the passes that formats with such a section share ---------------------------------------


@piece
def clear(texts: Texts, columns: Columns) -> None:
    """Begin a batch: nothing is used, not null, or rejected."""
    used, bits, rejected = texts.used, columns.bits, columns.rejected
    for place in range(used.shape[0]):
        used[place] = 0
    for field in range(columns.text_offsets.shape[0]):
        columns.text_offsets[field, 0] = 0
    columns.map_offsets[0] = columns.body_offsets[0] = 0
    for field in range(bits.shape[0]):
        for place in range(bits.shape[1]):
            bits[field, place] = 0
    for row in range(rejected.shape[0]):
        rejected[row] = 0


@piece
def fill_properties(
    data: Bytes,
    frames: Frames,
    columns: Columns,
    texts: Texts,
    find: Callable[[Frames, Columns, int], tuple[int, int]],
    first: int,
    last: int,
) -> None:
    """Fill the property column; `find` gives where the section of a row begins, and its size."""
    field = columns.bits.shape[0] - _PROPERTY_BITS_BACK
    entry = texts.used[ENTRIES]
    for number in range(first, last):
        row = place_of(number)
        start, size = find(frames, columns, row)
        if size > 0 and not columns.rejected[row]:
            after = take_properties(data, start, start + size, frames.stop, texts, entry)
            if after < 0:
                columns.rejected[row] = 1
            else:
                entry = after
                columns.bits[field, row >> 3] |= 1 << (row & 7)
        columns.map_offsets[row + 1] = entry
    texts.used[ENTRIES] = entry


@piece
def fill_bodies(
    data: Bytes,
    frames: Frames,
    columns: Columns,
    texts: Texts,
    find: Callable[[Frames, Columns, int], tuple[int, int]],
    first: int,
    last: int,
) -> None:
    """Fill the column of bodies; `find` gives where the body of a row begins, and its size."""
    field = columns.bits.shape[0] - _BODY_BITS_BACK
    body_at = texts.used[BODY_BYTES]
    for number in range(first, last):
        row = place_of(number)
        start, size = find(frames, columns, row)
        if size > 0 and not columns.rejected[row]:
            copy_bytes(columns.bodies, body_at, data, start, size)
            body_at += size
            columns.bits[field, row >> 3] |= 1 << (row & 7)
        columns.body_offsets[row + 1] = body_at
    texts.used[BODY_BYTES] = body_at


@piece
def finish(columns: Columns, texts: Texts, buffer: BatchBuffer) -> int:
    """End a batch: copy its texts behind the arrays; return how many rows are rejected."""
    texts.used[STOP] = put_texts(texts, buffer)
    count = 0
    for row in range(columns.rejected.shape[0]):
        count += columns.rejected[row] != 0
    return count


@piece
def put_texts(texts: Texts, buffer: BatchBuffer) -> int:
    """Claim what follows the arrays of a batch, and copy texts there; return the end.

    First the bodies, which are there already; then the regions of text, and where the entries of
    each of `PROPERTY_TEXTS` end. If the end is behind that of the buffer, nothing was copied.
    """
    used, numbers, extents, out = texts.used, buffer.numbers, buffer.extents, buffer.body
    regions = numbers.shape[0] - 1
    count = regions - len(PROPERTY_TEXTS)
    end_bytes = _END_BYTES * (used[ENTRIES] + 1)
    at = claim_bytes(extents, numbers[regions], used[BODY_BYTES], buffer.used)
    for region in range(regions):
        size = used[region] if region < count else end_bytes
        at = claim_bytes(extents, numbers[region], size, at)
    if at > out.shape[0]:
        return at
    for region in range(regions):
        number = numbers[region]
        if number < 0:
            continue
        if region < count:
            copy_bytes(out, extents[number, 0], texts.text, region * texts.capacity, used[region])
        else:
            start = (region - count) * (texts.ends.shape[0] // len(PROPERTY_TEXTS))
            copy_bytes(out, extents[number, 0], texts.ends, start, end_bytes)
    return at


@kernel(I64(record(Texts), record(BatchBuffer)))
def put_texts_again(texts: Texts, buffer: BatchBuffer) -> int:
    """Do as `put_texts` does, where there was no room for them."""
    return put_texts(texts, buffer)
