"""Compiled decoder of common JMQ packets: from the frames of a window to columns.

Rules of this file:

1. Packets with anything rare (version 103, serialized properties, an unknown item, items in another
   order than our writer's, text that is not plain UTF-8, an OBJECT property, any broken rule) are
   marked in `rejected`, and the scalar reader decodes their rows. So `raw_header` and
   `raw_properties` of all other rows are null.
2. Nothing is read at or after `stop`; a length is compared with the bytes left before it is used.
3. Each group of columns has a pass of its own over a block of rows, so that few arrays are written
   at a time; passes of groups that are not wanted are skipped. A pass skips rows that an earlier
   one rejected.
4. The text of each column goes to its own region of `text`; the regions are `capacity` bytes apart.
   The capacity for properties is enough for all: an id of 92 characters takes a packet of 72 bytes.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Ints, ReadOnly
from wireyard.formats.columns import Frames
from wireyard.formats.jmq import kernel_columns as c
from wireyard.formats.jmq.kernel_columns import WANT
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    ITEMS_BY_NAME,
    MAGIC,
    PACKET_TYPES,
)
from wireyard.formats.jmq.reading import STAMPS
from wireyard.formats.jmq.text_kernels import fill_hashes, fill_ids
from wireyard.formats.packet_kernels import fill_names, find_frames, name_tables
from wireyard.formats.property_kernels import (
    BLOCK_ROWS,
    BatchBuffer,
    Columns,
    Texts,
    fill_batch,
)
from wireyard.memory import (
    AHEAD_BYTES,
    LINE,
    bit_column,
    copy_text,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_word,
    place_of,
    prefetch_lines,
    store_word,
    valid_utf8,
)

_NAMES, _PROPERTIES, _BODIES, _IDS, _ITEMS, _HASHES = WANT.values()
_HEADER: Final = HEADERS[301]
(
    _MAGIC_AT, _VERSION_AT, _PACKET_TYPE_AT, SIZE_AT, _EXPIRATION_AT, _TIMESTAMP_AT,
    _SOURCE_IP_AT, _SOURCE_PORT_AT, _SEQUENCE_AT, _PROPERTY_OFFSET_AT, _PROPERTY_SIZE_AT,
    _PRIORITY_AT, _ENCRYPTION_AT, _BIT_FLAGS_AT, _CONSUMER_ID_AT,
) = (field.offset for field in _HEADER.fields)  # fmt: skip
"""Offset of each header field."""
_PRODUCER_ID_HEAD, _DELIVERY_COUNT_HEAD = (
    ITEMS_BY_NAME[name].code << 16 | (ITEMS_BY_NAME[name].width or 0)
    for name in ("producer_id", "delivery_count")
)
"""The four bytes before the value of an item: type and length."""
_MOST_PADDING: Final = 4
"""Most zeros after the end of the list that writers send; other padding is rare."""

_WORDS, _LENGTHS = name_tables(PACKET_TYPES, FLAGS)
_FLAG_OCTETS: Final = 2
_ADDRESS_BYTES: Final = 16

_ROWS_AHEAD: Final = 12
"""Prefetch distance of headers, in rows."""
_ITEMS_AHEAD: Final = 8
_ITEMS_BYTES: Final = 3 * LINE
"""Prefetch distance of the items of a packet, in rows, and how many bytes of them."""
_ROW_OF_BLOCK: Final = BLOCK_ROWS - 1


@inlined
def has_magic(data: Bytes, start: int) -> bool:
    """Return whether the magic of a header is at `start`."""
    return load_u32(data, start + _MAGIC_AT) == MAGIC


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

    Stops before an incomplete packet, before bytes that begin no packet, before a packet that
    begins at or after `last_start`, and when the arrays are full.
    """
    return find_frames(
        data, start, stop, last_start, max_packet_bytes, has_magic, SIZE_AT, HEADER_BYTES, starts,
        sizes, 0, starts.shape[0],
    )  # fmt: skip


@inlined
def decode_items(
    data: Bytes, at: int, end: int, stop: int, row: int, columns: Columns, texts: Texts
) -> int:
    """Decode the variable header; return a bit for each item type in it, or -1 to reject.

    The bit of a type is its rank in the writer's order, `type - 8 & 15`: 8 to 11, then 1 to 7.
    """
    seen = 0
    if at == end:
        return seen
    # The items that most messages begin with, compared by one word each.
    if end - at >= 14 and load_u32(data, at) == _PRODUCER_ID_HEAD:
        columns.i64[c.PRODUCER_ID, row] = load_i64(data, at + 4)
        seen = 1 << (_PRODUCER_ID_HEAD >> 16) - 8
        at += 12
    if end - at >= 10 and load_u32(data, at) == _DELIVERY_COUNT_HEAD:
        columns.i32[c.DELIVERY_COUNT, row] = load_i32(data, at + 4)
        seen |= 1 << (_DELIVERY_COUNT_HEAD >> 16) - 8
        at += 8
    while end - at >= 2:
        code = load_u16(data, at)
        if code == 0:
            padding = end - at - 2
            if padding > _MOST_PADDING or load_u32(data, end - 4) & (1 << 8 * padding) - 1:
                return -1
            return seen
        if end - at < 4 or code > 11:
            return -1
        size = load_u16(data, at + 2)
        rank = code - 8 & 15
        at += 4
        if size > end - at or seen >> rank:
            return -1
        seen |= 1 << rank
        if code <= 7:
            region = c.FIRST_ITEM + code - 1
            out_at = region * texts.capacity + texts.used[region]
            if copy_text(texts.text, out_at, data, at, size, stop) and not valid_utf8(
                data, at, size
            ):
                return -1
            texts.used[region] += size
        elif code == 11:
            if size != 4:
                return -1
            columns.i32[c.DELIVERY_COUNT, row] = load_i32(data, at)
        else:
            if size != 8:
                return -1
            columns.i64[c.TRANSACTION_ID + code - 8, row] = load_i64(data, at)
        at += size
    return -1


@inlined
def fill_headers(
    data: Bytes,
    frames: Frames,
    wanted: int,
    columns: Columns,
    first: int,
    last: int,
) -> None:
    """Fill the columns of the fixed header, and prefetch the parts that later passes read."""
    i32, i64, addresses = columns.i32, columns.i64, columns.addresses
    for number in range(first, last):
        row = place_of(number)
        start = frames.starts[row]
        size = frames.sizes[row]
        ahead = frames.starts[min(row + _ROWS_AHEAD, last - 1)]
        prefetch_lines(data, ahead, ahead + HEADER_BYTES)
        columns.address_offsets[row + 1] = _ADDRESS_BYTES * (row + 1)
        if size < HEADER_BYTES:  # of an unknown version
            columns.rejected[row] = 1
            i32[c.PACKET_TYPE, row] = -1
            i32[c.BIT_FLAGS, row] = 0
            continue
        version = load_u16(data, start + _VERSION_AT)
        offset = load_i32(data, start + _PROPERTY_OFFSET_AT)
        if wanted & (_PROPERTIES | _BODIES):
            prefetch_lines(data, start + LINE, start + min(size, AHEAD_BYTES))
        property_size = load_i32(data, start + _PROPERTY_SIZE_AT)
        i32[c.VERSION, row] = version
        i32[c.PACKET_TYPE, row] = load_i16(data, start + _PACKET_TYPE_AT)
        i32[c.SOURCE_PORT, row] = load_i32(data, start + _SOURCE_PORT_AT)
        i32[c.SEQUENCE, row] = load_i32(data, start + _SEQUENCE_AT)
        i32[c.PRIORITY, row] = load_i8(data, start + _PRIORITY_AT)
        i32[c.ENCRYPTION, row] = load_u8(data, start + _ENCRYPTION_AT)
        i32[c.BIT_FLAGS, row] = load_u16(data, start + _BIT_FLAGS_AT)
        i64[c.SIZE, row] = size
        i64[c.EXPIRATION, row] = load_i64(data, start + _EXPIRATION_AT)
        i64[c.TIMESTAMP, row] = load_i64(data, start + _TIMESTAMP_AT)
        i64[c.PROPERTY_OFFSET, row] = offset
        i64[c.PROPERTY_SIZE, row] = property_size
        i64[c.CONSUMER_ID, row] = load_i64(data, start + _CONSUMER_ID_AT)
        i64[c.BODY_SIZE, row] = size - offset - property_size
        for half in range(0, _ADDRESS_BYTES, 8):
            word = load_word(data, start + _SOURCE_IP_AT + half)
            store_word(addresses, _ADDRESS_BYTES * row + half, word)
        if (
            (version != 301 and (version != 200 or property_size != 0))
            or not HEADER_BYTES <= offset <= size
            or not 0 <= property_size <= size - offset
            or frames.contexts[row] == STAMPS  # the scalar reader finds the end of the body
        ):
            columns.rejected[row] = 1


@inlined
def fill_items(
    data: Bytes,
    frames: Frames,
    columns: Columns,
    texts: Texts,
    first: int,
    last: int,
) -> None:
    """Fill the columns of the variable header, and their validity for eight rows at once."""
    seen = columns.seen
    for number in range(first, last):
        row = place_of(number)
        ahead = frames.starts[min(row + _ITEMS_AHEAD, last - 1)] + HEADER_BYTES
        prefetch_lines(data, ahead, ahead + _ITEMS_BYTES)
        types = 0
        if not columns.rejected[row]:
            start = frames.starts[row]
            end = start + columns.i64[c.PROPERTY_OFFSET, row]
            types = decode_items(data, start + HEADER_BYTES, end, frames.stop, row, columns, texts)
            if types < 0:
                columns.rejected[row] = 1
        seen[0, row & _ROW_OF_BLOCK] = types & 0xFF
        seen[1, row & _ROW_OF_BLOCK] = types >> 8 & 0xFF
        for region in range(c.FIRST_ITEM, c.FIRST_ITEM + 7):
            columns.text_offsets[region, row + 1] = texts.used[region]
    for row in range(first, last, 8):
        low = load_word(seen[0], row & _ROW_OF_BLOCK)
        high = load_word(seen[1], row & _ROW_OF_BLOCK)
        for code in range(1, 12):
            columns.bits[code, row >> 3] = bit_column(high if code < 8 else low, code & 7)


@inlined
def find_properties(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's property section."""
    start = frames.starts[row] + columns.i64[c.PROPERTY_OFFSET, row]
    return start, columns.i64[c.PROPERTY_SIZE, row]


@inlined
def find_body(frames: Frames, columns: Columns, row: int) -> tuple[int, int]:
    """Return the start and the size of a row's body."""
    start, size = find_properties(frames, columns, row)
    return start + size, columns.i64[c.BODY_SIZE, row]


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
    """Fill the columns of both headers."""
    fill_headers(data, frames, wanted, columns, first, last)
    if wanted & _NAMES:
        fill_names(
            columns, texts, _WORDS, _LENGTHS, columns.i32[c.PACKET_TYPE], columns.i32[c.BIT_FLAGS],
            _FLAG_OCTETS, c.LETTERS, first, last,
        )  # fmt: skip
    if wanted & _IDS:
        fill_ids(data, frames.starts, columns, texts, first, last)
    if wanted & _ITEMS:
        fill_items(data, frames, columns, texts, first, last)
    if wanted & _HASHES:
        fill_hashes(columns, texts, first, last)


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
        data, frames, wanted, columns, texts, buffer, fill_head, find_properties, find_body
    )
