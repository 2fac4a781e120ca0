"""Packets with texts, properties and a body as Arrow columns: what JMQ and GPackets share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape, Source
from wireyard.arrays import Bytes, Ints
from wireyard.formats import property_kernels as kernels
from wireyard.formats.property_kernels import ENTRIES, PROPERTY_TEXTS, STOP, Frames
from wireyard.formats.row_columns import batch_layout, fill_positions
from wireyard.layout import Column
from wireyard.memory import SLACK

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


_NONE: Ints = np.empty(0, np.int64)


def whole_frames(
    scan: Callable[[Bytes, int, int, int, int, Ints, Ints], int], header_bytes: int
) -> Callable[[Bytes, int, int, int, int, int], tuple[Ints, Ints, Ints]]:
    """Return the `scan_frames` of a format, given its kernel and the size of its least packet."""

    def scan_frames(
        data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
    ) -> tuple[Ints, Ints, Ints]:
        """Return starts, sizes and contexts of the whole packets that follow each other.

        Stops before bytes that are no whole packet, and before a packet that begins at or after
        `last_start`. One context more than there are packets is returned: that of the bytes after
        the last.
        """
        most = max((min(stop, last_start) - start) // header_bytes + 1, 0)
        starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
        count = scan(data, start, stop, last_start, max_packet_bytes, starts, sizes)
        return starts[:count], sizes[:count], np.full(count + 1, context, np.int64)

    return scan_frames


def row_shapes(
    i32_fields: Sequence[str],
    i64_fields: Sequence[str],
    row_texts: Sequence[str],
    bits: Sequence[str],
) -> dict[str, Shape]:
    """Return the arrays that the kernels of a format fill."""
    counts = len(row_texts) + len(PROPERTY_TEXTS) + len(kernels.COUNTS)
    return {
        "i32": Shape(np.int32, 32, len(i32_fields)),
        "i64": Shape(np.int64, 64, len(i64_fields)),
        "text_offsets": Shape(np.int32, 32, len(row_texts), more=4),
        "map_offsets": Shape(np.int32, 32, more=4),
        "body_offsets": Shape(np.int32, 32, more=4),
        "bits": Shape(np.uint8, 1, len(bits)),
        "rejected": Shape(np.uint8, 8),
        "used": Shape(np.int64, 0, more=8 * counts),
    }


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


class PacketDecoder(ABC):
    """Decode frames into chosen columns; of each format a subclass.

    `columns` are the wanted ones in order, of the format and of every format. With `validate`,
    packets are checked even if no column needs it, because the caller uses the verdict. `repeated`
    has the text of columns with the same text in every row.
    """

    shapes: ClassVar[Mapping[str, Shape]]
    sources: ClassVar[Mapping[str, Sequence[Source]]]
    """The buffers of the columns that kernels fill; the other columns are null here."""
    texts: ClassVar[Sequence[str]]
    """The regions of text."""
    body: ClassVar[str]
    wants: ClassVar[Mapping[str, int]]
    """The bits of the passes of the kernel; the pass of bodies is ``bodies``."""
    passes: ClassVar[Mapping[str, tuple[str, ...]]]
    """Columns that need a pass, with the passes."""
    checks: ClassVar[tuple[str, ...]]
    """The passes that check a packet."""
    repeated: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, columns: Sequence[Column], validate: bool, repeated: Mapping[str, str]
    ) -> None:
        self._layout = batch_layout(
            columns, self.shapes, self.sources, {**repeated, **self.repeated}
        )
        self._numbers = self._layout.numbers_of((*self.texts, *PROPERTY_ENDS, self.body))
        passes = {one for column in columns for one in self.passes.get(column.name, ())}
        passes.update(self.checks if validate else ())
        self._wanted = sum(self.wants[one] for one in passes)
        self._has_bodies = "bodies" in passes

    @abstractmethod
    def fill(
        self,
        data: Bytes,
        frames: Frames,
        contexts: Ints,
        arena: Arena,
        columns: kernels.Columns,
        texts: kernels.Texts,
        buffer: kernels.BatchBuffer,
    ) -> int:
        """Fill the wanted columns; return how many rows are rejected."""

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets at `starts` of `data`, which are at `offsets` of the stream.

        Return a batch with a row per packet, and the rows that the scalar reader has to decode:
        their values in the batch are undefined.
        """
        rows, taken = len(starts), int(sizes.sum())
        scratch = Scratch.for_bytes(taken, len(self.texts))
        arena = Arena(self._layout, rows, taken, taken if self._has_bodies else 0)
        a = arena.arrays
        texts = scratch.texts(a["used"][0, : len(self.texts) + len(kernels.COUNTS)])
        columns = kernels.Columns(
            a["i32"], a["i64"], a["text_offsets"], a["map_offsets"][0], arena.rest,
            a["body_offsets"][0], a["bits"], a["rejected"][0, :rows],
        )  # fmt: skip
        buffer = kernels.BatchBuffer(arena.body, arena.used, self._numbers, arena.extents)
        frames = Frames(stop, starts, sizes)
        rejected_count = self.fill(data, frames, contexts, arena, columns, texts, buffer)
        fill_positions(arena, offsets, sizes)
        rejected = np.flatnonzero(columns.rejected) if rejected_count else _NONE
        if not arena.claimed(int(texts.used[STOP])):
            # The texts did not fit: the buffer has grown, and they are copied again.
            kernels.retry_texts(texts, buffer._replace(body=arena.body))
        return arena.batch(int(texts.used[ENTRIES])), rejected
