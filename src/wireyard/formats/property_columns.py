"""Packets with texts, properties and a body as Arrow columns: JMQ and GPackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape, Source
from wireyard.arrays import Bytes, Ints
from wireyard.formats import property_kernels as kernels
from wireyard.formats.columns import ColumnDecoder, Frames, Scratch, column_sources
from wireyard.formats.property_kernels import BLOCK_ROWS, ENTRIES, PROPERTY_TEXTS, STOP
from wireyard.memory import SLACK

_MIN_PROPERTY_BYTES = 6
"""Smallest property that a kernel decodes: its name is not empty."""
_PROPERTY_ENDS: Final = tuple(f"{text} offsets" for text in PROPERTY_TEXTS)
"""Arrays of the end offsets of the texts of properties."""
_NONE: Ints = np.empty(0, np.int64)


def row_shapes(
    i32_fields: Sequence[str],
    i64_fields: Sequence[str],
    row_texts: Sequence[str],
    bits: Sequence[str],
    address_bytes: int = 0,
) -> dict[str, Shape]:
    """Return the arrays that the kernels of a format fill."""
    counts = len(row_texts) + len(PROPERTY_TEXTS) + len(kernels.COUNTS)
    return {
        "i32": Shape(np.int32, 32, len(i32_fields)),
        "i64": Shape(np.int64, 64, len(i64_fields)),
        "text_offsets": Shape(np.int32, 32, len(row_texts), more=4),
        "map_offsets": Shape(np.int32, 32, more=4),
        "body_offsets": Shape(np.int32, 32, more=4),
        "addresses": Shape(np.uint8, 8 * address_bytes),
        "address_offsets": Shape(np.int32, 32 if address_bytes else 0, more=4),
        "bits": Shape(np.uint8, 1, len(bits)),
        "seen": Shape(np.uint8, 0, 2, more=BLOCK_ROWS),
        "rejected": Shape(np.uint8, 8),
        "used": Shape(np.int64, 0, more=8 * counts),
    }


def row_sources(
    i32_fields: Sequence[str],
    i64_fields: Sequence[str],
    row_texts: Sequence[str],
    bits: Sequence[str],
    body: str,
) -> dict[str, list[Source]]:
    """Return the buffers of each column: numbers, texts, properties, and the body.

    A column named in `bits` is null where its bit is not set; the others are never null.
    """
    ends = (name for pair in zip(_PROPERTY_ENDS, PROPERTY_TEXTS, strict=True) for name in pair)
    others: dict[str, list[Source]] = {
        **{name: [("text_offsets", place), (name, 0)] for place, name in enumerate(row_texts)},
        "properties": [("map_offsets", 0), *((name, 0) for name in ends)],
        body: [("body_offsets", 0), (body, 0)],
    }
    valid = {name: ("bits", place) for place, name in enumerate(bits)}
    return column_sources({"i32": i32_fields, "i64": i64_fields}, others, valid)


class _Scratch(Scratch):
    """Regions of text, each at a fixed position, so that the same pages are used again."""

    def __init__(self, taken: int, regions: int) -> None:
        super().__init__(taken)
        self._capacity = kernels.TEXT_BYTES_PER_BYTE * taken + SLACK
        self._text: Bytes = np.empty(self._capacity * regions, np.uint8)
        self._entry_offsets = np.empty((3, taken // _MIN_PROPERTY_BYTES + 1), np.int32)
        self._entry_offsets[:, 0] = 0
        self._ends: Bytes = self._entry_offsets.reshape(-1).view(np.uint8)
        self._hashes = np.empty(kernels.MAX_UNIQUE_NAMES, np.int64)

    def texts(self, used: Ints) -> kernels.Texts:
        """Return the scratch as kernels take it; `used` is the array of how much is used."""
        return kernels.Texts(
            self._text, self._capacity, used, self._entry_offsets, self._ends, self._hashes
        )


Kernel = Callable[[Bytes, Frames, int, kernels.Columns, kernels.Texts, kernels.BatchBuffer], int]
"""``(data, frames, wanted, columns, texts, buffer)`` -> how many rows are rejected."""


class PacketDecoder(ColumnDecoder):
    """Decodes frames into chosen columns; the pass of bodies is ``bodies``."""

    texts: ClassVar[Sequence[str]]
    """The regions of text."""
    body: ClassVar[str]
    kernel: ClassVar[Kernel]
    """Fills the wanted columns."""

    @cached_property
    def _numbers(self) -> Ints:
        return self._layout.numbers_of((*self.texts, *_PROPERTY_ENDS, self.body))

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets; see `ColumnDecoder.decode`."""
        rows, taken = len(starts), int(sizes.sum())
        scratch = _Scratch.for_bytes(taken, len(self.texts))
        arena = Arena(self._layout, rows, taken, taken if "bodies" in self._passes else 0)
        a = arena.arrays
        texts = scratch.texts(a["used"][0, : len(self.texts) + len(kernels.COUNTS)])
        columns = kernels.Columns(
            a["i32"], a["i64"], a["text_offsets"], a["map_offsets"][0], arena.rest,
            a["body_offsets"][0], a["addresses"][0], a["address_offsets"][0], a["bits"], a["seen"],
            a["rejected"][0, :rows],
        )  # fmt: skip
        buffer = kernels.BatchBuffer(arena.body, arena.used, self._numbers, arena.extents)
        frames = Frames(stop, starts, sizes, contexts)
        rejected_count = type(self).kernel(data, frames, self._wanted, columns, texts, buffer)
        self._fill_positions(arena, offsets, sizes)
        rejected = np.flatnonzero(columns.rejected) if rejected_count else _NONE
        if not arena.claimed(int(texts.used[STOP])):
            # The texts did not fit: the buffer has grown, and they are copied again.
            kernels.retry_texts(texts, buffer._replace(body=arena.body))
        return arena.batch(int(texts.used[ENTRIES])), rejected
