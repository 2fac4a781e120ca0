"""The lake: a folder of Parquet tables that changes by whole commits.

::

    DIR/<table>/*.parquet                     what is committed, and nothing else
    DIR/_staging/<run>/<table>/*.parquet      what a run has written so far
    DIR/_wireyard/commits/00000001.json       a commit that was carried out
    DIR/_wireyard/commits/00000002.pending    a commit that was decided and is being carried out
    DIR/_wireyard/lock                        held while a run writes (local lakes)

Plain Parquet readers skip names that begin with ``_`` or ``.``, so they see committed files only.

States of a run, and what the next opening does after a crash in each:

========  ================================================  ================================
staged    files in ``_staging``, no record of them          all of ``_staging`` is deleted
decided   the ``.pending`` record is there: **this is the   every step is taken that was not
          commit**; files move one by one, and each step    taken yet, in the same order
          can be taken twice
done      the record is called ``.json``                    what ``_staging`` has is deleted
========  ================================================  ================================

A table grows by files (`append`), or is made anew and swapped as a whole (`replace`). Files go
before others come, and a swap is one step where the system has one (Linux), so a reader may see a
decided commit in part for an instant, but no row twice and nothing that is not committed.

Limits
------
What survives is a killed process; against a power cut the disk's own ordering counts. Local lakes
are locked; on a store behind a URL one run at a time is the caller's promise, and a move there is a
copy and a delete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Self
from uuid import uuid4

from pyarrow import fs

from wireyard.errors import WireError
from wireyard.spark.swap import swap_folders
from wireyard.streams.source import filesystem

__all__ = ["Change", "Input", "Lake", "LakeError", "StreamLedger", "writing"]

_RECORD_VERSION = 3
_STAGING, _COMMITS, _LOCK = "_staging", "_wireyard/commits", "_wireyard/lock"
_PENDING, _DONE = ".pending", ".json"
_HIDDEN = (".", "_")


class LakeError(WireError):
    """The lake cannot be written, or is not one; the text names it."""


@dataclass(frozen=True)
class StreamLedger:
    """Where each byte of a stream went."""

    stream: str
    format: str | None
    """None of an empty stream."""
    counts: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a capture tells of it: columns of the table ``streams``."""


@dataclass(frozen=True)
class Input:
    """One input that the lake holds, and where its rows are."""

    source: str
    """Absolute path or URL: what rows call it, and what tells that it was read before."""
    format: str | None
    """What it was taken for; None of an empty input, and of a capture that may hold any."""
    stamp: Mapping[str, Any]
    """What the input was when it was read; anything else there is a changed input."""
    streams: Sequence[StreamLedger]
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By table, the files that hold its rows, perhaps among those of other inputs."""


@dataclass(frozen=True)
class Change:
    """What one commit does, file names by table; what comes is staged under the same name."""

    inputs: tuple[Input, ...] = ()
    remove: Mapping[str, list[str]] = field(default_factory=dict)
    append: Mapping[str, list[str]] = field(default_factory=dict)
    replace: Mapping[str, list[str]] = field(default_factory=dict)


class Lake:
    """A lake as its commits describe it. Made by `open`, which locks and recovers it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.run = uuid4().hex
        self._fs, self._root = filesystem(url)
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self.inputs: dict[str, Input] = {}
        self.files: dict[str, list[str]] = {}
        self.commits = 0
        self._decided = False

    @classmethod
    @contextmanager
    def open(cls, url: str) -> Iterator[Self]:
        """Open a lake for one run: lock it, make it where it is not there, recover it.

        Raises
        ------
        LakeError
            It cannot be written, is no lake, or another run is writing to it.
        """
        with writing(url):
            lake = cls(url)
            if not lake._is(lake._path("_wireyard"), fs.FileType.Directory):
                if lake._list(lake._root):
                    raise LakeError(f"{url}: is no lake and not empty; name a new folder")
                lake._fs.create_dir(lake._path(_COMMITS))
            lock = _locked(lake._path(_LOCK), url) if lake._local else nullcontext()
        with lock:
            lake._recover()
            try:
                yield lake
            finally:
                lake._discard()

    # --- where things are ---------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The lake as tasks and Spark name it: absolute, whatever the working directory is."""
        return self._root if self._local else self.url.rstrip("/")

    def staged(self, table: str, name: str = "") -> str:
        """Return where a file of this run stands before its commit."""
        return f"{self.root}/{_STAGING}/{self.run}/{table}/{name}".rstrip("/")

    def paths(self, table: str) -> list[str]:
        """Return the committed files of a table."""
        return [f"{self.root}/{table}/{name}" for name in self.files.get(table, [])]

    def list_staged(self, table: str) -> list[str]:
        """Return the names of what this run has staged for a table, hidden ones aside."""
        return self._list(self._path(_STAGING, self.run, table))

    def make_staging(self, tables: Iterable[str]) -> None:
        """Make the folders that tasks write to."""
        with writing(self.url):
            for table in tables:
                self._fs.create_dir(self._path(_STAGING, self.run, table))

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    # --- commits ------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Make a change, wholly or not at all."""
        record = {"record": _RECORD_VERSION, "run": self.run, **asdict(change)}
        name = f"{self.commits + 1:08d}"
        with writing(self.url):
            self._decided = True
            self._write_record(f"{name}{_PENDING}", record)
            self._carry_out(name, record)
            self._decided = False
        self._fold(record)

    def _recover(self) -> None:
        """Carry out the commit that was decided, delete the rest, learn what is there."""
        with writing(self.url):
            names = self._list(self._path(_COMMITS))
            for stem in sorted({os.path.splitext(name)[0] for name in names}):
                done = f"{stem}{_DONE}" in names
                record = self._read_record(f"{stem}{_DONE if done else _PENDING}")
                if not done:
                    self._carry_out(stem, record)
                self._delete(self._path(_COMMITS, f"{stem}{_PENDING}"))
                self._fold(record)
            self._delete_folder(self._path(_STAGING))

    def _discard(self) -> None:
        """Delete what this run has staged, unless a commit that was decided still needs it."""
        if not self._decided:
            self._delete_folder(self._path(_STAGING, self.run))

    def _carry_out(self, name: str, record: Mapping[str, Any]) -> None:
        for step in self._steps(name, record):
            self._take(step)

    def _take(self, step: Callable[[], None]) -> None:
        """Do one step. A crash comes before or after one, never inside."""
        step()

    def _steps(self, name: str, record: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
        for table, names in record["remove"].items():
            for gone in names:
                yield partial(self._delete, self._path(table, gone))
        for table, names in record["append"].items():
            for new in names:
                staged = self._path(_STAGING, record["run"], table, new)
                yield partial(self._move, staged, self._path(table, new))
        for table, names in record["replace"].items():
            yield from self._swap_steps(record["run"], table, names)
        commits = self._path(_COMMITS)
        yield partial(self._move, f"{commits}/{name}{_PENDING}", f"{commits}/{name}{_DONE}")
        yield partial(self._delete_folder, self._path(_STAGING, record["run"]))

    def _swap_steps(self, run: str, table: str, names: list[str]) -> Iterator[Callable[[], None]]:
        staged, path = self._path(_STAGING, run, table), self._path(table)
        if self._local:
            # The folder that holds the new names is the new one, so a second swap cannot undo it.
            if set(self._list(path)) != set(names):
                yield partial(swap_folders, staged, path)
            return
        for old in self._list(path):
            if old not in names:
                yield partial(self._delete, f"{path}/{old}")
        for new in names:
            yield partial(self._move, f"{staged}/{new}", f"{path}/{new}")

    def _fold(self, record: Mapping[str, Any]) -> None:
        """Add a record to what the lake is known to hold."""
        for entry in record["inputs"]:
            streams = [StreamLedger(**each) for each in entry["streams"]]
            self.inputs[entry["source"]] = Input(**{**entry, "streams": streams})
        for table, names in record["remove"].items():
            gone = set(names)
            self.files[table] = [name for name in self.files[table] if name not in gone]
        for table, names in record["append"].items():
            self.files.setdefault(table, []).extend(names)
        self.files |= {table: list(names) for table, names in record["replace"].items()}
        self.commits += 1

    def _write_record(self, name: str, record: Mapping[str, Any]) -> None:
        folder = self._path(_COMMITS)
        self._fs.create_dir(folder)
        with self._fs.open_output_stream(f"{folder}/.{name}") as file:
            file.write(json.dumps(record).encode())
        self._fs.move(f"{folder}/.{name}", f"{folder}/{name}")

    def _read_record(self, name: str) -> dict[str, Any]:
        with self._fs.open_input_stream(self._path(_COMMITS, name)) as file:
            record: dict[str, Any] = json.loads(file.read())
        if record["record"] != _RECORD_VERSION:
            age = "a newer" if record["record"] > _RECORD_VERSION else "an older"
            raise LakeError(f"{self.url}: was written by {age} wireyard; name another folder")
        return record

    # --- what a store can do ------------------------------------------------------------------

    def _list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, hidden ones aside; none if it is not there."""
        found = self._fs.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in found if not info.base_name.startswith(_HIDDEN))

    def _is(self, path: str, kind: fs.FileType) -> bool:
        return bool(self._fs.get_file_info(path).type == kind)

    def _delete(self, path: str) -> None:
        if self._is(path, fs.FileType.File):
            self._fs.delete_file(path)

    def _delete_folder(self, path: str) -> None:
        if self._is(path, fs.FileType.Directory):
            self._fs.delete_dir(path)

    def _move(self, staged: str, path: str) -> None:
        """Move a file to its place, unless that was done before."""
        if self._is(staged, fs.FileType.File):
            self._fs.create_dir(os.path.dirname(path))
            self._fs.move(staged, path)
        elif not self._is(path, fs.FileType.File):
            raise LakeError(f"{self.url}: is damaged, a committed file is missing: {path}")


@contextmanager
def _locked(path: str, url: str) -> Iterator[None]:
    import fcntl

    with ExitStack() as stack:
        with writing(url):
            file = stack.enter_context(open(path, "ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeError(f"{url}: another run is writing to it") from None
        yield


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn what an operating system or a store says into one line that names the target."""
    try:
        yield
    except OSError as error:
        # Arrow puts a sentence of its own around what the system says.
        why = os.strerror(error.errno) if error.errno else error
        raise LakeError(f"{name}: cannot be written ({why})") from None
