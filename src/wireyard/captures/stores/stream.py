"""The packets of a store's file as a stream: offsets are the file's, the rest of it are gaps.

A row's offset and length are then those of the packet in its file, rows of a stream stay
contiguous, and the ledger is exact: bytes in packets, in damage and in gaps are the file's. A gap
is no loss here and so has no error: it is the headers, states and room between packets, which the
records of the file account for one by one. Damage is no gap. Its bytes are given to the framer, so
they become rows with an error, and whole packets in them are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wireyard.formats import Format
from wireyard.streams.blocks import Block, FrameScanner, cut_window, join_blocks
from wireyard.streams.framer import GAP, Frame, Framer
from wireyard.streams.window import WINDOW_BYTES, Window

__all__ = ["StoreStream"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BLOCK_ROWS = 1 << 14
"""Small packets lie far apart: a window full of them is not many."""


@dataclass(frozen=True, slots=True)
class StoreStream:
    """What a file of a store holds of one format, to be read as any directed stream."""

    name: str
    stream: str
    format: Format
    data: Bytes = field(repr=False)
    pieces: Ints
    """The parts that hold packets or are damaged, apart from each other. Shapes: (p, 2)."""
    context: None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.data)

    @property
    def bytes_ahead(self) -> int:
        """Bytes that are to be read of it."""
        return int((self.pieces[:, 1] - self.pieces[:, 0]).sum())

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``[start, stop)``."""
        return self.data[start:stop]

    @property
    def gaps(self) -> Ints:
        """The parts that hold something else. Shapes: (g, 2), start and stop."""
        edges: Ints = np.r_[0, self.pieces.ravel(), self.size].reshape(-1, 2)
        found: Ints = edges[edges[:, 0] < edges[:, 1]]
        return found

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from where `framer` stands; the parameters are those of `cut_blocks`."""
        stop = self.size if limit is None else min(limit, self.size)
        begun, rows = framer.position, 0
        parts: list[Block] = []
        for part in self._parts(framer, scanner, stop):
            parts.append(part)
            rows += len(part.offsets)
            if framer.position - begun >= WINDOW_BYTES or rows >= _BLOCK_ROWS:
                yield join_blocks(parts)
                begun, rows = framer.position, 0
                parts = []
        if parts:
            yield join_blocks(parts)

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Nothing: a store does not say between whom a packet was sent."""
        return {}

    def columns(self, _block: Block) -> Mapping[str, Ints]:
        """Return nothing: a store does not say when a packet was sent."""
        return {}

    def close(self) -> None:
        """Do nothing: the file is in memory."""

    def _parts(self, framer: Framer, scanner: FrameScanner | None, limit: int) -> Iterator[Block]:
        """Yield a block for every piece and every gap that begins before `limit`."""
        behind = np.searchsorted(self.pieces[:, 1], framer.position, "right")
        for start, stop in (*self.pieces[behind:].tolist(), (self.size, self.size)):
            if framer.position < min(start, limit):
                yield self._gap(framer, start)
            if framer.position >= limit:
                return
            window = Window(self.data, 0, framer.position, stop, at_end=True)
            yield cut_window(window, framer, scanner, limit)

    def _gap(self, framer: Framer, stop: int) -> Block:
        frame = Frame(framer.position, stop, GAP, framer.context)
        framer.position = stop
        framer.begin()
        offset, length, context = np.array([[frame.start], [stop - frame.start], [frame.context]])
        return Block(self.data, stop, offset, offset, length, context, {0: frame})
