"""Small files become larger ones as they gather, and no row changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make import packet
from tests.spark.lakes import TABLES, message, nothing_left, packets_equal, run, table
from wireyard.lake import read_lake
from wireyard.pipeline import replacing

INPUTS = 13
LOGIN = packet(packet_type=12)


def test_rows_are_those_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "_MERGED", 4)
    (tmp_path / "in").mkdir()
    paths = []
    for number in range(INPUTS):
        paths.append(tmp_path / "in" / f"{number:02}.jmq")
        content = b"".join(message(100 * number + one) for one in range(3))
        paths[-1].write_bytes(LOGIN + content + b"\xff" * (number % 3))
        run(tmp_path / "grown", None, tmp_path / "in")
    run(tmp_path / "whole", None, tmp_path / "in")
    grown, whole = read_lake(str(tmp_path / "grown")), read_lake(str(tmp_path / "whole"))
    assert grown.commits == INPUTS
    for name, files in grown.files.items():
        assert len(files) < 9, name
    assert sum("merged" in file for file in grown.files["packets_jmq"]) > 0
    for name in sorted(TABLES):
        ours, theirs = (
            sorted(map(repr, table(tmp_path / lake, name).to_pylist()))
            for lake in ("grown", "whole")
        )
        assert ours == theirs, name
    for source, each in grown.inputs.items():
        other = whole.inputs[source]
        assert each.ledger == other.ledger
        assert set(each.files) == set(other.files)
    nothing_left(tmp_path / "grown")

    paths[2].write_bytes(paths[2].read_bytes() + message(999))
    report = run(tmp_path / "grown", None, tmp_path / "in")
    assert (len(report.added), report.grown) == (1, 1)
    packets_equal(tmp_path / "grown", paths)


def test_few_files_and_large_ones_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_MERGED", 3)
    monkeypatch.setattr(replacing, "_MERGED_BYTES", 1)
    for number in range(4):
        path = tmp_path / f"{number}.jmq"
        path.write_bytes(message(number))
        run(tmp_path / "lake", None, path)
    assert len(read_lake(str(tmp_path / "lake")).files["packets_jmq"]) == 4


def test_fewer_become_one_where_they_are_large_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for number in range(4):
        path = tmp_path / f"{number}.jmq"
        path.write_bytes(message(number))
        run(tmp_path / "lake", None, path)
        files = read_lake(str(tmp_path / "lake")).files["packets_jmq"]
        counts.append(len(files))
        if number == 0:
            [only] = read_lake(str(tmp_path / "lake")).paths("packets_jmq")
            monkeypatch.setattr(replacing, "_MERGED_BYTES", 5 * Path(only).stat().st_size // 2)
    # The one of the last run is not looked at; the others are one.
    assert counts == [1, 2, 3, 2]
    packets_equal(tmp_path / "lake", [tmp_path / f"{number}.jmq" for number in range(4)])
