"""Where the parts of packets are, a block of rows at a time: pieces of ``...mqtt.kernels``.

What is found out about a block stays in one array, a run of `BLOCK_ROWS` for each thing. Bytes are
looked at in loops of a few loads each, which do not wait for one another; what follows from them is
reckoned in loops without any, which the compiler makes many rows at once of. For that nothing in
them branches, and places are unsigned.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from wireyard.accelerate import piece
from wireyard.formats.mqtt.layout import (
    CONNECT,
    DISCONNECT,
    FIXED_FLAGS,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    VERSION_BITS,
)
from wireyard.formats.mqtt.session_kernels import body_at, judge_packet, shown_version
from wireyard.memory import Bytes, bit_column, load_u8, load_u16, load_word, place_of

__all__ = [
    "BITS",
    "BLOCK_ROWS",
    "BLOCK_SIZE",
    "FIRST_BYTES",
    "I32_FIELDS",
    "I64_FIELDS",
    "JUDGED_AT",
    "PAYLOAD_AT",
    "PAYLOAD_SIZE",
    "PROPERTIES_AT",
    "TOPIC_AT",
    "TOPIC_SIZE",
    "fill_bits",
    "fill_numbers",
    "find_payloads",
    "find_topics",
    "judge_others",
    "kind_of",
    "look_at_heads",
    "look_behind_topics",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Grid64 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


class Grid(Protocol):
    """An array of integers of two axes."""

    def __setitem__(self, place: tuple[int, np.uint64], value: int, /) -> None: ...


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

BLOCK_ROWS: Final = 1024
"""Rows that go through all passes together: what they read and write stays in the cache."""
JUDGED_AT: Final = 12 * BLOCK_ROWS
"""Where how many packets `judge_others` was sure of is, and behind it their bytes."""
BLOCK_SIZE: Final = JUDGED_AT + 2
(
    _START, _SIZE, _BYTES, _SAID, _LENGTH_BYTES, _REMAINING, _ID_STOP, TOPIC_AT,
    TOPIC_SIZE, PROPERTIES_AT, PAYLOAD_AT, PAYLOAD_SIZE,
) = range(0, JUDGED_AT, BLOCK_ROWS)  # fmt: skip

# What a first byte says where a version is in force: itself, the version, `BITS`, `_SURE`.
_VERSION_AT, _BITS_AT = 8, 16
_PUBLISH_AT, _NUMBERED_AT, _LISTED_AT = (
    _BITS_AT + BITS.index(name) for name in ("is publish", "has packet id", "has properties")
)
_SURE: Final = 1 << 24
"""Nothing is wrong with the byte, and the packet is one answered here."""

_I32: Final = {
    "packet_type": (_SAID, 4, 15),
    "flags": (_SAID, 0, 15),
    "qos": (_SAID, 1, 3),
    "version_in_force": (_SAID, _VERSION_AT, VERSION_BITS),
    "remaining_length_bytes": (_LENGTH_BYTES, 0, -1),
    "packet_id": (_BYTES, 8, 0xFFFF),
}
_I64: Final = {"remaining_length": (_REMAINING, 0, -1), "payload_size": (PAYLOAD_SIZE, 0, -1)}
"""Columns of a fixed width: which run has them, and which of its bits: a shift and a mask."""
I32_FIELDS: Final = tuple(_I32)
I64_FIELDS: Final = tuple(_I64)
_I32_RUNS, _I32_SHIFTS, _I32_MASKS = zip(*_I32.values(), strict=True)
_I64_RUNS, _I64_SHIFTS, _I64_MASKS = zip(*_I64.values(), strict=True)

_LONGEST_1, _LONGEST_2, _LONGEST_3 = (128**count + count for count in (1, 2, 3))
"""The longest packets whose Remaining Length takes one byte, two, three."""


def _first_byte(version: int, kind: int, flags: int) -> int:
    """Return what a first byte says where `version` is in force."""
    publish, numbered = kind == PUBLISH, PUBACK <= kind <= PUBCOMP
    if publish:
        sure = flags & 6 != 6 and (flags & 6 != 0 or flags < 8 or version < 4)
    else:
        sure = flags == FIXED_FLAGS.get(kind) and (numbered or PINGREQ <= kind <= DISCONNECT)
    bits = (
        flags & 8,
        flags & 1,
        publish,
        publish or (kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) and version == 3),
        numbered or SUBSCRIBE <= kind <= UNSUBACK or (publish and flags & 6),
        publish and version == 5,
        version,
    )
    said = sum(1 << _BITS_AT + place for place, bit in enumerate(bits) if bit)
    said |= version << _VERSION_AT | kind << 4 | flags
    return said | (_SURE if sure and version != 2 else 0)


FIRST_BYTES: Final[Ints] = np.array(
    [
        _first_byte(version, byte >> 4, byte & 15)
        for version in range(VERSION_BITS + 1)
        for byte in range(256)
    ],
    np.int64,
)
"""What every first byte says, by version and byte."""


@piece
def place_in(run: int, slot: int) -> np.uint64:
    """Return the place of a row in a run: unsigned, so that no end to count from is asked for."""
    return np.uint64(run + slot)


@piece
def kind_of(block: Ints, slot: int) -> int:
    """Return the type of a packet."""
    kind: int = block[_SAID + slot] >> 4 & 15
    return kind


@piece
def load_few(data: Bytes, at: int, stop: int) -> int:
    """Read what there is of eight bytes in the machine's own order."""
    word = 0
    for place in range(stop - at):
        word |= load_u8(data, at + place) << 8 * place
    return word


@piece
def look_at_heads(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    block: Ints,
    said: Bytes,
    first_bytes: Ints,
    first: int,
    last: int,
) -> None:
    """Take the first eight bytes of packets, and what the very first says."""
    for number in range(first, last):
        row = place_of(number)
        slot = row & BLOCK_ROWS - 1
        start = starts[row]
        head = load_word(data, start) if start + 8 <= stop else load_few(data, start, stop)
        says = first_bytes[(contexts[row] & VERSION_BITS) << 8 | head & 0xFF]
        block[_START + slot] = start
        block[_SIZE + slot] = sizes[row]
        block[_BYTES + slot] = head
        block[_SAID + slot] = says
        said[slot] = says >> _BITS_AT & 0x7F


@piece
def find_topics(block: Ints, rows: int) -> None:
    """Find where topics are and packet identifiers end, in packets that are still sure."""
    for slot in range(rows):
        start = block[place_in(_START, slot)]
        size = block[place_in(_SIZE, slot)]
        head = block[place_in(_BYTES, slot)]
        says = block[place_in(_SAID, slot)]
        # In a packet of this size, a length of more bytes than these has one too many.
        digits = 1 + (size > _LONGEST_1) + (size > _LONGEST_2) + (size > _LONGEST_3)
        digit = head >> 8 * digits & 0xFF
        publish = says >> _PUBLISH_AT & 1
        high = head >> 8 * digits + 8 & 0xFF
        topic_size = publish * (high << 8 | head >> 8 * digits + 16 & 0xFF)
        at = start + 1 + digits
        end = start + size
        stop = at + 2 * publish + topic_size + 2 * (says >> _NUMBERED_AT & 1)
        # The last byte of a length is 0 only if it is the only one.
        sure = (digit < 0x80) & ((digits == 1) | (digit != 0)) & (stop <= end)
        sure &= (publish == 1) | (stop == end)  # nothing but that
        block[place_in(_LENGTH_BYTES, slot)] = digits
        block[place_in(_REMAINING, slot)] = end - at
        block[place_in(TOPIC_AT, slot)] = at + 2
        block[place_in(TOPIC_SIZE, slot)] = topic_size
        block[place_in(_ID_STOP, slot)] = stop if sure else at
        block[place_in(_SAID, slot)] = says if sure else says & ~_SURE


@piece
def look_behind_topics(data: Bytes, block: Ints, rows: int) -> None:
    """Take packet identifiers, and the byte behind each: where it may be, Property Length."""
    for slot in range(rows):
        stop = block[place_in(_ID_STOP, slot)]
        end = block[place_in(_START, slot)] + block[place_in(_SIZE, slot)]
        behind = load_u8(data, min(stop, end - 1))
        block[place_in(_BYTES, slot)] = load_u16(data, stop - 2) << 8 | behind


@piece
def find_payloads(block: Ints, rows: int) -> int:
    """Find where properties and payloads are; return non-zero if there are properties.

    In packets that are not sure, as in those that are no PUBLISH, nothing is anywhere.
    """
    listed = 0
    for slot in range(rows):
        says = block[place_in(_SAID, slot)]
        found = block[place_in(_BYTES, slot)]
        end = block[place_in(_START, slot)] + block[place_in(_SIZE, slot)]
        lists = says >> _LISTED_AT & 1
        properties_at = block[place_in(_ID_STOP, slot)] + lists
        # Property Length of one byte; longer ones are rare.
        length = (found & 0xFF) * lists
        payload_at = properties_at + length
        topic_size = block[place_in(TOPIC_SIZE, slot)]
        other = says >> _PUBLISH_AT & 1 == 0
        sure = (says & _SURE != 0) & (length < 0x80) & (payload_at <= end)
        sure &= other | (topic_size + length > 0)
        sure &= other | (says >> _NUMBERED_AT & 1 == 0) | (found >> 8 != 0)
        shown = sure & (other == 0)
        block[place_in(_SAID, slot)] = says if sure else says & ~_SURE
        block[place_in(TOPIC_SIZE, slot)] = topic_size if shown else 0
        block[place_in(PROPERTIES_AT, slot)] = properties_at if shown else end
        block[place_in(PAYLOAD_AT, slot)] = payload_at if shown else end
        block[place_in(PAYLOAD_SIZE, slot)] = end - payload_at if shown else 0
        listed |= length if shown else 0
    return listed


@piece
def judge_others(
    data: Bytes, contexts: Ints, block: Ints, said: Bytes, first_bytes: Ints, first: int, last: int
) -> int:
    """Make sure packets with fields of their own that keep every rule but those of properties.

    Return non-zero if one has properties.
    """
    lists = 0
    for number in range(first, last):
        row = place_of(number)
        slot = row & BLOCK_ROWS - 1
        says = block[_SAID + slot]
        if says & _SURE:
            continue
        start, size = block[_START + slot], block[_SIZE + slot]
        at = body_at(data, start, start + size)
        version = contexts[row] & VERSION_BITS
        if says & 0xFF == CONNECT << 4 and at > start:
            version = shown_version(data, at, start + size)
        found = judge_packet(data, start, start + size, version)
        if found == 0:
            continue
        says = first_bytes[version << 8 | says & 0xFF] | _SURE
        if found > 1:
            says |= 1 << _LISTED_AT
            length = load_u8(data, start + found)
            block[PROPERTIES_AT + slot] = start + found + 1
            block[PAYLOAD_AT + slot] = start + found + 1 + length
            lists |= length
        block[_SAID + slot] = says
        block[_BYTES + slot] = load_u16(data, at) << 8
        said[slot] = says >> _BITS_AT & 0x7F
        block[JUDGED_AT] += 1
        block[JUDGED_AT + 1] += size
    return lists


@piece
def fill_columns(
    out: Grid,
    runs: tuple[int, ...],
    shifts: tuple[int, ...],
    masks: tuple[int, ...],
    block: Ints,
    first: int,
    last: int,
) -> None:
    """Fill columns with bits of runs."""
    for place in range(len(runs)):
        run, shift, mask = runs[place], shifts[place], masks[place]
        for slot in range(last - first):
            out[place, place_in(first, slot)] = block[place_in(run, slot)] >> shift & mask


@piece
def fill_numbers(
    block: Ints, i32: Grid32, i64: Grid64, rejected: Bytes, first: int, last: int
) -> None:
    """Fill the columns of a fixed width, and say which packets are not sure."""
    fill_columns(i32, _I32_RUNS, _I32_SHIFTS, _I32_MASKS, block, first, last)
    fill_columns(i64, _I64_RUNS, _I64_SHIFTS, _I64_MASKS, block, first, last)
    for slot in range(last - first):
        rejected[place_in(first, slot)] = block[place_in(_SAID, slot)] & _SURE == 0


@piece
def fill_bits(said: Bytes, bits: Grid8, first: int, last: int) -> None:
    """Fill the columns of one bit, and what says where others are not null, eight rows at once."""
    for row in range(first, last, 8):
        word = load_word(said, row & BLOCK_ROWS - 1)
        for place in range(len(BITS)):
            bits[place, row >> 3] = bit_column(word, place)
