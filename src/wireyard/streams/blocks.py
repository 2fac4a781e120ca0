"""Windows cut into blocks: which rows a window holds, before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.streams.framer import OK, Frame, Framer
from wireyard.streams.window import Window

__all__ = ["Block", "DirectedStream", "FrameScanner", "cut_blocks", "cut_window", "join_blocks"]

Ints = npt.NDArray[np.int64]
FrameScanner = Callable[[Any, int, int, int, int, int], tuple[Ints, Ints, Ints]]
"""``(data, start, stop, last_start, max_packet_bytes, context)`` -> starts, sizes, contexts.

Of whole packets that follow each other; there is one context more, that of what follows them."""

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Block:
    """The rows of one window: where each begins in the stream, and which are no packets.

    Shapes: offsets, lengths, contexts (r). `odd` maps a row number to its frame; every other row is
    a framed packet and lies in ``data[offset - base :]``.
    """

    data: npt.NDArray[np.uint8]
    base: int
    stop: int
    offsets: Ints
    lengths: Ints
    contexts: Ints
    odd: dict[int, Frame]

    def view(self, row: int) -> memoryview:
        """Return the bytes of a framed packet."""
        start = int(self.offsets[row]) - self.base
        return self.data[start : start + int(self.lengths[row])].data

    def pick(self, rows: Ints) -> Block:
        """Return the block with only the given rows, in order."""
        odd = {}
        if self.odd:
            kept = enumerate(rows.tolist())
            odd = {place: self.odd[row] for place, row in kept if row in self.odd}
        picked = self.offsets[rows], self.lengths[rows], self.contexts[rows]
        return Block(self.data, self.base, self.stop, *picked, odd)


class DirectedStream(Protocol):
    """One direction of traffic, opened: what its rows are made from."""

    @property
    def name(self) -> str:
        """The source, as rows name it."""

    @property
    def stream(self) -> str:
        """The stream, as rows name it."""

    @property
    def context(self) -> int | None:
        """Context of its first frame; that of the format if None."""

    @property
    def size(self) -> int | None:
        """Its bytes, None if nobody knows."""

    @property
    def bytes_ahead(self) -> int:
        """How many bytes there are to read, or the most there can be if nobody knows."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from where `framer` stands; the parameters are those of `cut_blocks`."""

    def columns(self, block: Block) -> Mapping[str, pa.Array]:
        """Return what only the source knows about the rows of a block, by column."""

    def close(self) -> None:
        """Close the source, however far it was read."""


def cut_blocks(
    windows: Iterator[Window],
    framer: Framer,
    scanner: FrameScanner | None,
    limit: int | None = None,
) -> Iterator[Block]:
    """Yield one block per window, and move each window on by what its block holds.

    Parameters
    ----------
    windows, framer
        The stream from where the framer stands.
    scanner
        Finds runs of whole packets quickly; without one the framer takes each step.
    limit
        No row begins at or after this offset; a row that begins before it is whole. None for
        the whole stream.
    """
    for window in windows:
        block = cut_window(window, framer, scanner, limit)
        window.start = framer.position - window.base
        if len(block.offsets):
            yield block
        if framer.in_step and framer.position >= (_NO_LIMIT if limit is None else limit):
            return


def cut_window(
    window: Window, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
) -> Block:
    """Return the rows of one window as a block, which may be without any."""
    limit = _NO_LIMIT if limit is None else limit
    offsets: list[Ints] = []
    lengths: list[Ints] = []
    contexts: list[Ints] = []
    odd: dict[int, Frame] = {}
    rows = 0
    while not framer.in_step or framer.position < limit:
        start = framer.position - window.base
        if scanner is not None and framer.in_step:
            last = min(limit - window.base, window.stop)
            starts, sizes, before = scanner(
                window.data, start, window.stop, last, framer.max_packet_bytes, framer.context
            )
            if len(starts):
                offsets.append(starts + window.base)
                lengths.append(sizes)
                contexts.append(before[:-1])
                framer.context = int(before[-1])
                rows += len(starts)
                framer.position = int(offsets[-1][-1] + sizes[-1])
                continue
        with window.data[start : window.stop].data as view:
            frame = framer.next_frame(view, window.at_end)
        if frame is None:
            break
        offsets.append(np.array([frame.start], np.int64))
        lengths.append(np.array([frame.stop - frame.start], np.int64))
        contexts.append(np.array([frame.context], np.int64))
        if frame.status != OK:
            odd[rows] = frame
        rows += 1
    return Block(
        window.data,
        window.base,
        window.stop,
        _joined(offsets),
        _joined(lengths),
        _joined(contexts),
        odd,
    )


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return blocks of the same bytes, whose rows follow each other, as one."""
    first = blocks[0]
    rows = 0
    odd: dict[int, Frame] = {}
    for block in blocks:
        odd |= {rows + row: frame for row, frame in block.odd.items()}
        rows += len(block.offsets)
    return Block(
        first.data,
        first.base,
        max(block.stop for block in blocks),
        _joined([block.offsets for block in blocks]),
        _joined([block.lengths for block in blocks]),
        _joined([block.contexts for block in blocks]),
        odd,
    )


def _joined(parts: list[Ints]) -> Ints:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
