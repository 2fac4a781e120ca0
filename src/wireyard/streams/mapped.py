"""Files as memory: local files are mapped, of remote files only the needed ranges are fetched.

Narrow columns decode so fast that copying the stream first would be half of the work.

A mapped page that cannot be read, because a disk fails or the file was truncated, would end the
process with a signal. So every window is populated by `madvise` before it is used, which fails as a
read does.

Python's own `mmap` keeps a file open for each mapping, and a capture may have more files than a
process may open. So `mmap` of the C library is called.

A remote file is memory of the same size; only its beginning and the fetched ranges have content.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import (
    MADV_DONTNEED,
    MAP_ANONYMOUS,
    MAP_PRIVATE,
    MAP_SHARED,
    PAGESIZE,
    PROT_READ,
    mmap,
)
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.errors import SourceError
from wireyard.streams.scan import OpenedStream
from wireyard.streams.source import MAGIC_BYTES, compression, filesystem
from wireyard.streams.window import Windows, windows_of_bytes

_WINDOW_BYTES = 8 << 20
"""Larger than `WINDOW_BYTES`: mapped pages are not in the cache yet, and fewer windows are less
Python."""
_POPULATE_READ = 22  # of Linux 5.14
_MAP_NORESERVE = 0x4000  # of Linux: pages that are never written take no memory
_FETCHES = 8
_FETCH_BYTES = 16 << 20
"""Bytes of a remote file that one request fetches, of which `_FETCHES` are under way at once."""
_LARGE_BYTES = 16 << 20
"""More bytes of a source that cannot be mapped are in a temporary file."""
_NEAR_PAGES = 16
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
    """Open a stream's mapped file as windows from `start` on; of its first `size` bytes if given.

    Returns None if the file cannot be mapped: it is remote, compressed or ends before `start`, or
    the system is too old or has no address space. The caller then reads it, which raises the error
    if there is one.
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
    """Return a whole file as memory, None if it can be neither mapped nor fetched.

    Only pages of ``[start, stop)`` may be used; they have been read once. Those of a local file may
    be evicted and read again by the system, those of a remote one stay in memory.
    """
    return _map_ranges(path, lambda size: [(start, size if stop is None else min(stop, size))])


def map_places(path: str, parts: Iterable[tuple[Ints, Ints]]) -> Bytes | None:
    """Return a file as memory as `map_bytes` does, of which only some ranges may be used.

    `parts` are the starts and stops of the ranges, one part of the file after the other. The result
    is None, too, if the file ends before one of them does.
    """
    end = 0

    def ranges(size: int) -> Iterator[tuple[int, int]]:
        nonlocal end
        for starts, stops in parts:
            end = max(end, int(stops.max(initial=0)))
            yield from _page_ranges(starts, stops, size)

    data = _map_ranges(path, ranges)
    return data if data is not None and end <= len(data) else None


def spooled(pieces: Iterable[memoryview]) -> Bytes:
    """Return bytes that arrive in pieces as memory, or if they are many as a mapped file.

    The file has no name; the system may write its pages out and read them again. `SourceError` is
    raised if the folder of temporary files has no space for it.
    """
    size = 0
    with SpooledTemporaryFile(_LARGE_BYTES) as file:
        for piece in pieces:
            try:
                size += file.write(piece)
            except OSError as error:
                raise SourceError(
                    f"{gettempdir()}: no room for a capture of over {size:,} bytes"
                    f" ({error.strerror}); TMPDIR names another folder"
                ) from None
        file.seek(0)  # flushes
        if size <= _LARGE_BYTES:
            return np.frombuffer(file.read(), np.uint8)
        return np.frombuffer(_Unnamed(file.fileno(), size, prot=PROT_READ), np.uint8)


class _Unnamed(mmap):
    """A mapped file of our own, whose pages can be read again whatever becomes of disks."""


def release(data: Bytes, start: int, stop: int) -> None:
    """Let go of the pages between two offsets of bytes that are `spooled`; reading loads them."""
    pages = data.base.obj if isinstance(data.base, memoryview) else None
    first, size = start // PAGESIZE * PAGESIZE, stop // PAGESIZE * PAGESIZE - start
    if isinstance(pages, _Unnamed) and size > 0:
        pages.madvise(MADV_DONTNEED, first, size + start - first)


def _page_ranges(starts: Ints, stops: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Yield the pages of ranges of a file; ranges that are near each other are joined."""
    filled = starts < stops
    firsts, lasts = starts[filled] // PAGESIZE, (stops[filled] - 1) // PAGESIZE
    order = np.argsort(firsts)
    firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
    apart = firsts[1:] > lasts[:-1] + _NEAR_PAGES
    begins = firsts[np.r_[True, apart][: len(firsts)]] * PAGESIZE
    ends = (lasts[np.r_[apart, True][: len(lasts)]] + 1) * PAGESIZE
    yield from zip(begins.tolist(), np.minimum(ends, size).tolist(), strict=True)


def _map_ranges(path: str, ranges: Callable[[int], Iterable[tuple[int, int]]]) -> Bytes | None:
    """Map or fetch a file; `ranges` returns the parts to read, given its size."""
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
        if not len(head) or compression(head[:MAGIC_BYTES].tobytes()):
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
            at: min(at + _FETCH_BYTES, stop)
            for start, stop in ranges(size)
            for at in range(max(start, len(head)), stop, _FETCH_BYTES)
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
    # Every array over the mapping holds a reference; at exit the system unmaps it.
    weakref.finalize(held, _LIBRARY.munmap, address, size).atexit = False
    pages = np.frombuffer(memoryview(held), np.uint8)
    pages.flags.writeable = False
    return None if compression(pages[:MAGIC_BYTES].tobytes()) else pages


def _windows(path: str, data: Bytes, start: int) -> Windows:
    for window in windows_of_bytes(data, start, _WINDOW_BYTES):
        _populate(path, data, window.start, window.stop)
        yield window


def _populate(path: str, pages: Bytes, start: int, stop: int) -> None:
    begin = start - start % PAGESIZE
    if _LIBRARY.madvise(pages.ctypes.data + begin, stop - begin, _POPULATE_READ):
        raise SourceError(f"{path}: cannot be read on at byte {start}")
