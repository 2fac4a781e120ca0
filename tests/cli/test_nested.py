"""Packets inside packets, and packets of another name, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.results import LOGIN, Run, one_line, rows_of
from tests.cli.test_encode import there_and_back
from tests.formats.gpacket.make import gpacket, link, message
from tests.make import packet

INNER = packet(packet_type=1, sequence=5, body=b"hello")
STREAM = (
    link(4, b"body", flags=1)
    + message(INNER)
    + gpacket(packet_type=17, payload=gpacket(packet_type=5, sequence=9))
)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Return the stream of a broker: a link packet, a message, a packet in a packet."""
    path = tmp_path / "cluster.gpacket"
    path.write_bytes(STREAM)
    return path


def test_link_packets_are_rows_of_their_own_name(run: Run, cluster: Path) -> None:
    link_row, *rows = rows_of(run("decode", cluster, "--out", "jsonl"))
    assert [row["format"] for row in rows] == ["gpacket", "gpacket"]
    assert link_row == {
        "source": str(cluster),
        "stream": str(cluster),
        "offset": 0,
        "length": 20,
        "format": "gpacket_link",
        "status": "ok",
        "error": None,
        "version": 100,
        "packet_type": 4,
        "packet_type_name": "LINK_INIT",
        "size": 20,
        "destination_id": 0,
        "flags": 1,
        "payload": b"body".hex(),
    }


@pytest.mark.parametrize("words", [(), ("--format", "gpacket")])
def test_link_packets_come_back(words: tuple[str, ...], run: Run, cluster: Path) -> None:
    printed = run("decode", cluster, "--out", "jsonl", "--secrets")
    assert run("encode", *words, stdin=printed.stdout_bytes).stdout_bytes == STREAM


def test_columns_that_are_chosen_are_those_of_the_format(run: Run, cluster: Path) -> None:
    words = ("--columns", "format,bit_flags,flags", "--out", "jsonl")
    assert rows_of(run("decode", cluster, *words))[0] == {
        "format": "gpacket_link",
        "bit_flags": 1,
        "flags": None,
    }


def test_nested_packets_point_back_to_their_parents(run: Run, cluster: Path) -> None:
    rows = rows_of(run("decode", cluster, "--nested", "--out", "jsonl"))
    assert [row["format"] for row in rows] == [
        "gpacket_link",
        "gpacket",
        "jmq",
        "gpacket",
        "gpacket",
    ]
    _, parent, inner, holder, held = rows
    assert inner["parent_offset"] == parent["offset"]
    assert (inner["sequence"], inner["body"], inner["status"]) == (5, b"hello".hex(), "ok")
    assert STREAM[inner["offset"] :][: inner["length"]] == INNER
    assert (held["parent_offset"], held["sequence"]) == (holder["offset"], 9)
    assert "parent_offset" not in parent
    outer = [row for row in rows if "parent_offset" not in row]
    assert sum(row["length"] for row in outer) == len(STREAM)


def test_a_stream_comes_back_from_its_rows(run: Run, cluster: Path) -> None:
    assert there_and_back(run, cluster) == STREAM
    printed = run("decode", cluster, "--nested", "--out", "jsonl")
    assert run("encode", stdin=printed.stdout_bytes).stdout_bytes == STREAM


def test_tables_hold_packets_of_one_format(run: Run, cluster: Path, tmp_path: Path) -> None:
    result = run("decode", cluster, "--nested", "-w", tmp_path / "out.parquet")
    assert result.exit_code == 2
    assert one_line(result).startswith("--nested is for table and jsonl")
    table = run("decode", cluster, "--nested", "--out", "table")
    assert table.exit_code == 0 and len(table.stdout.splitlines()) == 6


def test_a_password_in_a_nested_packet_stays_out(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "login.gpacket"
    path.write_bytes(message(LOGIN))
    for words, shown in (((), False), (("--secrets",), True)):
        result = run("decode", path, "--nested", "--out", "jsonl", *words)
        inner = next(row for row in rows_of(result) if row["format"] == "jmq")
        assert (b"c2VjcmV0".hex() in (inner["body"] or "")) is shown
