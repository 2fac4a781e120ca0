"""convert: packets of one format as those of another, and nothing lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.results import Run, one_line, rows_of
from tests.formats.gpacket.make import gpacket, link
from tests.make import packet


def test_recorded_packets_come_back_byte_for_byte(
    run: Run, traffic: list[Path], tmp_path: Path
) -> None:
    there = tmp_path / "there.gpacket"
    for source in traffic:
        assert run("convert", source, "-w", there).exit_code == 0
        rows = rows_of(run("decode", there, "--out", "jsonl", "--columns", "format,status,version"))
        assert {tuple(row.values()) for row in rows} == {("gpacket", "ok", 350)}
        assert run("convert", there).stdout_bytes == source.read_bytes()


def test_standard_input_is_the_default(run: Run) -> None:
    data = packet(packet_type=54, consumer_id=7)
    there = run("convert", stdin=data)
    assert (there.exit_code, there.stderr) == (0, "")
    assert run("convert", "-", stdin=there.stdout_bytes).stdout_bytes == data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (packet() + packet(version=9) + packet(), "offset 72"),
        (packet() + b"noise" + packet(), "offset 72"),
        (packet() + packet()[:50], "offset 72"),
        (gpacket(), "offset 0"),
        (link(4, b"body") + gpacket(), "offset 0"),
    ],
)
def test_what_cannot_be_converted_is_told(run: Run, tmp_path: Path, data: bytes, said: str) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    result = run("convert", source, "-w", target)
    assert result.exit_code in (1, 2, 3, 4) and said in one_line(result)
    assert not target.exists()
    skipped = run("convert", source, "-w", target, "--skip-faults")
    assert skipped.exit_code == 1 and "left out" in one_line(skipped)
    assert target.exists()


def test_other_formats_cannot_be_converted(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"\0\0hi")
    result = run("convert", source, "--format", "rmp")
    assert result.exit_code == 2
    assert one_line(result).endswith("is rmp; jmq and gpacket packets can be converted")
