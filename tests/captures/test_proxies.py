"""Headers of proxies before the packets of a connection."""

from __future__ import annotations

import struct

import pytest

import wireyard
from tests.captures.make import both_ways, one_way, packets, pcap
from tests.captures.test_directed import CONNACK_5, CONNECT_5, PUBLISH_5
from wireyard.captures.carriers.proxies import ProxyHeader, find_header
from wireyard.captures.inputs import open_input
from wireyard.captures.read import read_capture

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
ADDRESSES = bytes.fromhex("0a000001 0a000002 9c40 075b")
LINE = b"PROXY TCP4 10.0.0.1 10.0.0.2 40000 1883\r\n"
ASK_4 = bytes.fromhex("0401 075b 0a000002") + b"me\0"
ASK_5 = bytes.fromhex("050100 05010001 0a000002 075b")
ANSWER_5 = bytes.fromhex("0500 05000001 0a000002 075b")
HEADERS: dict[str, tuple[bytes, bytes]] = {
    "PROXY protocol 1": (LINE, b""),
    "PROXY protocol 1, IPv6": (b"PROXY TCP6 2001:db8::1 2001:db8::2 40000 1883\r\n", b""),
    "PROXY protocol 1, unknown": (b"PROXY UNKNOWN\r\n", b""),
    "PROXY protocol 2": (SIGNATURE + bytes.fromhex("2111 000c") + ADDRESSES, b""),
    "PROXY protocol 2, more": (
        SIGNATURE + bytes.fromhex("2111 0013") + ADDRESSES + bytes.fromhex("030004 deadbeef"), b"",
    ),
    "PROXY protocol 2, local": (SIGNATURE + bytes.fromhex("2000 0000"), b""),
    "SOCKS 4": (ASK_4, bytes.fromhex("005a 0000 00000000")),
    "SOCKS 4, a": (
        bytes.fromhex("0401 075b 00000001") + b"me\0broker.example\0",
        bytes.fromhex("005a 0000 00000000"),
    ),
    "SOCKS 5": (ASK_5, ANSWER_5),
    "SOCKS 5, name": (
        bytes.fromhex("05020002 05010003 06") + b"broker" + bytes.fromhex("075b"), ANSWER_5,
    ),
    "SOCKS 5, IPv6": (
        bytes.fromhex("050100 05010004") + bytes(16) + bytes.fromhex("075b"),
        bytes.fromhex("0500 05000004") + bytes(18),
    ),
    "SOCKS 5, password": (
        bytes.fromhex("050102 01026d6503616263 05010001 0a000002 075b"),
        bytes.fromhex("0502 0100 05000001 0a000002 075b"),
    ),
}  # fmt: skip
BEHIND_EACH_OTHER = {
    f"{first} and {second}": (HEADERS[first][0] + HEADERS[second][0], HEADERS[second][1])
    for first, second in (
        ("PROXY protocol 1", "PROXY protocol 2"),
        ("PROXY protocol 2", "PROXY protocol 2"),
        ("PROXY protocol 2", "SOCKS 4"),
        ("PROXY protocol 1", "SOCKS 5"),
    )
}
MESSAGES, ANSWERS = CONNECT_5 + PUBLISH_5, CONNACK_5 + PUBLISH_5


ALL = HEADERS | BEHIND_EACH_OTHER


@pytest.mark.parametrize("name", ALL)
def test_packets_begin_behind_the_header(name: str) -> None:
    asked, answered = ALL[name]
    frames = both_ways(asked + MESSAGES, answered + ANSWERS)
    table = wireyard.read(pcap(packets(frames)))
    assert table["status"].to_pylist() == ["ok"] * 4
    assert table["offset"].to_pylist() == [0, len(CONNECT_5), 0, len(CONNACK_5)]
    assert table["frame"].to_pylist() == [3, 3, 4, 4]
    assert set(table["version_in_force"].to_pylist()) == {5}
    found = open_input(pcap(packets(frames)))
    short = name.partition(",")[0]
    count = 2 if answered else 1
    total = len(asked + answered)
    assert [*found.notes] == [f"headers of proxies, {total} bytes in no row: {count} of {short}"]


@pytest.mark.parametrize("name", ALL)
def test_the_header_may_come_in_any_pieces(name: str) -> None:
    asked = ALL[name][0]
    stream = asked + MESSAGES
    for cut in range(1, len(asked) + 4):
        data = one_way([(0, stream[:cut]), (cut, stream[cut:])], server=1999)
        table = wireyard.read(data, columns=["offset", "status", "frame"])
        assert table["offset"].to_pylist() == [0, len(CONNECT_5)]
        first = 2 if cut >= len(asked) + len(CONNECT_5) else 3
        assert table["frame"].to_pylist() == [first, 3]


@pytest.mark.parametrize("name", HEADERS)
def test_no_shorter_header_is_one(name: str) -> None:
    asked, answered = HEADERS[name]
    whole = find_header(asked, answered)
    assert whole is not None
    assert whole[1:] == (len(asked), len(answered))
    for size in range(len(asked)):
        assert find_header(asked[:size], answered) is None
    for size in range(1, len(answered)):
        assert find_header(asked, answered[:size]) is None
    without = find_header(asked, b"")
    assert without == ProxyHeader(whole.name, len(asked))


def test_more_headers_than_proxies_in_a_row() -> None:
    found = find_header(LINE * 9, b"")
    assert found is not None and found.asked_bytes == len(LINE) * 8


REFUSED: dict[str, tuple[bytes, bytes]] = {
    "another command": (bytes.fromhex("050100 05020001 0a000002 075b"), b""),
    "another kind of address": (bytes.fromhex("050100 05010002 0a000002 075b"), b""),
    "no method": (b"\x05\x00", b""),
    "a method nobody offered": (ASK_5, bytes.fromhex("0502 05000001 0a000002 075b")),
    "not granted": (ASK_5, bytes.fromhex("0500 05010001 0a000002 075b")),
    "a wrong password": (HEADERS["SOCKS 5, password"][0], bytes.fromhex("0502 0101")),
    "not granted, 4": (ASK_4, bytes.fromhex("005b 0000 00000000")),
    "no end of a name": (bytes.fromhex("0401 075b 00000001") + b"me\0broker", b""),
    "a line without an end": (LINE[:-2] + b" ", b""),
    "a line too long": (b"PROXY UNKNOWN" + b" " * 93 + b"\r\n", b""),
    "of version 3": (SIGNATURE + bytes.fromhex("3111 000c") + ADDRESSES, b""),
    "of no command": (SIGNATURE + bytes.fromhex("2211 000c") + ADDRESSES, b""),
    "of no family": (SIGNATURE + bytes.fromhex("2141 000c") + ADDRESSES, b""),
    "shorter than its family": (SIGNATURE + bytes.fromhex("2111 0004") + ADDRESSES, b""),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_a_rule_is_no_header(name: str) -> None:
    assert find_header(*REFUSED[name]) is None


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (ASK_5[:3], b"\x05\xff"),
        *(REFUSED[name] for name in ("not granted", "not granted, 4", "a wrong password")),
    ],
)
def test_no_format_is_suggested_for_what_a_proxy_refused(asked: bytes, answered: bytes) -> None:
    frames = both_ways(asked, answered, (40000, 1080))
    data = pcap(packets(frames))
    found = open_input(data)
    assert not found.streams and len(found.unknown) == 2
    assert found.left_out is not None
    assert found.left_out.unknown.endswith(": unknown format")
    others = both_ways(b"?" * 9, b"!" * 9, (40001, 1999))
    found = open_input(pcap(packets([*frames, *others])))
    assert found.left_out is not None
    hint = "; to decode it as MQTT: --decode-as tcp.port==1999,mqtt"
    assert found.left_out.unknown.endswith(f": unknown format{hint}")


def test_a_stream_without_its_first_bytes() -> None:
    asked = HEADERS["SOCKS 5"][0] + MESSAGES
    (stream,) = read_capture(one_way([(0, asked[:4]), (4, asked[4:20]), (20, asked[20:])])).streams
    for size in range(1, len(asked)):
        rest = stream.behind(size, "test")
        assert rest.read(0, rest.size).tobytes() == asked[size:]
        assert rest.size == len(asked) - size and rest.proxy == ("test", size)
    assert stream.behind(0, "test") is stream


def test_a_connection_with_nothing_behind_the_header_has_no_stream() -> None:
    found = open_input(pcap(packets(both_ways(LINE, b""))))
    assert not found.streams and not found.unknown
    (note,) = found.notes
    assert note == f"headers of proxies, {len(LINE)} bytes in no row: 1 of PROXY protocol 1"


def test_the_largest_header_of_version_2() -> None:
    header = SIGNATURE + b"\x20\x00" + struct.pack(">H", 0xFFFF) + bytes(0xFFFF)
    pieces = [(at, (header + MESSAGES)[at : at + 60_000]) for at in (0, 60_000)]
    table = wireyard.read(one_way(pieces, server=1999))
    assert table["status"].to_pylist() == ["ok", "ok"]
