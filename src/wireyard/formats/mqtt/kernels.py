"""Control packets to columns, the common case: compiled loops over frames of one window.

Rules of this file:

1. A kernel answers only what it is sure of: PUBLISH, the four acknowledgements in two bytes,
   PINGREQ, PINGRESP, DISCONNECT without a reason. Every other packet, the version of 1999, and
   every broken rule is marked in `rejected`, and the scalar reader gives its row.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. Each group of columns has a pass of its own over a block of rows; a group that nobody asked for
   costs nothing. What one pass rejects the next leaves out.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    FIXED_FLAGS,
    PACKET_TYPES,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    VERSION_BITS,
)
from wireyard.formats.mqtt.property_kernels import KINDS, take_properties
from wireyard.formats.mqtt.topic_kernels import has_forbidden
from wireyard.memory import (
    AHEAD_BYTES,
    LINE,
    Bytes,
    bit_column,
    copy_text,
    load_u8,
    load_u16,
    load_word,
    place_of,
    prefetch_lines,
    store_word,
    valid_utf8,
)

__all__ = [
    "BITS",
    "BLOCK_ROWS",
    "I32_FIELDS",
    "I64_FIELDS",
    "MAX_NAME_BYTES",
    "MAX_SCRATCH_BYTES",
    "PLACES",
    "TABLES",
    "WANT",
    "fill_rows",
    "scan_frames",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Offsets = np.ndarray[tuple[int], np.dtype[np.int32]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid64 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

I32_FIELDS: Final = (
    "packet_type",
    "flags",
    "remaining_length_bytes",
    "qos",
    "packet_id",
    "version_in_force",
)
I64_FIELDS: Final = ("remaining_length", "payload_size")
BITS: Final = (
    "dup",
    "retain",
    "is publish",
    "has qos",
    "has packet id",
    "has properties",
    "has version",
)
"""Two columns, and what says where a column is not null; each a row of bitmaps."""
WANT: Final = {"names": 1, "topics": 2, "payloads": 4, "properties": 8}
"""Groups of columns that cost something; a group that nobody asked for is left out."""
_NAMES_WANTED, _TOPICS_WANTED, _PAYLOADS_WANTED, _PROPERTIES_WANTED = WANT.values()
_NAME_PLACE, _TOPIC_PLACE, _PAYLOAD_PLACE, _LIST_PLACE = range(len(WANT))
MAX_NAME_BYTES: Final = max(map(len, PACKET_TYPES.values()))
MAX_SCRATCH_BYTES: Final = 65_535 + 127
"""Of one packet: a topic, and the properties that one byte of Property Length allows."""

PLACES: Final = 3
"""Where a packet's topic, properties and payload begin."""
_TOPIC_AT, _PROPERTIES_AT, _PAYLOAD_AT = range(PLACES)
BLOCK_ROWS: Final = 1024
"""Rows that go through all passes together: what they read and write stays in the cache."""
_ROW_OF_BLOCK: Final = BLOCK_ROWS - 1
_IS_PUBLISH, _HAS_PACKET_ID, _HAS_PROPERTIES = (
    1 << BITS.index(name) for name in ("is publish", "has packet id", "has properties")
)
_SURE: Final = 0x80
"""Beside those bits: nothing is wrong with the byte, and the packet is one answered here."""
_NAME_WORDS: Final = 2
_KINDS: Final = 16


def _names() -> tuple[Ints, Ints]:
    """Return the names of the types as words, and their lengths."""
    words, lengths = [], []
    for kind in range(_KINDS):
        raw = PACKET_TYPES.get(kind, "").encode()
        whole = raw.ljust(8 * _NAME_WORDS, b"\0")
        words += [int.from_bytes(whole[at : at + 8], "little") for at in (0, 8)]
        lengths.append(len(raw))
    return np.array(words, np.int64), np.array(lengths, np.int64)


def _first_byte(version: int, kind: int, flags: int) -> int:
    """Return what a first byte says where `version` is in force: `BITS`, and `_SURE`."""
    publish, numbered = kind == PUBLISH, PUBACK <= kind <= PUBCOMP
    if publish:
        sure = flags & 6 != 6 and (flags & 6 != 0 or flags < 8 or version < 4)
    else:
        sure = flags == FIXED_FLAGS.get(kind) and (numbered or PINGREQ <= kind <= DISCONNECT)
    bits = (
        flags & 8,
        flags & 1,
        publish,
        publish or (kind == PUBREL and version == 3),
        numbered or (publish and flags & 6),
        publish and version == 5,
        version,
    )
    said = sum(1 << place for place, bit in enumerate(bits) if bit)
    return said | (_SURE if sure and version != 2 else 0)


def _first_bytes() -> Bytes:
    """Return what every first byte says, by version and byte."""
    said = [
        _first_byte(version, byte >> 4, byte & 15)
        for version in range(VERSION_BITS + 1)
        for byte in range(256)
    ]
    return np.array(said, np.uint8)


TABLES: Final = (*_names(), _first_bytes(), np.array(KINDS, np.int64))
"""Names of types as words, their lengths, what first bytes say, the rules of properties."""

_INTS = array("int64")
_OFFSETS = array("int32")
_GRID32, _GRID64, _GRID8 = array("int32", 2), array("int64", 2), array("uint8", 2)


@kernel(I64(READ, I64, I64, I64, I64, I64, _INTS, _INTS))
def scan_frames(
    data: Bytes,
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    context: int,
    starts: Ints,
    sizes: Ints,
) -> int:
    """Find whole packets that follow each other from `start` in one context; return how many.

    Stops before anything else: bytes that need more, bytes that begin no packet, a packet that
    could change the context or begins at or after `last_start`, full arrays.
    """
    count = 0
    ahead = start
    known = context & VERSION_BITS != 0
    while count < starts.shape[0] and start < last_start and stop - start >= 2:
        kind = load_u8(data, start) >> 4
        if kind == CONNECT or (kind == CONNACK and not known):
            break
        digit = load_u8(data, start + 1)
        length = digit & 0x7F
        at = start + 2
        while digit >= 0x80 and at < stop and at < start + 5:
            digit = load_u8(data, at)
            length |= (digit & 0x7F) << 7 * (at - start - 1)
            at += 1
        size = at - start + length
        if digit >= 0x80 or size > max_packet_bytes or size > stop - start:
            break
        ahead = prefetch_lines(data, max(ahead, start), min(start + AHEAD_BYTES, stop))
        starts[count] = start
        sizes[count] = size
        count += 1
        start += size
    return count


@piece
def fill_numbers(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    i32: Grid32,
    i64: Grid64,
    places: Grid64,
    said: Bytes,
    rejected: Bytes,
    first_bytes: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the columns of a fixed width, find out where texts are, and ask for their memory.

    Conditions are joined by bits, not by branches: which QoS comes next cannot be predicted.
    """
    for number in range(first, last):
        row = place_of(number)
        start = starts[row]
        end = start + sizes[row]
        prefetch_lines(data, start + LINE, start + min(sizes[row], AHEAD_BYTES))
        byte = load_u8(data, start)
        version = contexts[row] & VERSION_BITS
        says = load_u8(first_bytes, version << 8 | byte)
        at = start + 1
        while load_u8(data, at) >= 0x80:
            at += 1
        # The last byte of a length is 0 only if it is the only one, or one too many.
        sure = (says >= _SURE) & ((at == start + 1) | (load_u8(data, at) != 0))
        at += 1
        qos = byte >> 1 & 3
        i32[0, row] = byte >> 4
        i32[1, row] = byte & 15
        i32[2, row] = at - start - 1
        i32[3, row] = qos
        i64[0, row] = end - at
        id_at = payload_at = at
        if says & _IS_PUBLISH:
            size = load_u16(data, min(at, stop - 2))
            id_at = at + 2 + size
            listed_at = payload_at = id_at + 2 * (qos != 0)
            if says & _HAS_PROPERTIES:
                # Property Length of one byte; longer ones are rare.
                length = load_u8(data, min(listed_at, stop - 1))
                sure &= length < 0x80
                listed_at += 1
                payload_at = listed_at + length
            sure &= (end - at >= 2) & (payload_at <= end)
            sure &= (size > 0) | (payload_at > listed_at)
            sure &= (qos == 0) | (load_u16(data, min(id_at, stop - 2)) != 0)
            places[_TOPIC_AT, row & _ROW_OF_BLOCK] = at + 2
            places[_PROPERTIES_AT, row & _ROW_OF_BLOCK] = listed_at
            places[_PAYLOAD_AT, row & _ROW_OF_BLOCK] = payload_at
        else:
            sure &= end - at == 2 * (says & _HAS_PACKET_ID != 0)  # nothing but that
        i32[4, row] = load_u16(data, min(id_at, stop - 2))
        i32[5, row] = version
        i64[1, row] = end - payload_at
        said[row & _ROW_OF_BLOCK] = says
        rejected[row] = not sure


@piece
def fill_bits(said: Bytes, bits: Grid8, first: int, last: int) -> None:
    """Fill the columns of one bit, and what says where others are not null, eight rows at once."""
    for row in range(first, last, 8):
        word = load_word(said, row & _ROW_OF_BLOCK)
        for place in range(len(BITS)):
            bits[place, row >> 3] = bit_column(word, place)


@piece
def fill_names(
    i32: Grid32, names: Bytes, offsets: Grid32, words: Ints, lengths: Ints, first: int, last: int
) -> None:
    """Fill the names of packet types."""
    at = offsets[_NAME_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        kind = i32[0, row]
        store_word(names, at, words[_NAME_WORDS * kind])
        store_word(names, at + 8, words[_NAME_WORDS * kind + 1])
        at += lengths[kind]
        offsets[_NAME_PLACE, row + 1] = at


@piece
def fill_topics(
    data: Bytes,
    stop: int,
    places: Grid64,
    i32: Grid32,
    topics: Bytes,
    offsets: Grid32,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the topics, and reject packets whose topic breaks a rule."""
    begin = at = offsets[_TOPIC_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        if i32[0, row] == PUBLISH and not rejected[row]:
            start = places[_TOPIC_AT, row & _ROW_OF_BLOCK]
            size = load_u16(data, start - 2)
            foreign = copy_text(topics, at, data, start, size, stop)
            if foreign and not valid_utf8(data, start, size):
                rejected[row] = 1
            else:
                at += size
        offsets[_TOPIC_PLACE, row + 1] = at
    # All of them at once: almost never is there one.
    if has_forbidden(topics, begin, at):
        for row in range(first, last):
            if has_forbidden(topics, offsets[_TOPIC_PLACE, row], offsets[_TOPIC_PLACE, row + 1]):
                rejected[row] = 1


@piece
def fill_payloads(
    data: Bytes,
    stop: int,
    places: Grid64,
    i32: Grid32,
    i64: Grid64,
    payloads: Bytes,
    offsets: Grid32,
    rejected: Bytes,
    first: int,
    last: int,
) -> None:
    """Fill the payloads."""
    at = offsets[_PAYLOAD_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        if i32[0, row] == PUBLISH and not rejected[row]:
            size = i64[1, row]
            copy_text(payloads, at, data, places[_PAYLOAD_AT, row & _ROW_OF_BLOCK], size, stop)
            at += size
        offsets[_PAYLOAD_PLACE, row + 1] = at


@piece
def fill_properties(
    data: Bytes,
    places: Grid64,
    i32: Grid32,
    text: Bytes,
    codes: Offsets,
    entry_offsets: Offsets,
    offsets: Grid32,
    rejected: Bytes,
    kinds: Ints,
    first: int,
    last: int,
) -> None:
    """Fill the properties of PUBLISH; before 5.0 it has none."""
    entry = offsets[_LIST_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        if i32[0, row] == PUBLISH and not rejected[row]:
            start = places[_PROPERTIES_AT, row & _ROW_OF_BLOCK]
            end = places[_PAYLOAD_AT, row & _ROW_OF_BLOCK]
            if end > start:
                unnamed = load_u16(data, places[_TOPIC_AT, row & _ROW_OF_BLOCK] - 2) == 0
                after = take_properties(
                    data, start, end, text, entry_offsets[entry], codes, entry_offsets, entry,
                    kinds, unnamed,
                )  # fmt: skip
                if after < 0:
                    rejected[row] = 1
                else:
                    entry = after
        offsets[_LIST_PLACE, row + 1] = entry


@kernel(
    I64(
        READ, I64, _INTS, _INTS, _INTS, I64, _GRID32, _GRID64, _GRID64, TEXT, _GRID8, TEXT, TEXT,
        TEXT, TEXT, TEXT, _OFFSETS, _OFFSETS, _GRID32, _INTS, _INTS, READ, _INTS,
    )
)  # fmt: skip
def fill_rows(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    wanted: int,
    i32: Grid32,
    i64: Grid64,
    places: Grid64,
    said: Bytes,
    bits: Grid8,
    rejected: Bytes,
    names: Bytes,
    topics: Bytes,
    payloads: Bytes,
    text: Bytes,
    codes: Offsets,
    entry_offsets: Offsets,
    offsets: Grid32,
    words: Ints,
    lengths: Ints,
    first_bytes: Bytes,
    kinds: Ints,
) -> int:
    """Fill the wanted columns of the packets at `starts`; return how many there are.

    Shapes: i32, i64 (field, r); places (`PLACES`, `BLOCK_ROWS`); said (`BLOCK_ROWS`); bits (`BITS`,
    r / 8); rejected (r); names, topics, payloads and the text of properties: their bytes, and
    slack; codes (e); entry_offsets (e + 1); offsets (group, r + 1). Zero at first: the first of
    all offsets.
    """
    rows = starts.shape[0]
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        fill_numbers(
            data, stop, starts, sizes, contexts, i32, i64, places, said, rejected, first_bytes,
            first, last,
        )  # fmt: skip
        fill_bits(said, bits, first, last)
        if wanted & _NAMES_WANTED:
            fill_names(i32, names, offsets, words, lengths, first, last)
        if wanted & _TOPICS_WANTED:
            fill_topics(data, stop, places, i32, topics, offsets, rejected, first, last)
        if wanted & _PROPERTIES_WANTED:
            fill_properties(
                data, places, i32, text, codes, entry_offsets, offsets, rejected, kinds,
                first, last,
            )  # fmt: skip
        if wanted & _PAYLOADS_WANTED:
            fill_payloads(data, stop, places, i32, i64, payloads, offsets, rejected, first, last)
    return rows
