"""Read the packet records of capture files into columns, in compiled loops.

Rules of this file:

1. A kernel goes on while records are complete and consistent, and returns where it stopped; the
   scalar reader handles the record there.
2. Nothing is read at or after `stop`; a length is compared with the bytes that are left before it
   is used.

Axes: c = `Record`, r = records.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Ints, ReadOnly
from wireyard.captures.layout import MAX_RECORD_BYTES, Link, Record
from wireyard.memory import LINE, load_u16, load_u32, prefetch_lines

SECTION: Final = 0x0A0D0D0A
INTERFACE: Final = 1
OBSOLETE: Final = 2
"""Packet Block, which Enhanced Packet Blocks replaced."""
SIMPLE: Final = 3
ENHANCED: Final = 6
_JOURNAL: Final = 9
SECRETS: Final = 10
"""Decryption Secrets Block."""
_CUSTOM: Final = 0x0BAD
_CUSTOM_KEPT: Final = 0x4000_0BAD
"""Custom blocks, which programs may copy or may not. They and the blocks of the systemd journal
are no packets, but they count as frames, because frames are numbered as in Wireshark."""

RUN: Final = 16
"""Consistent headers in a row by which the beginning of a record is recognized. A run this long
comes less often by chance than from a capture inside a packet, which no run length would reveal."""
_LONG_S: Final = 366 * 24 * 3600
"""Largest believable time between consecutive packets."""

_ORDER: Final = 0x1A2B3C4D
"""The byte-order magic of a section."""

NUMBERED: Final = frozenset({OBSOLETE, SIMPLE, ENHANCED, _JOURNAL, _CUSTOM, _CUSTOM_KEPT})
"""The types of blocks that count as frames."""

_AHEAD_RECORDS: Final = 8


@inlined
def read_u32(data: Bytes, at: int, little: bool) -> int:
    """Read an unsigned 32-bit integer in the byte order of its file."""
    value = load_u32(data, at)
    if little:
        halves = (value & 0x00FF00FF) << 8 | (value >> 8) & 0x00FF00FF
        return (halves & 0xFFFF) << 16 | halves >> 16
    return value


@inlined
def ask_ahead(data: Bytes, at: int, size: int) -> None:
    """Prefetch a later record, on the guess that the records until then are of this size.

    Its real position depends on the sizes of the records before, which are not in the cache yet.
    """
    ahead = at + _AHEAD_RECORDS * size
    prefetch_lines(data, ahead, ahead + 2 * LINE)


@inlined
def read_u16(data: Bytes, at: int, little: bool) -> int:
    """Read an unsigned 16-bit integer in the byte order of its file."""
    value = load_u16(data, at)
    return (value & 0xFF) << 8 | value >> 8 if little else value


@kernel
def walk_records(
    data: ReadOnly[Bytes],
    start: int,
    limit: int,
    stop: int,
    little: int,
    header_bytes: int,
    unit_ns: int,
    most_bytes: int,
    records: Grid,
) -> int:
    """Read consecutive pcap records from `start`; return their number.

    Stops before a record that begins at or after `limit`, is incomplete or larger than
    `most_bytes`, and when the grid is full.
    """
    row, at = 0, start
    while row < records.shape[1] and at < limit and at + header_bytes <= stop:
        captured = read_u32(data, at + 8, little != 0)
        if captured > most_bytes or captured > stop - at - header_bytes:
            break
        records[Record.START, row] = at + header_bytes
        records[Record.CAPTURED, row] = captured
        records[Record.ORIGINAL, row] = read_u32(data, at + 12, little != 0)
        seconds, units = read_u32(data, at, little != 0), read_u32(data, at + 4, little != 0)
        records[Record.TICKS, row] = seconds * 1_000_000_000 + units * unit_ns
        records[Record.INTERFACE, row] = 0
        records[Record.BLOCK, row] = 0
        ask_ahead(data, at, header_bytes + captured)
        at += header_bytes + captured
        row += 1
    return row


@kernel
def walk_blocks(
    data: ReadOnly[Bytes],
    start: int,
    limit: int,
    stop: int,
    little: int,
    first_interface: int,
    interface_count: int,
    row: int,
    records: Grid,
    reached: Ints,
) -> int:
    """Read pcapng blocks from `start`, packets into `records` from `row` on; return the next row.

    Stops when the grid is full, and before a block that describes a section or an interface, begins
    at or after `limit`, or is incomplete or inconsistent. Writes where it stopped to `reached`. The
    section has `interface_count` interfaces, numbered from `first_interface` on.
    """
    at, swap = start, little != 0
    while row < records.shape[1] and at < limit and at + 12 <= stop:
        kind = read_u32(data, at, swap)
        size = read_u32(data, at + 4, swap)
        if kind in (SECTION, INTERFACE) or size < 12 or size & 3 or size > stop - at:
            break
        if read_u32(data, at + size - 4, swap) != size:
            break
        if kind in (ENHANCED, OBSOLETE, SIMPLE):
            # A simple block has only the original length.
            head = 12 if kind == SIMPLE else 28
            fits = size >= head + 4
            interface, ticks, captured, original = 0, 0, 0, 0
            if fits:
                original = read_u32(data, at + head - 4, swap)
                captured = min(original, size - head - 4)
            if fits and kind != SIMPLE:
                wide = kind == ENHANCED
                interface = read_u32(data, at + 8, swap) if wide else read_u16(data, at + 8, swap)
                high = read_u32(data, at + 12, swap)
                high -= (high & 0x8000_0000) << 1  # as a signed number, so that 64 bits hold it
                ticks = high << 32 | read_u32(data, at + 16, swap)
                captured = read_u32(data, at + 20, swap)
            is_known = interface < interface_count
            fits = fits and captured <= min(size - head - 4, MAX_RECORD_BYTES)
            records[Record.START, row] = at + head
            records[Record.CAPTURED, row] = captured if fits else 0
            records[Record.ORIGINAL, row] = original
            records[Record.TICKS, row] = ticks
            interface = first_interface + interface if is_known else Link.NO_INTERFACE
            records[Record.INTERFACE, row] = interface if fits else Link.BAD_RECORD
            records[Record.BLOCK, row] = kind
            row += 1
        elif kind in (_JOURNAL, _CUSTOM, _CUSTOM_KEPT):
            for field in range(records.shape[0]):
                records[field, row] = 0
            records[Record.INTERFACE, row] = Link.NO_PACKET
            records[Record.BLOCK, row] = kind
            row += 1
        ask_ahead(data, at, size)
        at += size
    reached[0] = at
    return row


@kernel
def find_record(
    data: ReadOnly[Bytes], start: int, limit: int, stop: int, little: int, header_bytes: int,
    units: int, most_bytes: int,
) -> int:  # fmt: skip
    """Return the first offset in ``[start, limit)`` where a run of pcap records begins, or -1."""
    swap = little != 0
    for place in range(start, min(limit, stop - header_bytes + 1)):
        at, row, before = place, 0, 0
        while row < RUN and at + header_bytes <= stop:
            seconds = read_u32(data, at, swap)
            captured = read_u32(data, at + 8, swap)
            original = read_u32(data, at + 12, swap)
            near = row == 0 or abs(seconds - before) < _LONG_S
            sized = 0 < captured <= min(original, most_bytes) and original <= MAX_RECORD_BYTES
            if not (near and sized and read_u32(data, at + 4, swap) < units):
                break
            at += header_bytes + captured
            before = seconds
            row += 1
        if row == RUN or (row > 0 and at == stop):
            return place
    return -1


@kernel
def find_block(data: ReadOnly[Bytes], start: int, limit: int, stop: int, little: int) -> int:
    """Return the first offset in ``[start, limit)`` where a run of pcapng blocks begins, or -1."""
    swap = little != 0
    for place in range(start + (-start & 3), min(limit, stop - 11), 4):
        at, row = place, 0
        while row < RUN and at + 12 <= stop:
            kind = read_u32(data, at, swap)
            size = read_u32(data, at + 4, swap)
            if kind == SECTION and row > 0:  # the byte order may change here
                row = RUN
                break
            if size < 12 or size & 3 or size > stop - at:
                break
            if read_u32(data, at + size - 4, swap) != size:
                break
            at += size
            row += 1
        if row == RUN or (row > 0 and at == stop):
            return place
    return -1


@kernel
def seek_block(data: ReadOnly[Bytes], wanted: int, place: Ints) -> int:
    """Return where the next pcapng block of type `wanted` with content begins, or -1.

    `place` holds the state between calls: the offset to continue at, 0 at first, and whether the
    section there is little-endian. Blocks of less than 20 bytes are skipped.
    """
    at, swap = int(place[0]), place[1] != 0
    while at + 12 <= len(data):
        kind = read_u32(data, at, swap)
        if kind == SECTION:
            swap = read_u32(data, at + 8, True) == _ORDER
        size = read_u32(data, at + 4, swap)
        if size < 12 or size & 3 or size > len(data) - at:
            break
        if kind == wanted and size >= 20:
            place[0], place[1] = at + size, swap
            return at
        at += size
    place[0], place[1] = len(data), swap
    return -1
