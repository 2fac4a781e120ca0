"""What the compiled decoders of all formats share: from frames of a window to columns of a batch.

A decoder is a table: which arrays its kernels fill (`shapes`), which of them are the buffers of
each column (`sources`), and which passes of the kernels each column needs (`passes`). The scalar
reader decodes the rows that a kernel rejects, so that rare rules are implemented once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, BatchLayout, Shape, Source
from wireyard.arrays import Bytes, Ints
from wireyard.layout import Column
from wireyard.schema import schema_of

_POSITIONS: Final = ("offset", "length")
_SCRATCH_STEP: Final = 8 << 20
_MOST_KEPT: Final = 16 << 20


class Frames(NamedTuple):
    """Packets of a window. Axis: r."""

    stop: int
    """Nothing is read at or after it."""
    starts: Ints
    sizes: Ints
    contexts: Ints


FoundFrames = tuple[Ints, Ints, Ints]
"""Starts, sizes and contexts of packets that follow each other, and the context after the last."""


def whole_frames(
    scan: Callable[[Bytes, int, int, int, int, int, Ints, Ints], int],
    least_bytes: int,
    most: int = 1 << 62,
) -> Callable[[Bytes, int, int, int, int, int], FoundFrames]:
    """Return the `scan_frames` of a format, given its kernel and the size of its least packet."""

    def scan_frames(
        data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
    ) -> FoundFrames:
        """Return starts, sizes and contexts of the whole packets that follow each other.

        Stops before bytes that are no whole packet, before a packet that could change the context,
        and before one that begins at or after `last_start`. One context more than there are packets
        is returned: that of the bytes after the last.
        """
        room = min(max((min(stop, last_start) - start) // least_bytes + 1, 0), most)
        starts, sizes = np.empty(room, np.int64), np.empty(room, np.int64)
        count = scan(data, start, stop, last_start, max_packet_bytes, context, starts, sizes)
        return starts[:count], sizes[:count], np.full(count + 1, context, np.int64)

    return scan_frames


def column_sources(
    arrays: Mapping[str, Sequence[str]],
    others: Mapping[str, Sequence[Source]],
    valid: Mapping[str, Source],
) -> dict[str, list[Source]]:
    """Return the buffers of each column, its validity first.

    `arrays` has the columns that are rows of an array, in order, `others` the buffers of further
    columns. Columns without a bitmap in `valid` are never null.
    """
    values = {
        name: [(array, place)]
        for array, names in arrays.items()
        for place, name in enumerate(names)
    }
    return {name: [valid.get(name), *buffers] for name, buffers in {**values, **others}.items()}


class Scratch:
    """A thread's scratch memory for text whose size is known only after decoding.

    It is reused by the next call of the thread: the page faults of new memory would cost as much as
    decoding.
    """

    _kept: ClassVar = local()

    def __init__(self, taken: int) -> None:
        self.taken = taken

    @classmethod
    def for_bytes(cls, taken: int, *how: int) -> Self:
        """Return the thread's scratch for `taken` bytes of packets.

        `how` are further arguments of the class. One for more than `_MOST_KEPT` bytes is not kept.
        """
        all_kept: dict[Any, Self] = cls._kept.__dict__
        kept = all_kept.get((cls, how))
        if kept is None or kept.taken < taken:
            kept = cls(taken + -taken % _SCRATCH_STEP, *how)
            if kept.taken <= _MOST_KEPT:
                all_kept[cls, how] = kept
        return kept


class ColumnDecoder(ABC):
    """Decodes frames into chosen columns; of each format a subclass.

    `columns` are the wanted ones in order, of the format and of every format. With `validate`,
    packets are checked even if no column needs it, because the caller uses the verdict. `repeated`
    has the text of columns with the same text in every row.
    """

    shapes: ClassVar[Mapping[str, Shape]]
    sources: ClassVar[Mapping[str, Sequence[Source]]]
    """The buffers of the columns that kernels fill; the other columns are null here."""
    wants: ClassVar[Mapping[str, int]]
    """The bits of the passes of the kernel."""
    passes: ClassVar[Mapping[str, Sequence[str]]]
    """Columns that need a pass, with the passes."""
    checks: ClassVar[Sequence[str]] = ()
    """The passes that check a packet."""
    repeated: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, columns: Sequence[Column], validate: bool, repeated: Mapping[str, str]
    ) -> None:
        positions = [column.name for column in columns if column.name in _POSITIONS]
        self._layout = BatchLayout(
            schema_of(columns),
            {**self.shapes, **{name: Shape(np.int64, 64) for name in positions}},
            {**self.sources, **{name: [None, (name, 0)] for name in positions}},
            {**repeated, **self.repeated},
        )
        self._passes = {one for column in columns for one in self.passes.get(column.name, ())}
        self._passes.update(self.checks if validate else ())
        self._wanted = sum(self.wants[one] for one in self._passes)

    @abstractmethod
    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets at `starts` of `data`, which are at `offsets` of the stream.

        Return a batch with a row per packet, and the rows that the scalar reader has to decode:
        their values in the batch are undefined.
        """

    @staticmethod
    def _fill_positions(arena: Arena, offsets: Ints, lengths: Ints) -> None:
        """Fill the columns offset and length: each row's position in the stream, and its bytes."""
        for name, values in zip(_POSITIONS, (offsets, lengths), strict=True):
            if (array := arena.arrays.get(name)) is not None:
                array[0, : len(values)] = values
