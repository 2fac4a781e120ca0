"""Compiled decoder of common GPackets: from the frames of a window to columns.

Rules of this file:

1. Packets with anything rare (an unknown version, a ported JMQ packet, a property section that
   ``wireyard.formats.property_kernels`` rejects, any broken rule) are marked in `rejected`, and the
   scalar reader decodes their rows. Link packets and the documented header order are not framed
   here either.
2. Nothing is read at or after `stop`; a length is compared with the bytes left before it is used.
3. Each group of columns has a pass of its own over a block of rows, so that few arrays are written
   at a time; passes of groups that are not wanted are skipped. A pass skips rows that an earlier
   one rejected.
4. The text of each column goes to its own region of `text`; the regions are `capacity` bytes apart.
   The capacity for properties is enough for all: 32 flag letters, or a name of 33 characters, take
   a packet of 36 bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, array, inlined, kernel, record
from wireyard.arrays import Bytes, Ints
from wireyard.formats import property_kernels
from wireyard.formats.gpacket.layout import (
    COLUMNS,
    DOCUMENTED,
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    MAGIC,
    PACKET_TYPES,
    PORTED_SIGN,
    SHIPPED,
    VERSION,
)
from wireyard.formats.property_kernels import (
    PROPERTY_TEXTS,
    BatchBuffer,
    Columns,
    Frames,
    Texts,
    clear,
    fill_bodies,
    fill_properties,
    finish,
    word_of,
)
from wireyard.memory import (
    AHEAD_BYTES,
    LINE,
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
    "ROW_TEXTS",
    "TEXTS",
    "WANT",
    "fill_rows",
    "scan_frames",
]

_LINK_FIELDS: Final = ("destination_id",)
"""Columns that only link packets have."""
I32_FIELDS: Final = tuple(column.name for column in COLUMNS if column.kind == "int32")
I64_FIELDS: Final = tuple(
    column.name for column in COLUMNS if column.kind == "int64" and column.name not in _LINK_FIELDS
)
ROW_TEXTS: Final = ("packet_type_name", "flags")
TEXTS: Final = (*ROW_TEXTS, *PROPERTY_TEXTS)
"""The regions of text."""
BITS: Final = ("packet_type_name", "properties", "payload")
"""Columns that can be null, each a validity bitmap."""
COUNTS: Final = len(TEXTS) + len(property_kernels.COUNTS)
"""Length of `Texts.used`."""

WANT: Final = {"names": 1, "properties": 2, "payloads": 4}
"""Groups of columns with a pass of their own, as bits; a group that is not wanted is skipped."""

_VERSION, _PACKET_TYPE = map(I32_FIELDS.index, ("version", "packet_type"))
_SIZE, _MAGIC, _PROPERTY_SIZE, _TIMESTAMP, _SEQUENCE, _BIT_FLAGS, _PAYLOAD_SIZE = map(
    I64_FIELDS.index,
    (
        "size", "magic", "property_size", "timestamp", "sequence", "bit_flags", "payload_size",
    ),
)  # fmt: skip
_NAME, _LETTERS = map(TEXTS.index, ROW_TEXTS)
_NAME_BIT: Final = BITS.index("packet_type_name")
"""Index of each column among those of its kind."""
(
    _VERSION_AT, _PACKET_TYPE_AT, _SIZE_AT, _MAGIC_AT, _PROPERTY_SIZE_AT, _TIMESTAMP_AT,
    _SEQUENCE_AT, _BIT_FLAGS_AT,
) = (field.offset for field in HEADERS[SHIPPED].fields)  # fmt: skip
"""Offset of each header field."""
_PORTED_SIGN: Final = int.from_bytes(PORTED_SIGN, "big")
_PORTED_AT: Final = HEADER_BYTES + 8
_PORTED_BYTES: Final = 8 + len(PORTED_SIGN)
"""Where the property of ported packets is, and the bytes of properties up to its type."""
_DOCUMENTED_MAGIC_AT: Final = HEADERS[DOCUMENTED]["magic"].offset
_NAMES, _PROPERTIES, _PAYLOADS = WANT.values()

_TYPE_NAMES: Final = 4 * 256
_NAME_WORDS: Final = -(-max(map(len, PACKET_TYPES.values())) // 8)
_KNOWN_TYPES = max(PACKET_TYPES) + 1

_BLOCK_ROWS: Final = 512
"""Rows that go through all passes together, so that their data stays in the cache."""


def _tables() -> tuple[Ints, Ints]:
    """Return short texts as words, and their lengths at the same indices."""
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


_WORDS, _LENGTHS = _tables()
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

    Stops before an incomplete packet, before bytes that begin no packet of the shipped order,
    before a packet that begins at or after `last_start`, and when the arrays are full.
    """
    count = 0
    ahead = start
    while count < starts.shape[0] and start < last_start and stop - start >= HEADER_BYTES:
        size = load_i32(data, start + _SIZE_AT)
        if (
            load_u32(data, start + _MAGIC_AT) != MAGIC
            or load_u32(data, start + _DOCUMENTED_MAGIC_AT) == MAGIC
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


@inlined
def fill_headers(data: Bytes, frames: Frames, columns: Columns, first: int, last: int) -> None:
    """Fill the columns of the fixed header, and prefetch the rest of each packet."""
    i32, i64 = columns.i32, columns.i64
    for row in range(first, last):
        start = frames.starts[row]
        size = frames.sizes[row]
        if size < HEADER_BYTES:  # a link packet
            columns.rejected[row] = 1
            i32[_PACKET_TYPE, row] = -1
            i64[_BIT_FLAGS, row] = 0
            continue
        prefetch_lines(data, start + LINE, start + min(size, AHEAD_BYTES))
        version = load_u16(data, start + _VERSION_AT)
        property_size = load_i32(data, start + _PROPERTY_SIZE_AT)
        i32[_VERSION, row] = version
        i32[_PACKET_TYPE, row] = load_i16(data, start + _PACKET_TYPE_AT)
        i64[_SIZE, row] = size
        i64[_MAGIC, row] = load_u32(data, start + _MAGIC_AT)
        i64[_PROPERTY_SIZE, row] = property_size
        i64[_TIMESTAMP, row] = load_i64(data, start + _TIMESTAMP_AT)
        i64[_SEQUENCE, row] = load_i64(data, start + _SEQUENCE_AT)
        i64[_BIT_FLAGS, row] = load_u32(data, start + _BIT_FLAGS_AT)
        i64[_PAYLOAD_SIZE, row] = size - HEADER_BYTES - property_size
        if (
            min(property_size, size - HEADER_BYTES) >= _PORTED_BYTES
            and load_u32(data, start + _PORTED_AT) == _PORTED_SIGN >> 16
            and load_u16(data, start + _PORTED_AT + 4) == _PORTED_SIGN & 0xFFFF
        ):
            columns.rejected[row] = 1
        if (
            version != VERSION
            or i64[_MAGIC, row] != MAGIC
            or not 0 <= property_size <= size - HEADER_BYTES
        ):
            columns.rejected[row] = 1


@inlined
def fill_names(columns: Columns, texts: Texts, first: int, last: int) -> None:
    """Fill the names of packet types and the letters of flags."""
    names_from, letters_from = _NAME * texts.capacity, _LETTERS * texts.capacity
    name_at = names_from + texts.used[_NAME]
    flags_at = letters_from + texts.used[_LETTERS]
    for row in range(first, last):
        kind = columns.i32[_PACKET_TYPE, row]
        if 0 <= kind < _KNOWN_TYPES:
            name = _TYPE_NAMES + _NAME_WORDS * kind
            for place in range(_NAME_WORDS):
                store_word(texts.text, name_at + 8 * place, _WORDS[name + place])
            name_at += _LENGTHS[name]
            columns.bits[_NAME_BIT, row >> 3] |= (_LENGTHS[name] > 0) << (row & 7)
        flags = columns.i64[_BIT_FLAGS, row]
        for octet in range(4):
            letters = 256 * octet + (flags >> 8 * octet & 255)
            store_word(texts.text, flags_at, _WORDS[letters])
            flags_at += _LENGTHS[letters]
        columns.text_offsets[_NAME, row + 1] = name_at - names_from
        columns.text_offsets[_LETTERS, row + 1] = flags_at - letters_from
    texts.used[_NAME] = name_at - names_from
    texts.used[_LETTERS] = flags_at - letters_from


@inlined
def find_properties(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's property section."""
    return frames.starts[row] + HEADER_BYTES, columns.i64[_PROPERTY_SIZE, row]


@inlined
def find_payload(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's payload."""
    start, size = find_properties(frames, columns, row)
    return start + size, columns.i64[_PAYLOAD_SIZE, row]


@kernel(
    I64(
        READ, record(Frames), I64, record(Columns), record(Texts), record(BatchBuffer),
    )
)  # fmt: skip
def fill_rows(
    data: Bytes,
    frames: Frames,
    wanted: int,
    columns: Columns,
    texts: Texts,
    buffer: BatchBuffer,
) -> int:
    """Fill the wanted columns of the packets at `frames`; return how many are rejected."""
    rows = frames.starts.shape[0]
    clear(texts, columns)
    for first in range(0, rows, _BLOCK_ROWS):
        last = min(first + _BLOCK_ROWS, rows)
        fill_headers(data, frames, columns, first, last)
        if wanted & _NAMES:
            fill_names(columns, texts, first, last)
        if wanted & _PROPERTIES:
            fill_properties(data, frames, columns, texts, find_properties, first, last)
        if wanted & _PAYLOADS:
            fill_bodies(data, frames, columns, texts, find_payload, first, last)
    return finish(columns, texts, buffer)
