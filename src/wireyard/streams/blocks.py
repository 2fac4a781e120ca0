"""Framing of windows to blocks, which hold the positions of rows before they are decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bytes, Ints
from wireyard.formats.base import Format
from wireyard.streams.framer import OK, Frame, Framer
from wireyard.streams.window import Window

UNKNOWN: Final = -(1 << 63)
"""Stands for null in integer columns of a source."""

FrameScanner = Callable[[Any, int, int, int, int, int], tuple[Ints, Ints, Ints]]
"""``(data, start, stop, last_start, max_packet_bytes, context)`` -> starts, sizes, contexts.

It finds whole packets that follow each other. There is one context more, that of the bytes after
them."""

_NO_LIMIT = 1 << 62
MOST_ROWS: Final = 1 << 15
"""Rows after which a block ends: those of packets of two bytes take 200 times their memory."""


@dataclass(frozen=True)
class Block:
    """The rows of one window: their positions, and the frames that are no packets.

    Shapes: places, offsets, lengths, contexts (r). `places` are positions in `data`, `offsets` in
    the stream; a row that begins before `data` has a negative place. `odd` has the frames of rows
    that are no packets, by row number; every other row is a framed packet. No row has bytes at or
    after `stop`. For streams that are read together, `owners` has the number of each row's stream.
    """

    data: Bytes
    stop: int
    places: Ints
    offsets: Ints
    lengths: Ints
    contexts: Ints
    odd: dict[int, Frame]
    owners: Ints | None = None

    @property
    def packet_count(self) -> int:
        """Number of rows that are framed packets."""
        return len(self.offsets) - len(self.odd)

    @property
    def stream_rows(self) -> Ints:
        """Number of rows of each stream, in order."""
        rows = len(self.offsets)
        if self.owners is None:
            return np.array([rows])
        return np.diff(np.flatnonzero(np.diff(self.owners, prepend=-1)), append=rows)

    def view(self, row: int) -> memoryview:
        """Return the bytes of a framed packet."""
        start = int(self.places[row])
        return self.data[start : start + int(self.lengths[row])].data

    def pick(self, rows: Ints) -> Block:
        """Return the block with only the given rows, in order."""
        odd = {}
        if self.odd:
            picked = enumerate(rows.tolist())
            odd = {place: self.odd[row] for place, row in picked if row in self.odd}
        places, offsets = self.places[rows], self.offsets[rows]
        lengths, contexts = self.lengths[rows], self.contexts[rows]
        owners = None if self.owners is None else self.owners[rows]
        return Block(self.data, self.stop, places, offsets, lengths, contexts, odd, owners)


class DirectedStream(Protocol):
    """One direction of traffic, open for reading."""

    @property
    def name(self) -> str:
        """Name of the source in rows."""

    @property
    def stream(self) -> str:
        """Name of the stream in rows."""

    @property
    def context(self) -> int | None:
        """Context of the first frame; None for that of the format."""

    @property
    def size(self) -> int | None:
        """Size in bytes, None if unknown."""

    @property
    def bytes_ahead(self) -> int:
        """Number of bytes left to read, or an upper bound if that is unknown."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from the position of `framer` on; parameters as of `cut_blocks`."""

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Values that the source gives to all rows alike, by column."""

    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return values that the source gives to each row of a block, by column."""

    def close(self) -> None:
        """Close the source, however far it was read."""


class Grown(NamedTuple):
    """The new part of a stream, from the position of its framer on, which the next turn reuses."""

    format: Format
    opened: DirectedStream
    framer: Framer


def by_format(turn: Iterable[Grown]) -> Iterator[tuple[Format, list[Grown]]]:
    """Yield the streams that have grown together grouped by format, in their order."""
    ordered = sorted(turn, key=lambda grown: grown.format.label)
    for _, same_format in groupby(ordered, key=lambda grown: grown.format.label):
        streams = list(same_format)
        yield streams[0].format, streams


class StreamBundle(ABC):
    """Several small streams that are read together: a `DirectedStream` whose blocks have `owners`.

    It is a class because an `isinstance` check of a protocol takes longer than reading a small
    stream.
    """

    name: str
    """Name of the source in rows."""
    rows: Ints
    """A number for each stream."""

    @abstractmethod
    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return values that the source gives to each row of a block, by column."""

    @abstractmethod
    def streams(self) -> Sequence[DirectedStream]:
        """Return every stream as one of its own."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the streams."""

    @abstractmethod
    def pick(self, owners: Iterable[int]) -> Sequence[DirectedStream]:
        """Return the streams with these numbers, without making the others."""

    @abstractmethod
    def parts(
        self,
        fast: Any,
        max_packet_bytes: int,
        read: Callable[[DirectedStream], Iterator[Block]],
    ) -> Iterator[tuple[DirectedStream, Block]]:
        """Yield the blocks of the streams in order, each with its stream or with the bundle.

        `fast` is the compiled decoder of the format; None to read every stream on its own. `read`
        yields the blocks of such a stream.
        """

    @abstractmethod
    def given(self, name: str, block: Block) -> pa.Array:
        """Return a column that has one value per stream, for the rows of a block."""


def each_stream(streams: Iterable[DirectedStream]) -> Iterator[DirectedStream]:
    """Yield streams, with those of a bundle one by one."""
    for opened in streams:
        yield from opened.streams() if isinstance(opened, StreamBundle) else (opened,)


def cut_blocks(
    windows: Iterator[Window],
    framer: Framer,
    scanner: FrameScanner | None,
    limit: int | None = None,
) -> Iterator[Block]:
    """Yield the blocks of each window, and advance the window past their rows.

    The windows are the stream from the framer's position on. `scanner` finds runs of whole packets;
    without one the framer finds each frame. No row begins at or after the offset `limit`, if there
    is one; rows that begin before it are whole.
    """
    for window in windows:
        yield from cut_window(window, framer, scanner, limit)
        window.start = framer.position - window.base
        if framer.is_aligned and framer.position >= (_NO_LIMIT if limit is None else limit):
            return


def cut_window(
    window: Window, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
) -> Iterator[Block]:
    """Yield the rows of one window as blocks; none if it has no rows."""
    limit = _NO_LIMIT if limit is None else limit
    rows = MOST_ROWS
    while rows >= MOST_ROWS:  # else it has no more
        block = _next_block(window, framer, scanner, limit)
        rows = len(block.offsets)
        if rows:
            yield block


def _next_block(window: Window, framer: Framer, scanner: FrameScanner | None, limit: int) -> Block:
    """Return the next rows of a window, `MOST_ROWS` or a few more if it has as many."""
    places: list[Ints] = []
    lengths: list[Ints] = []
    contexts: list[Ints] = []
    odd: dict[int, Frame] = {}
    rows = 0
    while rows < MOST_ROWS and not (framer.is_aligned and framer.position >= limit):
        start = framer.position - window.base
        if framer.is_aligned and start == window.stop:
            break
        if scanner is not None and framer.is_aligned:
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
                if framer.position >= limit or start == window.stop or rows >= MOST_ROWS:
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
    starts = _joined(places)
    return Block(
        window.data,
        window.stop,
        starts,
        starts + window.base if window.base else starts,
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
