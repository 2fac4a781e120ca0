"""Commits of the lake: immutable records of its content (`lake.records`), and their log.

A record lists every file of every table, with rows, bytes and CRC-32, and every input, with the
files that have its rows and the sums of its ledgers. Each record is complete, so the newest one is
the lake, and an older one is the lake as it was. A commit is the exclusive creation of its record,
which is atomic on disks and object stores: of several writers at most one succeeds.
"""

from __future__ import annotations

import gc
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from wireyard.errors import LakeDamaged, LakeError
from wireyard.lake.inside import check_own, files_below
from wireyard.lake.records import VERSION, Commit, DataFile, OtherVersion, commit_of, record_of
from wireyard.streams.source import create_file, filesystem

_RECORD_NAME: Final = re.compile(r"([0-9]{8}|[1-9][0-9]{8,17})\.json")
_SOURCE: Final = re.compile(rb'"source":("(?:[^"\\]|\\.)*")')
_DIGITS: Final = 8
_RECORD_BYTES: Final = 1 << 30
"""Longest record, of some two million inputs; a file with holes may be longer than any memory."""
_BLOCK_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 8 << 20
"""Up to so many bytes of an object in a store are read again rather than sealed: a seal, which is
written, found, read and deleted, takes six requests, and reading takes two."""


class Seal(NamedTuple):
    """What the record of a commit has of a file."""

    rows: int
    bytes: int
    crc32: int


def describe_file(path: str, name: str, run: str) -> DataFile:
    """Return the entry of a Parquet file for the record of a commit.

    Rows and checksum come from a hidden file beside it, if its writer has left one (`write_seal`);
    otherwise the file is read. A `LakeError` is raised if the file does not exist.
    """
    system, inner = filesystem(path)
    try:
        with system.open_input_file(inner) as file:
            size = file.size()
            sealed = None if _is_small_object(system, size) else _read_seal(system, inner)
            if sealed is None and size <= _SMALL_BYTES:
                data = file.read()
                sealed = _rows_of(pa.BufferReader(data)), zlib.crc32(data)
            elif sealed is None:
                sealed = _rows_of(file), file_crc32(system, inner)
    except FileNotFoundError:
        raise LakeError(f"{path}: is missing, and was to be committed") from None
    return DataFile(name, run, sealed[0], size, sealed[1])


def _is_small_object(system: fs.FileSystem, size: int) -> bool:
    """Return whether a file is in an object store, and needs no seal."""
    return size <= _SMALL_BYTES and not isinstance(system, fs.LocalFileSystem)


def _rows_of(file: pa.NativeFile) -> int:
    return int(pq.ParquetFile(file).metadata.num_rows)


def _read_seal(system: fs.FileSystem, path: str) -> tuple[int, int] | None:
    """Return the rows and checksum beside a file; None if they are not there, or damaged."""
    try:
        with system.open_input_stream(_seal_path(path)) as file:
            seal = json.loads(file.read())
        found = seal["rows"], seal["crc32"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if all(type(one) is int and one >= 0 for one in found) else None


def write_seal(path: str, seal: Seal) -> None:
    """Write the rows and checksum of a file to a hidden file beside it, for `describe_file`."""
    system, inner = filesystem(path)
    if _is_small_object(system, seal.bytes):
        return
    with system.open_output_stream(_seal_path(inner)) as file:
        file.write(json.dumps({"rows": seal.rows, "crc32": seal.crc32}).encode())


def move_file(path: str, target: str) -> None:
    """Move a file that is not committed yet, together with its seal."""
    system, inner = filesystem(path)
    _, moved = filesystem(target)
    system.move(inner, moved)
    if system.get_file_info(_seal_path(inner)).type == fs.FileType.File:
        system.move(_seal_path(inner), _seal_path(moved))


def file_crc32(system: fs.FileSystem, path: str) -> int:
    """Return the CRC-32 of all bytes of a file."""
    crc32 = 0
    with system.open_input_stream(path) as file:
        while block := file.read(_BLOCK_BYTES):
            crc32 = zlib.crc32(block, crc32)
    return crc32


def _seal_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.seal"


class CommitLog:
    """The records in the folder of a lake.

    `url` is the lake, for error messages. `folder` is the path of the folder in the file system
    `system`, and `name` the same folder as a path or URL.
    """

    def __init__(self, url: str, system: fs.FileSystem, folder: str, name: str) -> None:
        self._url = url
        self._fs = system
        self._folder = folder
        self._name = name

    def times(self) -> dict[int, datetime]:
        """Return the numbers of all commits, ascending, with their times.

        If a store reports no times, the present time is returned for all of them.
        """
        now = datetime.now(UTC)
        times = {}
        for info in files_below(self._fs, self._folder):
            name = _RECORD_NAME.fullmatch(info.path[len(self._folder) + 1 :])
            if name is not None:
                times[int(name[1])] = info.mtime or now
        return dict(sorted(times.items()))

    def read(self, number: int) -> Commit:
        """Return a commit.

        A `LakeError` is raised if its record is damaged, or was written by another version of
        wireyard; a `FileNotFoundError` if there is no commit with this number.
        """
        try:
            with _no_collection():
                commit = commit_of(self._content(number))
        except OtherVersion as error:
            other = "a newer" if error.args[0] > VERSION else "an older"
            message = f"{self._url}: was written by {other} wireyard; name a new folder"
            raise LakeError(message) from None
        except (ValueError, OverflowError, RecursionError):
            commit = None
        if commit is None or commit.number != number:
            raise LakeDamaged(
                f"{self._url}: the record of commit {number} is damaged; see 'wireyard lake repair'"
            )
        return commit

    def sources_in(self, number: int) -> set[str]:
        """Return the sources that a damaged record shows; some may be missing, or wrong."""
        sources = set[str]()
        for text in _SOURCE.findall(self._content(number)):
            with suppress(ValueError):
                sources.add(json.loads(text))
        return sources

    def _content(self, number: int) -> bytes:
        """Return the bytes of a record; none if they are more than a record has."""
        path = f"{self._folder}/{_record_name(number)}"
        if isinstance(self._fs, fs.LocalFileSystem):
            check_own(path)
        with self._fs.open_input_file(path) as file:
            content: bytes = file.read() if file.size() <= _RECORD_BYTES else b""
        return content

    def newest(self, known: Commit | None = None) -> Commit:
        """Return the newest commit; for an empty log an empty commit with number 0.

        `known` is a commit that was read before; if it is the newest, it is not read again.
        """
        numbers = list(self.times())
        if not numbers:
            return Commit(0, "", datetime.now(UTC))
        if known is not None and known.number == numbers[-1]:
            return known
        return self.read(numbers[-1])

    def newest_whole(self) -> tuple[Commit, list[int]]:
        """Return the newest commit whose record is whole, and the numbers of damaged ones after it.

        The commit is numbered as the newest one, which it stands for. A `LakeError` is raised if no
        record is whole, or one was written by another version of wireyard.
        """
        damaged: list[int] = []
        for number in reversed(self.times()):
            try:
                commit = self.read(number)
            except LakeDamaged:
                damaged.append(number)
            else:
                return replace(commit, number=max([number, *damaged])), damaged
        if damaged:
            raise LakeDamaged(f"{self._url}: no record of a commit is whole; name a new folder")
        return self.newest(), []

    def create(self, commit: Commit) -> None:
        """Create the record of a commit, unless its number is taken.

        A `LakeError` is raised if another run has committed first, or a name in it is none that a
        record may have.
        """
        try:
            record = record_of(commit)
            if len(record) > _RECORD_BYTES or not _RECORD_NAME.fullmatch(
                _record_name(commit.number)
            ):
                raise ValueError("the lake has no room for another commit; name a new folder")
        except ValueError as error:
            raise LakeError(f"{self._url}: nothing was added: {error}") from None
        try:
            create_file(f"{self._name}/{_record_name(commit.number)}", record)
        except FileExistsError:
            # If a request is repeated because its answer was lost, the record is our own.
            if self.read(commit.number).run == commit.run:
                return
            raise LakeError(
                f"{self._url}: another run has committed meanwhile; nothing was added, run it again"
            ) from None

    def delete(self, number: int) -> None:
        """Delete the record of a commit."""
        self._fs.delete_file(f"{self._folder}/{_record_name(number)}")


def _record_name(number: int) -> str:
    return f"{number:0{_DIGITS}d}.json"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector, as the objects of a record have no cycles.

    A large record makes some hundred thousand objects, which the collector would visit again and
    again: 0.28 s of processor time instead of 0.14 for a record of 10,000 inputs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
