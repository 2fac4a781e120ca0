"""check-splits: it proves what it claims, and would notice if it were not so."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.cli.results import Run, one_line
from tests.make import nested, packet
from tests.mutations import damaged_stream
from wireyard.cli.packets.check_splits import Sequential, choose_sizes
from wireyard.formats import get_format
from wireyard.streams.split import Segment

JMQ = get_format("jmq")


def test_every_size_of_a_small_stream_agrees(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nested.jmq"
    path.write_bytes(nested(packet(), packet(body=b"inner") * 3) + packet() * 3)
    result = run("check-splits", path)
    assert (result.exit_code, result.stderr) == (0, "")
    head, columns, *lines = result.stdout.splitlines()
    size = path.stat().st_size
    assert head == f"{path}: {size} bytes, 4 rows when read from the beginning"
    assert columns.split() == ["split", "bytes", "segments", "rows"]
    assert [int(line.split()[0]) for line in lines] == list(range(1, size + 1))
    assert all(line.split()[2:] == ["4", "the", "same"] for line in lines)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_streams_agree(seed: int, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "any.jmq"
    path.write_bytes(damaged_stream("jmq", Random(seed), 30))
    result = run("check-splits", path, "--format", "jmq", "--sizes", "1,7,72,1000")
    assert result.exit_code == 0
    assert result.stdout.count("the same") == 4


def test_a_difference_is_told_and_is_a_failure(
    run: Run, stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "wireyard.cli.packets.check_splits.walk_pieces", lambda *_: [Segment(0, 72, 2, 0, 0)]
    )
    result = run("check-splits", stream, "--sizes", "5")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2].split(maxsplit=3)[3] == "2 rows from 0, not 1"


def test_any_wrong_segment_is_a_difference(stream: Path) -> None:
    whole = Sequential.read(str(stream), None, None)
    right = whole.cut(100)
    assert len(right) > 3 and whole.difference(right) is None
    last = right[-1]
    wrong = {
        "rows": [replace(right[0], rows=7), *right[1:]],
        "begins": [right[0], replace(right[1], start=right[1].start + 1), *right[2:]],
        "no row ends": [*right[:-1], replace(last, stop=last.stop - 1)],
        "beyond": [*right[:-1], replace(last, stop=last.stop + 1)],
        "ends at": right[:-1],
        "none": [],
    }
    differences = {name: whole.difference(segments) for name, segments in wrong.items()}
    assert None not in differences.values()
    for name in ("rows", "begins", "no row ends", "ends at"):
        assert name in str(differences[name])


def test_an_empty_stream_has_no_pieces(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.jmq"
    path.touch()
    result = run("check-splits", path, "--format", "jmq")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def test_what_cannot_be_cut_is_refused(run: Run, stream: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(stream.read_bytes()))
    result = run("check-splits", packed)
    assert (result.exit_code, one_line(result)) == (
        2,
        f"{packed}: is compressed or a pipe, so it is read in one piece",
    )


@pytest.mark.parametrize("sizes", ["0", "x", "1,-2", ""])
def test_sizes_are_numbers_of_bytes(sizes: str, run: Run, stream: Path) -> None:
    result = run("check-splits", stream, "--sizes", sizes)
    assert (result.exit_code, "is no list of sizes" in one_line(result)) == (2, True)


@pytest.mark.parametrize("size", [0, 1, 2, 1000, 5000, 100_000, 3_000_000, 200_000_000, 10**10])
def test_sizes_are_chosen_to_take_seconds(size: int) -> None:
    sizes = choose_sizes(size, JMQ)
    assert sizes == sorted(set(sizes))
    assert all(0 < split <= size for split in sizes)
    assert sum(-(-size // split) for split in sizes) <= 50_000
    assert len(sizes) >= min(size, 4)
