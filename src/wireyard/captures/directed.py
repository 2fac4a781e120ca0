"""Streams of a capture as directed streams, with the columns that only captures have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wireyard.arrays import Ints
from wireyard.captures.connections.stream import BufferPool, Stream
from wireyard.streams.blocks import (
    UNKNOWN,
    Block,
    FrameScanner,
    cut_blocks,
    cut_window,
    join_blocks,
)
from wireyard.streams.framer import GAP, Framer
from wireyard.streams.window import WINDOW_BYTES, Window

_MOST_ROWS: Final = 1 << 14
"""Rows of a block of pieces: enough that its fixed costs do not matter."""


@dataclass(frozen=True)
class CapturedStream:
    """One direction of a conversation; bytes that were not captured are gaps.

    `bytes_ahead` is the size of all streams that are read together with this one.
    """

    name: str
    captured: Stream
    context: int
    bytes_ahead: int
    pool: BufferPool = field(default_factory=BufferPool, repr=False, compare=False)
    """The buffers for its bytes; streams that share them are read together."""
    growing: bool = False
    """Whether more bytes may follow, so that an unfinished packet at its end is no tail."""

    @property
    def stream(self) -> str:
        """Name of the stream, as in the column `stream`."""
        return self.captured.name

    @property
    def size(self) -> int:
        """Bytes of the stream, including gaps."""
        return self.captured.size

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from the framer's position on; parameters as for `cut_blocks`.

        Pieces in the same buffer, and the gaps between them, are joined into one block: a stream
        may have thousands of gaps, and the fixed costs of a block are those of many rows.
        """
        held: list[Block] = []
        rows = 0
        for block, goes_on in self._each_block(framer, scanner, limit):
            if held and held[0].data is not block.data:
                yield join_blocks(held)
                held, rows = [], 0
            held.append(block)
            rows += len(block.offsets)
            # A window that fills its buffer is decoded before the next one is scanned.
            if not goes_on or rows >= _MOST_ROWS:
                yield join_blocks(held)
                held, rows = [], 0
        if held:
            yield join_blocks(held)

    def _each_block(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None
    ) -> Iterator[tuple[Block, bool]]:
        """Yield the blocks of pieces and gaps, and whether another piece follows each."""
        pieces = self.captured.pieces.tolist()
        if self.captured.protocol == "tcp":
            framer.segment_starts = self.captured.runs.offsets
            if not self.captured.begun and framer.position == 0:
                framer.presume_packet(pieces[0][0] if pieces else 0)
        for number, (start, stop) in enumerate(pieces, 1):
            # In a growing stream, the framer may stop in garbage at the end of a piece.
            if stop < framer.position or (stop == framer.position and framer.is_aligned):
                continue
            if framer.position < start:
                yield self._gap(framer, start), True
            if limit is not None and framer.position >= limit:
                return
            more = number < len(pieces)
            datagrams = self.captured.protocol == "udp"
            if datagrams:
                blocks = self._datagrams(framer, scanner, stop)
            else:
                ends = not self.growing or more
                windows = self.captured.windows(framer.position, stop, pool=self.pool, ends=ends)
                blocks = cut_blocks(windows, framer, scanner, limit)
            for block in blocks:
                yield block, datagrams or (more and framer.position >= stop)
        if self.growing:
            return
        if framer.position < min(self.captured.size, limit or self.captured.size):
            yield self._gap(framer, self.captured.size), False

    @property
    def constants(self) -> Mapping[str, str | int]:
        """The columns with the endpoints, which are the same for all rows."""
        src, dst = self.captured.src, self.captured.dst
        return {
            "src_addr": src.address,
            "src_port": src.port,
            "dst_addr": dst.address,
            "dst_port": dst.port,
        }

    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return the frame of each row, and its time."""
        gaps = gaps_of(block)
        starts, stops = block.offsets, block.offsets + block.lengths
        if not gaps:
            frames, times_ns = self.captured.completed(starts, stops)
        else:
            frames, times_ns = np.full((2, len(starts)), UNKNOWN)
            seen = np.delete(np.arange(len(starts)), gaps)
            frames[seen], times_ns[seen] = self.captured.completed(starts[seen], stops[seen])
        return {"captured_ns": times_ns, "frame": frames}

    def packets_of(self, block: Block) -> Ints:
        """Return the numbers, from 0 on, of the captured packets of all rows, each once."""
        seen = np.delete(np.arange(len(block.offsets)), gaps_of(block))
        starts = block.offsets[seen]
        return self.captured.packets_of(starts, starts + block.lengths[seen])

    def close(self) -> None:
        """Do nothing: the capture is in memory."""

    def _datagrams(
        self, framer: Framer, scanner: FrameScanner | None, stop: int
    ) -> Iterator[Block]:
        """Yield the blocks of consecutive datagrams, each of which is framed on its own."""
        runs = self.captured.runs
        stops = runs.stops
        at = int(np.searchsorted(runs.offsets, framer.position))
        while framer.position < stop:
            base = framer.position
            most = np.searchsorted(stops, min(base + WINDOW_BYTES, stop), "right")
            behind = max(int(most), at + 1)
            data = self.captured.read(base, int(stops[behind - 1]))
            for end in stops[at:behind].tolist():
                framer.begin()
                window = Window(data, base, framer.position - base, end - base, at_end=True)
                yield from cut_window(window, framer, scanner)
            at = behind

    def _gap(self, framer: Framer, stop: int) -> Block:
        frame = framer.skip_gap(stop, sized=not self.captured.is_carried)
        offset, length, context = np.array([[frame.start], [stop - frame.start], [frame.context]])
        return Block(self.pool.data, 0, offset, offset, length, context, {0: frame})


def gaps_of(block: Block) -> list[int]:
    """Return the rows of a block that are gaps."""
    return [row for row, frame in block.odd.items() if frame.status == GAP]
