"""JMQ and GPacket are recognised by what no version changes: the magic and a possible size."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import wireyard
from tests.captures.make import ethernet, ipv4, one_way, packets, pcap, tcp
from tests.formats.gpacket.make import gpacket
from tests.make import packet
from tests.readings import assert_one_reading
from wireyard.formats import sniff, sniff_inside
from wireyard.formats.jmq.framing import find_header

ODD = {
    "jmq, encryption": ("jmq", packet(encryption=3, body=b"x" * 9), "ok"),
    "jmq, any encryption": ("jmq", packet(encryption=255), "ok"),
    "jmq, priority": ("jmq", packet(priority=12), "ok"),
    "jmq, negative priority": ("jmq", packet(priority=-1), "ok"),
    "jmq, reserved bits": ("jmq", packet(bit_flags=0xE000), "ok"),
    "jmq 103, encryption": ("jmq", packet(version=103, encryption=3), "ok"),
    "jmq, wrong sections": ("jmq", packet(property_offset=71), "malformed"),
    "jmq, next version": ("jmq", packet(version=400), "malformed"),
    "jmq, no version": ("jmq", packet(version=0), "malformed"),
    "jmq, short header": ("jmq", packet(version=400, size=40)[:40], "malformed"),
    "jmq, prefix alone": ("jmq", packet(version=400, size=12)[:12], "malformed"),
    "gpacket, wrong section": ("gpacket", gpacket(property_size=99), "malformed"),
    "gpacket, next version": ("gpacket", gpacket(version=360), "malformed"),
    "gpacket documented, next version": (
        "gpacket", gpacket(version=360, documented=True), "malformed",
    ),
    "gpacket, short header": ("gpacket", gpacket(version=360, size=20)[:20], "malformed"),
}  # fmt: skip
"""Format, packet and the status of its row."""


@pytest.fixture(params=ODD)
def case(request: pytest.FixtureRequest) -> tuple[str, bytes, str]:
    return ODD[request.param]


def statuses(table: pa.Table) -> list[str]:
    return [*map(str, table["status"].to_pylist())]


def test_a_stream_of_them_shows_its_format(case: tuple[str, bytes, str]) -> None:
    name, data, status = case
    found = sniff(data)
    assert found is not None and found.name == name
    assert statuses(wireyard.read(3 * data)) == [status] * 3


def test_they_are_found_behind_lost_bytes(case: tuple[str, bytes, str]) -> None:
    name, data, status = case
    table = assert_one_reading(b"\2" * 30 + 5 * data, Random(1), format=name)
    assert statuses(table) == ["garbage", *[status] * 5]


@pytest.mark.parametrize("port", [7676, 40999])
@pytest.mark.parametrize("lost", [0, 60])
def test_they_are_found_in_a_capture(
    case: tuple[str, bytes, str], port: int, lost: int, tmp_path: Path
) -> None:
    name, data, status = case
    stream = data + bytes(lost) + b"\2" * (30 if lost else 0) + 5 * data
    pieces = [(0, stream[: len(data)]), (len(data) + lost, stream[len(data) + lost :])]
    path = tmp_path / "odd.pcap"
    path.write_bytes(one_way(pieces, server=port))
    table = wireyard.read(path)
    assert set(table["format"].to_pylist()) == {name}
    assert statuses(table) == [status, *(["gap", "garbage"] if lost else []), *[status] * 5]


def test_they_are_found_where_a_capture_begins_inside_a_packet(
    case: tuple[str, bytes, str], tmp_path: Path
) -> None:
    name, data, status = case
    path = tmp_path / "later.pcap"
    segment = tcp(50000, 40999, 1000, b"\2" * 30 + 2 * data)
    path.write_bytes(pcap(packets([ethernet(ipv4(segment))])))
    table = wireyard.read(path)
    assert set(table["format"].to_pylist()) == {name}
    assert statuses(table) == ["garbage", *[status] * 2]


def test_random_bytes_show_none() -> None:
    data = Random(1).randbytes(1 << 20)
    assert find_header(data, 0, len(data), 1 << 26) == (len(data), True)
    assert sniff_inside(memoryview(data)) is None


def test_a_header_alone_shows_none() -> None:
    header = packet(size=200)
    assert sniff_inside(memoryview(bytes(9) + header + bytes(200))) is None
