from __future__ import annotations

import struct

import pytest

from tests.captures import make
from tests.captures.links import LINKS, SEGMENT, V4, V6
from tests.captures.make import Packet, ethernet, ipv4, ipv6, pcap, tcp, udp
from wireyard.captures.read import read_capture


@pytest.mark.parametrize("name", LINKS)
def test_a_segment_is_found_under_every_header(name: str) -> None:
    link, data = LINKS[name]
    capture = read_capture(pcap([Packet(data)], link))
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == b"payload"
    ends = stream.src.address, stream.dst.address
    assert ends in ((make.CLIENT, make.SERVER), (make.CLIENT6, make.SERVER6))
    assert (stream.src.port, stream.dst.port) == (1883, 40000)
    assert capture.frames == {"tcp": 1}


@pytest.mark.parametrize("name", LINKS)
def test_every_shorter_packet_has_a_fate(name: str) -> None:
    link, data = LINKS[name]
    payload_at = data.index(b"payload")
    for size in range(len(data)):
        capture = read_capture(pcap([Packet(data[:size], original=len(data))], link))
        assert sum(capture.frames.values()) == 1
        if size >= payload_at:
            (stream,) = capture.streams
            assert stream.size == 7
            assert sum(stop - start for start, stop in stream.pieces.tolist()) == min(
                size - payload_at, 7
            )
        elif capture.streams and capture.streams[0].protocol == "tcp":
            # The numbers are there: what the payload was, is a gap.
            (stream,) = capture.streams
            assert not stream.pieces.tolist() and stream.gaps.tolist() == [[0, 7]]


def test_names_of_ipv6_endpoints_have_brackets() -> None:
    (stream,) = read_capture(pcap([Packet(V6)], 101)).streams
    assert stream.name == "[2001:db8::1]:1883>[2001:db8::2]:40000"


FATES = {
    "other_network": [
        (1, ethernet(bytes(28), 0x0806)),
        (1, ethernet(bytes(46), 46)),
        (0, struct.pack("<I", 7) + V4),
        (9, bytes.fromhex("c021 0101")),
        (276, bytes.fromhex("0004") + bytes(30)),
        (1, ethernet(bytes.fromhex("11a7 0001 0000 0021"), 0x8864)),
        (239, bytes(8)),
    ],
    "other_protocol": [
        (101, ipv4(bytes(8), 1)),
        (101, ipv6(bytes(8), 58)),
        (101, ipv6(b"", 59)),
        (101, ipv4(bytes.fromhex("4000 0800") + bytes(8) + V4, 47)),
        (101, ipv4(bytes.fromhex("0000 0004") + V4, 47)),
    ],
    "unknown_link": [(147, V4), (60000, V4), (70000, V4)],
    "malformed": [
        (228, b"\x35" + V4[1:]),
        (228, b"\x44" + V4[1:]),
        (228, ipv4(SEGMENT, total=10)),
        (229, V4 + bytes(40)),
        (101, ipv4(SEGMENT[:12] + b"\x40" + SEGMENT[13:])),
        (101, ipv4(SEGMENT[:12] + b"\xf0" + SEGMENT[13:])),
        (101, ipv4(udp(1, 2, b"x", 7), 17)),
        (101, ipv6(bytes.fromhex("06ff") + bytes(30), 60)),
    ],
}


@pytest.mark.parametrize("fate", FATES)
def test_what_is_left_out_is_counted(fate: str) -> None:
    for link, data in FATES[fate]:
        capture = read_capture(pcap([Packet(data)], link))
        assert capture.frames == {fate: 1}, data.hex()
        assert capture.streams == []


def test_datagrams_are_runs_of_one_stream() -> None:
    there = [b"first", b"", b"second", b"third"]
    data = [ipv4(udp(7, 8, payload) + b"padding", 17) for payload in there]
    back = ipv4(udp(8, 7, b"answer"), 17, make.SERVER, make.CLIENT)
    capture = read_capture(pcap(make.packets([*data, back]), 101))
    stream, answer = capture.streams
    assert (stream.name, stream.protocol) == ("10.0.0.1:7>10.0.0.2:8", "udp")
    assert stream.read(0, stream.size).tobytes() == b"firstsecondthird"
    assert stream.runs.offsets.tolist() == [0, 5, 11]
    assert stream.runs.records.tolist() == [0, 2, 3]
    assert answer.read(0, 6).tobytes() == b"answer"
    assert capture.payload_bytes["udp"] == 22


def test_a_datagram_the_snapshot_cut_ends_in_a_gap() -> None:
    whole = ipv4(udp(7, 8, b"0123456789"), 17)
    records = [Packet(whole[:-4], original=len(whole)), Packet(whole)]
    (stream,) = read_capture(pcap(records, 101)).streams
    assert stream.size == 20
    assert stream.gaps.tolist() == [[6, 10]]
    assert stream.pieces.tolist() == [[0, 6], [10, 20]]
    with pytest.raises(ValueError, match="bytes 4 to 12 are not all in one piece"):
        stream.read(4, 12)


def test_udp_and_tcp_of_the_same_ports_have_different_names() -> None:
    data = [ipv4(udp(7, 8, b"a"), 17), ipv4(tcp(8, 7, 0, b"b"), 6, make.SERVER, make.CLIENT)]
    capture = read_capture(pcap(make.packets(data), 101))
    assert [stream.name for stream in capture.streams] == [
        "10.0.0.1:7>10.0.0.2:8",
        "10.0.0.2:8>10.0.0.1:7#2",
    ]
