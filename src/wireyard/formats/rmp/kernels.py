"""Messages of framed packets to columns: compiled loops over the messages of one window.

Rules of this file:

1. A kernel answers only what it is sure of: a packet that breaks a rule ends a scan and is marked
   in `rejected`, and the scalar reader gives its row. So does a stream that is one packet: where
   that ends is only known at the end of the stream, and it is small.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. The order of a context's bits is that of `place`.

Axis: r = rows, one a message.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.rmp.layout import FLAGS, FOREIGN, LAYER_MASK, PREFIX_BYTES
from wireyard.formats.rmp.place import (
    BEFORE_BITS,
    BEFORE_SHIFT,
    FRAMED,
    LEFT_BITS,
    LEFT_SHIFT,
    LIST_ORDER_BIT,
    PLACE_SHIFT,
)
from wireyard.memory import Bytes, copy_bytes, load_u8, load_u16, put_i64

__all__ = ["BITS", "I32_FIELDS", "SOURCE_BYTES", "fill_rows", "scan_frames"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Offsets = np.ndarray[tuple[int], np.dtype[np.int32]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

I32_FIELDS: Final = (
    "message_in_packet",
    "typing",
    "layer",
    "message_number",
    "packet_number",
    "packet_count",
    "domain",
    "client",
    "reply_message_number",
)
BITS: Final = (
    "layer",
    "message_number",
    "domain",
    "client",
    "reply_message_number",
    "foreign",
    "reply_requested",
    "more_follows",
)
"""Rows of bitmaps: where columns have values, then the values of those that are true or false."""
SOURCE_BYTES: Final = 32
"""Most bytes that writing a source takes: 21 characters, and what is written past them."""

_SEGMENT, _DOMAIN, _CLIENT, _REPLY_TO, _MORE, _REQUESTED = FLAGS.values()
_LEFT_MASK: Final = (1 << LEFT_BITS) - 1
_BEFORE_MASK: Final = (1 << BEFORE_BITS) - 1
_DIALECT: Final = FRAMED | LIST_ORDER_BIT


@piece
def find_fields(word: int, list_order: bool) -> tuple[int, int, int, int, int]:
    """Return where the fields of a message stand after its typing word, and where its data does.

    Domain, client, reply-to, length, data; the segment is always first. A field that is not there
    stands nowhere.
    """
    domain = 2 + 6 * (word & _SEGMENT != 0)
    client = domain + 2 * (word & _DOMAIN != 0)
    rest = client + 2 * (word & _CLIENT != 0)
    reply, length = 8 * (word & _REPLY_TO != 0), 2 * (word & _MORE != 0)
    if list_order:
        return domain, client, rest + length, rest, rest + length + reply
    return domain, client, rest, rest + reply, rest + length + reply


@piece
def message_size(data: Bytes, start: int, size: int, left: int, list_order: bool) -> int:
    """Return the size of a message, or -1 where it breaks a rule.

    `size` bytes may be read; its packet has `left`.
    """
    if size < 2:
        return -1
    word = load_u16(data, start)
    if word >= FOREIGN:
        return left
    _, _, _, length_at, data_at = find_fields(word, list_order)
    if data_at > size:
        return -1
    if word & _SEGMENT:
        number = load_u16(data, start + 4)
        if number == 0 or number > load_u16(data, start + 6):
            return -1
    if word & _MORE == 0:
        return left
    size = data_at + load_u16(data, start + length_at)
    return size if size < left else -1  # Another message has to follow.


@piece
def is_packet(data: Bytes, start: int, left: int, list_order: bool) -> bool:
    """Return whether all messages of a packet of `left` bytes keep the rules."""
    while left > 0:
        size = message_size(data, start, left, left, list_order)
        if size < 0:
            return False
        start += size
        left -= size
        if left == 0:
            return True
    return False


@kernel(I64(READ, I64, I64, I64, I64, I64, array("int64"), array("int64"), array("int64")))
def scan_frames(
    data: Bytes,
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    context: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
) -> int:
    """Find messages that follow each other from `start`; return how many.

    `contexts` has one more than there are messages. Stops before a packet that is not all there or
    breaks a rule, before a message that begins at or after `last_start`, and at full arrays.
    """
    contexts[0] = context
    dialect = context & _DIALECT
    list_order = context & LIST_ORDER_BIT != 0
    place, before = context >> PLACE_SHIFT, context >> BEFORE_SHIFT & _BEFORE_MASK
    left = context >> LEFT_SHIFT & _LEFT_MASK
    count = 0
    while context & FRAMED and count < starts.shape[0] and start < last_start:
        head = 0
        if place == 0:
            if stop - start < PREFIX_BYTES:
                break
            head = PREFIX_BYTES
            before, left = 0, head + load_u16(data, start)
            if left > max_packet_bytes or left > stop - start:
                break
            if not is_packet(data, start + head, left - head, list_order):
                break
        elif left > stop - start:
            break
        size = message_size(data, start + head, left - head, left - head, list_order)
        if size < 0:
            break
        size += head
        starts[count] = start
        sizes[count] = size
        count += 1
        start += size
        before += size
        left -= size
        place = place + 1 if left else 0
        contexts[count] = dialect
        if left:
            contexts[count] |= place << PLACE_SHIFT | before << BEFORE_SHIFT | left << LEFT_SHIFT
    return count


@piece
def put_source(out: Bytes, at: int, data: Bytes, start: int) -> int:
    """Write a process id as address and port."""
    for place in range(4):
        at = put_i64(out, at, load_u8(data, start + place))
        out[at] = 46
        at += 1
    out[at - 1] = 58
    return put_i64(out, at, load_u16(data, start + 4))


_INTS = array("int64")
_OFFSETS = array("int32")
_GRID32, _GRID8 = array("int32", 2), array("uint8", 2)


@kernel(
    I64(
        READ, _INTS, _INTS, _INTS, _GRID32, _INTS, _INTS, _GRID8,
        TEXT, _OFFSETS, TEXT, _OFFSETS, TEXT,
    )
)  # fmt: skip
def fill_rows(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    i32: Grid32,
    packet_offsets: Ints,
    data_sizes: Ints,
    bits: Grid8,
    sources: Bytes,
    source_offsets: Offsets,
    bodies: Bytes,
    body_offsets: Offsets,
    rejected: Bytes,
) -> int:
    """Fill the columns of the messages at `starts`; return how many there are.

    Shapes: i32 (field, r); packet_offsets, data_sizes, rejected (r); bits (`BITS`, r / 8);
    source_offsets, body_offsets (r + 1); sources, bodies as long as all rows can need, or empty:
    then they are left out. Zero at first: bits, rejected, and the first of all offsets.
    """
    rows = starts.shape[0]
    source_at = body_at = 0
    for row in range(rows):
        start, size, context = starts[row], sizes[row], contexts[row]
        place, left = context >> PLACE_SHIFT, context >> LEFT_SHIFT & _LEFT_MASK
        head = 0
        if place == 0 and size >= PREFIX_BYTES:
            head = PREFIX_BYTES
            left = head + load_u16(data, start)
        list_order = context & LIST_ORDER_BIT != 0
        i32[0, row] = place
        packet_offsets[row] = -(context >> BEFORE_SHIFT & _BEFORE_MASK)
        start += head
        size -= head
        found = message_size(data, start, size, left - head, list_order)
        good = found == size and size > 0 and context & FRAMED != 0
        rejected[row] = not good
        if good:
            word = load_u16(data, start)
            i32[1, row] = word
            data_at, byte, bit = 0, row >> 3, row & 7
            if word >= FOREIGN:
                bits[5, byte] |= 1 << bit
            else:
                domain_at, client_at, reply_at, _, data_at = find_fields(word, list_order)
                i32[2, row] = word & LAYER_MASK
                bits[0, byte] |= 1 << bit
                bits[6, byte] |= (word & _REQUESTED != 0) << bit
                bits[7, byte] |= (word & _MORE != 0) << bit
                if word & _SEGMENT:
                    bits[1, byte] |= 1 << bit
                    for field in range(3):
                        i32[3 + field, row] = load_u16(data, start + 2 + 2 * field)
                if word & _DOMAIN:
                    bits[2, byte] |= 1 << bit
                    i32[6, row] = load_u16(data, start + domain_at)
                if word & _CLIENT:
                    bits[3, byte] |= 1 << bit
                    i32[7, row] = load_u16(data, start + client_at)
                if word & _REPLY_TO:
                    bits[4, byte] |= 1 << bit
                    i32[8, row] = load_u16(data, start + reply_at)
                    if sources.shape[0]:
                        source_at = put_source(sources, source_at, data, start + reply_at + 2)
            data_sizes[row] = size - data_at
            if bodies.shape[0]:
                copy_bytes(bodies, body_at, data, start + data_at, size - data_at)
                body_at += size - data_at
        source_offsets[row + 1] = source_at
        body_offsets[row + 1] = body_at
    return rows
