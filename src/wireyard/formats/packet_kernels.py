"""Kernel passes over packets with a magic, a size, a type and flags, shared by JMQ and GPacket.

Axis: r = rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.arrays import Bytes, Ints
from wireyard.formats.property_kernels import Columns, Texts, word_of
from wireyard.memory import AHEAD_BYTES, load_i32, place_of, prefetch_lines, store_word

_NAME_WORDS: Final = 5
"""Words of the longest name of a packet type."""
_OCTETS: Final = 4
_NAMES_AT: Final = 256 * _OCTETS
_NAME: Final = 0
"""Among the texts and bitmaps of a format, the name of the type is the first."""


@inlined
def find_frames(
    data: Bytes,
    start: int,
    stop: int,
    last_start: int,
    max_packet_bytes: int,
    has_magic: Callable[[Bytes, int], bool],
    size_at: int,
    header_bytes: int,
    starts: Ints,
    sizes: Ints,
    first: int,
    last: int,
) -> int:
    """Find packets that follow each other as rows from `first` on; return the row after them.

    Stops before anything else: bytes that need more, bytes that begin no packet, a packet that
    begins at or after `last_start`, row `last`.
    """
    row = first
    ahead = start
    while row < last and start < last_start and stop - start >= header_bytes:
        size = load_i32(data, start + size_at)
        if (
            not has_magic(data, start)
            or size < header_bytes
            or size > max_packet_bytes
            or size > stop - start
        ):
            break
        ahead = prefetch_lines(data, max(ahead, start), min(start + AHEAD_BYTES, stop))
        starts[row] = start
        sizes[row] = size
        row += 1
        start += size
    return row


def name_tables(packet_types: Mapping[int, str], flags: Iterable[str]) -> tuple[Ints, Ints]:
    """Return the flag letters of each octet, lowest first, and then the names of types, as words.

    The second array has the lengths of the texts at the same places.
    """
    letters = "".join(flags).ljust(8 * _OCTETS)
    texts = [
        "".join(letters[8 * octet + bit] for bit in range(8) if value >> bit & 1).rstrip()
        for octet in range(_OCTETS)
        for value in range(256)
    ]
    words = [word_of(text) for text in texts]
    lengths = [len(text) for text in texts]
    for code in range(max(packet_types) + 1):
        name = packet_types.get(code, "")
        words += [word_of(name[at : at + 8]) for at in range(0, 8 * _NAME_WORDS, 8)]
        lengths += [len(name)] * _NAME_WORDS
    return np.array(words, np.int64), np.array(lengths, np.int64)


@inlined
def fill_names(
    columns: Columns,
    texts: Texts,
    words: Ints,
    lengths: Ints,
    packet_types: Ints,
    flags: Ints,
    octets: int,
    letters: int,
    first: int,
    last: int,
) -> None:
    """Fill the names of packet types and the letters of flags.

    `words` and `lengths` are as `name_tables` returns them. `packet_types` and `flags` are the rows
    of these two columns, of shape (r). The flags have `octets` octets, and `letters` is the region
    of their letters.
    """
    letters_from = letters * texts.capacity
    name_at = texts.used[_NAME]
    flags_at = letters_from + texts.used[letters]
    for number in range(first, last):
        row = place_of(number)
        name = _NAMES_AT + _NAME_WORDS * packet_types[row]
        if _NAMES_AT <= name < lengths.shape[0]:
            for place in range(_NAME_WORDS):
                store_word(texts.text, name_at + 8 * place, words[name + place])
            name_at += lengths[name]
            columns.bits[_NAME, row >> 3] |= (lengths[name] > 0) << (row & 7)
        for octet in range(octets):
            text = 256 * octet + (flags[row] >> 8 * octet & 255)
            store_word(texts.text, flags_at, words[text])
            flags_at += lengths[text]
        columns.text_offsets[_NAME, row + 1] = name_at
        columns.text_offsets[letters, row + 1] = flags_at - letters_from
    texts.used[_NAME] = name_at
    texts.used[letters] = flags_at - letters_from
