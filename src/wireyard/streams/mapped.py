"""Files as memory: local ones are mapped, of remote ones the ranges that are needed are fetched.

Narrow columns are read so fast that copying the stream first would be half of the work.

A mapped page that cannot be read, because a disk fails or somebody cut the file, ends the process
with a signal. So every window is asked of the system before anybody looks at it, which fails like
a read would.

Python's own `mmap` keeps a file open for each mapping, and a capture may have more files than a
process may have open. So the system is asked by its C library.

A remote file has as many pages, without content but at its beginning and where ranges of it were
fetched.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PAGESIZE, PROT_READ, mmap
from pathlib import Path

import numpy as np

from wireyard.errors import SourceError
from wireyard.streams.scan import OpenedStream
from wireyard.streams.source import compression, filesystem
from wireyard.streams.window import Bytes, Windows, windows_of_bytes

__all__ = ["map_bytes", "map_places", "map_windows"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_WINDOW_BYTES = 8 << 20
"""A window that is read has to stay in the cache, which half of this does better. One that is
mapped never was in it, and fewer windows are less Python."""
_POPULATE_READ = 22  # of Linux 5.14
_MAP_NORESERVE = 0x4000  # of Linux: pages that are never written take no memory
_FETCHES = 8
_NEAR_PAGES = 16
_MAGIC_BYTES = 4
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBRARY.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NO_ADDRESS = ctypes.c_void_p(-1).value


def map_windows(path: str, start: int, size: int | None = None) -> OpenedStream | None:
    """Open the first `size` bytes of a stream, or all, as windows of its file's pages from `start`.

    Returns None where that cannot be done: the file is no local one, is compressed or ends before
    `start`, or the system is too old or has no room. Reading it then works, or says what is wrong.
    """
    if "://" in path:
        return None
    try:
        pages = _map(path)
        if pages is None or start >= len(pages):
            return None
        data = pages[:size]
        windows = _windows(path, data, start)
        return OpenedStream(path, next(windows), windows, len(data) - start)
    except (OSError, SourceError):
        return None


def map_bytes(path: str, start: int = 0, stop: int | None = None) -> Bytes | None:
    """Return the bytes of a whole file as its pages, None where they cannot be had.

    Every page of ``[start, stop)`` was read once; of a local file the system may take it back and
    read it again when it is looked at, of a remote one it stays in memory. Nobody should look at
    the others.
    """
    return _map_ranges(path, lambda size: [(start, size if stop is None else min(stop, size))])


def map_places(path: str, parts: Iterable[tuple[Ints, Ints]]) -> Bytes | None:
    """Return the bytes of a file as `map_bytes` does, of which only some places are looked at.

    None as well if the file ends before one of them does.

    Parameters
    ----------
    parts
        Where some of the places begin and end, one part of the file behind the other.
    """
    behind = 0

    def ranges(size: int) -> Iterator[tuple[int, int]]:
        nonlocal behind
        for starts, stops in parts:
            behind = max(behind, int(stops.max(initial=0)))
            yield from _page_ranges(starts, stops, size)

    data = _map_ranges(path, ranges)
    return data if data is not None and behind <= len(data) else None


def _page_ranges(starts: Ints, stops: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Yield the pages that places of a file lie in; what is not far apart is asked for at once."""
    there = starts < stops
    firsts, lasts = starts[there] // PAGESIZE, (stops[there] - 1) // PAGESIZE
    order = np.argsort(firsts)
    firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
    apart = firsts[1:] > lasts[:-1] + _NEAR_PAGES
    begins = firsts[np.r_[True, apart][: len(firsts)]] * PAGESIZE
    ends = (lasts[np.r_[apart, True][: len(lasts)]] + 1) * PAGESIZE
    yield from zip(begins.tolist(), np.minimum(ends, size).tolist(), strict=True)


def _map_ranges(path: str, ranges: Callable[[int], Iterable[tuple[int, int]]]) -> Bytes | None:
    """Map a file of whose size follows which parts of it have to be there."""
    try:
        if "://" in path:
            return _fetch_ranges(path, ranges)
        pages = _map(path)
        if pages is None:
            return None
        for start, stop in ranges(len(pages)):
            for at in range(start, stop, _WINDOW_BYTES):
                _populate(path, pages, at, min(at + _WINDOW_BYTES, stop))
        return pages
    except (OSError, ValueError, SourceError):
        return None


def _fetch_ranges(path: str, ranges: Callable[[int], Iterable[tuple[int, int]]]) -> Bytes | None:
    """Fetch ranges of a remote file, unless it is compressed."""
    system, inner = filesystem(path)
    with system.open_input_file(inner) as file:
        size = file.size()
        head = np.frombuffer(file.read_at(min(size, PAGESIZE), 0), np.uint8)
        if not len(head) or compression(head[:_MAGIC_BYTES].tobytes()):
            return None
        pages = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE)
        data = np.frombuffer(pages, np.uint8)
        data[: len(head)] = head

        def fetch(start: int) -> None:
            block = np.frombuffer(file.read_at(stops[start] - start, start), np.uint8)
            if len(block) < stops[start] - start:
                raise SourceError(f"{path}: cannot be read on at byte {start + len(block)}")
            data[start : stops[start]] = block

        stops = {
            at: min(at + _WINDOW_BYTES, stop)
            for start, stop in ranges(size)
            for at in range(start, stop, _WINDOW_BYTES)
        }
        with ThreadPoolExecutor(_FETCHES) as pool:
            for _ in pool.map(fetch, stops):
                pass
    return data


def _map(path: str) -> Bytes | None:
    """Map a file, unless it is empty or compressed."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return None
        address = _LIBRARY.mmap(None, size, PROT_READ, MAP_SHARED, file.fileno(), 0)
    if address == _NO_ADDRESS:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    held = (ctypes.c_ubyte * size).from_address(address)
    # Every array of its bytes keeps it; at the end of the process nothing has to be given back.
    weakref.finalize(held, _LIBRARY.munmap, address, size).atexit = False
    pages = np.frombuffer(memoryview(held), np.uint8)
    pages.flags.writeable = False
    return None if compression(pages[:_MAGIC_BYTES].tobytes()) else pages


def _windows(path: str, data: Bytes, start: int) -> Windows:
    for window in windows_of_bytes(data, start, _WINDOW_BYTES):
        _populate(path, data, window.start, window.stop)
        yield window


def _populate(path: str, pages: Bytes, start: int, stop: int) -> None:
    begin = start - start % PAGESIZE
    if _LIBRARY.madvise(pages.ctypes.data + begin, stop - begin, _POPULATE_READ):
        raise SourceError(f"{path}: cannot be read on at byte {start}")
