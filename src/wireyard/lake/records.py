"""The content of a commit, and its record: how it is written, and how it is checked when read.

A lake may come from others, and disks fail. So a record is checked once and completely, when it is
read, and the rest of wireyard relies on it. Rules of this file:

1. A record is a JSON object. Its last member is the CRC-32 of all bytes before this member.
2. It has the members of its version and no others, each of the type of its field.
3. Names that become parts of paths or of SQL follow one grammar: tables are identifiers, runs are
   numbers, and files are Parquet files, in a folder ``day=...`` or in none.
4. A source is an absolute path or a URL.
5. Each file of a table has a name of its own, and a file that was removed is in no table.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from operator import attrgetter
from types import NoneType
from typing import Any, Final

from wireyard.lake.ledgers import LedgerSum

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Name of the partition of rows without a day, as in Hive."""
TABLE_FORMATS: Final = ("parquet", "delta", "iceberg")
"""Table formats for engines: folders of Parquet files, or open tables."""
RUN_NAME: Final = re.compile(r"[0-9a-f]{32}")
FILE_NAME: Final = re.compile(
    rf"(?:day=([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}|{NO_DAY})/)?[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}\.parquet"
)
"""The first group is the day."""
_TABLE_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,99}")
_SOURCE: Final = re.compile(r"(?:/|[A-Za-z][A-Za-z0-9+.-]*://)[^\0]*", re.DOTALL)
VERSION: Final = 6
_WITHOUT_CHECKSUM: Final = 5
"""The version before, whose only difference is that it has no checksum; it is read too."""
_MOST: Final = (1 << 63) - 1
_MOST_CRC32: Final = (1 << 32) - 1


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


def is_shown(table: str) -> bool:
    """Return whether a table is for readers, and not only for the next run."""
    return not table.startswith("_")


# --- writing --------------------------------------------------------------------------------


def record_of(commit: Commit) -> bytes:
    """Return the record of a commit; an input refers to files by their indices in their tables.

    A `ValueError` is raised if a name is none that a record may have.
    """
    places = {
        table: {file.name: place for place, file in enumerate(files)}
        for table, files in commit.tables.items()
    }
    record = {
        "record": VERSION,
        "commit": commit.number,
        "run": commit.run,
        "committed_at": _time_text(commit.committed_at),
        "tables": {
            _named(_TABLE_NAME, table): [
                _entry(file) for file in files if _named(FILE_NAME, file.name)
            ]
            for table, files in commit.tables.items()
        },
        "inputs": [
            {
                "source": _named(_SOURCE, _text(each.source)),
                "format": each.format,
                "stamp": each.stamp,
                "ledger": each.ledger,
                "files": {
                    table: [places[table][name] for name in names]
                    for table, names in each.files.items()
                },
            }
            for each in commit.inputs.values()
        ],
        "removed": [
            {"table": each.table, "removed_at": _time_text(each.removed_at), **_entry(each.file)}
            for each in commit.removed
        ],
        "table_format": commit.table_format,
        "partition_by": commit.partition_by,
    }
    return _with_checksum(json.dumps(record, separators=(",", ":")).encode()[:-1])


_ENTRY: Final = tuple(each.name for each in fields(DataFile))
_entry_values: Final = attrgetter(*_ENTRY)


def _entry(file: DataFile) -> dict[str, Any]:
    """Return a file as it is in a record; `asdict` takes ten times as long."""
    return dict(zip(_ENTRY, _entry_values(file), strict=True))


def _with_checksum(record: bytes) -> bytes:
    """Return a record, given all of it but the checksum and the last brace."""
    return b'%b,"crc32":%d}' % (record, zlib.crc32(record))


def _time_text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# --- reading --------------------------------------------------------------------------------

_COMMIT: Final = {
    "commit", "run", "committed_at", "tables", "inputs", "removed", "table_format", "partition_by",
}  # fmt: skip
_INPUT: Final = {"source", "format", "stamp", "ledger", "files"}
_FILE: Final = {"name", "run", "rows", "bytes", "crc32"}
_REMOVED: Final = {"table", "removed_at", *_FILE}
_OF_FILE: Final = {"size", "modified_ns", "edges_crc32", "file"}
"""Items of a stamp by which a file is recognized, all of them or not ``file``."""
_OF_STAMP: Final[Mapping[str, tuple[type, ...]]] = {
    "size": (int,),
    "modified_ns": (int, NoneType),
    "edges_crc32": (int,),
    "content_sha256": (str,),
    "growing": (int,),
    "file": (list,),
    "kept": (list,),
}
"""Items of a stamp, each with its types; the stamp of several files has ``files`` instead."""


class OtherVersion(Exception):
    """A record of another version, its argument."""


def commit_of(record: bytes) -> Commit:
    """Return the commit that a record describes.

    `OtherVersion` is raised if it was written by another version of wireyard; a `ValueError`,
    `OverflowError` or `RecursionError` if it is damaged: it breaks a rule of this file.
    """
    members = _as(dict, json.loads(record))
    version = members.pop("record", None)
    if version == VERSION:
        _require(record == _with_checksum(record.rpartition(b',"crc32":')[0]))
        del members["crc32"]
    elif version != _WITHOUT_CHECKSUM:
        raise OtherVersion(_count(version))
    _require(members.keys() == _COMMIT)
    tables = {_table(name): _files(each) for name, each in _as(dict, members["tables"]).items()}
    removed = [_removed(each) for each in _as(list, members["removed"])]
    listed = {(name, each.run, each.name) for name, files in tables.items() for each in files}
    _require(listed.isdisjoint((each.table, each.file.run, each.file.name) for each in removed))
    inputs = [_input(each, tables) for each in _as(list, members["inputs"])]
    by_source = {each.source: each for each in inputs}
    _require(len(by_source) == len(inputs))
    _require(members["table_format"] in TABLE_FORMATS and members["partition_by"] in (None, "day"))
    return Commit(
        _count(members["commit"]),
        _named(RUN_NAME, members["run"]),
        _time(members["committed_at"]),
        tables,
        by_source,
        removed,
        members["table_format"],
        members["partition_by"],
    )


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _as(kind: type, value: Any) -> Any:
    """Return a value that must be exactly of a type: True is no integer."""
    _require(type(value) is kind)
    return value


def _count(value: Any, most: int = _MOST) -> int:
    _require(type(value) is int and 0 <= value <= most)
    return int(value)


def _named(grammar: re.Pattern[str], value: Any) -> str:
    if type(value) is not str or grammar.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no name that a record may have")
    return value


def _text(value: Any) -> str:
    text: str = _as(str, value)
    text.encode()  # raises a ValueError for half a surrogate pair, which no table can hold
    return text


def _time(value: Any) -> datetime:
    return datetime.fromisoformat(_as(str, value)).astimezone(UTC)


def _table(name: str) -> str:
    return _named(_TABLE_NAME, name)


def _files(values: Any) -> list[DataFile]:
    files = [_file(each) for each in _as(list, values)]
    _require(len({each.name for each in files}) == len(files))
    return files


def _file(value: Any) -> DataFile:
    _require(_as(dict, value).keys() == _FILE)
    name = FILE_NAME.fullmatch(_as(str, value["name"]))
    if name is None:
        raise ValueError
    if name[1] not in (None, NO_DAY):
        date.fromisoformat(name[1])
    rows, size, crc32 = value["rows"], value["bytes"], value["crc32"]
    run = _named(RUN_NAME, value["run"])
    return DataFile(name[0], run, _count(rows), _count(size), _count(crc32, _MOST_CRC32))


def _removed(value: Any) -> RemovedFile:
    _require(_as(dict, value).keys() == _REMOVED)
    file = _file({name: value[name] for name in _FILE})
    return RemovedFile(_named(_TABLE_NAME, value["table"]), file, _time(value["removed_at"]))


def _input(value: Any, tables: Mapping[str, Sequence[DataFile]]) -> Input:
    _require(_as(dict, value).keys() == _INPUT)
    source, format = _text(value["source"]), value["format"]
    return Input(
        _named(_SOURCE, source),
        None if format is None else _text(format),
        _stamp(value["stamp"]),
        {_text(name): _sum(each) for name, each in _as(dict, value["ledger"]).items()},
        {
            table: _names(places, tables.get(table, ()))
            for table, places in _as(dict, value["files"]).items()
        },
    )


def _names(places: Any, files: Sequence[DataFile]) -> list[str]:
    most = len(files) - 1
    return [files[_count(place, most)].name for place in _as(list, places)]


def _sum(value: Any) -> LedgerSum:
    _require(len(_as(list, value)) == len(LedgerSum._fields))
    return LedgerSum(*map(_count, value))


def _stamp(value: Any) -> Mapping[str, Any]:
    stamp: dict[str, Any] = _as(dict, value)
    if "files" in stamp:
        _require(len(stamp) == 1)
        for each in _as(list, stamp["files"]):
            _require("files" not in _stamp(each))
        return stamp
    _require(all(type(item) in _OF_STAMP.get(name, ()) for name, item in stamp.items()))
    if "file" in stamp:
        _require(stamp.keys() >= _OF_FILE and [*map(type, stamp["file"])] == [int, int])
    if "kept" in stamp:
        _require("file" in stamp and [*map(type, stamp["kept"])] == [int, bool, bool])
    return stamp
