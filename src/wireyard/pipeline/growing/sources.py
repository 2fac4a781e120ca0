"""The files of a growing input: a single file, or the files of a rotated capture in order.

The files of a rotated capture are ordered by the times of their first packets. A file has ended,
and no longer changes, once there is a later one; a later file under its name (`tcpdump -W`) is a
different file. A file without a packet has no place in the order yet, and waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from wireyard.arrays import Bytes
from wireyard.captures.files.file import Extent, read_records
from wireyard.captures.live.state import StateError
from wireyard.captures.records import NO_TIME
from wireyard.errors import SourceError
from wireyard.streams.mapped import map_bytes
from wireyard.streams.source import edges_crc32, reading

_MAGIC_BYTES: Final = 4
_HEAD_BYTES: Final = 64 << 10


@dataclass(slots=True)
class _File:
    """A file of the input, as it was at the last `refresh`."""

    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    begun_ns: int = NO_TIME
    """Time of its first packet."""
    edges_crc32: int = 0
    """Checksum of its first and last bytes, once it was read to its end."""

    @classmethod
    def at(cls, path: str) -> _File:
        """Return the current state of a file; raise `SourceError` if it is gone."""
        with reading(path):
            found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def is_unchanged(self, other: _File) -> bool:
        """Return whether another state of the file is the same."""
        names = ("device", "inode", "size", "modified_ns")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def stamp(self) -> dict[str, Any]:
        """Return its stamp: see `FoundInput`."""
        return {
            "size": self.size,
            "modified_ns": self.modified_ns,
            "edges_crc32": self.edges_crc32,
            "file": [self.device, self.inode],
        }


class GrowingFiles:
    """The bytes of an input's files, one file after another.

    `source` is the path of the input's file, or the folder of a rotated capture; a `rotated` one
    may continue in other files.
    """

    def __init__(self, source: str, *, rotated: bool) -> None:
        self.source, self._rotated = source, rotated
        self.offset = 0
        """Number of bytes that were read of the current file."""
        self._current: _File | None = None
        self._descriptor = -1
        self._done: list[_File] = []
        self._waiting: list[_File] = []
        self._seen: dict[str, _File] = {}
        """All files at the last `refresh`, by path."""
        self.without_packets: dict[str, _File] = {}
        """Files that have no place in the order yet."""

    # --- the list of files --------------------------------------------------------------------

    def refresh(self, paths: Iterable[str]) -> None:
        """Update the list of files and their sizes.

        A `StateError` is raised if a file that was read to its end has changed, or a new one begins
        before the current one; a `SourceError` if a file cannot be read.
        """
        if not self._rotated:
            found = _File.at(self.source)
            if self._current is None:
                self._begin(found)
            elif not self._update_current(found):
                raise StateError(f"{self.source} is another file than before")
            return
        done = {each.path: each for each in self._done}
        for path in paths:
            try:
                found = _File.at(path)
            except SourceError:
                continue  # removed since it was listed
            if path in self._seen and found.is_unchanged(self._seen[path]):
                continue
            self._seen[path] = found
            if self._update_current(found):
                continue
            before = done.get(path)
            if before is not None and found.is_unchanged(before):
                continue
            begun_ns = _begun_ns(path)
            self.without_packets.pop(path, None)
            if begun_ns is None:
                self.without_packets[path] = found
                continue
            found.begun_ns = begun_ns
            if before is not None and begun_ns == before.begun_ns:
                raise StateError(f"{path} has changed")
            self._waiting = [each for each in self._waiting if each.path != path]
            self._waiting.append(found)
        self._waiting.sort(key=attrgetter("begun_ns", "path"))
        if self._waiting and self._current and self._waiting[0].begun_ns < self._current.begun_ns:
            raise StateError(f"{self._waiting[0].path} begins before what was read")
        if self._waiting and self._current is None:
            self._begin(self._waiting.pop(0))

    def _update_current(self, found: _File) -> bool:
        """Update the size of the current file, if it is this one; return whether it is."""
        current = self._current
        if current is None or (found.device, found.inode) != (current.device, current.inode):
            return False
        if found.size < self.offset:
            raise StateError(f"{found.path} is shorter than before")
        current.path, current.size = found.path, found.size
        current.modified_ns = found.modified_ns
        return True

    def _begin(self, file: _File) -> None:
        with reading(file.path):
            self._descriptor = os.open(file.path, os.O_RDONLY)
        self._current, self.offset = file, 0

    def close(self) -> None:
        """Close the current file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- their bytes --------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The current file."""
        return self._current.path if self._current else self.source

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that were not read yet, at the last `refresh`."""
        now = max(self._current.size - self.offset, 0) if self._current else 0
        return now + sum(each.size for each in self._waiting)

    def read(self, most_bytes: int) -> bytes:
        """Return the next bytes of the current file; none at its end."""
        if self._current is None:
            return b""
        with reading(self._current.path):
            data = os.pread(self._descriptor, most_bytes, self.offset)
        self.offset += len(data)
        return data

    def head(self) -> bytes:
        """Return the first bytes of the current file."""
        return os.pread(self._descriptor, _HEAD_BYTES, 0)

    def next_file(self) -> bool:
        """Continue with the next file; return whether there is one."""
        if not self._waiting or self._current is None:
            return False
        own = os.fstat(self._descriptor)
        self._current.edges_crc32 = self.edges_crc32(self.offset)
        self._current.size, self._current.modified_ns = self.offset, own.st_mtime_ns
        self._done.append(self._current)
        self.close()
        self._begin(self._waiting.pop(0))
        return True

    def bytes_before(self, magic: bytes) -> Iterator[Bytes]:
        """Yield the bytes read so far of each file that begins with `magic`."""
        read = [(each.path, each.size) for each in self._done]
        for path, size in [*read, (self.path, self.offset)]:
            head = map_bytes(path, 0, _MAGIC_BYTES)
            if head is not None and head[:_MAGIC_BYTES].tobytes() == magic:
                data = map_bytes(path, 0, size)
                if data is not None:
                    yield data[:size]

    def edges_crc32(self, stop: int) -> int:
        """Return the checksum of both ends of the current file's first `stop` bytes."""
        return edges_crc32(partial(os.pread, self._descriptor), stop)

    # --- stamps and states --------------------------------------------------------------------

    def stamp(self) -> dict[str, Any]:
        """Return the stamp of the input as far as it was read: see `FoundInput`."""
        if self._current is None:
            return {"files": []}
        own = os.fstat(self._descriptor)
        current = _File(self.path, own.st_dev, own.st_ino, self.offset, own.st_mtime_ns)
        current.edges_crc32 = self.edges_crc32(self.offset)
        if not self._rotated:
            return current.stamp()
        empty = list(self.without_packets.values())
        for each in empty:
            with open(each.path, "rb") as file:
                each.edges_crc32 = edges_crc32(partial(os.pread, file.fileno()), each.size)
        there = [each for each in [*self._done, *empty] if _is_there(each)]
        files = sorted([*there, current], key=attrgetter("path"))
        return {"files": [each.stamp() for each in files]}

    def state(self, offset: int) -> dict[str, Any]:
        """Return the state from which another process reads the current file at `offset`."""
        assert self._current is not None
        return {
            "file": [self._current.device, self._current.inode],
            "begun_ns": self._current.begun_ns,
            "offset": offset,
            "edges_crc32": self.edges_crc32(offset),
            "done": [list(asdict(each).values()) for each in self._done],
        }

    def restore(self, state: Mapping[str, Any], paths: Sequence[str]) -> None:
        """Continue from a state.

        A `StateError` is raised if the files are not those of the state; a `KeyError`, `TypeError`
        or `ValueError` if the state is malformed.
        """
        offset, identity = int(state["offset"]), list(state["file"])
        self._done = [_File(*each) for each in state["done"]]
        for path in paths if self._rotated else [self.source]:
            found = _File.at(path)
            if [found.device, found.inode] == identity:
                break
        else:
            raise StateError("is another file than before")
        found.begun_ns = int(state["begun_ns"])
        self._begin(found)
        if found.size < offset or self.edges_crc32(offset) != state["edges_crc32"]:
            raise StateError("is another file than before")
        self.offset = offset
        self.refresh(paths)

    @property
    def position(self) -> int:
        """Number of bytes that were read, in all files."""
        return sum(each.size for each in self._done) + self.offset


def has_begun(source: str, paths: Sequence[str]) -> bool:
    """Return whether there is a file to read: those of a rotated capture need a packet for that."""
    if not is_rotated(source, paths):
        return True
    with suppress(SourceError):  # reading it reports the error
        return any(_begun_ns(path) is not None for path in paths)
    return False


def is_rotated(source: str, paths: Sequence[str]) -> bool:
    """Return whether an input is a capture that continues in new files of a folder."""
    return bool(paths) and tuple(paths) != (source,)


def _begun_ns(path: str) -> int | None:
    """Return the time of the first packet of a capture; None if it has none yet."""
    data = map_bytes(path, 0, _HEAD_BYTES)
    if data is None:
        return None
    head = Extent(0, min(_HEAD_BYTES, len(data)), None, None, 0)
    for records in read_records(data, path, head):
        if len(records):
            return int(records.times_ns[0])
    return None


def _is_there(file: _File) -> bool:
    try:
        return file.is_unchanged(_File.at(file.path))
    except SourceError:
        return False
