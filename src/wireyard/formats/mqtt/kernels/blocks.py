"""Kernel passes that locate the parts of packets, a block of rows at a time.

The results of a block are runs of one array, `BLOCK_ROWS` integers each: the start of every packet,
its size, and so on. Loops that load bytes of packets do only that, so that the loads of several
rows overlap; loops that compute from the runs load no bytes, and the compiler vectorizes them. For
that they have no branches, and their indices are unsigned.

A packet is *sure* while no check has failed: it is of a type that kernels decode, and valid. The
scalar reader decodes the others.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes, Grid, Grid8, Grid32, Ints
from wireyard.formats.mqtt.kernels.sessions import body_at, check_packet, declared_version
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
from wireyard.memory import bit_column, load_u8, load_u16, load_word, place_of


class AnyGrid(Protocol):
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
"""Bitmaps: two boolean columns, and the validity of others."""

BLOCK_ROWS: Final = 1024
"""Rows that go through all passes together, so that their data stays in the cache."""
CHECKED_AT: Final = 12 * BLOCK_ROWS
"""Index, after the runs, of the number of packets that `check_others` found valid; then that of
their bytes."""
BLOCK_SIZE: Final = CHECKED_AT + 2
(
    _START, _SIZE, _BYTES, _HEADER, _LENGTH_BYTES, _REMAINING, _ID_STOP, TOPIC_AT,
    TOPIC_SIZE, PROPERTIES_AT, PAYLOAD_AT, PAYLOAD_SIZE,
) = range(0, CHECKED_AT, BLOCK_ROWS)  # fmt: skip

# A decoded first byte, in the run `_HEADER`: the byte, then the version, `BITS` and `_SURE`.
_VERSION_AT, _BITS_AT = 8, 16
_PUBLISH_AT, _NUMBERED_AT, _LISTED_AT = (
    _BITS_AT + BITS.index(name) for name in ("is publish", "has packet id", "has properties")
)
_SURE: Final = 1 << 24
"""The first byte is valid, and kernels decode packets of its type."""

_I32: Final = {
    "packet_type": (_HEADER, 4, 15),
    "flags": (_HEADER, 0, 15),
    "qos": (_HEADER, 1, 3),
    "version_in_force": (_HEADER, _VERSION_AT, VERSION_BITS),
    "remaining_length_bytes": (_LENGTH_BYTES, 0, -1),
    "packet_id": (_BYTES, 8, 0xFFFF),
}
_I64: Final = {"remaining_length": (_REMAINING, 0, -1), "payload_size": (PAYLOAD_SIZE, 0, -1)}
"""Columns of a fixed width: the run that has their values, and the shift and mask to get them."""
I32_FIELDS: Final = tuple(_I32)
I64_FIELDS: Final = tuple(_I64)
_I32_RUNS, _I32_SHIFTS, _I32_MASKS = zip(*_I32.values(), strict=True)
_I64_RUNS, _I64_SHIFTS, _I64_MASKS = zip(*_I64.values(), strict=True)

_LONGEST_1, _LONGEST_2, _LONGEST_3 = (128**count + count for count in (1, 2, 3))
"""The longest packets whose Remaining Length takes one byte, two, three."""


def _first_byte(version: int, kind: int, flags: int) -> int:
    """Return a first byte of this type and flags, decoded for `version`."""
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
    header = sum(1 << _BITS_AT + place for place, bit in enumerate(bits) if bit)
    header |= version << _VERSION_AT | kind << 4 | flags
    return header | (_SURE if sure and version != 2 else 0)


FIRST_BYTES: Final[Ints] = np.array(
    [
        _first_byte(version, byte >> 4, byte & 15)
        for version in range(VERSION_BITS + 1)
        for byte in range(256)
    ],
    np.int64,
)
"""All first bytes decoded, by version and byte."""


@inlined
def place_in(run: int, slot: int) -> np.uint64:
    """Return the index of a row in a run; unsigned, so that no negative index is checked for."""
    return np.uint64(run + slot)


@inlined
def kind_of(block: Ints, slot: int) -> int:
    """Return the type of a packet."""
    kind: int = block[_HEADER + slot] >> 4 & 15
    return kind


@inlined
def load_few(data: Bytes, at: int, stop: int) -> int:
    """Load the bytes up to `stop`, fewer than eight, in the machine's byte order."""
    word = 0
    for place in range(stop - at):
        word |= load_u8(data, at + place) << 8 * place
    return word


@inlined
def load_heads(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    block: Ints,
    row_bits: Bytes,
    first_bytes: Ints,
    first: int,
    last: int,
) -> None:
    """Load the first eight bytes of packets, and decode the very first."""
    for number in range(first, last):
        row = place_of(number)
        slot = row & BLOCK_ROWS - 1
        start = starts[row]
        head = load_word(data, start) if start + 8 <= stop else load_few(data, start, stop)
        header = first_bytes[(contexts[row] & VERSION_BITS) << 8 | head & 0xFF]
        block[_START + slot] = start
        block[_SIZE + slot] = sizes[row]
        block[_BYTES + slot] = head
        block[_HEADER + slot] = header
        row_bits[slot] = header >> _BITS_AT & 0x7F


@inlined
def find_topics(block: Ints, rows: int) -> None:
    """Locate topics and the end of packet identifiers, in packets that are still sure."""
    for slot in range(rows):
        start = block[place_in(_START, slot)]
        size = block[place_in(_SIZE, slot)]
        head = block[place_in(_BYTES, slot)]
        header = block[place_in(_HEADER, slot)]
        # A Remaining Length of more bytes would be longer than a packet of this size needs.
        digits = 1 + (size > _LONGEST_1) + (size > _LONGEST_2) + (size > _LONGEST_3)
        digit = head >> 8 * digits & 0xFF
        publish = header >> _PUBLISH_AT & 1
        high = head >> 8 * digits + 8 & 0xFF
        topic_size = publish * (high << 8 | head >> 8 * digits + 16 & 0xFF)
        at = start + 1 + digits
        end = start + size
        stop = at + 2 * publish + topic_size + 2 * (header >> _NUMBERED_AT & 1)
        # The last byte of a length is 0 only if it is the only one.
        sure = (digit < 0x80) & ((digits == 1) | (digit != 0)) & (stop <= end)
        sure &= (publish == 1) | (stop == end)  # nothing follows the packet identifier
        block[place_in(_LENGTH_BYTES, slot)] = digits
        block[place_in(_REMAINING, slot)] = end - at
        block[place_in(TOPIC_AT, slot)] = at + 2
        block[place_in(TOPIC_SIZE, slot)] = topic_size
        block[place_in(_ID_STOP, slot)] = stop if sure else at
        block[place_in(_HEADER, slot)] = header if sure else header & ~_SURE


@inlined
def load_packet_ids(data: Bytes, block: Ints, rows: int) -> None:
    """Load packet identifiers, each with the byte after it, which may be Property Length."""
    for slot in range(rows):
        stop = block[place_in(_ID_STOP, slot)]
        end = block[place_in(_START, slot)] + block[place_in(_SIZE, slot)]
        behind = load_u8(data, min(stop, end - 1))
        block[place_in(_BYTES, slot)] = load_u16(data, stop - 2) << 8 | behind


@inlined
def find_payloads(block: Ints, rows: int) -> int:
    """Locate properties and payloads; return non-zero if there are properties.

    Packets that are not sure, and those that are no PUBLISH, get empty ones.
    """
    any_properties = 0
    for slot in range(rows):
        header = block[place_in(_HEADER, slot)]
        loaded = block[place_in(_BYTES, slot)]
        end = block[place_in(_START, slot)] + block[place_in(_SIZE, slot)]
        has_length = header >> _LISTED_AT & 1
        properties_at = block[place_in(_ID_STOP, slot)] + has_length
        # Property Length of one byte; longer ones are rare.
        length = (loaded & 0xFF) * has_length
        payload_at = properties_at + length
        topic_size = block[place_in(TOPIC_SIZE, slot)]
        other = header >> _PUBLISH_AT & 1 == 0
        sure = (header & _SURE != 0) & (length < 0x80) & (payload_at <= end)
        sure &= other | (topic_size + length > 0)
        sure &= other | (header >> _NUMBERED_AT & 1 == 0) | (loaded >> 8 != 0)
        shown = sure & (other == 0)
        block[place_in(_HEADER, slot)] = header if sure else header & ~_SURE
        block[place_in(TOPIC_SIZE, slot)] = topic_size if shown else 0
        block[place_in(PROPERTIES_AT, slot)] = properties_at if shown else end
        block[place_in(PAYLOAD_AT, slot)] = payload_at if shown else end
        block[place_in(PAYLOAD_SIZE, slot)] = end - payload_at if shown else 0
        any_properties |= length if shown else 0
    return any_properties


@inlined
def check_others(
    data: Bytes,
    contexts: Ints,
    block: Ints,
    row_bits: Bytes,
    first_bytes: Ints,
    first: int,
    last: int,
) -> int:
    """Check the packets with fields of their own; those valid but for their properties are sure.

    Return non-zero if one has properties.
    """
    any_properties = 0
    for number in range(first, last):
        row = place_of(number)
        slot = row & BLOCK_ROWS - 1
        header = block[_HEADER + slot]
        if header & _SURE:
            continue
        start, size = block[_START + slot], block[_SIZE + slot]
        at = body_at(data, start, start + size)
        version = contexts[row] & VERSION_BITS
        if header & 0xFF == CONNECT << 4 and at > start:
            version = declared_version(data, at, start + size)
        length_at = check_packet(data, start, start + size, version)
        if length_at == 0:
            continue
        header = first_bytes[version << 8 | header & 0xFF] | _SURE
        if length_at > 1:
            header |= 1 << _LISTED_AT
            length = load_u8(data, start + length_at)
            block[PROPERTIES_AT + slot] = start + length_at + 1
            block[PAYLOAD_AT + slot] = start + length_at + 1 + length
            any_properties |= length
        block[_HEADER + slot] = header
        block[_BYTES + slot] = load_u16(data, at) << 8
        row_bits[slot] = header >> _BITS_AT & 0x7F
        block[CHECKED_AT] += 1
        block[CHECKED_AT + 1] += size
    return any_properties


@inlined
def fill_columns(
    out: AnyGrid,
    runs: tuple[int, ...],
    shifts: tuple[int, ...],
    masks: tuple[int, ...],
    block: Ints,
    first: int,
    last: int,
) -> None:
    """Fill each column from its run, by its shift and mask."""
    for place in range(len(runs)):
        run, shift, mask = runs[place], shifts[place], masks[place]
        for slot in range(last - first):
            out[place, place_in(first, slot)] = block[place_in(run, slot)] >> shift & mask


@inlined
def fill_numbers(
    block: Ints, i32: Grid32, i64: Grid, rejected: Bytes, first: int, last: int
) -> None:
    """Fill the columns of a fixed width, and reject the packets that are not sure."""
    fill_columns(i32, _I32_RUNS, _I32_SHIFTS, _I32_MASKS, block, first, last)
    fill_columns(i64, _I64_RUNS, _I64_SHIFTS, _I64_MASKS, block, first, last)
    for slot in range(last - first):
        rejected[place_in(first, slot)] = block[place_in(_HEADER, slot)] & _SURE == 0


@inlined
def fill_bits(row_bits: Bytes, bits: Grid8, first: int, last: int) -> None:
    """Fill the bitmaps of boolean columns and of validity, eight rows at once."""
    for row in range(first, last, 8):
        word = load_word(row_bits, row & BLOCK_ROWS - 1)
        for place in range(len(BITS)):
            bits[place, row >> 3] = bit_column(word, place)
