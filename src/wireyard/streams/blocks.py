"""Windows cut into blocks: which rows a window holds, before anything is decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.streams.framer import OK, Frame, Framer
from wireyard.streams.window import Window

__all__ = [
    "UNKNOWN",
    "Block",
    "DirectedStream",
    "FrameScanner",
    "StreamBundle",
    "cut_blocks",
    "cut_window",
    "each_stream",
    "join_blocks",
]

Ints = npt.NDArray[np.int64]
UNKNOWN: Final = -(1 << 63)
"""Stands in the columns of a source where it has no value."""

FrameScanner = Callable[[Any, int, int, int, int, int], tuple[Ints, Ints, Ints]]
"""``(data, start, stop, last_start, max_packet_bytes, context)`` -> starts, sizes, contexts.

Of whole packets that follow each other; there is one context more, that of what follows them."""

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Block:
    """The rows of one window: where each begins in the stream, and which are no packets.

    Shapes: places, offsets, lengths, contexts (r). `odd` maps a row number to its frame; every
    other row is a framed packet and lies at its place in `data`. What begins before `data` does
    has a negative place. Nothing at or after `stop` belongs to the rows. `owners` has, of several
    streams that are read together, the place of the one that each row is of.
    """

    data: npt.NDArray[np.uint8]
    stop: int
    places: Ints
    offsets: Ints
    lengths: Ints
    contexts: Ints
    odd: dict[int, Frame]
    owners: Ints | None = None

    @property
    def packet_count(self) -> int:
        """How many rows are framed packets."""
        return len(self.offsets) - len(self.odd)

    def view(self, row: int) -> memoryview:
        """Return the bytes of a framed packet."""
        start = int(self.places[row])
        return self.data[start : start + int(self.lengths[row])].data

    def pick(self, rows: Ints) -> Block:
        """Return the block with only the given rows, in order."""
        odd = {}
        if self.odd:
            kept = enumerate(rows.tolist())
            odd = {place: self.odd[row] for place, row in kept if row in self.odd}
        places, offsets = self.places[rows], self.offsets[rows]
        lengths, contexts = self.lengths[rows], self.contexts[rows]
        owners = None if self.owners is None else self.owners[rows]
        return Block(self.data, self.stop, places, offsets, lengths, contexts, odd, owners)


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
        """Its bytes, None if they are unknown."""

    @property
    def bytes_ahead(self) -> int:
        """How many bytes there are to read, or the most there can be if that is unknown."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from where `framer` stands; the parameters are those of `cut_blocks`."""

    @property
    def constants(self) -> Mapping[str, str | int]:
        """What only the source has and is the same for all rows, by column."""

    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return what else only the source has about the rows of a block, by column."""

    def close(self) -> None:
        """Close the source, however far it was read."""


class StreamBundle(ABC):
    """Several small streams that are read together: a `DirectedStream` whose blocks have `owners`.

    A class and no protocol: to ask each stream of a capture whether it has the methods of one would
    take longer than to read it.
    """

    name: str
    """The source, as rows name it."""

    @abstractmethod
    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return what differs from row to row of a block and only the source has, by column."""

    @abstractmethod
    def streams(self) -> Sequence[DirectedStream]:
        """Return each stream by itself."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the streams."""

    @abstractmethod
    def pick(self, owners: Iterable[int]) -> Sequence[DirectedStream]:
        """Return each of some streams by itself, by their places; none of the others is made."""

    @abstractmethod
    def parts(
        self,
        fast: Any,
        max_packet_bytes: int,
        read: Callable[[DirectedStream], Iterator[Block]],
    ) -> Iterator[tuple[DirectedStream, Block]]:
        """Yield the blocks of the streams in order, each with the stream or the bundle it is of.

        Parameters
        ----------
        fast
            The compiled columns of the format; None to read each stream by itself.
        read
            Yields the blocks of a stream that is read by itself.
        """

    @abstractmethod
    def given(self, name: str, block: Block) -> pa.Array:
        """Return a column whose value all rows of a stream have in common."""


def each_stream(streams: Iterable[DirectedStream]) -> Iterator[DirectedStream]:
    """Yield streams, each of those that are read together by itself."""
    for opened in streams:
        yield from opened.streams() if isinstance(opened, StreamBundle) else (opened,)


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
    places: list[Ints] = []
    lengths: list[Ints] = []
    contexts: list[Ints] = []
    odd: dict[int, Frame] = {}
    rows = 0
    while not framer.in_step or framer.position < limit:
        start = framer.position - window.base
        if framer.in_step and start == window.stop:
            break
        if scanner is not None and framer.in_step:
            last = min(limit - window.base, window.stop)
            starts, sizes, before = scanner(
                window.data, start, window.stop, last, framer.max_packet_bytes, framer.context
            )
            if len(starts):
                places.append(starts)
                lengths.append(sizes)
                contexts.append(before[:-1])
                framer.context = int(before[-1])
                rows += len(starts)
                start = int(starts[-1] + sizes[-1])
                framer.position = window.base + start
                if framer.position >= limit or start == window.stop:
                    break
        with window.data[start : window.stop].data as view:
            frame = framer.next_frame(view, window.at_end)
        if frame is None:
            break
        places.append(np.array([frame.start - window.base], np.int64))
        lengths.append(np.array([frame.stop - frame.start], np.int64))
        contexts.append(np.array([frame.context], np.int64))
        if frame.status != OK:
            odd[rows] = frame
        rows += 1
    found = _joined(places)
    return Block(
        window.data,
        window.stop,
        found,
        found + window.base if window.base else found,
        _joined(lengths),
        _joined(contexts),
        odd,
    )


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return blocks of the same `data` as one."""
    if len(blocks) == 1:
        return blocks[0]
    rows = 0
    odd: dict[int, Frame] = {}
    for block in blocks:
        odd |= {rows + row: frame for row, frame in block.odd.items()}
        rows += len(block.offsets)
    return Block(
        blocks[0].data,
        max(block.stop for block in blocks),
        _joined([block.places for block in blocks]),
        _joined([block.offsets for block in blocks]),
        _joined([block.lengths for block in blocks]),
        _joined([block.contexts for block in blocks]),
        odd,
    )


def _joined(parts: list[Ints]) -> Ints:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
