"""Times of packets that were captured out of order: an answer is behind its request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.captures.make import BEGAN_NS, Packet, ethernet, pcap
from tests.captures.test_copies import MS, Segment, talk
from tests.captures.test_index import index
from wireyard.captures.connections.times import JITTER_NS
from wireyard.captures.index import read_indexed
from wireyard.captures.packets.units import Share
from wireyard.captures.read import Capture, read_capture, read_captures
from wireyard.captures.repairs import Repairs

HOUR_NS = 3600 * 1000 * MS
ASKED = (b"connect", b"publish 1", b"publish 2", b"ping")
ANSWERED = (b"connack", b"puback 1", b"puback 2", b"pong")
IN_TURNS = [text for pair in zip(ASKED, ANSWERED, strict=True) for text in pair]
TALK = talk(ASKED, ANSWERED, closes=False)
QUIET = (0, bytes(20))
FIRST = 3
"""Segments before the first with bytes."""


def capture_of(segments: Sequence[tuple[int, Segment]]) -> Capture:
    """Return a capture of segments that were captured so many nanoseconds after the first."""
    records = [Packet(ethernet(packet), BEGAN_NS + after) for after, (_, packet) in segments]
    return read_capture(pcap(records, magic=0xA1B23C4D, unit_ns=1))


def as_one_part(segments: Sequence[tuple[int, Segment]]) -> Capture:
    """Return the same, as a task reads it that has all conversations."""
    records = [Packet(ethernet(packet), BEGAN_NS + after) for after, (_, packet) in segments]
    data = pcap(records, magic=0xA1B23C4D, unit_ns=1)
    return read_captures([data], share=Share(0, 1, 7676))


def texts(capture: Capture) -> list[bytes]:
    """Return the segments with bytes in the order of their times, then of their frames."""
    found = []
    for stream in capture.streams:
        runs = zip(stream.times_ns, *stream.runs[:2], stream.runs.records, strict=True)
        for time_ns, offset, length, record in runs:
            text = stream.read(int(offset), int(offset + length)).tobytes()
            found.append((int(time_ns), int(record), text))
    return [text for *_, text in sorted(found)]


def at_each(step_ns: int, segments: Sequence[Segment] = TALK) -> list[tuple[int, Segment]]:
    return [(at * step_ns, segment) for at, segment in enumerate(segments)]


def test_what_is_in_order_keeps_its_times() -> None:
    capture = capture_of(at_each(1000))
    assert texts(capture) == IN_TURNS
    assert capture.repairs.moved_ns == capture.repairs.stepped_ns == 0
    first = capture.streams[0].times_ns[0]
    assert first == BEGAN_NS + FIRST * 1000


@pytest.mark.parametrize("early_ns", [1, 20_000, 900_000, 4 * MS, 50 * MS, 1000 * MS])
@pytest.mark.parametrize("answer", range(4))
def test_an_answer_that_was_captured_first_is_behind_its_request(
    early_ns: int, answer: int
) -> None:
    segments = at_each(2000 * MS)
    at = FIRST + 2 * answer
    request_ns = segments[at][0]
    segments[at : at + 2] = [(request_ns - early_ns, TALK[at + 1]), segments[at]]
    capture = capture_of(segments)
    assert texts(capture) == IN_TURNS
    assert capture.repairs.moved_ns == early_ns + 1
    assert not capture.repairs.stepped_ns


@pytest.mark.parametrize("late_ns", [20_000, 3 * MS, 50 * MS, 1000 * MS])
@pytest.mark.parametrize("way", [0, 1])
def test_a_direction_whose_clock_is_ahead(late_ns: int, way: int) -> None:
    """Two taps of one direction each, merged by time."""
    moved = [(after + late_ns * (segment[0] == way), segment) for after, segment in at_each(7 * MS)]
    assert texts(capture_of(sorted(moved, key=lambda each: each[0]))) == IN_TURNS


def test_requests_and_answers_of_the_same_time() -> None:
    segments = at_each(0)
    segments[FIRST : FIRST + 2] = segments[FIRST : FIRST + 2][::-1]
    assert texts(capture_of(segments)) == IN_TURNS


def other(numbers: tuple[int, int] = (77_000, 99_000)) -> list[Segment]:
    return talk((b"sub",), (b"forward",), numbers=numbers, ports=(40001, 1883), closes=False)


@pytest.mark.parametrize("back_ns", [1, 20_000, JITTER_NS])
def test_the_file_orders_packets_whose_times_go_back_by_little(back_ns: int) -> None:
    publish, forward = TALK[FIRST + 2], other()[-1]
    segments = [*at_each(10 * MS, TALK[:5]), *at_each(10 * MS, other()[:-1])]
    segments.sort(key=lambda each: each[0])
    segments += [(1000 * MS, publish), (1000 * MS - back_ns, forward)]
    capture = capture_of(segments)
    assert texts(capture)[-2:] == [b"publish 1", b"forward"]
    assert capture.repairs.moved_ns == back_ns


def test_times_order_packets_that_go_back_by_more() -> None:
    """As in files of several interfaces, whose packets come in bursts."""
    one, two = at_each(10 * MS), at_each(10 * MS, other())
    capture = capture_of([*one, *two])
    assert texts(capture) == sorted([*IN_TURNS, b"sub", b"forward"], key=[
        b"connect", b"sub", b"connack", b"forward", *IN_TURNS[2:]
    ].index)  # fmt: skip
    assert not capture.repairs.moved_ns and not capture.repairs.stepped_ns


@pytest.mark.parametrize("back_ns", [20 * MS, 2000 * MS, HOUR_NS])
@pytest.mark.parametrize("at", [FIRST + 1, FIRST + 3, FIRST + 5])
@pytest.mark.parametrize("read", [capture_of, as_one_part])
def test_a_clock_that_is_set_back(
    read: Callable[[Sequence[tuple[int, Segment]]], Capture], back_ns: int, at: int
) -> None:
    segments = at_each(10 * MS)
    segments[at:] = [(after - back_ns, segment) for after, segment in segments[at:]]
    capture = read([*segments, (segments[-1][0] + 15 * MS, QUIET)])
    assert texts(capture) == IN_TURNS
    assert capture.repairs.stepped_ns == back_ns - 10 * MS
    times_ns = sorted(int(ns) for stream in capture.streams for ns in stream.times_ns)
    if back_ns > 1000 * MS:  # durations are those of before
        assert times_ns[-1] - times_ns[0] == 60 * MS
    assert capture.spans[0].last_ns == times_ns[-1] + 15 * MS


@pytest.mark.parametrize(
    ("after_ns", "last_ns"),
    [
        (150 * MS, 150 * MS), (HOUR_NS, HOUR_NS), (100 * MS - JITTER_NS, 100 * MS),
        (-BEGAN_NS, 100 * MS), (80 * 8766 * HOUR_NS, 100 * MS),
    ],
)  # fmt: skip
def test_a_capture_lasts_until_its_last_frame(after_ns: int, last_ns: int) -> None:
    segments = [*at_each(10 * MS), (after_ns, QUIET)]
    (span,) = capture_of(segments).spans
    assert (span.frames, span.last_ns) == (len(segments), BEGAN_NS + last_ns)


def test_bytes_that_were_sent_again_are_of_the_time_of_their_acknowledgment() -> None:
    """The first segment was not captured, its answer was, and it was sent again for nothing."""
    segments = at_each(10 * MS)
    request = segments.pop(FIRST + 2)
    segments.append((700 * MS, request[1]))
    assert texts(capture_of(segments)) == IN_TURNS


@pytest.mark.parametrize("seed", range(40))
def test_two_taps_of_which_one_has_lost_packets(seed: int) -> None:
    """The clock of the one that has all packets is ahead by more than the conversation lasts."""
    rng = Random(seed)
    whole = at_each(MS, talk(ASKED, ANSWERED))
    segments = [one for one in whole if rng.random() < 0.7]
    segments += [(after + 20 * MS, segment) for after, segment in whole]
    capture = capture_of(sorted(segments, key=lambda each: each[0]))
    assert [len(capture.streams), *texts(capture)] == [2, *IN_TURNS]
    last_ns = max(int(one.times_ns.max()) for one in capture.streams)
    assert all(one.closed is not None and one.closed[1] > last_ns for one in capture.streams)


@pytest.mark.parametrize("seed", range(40))
def test_any_disorder_within_the_delay_of_a_queue(seed: int) -> None:
    """Each direction has a queue; packets of a queue keep their order."""
    rng = Random(seed)
    delays = {way: 0 for way in (0, 1)}
    segments = []
    for after, segment in at_each(rng.choice((1_000, 20_000, MS))):
        delays[segment[0]] = max(delays[segment[0]], after + rng.randrange(200_000))
        segments.append((delays[segment[0]], segment))
    segments.sort(key=lambda each: each[0])
    assert texts(capture_of(segments)) == IN_TURNS


@pytest.mark.parametrize("early_ns", [1, 20_000, 50 * MS])
@pytest.mark.parametrize("way", [0, 1])
def test_a_fin_is_behind_the_bytes_before_it(way: int, early_ns: int) -> None:
    """Those of its own side, and those of the other that it acknowledges."""
    segments = at_each(1000 * MS, talk(ASKED, ANSWERED))
    closing = [at for at, (_, (side, _)) in enumerate(segments) if side == way][-1]
    last_ns = max(after for after, segment in segments if segment in TALK[-2:])
    fin = last_ns - early_ns, segments.pop(closing)[1]
    segments.append(fin)
    capture = capture_of(sorted(segments, key=lambda each: each[0]))
    for stream in capture.streams:
        assert stream.closed is not None
        assert stream.closed[1] > max(int(one.times_ns[-1]) for one in capture.streams)


@pytest.mark.parametrize("extent_bytes", [1 << 20, 100])
def test_parts_of_a_capture_have_the_times_of_the_whole(tmp_path: Path, extent_bytes: int) -> None:
    segments = [*at_each(10 * MS), *at_each(10 * MS, other())]
    segments.sort(key=lambda each: each[0])
    late = [(1000 * MS, TALK[-1]), (1000 * MS - 20_000, other()[-1])]
    records = [Packet(ethernet(one), BEGAN_NS + after) for after, (_, one) in [*segments, *late]]
    path = tmp_path / "capture"
    path.write_bytes(pcap(records))
    extents = index(tmp_path, [str(path)], 2, extent_bytes)
    whole = read_capture(str(path))
    captures = [read_indexed([str(path)], extents, Share(part, 2, 7676)) for part in range(2)]
    repairs = Repairs.total([capture.repairs for capture in captures])
    assert repairs.moved_ns == whole.repairs.moved_ns == 20_000
    for capture in captures:
        for stream in capture.streams:
            (same,) = (one for one in whole.streams if one.name == stream.name)
            assert stream.times_ns.tolist() == same.times_ns.tolist()
