"""The store: what is durable when, and which files are none."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wireyard.broker import store as module
from wireyard.broker.store import Row, Store, Table
from wireyard.errors import SourceError

SECONDS = 10.0
MESSAGES = Table("messages", ("message INTEGER", "topic TEXT NOT NULL", "payload BLOB"))
HELD = Table("held", ("client_id TEXT", "packet_id INTEGER", "state TEXT"), keys=2)


class Commits:
    """Counts commits, and lets a test wait for one."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        with self._news:
            self.count += 1
            self._news.notify_all()

    def wait(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_so, SECONDS)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "broker.db")


@pytest.fixture
def opened(path: str) -> Iterator[tuple[Store, Commits, list[str]]]:
    lines: list[str] = []
    store, commits = Store(path, [MESSAGES, HELD], lines.append), Commits()
    store.start(commits)
    yield store, commits, lines
    store.close()


def rows(path: str, table: Table) -> list[Row]:
    store = Store(path, [MESSAGES, HELD])
    found = list(store.read(table, lambda *row: row))
    store.close()
    return found


def test_what_was_kept_comes_back(path: str) -> None:
    store = Store(path, [MESSAGES, HELD])
    store.start(lambda: None)
    for number in range(300):
        store.put(MESSAGES, number, "t", b"%d" % number)
        store.put(HELD, "é", number, "first")
        store.put(HELD, "é", number, "last")
    store.flush()
    for number in range(290):
        store.remove(MESSAGES, number)
        store.remove(HELD, "é", number)
    store.remove(MESSAGES, 1000)
    store.close()
    assert rows(path, MESSAGES) == [(n, "t", b"%d" % n) for n in range(290, 300)]
    assert rows(path, HELD) == [("é", n, "last") for n in range(290, 300)]
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_user_can_read_it_while_the_broker_writes(
    path: str, opened: tuple[Store, Commits, list[str]]
) -> None:
    store, commits, _ = opened
    store.put(MESSAGES, 1, "t", b"x")
    group = store.group
    store.flush()
    commits.wait(lambda: store.committed == group)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT topic, payload FROM messages").fetchall() == [("t", b"x")]
    other.close()


def test_groups_that_come_during_a_commit_share_the_next_one(
    opened: tuple[Store, Commits, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, commits, _ = opened
    write, begun, go_on = store._write, threading.Event(), threading.Event()

    def slow(changes: module.Changes) -> None:
        begun.set()
        assert go_on.wait(SECONDS)
        write(changes)

    monkeypatch.setattr(store, "_write", slow)
    store.put(MESSAGES, 0, "t", b"")
    store.flush()
    assert begun.wait(SECONDS)
    for number in range(1, 51):
        store.put(MESSAGES, number, "t", b"")
        store.flush()
    assert store.committed == 0
    go_on.set()
    commits.wait(lambda: store.committed == 51)
    assert commits.count == 2


def test_a_full_disk_is_said_and_nothing_is_committed_until_there_is_room(
    path: str, opened: tuple[Store, Commits, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, commits, lines = opened
    monkeypatch.setattr(module, "_SECONDS_TO_RETRY", 0.01)
    store._database.execute("PRAGMA max_page_count = 20")
    store.put(MESSAGES, 1, "t", bytes(200_000))
    store.flush()
    while not lines:
        threading.Event().wait(0.005)
    threading.Event().wait(0.05)
    assert lines == [
        f"{path}: cannot be written: database or disk is full, nothing is acknowledged until it"
        " can be"
    ]
    assert store.committed == 0 and store.failed is None
    store._database.execute("PRAGMA max_page_count = 100000")
    commits.wait(lambda: store.committed == 1)
    assert lines[1:] == [f"{path}: is written again"]


def test_any_other_error_ends_it(path: str, opened: tuple[Store, Commits, list[str]]) -> None:
    store, commits, lines = opened
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE messages")
    other.close()
    store.put(MESSAGES, 1, "t", b"x")
    store.flush()
    commits.wait(lambda: store.failed is not None)
    assert store.committed == 0
    assert lines == [f"{path}: cannot be written: no such table: messages, nothing is acknowledged"]


def test_changes_that_wait_are_counted(opened: tuple[Store, Commits, list[str]]) -> None:
    store, commits, _ = opened
    for number in range(module._MOST_WAITING + 1):
        store.put(MESSAGES, number, "t", b"")
    assert store.is_behind
    store.flush()
    commits.wait(lambda: store.committed == 1)
    assert not store.is_behind


def made(path: str, *statements: str) -> None:
    with sqlite3.connect(path) as other:
        for statement in statements:
            other.execute(statement)
    other.close()


def damage(path: str) -> None:
    """Overwrite pages of a store in the middle."""
    store = Store(path, [MESSAGES, HELD])
    store.start(lambda: None)
    for number in range(2000):
        store.put(MESSAGES, number, "t", bytes(100))
    store.close()
    data = bytearray(Path(path).read_bytes())
    data[40_000:80_000] = b"\xff" * 40_000
    Path(path).write_bytes(data)


def mark(path: str) -> None:
    made(path, f"PRAGMA application_id = {module._APPLICATION}", "CREATE TABLE messages (a)")


def add_trigger(path: str) -> None:
    Store(path, [MESSAGES]).close()
    made(path, "CREATE TRIGGER x AFTER INSERT ON messages BEGIN DELETE FROM messages; END")


def renew(path: str) -> None:
    Store(path, [MESSAGES]).close()
    made(path, "PRAGMA user_version = 2")


def opened_to_others(path: str) -> None:
    Store(path, [MESSAGES]).close()
    Path(path).chmod(0o660)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: Path(path).write_text("hello " * 100), "file is not a database"),
        (lambda path: made(path, "CREATE TABLE t (a)"), "is no store of a broker"),
        (mark, "is no store of a broker"),
        (add_trigger, "is no store of a broker"),
        (renew, "is a store of version 2, this broker has 1"),
        (lambda path: Path(path).mkdir(), "Is a directory"),
        (os.mkfifo, "is no file"),
        (opened_to_others, "is of another user, or others may write to it"),
        (damage, "is damaged: "),
    ],
)
def test_files_that_are_no_store_are_refused_with_one_line(
    path: str, make: Callable[[str], object], problem: str
) -> None:
    make(path)
    with pytest.raises(SourceError) as caught:
        Store(path, [MESSAGES, HELD])
    text = str(caught.value)
    assert text.startswith(f"{path}: {problem}") and "\n" not in text


def test_a_store_has_one_broker(path: str) -> None:
    store = Store(path, [MESSAGES])
    with pytest.raises(SourceError, match="is the store of a broker that runs"):
        Store(path, [MESSAGES])
    store.close()
    Store(path, [MESSAGES]).close()
