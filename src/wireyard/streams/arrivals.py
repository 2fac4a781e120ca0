"""Bytes as they arrive: of a pipe, and of a file that somebody still writes or replaces.

Plain `select` and polling, so that it is the same on every system and file system.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from glob import glob
from io import BufferedReader
from pathlib import Path
from select import select
from typing import Final, NamedTuple, cast

from wireyard.errors import SourceError
from wireyard.streams.source import compression, reading

__all__ = [
    "Arrival",
    "arrivals_of_file",
    "arrivals_of_pipe",
    "first_bytes",
    "is_live",
    "is_pipe",
]

Stop = Callable[[], bool]

_READ_BYTES: Final = 1 << 20
"""What is read at once. A pipe has 64 KiB at a time unless it is asked to hold more."""
_MAGIC_BYTES: Final = 4
_POLL_S: Final = 0.1
_LAST_S: Final = 0.5
"""Whoever writes into a pipe gets the same signal, and writes what it still has."""
_SECOND_NS: Final = 1_000_000_000


class Arrival(NamedTuple):
    """What arrived, or that nothing did."""

    data: bytes = b""
    idle_ns: int = 0
    """How long nothing has arrived."""
    begins: bool = False
    """Whether `data` and what follows is in a new file."""


def is_pipe(descriptor: int) -> bool:
    """Return whether bytes of a descriptor come when somebody writes them."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def is_live(source: object) -> bool:
    """Return whether a source is a pipe whose bytes are read as they arrive, and not compressed."""
    if source == "-":
        try:
            descriptor = sys.stdin.buffer.fileno()
        except (OSError, ValueError):
            return False
        # What a decompressor has ready is known to nobody but it.
        return is_pipe(descriptor) and not compression(first_bytes()[:_MAGIC_BYTES])
    return isinstance(source, str | os.PathLike) and Path(source).is_fifo()


def first_bytes() -> bytes:
    """Return what the buffer of standard input holds, filled once if it holds nothing."""
    return cast(BufferedReader, sys.stdin.buffer).peek(_MAGIC_BYTES)


def arrivals_of_pipe(descriptor: int, name: str, stop: Stop) -> Iterator[Arrival]:
    """Yield what arrives in a pipe, to its end or until `stop`; at once that nothing more is there.

    Raises
    ------
    SourceError
        The pipe cannot be read.
    """
    with reading(name):
        _hold_more(descriptor)
        idle_since: float | None = None
        stops_at: float | None = None
        while True:
            if stops_at is None and stop():
                stops_at = time.monotonic() + _LAST_S
            if stops_at is not None and time.monotonic() > stops_at:
                return
            if not _is_ready(descriptor, 0.0 if idle_since is None else _POLL_S):
                now = time.monotonic()
                idle_since = now if idle_since is None else idle_since
                yield Arrival(idle_ns=int((now - idle_since) * _SECOND_NS))
                continue
            idle_since = None
            data, at_end = _read_ready(descriptor)
            if data:
                yield Arrival(data)
            if at_end:
                return


def _hold_more(descriptor: int) -> None:
    """Let who writes into a pipe be further ahead: to read little at a time costs the most."""
    if (command := getattr(fcntl, "F_SETPIPE_SZ", None)) is not None:
        with suppress(OSError):  # no pipe, or more than this user may have
            fcntl.fcntl(descriptor, command, _READ_BYTES)


def _is_ready(descriptor: int, wait_s: float) -> bool:
    return bool(select([descriptor], [], [], wait_s)[0])


def _read_ready(descriptor: int) -> tuple[bytes, bool]:
    """Return what can be read without waiting, and whether the pipe ends with it."""
    parts: list[bytes] = []
    size = 0
    while size < _READ_BYTES:
        part = os.read(descriptor, _READ_BYTES - size)
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
        if not _is_ready(descriptor, 0.0):
            break
    return b"".join(parts), False


def arrivals_of_file(path: str, stop: Stop) -> Iterator[Arrival]:
    """Yield what a file has and gets, until `stop`, and of the files that take its place.

    Another file has taken its place when there is one of another inode under its name, or one that
    is shorter than what was read. What is left of the old one comes first.

    Parameters
    ----------
    path
        A file, or a pattern such as ``traffic-*.pcap``: then another file takes its place when one
        matches that was not read yet, in the order of their last changes.

    Raises
    ------
    SourceError
        There is no such file, or it cannot be read.
    """
    follower = _Follower(path)
    try:
        with reading(path):
            yield from follower.arrivals(stop)
    finally:
        follower.close()


class _Follower:
    """A file, and those that take its place."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_pattern = not Path(path).exists() and glob(path) != []
        self._read: set[tuple[int, int]] = set()
        """Device and inode of files that were read, of those that are still there."""
        self._descriptor = -1
        self._position = 0
        found = self._next()
        if found is None:
            raise SourceError(f"{path}: there is no such file")
        self._open(found)

    def arrivals(self, stop: Stop) -> Iterator[Arrival]:
        idle_since: float | None = None
        begins = False
        while True:
            data = os.read(self._descriptor, _READ_BYTES)
            if data:
                self._position += len(data)
                yield Arrival(data, begins=begins)
                begins, idle_since = False, None
                if stop():
                    return
                continue
            now = time.monotonic()
            idle_since = now if idle_since is None else idle_since
            yield Arrival(idle_ns=int((now - idle_since) * _SECOND_NS))
            if stop():
                return
            if os.fstat(self._descriptor).st_size < self._position:
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                self._position, begins = 0, True
            elif (found := self._next()) is not None:
                while data := os.read(self._descriptor, _READ_BYTES):
                    yield Arrival(data, begins=begins)
                    begins = False
                self.close()
                self._open(found)
                begins = True
            else:
                time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the file that is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, path: str) -> None:
        with reading(path):
            self._descriptor = os.open(path, os.O_RDONLY)
            self._position = 0
            status = os.fstat(self._descriptor)
            self._read.add((status.st_dev, status.st_ino))

    def _next(self) -> str | None:
        """Return the file that comes after the one that is open, None if there is none yet."""
        found = []
        for path in glob(self._path) if self._is_pattern else [self._path]:
            try:
                status = os.stat(path)
            except FileNotFoundError:  # between two files of one name there may be none
                continue
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, path, (status.st_dev, status.st_ino)))
        self._read &= {inode for _, _, inode in found}
        return next((path for _, path, inode in sorted(found) if inode not in self._read), None)
