"""Kernel passes over marshalled property sections and bodies, shared by JMQ and GPacket.

The kernel of each format has the passes over its own header, and calls those of this file for
properties and bodies.

A section with anything rare (an OBJECT, a repeated or empty name, text that is not both UTF-8 and
modified UTF-8, a value or an end that our writer encodes otherwise, more than `MAX_UNIQUE_NAMES`
names, any broken rule) is rejected, and the scalar reader decodes its row. The text of each column
goes to its own region of `text`; the regions are `capacity` bytes apart. `TEXT_BYTES_PER_BYTE`
times the section is enough for each: the worst case is a double of 13 bytes (name 3, type 2,
value 8) printed with 24 characters.

Axes: r = rows, e = properties of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from wireyard.accelerate import inlined, kernel
from wireyard.arena import claim_bytes
from wireyard.arrays import Bytes, Grid, Grid8, Grid32, Int32s, Ints
from wireyard.decimals import put_double, put_float
from wireyard.formats.columns import Frames
from wireyard.formats.properties import TYPES
from wireyard.memory import (
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

PROPERTY_TEXTS: Final = ("property name", "property type", "property value")
"""The regions of `text` for properties, next to each other."""
TEXT_BYTES_PER_BYTE: Final = 2
MAX_UNIQUE_NAMES: Final = 64
"""Most names in a section that a kernel decodes, because it compares them pairwise."""

COUNTS: Final = ("properties", "body bytes", "stop")
"""The last values of `Texts.used`, after the bytes of each region: the number of properties, the
bytes of bodies, and the end of the buffer with all of them."""
ENTRIES, BODY_BYTES, STOP = (place - len(COUNTS) for place in range(len(COUNTS)))
_REGIONS_BACK: Final = len(PROPERTY_TEXTS) + len(COUNTS)
_PROPERTY_BITS_BACK, _BODY_BITS_BACK = 2, 1
BLOCK_ROWS: Final = 1024
"""Rows that go through all passes together, so that their data stays in the cache."""
WANT: Final = {"names": 1, "properties": 2, "bodies": 4}
"""Groups of columns with a pass of their own, as bits; a group that is not wanted is skipped."""
_, _PROPERTIES, _BODIES = WANT.values()
_END_BYTES: Final = 4
_SPREAD: Final = 0x1E37_79B9_7F4A_7C15
"""An odd multiplier of a multiplicative hash: the upper bits of a product depend on every bit."""
_INFINITE_32, _INFINITE_64 = 0x7F80_0000, 0x7FF0_0000_0000_0000
_NAN_32, _NAN_64 = 0x7FC0_0000, 0x7FF8_0000_0000_0000
"""The NaN that Java writes; the bits of any NaN are above those of infinity."""
_VALUE_BYTES: Final = 0x84842110
"""Bytes of a value by its type code, one hexadecimal digit each, from type 0 at the right."""


class Columns(NamedTuple):
    """The arrays behind the columns of packets."""

    i32: Grid32
    """Shape (field, r)."""
    i64: Grid
    text_offsets: Grid32
    """End offsets of the texts of rows, in their regions; shape (text of a row, r + 1)."""
    map_offsets: Int32s
    """End offsets of the properties of rows, in properties; r + 1."""
    bodies: Bytes
    body_offsets: Int32s
    addresses: Bytes
    address_offsets: Int32s
    """Addresses of a fixed size and their end offsets, in formats that have them."""
    bits: Grid8
    """Validity bitmaps: shape (column that can be null, r / 8), properties and bodies last."""
    seen: Grid8
    """Scratch for a block of rows; shape (2, `BLOCK_ROWS`)."""
    rejected: Bytes
    """Whether the scalar reader has to decode a row; r."""


class Texts(NamedTuple):
    """Scratch for the text of columns: regions of `text`, each of `capacity` bytes."""

    text: Bytes
    capacity: int
    used: Ints
    """Bytes of each region; then `COUNTS`. The regions of properties are the last."""
    entry_offsets: Grid32
    """End offsets of the names, types and values of properties; shape (3, e + 1)."""
    ends: Bytes
    """`entry_offsets` as bytes."""
    hashes: Ints
    """Scratch for the hashes of the names of one packet; `MAX_UNIQUE_NAMES`."""


class BatchBuffer(NamedTuple):
    """The buffer of a batch, which already holds the arrays of a known size."""

    body: Bytes
    used: int
    """End of these arrays."""
    numbers: Ints
    """Numbers of the arrays to add: texts, the three of `entry_offsets`, bodies; -1 for one that
    no column needs."""
    extents: Grid
    """Start and size of each array."""


def word_of(text: str) -> int:
    """Return the first eight characters of ASCII text as the word that stores them."""
    return int.from_bytes(text.encode("ascii")[:8].ljust(8, b"\0"), "little")


_KINDS: Final = ("", *TYPES.values())
_KIND_WORDS: Final = np.array([word_of(kind) for kind in _KINDS], np.int64)
_KIND_SIZES: Final = np.array([len(kind) for kind in _KINDS], np.int64)


@inlined
def put_value(
    out: Bytes, at: int, data: Bytes, start: int, kind: int, width: int, stop: int
) -> int:
    """Write a property value of a fixed width as text, by the JMS string conversion.

    Return the position after it, or -1 for a value that our writer encodes otherwise: a NaN that is
    not Java's, or a boolean that is neither 0 nor 1 (errata 34, 43).
    """
    if start + 8 <= stop:
        # Without a branch by width, which the processor could not predict.
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


@inlined
def is_written_text(data: Bytes, at: int, size: int) -> bool:
    """Return whether text is valid both as UTF-8 and as modified UTF-8."""
    odd = 0
    for place in range(at, at + size):
        byte = load_u8(data, place)
        odd |= (byte == 0) | (byte >= 0xF0)  # modified UTF-8 has C0 80, and surrogate pairs
    return odd == 0 and valid_utf8(data, at, size)


@inlined
def name_hash(data: Bytes, at: int, size: int, stop: int) -> int:
    """Return a hash of a name."""
    if size >= 8:
        word = load_word(data, at) ^ (load_word(data, at + size - 8) * 31)
    elif at + 8 <= stop:
        word = load_word(data, at) & ((1 << 8 * size) - 1)
    else:
        word = 0
        for place in range(size):
            word |= load_u8(data, at + place) << 8 * place
    return word * 31 + size & 0x7FFF_FFFF_FFFF_FFFF


@inlined
def is_among(hashes: Ints, count: int, word: int) -> bool:
    """Return whether one of the first `count` hashes is `word`."""
    repeated = False
    for earlier in range(count):
        repeated = repeated or hashes[earlier] == word
    return repeated


@inlined
def decode_properties(data: Bytes, at: int, end: int, stop: int, texts: Texts, entry: int) -> int:
    """Decode a marshalled section into `texts`; return the number of entries then, -1 to reject.

    `entry` is the number of entries of all rows before.
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
        # Two names rarely share one of 64 bits, so a name is rarely compared with those before it.
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


# --- passes over the rows of a batch ---------------------------------------------------------


@inlined
def clear(texts: Texts, columns: Columns) -> None:
    """Begin a batch: no text is used, all values are null, no row is rejected."""
    used, bits, rejected = texts.used, columns.bits, columns.rejected
    for place in range(used.shape[0]):
        used[place] = 0
    for field in range(columns.text_offsets.shape[0]):
        columns.text_offsets[field, 0] = 0
    columns.map_offsets[0] = columns.body_offsets[0] = columns.address_offsets[0] = 0
    for field in range(bits.shape[0]):
        for place in range(bits.shape[1]):
            bits[field, place] = 0
    for row in range(rejected.shape[0]):
        rejected[row] = 0


@inlined
def fill_properties(
    data: Bytes,
    frames: Frames,
    columns: Columns,
    texts: Texts,
    find: Callable[[Frames, Columns, int], tuple[int, int]],
    first: int,
    last: int,
) -> None:
    """Fill the property column; `find` returns start and size of a row's section."""
    field = columns.bits.shape[0] - _PROPERTY_BITS_BACK
    entry = texts.used[ENTRIES]
    for number in range(first, last):
        row = place_of(number)
        start, size = find(frames, columns, row)
        if size > 0 and not columns.rejected[row]:
            count = decode_properties(data, start, start + size, frames.stop, texts, entry)
            if count < 0:
                columns.rejected[row] = 1
            else:
                entry = count
                columns.bits[field, row >> 3] |= 1 << (row & 7)
        columns.map_offsets[row + 1] = entry
    texts.used[ENTRIES] = entry


@inlined
def fill_bodies(
    data: Bytes,
    frames: Frames,
    columns: Columns,
    texts: Texts,
    find: Callable[[Frames, Columns, int], tuple[int, int]],
    first: int,
    last: int,
) -> None:
    """Fill the column of bodies; `find` returns start and size of a row's body."""
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


@inlined
def fill_batch(
    data: Bytes,
    frames: Frames,
    wanted: int,
    columns: Columns,
    texts: Texts,
    buffer: BatchBuffer,
    fill_head: Callable[[Bytes, Frames, int, Columns, Texts, int, int], None],
    find_properties: Callable[[Frames, Columns, int], tuple[int, int]],
    find_body: Callable[[Frames, Columns, int], tuple[int, int]],
) -> int:
    """Fill the wanted columns of packets; return how many are rejected.

    `fill_head` fills the columns before properties and bodies.
    """
    rows = frames.starts.shape[0]
    clear(texts, columns)
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        fill_head(data, frames, wanted, columns, texts, first, last)
        if wanted & _PROPERTIES:
            fill_properties(data, frames, columns, texts, find_properties, first, last)
        if wanted & _BODIES:
            fill_bodies(data, frames, columns, texts, find_body, first, last)
    # The texts of the batch come after its arrays.
    texts.used[STOP] = copy_texts(texts, buffer)
    count = 0
    for row in range(columns.rejected.shape[0]):
        count += columns.rejected[row] != 0
    return count


@inlined
def copy_texts(texts: Texts, buffer: BatchBuffer) -> int:
    """Copy texts behind the arrays of a batch; return the end of the part in use.

    The bodies are there already; the regions of text follow, then the end offsets of each of
    `PROPERTY_TEXTS`. If the end is beyond that of the buffer, nothing was copied.
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


@kernel
def retry_texts(texts: Texts, buffer: BatchBuffer) -> int:
    """Copy texts as `copy_texts` does, into a buffer that has grown."""
    return copy_texts(texts, buffer)
