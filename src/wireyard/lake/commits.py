"""Commits of the lake: immutable records of its content.

A record lists every file of every table, with rows, bytes and CRC-32, and every input, with the
files that have its rows and the sums of its ledgers. Each record is complete, so the newest one is
the lake, and an older one is the lake as it was. A commit is the exclusive creation of its record,
which is atomic on disks and object stores: of several writers at most one succeeds.
"""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.parquet as pq
from pyarrow import fs

from wireyard.errors import LakeDamaged, LakeError
from wireyard.lake.ledgers import LedgerSum
from wireyard.streams.source import create_file, filesystem

__all__ = [
    "Commit",
    "CommitLog",
    "DataFile",
    "Input",
    "RemovedFile",
    "describe_file",
    "file_crc32",
    "is_shown",
    "move_file",
    "write_seal",
]

_RECORD_VERSION: Final = 5
_SUFFIX: Final = ".json"
_DIGITS: Final = 8
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Input:
    """An input of the lake, and the files with its rows."""

    source: str
    """Absolute path or URL: its name in rows, by which a run recognizes it."""
    format: str | None
    """Label of its format; None for an empty input, or a capture of any formats."""
    stamp: Mapping[str, Any]
    """State of the input when it was read; an input with another stamp has changed."""
    ledger: Mapping[str, LedgerSum] = field(default_factory=dict)
    """Sums of ledgers by label of the format; those of empty streams under an empty label."""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By table, the files with its rows; they may have rows of other inputs too."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table; it never changes, and stays where the run wrote it."""

    name: str
    """Path within the folder of the table; in a partitioned table it begins with ``day=``."""
    run: str
    rows: int
    bytes: int
    crc32: int
    """CRC-32 of all its bytes."""


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that a commit removed from its table; readers of older commits may still need it."""

    table: str
    file: DataFile
    removed_at: datetime


@dataclass(frozen=True)
class Commit:
    """The content of the lake after a commit."""

    number: int
    run: str
    committed_at: datetime
    tables: Mapping[str, Sequence[DataFile]] = field(default_factory=dict)
    inputs: Mapping[str, Input] = field(default_factory=dict)
    removed: Sequence[RemovedFile] = ()
    """Files that are not deleted yet."""
    table_format: str = "parquet"
    """Table format for engines."""
    partition_by: str | None = None
    """``day`` if each file of a table has rows of one day."""

    def to_json(self) -> bytes:
        """Return the record; an input refers to files by their indices in the lists of tables."""
        places = {
            table: {file.name: place for place, file in enumerate(files)}
            for table, files in self.tables.items()
        }
        record = {
            "record": _RECORD_VERSION,
            "commit": self.number,
            "run": self.run,
            "committed_at": _time_text(self.committed_at),
            "tables": {
                table: [asdict(file) for file in files] for table, files in self.tables.items()
            },
            "inputs": [
                {
                    "source": each.source,
                    "format": each.format,
                    "stamp": each.stamp,
                    "ledger": each.ledger,
                    "files": {
                        table: [places[table][name] for name in names]
                        for table, names in each.files.items()
                    },
                }
                for each in self.inputs.values()
            ],
            "removed": [
                {
                    "table": each.table,
                    "removed_at": _time_text(each.removed_at),
                    **asdict(each.file),
                }
                for each in self.removed
            ],
            "table_format": self.table_format,
            "partition_by": self.partition_by,
        }
        return json.dumps(record, separators=(",", ":")).encode()


def _from_json(record: Mapping[str, Any]) -> Commit:
    tables = {
        table: [DataFile(**each) for each in files] for table, files in record["tables"].items()
    }
    inputs = {
        each["source"]: Input(
            each["source"],
            each["format"],
            each["stamp"],
            {format: LedgerSum(*counts) for format, counts in each["ledger"].items()},
            {
                table: [tables[table][place].name for place in places]
                for table, places in each["files"].items()
            },
        )
        for each in record["inputs"]
    }
    removed = []
    for each in record["removed"]:
        table, removed_at = each.pop("table"), _time(each.pop("removed_at"))
        removed.append(RemovedFile(table, DataFile(**each), removed_at))
    committed_at = _time(record["committed_at"])
    whole = record["commit"], record["run"], committed_at, tables, inputs, removed
    return Commit(*whole, table_format=record["table_format"], partition_by=record["partition_by"])


def is_shown(table: str) -> bool:
    """Return whether a table is for readers, and not only for the next run."""
    return not table.startswith("_")


def _time_text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def describe_file(path: str, name: str, run: str) -> DataFile:
    """Return the entry of a Parquet file for the record of a commit.

    Rows and checksum come from a hidden file beside it, if its writer has left one (`write_seal`);
    otherwise the file is read.

    Raises
    ------
    LakeError
        The file does not exist.
    """
    system, inner = filesystem(path)
    info = system.get_file_info(inner)
    if info.type != fs.FileType.File:
        raise LakeError(f"{path}: is missing, and was to be committed")
    try:
        with system.open_input_stream(_seal_path(inner)) as file:
            seal = json.loads(file.read())
    except FileNotFoundError:
        with system.open_input_file(inner) as file:
            rows = pq.ParquetFile(file).metadata.num_rows
        seal = {"rows": rows, "crc32": file_crc32(system, inner)}
    return DataFile(name, run, seal["rows"], info.size, seal["crc32"])


def write_seal(path: str, rows: int, crc32: int) -> None:
    """Write the rows and checksum of a file to a hidden file beside it, for `describe_file`."""
    system, inner = filesystem(path)
    with system.open_output_stream(_seal_path(inner)) as file:
        file.write(json.dumps({"rows": rows, "crc32": crc32}).encode())


def move_file(path: str, target: str) -> None:
    """Move a file that is not committed yet, together with its seal."""
    system, inner = filesystem(path)
    _, moved = filesystem(target)
    system.move(inner, moved)
    with suppress(FileNotFoundError):
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

    Parameters
    ----------
    url
        The lake, for error messages.
    system, folder
        The file system, and the path of the folder in it.
    name
        The same folder as a path or URL.
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
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        now = datetime.now(UTC)
        return {
            int(info.base_name.removesuffix(_SUFFIX)): info.mtime or now
            for info in sorted(self._fs.get_file_info(selector), key=lambda info: info.base_name)
            if info.base_name.endswith(_SUFFIX) and info.base_name[0].isdigit()
        }

    def read(self, number: int) -> Commit:
        """Return a commit.

        Raises
        ------
        LakeError
            Its record is damaged, or was written by another version of wireyard.
        FileNotFoundError
            There is no commit with this number.
        """
        path = f"{self._folder}/{_record_name(number)}"
        with self._fs.open_input_stream(path) as file:
            content = file.read()
        try:
            with _no_collection():
                record = json.loads(content)
                version = record["record"]
                if version == _RECORD_VERSION:
                    return _from_json(record)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise LakeDamaged(f"{self._url}: the record of commit {number} is damaged") from None
        other = "a newer" if version > _RECORD_VERSION else "an older"
        raise LakeError(f"{self._url}: was written by {other} wireyard; name a new folder")

    def newest(self, known: Commit | None = None) -> Commit:
        """Return the newest commit; for an empty log an empty commit with number 0.

        Parameters
        ----------
        known
            A commit that was read before; if it is the newest, it is not read again.
        """
        numbers = list(self.times())
        if not numbers:
            return Commit(0, "", datetime.now(UTC))
        if known is not None and known.number == numbers[-1]:
            return known
        return self.read(numbers[-1])

    def create(self, commit: Commit) -> None:
        """Create the record of a commit, unless its number is taken.

        Raises
        ------
        LakeError
            Another run has committed first.
        """
        try:
            create_file(f"{self._name}/{_record_name(commit.number)}", commit.to_json())
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
    return f"{number:0{_DIGITS}d}{_SUFFIX}"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector, as the objects of a record have no cycles.

    A large record makes some hundred thousand objects, which the collector would visit again and
    again: 0.27 s of processor time instead of 0.10 for a record of 10,000 inputs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
