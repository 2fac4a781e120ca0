"""GPackets to columns, the common case: compiled loops over frames of one window.

Rules of this file:

1. A kernel answers only what it is sure of. A packet with anything rare about it (an unknown
   version, a property section that ``wireyard.formats.property_kernels`` does not take, any broken
   rule) is marked in `rejected`, and the scalar reader gives its row. Link packets and the
   documented header order are not even framed here.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. Each group of columns has a pass of its own over a block of rows: few streams are written at a
   time, and a group that nobody asked for costs nothing. What one pass rejects the next leaves out.
4. Text goes to one region of `text` per column, `capacity` bytes apart. What is enough for
   properties is for each: 32 letters of flags or a name of 33 characters have a packet of 36 bytes.

Axes: r = rows, e = properties of all rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.gpacket.layout import FLAGS, HEADER_BYTES, MAGIC, PACKET_TYPES, VERSION
from wireyard.formats.property_kernels import (
    PROPERTY_TEXTS,
    clear,
    count_rejected,
    put_texts,
    take_properties,
    word_of,
)
from wireyard.memory import (
    AHEAD_BYTES,
    LINE,
    Bytes,
    copy_bytes,
    load_i16,
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    prefetch_lines,
    store_word,
)

__all__ = [
    "BITS",
    "COUNTS",
    "I32_FIELDS",
    "I64_FIELDS",
    "TABLES",
    "TEXTS",
    "WANT",
    "fill_rows",
    "scan_frames",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid64 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Offsets = np.ndarray[tuple[int], np.dtype[np.int32]]

I32_FIELDS: Final = ("version", "packet_type")
I64_FIELDS: Final = (
    "size",
    "magic",
    "property_size",
    "timestamp",
    "sequence",
    "bit_flags",
    "payload_size",
)
TEXTS: Final = ("packet_type_name", "flags", *PROPERTY_TEXTS)
BITS: Final = ("packet_type_name", "properties", "payload")
"""Columns that can be null, each a row of the validity bitmap."""

WANT: Final = {"names": 1, "properties": 2, "payloads": 4}
"""Groups of columns that cost something; a group that nobody asked for is left out."""

_VERSION, _PACKET_TYPE = map(I32_FIELDS.index, ("version", "packet_type"))
_SIZE, _MAGIC, _PROPERTY_SIZE, _TIMESTAMP, _SEQUENCE, _BIT_FLAGS, _PAYLOAD_SIZE = map(
    I64_FIELDS.index,
    (
        "size", "magic", "property_size", "timestamp", "sequence", "bit_flags", "payload_size",
    ),
)  # fmt: skip
_NAME, _LETTERS = map(TEXTS.index, ("packet_type_name", "flags"))
_NAME_BIT, _PROPERTIES_BIT, _PAYLOAD_BIT = map(
    BITS.index, ("packet_type_name", "properties", "payload")
)
"""Where each column is."""
_NAMES, _PROPERTIES, _PAYLOADS = WANT.values()
_PROPERTY_TEXT: Final = TEXTS.index(PROPERTY_TEXTS[0])
COUNTS: Final = len(TEXTS) + 3
"""What `used` counts: the bytes of each text, then properties, then bytes of payloads; and where
behind the arrays all of them end."""
_ENTRIES, _PAYLOAD_BYTES, _STOP = COUNTS - 3, COUNTS - 2, COUNTS - 1

_TYPE_NAMES: Final = 4 * 256
_NAME_WORDS: Final = -(-max(map(len, PACKET_TYPES.values())) // 8)
_KNOWN_TYPES = max(PACKET_TYPES) + 1

_BLOCK_ROWS: Final = 512
"""Rows that go through all passes together: what they read and write stays in the cache."""


def _tables() -> tuple[Ints, Ints]:
    """Return short texts as words, and their lengths at the same places."""
    letters = list(FLAGS)
    flags = [
        "".join(letters[8 * octet + bit] for bit in range(8) if value >> bit & 1)
        for octet in range(4)
        for value in range(256)
    ]
    words = [word_of(text) for text in flags]
    lengths = [len(text) for text in flags]
    for code in range(_KNOWN_TYPES):
        name = PACKET_TYPES.get(code, "")
        words += [word_of(name[at : at + 8]) for at in range(0, 8 * _NAME_WORDS, 8)]
        lengths += [len(name)] * _NAME_WORDS
    return np.array(words, np.int64), np.array(lengths, np.int64)


TABLES: Final = _tables()
"""Flag letters of each octet, lowest first, and packet type names, as words; their lengths."""


@kernel(I64(READ, I64, I64, I64, I64, array("int64"), array("int64")))
def scan_frames(
    data: Bytes,
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
) -> int:
    """Find whole packets that follow each other from `start`; return how many.

    Stops before anything else: bytes that need more, bytes that begin no packet in the shipped
    order, a packet that begins at or after `last_start`, full arrays.
    """
    count = 0
    ahead = start
    while count < starts.shape[0] and start < last_start and stop - start >= HEADER_BYTES:
        size = load_i32(data, start + 4)
        if (
            load_u32(data, start + 8) != MAGIC
            or load_u32(data, start) == MAGIC
            or size < HEADER_BYTES
            or size > max_packet_bytes
            or size > stop - start
        ):
            break
        ahead = prefetch_lines(data, max(ahead, start), min(start + AHEAD_BYTES, stop))
        starts[count] = start
        sizes[count] = size
        count += 1
        start += size
    return count


@piece
def fill_headers(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    i32: Grid32,
    i64: Grid64,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the columns of the fixed header, and ask for the memory of the rest of each packet."""
    for row in range(first, last):
        start = starts[row]
        size = sizes[row]
        if size < HEADER_BYTES:  # a link packet
            rejected[row] = 1
            i32[_PACKET_TYPE, row] = -1
            i64[_BIT_FLAGS, row] = 0
            continue
        prefetch_lines(data, start + LINE, start + min(size, AHEAD_BYTES))
        version = load_u16(data, start)
        property_size = load_i32(data, start + 12)
        i32[_VERSION, row] = version
        i32[_PACKET_TYPE, row] = load_i16(data, start + 2)
        i64[_SIZE, row] = size
        i64[_MAGIC, row] = load_u32(data, start + 8)
        i64[_PROPERTY_SIZE, row] = property_size
        i64[_TIMESTAMP, row] = load_i64(data, start + 16)
        i64[_SEQUENCE, row] = load_i64(data, start + 24)
        i64[_BIT_FLAGS, row] = load_u32(data, start + 32)
        i64[_PAYLOAD_SIZE, row] = size - HEADER_BYTES - property_size
        if (
            version != VERSION
            or i64[_MAGIC, row] != MAGIC
            or not 0 <= property_size <= size - HEADER_BYTES
        ):
            rejected[row] = 1


@piece
def fill_names(
    i32: Grid32,
    i64: Grid64,
    text: Bytes,
    capacity: int,
    used: Ints,
    text_offsets: Grid32,
    bits: Grid8,
    words: Ints,
    lengths: Ints,
    first: int,
    last: int,
) -> None:
    """Fill the names of packet types and the letters of flags."""
    name_at = used[_NAME]
    flags_at = _LETTERS * capacity + used[_LETTERS]
    for row in range(first, last):
        kind = i32[_PACKET_TYPE, row]
        if 0 <= kind < _KNOWN_TYPES:
            name = _TYPE_NAMES + _NAME_WORDS * kind
            for place in range(_NAME_WORDS):
                store_word(text, name_at + 8 * place, words[name + place])
            name_at += lengths[name]
            bits[_NAME_BIT, row >> 3] |= (lengths[name] > 0) << (row & 7)
        flags = i64[_BIT_FLAGS, row]
        for octet in range(4):
            letters = 256 * octet + (flags >> 8 * octet & 255)
            store_word(text, flags_at, words[letters])
            flags_at += lengths[letters]
        text_offsets[_NAME, row + 1] = name_at
        text_offsets[_LETTERS, row + 1] = flags_at - _LETTERS * capacity
    used[_NAME] = name_at
    used[_LETTERS] = flags_at - _LETTERS * capacity


@piece
def fill_properties(
    data: Bytes,
    stop: int,
    starts: Ints,
    i64: Grid64,
    text: Bytes,
    capacity: int,
    used: Ints,
    entry_offsets: Grid32,
    map_offsets: Offsets,
    bits: Grid8,
    rejected: Bytes,
    hashes: Ints,
    first: int,
    last: int,
) -> None:
    """Fill the property column."""
    entry = used[_ENTRIES]
    for row in range(first, last):
        size = 0 if rejected[row] else i64[_PROPERTY_SIZE, row]
        if size > 0:
            start = starts[row] + HEADER_BYTES
            after = take_properties(
                data, start, start + size, stop,
                text, capacity, used, _PROPERTY_TEXT, entry, entry_offsets, hashes,
            )  # fmt: skip
            if after < 0:
                rejected[row] = 1
            else:
                entry = after
                bits[_PROPERTIES_BIT, row >> 3] |= 1 << (row & 7)
        map_offsets[row + 1] = entry
    used[_ENTRIES] = entry


@piece
def fill_payloads(
    data: Bytes,
    starts: Ints,
    i64: Grid64,
    used: Ints,
    payloads: Bytes,
    payload_offsets: Offsets,
    bits: Grid8,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the payload column."""
    at = used[_PAYLOAD_BYTES]
    for row in range(first, last):
        size = 0 if rejected[row] else i64[_PAYLOAD_SIZE, row]
        if size > 0:
            copy_bytes(
                payloads, at, data, starts[row] + HEADER_BYTES + i64[_PROPERTY_SIZE, row], size
            )
            at += size
            bits[_PAYLOAD_BIT, row >> 3] |= 1 << (row & 7)
        payload_offsets[row + 1] = at
    used[_PAYLOAD_BYTES] = at


_INTS = array("int64")
_OFFSETS = array("int32")
_GRID32, _GRID64, _GRID8 = array("int32", 2), array("int64", 2), array("uint8", 2)


@kernel(
    I64(
        READ, I64, _INTS, _INTS, I64, _GRID32, _GRID64, TEXT, I64, _INTS, _GRID32, _GRID32,
        _OFFSETS, TEXT, _OFFSETS, _GRID8, TEXT, _INTS, _INTS, _INTS,
        TEXT, TEXT, I64, _INTS, _GRID64,
    )
)  # fmt: skip
def fill_rows(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    wanted: int,
    i32: Grid32,
    i64: Grid64,
    text: Bytes,
    capacity: int,
    used: Ints,
    text_offsets: Grid32,
    entry_offsets: Grid32,
    map_offsets: Offsets,
    payloads: Bytes,
    payload_offsets: Offsets,
    bits: Grid8,
    rejected: Bytes,
    hashes: Ints,
    words: Ints,
    lengths: Ints,
    ends: Bytes,
    out: Bytes,
    at: int,
    numbers: Ints,
    extents: Grid64,
) -> int:
    """Fill the wanted columns of the packets at `starts`; return how many are rejected.

    Shapes: i32, i64 (field, r); text (text, `capacity`); used (`COUNTS`); text_offsets (text of a
    row, r + 1); entry_offsets (3, e + 1); map_offsets, payload_offsets (r + 1); bits (nullable,
    r / 8); rejected (r); hashes (unique names of a packet); ends are the bytes of entry_offsets.
    Zero at first: the first of all offsets. The others are what `put_texts` takes.
    """
    rows = starts.shape[0]
    clear(used, bits, rejected)
    for first in range(0, rows, _BLOCK_ROWS):
        last = min(first + _BLOCK_ROWS, rows)
        fill_headers(data, starts, sizes, i32, i64, rejected, first, last)
        if wanted & _NAMES:
            fill_names(
                i32, i64, text, capacity, used, text_offsets, bits, words, lengths, first, last
            )
        if wanted & _PROPERTIES:
            fill_properties(
                data, stop, starts, i64, text, capacity, used, entry_offsets, map_offsets, bits,
                rejected, hashes, first, last,
            )  # fmt: skip
        if wanted & _PAYLOADS:
            fill_payloads(
                data, starts, i64, used, payloads, payload_offsets, bits, rejected, first, last
            )
    used[_STOP] = put_texts(
        text, capacity, ends, used, used[_PAYLOAD_BYTES], numbers, out, at, extents
    )
    count = count_rejected(rejected)
    return count
