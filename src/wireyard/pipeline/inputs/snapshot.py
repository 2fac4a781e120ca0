"""Snapshots: a source as it was when the run began, even if it has grown since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wireyard.streams.source import Reading, open_source


class Snapshot:
    """The first bytes of a source as a file, which records how far it was read.

    `name` is its name in rows. It ends after `size` bytes; None to read to the end of the file.
    """

    def __init__(self, file: Reading, name: str, size: int | None) -> None:
        self.name = name
        self.reached = 0
        self._file = file
        self._size = size
        self._at = 0

    def seek(self, offset: int) -> None:
        """Set the position."""
        self._file.seek(offset)
        self._at = offset

    def readinto(self, buffer: memoryview) -> int:
        """Read into `buffer`; return the number of bytes, 0 at the end."""
        left = len(buffer) if self._size is None else max(self._size - self._at, 0)
        count = self._file.readinto(buffer[:left])
        self._at += count
        self.reached = max(self.reached, self._at)
        return count

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes; none at the end."""
        buffer = bytearray(count)
        return bytes(buffer[: self.readinto(memoryview(buffer))])


@contextmanager
def open_snapshot(source: str, size: int) -> Iterator[Snapshot]:
    """Open the first `size` bytes of a source; a compressed source is opened whole.

    A `SourceError` is raised if the source cannot be read.
    """
    name, file, known = open_source(source)
    with file:
        yield Snapshot(file, name, None if known is None else size)
