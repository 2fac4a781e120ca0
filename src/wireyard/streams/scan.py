"""Streams to Arrow batches, for any format: windows, blocks, batches, on one thread or several."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, groupby
from threading import local
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from wireyard.formats.base import Format
from wireyard.streams.batches import BlockReader, Part
from wireyard.streams.blocks import (
    Block,
    DirectedStream,
    FrameScanner,
    Ints,
    StreamBundle,
    cut_blocks,
)
from wireyard.streams.framer import Framer
from wireyard.streams.plan import Plan
from wireyard.streams.source import Source, compression, open_source
from wireyard.streams.turns import in_turns
from wireyard.streams.window import (
    WINDOW_BYTES,
    Window,
    Windows,
    even_bytes,
    windows_of_bytes,
    windows_of_file,
)

__all__ = [
    "OpenedStream",
    "bundles",
    "load_fast_path",
    "open_windows",
    "parts_of",
    "scan_parts",
    "scan_source",
    "scan_stream",
    "scan_streams",
    "thread_count",
]

Turn = tuple[Plan, Any, Iterable[Part]]
"""A plan, the compiled columns for it, and blocks that whoever takes the turn decodes."""

_COLD_BYTES = 1 << 20
"""Below this a cold process has the scalar reader's answer about as soon as the kernels are loaded,
which takes 0.4 s: of the smallest MQTT packets it reads 1.6 MB/s."""
_SMALLER_WITH_NUMBA: Final = 2
"""By how many bits less that is where Numba is loaded, as it is for all captures: the kernels alone
take 0.1 s."""
_WARM_BYTES = 1 << 10
"""The same for a process that has loaded them."""
_MOST_THREADS: Final = 8
"""So many have all that memory sends."""
_MOST_IDLE: Final = 4
"""Readers that are kept for a scan to come."""
_ROWS_TOGETHER: Final = 1 << 16
"""Of blocks that one call reads: those of acknowledgements take 60 times as much as their bytes."""


def thread_count(format: Format, *, captured: bool) -> int:
    """Return how many threads are to decode streams of a format where the caller leaves it open.

    One for a bare stream whose decoder finds frames itself. Several have to find them first, one
    thread at a time, which takes 1.2 to 1.7 times the processor time and no less of any other; to
    the tables that questions are asked of, where writing takes most of it, 1.06 times. Else one for
    each core, up to `_MOST_THREADS`.

    Parameters
    ----------
    captured
        Whether the streams are of a capture.
    """
    if format.decoder_frames and not captured:
        return 1
    return min(os.cpu_count() or 1, _MOST_THREADS)


def scan_source(
    source: Source,
    plan: Plan,
    *,
    framer: Framer | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a source as batches, in stream order.

    Parameters
    ----------
    source
        What `open_source` takes.
    framer
        Where to begin, which has to be the boundary of a frame; the stream's beginning if None.
    limit
        Only rows that begin before this offset; to the end of the stream if None.
    threads
        How many decode at the same time; the order of batches stays.

    Raises
    ------
    SourceError
        The source cannot be read.
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    framer = framer or plan.framer()
    opened = open_windows(source, framer.position)
    yield from scan_stream(opened, plan, framer, limit, threads)


@dataclass(frozen=True)
class OpenedStream:
    """A source that is one stream, as windows, the first of them read.

    `size` is in bytes, None if not known.
    """

    name: str
    first: Window
    rest: Windows
    size: int | None

    @property
    def windows(self) -> Iterator[Window]:
        """All windows; they can be gone through once."""
        return chain([self.first], self.rest)

    @property
    def bytes_ahead(self) -> int:
        """How many bytes there are, or the most there can be if that is unknown.

        A pipe and a compressed file are known when they end in the first window. Ask before the
        windows are gone through.
        """
        if self.size is not None:
            return self.size
        return len(self.first.view) if self.first.at_end else sys.maxsize

    @property
    def stream(self) -> str:
        """The stream, as rows name it: as they name the source."""
        return self.name

    @property
    def context(self) -> None:
        """Nothing: the format defines how its streams begin."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from where `framer` stands, which is where the windows begin."""
        return cut_blocks(self.windows, framer, scanner, limit)

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Nothing: a bare stream does not say between whom it was sent."""
        return {}

    def columns(self, _block: Block) -> Mapping[str, Ints]:
        """Return nothing: a bare stream does not say when it was sent."""
        return {}

    def close(self) -> None:
        """Close the source, wherever the windows are."""
        self.rest.close()


def open_windows(source: Source, start: int = 0) -> OpenedStream:
    """Open a source as windows from offset `start` on, and read the first.

    Raises
    ------
    SourceError
        The source cannot be read.
    """
    if isinstance(source, bytes | bytearray | memoryview) and not compression(bytes(source[:4])):
        data = np.frombuffer(source, np.uint8)
        windows = windows_of_bytes(data, start, even_bytes(len(data) - start))
        return OpenedStream("<bytes>", next(windows), windows, len(data) - start)
    name, file, size = open_source(source, start)
    left = None if size is None else size - start
    windows = windows_of_file(file, name, start, even_bytes(left))
    return OpenedStream(name, next(windows), windows, left)


def scan_stream(
    opened: DirectedStream,
    plan: Plan,
    framer: Framer | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an opened stream from where `framer` stands, up to `limit`."""
    readers = _Readers(threads)
    yield from _decoded(_turns(opened, plan, readers, framer, limit), readers, threads)


def scan_streams(
    streams: Iterable[tuple[DirectedStream, Plan]], threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several streams, one behind the other; threads decode across them."""
    readers = _Readers(threads)
    yield from _decoded(_turns_of_all(streams, readers), readers, threads)


def scan_parts(
    streams: Iterable[tuple[DirectedStream, Plan]],
) -> Iterator[tuple[Sequence[Part], list[pa.RecordBatch]]]:
    """Yield the rows of several streams, those of small ones together, and the blocks they are of.

    The blocks have the rows that the batches have, in the same order.
    """
    readers = _Readers(1)
    for turn in _turns_of_all(streams, readers):
        reader = readers.reader(*turn[:2])
        for some in _of_same_data(turn[2]):
            batches = reader.read(some)
            yield reader.parts, batches
    readers.leave()


def bundles(
    streams: Iterable[tuple[DirectedStream, Plan]],
) -> Iterator[tuple[list[DirectedStream], Plan]]:
    """Yield streams that follow each other and fit a window together, each of the others alone.

    A call takes more time for itself than for the bytes of a small stream.
    """
    together: list[DirectedStream] = []
    plan, room = None, 0
    for opened, wanted in streams:
        size = sys.maxsize if opened.size is None else opened.size
        if plan is not None and (wanted is not plan or size > room):
            yield together, plan
            together, room = [], 0
        room = (room if together else WINDOW_BYTES) - size
        together.append(opened)
        plan = wanted
    if plan is not None:
        yield together, plan


def _turns_of_all(
    streams: Iterable[tuple[DirectedStream, Plan]], readers: _Readers
) -> Iterator[Turn]:
    for together, plan in bundles(streams):
        if len(together) > 1 or isinstance(together[0], StreamBundle):
            fast = load_fast_path(plan.format, max(each.bytes_ahead for each in together))
            scanner = readers.scanner(plan, fast)
            parts = (parts_of(opened, plan, fast, scanner) for opened in together)
            yield plan, fast, chain.from_iterable(parts)
        else:
            yield from _turns(together[0], plan, readers)


def _turns(
    opened: DirectedStream,
    plan: Plan,
    readers: _Readers,
    framer: Framer | None = None,
    limit: int | None = None,
) -> Iterator[Turn]:
    size = opened.bytes_ahead
    if limit is not None:
        size = min(size, limit - (framer.position if framer else 0))
    fast = load_fast_path(plan.format, size)
    framer = framer or plan.framer(context=opened.context)
    with closing(opened):
        for block in opened.blocks(framer, readers.scanner(plan, fast), limit):
            yield plan, fast, [(opened, block)]


def parts_of(
    opened: DirectedStream, plan: Plan, fast: Any, scanner: FrameScanner | None
) -> Iterator[Part]:
    """Yield the blocks of a stream, or of several that are read together.

    Parameters
    ----------
    fast, scanner
        The compiled columns of the format, and what finds frames; None to do without.
    """

    def read(one: DirectedStream) -> Iterator[Block]:
        return one.blocks(plan.framer(context=one.context), scanner)

    with closing(opened):
        if isinstance(opened, StreamBundle):
            yield from opened.parts(fast, plan.max_packet_bytes, read)
        else:
            yield from ((opened, block) for block in read(opened))


class _Readers:
    """The readers of a scan: each thread has its own for each plan.

    To make one takes as long as to read some hundred packets, and later it is known how much room a
    batch takes; so a scan leaves them to the next.
    """

    _idle: ClassVar[deque[BlockReader]] = deque(maxlen=_MOST_IDLE)

    def __init__(self, threads: int) -> None:
        self._alone = threads <= 1
        self._mine = local()
        self._taken: list[BlockReader] = []

    def reader(self, plan: Plan, fast: Any) -> BlockReader:
        """Return the thread's reader for a plan."""
        mine: list[BlockReader] = self._mine.__dict__.setdefault("readers", [])
        for reader in mine:
            if reader.fits(plan, fast):
                return reader
        reader = self._take_idle(plan, fast) or BlockReader(plan, fast)
        mine.append(reader)
        self._taken.append(reader)
        return reader

    def _take_idle(self, plan: Plan, fast: Any) -> BlockReader | None:
        for _ in range(len(self._idle)):
            try:
                reader = self._idle.popleft()
            except IndexError:  # others take some too
                break
            if reader.fits(plan, fast):
                return reader
            self._idle.append(reader)
        return None

    def leave(self) -> None:
        """Let the readers go: nobody reads with them any more."""
        for reader in self._taken:
            reader.let_go()
        self._idle.extend(self._taken)

    def scanner(self, plan: Plan, fast: Any) -> FrameScanner | None:
        """Return what finds frames; where threads take turns at it, it does nothing but that."""
        if fast is None:
            return None
        scanner: FrameScanner = fast.scan_frames
        return self.reader(plan, fast).scanner if self._alone else scanner


def _decoded(turns: Iterator[Turn], readers: _Readers, threads: int) -> Iterator[pa.RecordBatch]:
    def decode(turn: Turn) -> list[pa.RecordBatch]:
        plan, fast, parts = turn
        reader = readers.reader(plan, fast)
        return [batch for some in _of_same_data(parts) for batch in reader.read(some)]

    with closing(in_turns(decode, turns, threads)) as found:
        for batch in chain.from_iterable(found):
            if batch.num_rows:
                yield batch
    readers.leave()


def _of_same_data(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts whose blocks follow each other in one buffer, which one call reads.

    Those with many rows are several.
    """
    for _, some in groupby(parts, lambda part: id(part[1].data)):
        together: list[Part] = []
        rows = 0
        for part in some:
            if rows >= _ROWS_TOGETHER:
                yield together
                together, rows = [], 0
            together.append(part)
            rows += len(part[1].offsets)
        yield together


def load_fast_path(format: Format, size: int) -> Any:
    """Return the format's compiled columns, or None where loading them would cost more."""
    if format.fast_path in sys.modules:
        least = _WARM_BYTES
    else:
        least = _COLD_BYTES >> (_SMALLER_WITH_NUMBA if "numba" in sys.modules else 0)
    if size < least:
        return None
    return import_module(format.fast_path)
