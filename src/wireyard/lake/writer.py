"""The lake: Parquet tables that change by atomic commits, on a local disk or an object store.

::

    DIR/_wireyard/commits/00000012.json          a commit: every file of every table, every input
    DIR/_wireyard/data/<run>/<table>/*.parquet   files that runs have written, never changed
    DIR/_wireyard/lock                           held while a run writes (local lakes)
    DIR/<table>                                  the newest commit, for readers of folders

**The commit is the creation of its record, and nothing else.** A record is created exclusively
(`streams.source.create_file`), so of several runs that began at the same commit one succeeds and
the others fail. Readers of the newest record (`lake.read_lake`) see the same commit in all tables.
Folders, which only local lakes have (`lake.views`), follow the records, and also show one commit.

States of a run, and the effect of a crash in each:

==========  ==============================================  =====================================
written     files in ``data/<run>`` that no record lists    readers do not see them; deleted
committed   **the record exists**; folders show the         readers of records see the commit,
            commit before                                   readers of folders the one before;
                                                            the next opening updates the folders
published   the folders show the commit; ``data/<run>``     files that no record lists are deleted
            has files that no record lists
==========  ==============================================  =====================================

Deletion:

- A run deletes the files that it wrote and did not commit. If it crashes first, the next run does:
  at once on a local disk, where it holds the lock; on a store once nothing was written to
  ``data/<run>`` for a day (`ABANDONED`). A run that sleeps for longer finds its files missing and
  commits nothing.
- A file that a commit removed from its table is listed as removed in its record and in later ones
  until it is deleted. It stays for an hour (`RETENTION`), and so do records once there is a newer
  one, so that readers of an older commit can finish. Then the next run, or `expire`, deletes it.

Limits
------
A lake survives a killed process; after a power cut it depends on the order of the disk's writes. A
local disk needs hard and symbolic links. A store needs a conditional put, and has no folders to
read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Final, Self
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from wireyard.errors import LakeError
from wireyard.lake.commits import Seal, describe_file
from wireyard.lake.inside import TEMPORARY_NAME, check_links, files_below
from wireyard.lake.published import OPEN_FORMATS, expire_tables, publish_tables
from wireyard.lake.records import (
    RUN_NAME,
    TABLE_FORMATS,
    Commit,
    DataFile,
    Input,
    RemovedFile,
    is_shown,
)
from wireyard.lake.snapshot import COMMITS, DATA, LakeSnapshot
from wireyard.lake.staging import Staging, writing
from wireyard.lake.views import delete_views, publish_view, shown_commit
from wireyard.streams.source import filesystem, utf8_names
from wireyard.streams.urls import shown_url

__all__ = [
    "ABANDONED",
    "RETENTION",
    "TABLE_FORMATS",
    "Change",
    "Input",
    "Lake",
    "LakeError",
]

RETENTION: Final = timedelta(hours=1)
"""Time for which files stay after a commit has removed them from their table."""
ABANDONED: Final = timedelta(days=1)
"""Time without a write after which the files of an uncommitted run on a store are deleted."""
_LOCK = "_wireyard/lock"
_HIDDEN = (".", "_")
_THREADS = 8  # mostly waiting for a store


@dataclass(frozen=True)
class Change:
    """The content of a commit: files to remove and append, by table."""

    inputs: tuple[Input, ...] = ()
    """Inputs that are new, or whose files change."""
    remove: Mapping[str, list[str]] = field(default_factory=dict)
    append: Mapping[str, list[str]] = field(default_factory=dict)
    """Names of staged files."""
    forget: frozenset[str] = frozenset()
    """Sources to remove from the lake; their files are in `remove`."""


class Lake(LakeSnapshot, Staging):
    """A lake opened for writing by one run; made by `open`, which locks it."""

    def __init__(self, url: str, known: Commit | None = None, *, damaged: bool = False) -> None:
        super().__init__(url, known=known, damaged=damaged)
        self.run = uuid4().hex
        self.table_format = self.record.table_format
        self.partition_by = self.record.partition_by
        self._undecided = False
        self._sealed: dict[tuple[str, str], Seal] = {}
        """Of files that this process has written and not committed, by table and name."""
        self._expired = datetime.min.replace(tzinfo=UTC)
        """Files that were removed from their tables before this time are deleted."""

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
        """Open a lake for a run: create it if needed, lock it, and recover from a crash.

        With `damaged`, files may be missing and records damaged, as before a repair: the newest
        whole record is the lake. `table_format` is one of `TABLE_FORMATS`; if None, that of the
        lake, or Parquet for a new one. `partition_by` is ``day`` for files of a day each; if None,
        as the lake is. `known` is a commit that was read before; it is not read again if it is the
        newest. A `LakeError` is raised if there is something else at `url`, or the lake is damaged,
        cannot be written, or is being written by another run.
        """
        if "://" in url and ("?" in url or shown_url(url) != url):
            raise LakeError(
                f"{shown_url(url)}: a lake's URL takes no options and no credentials; set them in"
                " the environment"
            )
        with ExitStack() as held:
            with writing(url), utf8_names(url):
                system, root = filesystem(url)
                local = isinstance(system, fs.LocalFileSystem)
                if local:
                    check_links(root)
                _make(system, root, url)
            held.enter_context(_locked(f"{root}/{_LOCK}", url) if local else nullcontext())
            with writing(url):
                lake = cls(url, known, damaged=damaged)
                lake._choose(table_format, partition_by)
                if not damaged:
                    lake.check_files()
                    lake._publish()
                if not lake.damaged_commits:
                    lake.expire(RETENTION)
            try:
                yield lake
            except (OSError, pa.ArrowInvalid):
                lake.check_files(checksums=True)  # a damaged file is the reason
                raise
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

    # --- staging ------------------------------------------------------------------------------

    def begin_run(self) -> None:
        """Begin another run, with a folder of its own, under the same lock.

        Files that the previous run has not committed are deleted.
        """
        self._discard()
        self._sealed = {}
        self.run = uuid4().hex

    def write(self, table: str, rows: pa.Table) -> str:
        """Stage a table as one file, which the commit does not read again; return its name."""
        from wireyard.lake.parts import write_sealed

        self.make_staging([table])
        name, self._sealed[table, name] = write_sealed(self.staged(table), rows)
        return name

    def fork(self) -> Lake:
        """Return the lake for a concurrent run, with a folder of its own.

        Both runs belong to one process and one lock. They commit in turns: before a commit, each
        calls `update_from` with the other. Do not call `expire` while there are two.
        """
        other = copy(self)
        other._sealed = {}
        other.run = uuid4().hex
        return other

    def update_from(self, other: Lake) -> None:
        """Continue from the newest commit of a concurrent run."""
        self._set_commit(other.record)

    @property
    def _folder(self) -> str:
        return f"{self.root}/{DATA}/{self.run}"

    # --- commits ------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Commit a change atomically.

        A `LakeError` is raised if another run has committed since this one opened the lake, or it
        cannot be written.
        """
        with writing(self.url):
            commit = self._next_commit(change)
            self._undecided = True
            try:
                self._commit_step(partial(self._log.create, commit))
            except LakeError:
                self._undecided = False
                raise
            self._undecided = False
        replaced = self._commit
        self._set_commit(commit)
        with writing(self.url):
            self._delete_states(replaced)
            self._publish()

    def _next_commit(self, change: Change) -> Commit:
        """Return the commit that results from applying a change to the present one."""
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
        removed = [each for each in before.removed if each.removed_at >= self._expired]
        for table, files in before.tables.items():
            kept = {file.name for file in tables[table]}
            if is_shown(table):
                removed += (
                    RemovedFile(table, file, now) for file in files if file.name not in kept
                )
        for source in change.forget:
            del inputs[source]
        whole = before.number + 1, self.run, now, tables, inputs, removed
        return Commit(*whole, table_format=self.table_format, partition_by=self.partition_by)

    def _describe(self, change: Change) -> dict[tuple[str, str], DataFile]:
        """Return the entries of a change's new files for the record, by table and name."""
        new = [(table, name) for table, names in change.append.items() for name in names]

        def describe(one: tuple[str, str]) -> DataFile:
            if (seal := self._sealed.get(one)) is not None:
                return DataFile(one[1], self.run, *seal)
            return describe_file(self.staged(*one), one[1], self.run)

        with ThreadPoolExecutor(_THREADS) as pool:
            return dict(zip(new, pool.map(describe, new), strict=True))

    def _set_commit(self, commit: Commit) -> None:
        """Make a commit the present one."""
        self._commit = commit
        for cached in ("files", "_paths_by_name"):
            self.__dict__.pop(cached, None)

    def _publish(self) -> None:
        """Publish the commit to readers of folders, or of open tables."""
        if self.table_format in OPEN_FORMATS:
            if self.commits:
                self._commit_step(partial(publish_tables, self, self.table_format))
        elif self._local and shown_commit(self._root) != self.commits:
            self._commit_step(partial(publish_view, self))

    def _commit_step(self, step: Callable[[], None]) -> None:
        """Run one step of a commit; tests override this to crash before or after it."""
        step()

    # --- deletion -----------------------------------------------------------------------------

    def expire(self, retention: timedelta) -> None:
        """Delete files and records whose retention is over: see the docstring of this file."""
        now = datetime.now(UTC)
        times = self._log.times()
        # The retention of a commit begins with the next commit.
        over = [one for one, after in pairwise(times) if times[after] < now - retention]
        with writing(self.url):
            self._delete_removed(now - retention)
            self._expired = now - retention
            for number in over:
                self._log.delete(number)
            if self._local:
                delete_views(self._root, times.keys() - over)
                for folder in ("_wireyard", COMMITS):
                    _delete_hidden(self.inner(folder))
            if self.table_format in OPEN_FORMATS:
                expire_tables(self, self.table_format, now, retention)

    def _delete_states(self, before: Commit) -> None:
        """Delete the states that a commit has replaced: they have bytes that no reader needs."""
        for table, files in before.tables.items():
            kept = {file.name for file in self._commit.tables[table]}
            for file in files:
                if file.name not in kept and not is_shown(table):
                    self._delete(self.inner_of(table, file))

    def _delete_removed(self, before: datetime) -> None:
        """Delete files that no commit needs any more.

        They are those that a commit removed from its table before a time, and those of other runs
        that are in no record and will not be committed. Only files of runs are deleted.
        """
        now = datetime.now(UTC)
        listed, data = self._listed(), self.inner(DATA)
        over = {
            self.inner_of(each.table, each.file)
            for each in self._commit.removed
            if each.removed_at < before
        }
        by_run: dict[str, list[fs.FileInfo]] = {}
        for info in files_below(self.system, data):
            run = info.path[len(data) + 1 :].partition("/")[0]
            if RUN_NAME.fullmatch(run):
                by_run.setdefault(run, []).append(info)
        for run, infos in by_run.items():
            newest = max(info.mtime or now for info in infos)
            is_abandoned = run != self.run and (self._local or newest + ABANDONED < now)
            for info in infos:
                if info.path in over or (is_abandoned and info.path not in listed):
                    self._delete(info.path)
        if self._local:
            _delete_empty(data)

    def _listed(self) -> set[str]:
        """Return every file that the record lists."""
        tables, removed = self._commit.tables.items(), self._commit.removed
        held = {self.inner_of(table, file) for table, files in tables for file in files}
        return held | {self.inner_of(each.table, each.file) for each in removed}

    def _discard(self) -> None:
        """Delete the files that this run has written and not committed."""
        if self._undecided:
            return  # the record may have been created
        listed, folder = self._listed(), self.inner(DATA, self.run)
        found = defaultdict[str, list[str]](list)
        for info in files_below(self.system, folder):
            found[info.path.rpartition("/")[0]].append(info.path)
        for of_table, paths in found.items():
            if not (self._local or any(path.startswith(f"{of_table}/") for path in listed)):
                with suppress(FileNotFoundError):
                    self.system.delete_dir(of_table)  # a thousand objects are one request
                continue
            for path in paths:
                if path not in listed:
                    self._delete(path)
        if self._local:
            _delete_empty(folder)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):  # another run may have been first
            self.system.delete_file(path)


def _make(system: fs.FileSystem, root: str, url: str) -> None:
    """Create a lake if there is none; the folder must be empty."""
    if system.get_file_info(f"{root}/_wireyard").type == fs.FileType.Directory:
        return
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    if any(not info.base_name.startswith(_HIDDEN) for info in found):
        raise LakeError(f"{url}: is no lake and not empty; name a new folder")
    system.create_dir(f"{root}/{COMMITS}")


def _delete_empty(folder: str) -> None:
    """Delete the empty folders in a local folder, and the folder if it is empty."""
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(path)


def _delete_hidden(folder: str) -> None:
    """Delete temporary files of writers that were killed before they renamed them."""
    for name in os.listdir(folder):
        if TEMPORARY_NAME.fullmatch(name):
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
