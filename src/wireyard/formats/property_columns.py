"""Text that kernels write where its size is not known before, on its way to the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import local
from typing import Final

import numpy as np

from wireyard.arena import Arena, Source
from wireyard.formats import property_kernels as kernels
from wireyard.formats.property_kernels import PROPERTY_TEXTS
from wireyard.memory import SLACK

__all__ = ["PROPERTY_ENDS", "Scratch", "row_sources", "take_texts"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_MIN_PROPERTY_BYTES = 6
_SCRATCH_STEP = 8 << 20
_MOST_KEPT = 16 << 20

PROPERTY_ENDS: Final = tuple(f"{text} offsets" for text in PROPERTY_TEXTS)
"""Where the texts of properties end."""
PROPERTY_SOURCES: Final[tuple[Source, ...]] = tuple(
    (name, 0) for pair in zip(PROPERTY_ENDS, PROPERTY_TEXTS, strict=True) for name in pair
)
"""What the properties of all rows are made of."""


def row_sources(
    i32_fields: Sequence[str],
    i64_fields: Sequence[str],
    row_texts: Sequence[str],
    bits: Sequence[str],
    others: Mapping[str, Sequence[Source]],
) -> dict[str, list[Source]]:
    """Return the buffers of columns, validity first: numbers, texts, properties and `others`.

    A column that `bits` name is null where its bit is not set.
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
    """Where a thread's kernels put text whose size is not known before.

    It stays with the thread: touching that much memory anew for every read would cost as much as
    the reading. Regions keep their places, so what is touched once stays what is touched.
    """

    _kept = local()

    def __init__(self, taken: int, regions: int) -> None:
        self.taken = taken
        self.capacity = kernels.TEXT_BYTES_PER_BYTE * taken + SLACK
        self.text: Bytes = np.empty(self.capacity * regions, np.uint8)
        self.entry_offsets = np.empty((3, taken // _MIN_PROPERTY_BYTES + 1), np.int32)
        self.entry_offsets[:, 0] = 0
        self.ends: Bytes = self.entry_offsets.reshape(-1).view(np.uint8)
        """The same as bytes."""
        self.hashes = np.empty(kernels.MAX_UNIQUE_NAMES, np.int64)

    @classmethod
    def for_bytes(cls, taken: int, regions: int) -> Scratch:
        """Return the thread's scratch for `taken` bytes of packets; one for a huge packet goes."""
        name = f"of_{regions}"
        kept: Scratch | None = getattr(cls._kept, name, None)
        if kept is None or kept.taken < taken:
            kept = cls(taken + -taken % _SCRATCH_STEP, regions)
            if kept.taken <= _MOST_KEPT:
                setattr(cls._kept, name, kept)
        return kept


def take_texts(
    arena: Arena, scratch: Scratch, numbers: Ints, used: Ints, body_bytes: int, stop: int
) -> None:
    """Take over what a kernel has put behind the arrays by `put_texts`, up to `stop`."""
    start = arena.used
    if not arena.claimed(stop):
        kernels.put_texts_again(
            scratch.text, scratch.capacity, scratch.ends, used, body_bytes, numbers, arena.body,
            start, arena.extents,
        )  # fmt: skip
