"""JMQ packets to columns, the common case: compiled loops over frames of one window.

Rules of this file:

1. A kernel answers only what it is sure of. A packet with anything rare about it (version 103,
   serialized properties, an unknown item, items in another order than they are written in, text
   that is not plain UTF-8, an OBJECT property, any broken rule) is marked in `rejected`, and the
   scalar reader gives its row. So `raw_header` and `raw_properties` of all others are null.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. Each group of columns has a pass of its own over a block of rows: few streams are written at a
   time, and a group that nobody asked for costs nothing. What one pass rejects the next leaves out.
4. Text goes to one region of `text` per column, `capacity` bytes apart. What is enough for
   properties is for each: an id of 92 characters has a packet of 72 bytes.

Axes: r = rows, e = properties of all rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.jmq.layout import HEADER_BYTES, ITEMS, ITEMS_BY_NAME, MAGIC
from wireyard.formats.jmq.text_kernels import TABLES, fill_hashes, fill_ids, fill_names
from wireyard.formats.property_kernels import (
    PROPERTY_TEXTS,
    clear,
    count_rejected,
    put_texts,
    take_properties,
)
from wireyard.memory import (
    AHEAD_BYTES,
    LINE,
    Bytes,
    bit_column,
    copy_bytes,
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

__all__ = [
    "BITS",
    "BLOCK_ROWS",
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

I32_FIELDS: Final = (
    "version",
    "packet_type",
    "source_port",
    "sequence",
    "priority",
    "encryption",
    "bit_flags",
    "delivery_count",
)
I64_FIELDS: Final = (
    "size",
    "expiration",
    "timestamp",
    "property_offset",
    "property_size",
    "consumer_id",
    "body_size",
    "transaction_id",
    "producer_id",
    "delivery_time",
    "destination_hash",
)
TEXTS: Final = (
    "packet_type_name",
    "source_ip_text",
    "flags",
    "sys_message_id",
    *(ITEMS[code].name for code in range(1, 8)),
    *PROPERTY_TEXTS,
)
BITS: Final = (
    "packet_type_name",
    *(ITEMS[code].name for code in range(1, 12)),
    "properties",
    "body",
)
"""Columns that can be null, each a row of the validity bitmap; 1 to 11 are the item's type."""

WANT: Final = {"names": 1, "ids": 2, "items": 4, "properties": 8, "bodies": 16, "hashes": 32}
"""Groups of columns that cost something; a group that nobody asked for is left out."""

_NAMES, _IDS, _ITEMS, _PROPERTIES, _BODIES, _HASHES = WANT.values()
_PROPERTY_TEXT: Final = TEXTS.index(PROPERTY_TEXTS[0])
COUNTS: Final = len(TEXTS) + 3
"""What `used` counts: the bytes of each text, then properties, then bytes of bodies; and where
behind the arrays all of them end."""
_ENTRIES, _BODY_BYTES, _STOP = COUNTS - 3, COUNTS - 2, COUNTS - 1
_PROPERTIES_BIT, _BODY_BIT = map(BITS.index, ("properties", "body"))
(
    _VERSION, _PACKET_TYPE, _SOURCE_PORT, _SEQUENCE, _PRIORITY, _ENCRYPTION, _BIT_FLAGS,
    _DELIVERY_COUNT,
) = map(
    I32_FIELDS.index,
    (
        "version", "packet_type", "source_port", "sequence", "priority", "encryption",
        "bit_flags", "delivery_count",
    ),
)  # fmt: skip
(
    _SIZE, _EXPIRATION, _TIMESTAMP, _PROPERTY_OFFSET, _PROPERTY_SIZE, _CONSUMER_ID, _BODY_SIZE,
    _TRANSACTION_ID, _PRODUCER_ID, _DESTINATION_HASH,
) = map(
    I64_FIELDS.index,
    (
        "size", "expiration", "timestamp", "property_offset", "property_size", "consumer_id",
        "body_size", "transaction_id", "producer_id", "destination_hash",
    ),
)  # fmt: skip
_FIRST_ITEM: Final = TEXTS.index(ITEMS[1].name)
"""Where each column is."""
_DESTINATION: Final = TEXTS.index("destination")
_PRODUCER_ID_HEAD, _DELIVERY_COUNT_HEAD = (
    ITEMS_BY_NAME[name].code << 16 | (ITEMS_BY_NAME[name].width or 0)
    for name in ("producer_id", "delivery_count")
)
"""The four bytes before the value of an item: type and length."""
_MOST_PADDING: Final = 4
"""Zeros behind the end of the list in a packet as it is written; any other padding is rare."""

_ROWS_AHEAD: Final = 12
"""How many rows ahead the memory of a header is asked for."""
_ITEMS_AHEAD: Final = 8
_ITEMS_BYTES: Final = 3 * LINE
"""The same for the items of a packet, and how much of them."""
BLOCK_ROWS: Final = 1024
"""Rows that go through all passes together: what they read and write stays in the cache."""
_ROW_OF_BLOCK: Final = BLOCK_ROWS - 1


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

    Stops before anything else: bytes that need more, bytes that begin no packet, a packet that
    begins at or after `last_start`, full arrays.
    """
    count = 0
    ahead = start
    while count < starts.shape[0] and start < last_start and stop - start >= HEADER_BYTES:
        size = load_i32(data, start + 8)
        if (
            load_u32(data, start) != MAGIC
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
def take_items(
    data: Bytes,
    at: int,
    end: int,
    stop: int,
    row: int,
    text: Bytes,
    capacity: int,
    used: Ints,
    i32: Grid32,
    i64: Grid64,
) -> int:
    """Read the variable header; return a bit per item type that is there, or -1 for a rejection.

    The bit of a type is its rank, `type - 8 & 15`: items are written in the order 8 to 11, 1 to 7.
    """
    seen = 0
    if at == end:
        return seen
    # What most messages begin with, as the shipped writer sends it: compared by one word each.
    if end - at >= 14 and load_u32(data, at) == _PRODUCER_ID_HEAD:
        i64[_PRODUCER_ID, row] = load_i64(data, at + 4)
        seen = 1 << (_PRODUCER_ID_HEAD >> 16) - 8
        at += 12
    if end - at >= 10 and load_u32(data, at) == _DELIVERY_COUNT_HEAD:
        i32[_DELIVERY_COUNT, row] = load_i32(data, at + 4)
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
            column = _FIRST_ITEM + code - 1
            out_at = column * capacity + used[column]
            if copy_text(text, out_at, data, at, size, stop) and not valid_utf8(data, at, size):
                return -1
            used[column] += size
        elif code == 11:
            if size != 4:
                return -1
            i32[_DELIVERY_COUNT, row] = load_i32(data, at)
        else:
            if size != 8:
                return -1
            i64[_TRANSACTION_ID + code - 8, row] = load_i64(data, at)
        at += size
    return -1


_INTS = array("int64")
_OFFSETS = array("int32")
_GRID32, _GRID64, _GRID8 = array("int32", 2), array("int64", 2), array("uint8", 2)


@piece
def fill_headers(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    wanted: int,
    i32: Grid32,
    i64: Grid64,
    addresses: Bytes,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the columns of the fixed header, and ask for what later passes read of each packet."""
    for number in range(first, last):
        row = place_of(number)
        start = starts[row]
        size = sizes[row]
        ahead = starts[min(row + _ROWS_AHEAD, last - 1)]
        prefetch_lines(data, ahead, ahead + HEADER_BYTES)
        version = load_u16(data, start + 4)
        offset = load_i32(data, start + 52)
        if wanted & (_PROPERTIES | _BODIES):
            prefetch_lines(data, start + LINE, start + min(size, AHEAD_BYTES))
        property_size = load_i32(data, start + 56)
        i32[_VERSION, row] = version
        i32[_PACKET_TYPE, row] = load_i16(data, start + 6)
        i32[_SOURCE_PORT, row] = load_i32(data, start + 44)
        i32[_SEQUENCE, row] = load_i32(data, start + 48)
        i32[_PRIORITY, row] = load_i8(data, start + 60)
        i32[_ENCRYPTION, row] = load_u8(data, start + 61)
        i32[_BIT_FLAGS, row] = load_u16(data, start + 62)
        i64[_SIZE, row] = size
        i64[_EXPIRATION, row] = load_i64(data, start + 12)
        i64[_TIMESTAMP, row] = load_i64(data, start + 20)
        i64[_PROPERTY_OFFSET, row] = offset
        i64[_PROPERTY_SIZE, row] = property_size
        i64[_CONSUMER_ID, row] = load_i64(data, start + 64)
        i64[_BODY_SIZE, row] = size - offset - property_size
        store_word(addresses, 16 * row, load_word(data, start + 28))
        store_word(addresses, 16 * row + 8, load_word(data, start + 36))
        if (
            (version != 301 and (version != 200 or property_size != 0))
            or not HEADER_BYTES <= offset <= size
            or not 0 <= property_size <= size - offset
        ):
            rejected[row] = 1


@piece
def fill_items(
    data: Bytes,
    stop: int,
    starts: Ints,
    i32: Grid32,
    i64: Grid64,
    text: Bytes,
    capacity: int,
    used: Ints,
    text_offsets: Grid32,
    seen: Grid8,
    bits: Grid8,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the columns of the variable header, and the bits of eight rows at once."""
    for number in range(first, last):
        row = place_of(number)
        ahead = starts[min(row + _ITEMS_AHEAD, last - 1)] + HEADER_BYTES
        prefetch_lines(data, ahead, ahead + _ITEMS_BYTES)
        found = 0
        if not rejected[row]:
            start = starts[row]
            found = take_items(
                data, start + HEADER_BYTES, start + i64[_PROPERTY_OFFSET, row], stop,
                row, text, capacity, used, i32, i64,
            )  # fmt: skip
            if found < 0:
                rejected[row] = 1
        seen[0, row & _ROW_OF_BLOCK] = found & 0xFF
        seen[1, row & _ROW_OF_BLOCK] = found >> 8 & 0xFF
        for column in range(_FIRST_ITEM, _FIRST_ITEM + 7):
            text_offsets[column, row + 1] = used[column]
    for row in range(first, last, 8):
        low = load_word(seen[0], row & _ROW_OF_BLOCK)
        high = load_word(seen[1], row & _ROW_OF_BLOCK)
        for code in range(1, 12):
            bits[code, row >> 3] = bit_column(high if code < 8 else low, code & 7)


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
    for number in range(first, last):
        row = place_of(number)
        size = i64[_PROPERTY_SIZE, row]
        if size > 0 and not rejected[row]:
            start = starts[row] + i64[_PROPERTY_OFFSET, row]
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
def fill_bodies(
    data: Bytes,
    starts: Ints,
    i64: Grid64,
    used: Ints,
    bodies: Bytes,
    body_offsets: Offsets,
    bits: Grid8,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the body column."""
    body_at = used[_BODY_BYTES]
    for number in range(first, last):
        row = place_of(number)
        size = i64[_BODY_SIZE, row]
        if size > 0 and not rejected[row]:
            copy_bytes(
                bodies,
                body_at,
                data,
                starts[row] + i64[_PROPERTY_OFFSET, row] + i64[_PROPERTY_SIZE, row],
                size,
            )
            body_at += size
            bits[_BODY_BIT, row >> 3] |= 1 << (row & 7)
        body_offsets[row + 1] = body_at
    used[_BODY_BYTES] = body_at


@kernel(
    I64(
        READ, I64, _INTS, _INTS, I64, _GRID32, _GRID64, TEXT, TEXT, I64, _INTS, _GRID32,
        _GRID32, _OFFSETS, TEXT, _OFFSETS, _GRID8, _GRID8, TEXT, _INTS, _INTS, _INTS,
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
    addresses: Bytes,
    text: Bytes,
    capacity: int,
    used: Ints,
    text_offsets: Grid32,
    entry_offsets: Grid32,
    map_offsets: Offsets,
    bodies: Bytes,
    body_offsets: Offsets,
    seen: Grid8,
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

    Shapes: i32, i64 (field, r); addresses (16 r); text (text, `capacity`); used (`COUNTS`);
    text_offsets (text of a row, r + 1); entry_offsets (3, e + 1); map_offsets, body_offsets
    (r + 1); seen (2, `BLOCK_ROWS`); bits (nullable, r / 8); rejected (r); hashes (unique names of
    a packet); ends are the bytes of entry_offsets. Zero at first: the first of all offsets. The
    others are what `put_texts` takes.
    """
    rows = starts.shape[0]
    clear(used, bits, rejected)
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        fill_headers(data, starts, sizes, wanted, i32, i64, addresses, rejected, first, last)
        if wanted & _NAMES:
            fill_names(i32, text, capacity, used, text_offsets, bits, words, lengths, first, last)
        if wanted & _IDS:
            fill_ids(
                data, starts, text, capacity, used, text_offsets, words, lengths,
                first, last,
            )  # fmt: skip
        if wanted & _ITEMS:
            fill_items(
                data, stop, starts, i32, i64, text, capacity, used, text_offsets, seen, bits,
                rejected, first, last,
            )  # fmt: skip
        if wanted & _HASHES:
            fill_hashes(
                i32[_BIT_FLAGS], i64[_DESTINATION_HASH], text, _DESTINATION * capacity,
                text_offsets[_DESTINATION], words, first, last,
            )  # fmt: skip
        if wanted & _PROPERTIES:
            fill_properties(
                data, stop, starts, i64, text, capacity, used, entry_offsets, map_offsets, bits,
                rejected, hashes, first, last,
            )  # fmt: skip
        if wanted & _BODIES:
            fill_bodies(data, starts, i64, used, bodies, body_offsets, bits, rejected, first, last)
    used[_STOP] = put_texts(
        text, capacity, ends, used, used[_BODY_BYTES], numbers, out, at, extents
    )
    count = count_rejected(rejected)
    return count
