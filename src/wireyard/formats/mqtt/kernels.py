"""Control packets to columns, the common case: compiled loops over frames of one window.

Rules of this file:

1. A kernel answers only what it is sure of: PUBLISH, the four acknowledgements in two bytes,
   PINGREQ, PINGRESP, DISCONNECT without a reason, and those of ``session_kernels``, whose own
   columns are filled later (``field_kernels``). Every other packet, the version of 1999, and every
   broken rule is marked in `rejected`, and the scalar reader gives its row.
2. Nothing is read at or after `stop`; a length is compared with what is left before it is used.
3. Each group of columns has a pass of its own over a block of rows; a group that nobody asked for
   costs nothing. A packet that is not sure has neither topic, properties nor payload.

Axis: r = rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import BOOL, I64, READ, TEXT, array, kernel, piece
from wireyard.formats.mqtt.block_kernels import (
    BLOCK_ROWS,
    FIRST_BYTES,
    JUDGED_AT,
    PAYLOAD_AT,
    PAYLOAD_SIZE,
    PROPERTIES_AT,
    TOPIC_AT,
    TOPIC_SIZE,
    fill_bits,
    fill_numbers,
    find_payloads,
    find_topics,
    judge_others,
    kind_of,
    look_at_heads,
    look_behind_topics,
)
from wireyard.formats.mqtt.layout import CONNACK, CONNECT, PACKET_TYPES, PUBLISH, VERSION_BITS
from wireyard.formats.mqtt.property_kernels import KINDS, take_properties
from wireyard.formats.mqtt.topic_kernels import has_forbidden
from wireyard.memory import (
    AHEAD_BYTES,
    Bytes,
    copy_long,
    copy_text,
    load_u8,
    place_of,
    prefetch_lines,
    store_word,
    valid_utf8,
)

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_SCRATCH_BYTES",
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

WANT: Final = {"names": 1, "topics": 2, "payloads": 4, "properties": 8}
"""Groups of columns that cost something; a group that nobody asked for is left out."""
_NAMES_WANTED, _TOPICS_WANTED, _PAYLOADS_WANTED, _PROPERTIES_WANTED = WANT.values()
_NAME_PLACE, _TOPIC_PLACE, _PAYLOAD_PLACE, _LIST_PLACE = range(len(WANT))
MAX_NAME_BYTES: Final = max(map(len, PACKET_TYPES.values()))
MAX_SCRATCH_BYTES: Final = 65_535 + 127
"""Of one packet: a topic, and the properties that one byte of Property Length allows."""

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


TABLES: Final = (*_names(), FIRST_BYTES, np.array(KINDS, np.int64))
"""Names of types as words, their lengths, what first bytes say, the rules of properties."""

_INTS = array("int64")
_OFFSETS = array("int32")
_GRID32, _GRID64, _GRID8 = array("int32", 2), array("int64", 2), array("uint8", 2)


@piece
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
    """Find packets that follow each other as rows from `first` on; return the row after them.

    Stops before anything else: bytes that need more, bytes that begin no packet, a packet that
    could change the context or begins at or after `last_start`, row `last`.
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
    """Find whole packets that follow each other from `start` in one context; return how many."""
    return find_frames(
        data, start, stop, last_start, max_packet_bytes, context, starts, sizes,
        0, starts.shape[0],
    )  # fmt: skip


@piece
def fill_names(
    block: Ints, names: Bytes, offsets: Grid32, words: Ints, lengths: Ints, first: int, last: int
) -> None:
    """Fill the names of packet types."""
    at = offsets[_NAME_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        kind = kind_of(block, row & _ROW_OF_BLOCK)
        store_word(names, at, words[_NAME_WORDS * kind])
        store_word(names, at + 8, words[_NAME_WORDS * kind + 1])
        at += lengths[kind]
        offsets[_NAME_PLACE, row + 1] = at


@piece
def fill_topics(
    data: Bytes,
    stop: int,
    block: Ints,
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
        start = block[TOPIC_AT + (row & _ROW_OF_BLOCK)]
        size = block[TOPIC_SIZE + (row & _ROW_OF_BLOCK)]
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
    block: Ints,
    payloads: Bytes,
    offsets: Grid32,
    first: int,
    last: int,
) -> None:
    """Fill the payloads."""
    at = offsets[_PAYLOAD_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        size = block[PAYLOAD_SIZE + (row & _ROW_OF_BLOCK)]
        copy_long(payloads, at, data, block[PAYLOAD_AT + (row & _ROW_OF_BLOCK)], size, stop)
        at += size
        offsets[_PAYLOAD_PLACE, row + 1] = at


@piece
def fill_properties(
    data: Bytes,
    block: Ints,
    text: Bytes,
    codes: Offsets,
    entry_offsets: Offsets,
    offsets: Grid32,
    rejected: Bytes,
    kinds: Ints,
    first: int,
    last: int,
) -> None:
    """Fill the properties of packets that have some, and reject those that break a rule."""
    entry = offsets[_LIST_PLACE, first]
    for number in range(first, last):
        row = place_of(number)
        slot = row & _ROW_OF_BLOCK
        start = block[PROPERTIES_AT + slot]
        end = block[PAYLOAD_AT + slot]
        if end > start and not rejected[row]:
            kind = kind_of(block, slot)
            unnamed = kind == PUBLISH and block[TOPIC_SIZE + slot] == 0
            after = take_properties(
                data, start, end, text, entry_offsets[entry], codes, entry_offsets, entry,
                kinds, kind, unnamed,
            )  # fmt: skip
            if after < 0:
                rejected[row] = 1
            else:
                entry = after
        offsets[_LIST_PLACE, row + 1] = entry


@piece
def fill_no_properties(offsets: Grid32, first: int, last: int) -> None:
    """Say of every row that it has no properties."""
    entry = offsets[_LIST_PLACE, first]
    for number in range(first, last):
        offsets[_LIST_PLACE, place_of(number) + 1] = entry


@kernel(
    I64(
        READ, I64, _INTS, _INTS, _INTS, BOOL, I64, I64, I64, I64, I64, _GRID32, _GRID64, _INTS,
        TEXT, _GRID8, TEXT, TEXT, TEXT, TEXT, TEXT, _OFFSETS, _OFFSETS, _GRID32, _INTS,
        _INTS, _INTS, _INTS,
    )
)  # fmt: skip
def fill_rows(
    data: Bytes,
    stop: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    found: bool,
    start: int,
    last_start: int,
    max_packet_bytes: int,
    context: int,
    wanted: int,
    i32: Grid32,
    i64: Grid64,
    block: Ints,
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
    first_bytes: Ints,
    kinds: Ints,
) -> int:
    """Fill the wanted columns of the packets at `starts`; return how many there are.

    If they are not `found` yet, that is done as by `scan_frames`, a block at a time: its bytes are
    still in the cache when its columns are filled. How many packets were judged, and their bytes,
    is in `block` at `JUDGED_AT`.

    Shapes: starts, sizes, contexts, rejected (r); i32, i64 (field, r); block (`BLOCK_SIZE`); said
    (`BLOCK_ROWS`); bits (`BITS`, r / 8); names, topics, payloads and the text of properties: their
    bytes, and slack; codes (e); entry_offsets (e + 1); offsets (group, r + 1). Zero at first: the
    first of all offsets.
    """
    rows = starts.shape[0]
    filled = 0
    block[JUDGED_AT] = block[JUDGED_AT + 1] = 0
    for first in range(0, rows, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, rows)
        if not found:
            last = find_frames(
                data, start, stop, last_start, max_packet_bytes, context, starts, sizes,
                first, last,
            )  # fmt: skip
            if last == first:
                break
            start = starts[last - 1] + sizes[last - 1]
        look_at_heads(data, stop, starts, sizes, contexts, block, said, first_bytes, first, last)
        find_topics(block, last - first)
        look_behind_topics(data, block, last - first)
        listed = find_payloads(block, last - first)
        listed |= judge_others(data, contexts, block, said, first_bytes, first, last)
        fill_numbers(block, i32, i64, rejected, first, last)
        fill_bits(said, bits, first, last)
        if wanted & _NAMES_WANTED:
            fill_names(block, names, offsets, words, lengths, first, last)
        if wanted & _TOPICS_WANTED:
            fill_topics(data, stop, block, topics, offsets, rejected, first, last)
        if wanted & _PROPERTIES_WANTED:
            if listed:
                fill_properties(
                    data, block, text, codes, entry_offsets, offsets, rejected, kinds,
                    first, last,
                )  # fmt: skip
            else:
                fill_no_properties(offsets, first, last)
        if wanted & _PAYLOADS_WANTED:
            fill_payloads(data, stop, block, payloads, offsets, first, last)
        filled = last
        if last < first + BLOCK_ROWS:
            break
    return filled
