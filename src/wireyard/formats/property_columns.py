"""The text columns and property columns of kernels: scratch for their text, and their buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import local
from typing import Final

import numpy as np

from wireyard.arena import Arena, Source
from wireyard.arrays import Bytes, Ints
from wireyard.formats import property_kernels as kernels
from wireyard.formats.property_kernels import PROPERTY_TEXTS
from wireyard.memory import SLACK

__all__ = ["PROPERTY_ENDS", "Scratch", "add_texts", "buffer_of", "columns_of", "row_sources"]

_MIN_PROPERTY_BYTES = 6
"""Smallest property that a kernel decodes: its name is not empty."""
_SCRATCH_STEP = 8 << 20
_MOST_KEPT = 16 << 20

PROPERTY_ENDS: Final = tuple(f"{text} offsets" for text in PROPERTY_TEXTS)
"""Arrays of the end offsets of the texts of properties."""
PROPERTY_SOURCES: Final[tuple[Source, ...]] = tuple(
    (name, 0) for pair in zip(PROPERTY_ENDS, PROPERTY_TEXTS, strict=True) for name in pair
)
"""The buffers of the names, types and values of all properties."""


def row_sources(
    i32_fields: Sequence[str],
    i64_fields: Sequence[str],
    row_texts: Sequence[str],
    bits: Sequence[str],
    others: Mapping[str, Sequence[Source]],
) -> dict[str, list[Source]]:
    """Return the buffers of each column, validity first: numbers, texts, properties and `others`.

    A column named in `bits` is null where its bit is not set; the others are never null.
    """
    valid = {name: ("bits", place) for place, name in enumerate(bits)}
    values: dict[str, Sequence[Source]] = {
        **{name: [("i32", place)] for place, name in enumerate(i32_fields)},
        **{name: [("i64", place)] for place, name in enumerate(i64_fields)},
        **{name: [("text_offsets", place), (name, 0)] for place, name in enumerate(row_texts)},
        "properties": [("map_offsets", 0), *PROPERTY_SOURCES],
        **others,
    }
    return {name: [valid.get(name), *buffers] for name, buffers in values.items()}


class Scratch:
    """A thread's scratch memory for text whose size is known only after decoding.

    It is reused by the next call of the thread: the page faults of new memory would cost as much as
    decoding. Each region has a fixed position, so that the same pages are used again.
    """

    _kept = local()

    def __init__(self, taken: int, regions: int) -> None:
        self.taken = taken
        self.capacity = kernels.TEXT_BYTES_PER_BYTE * taken + SLACK
        self.text: Bytes = np.empty(self.capacity * regions, np.uint8)
        self.entry_offsets = np.empty((3, taken // _MIN_PROPERTY_BYTES + 1), np.int32)
        self.entry_offsets[:, 0] = 0
        self.ends: Bytes = self.entry_offsets.reshape(-1).view(np.uint8)
        self.hashes = np.empty(kernels.MAX_UNIQUE_NAMES, np.int64)

    def texts(self, used: Ints) -> kernels.Texts:
        """Return the scratch as kernels take it; `used` is the array of how much is used."""
        return kernels.Texts(
            self.text, self.capacity, used, self.entry_offsets, self.ends, self.hashes
        )

    @classmethod
    def for_bytes(cls, taken: int, regions: int) -> Scratch:
        """Return the thread's scratch for `taken` bytes of packets.

        One for more than `_MOST_KEPT` bytes is not kept.
        """
        name = f"of_{regions}"
        kept: Scratch | None = getattr(cls._kept, name, None)
        if kept is None or kept.taken < taken:
            kept = cls(taken + -taken % _SCRATCH_STEP, regions)
            if kept.taken <= _MOST_KEPT:
                setattr(cls._kept, name, kept)
        return kept


def columns_of(arena: Arena, rows: int) -> kernels.Columns:
    """Return the arrays of a batch as kernels take them; bodies go into the rest of its buffer."""
    a = arena.arrays
    return kernels.Columns(
        a["i32"], a["i64"], a["text_offsets"], a["map_offsets"][0], arena.rest,
        a["body_offsets"][0], a["bits"], a["rejected"][0, :rows],
    )  # fmt: skip


def buffer_of(arena: Arena, numbers: Ints) -> kernels.BatchBuffer:
    """Return the buffer of a batch as kernels take it, with the numbers of the arrays to add."""
    return kernels.BatchBuffer(arena.body, arena.used, numbers, arena.extents)


def add_texts(arena: Arena, texts: kernels.Texts, buffer: kernels.BatchBuffer, stop: int) -> None:
    """Add to a batch the texts that a kernel wrote after its arrays, up to `stop` of the buffer.

    If they did not fit, the buffer grows and they are copied again.
    """
    if not arena.claimed(stop):
        kernels.retry_texts(texts, buffer._replace(body=arena.body))
