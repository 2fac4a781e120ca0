"""The packets of a store's file as a stream, in which all other bytes of the file are gaps.

So a row's offset and length are those of the packet in its file, the rows of a stream are
contiguous, and the ledger is exact: bytes in packets, in damaged records and in gaps add up to the
file. A gap is no loss here, and has no error. It consists of headers, states and unused space
between packets, for which the records of the file account one by one. Damaged records are no gaps:
the framer gets their bytes, so that they become rows with an error, and whole packets in them are
found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from wireyard.arrays import Bytes, Grid, Ints
from wireyard.formats import Format
from wireyard.streams.blocks import Block, FrameScanner, cut_window, join_blocks
from wireyard.streams.framer import GAP, Frame, Framer
from wireyard.streams.window import WINDOW_BYTES, Window

_BLOCK_ROWS = 1 << 14
"""Rows of a block. Small packets lie far apart, so that a window contains few of them."""


@dataclass(frozen=True, slots=True)
class StoreStream:
    """The packets in a file of a store as a directed stream."""

    name: str
    stream: str
    format: Format
    data: Bytes = field(repr=False)
    pieces: Grid
    """Ranges of packets and damaged records, which do not touch. Shapes: (p, 2), start and stop."""
    context: None = None

    @property
    def size(self) -> int:
        """Size of the file."""
        return len(self.data)

    @property
    def bytes_ahead(self) -> int:
        """Number of bytes to read: those not in gaps."""
        return int((self.pieces[:, 1] - self.pieces[:, 0]).sum())

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``[start, stop)``."""
        return self.data[start:stop]

    @property
    def gaps(self) -> Grid:
        """The ranges between the pieces. Shapes: (g, 2), start and stop."""
        edges: Grid = np.r_[0, self.pieces.ravel(), self.size].reshape(-1, 2)
        gaps: Grid = edges[edges[:, 0] < edges[:, 1]]
        return gaps

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from the framer's position on; parameters as for `cut_blocks`."""
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
        """Empty: a store does not have the endpoints of packets."""
        return {}

    def columns(self, _block: Block) -> Mapping[str, Ints]:
        """Return no columns: a store does not have the times of packets."""
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
            yield from cut_window(window, framer, scanner, limit)

    def _gap(self, framer: Framer, stop: int) -> Block:
        frame = Frame(framer.position, stop, GAP, framer.context)
        framer.position = stop
        framer.begin()
        offset, length, context = np.array([[frame.start], [stop - frame.start], [frame.context]])
        return Block(self.data, stop, offset, offset, length, context, {0: frame})
