from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from tests.captures.make import (
    BEGAN_NS,
    CLIENT6,
    SERVER6,
    Packet,
    ipv4,
    ipv6,
    packets,
    pcap,
    tcp,
    udp,
)
from wireyard.captures.read import Capture, read_capture

PAYLOAD = bytes(range(100))
WHOLE = tcp(1, 2, 0, PAYLOAD)


def fragment(start: int, stop: int, whole: bytes = WHOLE, number: int = 7, **named: int) -> bytes:
    more = stop < len(whole)
    return ipv4(
        whole[start:stop], named.get("protocol", 6), identification=number, offset=start, more=more
    )


def fragment6(start: int, stop: int, whole: bytes = WHOLE, number: int = 7, kind: int = 6) -> bytes:
    place = start | (stop < len(whole))
    header = bytes([kind, 0]) + place.to_bytes(2, "big") + number.to_bytes(4, "big")
    return ipv6(header + whole[start:stop], 44, CLIENT6, SERVER6)


def read(*data: bytes, step_ns: int = 1000) -> Capture:
    records = [Packet(one, BEGAN_NS + step_ns * at) for at, one in enumerate(data)]
    return read_capture(pcap(records, 101))


@pytest.mark.parametrize("make", [fragment, fragment6])
def test_any_order_makes_the_datagram(make: type[bytes]) -> None:
    parts = [make(0, 40), make(40, 80), make(80, 120)]  # type: ignore[call-overload]
    for order in permutations(parts):
        capture = read(*order)
        (stream,) = capture.streams
        assert stream.read(0, stream.size).tobytes() == PAYLOAD
        assert stream.runs.records.tolist() == [2]  # the fragment that completed it
        assert capture.frames == {"tcp": 3}


def test_datagrams_lie_between_the_packets_around_them() -> None:
    before, after = tcp(1, 2, 0, b"before"), tcp(1, 2, 106, b"after")
    whole = tcp(1, 2, 6, PAYLOAD)
    capture = read(ipv4(before), fragment(64, 120, whole), fragment(0, 64, whole), ipv4(after))
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == b"before" + PAYLOAD + b"after"
    assert stream.read(4, 10).tobytes() == b"re" + PAYLOAD[:4]
    assert stream.read(104, 108).tobytes() == PAYLOAD[-2:] + b"af"
    assert stream.runs.records.tolist() == [0, 2, 3]


def test_the_fragment_captured_first_counts() -> None:
    changed = bytes(byte ^ 0xFF for byte in WHOLE)
    capture = read(
        fragment(80, 120),
        fragment(40, 96, changed),
        fragment(0, 64),
        fragment(64, 80),
    )
    (stream,) = capture.streams
    kept = WHOLE[:40] + changed[40:80] + WHOLE[80:]
    assert stream.read(0, stream.size).tobytes() == kept[20:]
    # The last fragment brought nothing: the datagram was whole before it.
    assert capture.frames == {"tcp": 3, "fragment": 1}


def test_what_stays_unfinished_is_counted() -> None:
    capture = read(fragment(0, 40), fragment(80, 120), fragment(40, 80, number=8))
    assert capture.frames == {"fragment": 3}
    assert capture.streams == []


def test_datagrams_that_differ_in_anything_stay_apart() -> None:
    other = bytes(20) + WHOLE[20:]
    capture = read(
        fragment(0, 40),
        fragment(0, 40, other, protocol=17),
        fragment(0, 40, other, number=8),
        fragment(40, 120),
    )
    assert capture.frames == {"tcp": 2, "fragment": 2}
    assert capture.streams[0].read(0, 100).tobytes() == PAYLOAD


def test_a_number_is_used_again_after_a_minute() -> None:
    late = read(fragment(0, 40), fragment(0, 40), fragment(40, 120), step_ns=61_000_000_000)
    assert late.frames == {"fragment": 3}
    soon = read(fragment(0, 40), fragment(40, 120), step_ns=59_000_000_000)
    assert soon.frames == {"tcp": 2}


@pytest.mark.parametrize(
    "bad",
    [
        ipv4(WHOLE[:41], identification=7, offset=0, more=True),
        ipv4(bytes(80), identification=7, offset=65528),
        fragment(120, 160, WHOLE + bytes(40)),
        ipv4(b"", identification=7, offset=40, more=True),
    ],
    ids=["not a multiple of 8", "beyond the largest datagram", "beyond the end", "nothing"],
)
def test_fragments_that_break_a_rule_change_nothing(bad: bytes) -> None:
    capture = read(fragment(80, 120), bad, fragment(0, 40), fragment(40, 80))
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == PAYLOAD


def test_a_fragment_the_snapshot_cut_is_not_there() -> None:
    first = fragment(0, 40)
    records = [Packet(first[:-1], original=len(first)), Packet(fragment(40, 120))]
    assert read_capture(pcap(records, 101)).frames == {"fragment": 2}


def test_tunnels_in_fragments_and_fragments_in_tunnels() -> None:
    inner = [fragment6(0, 64), fragment6(64, 120)]
    outer = [ipv4(one, 41) for one in inner]
    parts = []
    for number, whole in enumerate(outer):
        body = whole[20:]
        parts += [
            fragment(0, 48, body, number, protocol=41),
            fragment(48, len(body), body, number, protocol=41),
        ]
    capture = read(*parts)
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == PAYLOAD
    assert stream.src.address == CLIENT6
    assert capture.frames == {"tcp": 4}


def test_tunnels_without_end_do_end() -> None:
    whole = WHOLE
    for number in range(12):
        body = ipv4(whole, 6 if number == 0 else 4)
        half = len(body) // 16 * 8
        whole = ipv4(body[:half], 4, identification=number, more=True)
    capture = read(whole)
    assert sum(capture.frames.values()) == 1


def test_a_datagram_of_many_small_fragments() -> None:
    whole = udp(1, 2, Random(1).randbytes(8 * 4000))
    parts = [
        fragment(at, min(at + 8, len(whole)), whole, protocol=17) for at in range(0, len(whole), 8)
    ]
    Random(2).shuffle(parts)
    capture = read_capture(pcap(packets(parts), 101))
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == whole[8:]
