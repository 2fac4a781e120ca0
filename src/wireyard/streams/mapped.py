"""Local files as windows of their own pages: nothing is copied before it is decoded.

Narrow columns are read so fast that copying the stream first would be half of the work.

A mapped page that cannot be read, because a disk fails or somebody cut the file, ends the process
with a signal. So every window is asked of the system before anybody looks at it, which fails like
a read would.
"""

from __future__ import annotations

from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

import numpy as np

from wireyard.errors import SourceError
from wireyard.streams.scan import OpenedStream
from wireyard.streams.source import compression
from wireyard.streams.window import Bytes, Windows, windows_of_bytes

__all__ = ["map_bytes", "map_windows"]

_WINDOW_BYTES = 8 << 20
"""A window that is read has to stay in the cache, which half of this does better. One that is
mapped never was in it, and fewer windows are less Python."""
_POPULATE_READ = 22  # of Linux 5.14; the mmap module does not know it yet
_MAGIC_BYTES = 4


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
        data = np.frombuffer(pages, np.uint8)[:size]
        windows = _windows(path, pages, data, start)
        return OpenedStream(path, next(windows), windows, len(data) - start)
    except (OSError, ValueError, SourceError):  # a ValueError is an empty file
        return None


def map_bytes(path: str) -> Bytes | None:
    """Return the bytes of a whole file as its pages, None where `map_windows` returns None.

    Every page was read once; the system may take it back and read it again when it is looked at.
    """
    if "://" in path:
        return None
    try:
        pages = _map(path)
        if pages is None:
            return None
        for start in range(0, len(pages), _WINDOW_BYTES):
            _populate(path, pages, start, min(start + _WINDOW_BYTES, len(pages)))
        return np.frombuffer(pages, np.uint8)
    except (OSError, ValueError, SourceError):
        return None


def _map(path: str) -> mmap | None:
    """Map a file, unless it is compressed."""
    with Path(path).open("rb") as file:
        pages = mmap(file.fileno(), 0, access=ACCESS_READ)
    return None if compression(pages[:_MAGIC_BYTES]) else pages


def _windows(path: str, pages: mmap, data: Bytes, start: int) -> Windows:
    for window in windows_of_bytes(data, start, _WINDOW_BYTES):
        _populate(path, pages, window.start, window.stop)
        yield window


def _populate(path: str, pages: mmap, start: int, stop: int) -> None:
    begin = start - start % PAGESIZE
    try:
        pages.madvise(_POPULATE_READ, begin, stop - begin)
    except OSError:
        raise SourceError(f"{path}: cannot be read on at byte {start}") from None
