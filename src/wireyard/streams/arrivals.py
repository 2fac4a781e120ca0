"""Bytes of a pipe, or of a file that grows or is replaced, as they arrive.

It uses `select` and polling, which work on every system and file system.
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
from wireyard.streams.source import MAGIC_BYTES, compression, reading

Stop = Callable[[], bool]

_READ_BYTES: Final = 1 << 20
"""Most bytes of one read, and the wanted capacity of a pipe, whose default is 64 KiB."""
_POLL_S: Final = 0.1
_LAST_S: Final = 0.5
"""Time to read on after `stop`: the writer of a pipe gets the same signal, and flushes then."""
_SECOND_NS: Final = 1_000_000_000


class Arrival(NamedTuple):
    """Bytes that arrived, or the news that none did."""

    data: bytes = b""
    idle_ns: int = 0
    """Time since the last bytes arrived."""
    begins: bool = False
    """Whether `data` is the beginning of a new file."""


def is_pipe(descriptor: int) -> bool:
    """Return whether a descriptor is a pipe or a socket."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def is_live(source: object) -> bool:
    """Return whether a source is an uncompressed pipe, whose bytes are read as they arrive."""
    if source == "-":
        try:
            descriptor = sys.stdin.buffer.fileno()
        except (OSError, ValueError):
            return False
        # `select` would not see the bytes that a decompressor holds.
        return is_pipe(descriptor) and not compression(first_bytes()[:MAGIC_BYTES])
    return isinstance(source, str | os.PathLike) and Path(source).is_fifo()


def first_bytes() -> bytes:
    """Return the buffered bytes of standard input, after one read if there are none."""
    return cast(BufferedReader, sys.stdin.buffer).peek(MAGIC_BYTES)


def arrivals_of_pipe(descriptor: int, name: str, stop: Stop) -> Iterator[Arrival]:
    """Yield the bytes that arrive in a pipe, to its end or until `stop`.

    An `Arrival` without bytes comes as soon as the pipe is empty, and at every poll after that.
    `SourceError` is raised if the pipe cannot be read.
    """
    with reading(name):
        _enlarge(descriptor)
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


def _enlarge(descriptor: int) -> None:
    """Enlarge the buffer of a pipe, because many small reads are slow."""
    if (command := getattr(fcntl, "F_SETPIPE_SZ", None)) is not None:
        with suppress(OSError):  # no pipe, or over the limit of this user
            fcntl.fcntl(descriptor, command, _READ_BYTES)


def _is_ready(descriptor: int, wait_s: float) -> bool:
    return bool(select([descriptor], [], [], wait_s)[0])


def _read_ready(descriptor: int) -> tuple[bytes, bool]:
    """Return the bytes that can be read without waiting, and whether the pipe ends after them."""
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
    """Yield the bytes of a file and of its successors as they are written, until `stop`.

    A file has a successor if its name gets another inode, or if it becomes shorter than the bytes
    that were read. The rest of the old file is yielded first. If `path` is a pattern such as
    ``traffic-*.pcap``, the successors are the files that match and were not read yet, by time of
    their last change. `SourceError` is raised if there is no such file, or if it cannot be read.
    """
    follower = _Follower(path)
    try:
        with reading(path):
            yield from follower.arrivals(stop)
    finally:
        follower.close()


class _Follower:
    """Reads a file and its successors; parameters as of `arrivals_of_file`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_pattern = not Path(path).exists() and glob(path) != []
        self._read: set[tuple[int, int]] = set()
        """Device and inode of the files that were read and still exist."""
        self._descriptor = -1
        self._position = 0
        first = self._next()
        if first is None:
            raise SourceError(f"{path}: there is no such file")
        self._open(first)

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
            elif (successor := self._next()) is not None:
                while data := os.read(self._descriptor, _READ_BYTES):
                    yield Arrival(data, begins=begins)
                    begins = False
                self.close()
                self._open(successor)
                begins = True
            else:
                time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the current file."""
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
        """Return the next file to read, None if there is none yet."""
        files = []
        for path in glob(self._path) if self._is_pattern else [self._path]:
            try:
                status = os.stat(path)
            except FileNotFoundError:  # it may be missing for a moment while it is replaced
                continue
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime_ns, path, (status.st_dev, status.st_ino)))
        self._read &= {inode for _, _, inode in files}
        return next((path for _, path, inode in sorted(files) if inode not in self._read), None)
