"""Stores and their files: found by place and content, opened for reading, left as they were."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

import wireyard
from tests.captures.stores.judge import judged
from tests.captures.stores.make import (
    log,
    log_record,
    message,
    packets,
    record,
    single,
    states,
    vrfile,
)
from tests.make import packet
from wireyard.captures.stores.file import StoreFile
from wireyard.captures.stores.kinds import Kind
from wireyard.captures.stores.read import is_store, read_store
from wireyard.errors import SourceError

P = packets(2)
FILES = {
    "txnlog": Kind.LOG,
    "interest": Kind.MAP,
    "property": Kind.MAP,
    "destination": Kind.MAP,
    "configrecord": Kind.CONFIG,
    "incompleteTxnStore/vrfile": Kind.INCOMPLETE,
    "message/Qbookings/vrfile": Kind.MESSAGES,
    "message/Qfreight/0": Kind.MESSAGE,
    "message/Qfreight/1": Kind.MESSAGE,
    "message/Qfreight/vrfile": Kind.MESSAGES,
    "message/Qledger/vrfile": Kind.MESSAGES,
    "message/Qorders/vrfile": Kind.MESSAGES,
    "message/Tprices/vrfile": Kind.MESSAGES,
}


@pytest.fixture
def copied(examples: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the recorded store as a broker's folder has it."""
    shutil.copytree(examples / "store/fs370", tmp_path / "depot/fs370")
    (tmp_path / "depot/lock").write_text("depot:127.0.0.1:7676")
    yield tmp_path / "depot"


@pytest.mark.parametrize("place", ["", "fs370"])
def test_a_store_is_found_from_its_broker_or_itself(copied: Path, place: str) -> None:
    store = read_store(copied / place)
    prefix = "" if place else "fs370/"
    assert {file.name: file.kind for file in store} == {
        f"{prefix}{name}": kind for name, kind in FILES.items()
    }
    assert {file.source for file in store} == {str(copied / place)}
    assert len(store) == len(FILES)
    destinations = {file.destination for file in store if "message" in file.name}
    assert destinations == {"Q:bookings", "Q:freight", "Q:ledger", "Q:orders", "T:prices"}
    assert is_store(str(copied / place))


def test_what_is_read_is_what_is_there(copied: Path) -> None:
    for file in read_store(copied):
        data = (copied / file.name).read_bytes()
        assert file.data == data
        assert [(one.start, one.stop, one.status) for one in judged(file.kind, data)] == [
            (one.start, one.stop, one.status) for one in file.records
        ]


def look(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what changes if somebody writes, locks or replaces anything in a folder."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        now = path.lstat()
        found[str(path)] = now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns
    return found


def test_nothing_is_written_or_locked(copied: Path) -> None:
    seen: list[tuple[str, object]] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and str(copied) in str(arguments[0]):
            seen.append((event, arguments[1]))
        elif watching and event.startswith(("fcntl.", "os.re", "os.truncate", "os.utime", "mmap")):
            seen.append((event, None))

    before = look(copied)
    sys.addaudithook(watch)
    files = list(read_store(copied))
    watching = False
    assert len(files) == len(FILES)
    assert seen == [("open", "r")] * len(files)
    assert look(copied) == before


def test_a_store_may_be_read_only(copied: Path) -> None:
    before = list(read_store(copied))
    for path in [copied, *copied.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert list(read_store(copied)) == before
    finally:
        for path in [copied, *copied.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_destination_alone_is_read(copied: Path) -> None:
    files = list(read_store(copied / "fs370/message/Qfreight"))
    assert [(file.name, file.destination) for file in files] == [
        ("0", "Q:freight"),
        ("1", "Q:freight"),
        ("vrfile", "Q:freight"),
    ]


@pytest.mark.parametrize("name", ["vrfile", "0"])
def test_a_message_of_two_megabytes_is_there(tmp_path: Path, name: str) -> None:
    body = bytes(range(256)) * (1 << 13)
    data = packet(packet_type=3, body=body)
    folder = tmp_path / "fs370" / "message" / "Qfreight"
    folder.mkdir(parents=True)
    held = single(data, states((7, 1))) if name == "0" else vrfile(record(message(data, (7, 1))))
    (folder / name).write_bytes(held)
    table = wireyard.read(tmp_path / "fs370", "jmq")
    (row,) = table.filter(pc.equal(table["status"], "ok")).to_pylist()
    assert (row["body_size"], row["body"]) == (2 << 20, body)
    (file,) = read_store(tmp_path / "fs370")
    judged(file.kind, file.data)


def test_files_that_are_no_part_of_a_store_are_left_alone(copied: Path) -> None:
    (copied / "fs370/notes.txt").write_text("not ours")
    (copied / "fs370/message/Qorders/vrfile.bak").write_bytes(b"?")
    assert len(read_store(copied)) == len(FILES)


def test_links_and_pipes_are_named_and_not_opened(copied: Path) -> None:
    (copied / "fs370/message/Qorders/7").symlink_to("/etc/hostname")
    (copied / "fs370/message/Qlinked").symlink_to(copied / "fs370/message/Qorders")
    os.mkfifo(copied / "fs370/message/Qorders/8")
    found = {file.name: file for file in read_store(copied)}
    assert failures(found.values()) == {
        "fs370/message/Qorders/7": "is a link, which is not followed; name it to read it",
        "fs370/message/Qlinked": "is a link, which is not followed; name it to read it",
        "fs370/message/Qorders/8": "is no file",
    }
    assert len(found) == len(FILES) + 3 and found["fs370/message/Qlinked"].data == b""


@pytest.mark.parametrize("name", ["fs370/message", "fs370"])
def test_a_folder_of_a_store_that_is_a_link_is_named(copied: Path, name: str) -> None:
    elsewhere = copied.parent / "elsewhere"
    (copied / name).rename(elsewhere)
    (copied / name).symlink_to(elsewhere)
    found = read_store(copied)
    assert failures(found) == {name: "is a link, which is not followed; name it to read it"}
    assert not any(file.name.startswith(f"{name}/") for file in found)


def failures(files: Iterable[StoreFile]) -> dict[str, str]:
    return {each.name: str(each.failure).rpartition(": ")[2] for each in files if each.failure}


def test_numbered_files_are_in_order(copied: Path) -> None:
    folder = copied / "fs370/message/Qfreight"
    for number in (2, 10, 9):
        shutil.copy(folder / "1", folder / str(number))
    names = [file.name for file in read_store(folder)]
    assert names == ["0", "1", "2", "9", "10", "vrfile"]


def test_a_file_that_goes_away_is_told(copied: Path) -> None:
    store = read_store(copied)
    (copied / "fs370/message/Qfreight/1").unlink()
    found = {file.name: file for file in store}
    gone = found["fs370/message/Qfreight/1"]
    assert "there is no such file" in str(gone.failure)
    assert (gone.records, gone.data, len(found)) == ([], b"", len(FILES))


@pytest.mark.parametrize("name", FILES)
def test_a_file_alone_is_told_by_its_content(examples: Path, tmp_path: Path, name: str) -> None:
    data = (examples / "store/fs370" / name).read_bytes()
    path = tmp_path / "something"
    path.write_bytes(data)
    (file,) = read_store(path)
    assert (file.source, file.name, file.data) == (str(path), str(path), data)
    nothing_in_it = name in ("property", "incompleteTxnStore/vrfile")
    assert file.kind is (Kind.MESSAGES if nothing_in_it else FILES[name])
    (named,) = read_store(examples / "store/fs370" / name)
    assert named.kind is FILES[name]


def test_content_tells_records_apart(tmp_path: Path) -> None:
    made = {
        Kind.MESSAGES: vrfile(record(message(P[0])), version=1),
        Kind.INCOMPLETE: vrfile(record(b"\0\0\0\x20\1" + bytes(31))),
        Kind.MAP: vrfile(record(bytes.fromhex("aced0005"))),
        Kind.LOG: log(log_record(b"\4\0", 0)),
        Kind.MESSAGE: single(P[0], tag=b"...."),
        Kind.PREPARED: single(b"\1" + bytes(40)),
    }
    for kind, data in made.items():
        path = tmp_path / kind.name
        path.write_bytes(data)
        assert [file.kind for file in read_store(path)] == [kind]
        path.write_bytes(gzip.compress(data))
        assert [file.data for file in read_store(path)] == [data]


@pytest.mark.parametrize("head", [b"", b"\x55", b"hello", b"\0\4GOO", b"\x1b\xff\xe3\xc2"])
def test_other_files_are_refused(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(head)
    assert not is_store(str(path))
    with pytest.raises(SourceError, match="begins like no file of a store"):
        read_store(path)


def test_a_file_may_come_from_standard_input(
    examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (examples / "store/fs370/txnlog").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [(file.name, file.kind, file.data) for file in read_store("-")] == [
        ("-", Kind.LOG, data)
    ]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "message").mkdir()
    assert not is_store(str(tmp_path))
    with pytest.raises(SourceError, match="no file store of Open MQ"):
        read_store(tmp_path)
    with pytest.raises(SourceError, match="there is no such file"):
        read_store(tmp_path / "nothing")
    assert not is_store(str(tmp_path / "nothing"))
