"""Streams with gaps that are read together give the rows that each gives by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.captures.connections import ACK, SYN
from tests.captures.make import ethernet, ipv4, packets, pcap, tcp
from tests.captures.test_bundled import check, counting_streams, read, reading
from wireyard.captures.bundle_rows import Pieces
from wireyard.captures.inputs import open_captures
from wireyard.captures.read import read_capture
from wireyard.cli import main
from wireyard.formats.jmq.packet import Packet, encode

FIN = 1


def packets_of(format: str, number: int) -> tuple[list[bytes], list[bytes]]:
    """Return the packets of a client and of its server."""
    if format == "jmq":
        hello, message, goodbye = (encode(Packet(packet_type=kind)) for kind in (10, 1, 28))
        answer, acknowledgment = (encode(Packet(packet_type=kind)) for kind in (11, 25))
        return [hello, *[message] * 4, goodbye], [answer, *[acknowledgment] * 4]
    newest = b"\0" * (number % 2)
    rest = newest + b"\0\1c"
    connect = bytes([0x10, 10 + len(rest)]) + b"\0\4MQTT" + bytes([4 + number % 2, 2, 0, 60]) + rest
    publish = bytes([0x32, 7 + len(newest)]) + b"\0\1t\0\1" + newest + b"on"
    connack = bytes([0x20, 2 + len(newest), 0, 0]) + newest
    return [connect, *[publish] * 4, b"\xe0\0"], [connack, *[b"\x40\2\0\1"] * 4]


def lossy_frames(format: str, connections: int, lost: int, rng: Random) -> Iterator[bytes]:
    """Yield the frames of connections, each of which lost some of its segments."""
    for number in range(connections):
        port, shown = 20000 + number, rng.random() < 0.9
        client, server = packets_of(format, number)
        ports, ways = (port, 1883), ("10.0.0.1", "10.0.0.2")
        nexts = [10, 50]
        if shown:
            yield ethernet(ipv4(tcp(*ports, 9, b"", SYN), 6, *ways))
            yield ethernet(ipv4(tcp(*ports[::-1], 49, b"", SYN | ACK, 10), 6, *ways[::-1]))
        segments = []
        for sender, each in ((0, client), (1, server)):
            for data in each:
                segments.append((sender, nexts[sender], data))
                nexts[sender] += len(data)
        for at in rng.sample(range(len(segments)), lost):
            if rng.random() < 0.2:  # only a part of it is lost
                sender, sequence, data = segments[at]
                segments[at] = (sender, sequence, data[: len(data) // 2])
            else:
                segments[at] = (0, 10, b"")
        if rng.random() < 0.1:
            rng.shuffle(segments)
        for sender, sequence, data in segments:
            if data:
                src, dst = ports[sender], ports[1 - sender]
                segment = tcp(src, dst, sequence, data, ACK, nexts[1 - sender])
                yield ethernet(ipv4(segment, 6, ways[sender], ways[1 - sender]))
        if rng.random() < 0.7:
            for sender in (0, 1):
                src, dst = ports[sender], ports[1 - sender]
                segment = tcp(src, dst, nexts[sender], b"", FIN | ACK, nexts[1 - sender])
                yield ethernet(ipv4(segment, 6, ways[sender], ways[1 - sender]))


@pytest.mark.parametrize("lost", [1, 2, 6])
@pytest.mark.parametrize("format", ["mqtt", "jmq"])
def test_rows_of_streams_with_gaps(format: str, lost: int) -> None:
    requests: list[dict[str, Any]] = [
        {},
        {"columns": ["offset", "frame", "captured_ns", "status", "src_port"]},
        {"columns": ["frame", "packet_type"], "where": [("packet_type", "in", [1, 3, 4])]},
        {"columns": ["packet_type"], "mode": "dropmalformed"},
        {"columns": ["packet_type"], "mode": "failfast"},
        {"decode_as": ["tcp.port==1883,mqtt/5.0"]},
        {"max_packet_bytes": 8},
    ]
    rows = 0
    for seed, request in enumerate(requests):
        data = pcap(packets(lossy_frames(format, 60, lost, Random(seed))))
        rows += check(data, {"format": format, **request})
    assert rows > 1000


@pytest.mark.parametrize("format", ["mqtt", "jmq"])
def test_most_streams_with_a_gap_are_read_together(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pcap(packets(lossy_frames(format, 300, 1, Random(1))))
    made = counting_streams(monkeypatch)
    rows = read(data, {"format": format}, together=True)
    assert isinstance(rows, pa.Table)
    assert rows["status"].to_pylist().count("gap") > 200
    # Streams with an unfinished packet, and connections whose CONNECT is lost, are read alone.
    assert len({*made}) < 150


def test_a_packet_behind_a_gap_is_no_evidence_if_it_is_too_large() -> None:
    connect, lost = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c", b"\xc0\0"
    filters = b"\0\4abcd\0" * 10_000
    subscribe = b"\x82\xf2\xa2\4" + b"\0\1" + filters
    at, frames = 10 + len(connect) + len(lost), []
    for sequence, data in (
        (10, connect),
        (at, subscribe[:60_000]),
        (at + 60_000, subscribe[60_000:]),
    ):
        frames.append(ethernet(ipv4(tcp(20000, 1883, sequence, data, ACK, 50), 6)))
    data = pcap(packets(frames))
    assert check(data, {"columns": ["packet_type", "status", "offset", "length"]}) == 3


@pytest.mark.parametrize("command", [["flows", "--out", "jsonl"], ["inspect"], ["decode"]])
@pytest.mark.parametrize("format", ["mqtt", "jmq"])
def test_commands_on_streams_with_gaps(format: str, command: list[str], tmp_path: Path) -> None:
    path, results = tmp_path / "lossy.pcap", []
    path.write_bytes(pcap(packets(lossy_frames(format, 80, 2, Random(3)))))
    for together in (False, True):
        with reading(together=together):
            arguments = [command[0], str(path), *command[1:]]
            done = CliRunner().invoke(main, arguments, prog_name="wireyard")
        results.append((done.stdout, done.stderr, done.exit_code))
    assert results[0] == results[1]
    assert results[0][0]


def test_gaps_of_the_table_are_those_of_the_streams() -> None:
    data = pcap(packets(lossy_frames("mqtt", 100, 3, Random(5))))
    table = read_capture(data).table
    gaps = [stream.gaps for stream in table]
    assert table.gap_counts.tolist() == [len(each) for each in gaps]
    assert table.gap_bytes.tolist() == [int(np.diff(each).sum()) for each in gaps]
    assert max(table.gap_counts) > 1
    assert len(open_captures([data]).streams) == len(table)


def test_pieces_and_gaps_of_runs() -> None:
    offsets, lengths = np.array([0, 3, 9, 2, 0]), np.array([3, 2, 1, 4, 5])
    pieces = Pieces.of_runs(offsets, lengths, np.array([3, 1, 1]), np.array([12, 6, 5]))
    assert pieces.bounds.tolist() == [0, 5, 6, 10, 15]
    assert pieces.offsets.tolist() == [0, 9, 2, 0]
    assert pieces.firsts.tolist() == [0, 2, 3, 4]
    gaps = pieces.gaps()
    columns = (gaps.owners, gaps.pieces, gaps.starts, gaps.stops)
    assert [*zip(*(column.tolist() for column in columns), strict=True)] == [
        (0, 1, 5, 9),
        (0, 2, 10, 12),
        (1, 2, 0, 2),
    ]
    whole = Pieces.without_gaps(np.array([5]))
    for ours, theirs in zip(whole, Pieces.of_runs(*np.array([[0], [5], [1], [5]])), strict=True):
        assert ours.tolist() == theirs.tolist()
