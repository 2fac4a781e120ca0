"""A capture in many files, and shared among many readers: the same streams in any case."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tests.captures.make import BEGAN_NS, CLIENT, SERVER, Packet, ethernet, ipv4, pcap, tcp, udp
from tests.captures.test_torture import interleaved
from tests.captures.torture import make_flow
from wireyard.captures.packets.units import Share
from wireyard.captures.read import Capture, read_capture, read_captures

Streams = dict[str, tuple[int, list[list[int]], bytes, list[int], list[int]]]


def streams_of(*captures: Capture) -> Streams:
    """Return all there is to know about the streams, having checked that none is there twice."""
    found: Streams = {}
    for capture in captures:
        for stream in capture.streams:
            assert stream.name not in found
            pieces = stream.pieces.tolist()
            content = b"".join(stream.read(start, stop).tobytes() for start, stop in pieces)
            offsets = stream.runs.offsets
            frames, times_ns = stream.completed(offsets, offsets + 1)
            facts = stream.size, pieces, content, frames.tolist(), times_ns.tolist()
            found[stream.name] = facts
    return found


@pytest.fixture(scope="module")
def traffic() -> list[Packet]:
    """Many bad connections, datagrams in fragments, a port mapper."""
    rng = Random(11)
    segments = interleaved([make_flow(number, rng) for number in range(150)], rng)
    frames = [segment.packet(0) for segment in segments]
    for number in range(40):
        whole = udp(9, 10 + number, bytes([number]) * 64)
        parts = [
            ethernet(ipv4(whole[at : at + 24], 17, identification=number, offset=at, more=at < 48))
            for at in range(0, len(whole), 24)
        ]
        places = sorted(rng.choices(range(len(frames)), k=len(parts)))
        for place, part in zip(reversed(places), reversed(parts), strict=True):
            frames.insert(place, Packet(part))
    frames.insert(7, Packet(ethernet(ipv4(tcp(7676, 5, 1, b"101 x 301\n.\n"), 6, SERVER, CLIENT))))
    return [
        frame._replace(time_ns=BEGAN_NS + 1000 * number, original=None)
        for number, frame in enumerate(frames)
    ]


@pytest.mark.parametrize("files", [1, 2, 7, 200])
def test_files_of_one_capture_in_any_order(traffic: list[Packet], files: int) -> None:
    rng = Random(files)
    cuts = sorted(rng.choices(range(len(traffic) + 1), k=files - 1))
    parts = [pcap(traffic[start:stop]) for start, stop in pairwise([0, *cuts, len(traffic)])]
    rng.shuffle(parts)
    whole, together = read_capture(pcap(traffic)), read_captures(parts)
    assert streams_of(together) == streams_of(whole)
    assert len(whole.streams) > 300
    assert together.frames == whole.frames and together.payload_bytes == whole.payload_bytes


@pytest.mark.parametrize("shares", [1, 2, 7, 64])
def test_shares_are_the_whole(traffic: list[Packet], shares: int) -> None:
    data = pcap(traffic)
    whole = read_capture(data)
    parts = [read_captures([data], share=Share(part, shares, 7676)) for part in range(shares)]
    assert streams_of(*parts) == streams_of(whole)
    mapper = f"{SERVER}:7676>{CLIENT}:5"
    seen = [[one.name for one in part.guides] for part in parts]
    assert sorted(seen) == sorted([[mapper]] * (shares - 1) + [[]])
    assert {tuple(part.frames.items()) for part in parts} == {tuple(whole.frames.items())}
    if shares > 1:
        sizes = np.array([len(part.streams) for part in parts])
        assert sizes.max() < len(whole.streams)


def test_streams_of_tcp_and_udp_between_the_same_endpoints_are_numbered_in_one_part() -> None:
    frames = [
        ethernet(ipv4(content, protocol))
        for port in range(40)
        for content, protocol in (
            (tcp(5000 + port, 1883, 1, b"x"), 6),
            (udp(5000 + port, 1883, b"y"), 17),
        )
    ]
    data = pcap([Packet(frame, BEGAN_NS) for frame in frames])
    whole = streams_of(read_capture(data))
    assert sum(name.endswith("#2") for name in whole) == 40
    assert streams_of(*(read_captures([data], share=Share(n, 5, 7676)) for n in range(5))) == whole
