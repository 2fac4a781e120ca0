"""Reading of streams to Arrow batches, for any format, on one thread or several."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, groupby
from threading import local
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from wireyard.arrays import Ints
from wireyard.formats.base import Format
from wireyard.streams.batches import BlockReader, DecodedParts, Part
from wireyard.streams.blocks import (
    Block,
    DirectedStream,
    FrameScanner,
    Grown,
    StreamBundle,
    by_format,
    cut_blocks,
)
from wireyard.streams.framer import Framer
from wireyard.streams.plan import Plan
from wireyard.streams.source import Damaged, Reading, Source, compression, open_source
from wireyard.streams.turns import in_turns
from wireyard.streams.window import (
    WINDOW_BYTES,
    Window,
    Windows,
    even_bytes,
    windows_of_bytes,
    windows_of_file,
)

Turn = tuple[Plan, Any, Iterable[Part]]
"""A unit of work for a thread: a plan, its compiled decoder, and the blocks to decode."""

_COLD_BYTES = 1 << 17
"""Fewer bytes are decoded by the scalar reader while no kernels are loaded: that takes about as
long as loading them. It decodes 1.6 MB/s of the smallest MQTT packets."""
_WARM_BYTES = 1 << 10
"""The same limit for a process that has loaded the kernels."""
_MOST_THREADS: Final = 8
"""More threads gain nothing: these use all of the memory bandwidth."""
_MOST_IDLE: Final = 4
"""Most readers that are kept for later scans."""
_ROWS_TOGETHER: Final = 1 << 16
"""Most rows to begin another block of a call with: rows of acknowledgements take 60 times the
memory of their packets."""
_STREAM_BYTES: Final = 64
"""Part of a window that a stream takes at least: its row is larger than one byte."""


def thread_count(format: Format, *, captured: bool) -> int:
    """Return the default number of threads to decode streams of a format.

    One for a bare stream (not `captured`) whose decoder finds frames itself. Several threads would
    have to find the frames first, one thread at a time, which takes 1.2 to 1.7 times the processor
    time and saves no elapsed time; 1.06 times for the tables of `wireyard.answers`, where writing
    takes most of it. Else one for each core, up to `_MOST_THREADS`.
    """
    if format.columnar.finds_frames and not captured:
        return 1
    return min(os.cpu_count() or 1, _MOST_THREADS)


@dataclass(frozen=True)
class OpenedStream:
    """A source of one stream, as windows, the first of which is read.

    `size` is in bytes, None if unknown.
    """

    name: str
    first: Window
    rest: Windows
    size: int | None
    file: Reading | None = None
    """The file that is read; None for bytes in memory."""

    @property
    def damage(self) -> Damaged | None:
        """The reason why the windows end early; valid once they were iterated."""
        return None if self.file is None else self.file.damage

    @property
    def windows(self) -> Iterator[Window]:
        """All windows; they can be iterated once."""
        return chain([self.first], self.rest)

    @property
    def bytes_ahead(self) -> int:
        """Number of bytes, or an upper bound if it is unknown.

        That of a pipe or a compressed file is known if it ends in the first window. It is valid
        before the windows are iterated.
        """
        if self.size is not None:
            return self.size
        return len(self.first.view) if self.first.at_end else sys.maxsize

    @property
    def stream(self) -> str:
        """Name of the stream in rows, which is that of the source."""
        return self.name

    @property
    def context(self) -> None:
        """None: the format defines the context of the first frame."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from the position of `framer`, where the windows begin."""
        return cut_blocks(self.windows, framer, scanner, limit)

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Empty: a bare stream has no endpoints."""
        return {}

    def columns(self, _block: Block) -> Mapping[str, Ints]:
        """Return no columns: a bare stream has no times."""
        return {}

    def close(self) -> None:
        """Close the source, however far it was read."""
        self.rest.close()


def open_windows(source: Source, start: int = 0, *, accepts_damage: bool = False) -> OpenedStream:
    """Open a source as windows from offset `start` on, and read the first.

    `SourceError` is raised if the source cannot be read. With `accepts_damage`, the windows end
    where it cannot be read further, with `damage` set.
    """
    if isinstance(source, bytes | bytearray | memoryview) and not compression(bytes(source[:4])):
        data = np.frombuffer(source, np.uint8)
        windows = windows_of_bytes(data, start, even_bytes(len(data) - start))
        return OpenedStream("<bytes>", next(windows), windows, len(data) - start)
    name, file, size = open_source(source, start)
    left = None if size is None else size - start
    size_of_windows = even_bytes(left)
    windows = windows_of_file(file, name, start, size_of_windows, accepts_damage=accepts_damage)
    return OpenedStream(name, next(windows), windows, left, file)


def scan_stream(
    opened: DirectedStream,
    plan: Plan,
    framer: Framer | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an opened stream from the position of `framer` up to `limit`."""
    readers = _Readers(threads)
    turns = _turns(opened, plan, readers, framer, limit)
    yield from _batches_of(_decoded(turns, readers, threads))


def scan_streams(
    streams: Iterable[tuple[DirectedStream, Plan]], threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several streams in order; threads decode blocks of different streams."""
    yield from _batches_of(scan_parts(streams, threads))


def scan_parts(
    streams: Iterable[tuple[DirectedStream, Plan]], threads: int = 1, **how: bool
) -> Iterator[DecodedParts]:
    """Yield the blocks of several streams and their rows; small streams are read together.

    `how` are parameters of `BlockReader`.
    """
    readers = _Readers(threads, **how)
    yield from _decoded(_turns_of_all(streams, readers), readers, threads)


def scan_grown(streams: Sequence[Grown], plan: Plan, **how: bool) -> Iterator[DecodedParts]:
    """Yield the new blocks of streams of one format and their rows; parameters as `scan_parts`.

    Unlike whole streams, the new bytes of growing ones add up: most have few, in one buffer.
    """
    readers = _Readers(1, **how)
    fast = load_fast_path(plan.format, sum(max(one.opened.bytes_ahead, 0) for one in streams))
    scanner = readers.scanner(plan, fast)
    parts = (
        (one.opened, block) for one in streams for block in one.opened.blocks(one.framer, scanner)
    )
    yield from _decoded(((plan, fast, group) for group in _of_same_data(parts)), readers, 1)


def read_turns(
    turns: Iterable[Sequence[Grown]], plan_of: Callable[[Format], Plan | None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of streams as they grow, in turns of those whose bytes arrived together.

    Streams of a format for which `plan_of` returns None are skipped.
    """
    size = 0
    for format, grown in chain.from_iterable(map(by_format, turns)):
        plan = plan_of(format)
        if plan is not None:
            size += sum(one.opened.bytes_ahead for one in grown)
            load_fast_path(format, size)  # load it once all bytes so far are worth it
            yield from _batches_of(scan_grown(grown, plan))


def bundles(
    streams: Iterable[tuple[DirectedStream, Plan]],
) -> Iterator[tuple[list[DirectedStream], Plan]]:
    """Group consecutive streams that fit into one window together; larger ones are alone.

    The overhead of a call exceeds the decoding of a small stream.
    """
    together: list[DirectedStream] = []
    plan, room = None, 0
    for opened, wanted in streams:
        size = sys.maxsize if opened.size is None else opened.size
        count = len(opened.rows) if isinstance(opened, StreamBundle) else 1
        size = max(size, _STREAM_BYTES * count)
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
    """Yield the blocks of a stream, or of the streams of a bundle.

    `fast` is the compiled decoder of the format, and `scanner` finds frames; None to do without.
    """

    def read(stream: DirectedStream) -> Iterator[Block]:
        return stream.blocks(plan.framer(context=stream.context), scanner)

    with closing(opened):
        if isinstance(opened, StreamBundle):
            yield from opened.parts(fast, plan.max_packet_bytes, read)
        else:
            yield from ((opened, block) for block in read(opened))


class _Readers:
    """The readers of a scan: one for each thread and plan.

    They are reused by later scans: making one takes as long as decoding some hundred packets, and a
    used one has measured how large batches are.
    """

    _idle: ClassVar[deque[BlockReader]] = deque(maxlen=_MOST_IDLE)

    def __init__(self, threads: int, **how: bool) -> None:
        self._alone, self._how = threads <= 1, how
        self._mine = local()
        self._taken: list[BlockReader] = []

    def reader(self, plan: Plan, fast: Any) -> BlockReader:
        """Return the thread's reader for a plan."""
        mine: list[BlockReader] = self._mine.__dict__.setdefault("readers", [])
        for reader in mine:
            if reader.fits(plan, fast, **self._how):
                return reader
        reader = self._take_idle(plan, fast) or BlockReader(plan, fast, **self._how)
        mine.append(reader)
        self._taken.append(reader)
        return reader

    def _take_idle(self, plan: Plan, fast: Any) -> BlockReader | None:
        for _ in range(len(self._idle)):
            try:
                reader = self._idle.popleft()
            except IndexError:  # another thread took the last
                break
            if reader.fits(plan, fast, **self._how):
                return reader
            self._idle.append(reader)
        return None

    def release(self) -> None:
        """Return the readers to the pool at the end of a scan."""
        self._idle.extend(self._taken)

    def scanner(self, plan: Plan, fast: Any) -> FrameScanner | None:
        """Return the scanner of frames; with several threads, one that does not decode them."""
        if fast is None:
            return None
        scanner: FrameScanner = fast.scan_frames
        return self.reader(plan, fast).scanner if self._alone else scanner


def _decoded(turns: Iterator[Turn], readers: _Readers, threads: int) -> Iterator[DecodedParts]:
    def decode(turn: Turn) -> list[DecodedParts]:
        plan, fast, parts = turn
        reader = readers.reader(plan, fast)
        return [reader.read(group) for group in _of_same_data(parts)]

    with closing(in_turns(decode, turns, threads)) as decoded:
        yield from chain.from_iterable(decoded)
    readers.release()


def _batches_of(decoded: Iterable[DecodedParts]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows."""
    return (batch for one in decoded for batch in one.batches if batch.num_rows)


def _of_same_data(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Group consecutive parts whose blocks share one buffer, for one call of a reader.

    A group ends after `_ROWS_TOGETHER` rows.
    """
    for _, same_data in groupby(parts, lambda part: id(part[1].data)):
        together: list[Part] = []
        rows = 0
        for part in same_data:
            if rows >= _ROWS_TOGETHER:
                yield together
                together, rows = [], 0
            together.append(part)
            rows += len(part[1].offsets)
        yield together


def load_fast_path(format: Format, size: int) -> Any:
    """Return the module of the format's compiled decoder, None if loading it would not pay."""
    if size < (_WARM_BYTES if format.columnar.module in sys.modules else _COLD_BYTES):
        return None
    return import_module(format.columnar.module)
