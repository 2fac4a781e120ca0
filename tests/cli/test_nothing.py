"""What a command says of conditions that nothing meets, and of names that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.make import one_way
from tests.cli.results import Run, one_line

CAPTURE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["--where", "topic == shop/prices/aples"], "topic is shop/prices/apples, shop/"),
        (["--where", "client_id == offic"], "client_id is office, monitor, "),
        (["--where", "qos == 3 AND retain == true"], "qos is 0, 1, 2; retain is true, false"),
        (["--where", "remaining_length > 100000"], "remaining_length is 0 to "),
        (["-t", "plant/#"], "topic is $SYS/broker/version, "),
        (["--since", "2027-01-01"], "packets are from 2026-11-21T20:22:35.865559000Z to 2026-"),
    ],
)
@pytest.mark.parametrize("out", ["jsonl", "list"])
def test_a_condition_that_nothing_meets_says_what_there_is(
    words: list[str], there: str, out: str, run: Run
) -> None:
    result = run("decode", CAPTURE, "--format", "mqtt", "--out", out, *words)
    assert (result.exit_code, result.stdout) == (0, "")
    assert one_line(result).startswith(f"{CAPTURE}: no row matches; {there}")


def test_a_slice_of_nothing_says_what_there_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.pcap"
    result = run("slice", CAPTURE, "--where", "topic == shop/prices/aples", "-w", path)
    there = f"{CAPTURE}: no row matches; topic is shop/prices/apples, shop/"
    assert one_line(result).startswith(there)
    assert result.exit_code == 0 and f"wrote {path}, 0 frames" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decode", "head.pcap"], "head.pcap: has no packet of a known format"),
        (["flows", "head.pcap"], "head.pcap: has no TCP connection and no datagram"),
        (["why", "head.pcap"], "head.pcap: no packet was read, so nothing is known"),
        (["why", "note.txt"], "note.txt: begins like no format (68 65 6c 6c); "),
    ],
)
def test_a_file_without_packets_is_named_as_it_was_written(
    words: list[str], said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "head.pcap").write_bytes(CAPTURE.read_bytes()[:24])
    (tmp_path / "note.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    assert one_line(run(*words)).startswith(said)


def test_a_run_that_reads_nothing_of_a_capture_fails(run: Run, tmp_path: Path) -> None:
    path, words = tmp_path / "other.pcap", ["--engine", "process", "--lake", tmp_path / "lake"]
    path.write_bytes(one_way([(0, b"of no format")], server=9999))
    result = run("run", path, *words)
    assert result.exit_code == 1
    assert "1 stream, 12 bytes" in result.stderr and "unknown format" in result.stderr


def test_near_names_are_suggested(run: Run, tmp_path: Path) -> None:
    result = run("decode", CAPTURE, "--format", "mqtt", "--columns", "topik")
    assert (result.exit_code, one_line(result)) == (
        2,
        "mqtt has no column 'topik'; there is 'topic'",
    )
    result = run("slice", CAPTURE, "--client", "offis", "-w", tmp_path / "x.pcap")
    assert one_line(result).endswith("shows no client of this id; there is office")
