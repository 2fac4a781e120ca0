"""Compiled decoder of common control packets: from the frames of a window to columns.

Rules of this file:

1. Kernels decode PUBLISH, the four acknowledgements of two bytes, PINGREQ, PINGRESP, DISCONNECT
   without a reason, and the packets of ``sessions``, whose own columns are filled later
   (``fields``). All other packets, those of 1999, and those that break a rule are marked in
   `rejected`, and the scalar reader decodes their rows.
2. Nothing is read at or after `stop`; a length is compared with the bytes left before it is used.
3. Each group of columns has a pass of its own over a block of rows; the passes of groups that are
   not wanted are skipped. A packet that is not sure has an empty topic, properties and payload.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Grid8, Grid32, Int32s, Ints, ReadOnly
from wireyard.formats.columns import Frames
from wireyard.formats.mqtt.kernels.blocks import (
    BLOCK_ROWS,
    CHECKED_AT,
    FIRST_BYTES,
    PAYLOAD_AT,
    PAYLOAD_SIZE,
    PROPERTIES_AT,
    TOPIC_AT,
    TOPIC_SIZE,
    check_others,
    fill_bits,
    fill_numbers,
    find_payloads,
    find_topics,
    kind_of,
    load_heads,
    load_packet_ids,
)
from wireyard.formats.mqtt.kernels.properties import KINDS, decode_properties
from wireyard.formats.mqtt.kernels.topics import has_forbidden
from wireyard.formats.mqtt.layout import CONNACK, CONNECT, PACKET_TYPES, PUBLISH, VERSION_BITS
from wireyard.memory import (
    AHEAD_BYTES,
    copy_long,
    copy_text,
    load_u8,
    place_of,
    prefetch_lines,
    store_word,
    valid_utf8,
)

WANT: Final = {"names": 1, "topics": 2, "payloads": 4, "properties": 8}
"""Groups of columns with a pass of their own, as bits; a group that is not wanted is skipped."""
_NAMES_WANTED, _TOPICS_WANTED, _PAYLOADS_WANTED, _PROPERTIES_WANTED = WANT.values()
_NAME_PLACE, _TOPIC_PLACE, _PAYLOAD_PLACE, _LIST_PLACE = range(len(WANT))
MAX_NAME_BYTES: Final = max(map(len, PACKET_TYPES.values()))
MAX_SCRATCH_BYTES: Final = 65_535 + 127
"""Most scratch bytes of a packet: a topic, and properties whose length takes one byte."""

_ROW_OF_BLOCK: Final = BLOCK_ROWS - 1
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


_TYPE_WORDS, _TYPE_LENGTHS = _names()
_PROPERTY_KINDS: Final = np.array(KINDS, np.int64)


@inlined
def find_frames(
    data: Bytes,
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    context: int,
    starts: Ints,
    sizes: Ints,
    first: int,
    last: int,
) -> int:
    """Find packets that follow each other, as rows from `first` on; return the row after the last.

    Stops before an incomplete packet, before bytes that begin no packet, before a packet that could
    change the context or begins at or after `last_start`, and before row `last`.
    """
    row = first
    ahead = start
    known = context & VERSION_BITS != 0
    while row < last and start < last_start and stop - start >= 2:
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
        starts[row] = start
        sizes[row] = size
        row += 1
        start += size
    return row


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
) -> int:
    """Find whole packets that follow each other from `start` in one context; return how many."""
    return find_frames(
        data, start, stop, last_start, max_packet_bytes, context, starts, sizes,
        0, starts.shape[0],
    )  # fmt: skip


class Limits(NamedTuple):
    """The range to find packets in: parameters of `scan_frames`."""

    start: int
    last_start: int
    max_packet_bytes: int
    context: int


class Block(NamedTuple):
    """Scratch for the results of passes over a block of rows."""

    runs: Ints
    """The runs of ``blocks``; `BLOCK_SIZE`."""
    row_bits: Bytes
    """`BITS` of each row; `BLOCK_ROWS`."""


class Columns(NamedTuple):
    """The arrays behind the columns of packets; texts have slack after them."""

    i32: Grid32
    """Shape (field, r)."""
    i64: Grid
    bits: Grid8
    """Shape (`BITS`, r / 8)."""
    rejected: Bytes
    """Whether the scalar reader has to decode a row; r."""
    offsets: Grid32
    """End offsets of texts, payloads and properties of rows; shape (group, r + 1), 0 at first."""
    names: Bytes
    topics: Bytes
    payloads: Bytes


class Properties(NamedTuple):
    """The properties of all rows. Axis: e = properties."""

    text: Bytes
    codes: Int32s
    offsets: Int32s
    """End offsets of their texts; e + 1, 0 at first."""


@inlined
def fill_names(runs: Ints, columns: Columns, first: int, last: int) -> None:
    """Fill the names of packet types."""
    at = columns.offsets[_NAME_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        kind = kind_of(runs, row & _ROW_OF_BLOCK)
        store_word(columns.names, at, _TYPE_WORDS[_NAME_WORDS * kind])
        store_word(columns.names, at + 8, _TYPE_WORDS[_NAME_WORDS * kind + 1])
        at += _TYPE_LENGTHS[kind]
        columns.offsets[_NAME_PLACE, row + 1] = at


@inlined
def fill_topics(
    data: Bytes, stop: int, runs: Ints, columns: Columns, first: int, last: int
) -> None:
    """Fill the topics, and reject packets whose topic breaks a rule."""
    topics, offsets, rejected = columns.topics, columns.offsets, columns.rejected
    begin = at = offsets[_TOPIC_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        start = runs[TOPIC_AT + (row & _ROW_OF_BLOCK)]
        size = runs[TOPIC_SIZE + (row & _ROW_OF_BLOCK)]
        foreign = copy_text(topics, at, data, start, size, stop)
        if foreign and not valid_utf8(data, start, size):
            rejected[row] = 1
        else:
            at += size
        offsets[_TOPIC_PLACE, row + 1] = at
    # The topics of the block at once first: forbidden characters are very rare.
    if has_forbidden(topics, begin, at):
        for row in range(first, last):
            if has_forbidden(topics, offsets[_TOPIC_PLACE, row], offsets[_TOPIC_PLACE, row + 1]):
                rejected[row] = 1


@inlined
def fill_payloads(
    data: Bytes, stop: int, runs: Ints, columns: Columns, first: int, last: int
) -> None:
    """Fill the payloads."""
    at = columns.offsets[_PAYLOAD_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        start = runs[PAYLOAD_AT + (row & _ROW_OF_BLOCK)]
        size = runs[PAYLOAD_SIZE + (row & _ROW_OF_BLOCK)]
        copy_long(columns.payloads, at, data, start, size, stop)
        at += size
        columns.offsets[_PAYLOAD_PLACE, row + 1] = at


@inlined
def fill_properties(
    data: Bytes, runs: Ints, columns: Columns, properties: Properties, first: int, last: int
) -> None:
    """Fill the properties of packets, and reject packets whose properties break a rule."""
    entry = columns.offsets[_LIST_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        slot = row & _ROW_OF_BLOCK
        start = runs[PROPERTIES_AT + slot]
        end = runs[PAYLOAD_AT + slot]
        if end > start and not columns.rejected[row]:
            kind = kind_of(runs, slot)
            unnamed = kind == PUBLISH and runs[TOPIC_SIZE + slot] == 0
            count = decode_properties(
                data, start, end, properties.text, properties.offsets[entry], properties.codes,
                properties.offsets, entry, _PROPERTY_KINDS, kind, unnamed,
            )  # fmt: skip
            if count < 0:
                columns.rejected[row] = 1
            else:
                entry = count
        columns.offsets[_LIST_PLACE, row + 1] = entry


@inlined
def fill_no_properties(offsets: Grid32, first: int, last: int) -> None:
    """Give every row no properties."""
    entry = offsets[_LIST_PLACE, first]
    for number in range(first, last):
        offsets[_LIST_PLACE, place_of(number) + 1] = entry


@kernel
def fill_rows(
    data: ReadOnly[Bytes],
    frames: Frames,
    found: bool,
    limits: Limits,
    wanted: int,
    block: Block,
    columns: Columns,
    properties: Properties,
) -> int:
    """Fill the wanted columns of packets; return the number of packets.

    Unless they are `found` already, `limits` are scanned as by `scan_frames`, a block at a time:
    its bytes are still in the cache when its columns are filled. The runs of the block have, at
    `CHECKED_AT`, the number and the bytes of packets that `check_others` found valid.
    """
    stop, starts, sizes, contexts = frames.stop, frames.starts, frames.sizes, frames.contexts
    runs, row_bits, start = block.runs, block.row_bits, limits.start
    rows = starts.shape[0]
    filled = 0
    runs[CHECKED_AT] = runs[CHECKED_AT + 1] = 0
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        if not found:
            last = find_frames(
                data, start, stop, limits.last_start, limits.max_packet_bytes, limits.context,
                starts, sizes, first, last,
            )  # fmt: skip
            if last == first:
                break
            start = starts[last - 1] + sizes[last - 1]
        load_heads(data, stop, starts, sizes, contexts, runs, row_bits, FIRST_BYTES, first, last)
        find_topics(runs, last - first)
        load_packet_ids(data, runs, last - first)
        any_properties = find_payloads(runs, last - first)
        any_properties |= check_others(data, contexts, runs, row_bits, FIRST_BYTES, first, last)
        fill_numbers(runs, columns.i32, columns.i64, columns.rejected, first, last)
        fill_bits(row_bits, columns.bits, first, last)
        if wanted & _NAMES_WANTED:
            fill_names(runs, columns, first, last)
        if wanted & _TOPICS_WANTED:
            fill_topics(data, stop, runs, columns, first, last)
        if wanted & _PROPERTIES_WANTED:
            if any_properties:
                fill_properties(data, runs, columns, properties, first, last)
            else:
                fill_no_properties(columns.offsets, first, last)
        if wanted & _PAYLOADS_WANTED:
            fill_payloads(data, stop, runs, columns, first, last)
        filled = last
        if last < first + BLOCK_ROWS:
            break
    return filled
