"""Compiled decoder of messages of framed packets: from a window to columns.

Rules of this file:

1. A packet that breaks a rule ends a scan and is marked in `rejected`, and the scalar reader
   decodes its row. It also decodes streams that are one packet, which are small, and whose end is
   known only at the end of the stream.
2. Nothing is read at or after `stop`; a length is compared with the bytes left before it is used.
3. ``context.py`` defines the bits of a context.

Axis: r = rows, one a message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid8, Grid32, Int32s, Ints, ReadOnly
from wireyard.formats.columns import Frames
from wireyard.formats.rmp.context import (
    BEFORE_BITS,
    BEFORE_SHIFT,
    FRAMED,
    LEFT_BITS,
    LEFT_SHIFT,
    LIST_ORDER_BIT,
    ORDINAL_SHIFT,
)
from wireyard.formats.rmp.layout import FLAGS, FOREIGN, LAYER_MASK, PREFIX_BYTES
from wireyard.memory import copy_bytes, load_u8, load_u16, put_i64

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
"""Bitmaps: the validity of columns, then boolean columns."""
SOURCE_BYTES: Final = 32
"""Room for a source: 21 characters, and the bytes that `put_i64` writes past them."""

_SEGMENT, _DOMAIN, _CLIENT, _REPLY_TO, _MORE, _REQUESTED = FLAGS.values()
_LEFT_MASK: Final = (1 << LEFT_BITS) - 1
_BEFORE_MASK: Final = (1 << BEFORE_BITS) - 1
_DIALECT: Final = FRAMED | LIST_ORDER_BIT


@inlined
def find_fields(word: int, list_order: bool) -> tuple[int, int, int, int, int]:
    """Return the offsets in a message of domain, client, reply-to, length and data.

    The segment always comes first. The offset of an absent field has no meaning.
    """
    domain = 2 + 6 * (word & _SEGMENT != 0)
    client = domain + 2 * (word & _DOMAIN != 0)
    rest = client + 2 * (word & _CLIENT != 0)
    reply, length = 8 * (word & _REPLY_TO != 0), 2 * (word & _MORE != 0)
    if list_order:
        return domain, client, rest + length, rest, rest + length + reply
    return domain, client, rest, rest + reply, rest + length + reply


@inlined
def message_size(data: Bytes, start: int, size: int, left: int, list_order: bool) -> int:
    """Return the size of a message, or -1 if it breaks a rule.

    `size` is the number of bytes that may be read, `left` that of the packet from here on.
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
    return size if size < left else -1  # another message has to follow


@inlined
def is_packet(data: Bytes, start: int, left: int, list_order: bool) -> bool:
    """Return whether all messages of a packet of `left` bytes are valid."""
    while left > 0:
        size = message_size(data, start, left, left, list_order)
        if size < 0:
            return False
        start += size
        left -= size
        if left == 0:
            return True
    return False


@kernel
def scan_frames(
    data: ReadOnly[Bytes],
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

    `contexts` gets one more than there are messages. Stops before an incomplete packet, before one
    that breaks a rule, before a message that begins at or after `last_start`, and when the arrays
    are full.
    """
    contexts[0] = context
    dialect = context & _DIALECT
    list_order = context & LIST_ORDER_BIT != 0
    ordinal, before = context >> ORDINAL_SHIFT, context >> BEFORE_SHIFT & _BEFORE_MASK
    left = context >> LEFT_SHIFT & _LEFT_MASK
    count = 0
    while context & FRAMED and count < starts.shape[0] and start < last_start:
        head = 0
        if ordinal == 0:
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
        ordinal = ordinal + 1 if left else 0
        contexts[count] = dialect
        if left:
            contexts[count] |= (
                ordinal << ORDINAL_SHIFT | before << BEFORE_SHIFT | left << LEFT_SHIFT
            )
    return count


@inlined
def put_source(out: Bytes, at: int, data: Bytes, start: int) -> int:
    """Write a process id as ``address:port``."""
    for place in range(4):
        at = put_i64(out, at, load_u8(data, start + place))
        out[at] = 46
        at += 1
    out[at - 1] = 58
    return put_i64(out, at, load_u16(data, start + 4))


class Columns(NamedTuple):
    """The arrays behind the columns of messages.

    Bits, `rejected` and the first of all offsets are zero before they are filled.
    """

    i32: Grid32
    """Shape (`I32_FIELDS`, r)."""
    packet_offsets: Ints
    data_sizes: Ints
    bits: Grid8
    """Shape (`BITS`, r / 8)."""
    source_offsets: Int32s
    """End offsets of the sources of rows; r + 1."""
    sources: Bytes
    """`SOURCE_BYTES` a row, or empty if the column is not wanted."""
    body_offsets: Int32s
    """End offsets of the data of rows; r + 1."""
    bodies: Bytes
    """As long as all messages, or empty if the column is not wanted."""
    rejected: Bytes
    """Whether the scalar reader has to decode a row; r."""


_ORDINAL, _TYPING, _LAYER, _NUMBERS = map(
    I32_FIELDS.index, ("message_in_packet", "typing", "layer", "message_number")
)
_DOMAINS, _CLIENTS, _REPLIES = map(I32_FIELDS.index, ("domain", "client", "reply_message_number"))
(
    _LAYER_BIT, _NUMBERS_BIT, _DOMAIN_BIT, _CLIENT_BIT, _REPLY_BIT, _FOREIGN_BIT, _REQUESTED_BIT,
    _MORE_BIT,
) = range(len(BITS))  # fmt: skip


@inlined
def set_bit(bits: Grid8, bitmap: int, row: int, value: bool) -> None:
    """Set the bit of a row if a value is true."""
    bits[bitmap, row >> 3] |= value << (row & 7)


@inlined
def fill_row(
    data: Bytes, start: int, list_order: bool, row: int, columns: Columns, source_at: int
) -> tuple[int, int]:
    """Fill the columns of one message; return the offset of its data, and the end of its source."""
    i32, bits = columns.i32, columns.bits
    word = load_u16(data, start)
    i32[_TYPING, row] = word
    if word >= FOREIGN:
        set_bit(bits, _FOREIGN_BIT, row, True)
        return 0, source_at
    domain_at, client_at, reply_at, _, data_at = find_fields(word, list_order)
    i32[_LAYER, row] = word & LAYER_MASK
    set_bit(bits, _LAYER_BIT, row, True)
    set_bit(bits, _REQUESTED_BIT, row, word & _REQUESTED != 0)
    set_bit(bits, _MORE_BIT, row, word & _MORE != 0)
    if word & _SEGMENT:
        set_bit(bits, _NUMBERS_BIT, row, True)
        for field in range(3):
            i32[_NUMBERS + field, row] = load_u16(data, start + 2 + 2 * field)
    if word & _DOMAIN:
        set_bit(bits, _DOMAIN_BIT, row, True)
        i32[_DOMAINS, row] = load_u16(data, start + domain_at)
    if word & _CLIENT:
        set_bit(bits, _CLIENT_BIT, row, True)
        i32[_CLIENTS, row] = load_u16(data, start + client_at)
    if word & _REPLY_TO:
        set_bit(bits, _REPLY_BIT, row, True)
        i32[_REPLIES, row] = load_u16(data, start + reply_at)
        if columns.sources.shape[0]:
            source_at = put_source(columns.sources, source_at, data, start + reply_at + 2)
    return data_at, source_at


@kernel
def fill_rows(data: ReadOnly[Bytes], frames: Frames, columns: Columns) -> int:
    """Fill the columns of messages; return the number of messages."""
    rows = frames.starts.shape[0]
    source_at = body_at = 0
    for row in range(rows):
        start, size, context = frames.starts[row], frames.sizes[row], frames.contexts[row]
        ordinal, left = context >> ORDINAL_SHIFT, context >> LEFT_SHIFT & _LEFT_MASK
        head = 0
        if ordinal == 0 and size >= PREFIX_BYTES:
            head = PREFIX_BYTES
            left = head + load_u16(data, start)
        list_order = context & LIST_ORDER_BIT != 0
        columns.i32[_ORDINAL, row] = ordinal
        columns.packet_offsets[row] = -(context >> BEFORE_SHIFT & _BEFORE_MASK)
        start += head
        size -= head
        valid_size = message_size(data, start, size, left - head, list_order)
        valid = valid_size == size and size > 0 and context & FRAMED != 0
        columns.rejected[row] = not valid
        if valid:
            data_at, source_at = fill_row(data, start, list_order, row, columns, source_at)
            columns.data_sizes[row] = size - data_at
            if columns.bodies.shape[0]:
                copy_bytes(columns.bodies, body_at, data, start + data_at, size - data_at)
                body_at += size - data_at
        columns.source_offsets[row + 1] = source_at
        columns.body_offsets[row + 1] = body_at
    return rows
