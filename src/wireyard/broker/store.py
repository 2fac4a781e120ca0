"""What a broker keeps over a restart: an SQLite file, written by a thread in groups of changes.

Rules of this file:

1. A change belongs to the group that is open; `flush` closes the group. It is durable once
   `committed` has reached the number of its group, and only then what it acknowledges may leave.
2. A commit begins when the last one has ended, and holds all groups that came meanwhile. So groups
   are small on a fast disk and large on a slow one.
3. Of several changes of one row, only the last one is written.
4. A file is trusted no more than a packet: it has our tables and nothing else, and whoever reads a
   row checks it.
5. A commit that fails is tried again if the disk is full. After any other error nothing is
   committed any more, and `failed` has the reason.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, Final, TypeVar

from wireyard.errors import SourceError, WireError

_APPLICATION: Final = 0x7769_7265
"""``wire``, as the application id of the file."""
_VERSION: Final = 1
_MOST_WAITING: Final = 50_000
_SECONDS_TO_RETRY: Final = 1.0
_STATEMENT_ROWS: Final = (128, 16, 1)
"""Rows of one statement, of which few forms are to be kept prepared. The interpreter lock is
released once a statement, so few large ones disturb the loop least."""

Row = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Table:
    """A table of the store.

    `columns` are as SQL declares them; the first `keys` of them are the key.
    """

    name: str
    columns: tuple[str, ...]
    keys: int = 1

    @property
    def sql(self) -> str:
        """The statement that creates the table."""
        key = ", ".join(self._names(self.keys))
        is_number = self.columns[0].endswith("INTEGER") and self.keys == 1
        options = "STRICT" if is_number else "STRICT, WITHOUT ROWID"
        columns = ",\n  ".join((*self.columns, f"PRIMARY KEY ({key})"))
        return f"CREATE TABLE {self.name} (\n  {columns}\n) {options}"

    def _names(self, count: int | None = None) -> list[str]:
        return [column.split()[0] for column in self.columns[:count]]

    def put_sql(self, rows: int) -> str:
        """Return the statement that writes a number of rows."""
        return f"INSERT OR REPLACE INTO {self.name} VALUES {_marks(len(self.columns), rows)}"

    def remove_sql(self, rows: int) -> str:
        """Return the statement that removes a number of rows by their keys."""
        key = ", ".join(self._names(self.keys))
        gone = f"WITH gone ({key}) AS (VALUES {_marks(self.keys, rows)})"
        return f"{gone} DELETE FROM {self.name} WHERE ({key}) IN (SELECT {key} FROM gone)"


def _marks(columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


Changes = dict[Table, dict[Any, Row | None]]
"""By table and key: the row, or None for one that is removed."""


class Store:
    """The store of a broker.

    The file `path` is created if there is none, and so are those of `tables`, all that it may have.
    `say` is called with one line for each notable cause, from the writing thread too. `group` is
    the number of the open group, and `committed` that of the last group that is durable. `failed`
    is why nothing is committed any more, None as long as it is. A `SourceError` is raised if the
    file cannot be opened, is in use, or is no store of these tables.
    """

    def __init__(
        self, path: str, tables: Iterable[Table], say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.path = path
        self.group, self.committed = 1, 0
        self.failed: str | None = None
        self.changes = 0
        """Number of all changes, ever."""
        self._changes: Changes = {}
        self._written = 0
        self._say = say
        self._groups: SimpleQueue[tuple[int, int, Changes] | None] = SimpleQueue()
        self._closing = Event()
        self._thread: Thread | None = None
        self._lock = _lock(path)
        try:
            self._database = _open(path, list(tables))
        except sqlite3.Error as error:
            os.close(self._lock)
            raise SourceError(f"{path}: {_text(error)}") from None
        except BaseException:
            os.close(self._lock)
            raise

    def read(self, table: Table, make: Callable[..., T]) -> Iterator[T]:
        """Yield what the rows of a table stand for, by key; only before `start`.

        A `SourceError` is raised if the file is damaged, or `make` refuses a row.
        """
        key = ", ".join(str(place + 1) for place in range(table.keys))
        row: Row = ()
        try:
            for row in self._database.execute(f"SELECT * FROM {table.name} ORDER BY {key}"):
                yield make(*row)
        except sqlite3.Error as error:
            raise SourceError(f"{self.path}: table {table.name}: {_text(error)}") from None
        except (WireError, LookupError, ValueError, TypeError, RecursionError) as error:
            shown = ", ".join(str(value)[:100] for value in row[: table.keys])
            raise SourceError(f"{self.path}: table {table.name}, row {shown!r}: {error}") from None

    def start(self, committed: Callable[[], object]) -> None:
        """Begin to write; `committed` is called in the thread after each commit or failure."""
        self._thread = Thread(target=self._run, args=(committed,), name="store", daemon=True)
        self._thread.start()

    # --- changes --------------------------------------------------------------------------

    def put(self, table: Table, *row: Any) -> None:
        """Write a row, in place of one with the same key."""
        self.changes += 1
        rows = self._changes.get(table)
        if rows is None:
            rows = self._changes[table] = {}
        rows[row[0] if table.keys == 1 else row[: table.keys]] = row

    def remove(self, table: Table, *key: Any) -> None:
        """Remove a row, if there is one."""
        self.changes += 1
        self._changes.setdefault(table, {})[key[0] if table.keys == 1 else key] = None

    def flush(self) -> None:
        """Close the open group, if there are changes, and have it written."""
        if self._changes:
            self._groups.put((self.group, self.changes, self._changes))
            self._changes = {}
            self.group += 1

    @property
    def last_group(self) -> int:
        """The last group that has changes: the open one, or the one before."""
        return self.group if self._changes else self.group - 1

    @property
    def is_behind(self) -> bool:
        """Whether so many changes wait that no more should be made for now."""
        return self.changes - self._written > _MOST_WAITING

    def close(self) -> None:
        """Commit what there is, and close the file."""
        self.flush()
        if self._thread is not None:
            self._closing.set()
            self._groups.put(None)
            self._thread.join()
        try:
            self._database.close()
        except sqlite3.Error as error:
            self._say(f"{self.path}: {_text(error)}")
        os.close(self._lock)

    # --- the thread -----------------------------------------------------------------------

    def _run(self, committed: Callable[[], object]) -> None:
        ends = False
        while not ends and self.failed is None:
            groups = [self._groups.get()]
            try:
                while True:
                    groups.append(self._groups.get_nowait())
            except Empty:
                ends = None in groups
            closed = [group for group in groups if group is not None]
            if not closed:
                continue
            changes: Changes = {}
            for _, _, newer in closed:
                for table, rows in newer.items():
                    changes.setdefault(table, {}).update(rows)
            if self._commit(changes):
                self.committed, self._written, _ = closed[-1]
            committed()

    def _commit(self, changes: Changes) -> bool:
        """Write changes, as often as it takes; return False if they cannot be written."""
        is_said = False
        while True:
            try:
                self._write(changes)
            except Exception as error:
                # Whatever it is, acknowledgements must not wait without a word.
                is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
                gives_up = not is_full or self._closing.is_set()
                if not is_said:
                    ends = ", nothing is acknowledged" + ("" if gives_up else " until it can be")
                    self._say(f"{self.path}: cannot be written: {_text(error)}{ends}")
                    is_said = True
                if gives_up:
                    self.failed = f"{self.path}: {_text(error)}"
                    return False
                self._closing.wait(_SECONDS_TO_RETRY)
            else:
                if is_said:
                    self._say(f"{self.path}: is written again")
                return True

    def _write(self, changes: Changes) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for table, rows in changes.items():
                kept = [row for row in rows.values() if row is not None]
                _execute(database, table, Table.put_sql, kept)
                gone = [key for key, row in rows.items() if row is None]
                keys = [(key,) for key in gone] if table.keys == 1 else gone
                _execute(database, table, Table.remove_sql, keys)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


def _execute(
    database: sqlite3.Connection,
    table: Table,
    form: Callable[[Table, int], str],
    rows: Sequence[Row],
) -> None:
    at = 0
    for most in _STATEMENT_ROWS:
        while len(rows) - at >= most:
            values = [value for row in rows[at : at + most] for value in row]
            database.execute(_statement(form, table, most), values)
            at += most


@lru_cache(maxsize=256)
def _statement(form: Callable[[Table, int], str], table: Table, rows: int) -> str:
    return form(table, rows)


# --- the file -------------------------------------------------------------------------------


def _lock(path: str) -> int:
    """Open the file for one broker alone, and create it for its owner alone.

    The descriptor is open as long as SQLite has the file: closing it would end SQLite's own locks.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: is no file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SourceError(f"{path}: is of another user, or others may write to it")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except SourceError:
        os.close(file)
        raise
    except OSError:
        os.close(file)
        raise SourceError(f"{path}: is the store of a broker that runs") from None
    return file


def _open(path: str, tables: Sequence[Table]) -> sqlite3.Connection:
    is_new = os.path.getsize(path) == 0
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
            database.execute(f"PRAGMA {setting}")
        if not is_new:
            _check(path, database, tables)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise SourceError(f"{path}: this file system has no shared memory, which WAL needs")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute(f"PRAGMA user_version = {_VERSION}")
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
        for table in tables:
            if table.name not in known:
                database.execute(table.sql)
    except BaseException:
        database.close()
        raise
    return database


def _check(path: str, database: sqlite3.Connection, tables: Sequence[Table]) -> None:
    """Refuse a file that has anything but our tables: what else it has could run at every write."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    known = {table.sql for table in tables}
    found = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_schema")]
    if application != _APPLICATION or not all(sql in known for sql in found):
        raise SourceError(f"{path}: is no store of a broker")
    if version != _VERSION:
        raise SourceError(f"{path}: is a store of version {version}, this broker has {_VERSION}")
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise SourceError(f"{path}: is damaged: {' '.join(str(verdict).split())[:200]}")


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
