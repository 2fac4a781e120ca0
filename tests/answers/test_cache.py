"""Derived tables that are kept: used only for the same inputs, by the same user, within a bound."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.answers.talks import Talk
from wireyard.accelerate.folders import private_folder
from wireyard.answers import cache, open_tables
from wireyard.cli import main
from wireyard.pipeline.decoding.stage import BronzeStage
from wireyard.pipeline.facts import stage

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX owners")

COUNT = "SELECT destination, count(*) AS n FROM messages GROUP BY 1 ORDER BY 1"
SECRET = "hunter-two-of-the-cellar"


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep what is derived in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "private_folder", private_folder)
    yield tmp_path / "cache" / f"wireyard-{os.getuid()}" / "answers"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the inputs that are decoded."""
    read: list[str] = []
    stage = BronzeStage.read

    def recorded(self: Any, found: Any, *more: Any) -> Any:
        read.extend(each.path for each in found)
        return stage(self, found, *more)

    monkeypatch.setattr(BronzeStage, "read", recorded)
    return read


def capture(path: Path, topic: str = "a/1", payload: bytes = b"x") -> Path:
    """Write a capture that did not change lately."""
    talk = Talk()
    talk.login(1, 5001, "gets")
    talk.subscribe(2, 5001, "a/#")
    talk.login(3, 5002, "sends")
    talk.publish(10, 5002, topic, payload, 1)
    talk.deliver(11, 5001, topic, payload, 1)
    return settled(talk.write(path))


def settled(path: Path) -> Path:
    """Give a file an age; its inode's time of change cannot be set, so the rule is set instead."""
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count files as settled as soon as they are written."""
    monkeypatch.setattr(cache, "_SETTLED_NS", -(10**12))


def ask(*paths: Path, query: str = COUNT, cached: bool = True, **how: Any) -> list[dict[str, Any]]:
    with open_tables([str(path) for path in paths], cached=cached, **how) as tables:
        return tables.rows(query)


def command(*words: object) -> int:
    return CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False).exit_code


def test_the_second_question_decodes_nothing(tmp_path: Path, decoded: list[str]) -> None:
    path = capture(tmp_path / "in.pcap")
    assert ask(path) == ask(path) == [{"destination": "a/1", "n": 1}]
    assert ask(path, query="SELECT count(*) AS n FROM packets_mqtt") == [{"n": 10}]
    assert decoded == [str(path)]
    assert ask(path, cached=False) == [{"destination": "a/1", "n": 1}]
    assert decoded == [str(path)] * 2


def _rewritten(path: Path) -> None:
    """Change a byte of the topic, and set back size and time."""
    capture(path, "a/2")


def _replaced(path: Path) -> None:
    shutil.copy2(capture(path.with_name("other.pcap"), "a/2"), path.with_name("new.pcap"))
    path.with_name("new.pcap").rename(path)


def _grown(path: Path) -> None:
    talk = Talk()
    talk.publish(10, 5003, "a/2", b"y", 1)
    with path.open("ab") as file:
        file.write(talk.write(path.with_name("more.pcap")).read_bytes()[24:])
    settled(path)


def _touched(path: Path) -> None:
    os.utime(path, ns=(10**17, 10**17))


@pytest.mark.parametrize("change", [_rewritten, _replaced, _grown, _touched])
def test_a_file_that_changed_is_decoded_again(
    change: Callable[[Path], None], tmp_path: Path, decoded: list[str]
) -> None:
    path = capture(tmp_path / "in.pcap")
    before = ask(path)
    size, modified = path.stat().st_size, path.stat().st_mtime_ns
    change(path)
    if change in (_rewritten, _replaced):
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (size, modified)
    assert ask(path) == ask(path, cached=False)
    assert (ask(path) == before) == (change is _touched)
    assert len(decoded) == 3


def test_a_change_in_the_middle_that_hides_itself_is_seen(
    tmp_path: Path, decoded: list[str]
) -> None:
    """Both ends, size, inode and time are the same: only the inode's time of change is not."""
    path = tmp_path / "in.pcap"
    talk = Talk()
    talk.login(3, 5002, "sends")
    for number in range(1, 4000):
        topic = "b/1" if number == 2000 else "a/1"
        talk.publish(number, 5002, topic, b"x" * 60, number)
    settled(talk.write(path))
    assert [row["n"] for row in ask(path)] == [3998, 1]
    with path.open("r+b") as file:
        data = file.read()
        file.seek(data.index(b"b/1"))
        file.write(b"a")
    settled(path)
    assert [row["n"] for row in ask(path)] == [3999]


@pytest.mark.parametrize(
    "how",
    [{"format": "mqtt"}, {"decode_as": ["tcp.port==1883,mqtt"]}, {"rotated": True}],
    ids=lambda how: next(iter(how)),
)
def test_other_options_are_another_question(
    how: dict[str, Any], tmp_path: Path, decoded: list[str]
) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    ask(path, **how)
    assert len(decoded) == 2
    ask(path, **how)
    assert len(decoded) == 2


def test_the_age_of_a_file_is_no_part_of_its_name() -> None:
    young = {"files": [{"size": 1}], "size": 2}
    assert cache._lasting({"files": [{"size": 1, "kept": [3]}], "size": 2, "kept": [4]}) == young


def test_another_wireyard_derives_again(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    monkeypatch.setattr(cache, "_code", lambda: ["another"])
    ask(path)
    assert len(decoded) == 2


def test_another_file_in_a_folder(tmp_path: Path, decoded: list[str]) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    capture(folder / "one.pcap")
    assert ask(folder) == ask(folder)
    capture(folder / "two.pcap", "a/2")
    assert [row["destination"] for row in ask(folder)] == ["a/1", "a/2"]
    (folder / "one.pcap").unlink()
    assert [row["destination"] for row in ask(folder)] == ["a/2"]


def test_the_same_file_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capture(tmp_path / "in.pcap")
    monkeypatch.chdir(tmp_path)
    sources = "SELECT DISTINCT source FROM messages"
    for name in (path, Path("in.pcap"), path, Path("in.pcap")):
        assert ask(name, query=sources) == [{"source": str(name)}]


def test_a_file_that_changed_just_now_is_not_kept(
    tmp_path: Path, private: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_SETTLED_NS", 2 * 10**9)
    path = capture(tmp_path / "in.pcap")
    assert ask(path) == ask(path)
    assert len(decoded) == 2
    assert not private.exists() or not list(private.iterdir())


def test_a_file_that_changes_meanwhile_is_not_kept(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "in.pcap")
    derive = stage.write_facts

    def growing(*given: Any) -> Any:
        _grown(path)
        return derive(*given)

    monkeypatch.setattr(stage, "write_facts", growing)
    ask(path)
    monkeypatch.setattr(stage, "write_facts", derive)
    assert [row["destination"] for row in ask(path)] == ["a/1", "a/2"]
    assert len(decoded) == 2


def test_notes_and_losses_are_those_of_the_first_time(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    path = capture(folder / "in.pcap")
    path.write_bytes(path.read_bytes()[:-3])
    settled(path)
    (folder / "else.txt").write_text("no packets")
    said = []
    for _ in range(2):
        with open_tables([str(folder)], cached=True) as tables:
            tables.rows(COUNT)
            said.append((list(tables.notes), tables.lost))
    assert said[0] == said[1]
    left_out, damage = said[0][0]
    assert "else.txt" in left_out and "are not read" in damage and said[0][1]


def test_only_the_user_reads_it_and_it_has_no_password(tmp_path: Path, private: Path) -> None:
    path = tmp_path / "in.pcap"
    talk = Talk()
    user = b"\x00\x01u" + len(SECRET).to_bytes(2, "big") + SECRET.encode()
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01c" + user
    talk.say(1, 5001, bytes([0x10, len(body)]) + body, up=True)
    talk.say(2, 5001, b"\x20\x02\x00\x00", up=False)
    talk.publish(3, 5001, "a", b"kept", 1)
    ask(settled(talk.write(path)))
    assert SECRET.encode() in path.read_bytes()
    files = [each for each in private.rglob("*") if each.is_file()]
    assert len(files) > 5
    for each in private.rglob("*"):
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each
    import pyarrow.parquet as pq

    for each in files:
        shown = str(pq.read_table(each).to_pylist()) if each.suffix == ".parquet" else ""
        assert SECRET not in shown + each.read_bytes().decode("latin-1")


def test_what_was_decrypted_is_not_kept(tmp_path: Path, decoded: list[str]) -> None:
    path = capture(tmp_path / "in.pcap")
    keys = tmp_path / "keys"
    keys.write_text(f"CLIENT_RANDOM {'00' * 32} {'00' * 48}\n")
    ask(path, keylog=[str(keys)])
    ask(path, keylog=[str(keys)])
    assert len(decoded) == 2


def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, private: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    private.parent.chmod(0o777)
    other = tmp_path / "temporary" / private.parent.name
    other.mkdir(parents=True)
    other.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(other.parent))
    ask(path)
    ask(path)
    assert len(decoded) == 3


@pytest.mark.parametrize("damage", ["record", "a file", "its size", "another type"])
def test_a_damaged_entry_is_as_if_it_were_not_there(
    damage: str, tmp_path: Path, private: Path, decoded: list[str]
) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    (record,) = private.rglob("entry.json")
    table = next((record.parent / "tables").rglob("*.parquet"))
    if damage == "record":
        record.unlink()
    elif damage == "a file":
        table.unlink()
    elif damage == "its size":
        table.write_bytes(table.read_bytes()[:-1])
    else:
        record.write_text("[]")
    for _ in range(3):
        assert ask(path) == [{"destination": "a/1", "n": 1}]
    assert len(decoded) == 2  # and the entry was replaced


def test_an_entry_names_no_file_outside(tmp_path: Path, private: Path, decoded: list[str]) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    (record,) = private.rglob("entry.json")
    outside = tmp_path / "outside.parquet"
    shutil.copy(next(record.parent.rglob("part-*.parquet")), outside)
    name = next((record.parent / "tables" / "messages").iterdir()).name
    record.write_text(record.read_text().replace(name, f"../../../../../../{outside.name}"))
    assert ask(path) == [{"destination": "a/1", "n": 1}]
    assert len(decoded) == 2


@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_the_entries_used_last_stay(
    limit: str, tmp_path: Path, private: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [capture(tmp_path / f"{number}.pcap", f"a/{number}") for number in range(3)]
    ask(paths[0])
    ask(paths[1])
    (one,) = {sum(f.stat().st_size for f in each.rglob("*") if f.is_file())
              for each in [next(private.iterdir())]}  # fmt: skip
    ask(paths[0])
    if limit == "bytes":
        monkeypatch.setattr(cache, "MOST_BYTES", int(2.5 * one))
    else:
        monkeypatch.setattr(cache, "MOST_ENTRIES", 2)
    ask(paths[2])
    assert len(list(private.iterdir())) == 2
    del decoded[:]
    ask(paths[0])
    assert decoded == []
    ask(paths[1])
    assert decoded == [str(paths[1])]


def test_tables_stay_if_their_entry_is_removed(tmp_path: Path, private: Path) -> None:
    path = capture(tmp_path / "in.pcap")
    ask(path)
    with open_tables([str(path)], cached=True) as tables:
        assert tables.rows(COUNT)
        cache._remove_oldest(private, 0)
        assert not list(private.iterdir())
        assert tables.rows("SELECT count(*) AS n FROM packets_mqtt") == [{"n": 10}]


def test_commands_keep_tables_unless_asked_not_to(
    tmp_path: Path, private: Path, decoded: list[str]
) -> None:
    path = capture(tmp_path / "in.pcap")
    commands = (("why",), ("slow",), ("trace", "a/1"), ("sql", COUNT), ("report", "-w", "-"))
    for name, *rest in commands:
        assert command(name, path, *rest, "--no-cache") == 0
    assert len(decoded) == 5 and not list(private.parent.glob("answers/*"))
    for name, *rest in commands:
        assert command(name, path, *rest) == 0
    assert len(decoded) == 6
