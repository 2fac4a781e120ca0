"""Rows of a capture do not depend on how its conversations were cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.captures import rfc8448
from tests.captures.make import both_ways, ethernet, packets, pcap
from tests.captures.test_directed import CONNECT, PUBLISH, lone
from tests.captures.test_websocket import frame, heads
from tests.make import packet
from tests.spark.lakes import all_rows, run
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.inputs import PartEndpoints
from wireyard.pipeline.inputs import captures
from wireyard.pipeline.inputs.captures import CapturePart, describe_endpoints, parts_misled
from wireyard.pipeline.report import Report

ALL = 1 << 40
ODD, USUAL = 11883, 1883
LONE = 24
ANSWER = b"101 imqbroker 301\r\njms tcp NORMAL %d\r\n.\r\n"


def lones(port: int, data: bytes = PUBLISH * 3) -> list[bytes]:
    """Return connections without a beginning, which fall to several parts."""
    return [lone(40000 + number, data, port) for number in range(LONE)]


def opening(port: int) -> list[bytes]:
    return both_ways(CONNECT, b"\x20\x02\0\0", (50000, port))


def read(folder: Path, frames: Sequence[bytes], pieces: int) -> Report:
    """Run over a capture as a whole and in parts, here, and compare all tables."""
    path = folder / "in.pcap"
    path.write_bytes(pcap(packets(list(frames))))
    split = path.stat().st_size // pieces
    whole = run(folder / "whole", None, path, split_bytes=ALL)
    cut = run(folder / "cut", None, path, split_bytes=split)
    assert not whole.repaired
    expected, found = all_rows(folder / "whole"), all_rows(folder / "cut")
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, name
    assert [each.ledger for each in cut.added] == [each.ledger for each in whole.added]
    assert cut.notes == whole.notes
    return cut


@pytest.mark.parametrize("pieces", [5, 40])
@pytest.mark.parametrize("first", [True, False])
def test_what_a_client_opened_counts_in_other_parts(
    tmp_path: Path, pieces: int, first: bool
) -> None:
    others = lones(ODD)
    frames = opening(ODD) + others if first else others + opening(ODD)
    report = read(tmp_path, frames, pieces)
    assert report.repaired > 0
    found = all_rows(tmp_path / "cut")
    assert len(found["ledger"]) == LONE + 2 and len(found["packets_mqtt"]) == 3 * LONE + 2
    assert not report.notes


def test_what_the_port_shows_is_not_read_again(tmp_path: Path) -> None:
    report = read(tmp_path, [*opening(USUAL), *lones(USUAL)], 40)
    assert not report.repaired


def test_a_part_that_opened_the_endpoint_itself_is_not_read_again(tmp_path: Path) -> None:
    frames = [
        frame
        for number in range(LONE)
        for frame in [
            *both_ways(CONNECT, PUBLISH, (50000 + number, ODD)),
            *both_ways(CONNECT, PUBLISH, (50000 + number, 12000 + number)),
        ]
    ]
    assert not read(tmp_path, frames, 40).repaired


def test_a_port_mapper_counts_in_all_parts_and_a_connect_for_more(tmp_path: Path) -> None:
    mapper = both_ways(b"101\r\n", ANSWER % ODD, (50001, 7676))
    middle = packet()[10:] + packet(sequence=9)
    assert not read(tmp_path, [*mapper, *lones(ODD, middle)], 40).repaired
    assert len(all_rows(tmp_path / "cut")["packets_jmq"]) == 2 * LONE
    (tmp_path / "more").mkdir()
    assert read(tmp_path / "more", [*mapper, *lones(ODD), *opening(ODD)], 40).repaired
    assert len(all_rows(tmp_path / "more" / "cut")["packets_mqtt"]) == 3 * LONE + 2


def test_what_is_opened_inside_a_websocket_counts(tmp_path: Path) -> None:
    request, response = heads()
    opening = both_ways(request + frame(2, CONNECT), response + frame(2, PUBLISH), (50000, 9001))
    assert read(tmp_path, [*opening, *lones(9001)], 40).repaired
    assert len(all_rows(tmp_path / "cut")["packets_mqtt"]) == 3 * LONE + 2


def test_what_is_said_of_a_capture_is_the_same(tmp_path: Path) -> None:
    """Names of streams without a format, ports, carriers and their problems, in their order."""
    request, response = heads()
    proxy = b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"
    broken = frame(2, PUBLISH) + frame(7, b"")
    frames = [ethernet(bytes(28), 0x0806)]
    for number in range(8):
        frames += lones(9000 + number, bytes(5 + number))[: 1 + number % 5]
        frames += both_ways(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number, b"", (number, 80))
        frames += both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, (number, 443))
        frames += both_ways(request + frame(2, CONNECT), response + broken, (number, 9))
        frames += both_ways(proxy + CONNECT, b"\x20\x02\0\0", (5000 + number, USUAL))
    report = read(tmp_path, frames, 40)
    assert len(report.notes) == 5
    expected = ("1 ARP", "8 of PROXY", "GET /0, TLS 1.3 to server, HTTP", "a key log", "port==9004")
    assert all(text in note for note, text in zip(report.notes, expected, strict=True))
    assert ", .." in report.notes[2]
    assert report.notes[4].count("has the reserved opcode 7") == 8


def test_parts_with_more_endpoints_than_they_list_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "_MOST_ENDPOINTS", 1)
    assert read(tmp_path, [*lones(ODD), *opening(ODD)], 40).repaired
    # Where a part lists no endpoint that it opened, others cannot take it from there.
    (tmp_path / "more").mkdir()
    path = tmp_path / "more" / "in.pcap"
    many = [frame for port in range(ODD, ODD + LONE) for frame in opening(port)]
    path.write_bytes(pcap(packets([*lones(ODD), *many])))
    lake, split = tmp_path / "more" / "lake", path.stat().st_size // 3
    report = run(lake, None, path, split_bytes=split // 4)
    assert sum("more endpoints than its parts report" in note for note in report.notes) == 1


A, B = Endpoint("10.0.0.1", 1), Endpoint("fd00::1", 2)
Pairs = set[tuple[Endpoint, str]]
"""Endpoints, each with a format."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Another part opened it: that counts if it makes a difference.
        ([({(A, "mqtt")}, set()), (set(), {(A, "")})], {1: {(A, "mqtt")}}),
        ([({(A, "mqtt")}, set()), (set(), {(A, "jmq")})], {1: {(A, "mqtt")}}),
        ([({(A, "mqtt")}, set()), (set(), {(A, "mqtt")})], {}),
        ([({(A, "mqtt")}, set()), (set(), {(A, "mqtt"), (A, "")})], {1: {(A, "mqtt")}}),
        ([({(A, "mqtt")}, set()), (set(), {(B, "")})], {}),
        ([({(A, "mqtt")}, set()), ({(A, "mqtt")}, {(A, "mqtt")})], {}),
        # All that is opened of what a part lacks goes with it.
        (
            [({(A, "mqtt"), (B, "mqtt")}, set()), (set(), {(A, ""), (B, "mqtt")})],
            {1: {(A, "mqtt"), (B, "mqtt")}},
        ),
        # Two formats show none, whoever opened them.
        ([({(A, "mqtt")}, set()), ({(A, "jmq")}, set()), (set(), {(A, "")})], {}),
        (
            [({(A, "mqtt")}, {(A, "mqtt")}), ({(A, "jmq")}, set())],
            {0: {(A, "mqtt"), (A, "jmq")}},
        ),
        ([({(A, "mqtt"), (A, "jmq")}, {(A, "")}), ({(A, "jmq")}, set())], {}),
    ],
)  # fmt: skip
def test_parts_are_misled_where_all_connections_show_something_else(
    given: list[tuple[Pairs, Pairs]], expected: dict[int, Pairs]
) -> None:
    """By the endpoints opened and undecided in each part: those that it takes from others."""
    of = len(given)
    parts = [CapturePart("s", ("s",), None, (), (), part, of, 0) for part in range(of)]
    results = [
        describe_endpoints(part, PartEndpoints(*each))
        for part, each in zip(parts, given, strict=True)
    ]
    for order in (results, results[::-1]):
        opened = {
            part.part: {(Endpoint(address, port), format) for address, port, format in part.opened}
            for part in parts_misled(parts, order)
        }
        assert opened == expected
