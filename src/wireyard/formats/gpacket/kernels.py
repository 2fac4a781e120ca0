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

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Ints, ReadOnly
from wireyard.formats.columns import Frames
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
from wireyard.formats.packet_kernels import fill_names, find_frames, name_tables
from wireyard.formats.property_kernels import (
    PROPERTY_TEXTS,
    WANT,
    BatchBuffer,
    Columns,
    Texts,
    fill_batch,
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
)

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

_VERSION, _PACKET_TYPE = map(I32_FIELDS.index, ("version", "packet_type"))
_SIZE, _MAGIC, _PROPERTY_SIZE, _TIMESTAMP, _SEQUENCE, _BIT_FLAGS, _PAYLOAD_SIZE = map(
    I64_FIELDS.index,
    (
        "size", "magic", "property_size", "timestamp", "sequence", "bit_flags", "payload_size",
    ),
)  # fmt: skip
_LETTERS: Final = TEXTS.index("flags")
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
_NAMES: Final = WANT["names"]

_WORDS, _LENGTHS = name_tables(PACKET_TYPES, FLAGS)
_FLAG_OCTETS: Final = 4


@inlined
def has_magic(data: Bytes, start: int) -> bool:
    """Return whether the magic of a shipped header is at its place, and not at the documented."""
    return (
        load_u32(data, start + _MAGIC_AT) == MAGIC
        and load_u32(data, start + _DOCUMENTED_MAGIC_AT) != MAGIC
    )


@kernel
def scan_frames(
    data: ReadOnly[Bytes],
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    _context: int,
    starts: Ints,
    sizes: Ints,
) -> int:
    """Find whole packets that follow each other from `start`; return how many.

    Stops before an incomplete packet, before bytes that begin no packet of the shipped order,
    before a packet that begins at or after `last_start`, and when the arrays are full.
    """
    return find_frames(
        data, start, stop, last_start, max_packet_bytes, has_magic, _SIZE_AT, HEADER_BYTES, starts,
        sizes, 0, starts.shape[0],
    )  # fmt: skip


@inlined
def fill_head(
    data: Bytes,
    frames: Frames,
    wanted: int,
    columns: Columns,
    texts: Texts,
    first: int,
    last: int,
) -> None:
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
    if wanted & _NAMES:
        fill_names(
            columns, texts, _WORDS, _LENGTHS, i32[_PACKET_TYPE], i64[_BIT_FLAGS], _FLAG_OCTETS,
            _LETTERS, first, last,
        )  # fmt: skip


@inlined
def find_properties(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's property section."""
    return frames.starts[row] + HEADER_BYTES, columns.i64[_PROPERTY_SIZE, row]


@inlined
def find_payload(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's payload."""
    start, size = find_properties(frames, columns, row)
    return start + size, columns.i64[_PAYLOAD_SIZE, row]


@kernel
def fill_rows(
    data: ReadOnly[Bytes],
    frames: Frames,
    wanted: int,
    columns: Columns,
    texts: Texts,
    buffer: BatchBuffer,
) -> int:
    """Fill the wanted columns of the packets at `frames`; return how many are rejected."""
    return fill_batch(
        data, frames, wanted, columns, texts, buffer, fill_head, find_properties, find_payload
    )
