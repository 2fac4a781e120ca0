"""Reassembly of many connections at once against a model that is too simple to be wrong."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.captures.make import pcap
from tests.captures.torture import Expected, Segment, make_flow, model
from wireyard.captures.connections import tcp
from wireyard.captures.connections.stream import Stream
from wireyard.captures.read import Capture, read_capture

FLOWS = 1500


def interleaved(flows: list[list[Segment]], rng: Random) -> list[Segment]:
    """Mix flows that keep their own order, and are silent together."""
    turns = [number for number, flow in enumerate(flows) for _ in flow]
    rng.shuffle(turns)
    rests = [iter(flow) for flow in flows]
    mixed = [next(rests[turn]) for turn in turns]
    return sorted(mixed, key=lambda segment: segment.silences)


def capture_of(segments: list[Segment], overlap: str) -> Capture:
    records = [segment.packet(number) for number, segment in enumerate(segments, 1)]
    return read_capture(pcap(records), overlap)


def assert_stream(stream: Stream, expected: Expected) -> None:
    rows = expected.rows()
    assert stream.size == expected.size, stream.name
    assert stream.begun == expected.begun, stream.name
    offsets = np.array([offset for offset, _, _ in rows], np.int64)
    pieces = stream.pieces.tolist()
    there = [offset for start, stop in pieces for offset in range(start, stop)]
    assert there == offsets.tolist(), stream.name
    content = b"".join(stream.read(start, stop).tobytes() for start, stop in pieces)
    assert content == bytes(byte for _, byte, _ in rows), stream.name
    frames, times_ns = stream.completed(offsets, offsets + 1)
    assert frames.tolist() == [frame for _, _, frame in rows], stream.name
    # Times of packets out of order are moved: see `test_order`.
    assert times_ns.tolist() == stream.content.times_of(frames - 1).tolist(), stream.name
    if pieces:
        start, stop = max(pieces, key=lambda piece: piece[1] - piece[0])
        last = max(frame for offset, _, frame in rows if start <= offset < stop)
        assert stream.completed(np.array([start]), np.array([stop]))[0].tolist() == [last]


@pytest.mark.parametrize("overlap", ["first", "last"])
@pytest.mark.parametrize("seed", range(2))
def test_streams_are_those_of_the_model(
    seed: int, overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed:
        monkeypatch.setattr(tcp, "_GROUP_ROWS", 50)  # about as many as a few flows have
    rng = Random(f"{seed} {overlap}")
    flows = [make_flow(number, rng) for number in range(FLOWS)]
    segments = interleaved(flows, rng)
    capture = capture_of(segments, overlap)
    expected = model(segments, newest=overlap == "last")
    assert {stream.name for stream in capture.streams} == set(expected)
    for stream in capture.streams:
        assert_stream(stream, expected[stream.name])
    payload = sum(len(segment.payload) - segment.cut for segment in segments)
    assert sum(capture.payload_bytes.values()) == payload
    assert capture.frames == {"tcp": len(segments)}
