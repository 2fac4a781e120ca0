"""JMQ packets to columns, the common case: compiled loops over frames of one window.

Rules of this file:

1. A kernel answers only what it is sure of. A packet with anything rare about it (version 103,
   serialized properties, an unknown or repeated item, text that is not plain UTF-8, an OBJECT
   property, any broken rule) is marked in `rejected`, and the scalar reader gives its row.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. Text goes to one region of `text` per column, `capacity` bytes apart. Twice the window is
   enough for each: the worst case is a double of 13 bytes (name 3, type 2, value 8) printed with
   24 characters; an id of 92 characters has a packet of 72 bytes.

Axes: r = rows, e = properties of all rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.decimals import put_double, put_float
from wireyard.formats.jmq.layout import FLAGS, HEADER_BYTES, ITEMS, MAGIC, PACKET_TYPES
from wireyard.formats.properties import TYPES
from wireyard.memory import (
    SLACK,
    Bytes,
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
    prefetch,
    put_i64,
    store_word,
    valid_utf8,
)

__all__ = [
    "BITS",
    "I32_FIELDS",
    "I64_FIELDS",
    "MAX_UNIQUE_NAMES",
    "TABLES",
    "TEXTS",
    "WANT",
    "count_body_bytes",
    "fill_rows",
    "scan_frames",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid64 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

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
)
TEXTS: Final = (
    "packet_type_name",
    "source_ip_text",
    "flags",
    "sys_message_id",
    *(ITEMS[code].name for code in range(1, 8)),
    "property name",
    "property type",
    "property value",
)
BITS: Final = (
    "packet_type_name",
    *(ITEMS[code].name for code in range(1, 12)),
    "properties",
    "body",
)
"""Columns that can be null, each a row of the validity bitmap; 1 to 11 are the item's type."""

WANT: Final = {"items": 1, "properties": 2, "body": 4, "address": 8, "id": 16, "names": 32}
"""Groups of columns that cost something; a kernel leaves out the groups that nobody asked for."""

_ITEMS, _PROPERTIES, _BODY, _ADDRESS, _ID, _NAMES = WANT.values()
_NAME, _TYPE, _VALUE = 11, 12, 13
_PROPERTIES_BIT, _BODY_BIT = 12, 13
_DELIVERY_COUNT = I32_FIELDS.index("delivery_count")
_TRANSACTION_ID = I64_FIELDS.index("transaction_id")
MAX_UNIQUE_NAMES: Final = 64
"""Names are compared each with each up to this count; the scalar reader takes longer lists."""

_LOW, _HIGH, _OCTETS, _TYPE_WORDS, _TYPE_NAMES = 0, 256, 288, 544, 554
_NAME_WORDS = 4
_KNOWN_TYPES = max(PACKET_TYPES) + 1

_WIDTHS: Final = 0x84842110
"""Bytes of a value by its type code, one hexadecimal digit each, from type 0 at the right."""
_AHEAD_BYTES: Final = 4096
"""How far ahead of the walk memory is asked for: what it sends while one answer is waited for."""


def _word(text: str) -> int:
    return int.from_bytes(text.encode("ascii")[:8].ljust(8, b"\0"), "little")


def _tables() -> tuple[Ints, Ints]:
    """Return short texts as words, and their lengths at the same places."""
    letters = list(FLAGS)
    low = ["".join(letters[b] for b in range(8) if v >> b & 1) for v in range(256)]
    high = ["".join(letters[8 + b] for b in range(5) if v >> b & 1) for v in range(32)]
    octets = [str(value) for value in range(256)]
    kinds = ["", *TYPES.values()]
    words = [_word(text) for text in (*low, *high, *octets, *kinds)]
    lengths = [len(text) for text in (*low, *high, *octets, *kinds)]
    for code in range(_KNOWN_TYPES):
        name = PACKET_TYPES.get(code, "")
        words += [_word(name[at : at + 8]) for at in range(0, 8 * _NAME_WORDS, 8)]
        lengths += [len(name)] * _NAME_WORDS
    return np.array(words, np.int64), np.array(lengths, np.int64)


TABLES: Final = _tables()
"""Flag letters, octets, property types and packet type names as words, and their lengths."""


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
        # The next start hangs on a size that is not in the cache yet: ask for it early.
        ahead = max(ahead, start)
        while ahead < min(start + _AHEAD_BYTES, stop):
            prefetch(data, ahead)
            ahead += 64
        starts[count] = start
        sizes[count] = size
        count += 1
        start += size
    return count


@kernel(I64(READ, array("int64"), array("int64")))
def count_body_bytes(data: Bytes, starts: Ints, sizes: Ints) -> int:
    """Return how many bytes the bodies of the packets have, or more where headers lie."""
    total = 0
    for row in range(starts.shape[0]):
        sections = load_i32(data, starts[row] + 52) + load_i32(data, starts[row] + 56)
        total += min(max(sizes[row] - sections, 0), sizes[row])
    return total


@piece
def put_hex(out: Bytes, at: int, value: int) -> int:
    """Write up to 16 bits as lowercase hex without leading zeros."""
    shift = 12
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        digit = (value >> shift) & 15
        out[at] = digit + 48 + (digit > 9) * 39
        at += 1
        shift -= 4
    return at


@piece
def put_address(out: Bytes, at: int, data: Bytes, start: int, words: Ints, lengths: Ints) -> int:
    """Write 16 address bytes in the text form of ``wireyard.formats.jmq.address``."""
    head = load_i64(data, start)
    mapped = head == 0 and load_u32(data, start + 8) == 0x0000FFFF
    with_mac = (head >> 32) & 0xFFFFFFFF == 0xFF000000
    if not mapped and not with_mac:
        for group in range(8):
            if group > 0:
                out[at] = 58
                at += 1
            at = put_hex(out, at, load_u16(data, start + 2 * group))
        return at
    for place in range(4):
        octet = _OCTETS + load_u8(data, start + 12 + place)
        store_word(out, at, words[octet])
        at += lengths[octet]
        out[at] = 46
        at += 1
    at -= 1
    if with_mac and not mapped:
        for place in range(6):
            out[at] = 40 if place == 0 else 58
            at = put_hex(out, at + 1, load_u8(data, start + 4 + place))
        out[at] = 41
        at += 1
    return at


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
    """Read the variable header; return a bit per item type that is there, or -1 for a rejection."""
    seen = 0
    if at == end:
        return seen
    while end - at >= 2:
        code = load_u16(data, at)
        if code == 0:
            return seen
        if end - at < 4 or code > 11:
            return -1
        size = load_u16(data, at + 2)
        at += 4
        if size > end - at or seen >> code & 1:
            return -1
        seen |= 1 << code
        if code <= 7:
            column = 3 + code
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


@piece
def put_value(out: Bytes, at: int, data: Bytes, start: int, kind: int, words: Ints) -> int:
    """Write a property value of a fixed width in the JMS string conversion."""
    if kind == 4:
        return put_i64(out, at, load_i32(data, start))
    if kind == 5:
        return put_i64(out, at, load_i64(data, start))
    if kind == 7:
        return put_double(out, at, load_i64(data, start))
    if kind == 6:
        return put_float(out, at, load_i32(data, start))
    if kind == 3:
        return put_i64(out, at, load_i16(data, start))
    if kind == 2:
        return put_i64(out, at, load_i8(data, start))
    truth = load_u8(data, start) != 0
    store_word(out, at, 0x65757274 if truth else 0x65736C6166)
    return at + (4 if truth else 5)


@piece
def is_new_name(data: Bytes, at: int, size: int, hashes: Ints, count: int) -> bool:
    """Tell whether no earlier name of the packet can be the same; note this one."""
    if size >= 8:
        word = load_word(data, at) ^ (load_word(data, at + size - 8) * 31)
    else:
        word = 0
        for place in range(size):
            word = word << 8 | load_u8(data, at + place)
    word = word * 31 + size
    new = True
    for earlier in range(count):
        new = new and hashes[earlier] != word
    hashes[count] = word
    return new


@piece
def take_properties(
    data: Bytes,
    at: int,
    end: int,
    stop: int,
    text: Bytes,
    capacity: int,
    used: Ints,
    entry: int,
    entry_offsets: Grid32,
    hashes: Ints,
    words: Ints,
    lengths: Ints,
) -> int:
    """Read a marshalled section; return the number of the entry after its last, -1 to reject."""
    if end - at < 8 or load_i32(data, at) != 1:
        return -1
    count = load_i32(data, at + 4)
    at += 8
    if count < 0 or count > MAX_UNIQUE_NAMES or count > (end - at) // 6:
        return -1
    for place in range(count):
        if end - at < 2:
            return -1
        size = load_u16(data, at)
        at += 2
        if size == 0 or size + 2 > end - at:
            return -1
        if not is_new_name(data, at, size, hashes, place):
            return -1
        out_at = _NAME * capacity + used[_NAME]
        if copy_text(text, out_at, data, at, size, stop) and not valid_utf8(data, at, size):
            return -1
        used[_NAME] += size
        at += size
        kind = load_i16(data, at)
        at += 2
        if kind < 1 or kind > 8:
            return -1
        store_word(text, _TYPE * capacity + used[_TYPE], words[_TYPE_WORDS + kind])
        used[_TYPE] += lengths[_TYPE_WORDS + kind]
        out_at = _VALUE * capacity + used[_VALUE]
        if kind == 8:
            if end - at < 2:
                return -1
            size = load_u16(data, at)
            at += 2
            if size > end - at:
                return -1
            if copy_text(text, out_at, data, at, size, stop) and not valid_utf8(data, at, size):
                return -1
            used[_VALUE] += size
        else:
            size = (
                8 if kind == 5 or kind == 7 else (4 if kind == 4 or kind == 6 else max(kind - 1, 1))
            )
            if size > end - at:
                return -1
            used[_VALUE] += put_value(text, out_at, data, at, kind, words) - out_at
        at += size
        entry += 1
        for column in range(3):
            entry_offsets[column, entry] = used[_NAME + column]
    return entry


_GRID32 = array("int32", 2)
_GRID64 = array("int64", 2)
_GRID8 = array("uint8", 2)


@kernel(
    I64(
        READ, I64, array("int64"), array("int64"), I64,
        _GRID32, _GRID64, TEXT, TEXT, I64, array("int64"), _GRID32,
        _GRID32, array("int32"), TEXT, array("int32"), _GRID8, TEXT,
        array("int64"), array("int64"), array("int64"),
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
    map_offsets: np.ndarray[tuple[int], np.dtype[np.int32]],
    bodies: Bytes,
    body_offsets: np.ndarray[tuple[int], np.dtype[np.int32]],
    bits: Grid8,
    rejected: Bytes,
    hashes: Ints,
    words: Ints,
    lengths: Ints,
) -> int:
    """Fill the columns of the packets at `starts`; return how many were rejected.

    Shapes: i32, i64 (field, r); text_offsets (text, r + 1); entry_offsets (3, e + 1); map_offsets
    and body_offsets (r + 1); bits (nullable, r / 8), all zero at first, as is `used`.
    """
    entry = 0
    body_at = 0
    bad = 0
    same_from = -1
    address_at = address_size = 0
    for row in range(starts.shape[0]):
        start = starts[row]
        size = sizes[row]
        version = load_u16(data, start + 4)
        kind = load_i16(data, start + 6)
        offset = load_i32(data, start + 52)
        property_size = load_i32(data, start + 56)
        ok = (version == 301 or (version == 200 and property_size == 0)) and (
            HEADER_BYTES <= offset <= size and 0 <= property_size <= size - offset
        )
        flags = load_u16(data, start + 62)
        body_size = size - offset - property_size
        sequence = load_i32(data, start + 48)
        port = load_i32(data, start + 44)
        timestamp = load_i64(data, start + 20)
        i32[0, row] = version
        i32[1, row] = kind
        i32[2, row] = port
        i32[3, row] = sequence
        i32[4, row] = load_i8(data, start + 60)
        i32[5, row] = load_i8(data, start + 61)
        i32[6, row] = flags
        i64[0, row] = size
        i64[1, row] = load_i64(data, start + 12)
        i64[2, row] = timestamp
        i64[3, row] = offset
        i64[4, row] = property_size
        i64[5, row] = load_i64(data, start + 64)
        i64[6, row] = body_size
        byte, bit = row >> 3, row & 7
        store_word(addresses, 16 * row, load_word(data, start + 28))
        store_word(addresses, 16 * row + 8, load_word(data, start + 36))
        if wanted & _NAMES:
            if 0 <= kind < _KNOWN_TYPES:
                name = _TYPE_NAMES + _NAME_WORDS * kind
                for place in range(_NAME_WORDS):
                    store_word(text, used[0] + 8 * place, words[name + place])
                used[0] += lengths[name]
                bits[0, byte] |= (lengths[name] > 0) << bit
            at = 2 * capacity + used[2]
            store_word(text, at, words[_LOW + (flags & 255)])
            at += lengths[_LOW + (flags & 255)]
            high = _HIGH + ((flags >> 8) & 31)
            store_word(text, at, words[high])
            used[2] = at + lengths[high] - 2 * capacity
        if wanted & _ADDRESS:
            at = capacity + used[1]
            if same_from >= 0 and (
                load_word(data, start + 28) == load_word(data, same_from)
                and load_word(data, start + 36) == load_word(data, same_from + 8)
            ):
                copy_text(text, at, text, address_at, address_size, at + SLACK)
            else:
                address_size = put_address(text, at, data, start + 28, words, lengths) - at
                same_from = start + 28
            address_at = at
            used[1] += address_size
        if wanted & _ID:
            at = put_i64(text, 3 * capacity + used[3], sequence)
            text[at] = 45
            copy_text(text, at + 1, text, address_at, address_size, at + SLACK)
            at += 1 + address_size
            text[at] = 45
            at = put_i64(text, at + 1, port)
            text[at] = 45
            used[3] = put_i64(text, at + 1, timestamp) - 3 * capacity
        if ok and wanted & _ITEMS:
            seen = take_items(
                data,
                start + HEADER_BYTES,
                start + offset,
                stop,
                row,
                text,
                capacity,
                used,
                i32,
                i64,
            )
            ok = seen >= 0
            if ok:
                for code in range(1, 12):
                    bits[code, byte] |= (seen >> code & 1) << bit
        for column in range(11):
            text_offsets[column, row + 1] = used[column]
        if ok and property_size > 0 and wanted & _PROPERTIES:
            after = take_properties(
                data, start + offset, start + offset + property_size, stop,
                text, capacity, used, entry, entry_offsets, hashes, words, lengths,
            )  # fmt: skip
            ok = after >= 0
            if ok:
                entry = after
                bits[_PROPERTIES_BIT, byte] |= 1 << bit
            else:
                for column in range(3):
                    used[_NAME + column] = entry_offsets[column, entry]
        map_offsets[row + 1] = entry
        if ok and body_size > 0 and wanted & _BODY:
            copy_bytes(bodies, body_at, data, start + offset + property_size, body_size)
            body_at += body_size
            bits[_BODY_BIT, byte] |= 1 << bit
        body_offsets[row + 1] = body_at
        if not ok:
            rejected[row] = 1
            bad += 1
    return bad
