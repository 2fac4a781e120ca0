"""Damage in a lake is found, named in one line, and repaired by reading inputs again."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.spark.lakes import HELLO, TABLES, message, packets_equal, run, table
from wireyard.cli import main
from wireyard.errors import LakeDamaged
from wireyard.lake import read_lake
from wireyard.spark.report import Report

INPUTS = ("one.jmq", "two.jmq", "three.jmq")


def read(lake: Path, *inputs: Path) -> Report:
    """Do a run in this process."""
    return run(lake, None, *inputs, few_bytes=1 << 30)


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
    refused = cli("lake", "drop", lake, "in/one.jmq", "in/none.jmq")
    assert refused.exit_code == 2
    assert f"{tmp_path}/in/none.jmq: is no input of {lake}" in refused.stderr
    assert len(read_lake(str(lake)).inputs) == 3
    (tmp_path / "in" / INPUTS[1]).unlink()  # what is dropped need not exist
    done = cli("lake", "drop", lake, f"in/{INPUTS[1]}")
    assert (done.exit_code, done.output) == (0, f"dropped: {tmp_path}/in/{INPUTS[1]}\n")
    packets_equal(lake, [tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])])
    assert "2 inputs, " in cli("lake", "check", lake).output
    done = cli("lake", "drop", lake, "in/")
    assert done.output.count("dropped: ") == 2
    assert "0 inputs, " in cli("lake", "check", lake).output
    read(lake, *(tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])))
    packets_equal(lake, [tmp_path / "in" / name for name in (INPUTS[0], INPUTS[2])])
