"""The lake: Parquet tables that change by whole commits, on a local disk or an object store.

::

    DIR/_wireyard/commits/00000012.json          a commit: every file of every table, every input
    DIR/_wireyard/data/<run>/<table>/*.parquet   what runs have written; no file moves or changes
    DIR/_wireyard/lock                           held while a run writes (local lakes)
    DIR/<table>                                  the newest commit, for readers of folders

**The commit is the creation of its record, and nothing else.** A record is created exclusively
(`streams.source.create_file`), so of several runs that began with the same commit one succeeds and
the others are refused. Readers that take the newest record (`lake.read_lake`) see one commit in
all tables. Folders, which only local lakes have (`lake.views`), follow the records, and show one
commit too.

States of a run, and what becomes of it after a crash in each:

==========  ==============================================  =====================================
written     files in ``data/<run>`` that no record lists    readers see nothing of them; deleted
committed   **the record is there**; folders show the       readers of records see the commit,
            commit before                                   those of folders all of the one before;
                                                            the next opening makes the folders
published   the folders show the commit; ``data/<run>``     what no record lists is deleted
            has files that no record lists
==========  ==============================================  =====================================

Deleting:

- A run deletes what it wrote and did not commit. If it cannot, on a local disk the next run does,
  which has the lock; on a store any run does, once nothing was written to ``data/<run>`` for a
  day (`ABANDONED`). A run that sleeps for longer finds its files missing and commits nothing.
- A file that a commit took out of its table is listed as removed in its record and those after
  it, and stays for an hour (`RETENTION`), as records do from the next one on: who reads an older
  commit has that long. Then the next run, or `expire`, deletes it.

Limits
------
What survives is a killed process; against a power cut the disk's own ordering counts. A local disk
needs hard and symbolic links; a store needs a conditional put, and has no folders to read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Final, Self
from uuid import uuid4

from pyarrow import fs

from wireyard.errors import LakeError
from wireyard.lake.commits import (
    Commit,
    DataFile,
    Input,
    RemovedFile,
    describe_file,
    is_shown,
)
from wireyard.lake.published import OPEN_FORMATS, expire_tables, publish_tables
from wireyard.lake.snapshot import COMMITS, DATA, LakeSnapshot
from wireyard.lake.views import delete_views, publish_view, shown_commit
from wireyard.streams.source import filesystem

__all__ = [
    "ABANDONED",
    "RETENTION",
    "TABLE_FORMATS",
    "Change",
    "Input",
    "Lake",
    "LakeError",
    "writing",
]

RETENTION: Final = timedelta(hours=1)
"""How long files stay that a commit took out of their table."""
ABANDONED: Final = timedelta(days=1)
"""After how long without a write the files of an uncommitted run on a store are deleted."""
TABLE_FORMATS: Final = ("parquet", *OPEN_FORMATS)
"""How engines see the tables: as folders of Parquet files, or as open tables."""
_LOCK = "_wireyard/lock"
_HIDDEN = (".", "_")
_THREADS = 8  # what is waited for is mostly a store's answer


@dataclass(frozen=True)
class Change:
    """What one commit does, file names by table; what comes is staged under the same name."""

    inputs: tuple[Input, ...] = ()
    """Inputs that are new, or have other files than before."""
    remove: Mapping[str, list[str]] = field(default_factory=dict)
    append: Mapping[str, list[str]] = field(default_factory=dict)
    forget: frozenset[str] = frozenset()
    """Sources that the lake holds no longer; their files are in `remove`."""


class Lake(LakeSnapshot):
    """A lake that one run changes. Made by `open`, which locks it and deletes what is over."""

    def __init__(self, url: str, known: Commit | None = None) -> None:
        super().__init__(url, known=known)
        self.run = uuid4().hex
        self.retention = RETENTION
        """How long files and records stay once a commit has replaced them."""
        self.table_format = self.record.table_format
        self.partition_by = self.record.partition_by
        self._undecided = False

    @classmethod
    @contextmanager
    def open(
        cls,
        url: str,
        *,
        damaged: bool = False,
        table_format: str | None = None,
        partition_by: str | None = None,
        known: Commit | None = None,
    ) -> Iterator[Self]:
        """Open a lake for one run: make it where it is not there, lock it, finish what a crash cut.

        Parameters
        ----------
        damaged
            Whether files may be missing, as for a repair.
        table_format
            One of `TABLE_FORMATS`; that of the lake if None, Parquet of a new one.
        partition_by
            ``day`` for files of a day each; as the lake is if None.
        known
            A commit of it that was read before, and is not read again if it is the newest.

        Raises
        ------
        LakeError
            It cannot be written, is no lake, is damaged, or another run is writing to it.
        """
        if "?" in url and "://" in url:
            raise LakeError(f"{url}: a lake's URL takes no options; set them in the environment")
        with ExitStack() as held:
            with writing(url):
                system, root = filesystem(url)
                local = isinstance(system, fs.LocalFileSystem)
                _make(system, root, url)
            held.enter_context(_locked(f"{root}/{_LOCK}", url) if local else nullcontext())
            with writing(url):
                lake = cls(url, known)
                lake._choose(table_format, partition_by)
                if not damaged:
                    lake.check_files()
                    lake._publish()
                lake.expire(RETENTION)
            try:
                yield lake
            finally:
                lake._discard()

    def _choose(self, table_format: str | None, partition_by: str | None) -> None:
        if table_format not in (None, self.table_format) and self.commits:
            raise LakeError(
                f"{self.url}: its tables are {self.table_format}, not {table_format};"
                " name a new folder"
            )
        if partition_by not in (None, self.partition_by) and self.commits:
            raise LakeError(
                f"{self.url}: its tables are not partitioned by {partition_by}; name a new folder"
            )
        self.table_format = table_format or self.table_format
        self.partition_by = partition_by or self.partition_by

    # --- what a run writes --------------------------------------------------------------------

    def begin_run(self) -> None:
        """Begin another run, which writes to a folder of its own, under the same lock.

        What the run before has written and not committed is deleted.
        """
        self._discard()
        self.run = uuid4().hex

    def beside(self) -> Lake:
        """Return the lake for a run beside this one, which writes to a folder of its own.

        Both are of one process and under one lock. They commit in turns, and who comes next goes on
        from what the other has committed. While there are two, nothing is to be expired.
        """
        other = copy(self)
        other.run = uuid4().hex
        return other

    def go_on_from(self, other: Lake) -> None:
        """Go on from the commit of a run beside this one."""
        self._show(other.record)

    def staged(self, table: str, name: str = "") -> str:
        """Return where this run writes a file, before its commit and after."""
        return f"{self.root}/{DATA}/{self.run}/{table}/{name}".rstrip("/")

    def list_staged(self, table: str) -> list[str]:
        """Return the names of what this run has written for a table, hidden ones aside."""
        folder = self.inner(DATA, self.run, table)
        found = self.system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        files = (info.base_name for info in found if info.type == fs.FileType.File)
        return sorted(name for name in files if not name.startswith(_HIDDEN))

    def make_staging(self, tables: Iterable[str]) -> None:
        """Make the folders that tasks write to."""
        with writing(self.url):
            for table in tables:
                self.system.create_dir(self.inner(DATA, self.run, table))

    # --- commits ------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Make a change, wholly or not at all.

        Raises
        ------
        LakeError
            Another run has committed since this one opened the lake, or it cannot be written.
        """
        with writing(self.url):
            commit = self._changed(change)
            self._undecided = True
            try:
                self._take(partial(self._log.create, commit))
            except LakeError:
                self._undecided = False
                raise
            self._undecided = False
        self._show(commit)
        with writing(self.url):
            self._publish()

    def _changed(self, change: Change) -> Commit:
        """Return the commit that a change makes of the one that the lake was opened at."""
        before = self._commit
        added = self._describe(change)
        tables = {table: list(files) for table, files in before.tables.items()}
        for table, names in change.remove.items():
            gone = set(names)
            tables[table] = [file for file in tables.get(table, ()) if file.name not in gone]
        for table, names in change.append.items():
            tables.setdefault(table, []).extend(added[table, name] for name in names)
        inputs = {each.source: each for each in before.inputs.values()}
        inputs |= {each.source: each for each in change.inputs}
        now = datetime.now(UTC)
        removed = [each for each in before.removed if each.removed_at + self.retention >= now]
        for table, files in before.tables.items():
            kept = {file.name for file in tables[table]}
            removed += (RemovedFile(table, file, now) for file in files if file.name not in kept)
        for source in change.forget:
            del inputs[source]
        whole = before.number + 1, self.run, now, tables, inputs, removed
        return Commit(*whole, table_format=self.table_format, partition_by=self.partition_by)

    def _describe(self, change: Change) -> dict[tuple[str, str], DataFile]:
        """Return what is to be recorded of the files of a change that are new."""
        new = [(table, name) for table, names in change.append.items() for name in names]
        with ThreadPoolExecutor(_THREADS) as pool:
            files = pool.map(lambda one: describe_file(self.staged(*one), one[1], self.run), new)
            return dict(zip(new, files, strict=True))

    def _show(self, commit: Commit) -> None:
        """Go on from a commit."""
        self._commit = commit
        for cached in ("files", "_paths_by_name"):
            self.__dict__.pop(cached, None)

    def _publish(self) -> None:
        """Make the folders show the commit."""
        if self.table_format in OPEN_FORMATS:
            if self.commits:
                self._take(partial(publish_tables, self, self.table_format))
        elif self._local and shown_commit(self._root) != self.commits:
            paths = self._paths_by_name
            shown = {table: names for table, names in paths.items() if is_shown(table)}
            self._take(partial(publish_view, self._root, self.commits, shown))

    def _take(self, step: Callable[[], None]) -> None:
        """Do one step of a commit, for tests to crash before."""
        step()

    # --- what is over -------------------------------------------------------------------------

    def expire(self, retention: timedelta) -> None:
        """Delete what no reader has a right to any more: see the head of this file."""
        now = datetime.now(UTC)
        times = self._log.times()
        # A commit is over once there is the next one, and stays for the retention from then on.
        over = [one for one, after in pairwise(times) if times[after] + retention < now]
        with writing(self.url):
            for each in self._commit.removed:
                if each.removed_at + retention < now:
                    self._delete(self.inner_of(each.table, each.file))
            for number in over:
                self._log.delete(number)
            if self._local:
                delete_views(self._root, times.keys() - over)
                for folder in ("_wireyard", COMMITS):
                    _delete_hidden(self.inner(folder))
            self._delete_abandoned(now)
            if self.table_format in OPEN_FORMATS:
                expire_tables(self, self.table_format, now, retention)

    def _delete_abandoned(self, now: datetime) -> None:
        """Delete files of other runs that the record does not list and nobody will commit."""
        listed = self._listed()
        by_run: dict[str, list[fs.FileInfo]] = {}
        for info in self._files_below(self.inner(DATA)):
            run = info.path[len(self.inner(DATA)) + 1 :].partition("/")[0]
            by_run.setdefault(run, []).append(info)
        for run, infos in by_run.items():
            newest = max(info.mtime or now for info in infos)
            if run != self.run and (self._local or newest + ABANDONED < now):
                for info in infos:
                    if info.path not in listed:
                        self._delete(info.path)
        if self._local:
            _delete_empty(self.inner(DATA))

    def _listed(self) -> set[str]:
        """Return every file that the record lists."""
        tables, removed = self._commit.tables.items(), self._commit.removed
        held = {self.inner_of(table, file) for table, files in tables for file in files}
        return held | {self.inner_of(each.table, each.file) for each in removed}

    def _discard(self) -> None:
        """Delete what this run has written and not committed."""
        if self._undecided:
            return  # whether the record was created is not known
        listed = self._listed()
        folder = self.inner(DATA, self.run)
        for info in self._files_below(folder):
            if info.path not in listed:
                self._delete(info.path)
        if self._local:
            _delete_empty(folder)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):  # another run may have been first
            self.system.delete_file(path)


def _make(system: fs.FileSystem, root: str, url: str) -> None:
    """Make a lake where there is nothing yet."""
    if system.get_file_info(f"{root}/_wireyard").type == fs.FileType.Directory:
        return
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    if any(not info.base_name.startswith(_HIDDEN) for info in found):
        raise LakeError(f"{url}: is no lake and not empty; name a new folder")
    system.create_dir(f"{root}/{COMMITS}")


def _delete_empty(folder: str) -> None:
    """Delete the folders in a local one that nothing is in, and itself."""
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(path)


def _delete_hidden(folder: str) -> None:
    """Delete what was to be renamed when its writer was killed."""
    for name in os.listdir(folder):
        if name.startswith("."):
            os.unlink(f"{folder}/{name}")


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
