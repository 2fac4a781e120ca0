"""Damage in a lake is found, named in one line, and repaired by reading inputs again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.spark.lakes import HELLO, TABLES, all_rows, message, packets_equal, run, table
from tests.spark.test_incremental import inputs
from wireyard.cli import main
from wireyard.errors import LakeDamaged
from wireyard.lake import read_lake
from wireyard.pipeline.report import Report

INPUTS = ("one.jmq", "two.jmq", "three.jmq")


def read(lake: Path, *inputs: Path) -> Report:
    """Do a run in this process."""
    return run(lake, None, *inputs)


PROCESS = ("--engine", "process")


def cli(*arguments: object) -> Result:
    words = [str(word) for word in arguments]
    return CliRunner().invoke(main, words, catch_exceptions=False, prog_name="wireyard")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake of two runs: two inputs that share files, and one of its own."""
    (tmp_path / "in").mkdir()
    for number, name in enumerate(INPUTS):
        content = HELLO + b"".join(message(10 * number + one) for one in range(3))
        (tmp_path / "in" / name).write_bytes(content)
    lake = tmp_path / "lake"
    read(lake, *(tmp_path / "in" / name for name in INPUTS[:2]))
    read(lake, tmp_path / "in" / INPUTS[2])
    return lake


def contents(lake: Path) -> dict[str, pa.Table]:
    keys = ("source", "stream", "offset", "destination", "message_key")
    found = {}
    for name in sorted(TABLES):
        rows = table(lake, name)
        order = [(key, "ascending") for key in keys if key in rows.schema.names]
        found[name] = rows.sort_by(order) if order else rows
    return found


def file_of(lake: Path, name: str, source: Path) -> Path:
    snapshot = read_lake(str(lake))
    (file,) = snapshot.inputs[str(source)].files[name]
    (path,) = (path for path in snapshot.paths(name) if path.endswith(file))
    return Path(path)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        file.write(b"\x5a" * 200)


def test_a_reader_that_asks_for_checksums(lake: Path) -> None:
    assert read_lake(str(lake), checksums=True).commits == 2
    overwrite(file_of(lake, "packets_jmq", lake.parent / "in" / INPUTS[2]))
    read_lake(str(lake))  # the size is as it was
    with pytest.raises(LakeDamaged, match="is not what was written: its checksum differs; see"):
        read_lake(str(lake), checksums=True)


def test_what_is_whole(lake: Path) -> None:
    found = cli("lake", "check", lake)
    assert found.exit_code == 0
    assert found.stdout.splitlines()[-1] == "every file is as it was written"
    assert cli("lake", "repair", lake).stdout == "every file is as it was written\n"
    listed = cli("lake", "commits", lake).stdout.splitlines()
    assert [line.split(",")[0] for line in listed] == ["commit 1", "commit 2"]
    assert " 3 inputs, " in listed[1]
    assert cli("lake", "expire", lake, "--keep-hours", "0").exit_code == 0
    assert len(cli("lake", "commits", lake).stdout.splitlines()) == 1
    assert cli("lake", "check", lake).exit_code == 0


def test_bytes_that_were_overwritten(lake: Path) -> None:
    before = contents(lake)
    one, two, three = (lake.parent / "in" / name for name in INPUTS)
    damaged = file_of(lake, "packets_jmq", one)
    assert damaged == file_of(lake, "packets_jmq", two) != file_of(lake, "packets_jmq", three)
    overwrite(damaged)
    found = cli("lake", "check", lake)
    assert found.exit_code == 1
    assert found.stdout.splitlines()[1:] == [
        f"{damaged} is not what was written: its checksum differs; rows of {one} and 1 more"
    ]
    found = cli("lake", "repair", lake)
    assert found.exit_code == 0
    assert found.stdout.splitlines()[1:3] == [
        f"to be read again: {one}",
        f"to be read again: {two}",
    ]
    assert set(read_lake(str(lake)).inputs) == {str(three)}
    report = read(lake, lake.parent / "in")
    assert {each.source for each in report.added} == {str(one), str(two)}
    assert report.unchanged == 1
    packets_equal(lake, [one, two, three])
    assert contents(lake) == before
    assert cli("lake", "check", lake).exit_code == 0


def test_a_file_that_is_gone(lake: Path) -> None:
    before = contents(lake)
    three = lake.parent / "in" / INPUTS[2]
    gone = file_of(lake, "packets_jmq", three)
    os.unlink(gone)
    for found in (
        cli("run", lake.parent / "in", "--lake", lake),
        cli("sql", lake, "FROM messages"),
    ):
        assert found.exit_code == 1
        assert found.stderr == (
            f"wireyard: {lake}: is damaged: {gone} is missing; see 'wireyard lake repair'\n"
        )
    with pytest.raises(LakeDamaged):
        read_lake(str(lake))
    assert f"{gone} is missing; rows of {three}" in cli("lake", "check", lake).stdout
    assert cli("lake", "repair", lake).exit_code == 0
    read(lake, lake.parent / "in")
    assert contents(lake) == before


def test_facts_that_are_gone(lake: Path) -> None:
    before = contents(lake)
    for path in read_lake(str(lake)).paths("destinations"):
        os.unlink(path)
    assert cli("lake", "repair", lake).exit_code == 0
    assert not read_lake(str(lake)).inputs
    assert {name: rows.num_rows for name, rows in contents(lake).items() if rows.num_rows} == {}
    assert len(read(lake, lake.parent / "in").added) == 3
    assert contents(lake) == before


def test_what_is_no_lake(tmp_path: Path) -> None:
    for name in ("check", "commits"):
        found = cli("lake", name, tmp_path)
        assert found.exit_code == 3
        assert found.stderr.endswith("is no lake that 'wireyard run' has filled\n")


def test_inputs_are_dropped_by_name_or_folder(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = cli("lake", "drop", *PROCESS, lake, "in/one.jmq", "in/none.jmq")
    assert refused.exit_code == 2
    assert f"{tmp_path}/in/none.jmq: is no input of {lake}" in refused.stderr
    assert len(read_lake(str(lake)).inputs) == 3
    (tmp_path / "in" / INPUTS[1]).unlink()  # what is dropped need not exist
    done = cli("lake", "drop", *PROCESS, lake, f"in/{INPUTS[1]}")
    assert (done.exit_code, done.output) == (0, f"dropped: {tmp_path}/in/{INPUTS[1]}\n")
    packets_equal(lake, [tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])])
    assert "2 inputs, " in cli("lake", "check", lake).output
    done = cli("lake", "drop", *PROCESS, lake, "in/")
    assert done.output.count("dropped: ") == 2
    assert "0 inputs, " in cli("lake", "check", lake).output
    read(lake, *(tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])))
    packets_equal(lake, [tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])])


# --- records --------------------------------------------------------------------------------


def records_of(lake: Path) -> list[Path]:
    return sorted((lake / "_wireyard" / "commits").glob("*.json"))


def change_rows(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"rows":3,', b'"rows":x,', 1))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [change_rows, empty])
def test_a_damaged_newest_record(lake: Path, damage: Callable[[Path], None]) -> None:
    """Repair goes back to the commit before; the next run reads again what is lost."""
    before = contents(lake)
    three = lake.parent / "in" / INPUTS[2]
    damage(records_of(lake)[-1])
    problem = f"wireyard: {lake}: the record of commit 2 is damaged; see 'wireyard lake repair'\n"
    for words in (
        ("lake", "check", lake),
        ("lake", "commits", lake),
        ("sql", lake, "FROM messages"),
        ("run", lake.parent / "in", "--lake", lake),
    ):
        found = cli(*words)
        assert (found.exit_code, found.stderr) == (1, problem)
    found = cli("lake", "repair", lake)
    assert found.exit_code == 0
    first, second, *sources, _ = found.stdout.splitlines()
    assert first == "the record of commit 2 is damaged"
    assert re.fullmatch(r"back to the lake of \S+Z: later changes are lost", second)
    assert sources == ([] if damage is empty else [f"to be read again: {three}"])
    assert read_lake(str(lake)).commits == 3
    assert str(three) not in read_lake(str(lake)).inputs
    assert cli("lake", "check", lake).exit_code == 0
    listed = cli("lake", "commits", lake).stdout.splitlines()
    assert listed[1] == "commit 2, whose record is damaged"
    assert cli("lake", "repair", lake).stdout == "every file is as it was written\n"
    report = read(lake, lake.parent / "in")
    assert {each.source for each in report.added} == {str(three)}
    assert contents(lake) == before
    assert cli("lake", "expire", lake, "--keep-hours", "0").exit_code == 0
    assert len(records_of(lake)) == 1


def test_files_of_the_commit_before_that_are_gone(lake: Path) -> None:
    """What an earlier commit needs may be deleted already; its inputs are read again too."""
    before = contents(lake)
    one = lake.parent / "in" / INPUTS[0]
    assert cli("lake", "drop", *PROCESS, lake, one).exit_code == 0
    older = records_of(lake)[1].read_bytes()
    assert cli("lake", "expire", lake, "--keep-hours", "0").exit_code == 0
    (newest,) = records_of(lake)
    (newest.parent / "00000002.json").write_bytes(older)  # as if its file had been restored
    overwrite(newest)
    found = cli("lake", "repair", lake)
    assert found.exit_code == 0
    assert f"is missing; rows of {one}" in found.stdout
    assert f"to be read again: {one}\n" in found.stdout
    read(lake, lake.parent / "in")
    assert contents(lake) == before


def test_a_lake_without_a_whole_record(lake: Path) -> None:
    for path in records_of(lake):
        path.write_bytes(b"{")
    found = cli("lake", "repair", lake)
    problem = f"wireyard: {lake}: no record of a commit is whole; name a new folder\n"
    assert (found.exit_code, found.stderr) == (1, problem)


@pytest.mark.parametrize("text", ["bytes", "source"])
def test_what_a_checksum_alone_finds(lake: Path, text: str) -> None:
    """A record that is well-formed, and is not what was written."""
    newest = records_of(lake)[-1]
    content = newest.read_bytes()
    old, new = {
        "bytes": (b'"rows":3,', b'"rows":4,'),
        "source": (INPUTS[2].encode(), b"tree" + INPUTS[2][4:].encode()),
    }[text]
    assert old in content
    newest.write_bytes(content.replace(old, new))
    found = cli("lake", "check", lake)
    assert found.exit_code == 1
    assert "the record of commit 2 is damaged" in found.stderr


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    forged = "every file is as it was written"
    evil = tmp_path / f"a\n{forged}\n\x1b[2J\u202e.jmq"
    evil.write_bytes(HELLO + message(1))
    lake = tmp_path / "lake"
    read(lake, evil)
    file_of(lake, "packets_jmq", evil).unlink()
    shown = r"a\nevery file is as it was written\n\x1b[2J\u202e.jmq"
    check, repair = cli("lake", "check", lake), cli("lake", "repair", lake)
    assert shown in check.stdout
    assert f"to be read again: {tmp_path}/{shown}\n" in repair.stdout
    read(lake, evil)
    drop = cli("lake", "drop", *PROCESS, lake, evil)
    assert drop.stdout == f"dropped: {tmp_path}/{shown}\n"
    for found in (check, repair, drop):
        assert forged not in found.stdout.splitlines()
        assert all(char.isprintable() or char == "\n" for char in found.stdout)


def test_no_length_of_time_is_too_long(lake: Path) -> None:
    assert cli("lake", "expire", lake, "--keep-hours", "1000000").exit_code == 0
    refused = cli("lake", "expire", lake, "--keep-hours", "1e300")
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["sql", "FROM packets_jmq"],
        ["why"],
        ["slow"],
        ["trace", "orders"],
        ["report", "-o", "{out}"],
        ["replay", "--to", "localhost", "--as", "mqtt"],
        ["shadow", "{lake}"],
    ],
    ids=lambda words: words[0],
)
def test_a_damaged_file_of_the_right_size(words: list[str], lake: Path, tmp_path: Path) -> None:
    """The question names the file, not a mistake in the query."""
    snapshot = read_lake(str(lake))
    for path in {path for name in snapshot.files for path in snapshot.paths(name)}:
        overwrite(Path(path))
    command, *rest = words
    names = {"out": f"{tmp_path}/page.html", "lake": str(lake)}
    asked = cli(command, lake, *(word.format(**names) for word in rest))
    assert (asked.exit_code, asked.stdout) == (1, ""), asked.stderr
    assert asked.stderr.startswith(f"wireyard: {lake}: is damaged: {lake}/_wireyard/data/")
    assert asked.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["packets_jmq", "producers"])
def test_a_repair_makes_the_facts_of_related_inputs_anew(tmp_path: Path, name: str) -> None:
    """Messages that the dropped input shows too have rows of what the others show of them."""
    paths, lake = inputs(tmp_path / "in"), tmp_path / "lake"
    for path in paths:
        read(lake, path)
    sent = next(path for path in paths if path.name == "sent.jmq")
    for file in read_lake(str(lake)).inputs[str(sent)].files[name]:
        overwrite(Path(read_lake(str(lake)).path(name, file)))
    assert f"to be read again: {sent}\n" in cli("lake", "repair", lake).stdout
    left = [path for path in paths if str(path) in read_lake(str(lake)).inputs]
    assert len(left) in (len(paths) - 1, len(paths) - 2)  # one file may have the facts of two
    read(tmp_path / "once", *left)
    assert all_rows(lake) == all_rows(tmp_path / "once")
