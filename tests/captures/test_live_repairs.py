"""What is repaired in a capture that is read while it is made is repaired as in a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.captures.make import BEGAN_NS, Packet, ethernet, pcap
from tests.captures.test_copies import MS, Segment, talk
from tests.captures.test_live import assert_same, connect, publish

ASKED = (connect(1), b"\x32\7\0\3a/b\0\1", b"\x32\7\0\3a/b\0\2", b"\xc0\0")
ANSWERED = (b"\x20\2\0\0", b"\x40\2\0\1", b"\x40\2\0\2", b"\xd0\0")
FIRST = 3
"""Segments before the first with bytes."""


def conversation(**settings: object) -> list[Segment]:
    """Return the segments of an MQTT connection."""
    return talk(ASKED, ANSWERED, **settings)  # type: ignore[arg-type]


def assert_as_whole(timed: Sequence[tuple[int, bytes]], rows: int) -> None:
    """Assert that frames, each so many nanoseconds after the first, give what the whole gives."""
    records = [Packet(frame, BEGAN_NS + after_ns) for after_ns, frame in timed]
    data = pcap(records, magic=0xA1B23C4D, unit_ns=1)
    for seed in range(3):
        assert assert_same(data, Random(seed))[1] == rows


def at_each(step_ns: int, segments: Sequence[Segment]) -> list[tuple[int, bytes]]:
    return [(at * step_ns, ethernet(packet)) for at, (_, packet) in enumerate(segments)]


@pytest.mark.parametrize("early_ns", [1, 20_000, 900_000, 4 * MS, 50 * MS, 1000 * MS])
@pytest.mark.parametrize("answer", range(4))
def test_an_answer_that_was_captured_first(early_ns: int, answer: int) -> None:
    frames = at_each(2000 * MS, conversation())
    at = FIRST + 2 * answer
    request, reply = frames[at : at + 2]
    frames[at : at + 2] = [(request[0] - early_ns, reply[1]), request]
    assert_as_whole(frames, 8)


@pytest.mark.parametrize("back_ns", [1, 20_000, MS])
def test_packets_whose_times_go_back_by_little(back_ns: int) -> None:
    one = at_each(10 * MS, conversation())
    other = at_each(10 * MS, conversation(numbers=(77_000, 99_000), ports=(40001, 1883)))
    frames = sorted([*one, *other[:-1]], key=lambda each: each[0])
    assert_as_whole([*frames, (frames[-1][0] - back_ns, other[-1][1])], 16)


@pytest.mark.parametrize("after_ns", [MS, 300 * MS, 1900 * MS])
def test_other_bytes_than_were_sent_before(after_ns: int) -> None:
    segments = talk((connect(1), publish(20)), (b"\x20\2\0\0", b""), closes=False)
    changed = talk((connect(1), publish(20)[:-1] + b"x"), (b"\x20\2\0\0", b""), closes=False)
    frames = at_each(MS, segments)
    frames += [(frames[-1][0] + after_ns, ethernet(changed[-2][1]))]
    assert_as_whole(frames, 3)
