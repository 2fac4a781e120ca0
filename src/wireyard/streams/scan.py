"""Streams to Arrow batches, for any format: windows, blocks, batches, on one thread or several."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, count
from threading import Lock, local
from typing import Any

import numpy as np
import pyarrow as pa

from wireyard.formats.base import Format
from wireyard.streams.batches import BlockReader
from wireyard.streams.blocks import Block, DirectedStream, FrameScanner, cut_blocks
from wireyard.streams.framer import Framer
from wireyard.streams.plan import Plan
from wireyard.streams.source import Source, compression, open_source
from wireyard.streams.window import Window, Windows, windows_of_bytes, windows_of_file

__all__ = [
    "OpenedStream",
    "load_fast_path",
    "open_windows",
    "scan_source",
    "scan_stream",
    "scan_streams",
]

Turn = tuple[DirectedStream, Plan, Any, Block]
"""A block, the stream it is of, the plan it is read by, and the compiled columns for it."""
Batches = list[pa.RecordBatch]
Decode = Callable[[Turn], Batches]

_COLD_BYTES = 8 << 20
"""Below this a cold process has the scalar reader's answer before the kernels are loaded."""
_WARM_BYTES = 1 << 16
"""The same for a process that has loaded them."""


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
        """How many bytes there are, or the most there can be if nobody knows.

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
        """Nothing: the format knows how its streams begin."""

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the blocks from where `framer` stands, which is where the windows begin."""
        return cut_blocks(self.windows, framer, scanner, limit)

    def columns(self, _block: Block) -> Mapping[str, pa.Array]:
        """Return nothing: a bare stream does not say when or between whom it was sent."""
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
        windows = windows_of_bytes(data, start)
        return OpenedStream("<bytes>", next(windows), windows, len(data) - start)
    name, file, size = open_source(source, start)
    windows = windows_of_file(file, name, start)
    return OpenedStream(name, next(windows), windows, None if size is None else size - start)


def scan_stream(
    opened: DirectedStream,
    plan: Plan,
    framer: Framer | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an opened stream from where `framer` stands, up to `limit`."""
    with closing(opened):
        yield from _decoded(_turns(opened, plan, framer, limit), threads)


def scan_streams(
    streams: Iterable[tuple[DirectedStream, Plan]], threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several streams, one behind the other; threads decode across them."""

    def turns() -> Iterator[Turn]:
        for opened, plan in streams:
            with closing(opened):
                yield from _turns(opened, plan)

    yield from _decoded(turns(), threads)


def _turns(
    opened: DirectedStream, plan: Plan, framer: Framer | None = None, limit: int | None = None
) -> Iterator[Turn]:
    framer = framer or plan.framer(context=opened.context)
    size = opened.bytes_ahead
    if limit is not None:
        size = min(size, limit - framer.position)
    fast = load_fast_path(plan.format, size)
    scanner: FrameScanner | None = fast.scan_frames if fast else None
    for block in opened.blocks(framer, scanner, limit):
        yield opened, plan, fast, block


def _decoded(turns: Iterator[Turn], threads: int) -> Iterator[pa.RecordBatch]:
    own = local()

    def decode(turn: Turn) -> Batches:
        opened, plan, fast, block = turn
        if getattr(own, "opened", None) is not opened:
            own.opened, own.reader = opened, BlockReader(plan, opened, fast)
        batches: Batches = own.reader.read(block)
        return batches

    found = map(decode, turns) if threads <= 1 else _in_threads(decode, turns, threads)
    for batch in chain.from_iterable(found):
        if batch.num_rows:
            yield batch


def _in_threads(decode: Decode, blocks: Iterator[Turn], threads: int) -> Iterator[Batches]:
    """Decode in several threads, and yield what they made in order.

    Of what is decoded ahead there is never more than one block a thread, and one.
    """
    pool = _pool(threads)
    turns = _Turns(decode, blocks)
    under_way = deque(pool.submit(turns.take) for _ in range(threads + 1))
    ready: dict[int, Batches | Exception | None] = {}
    try:
        for number in count():
            while number not in ready:
                found, made = under_way.popleft().result()
                ready[found] = made
                under_way.append(pool.submit(turns.take))
            match ready.pop(number):
                case None:
                    return
                case Exception() as error:
                    raise error
                case batches:
                    yield batches
    finally:
        for future in under_way:
            if not future.cancel():
                future.result()  # it may still be reading
        turns.end()


class _Turns:
    """Blocks for threads to take: whoever cuts one decodes it, and has it in its own cache."""

    def __init__(self, decode: Decode, blocks: Iterator[Turn]) -> None:
        self._decode: Decode | None = decode
        self._blocks = blocks
        self._numbers = count()
        self._cutting = Lock()

    def take(self) -> tuple[int, Batches | Exception | None]:
        """Return the number of the next block and its batches, an error, or None at the end."""
        with self._cutting:
            number = next(self._numbers)
            try:
                block = next(self._blocks, None)
            except Exception as error:
                return number, error
        if block is None or self._decode is None:
            return number, None
        try:
            return number, self._decode(block)
        except Exception as error:
            return number, error

    def end(self) -> None:
        """Let go of the caller's bytes, for a thread may hold its last turn for a while."""
        self._decode, self._blocks = None, iter(())


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the threads that decode; kept, for the memory they have touched is worth as much."""
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along


def load_fast_path(format: Format, size: int) -> Any:
    """Return the format's compiled columns, or None where loading them would cost more."""
    loaded = format.fast_path in sys.modules
    if size < (_WARM_BYTES if loaded else _COLD_BYTES):
        return None
    return import_module(format.fast_path)
