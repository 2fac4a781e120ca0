"""Kernel passes that write text from headers: addresses, SysMessageIDs.

Also the number of a destination, which is a hash of its text. The rules of ``...jmq.kernels`` hold
here too. Axis: r = rows.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes, Ints
from wireyard.formats.jmq import kernel_columns as c
from wireyard.formats.jmq.items import DESTINATION_KINDS
from wireyard.formats.jmq.layout import FLAGS, HEADERS
from wireyard.formats.property_kernels import Columns, Texts, word_of
from wireyard.memory import (
    SLACK,
    copy_text,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_word,
    place_of,
    put_i64,
    store_word,
)

_CRC: Final = 256
_CRC_MASK: Final = 0xFFFFFFFF
_CRC_TOPIC, _CRC_QUEUE = (zlib.crc32(kind) for kind in DESTINATION_KINDS)
_QUEUE: Final = FLAGS["Q"]
_SOURCE_IP_AT, _SOURCE_PORT_AT, _SEQUENCE_AT, _TIMESTAMP_AT = (
    HEADERS[301][name].offset for name in ("source_ip", "source_port", "sequence", "timestamp")
)


def _tables() -> tuple[Ints, Ints]:
    """Return the texts of octets and then the table of CRC-32, as words; lengths of the texts."""
    octets = [str(value) for value in range(256)]
    # The table entry of a byte, derived from the CRC-32 of that byte alone.
    crc = [zlib.crc32(bytes((value ^ 0xFF,))) ^ 0xFF000000 for value in range(256)]
    lengths = np.array([len(text) for text in octets], np.int64)
    return np.array([*map(word_of, octets), *crc], np.int64), lengths


_WORDS, _LENGTHS = _tables()


@inlined
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


@inlined
def put_address(out: Bytes, at: int, data: Bytes, start: int) -> int:
    """Write 16 address bytes as text, as ``wireyard.formats.message_id`` does."""
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
        octet = load_u8(data, start + 12 + place)
        store_word(out, at, _WORDS[octet])
        at += _LENGTHS[octet]
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


@inlined
def fill_ids(
    data: Bytes,
    starts: Ints,
    columns: Columns,
    texts: Texts,
    first: int,
    last: int,
) -> None:
    """Fill the text of sender addresses and of SysMessageIDs."""
    text, offsets, rejected = texts.text, columns.text_offsets, columns.rejected
    addresses_from, ids_from = c.ADDRESS * texts.capacity, c.MESSAGE_ID * texts.capacity
    at = addresses_from + texts.used[c.ADDRESS]
    id_at = ids_from + texts.used[c.MESSAGE_ID]
    same = address_at = address_size = 0
    for number in range(first, last):
        row = place_of(number)
        if rejected[row]:
            offsets[c.ADDRESS, row + 1] = at - addresses_from
            offsets[c.MESSAGE_ID, row + 1] = id_at - ids_from
            continue
        start = starts[row]
        source = start + _SOURCE_IP_AT
        if address_size > 0 and (
            load_word(data, source) == load_word(data, same)
            and load_word(data, source + 8) == load_word(data, same + 8)
        ):
            copy_text(text, at, text, address_at, address_size, at + SLACK)
        else:
            same = source
            address_size = put_address(text, at, data, same) - at
        address_at = at
        at += address_size
        id_at = put_i64(text, id_at, load_i32(data, start + _SEQUENCE_AT))
        text[id_at] = 45
        copy_text(text, id_at + 1, text, address_at, address_size, at + SLACK)
        id_at += 1 + address_size
        text[id_at] = 45
        id_at = put_i64(text, id_at + 1, load_i32(data, start + _SOURCE_PORT_AT))
        text[id_at] = 45
        id_at = put_i64(text, id_at + 1, load_i64(data, start + _TIMESTAMP_AT))
        offsets[c.ADDRESS, row + 1] = at - addresses_from
        offsets[c.MESSAGE_ID, row + 1] = id_at - ids_from
    texts.used[c.ADDRESS] = at - addresses_from
    texts.used[c.MESSAGE_ID] = id_at - ids_from


@inlined
def same_text(text: Bytes, start: int, other: int, size: int) -> bool:
    """Return whether `size` bytes at two positions are equal."""
    at = 0
    while size - at >= 8:
        if load_word(text, start + at) != load_word(text, other + at):
            return False
        at += 8
    while at < size:
        if load_u8(text, start + at) != load_u8(text, other + at):
            return False
        at += 1
    return True


@inlined
def fill_hashes(columns: Columns, texts: Texts, first: int, last: int) -> None:
    """Fill the numbers of destinations.

    CRC-32 takes several cycles per byte, so a destination equal to the one before is not hashed
    again.
    """
    text, offsets = texts.text, columns.text_offsets[c.DESTINATION]
    flags, hashes = columns.i32[c.BIT_FLAGS], columns.i64[c.DESTINATION_HASH]
    start = c.DESTINATION * texts.capacity
    before, before_size, before_kind = 0, -1, 0
    crc = 0
    for number in range(first, last):
        row = place_of(number)
        at = start + offsets[row]
        size = offsets[row + 1] - offsets[row]
        kind = flags[row] & _QUEUE
        if size != before_size or kind != before_kind or not same_text(text, at, before, size):
            crc = (_CRC_QUEUE if kind else _CRC_TOPIC) ^ _CRC_MASK
            for place in range(at, at + size):
                crc = _WORDS[_CRC + ((crc ^ load_u8(text, place)) & 255)] ^ (crc >> 8)
            crc ^= _CRC_MASK
            before, before_size, before_kind = at, size, kind
        hashes[row] = crc
