from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.captures import make
from tests.captures.make import block, enhanced, ethernet, interface, ipv4, option, section, tcp
from wireyard.captures.files.pcapng import read_records
from wireyard.captures.read import Capture, read_capture
from wireyard.captures.records import NO_TIME
from wireyard.captures.signatures import is_capture
from wireyard.errors import Malformed, Truncated, UnsupportedVersion

SECOND_NS = 1_000_000_000


def frame(number: int) -> bytes:
    return ethernet(ipv4(tcp(1, 2, 10 * number, b"%10d" % number)))


def times_of(data: bytes) -> list[int]:
    return [
        time_ns
        for records in read_records(np.frombuffer(data, np.uint8))
        for time_ns in records.times_ns.tolist()
    ]


def content_of(capture: Capture) -> bytes:
    (stream,) = capture.streams
    return stream.read(0, stream.size).tobytes()


@pytest.mark.parametrize("order", "<>")
def test_all_kinds_of_packet_blocks_are_read(order: str) -> None:
    data = (
        section(order)
        + interface(order=order)
        + enhanced(frame(0), 5_000_001, order=order)
        + block(5, bytes(12), order)  # statistics: no packet
        + make.simple(frame(1), order=order)
        + make.obsolete(frame(2), 6_000_001, order=order)
    )
    capture = read_capture(data)
    assert content_of(capture) == b"".join(b"%10d" % number for number in range(3))
    assert times_of(data) == [5_000_001_000, NO_TIME, 6_000_001_000]
    assert capture.frames == {"tcp": 3}
    assert is_capture(data)


def test_sections_have_their_own_order_and_interfaces() -> None:
    raw = frame(1)[14:]
    data = (
        section("<")
        + interface(1)
        + enhanced(frame(0), 7)
        + section(">")
        + interface(101, order=">")
        + interface(1, order=">")
        + enhanced(raw, 8, 0, order=">")
        + enhanced(frame(2), 9, 1, order=">")
        + section("<")
        + interface(1)
        + enhanced(frame(3), 10)
    )
    capture = read_capture(data)
    assert content_of(capture) == b"".join(b"%10d" % number for number in range(4))
    assert times_of(data) == [7000, 8000, 9000, 10000]


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (0, 1_700_000_000, 1_700_000_000 * SECOND_NS),
        (3, 1_700_000_000_123, 1_700_000_000_123_000_000),
        (9, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (12, 1_700_000_000_123_456_789, 1_700_000_000_123_456),
        (0x80 | 1, 3, 1_500_000_000),
        (0x80 | 10, 1025, SECOND_NS + SECOND_NS // 1024),
        (0x80 | 33, (5 << 33) + 1, 5 * SECOND_NS),
        (0x80 | 60, (7 << 60) + (1 << 59), 7_500_000_000),
        (127, 1 << 63, 0),
        (6, (1 << 64) - 1, (1 << 63) - 1),  # 64 bits end before
    ],
)
def test_clocks_are_exact(resolution: int, ticks: int, time_ns: int) -> None:
    options = option(9, bytes([resolution])) + option(0, b"")
    data = section() + interface(options=options) + enhanced(frame(0), ticks)
    assert times_of(data) == [time_ns]


@pytest.mark.parametrize("order", "<>")
def test_an_offset_is_added(order: str) -> None:
    options = option(2, b"lo", order) + option(14, struct.pack(f"{order}q", -3), order)
    data = section(order) + interface(options=options, order=order)
    assert times_of(data + enhanced(frame(0), 5_000_000, order=order)) == [2 * SECOND_NS]


def test_an_interface_cuts_simple_packets() -> None:
    data = section() + interface(snapshot=60) + make.simple(frame(0)[:60], original=64)
    (stream,) = read_capture(data).streams
    assert stream.size == 10 and stream.gaps.tolist() == [[6, 10]]


def test_packets_of_no_interface_keep_their_number() -> None:
    data = section() + interface() + enhanced(frame(0), 0, 1) + enhanced(frame(0), 0, 0)
    capture = read_capture(data + section() + enhanced(frame(1), 0, 0))
    assert capture.frames == {"tcp": 1, "no_interface": 2}
    (stream,) = capture.streams
    assert stream.runs.records.tolist() == [1]


def test_what_wireshark_counts_as_a_frame_has_a_number() -> None:
    other = block(0x0BAD, bytes(8)) + block(0x4000_0BAD, bytes(8)) + block(9, b"journal ")
    capture = read_capture(section() + interface() + other + enhanced(frame(0)))
    assert capture.frames == {"tcp": 1, "no_packet": 3}
    assert capture.streams[0].runs.records.tolist() == [3]


def test_a_packet_that_its_block_does_not_hold_is_malformed() -> None:
    body = struct.pack("<IIIII", 0, 0, 0, 1000, 1000) + bytes(8)
    data = section() + interface() + block(6, body) + block(6, bytes(4)) + enhanced(frame(0))
    assert read_capture(data).frames == {"tcp": 1, "malformed": 2}


def test_every_shorter_file_gives_its_whole_blocks() -> None:
    parts = [section(), interface(), enhanced(frame(0)), interface(), enhanced(frame(1), 0, 1)]
    data = b"".join(parts)
    ends = [sum(map(len, parts[:count])) for count in range(1, len(parts) + 1)]
    for size in range(4, len(data)):
        capture = read_capture(data[:size])
        assert sum(capture.frames.values()) == (size >= ends[2])
        stop = max([0, *(end for end in ends if end <= size)])
        assert capture.unread_bytes == size - stop
        assert (capture.damage is None) == (size == stop)


@pytest.mark.parametrize(
    ("broken", "kind", "field"),
    [
        (section()[:8] + b"\1\2\3\4" + section()[12:], Malformed, "Byte-Order Magic"),
        (section(major=2), UnsupportedVersion, "Major Version"),
        (section() + block(1, bytes(4)), Malformed, "Block Total Length"),
        (section() + struct.pack("<II", 6, 33) + bytes(33), Malformed, "Block Total Length"),
        (section() + block(7, bytes(8))[:-4] + b"\0\0\0\1", Malformed, "Block Total Length"),
        (section() + block(7, bytes(8))[:-2], Truncated, "Block"),
        (section() + interface(options=b"\2\0\xff\xff"), Truncated, "Options"),
    ],
)
def test_damage_says_where_it_is(broken: bytes, kind: type[Exception], field: str) -> None:
    capture = read_capture(broken)
    assert isinstance(capture.damage, kind)
    assert getattr(capture.damage, "field") == field  # noqa: B009 - of the subclasses
    assert str(capture.damage).startswith(f"pcapng: '{field}' ")
    assert capture.unread_bytes > 0


def test_interfaces_by_the_thousand_take_no_time() -> None:
    data = section() + (interface() + enhanced(frame(0), 1, 0)) * 5000
    assert read_capture(data).frames == {"tcp": 5000}
