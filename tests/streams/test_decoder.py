"""The incremental decoder and the framer under it: any chunks, any damage, the same events."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from tests.golden import GOLDEN
from tests.make import MAGIC, item, nested, packet, random_packet, variety
from tests.mutations import mutate_packet, subject_of
from tests.readings import JMQ, assert_events, cut, events_of, table_of
from wireyard.errors import DecodeError, Truncated
from wireyard.formats.jmq.packet import decode
from wireyard.streams.decoder import Decoded, Decoder, Need
from wireyard.streams.framer import GARBAGE, MALFORMED, OK, TAIL, Framer


def brief(events: list[Decoded]) -> list[tuple[int, int, str]]:
    return [(event.offset, event.length, event.status) for event in events]


def whole(data: bytes, limit: int | None = None) -> list[Decoded]:
    return events_of(data, [data], limit)


def test_packets_come_out_as_decoded() -> None:
    packets = variety()
    events = whole(b"".join(packets))
    assert [event.packet for event in events] == [decode(data) for data in packets]
    assert [event.length for event in events] == [len(data) for data in packets]
    assert all(event.status == OK and event.error is None for event in events)


@pytest.mark.parametrize("data", [golden.data for golden in GOLDEN.values()], ids=GOLDEN.keys())
def test_a_packet_comes_out_with_its_last_byte_and_not_before(data: bytes) -> None:
    decoder = Decoder(JMQ)
    for place in range(len(data) - 1):
        decoder.receive_data(data[place : place + 1])
        assert decoder.next_event() is Need.DATA
    decoder.receive_data(data[-1:])
    event = decoder.next_event()
    assert isinstance(event, Decoded) and event.packet == decode(data)
    assert decoder.next_event() is Need.DATA
    decoder.receive_end()
    assert decoder.next_event() is Need.NOTHING
    assert decoder.next_event() is Need.NOTHING


@pytest.mark.parametrize("data", [golden.data for golden in GOLDEN.values()], ids=GOLDEN.keys())
def test_any_shorter_prefix_is_a_tail(data: bytes) -> None:
    before = packet()
    for size in range(1, len(data)):
        events = whole(before + data[:size])
        assert brief(events) == [(0, 72, OK), (72, size, TAIL)]
        assert isinstance(events[1].error, Truncated) and events[1].packet is None
        assert events[1].error.available == size


def test_an_empty_stream_has_no_events() -> None:
    assert whole(b"") == []
    decoder = Decoder(JMQ)
    assert decoder.next_event() is Need.DATA


def test_bytes_after_the_end_are_a_mistake_of_the_caller() -> None:
    decoder = Decoder(JMQ)
    decoder.receive_end()
    with pytest.raises(ValueError, match="end"):
        decoder.receive_data(b"x")


def test_what_was_given_may_change_afterwards() -> None:
    data = bytearray(packet(body=b"body"))
    decoder = Decoder(JMQ)
    decoder.receive_data(memoryview(data))
    data[:] = bytes(len(data))
    event = decoder.next_event()
    assert isinstance(event, Decoded) and event.packet.body == b"body"


# --- damage ---------------------------------------------------------------------------------

GOOD = packet(items=item(1, "q") + b"\0\0", body=b"good")
N = len(GOOD)


@pytest.mark.parametrize(
    "noise", [b"x", b"HELP", MAGIC[:3], MAGIC + b"junk", bytes(500), b"\x1b" * 9]
)
def test_garbage_between_packets_is_one_row_and_the_next_packet_is_read(noise: bytes) -> None:
    events = whole(GOOD + noise + GOOD)
    assert brief(events) == [(0, N, OK), (N, len(noise), GARBAGE), (N + len(noise), N, OK)]
    assert events[1].error is not None


@pytest.mark.parametrize("noise", [b"x", b"HELP", b"junk" + MAGIC + b"junk" * 5, bytes(500)])
def test_garbage_at_either_end_is_one_row(noise: bytes) -> None:
    size = len(noise)
    assert brief(whole(noise)) == [(0, size, GARBAGE)]
    assert brief(whole(noise + GOOD)) == [(0, size, GARBAGE), (size, N, OK)]
    assert brief(whole(GOOD + noise)) == [(0, N, OK), (N, size, GARBAGE)]


def test_garbage_then_the_beginning_of_a_packet() -> None:
    for size in range(1, N):
        expected = [(0, 3, GARBAGE), (3, size, TAIL)]
        assert brief(whole(b"abc" + GOOD[:size])) == expected, size


def test_a_malformed_packet_keeps_its_place() -> None:
    bad = packet(property_offset=5, body=b"bad")
    events = whole(GOOD + bad + GOOD)
    assert brief(events) == [(0, N, OK), (N, 75, MALFORMED), (N + 75, N, OK)]
    with pytest.raises(DecodeError) as caught:
        decode(bad)
    assert events[1].error is not None and events[1].error.row() == caught.value.row()


def test_an_unknown_version_is_a_malformed_packet_of_its_size() -> None:
    events = whole(packet(version=400, body=b"?" * 30) + GOOD)
    assert brief(events) == [(0, 102, MALFORMED), (102, N, OK)]


@pytest.mark.parametrize("size", [-1, 0, 12, 71, 2**31 - 1])
def test_after_an_impossible_size_the_next_header_is_found(size: int) -> None:
    events = whole(packet(size=size, body=b"b" * 10) + GOOD)
    assert brief(events) == [(0, 82, GARBAGE), (82, N, OK)]
    assert events[0].error is not None and events[0].error.field == "size"


def test_a_size_that_lies_costs_the_packets_it_covers_only() -> None:
    lie = packet(size=72 + N + 5)
    end = 72 + N + 5
    assert brief(whole(lie + GOOD * 3)) == [
        (0, end, OK),
        (end, N - 5, GARBAGE),
        (end + N - 5, N, OK),
    ]
    short = packet(body=b"b" * 40, size=80)
    assert brief(whole(short + GOOD)) == [(0, 80, OK), (80, 32, GARBAGE), (112, N, OK)]


def test_a_size_over_the_end_is_a_tail() -> None:
    events = whole(GOOD + packet(size=5000, body=b"x" * 100))
    assert brief(events) == [(0, N, OK), (N, 172, TAIL)]
    assert events[1].error is not None
    assert "5000" in str(events[1].error) and "172" in str(events[1].error)


def test_the_limit_is_the_callers() -> None:
    data = packet(body=bytes(1000)) + GOOD
    assert brief(whole(data, 1072)) == [(0, 1072, OK), (1072, N, OK)]
    assert brief(whole(data, 1071)) == [(0, 1072, GARBAGE), (1072, N, OK)]


def test_packets_inside_a_body_are_not_seen_in_step() -> None:
    outer = nested(packet(), GOOD + GOOD)
    assert brief(whole(outer + GOOD)) == [(0, 72 + 2 * N, OK), (72 + 2 * N, N, OK)]


def test_after_lost_bytes_packets_inside_a_body_are_seen_and_nothing_is_lost() -> None:
    outer = nested(packet(), GOOD + GOOD, before=10, after=4)
    events = brief(whole(outer[20:] + GOOD))
    assert [status for _, _, status in events] == [GARBAGE, OK, OK, GARBAGE, OK]
    assert [length for _, length, _ in events] == [62, N, N, 4, N]


def test_bit_flips_outside_size_and_magic_lose_no_other_packet() -> None:
    rng = Random(4)
    packets = [random_packet(rng) for _ in range(40)]
    starts = [sum(map(len, packets[:n])) for n in range(40)]
    for hit in range(0, 40, 3):
        data = bytearray(packets[hit])
        place = rng.choice([4, 5, 6, 7, *range(12, len(data))])
        data[place] ^= 1 << rng.randrange(8)
        stream = b"".join([*packets[:hit], bytes(data), *packets[hit + 1 :]])
        assert [event.offset for event in whole(stream)] == starts


def test_a_lost_magic_loses_one_packet() -> None:
    packets = [GOOD] * 9
    for bit in range(32):
        data = bytearray(GOOD)
        data[bit // 8] ^= 1 << bit % 8
        statuses = [event.status for event in whole(b"".join([*packets, bytes(data), *packets]))]
        assert statuses == [OK] * 9 + [GARBAGE] + [OK] * 9


# --- any chunks -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_chunks_give_the_same_events(seed: int) -> None:
    rng = Random(seed)
    parts: list[bytes] = []
    for _ in range(30):
        data = random_packet(rng)
        parts.append(mutate_packet(data, rng, subject_of("jmq")) if rng.random() < 0.5 else data)
        parts.append(rng.choice((b"", b"", rng.randbytes(5), MAGIC, MAGIC[:2], packet()[:70])))
    data = b"".join(parts)
    table = table_of(data, compiled=False, max_packet_bytes=4096)
    for most in (1, 2, 3, 10, 71, 72, 73, 500, 1 << 20):
        assert_events(events_of(data, cut(data, rng, most), 4096), table)
    assert_events(events_of(data, [bytes([byte]) for byte in data], 4096), table)


def test_each_cut_in_two_gives_the_same_events() -> None:
    data = GOOD + MAGIC + b"\1" + packet(version=9) + b"." + packet(size=60) + GOOD + GOOD[:40]
    expected = [(event.offset, event.length, event.status) for event in whole(data)]
    for at in range(len(data) + 1):
        assert brief(events_of(data, [data[:at], data[at:]])) == expected, at


def test_no_more_than_a_header_is_held_back() -> None:
    """Garbage is reported as soon as it cannot be the beginning of a packet any more."""
    decoder = Decoder(JMQ)
    decoder.receive_data(b"junk" * 1000 + GOOD)
    assert [event.status for event in decoder.events()] == [GARBAGE, OK]
    held = 0
    for byte in b"\x1b\xff\xe3\xc2" + b"\0" * 200 + GOOD:
        decoder.receive_data(bytes([byte]))
        held += 1
        held -= sum(event.length for event in decoder.events())
    assert held == 0


def test_garbage_is_counted_not_kept() -> None:
    decoder = Decoder(JMQ)
    tracemalloc.start()
    try:
        for _ in range(2000):
            decoder.receive_data(b"not a packet, " * 1000)
            assert decoder.next_event() is Need.DATA
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    decoder.receive_end()
    assert brief(list(decoder.events())) == [(0, 28_000_000, GARBAGE)]
    assert peak < 1_000_000


def test_a_size_alone_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        decoder = Decoder(JMQ, 2**31 - 1)
        decoder.receive_data(packet(size=2**31 - 1))
        assert decoder.next_event() is Need.DATA
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_large_packet_in_small_chunks_takes_time_that_grows_with_it() -> None:
    """Each chunk is looked at once: a hundred thousand of them would show anything else."""
    decoder = Decoder(JMQ)
    data = packet(body=bytes(20 << 20))
    for at in range(0, len(data), 200):
        decoder.receive_data(data[at : at + 200])
        event = decoder.next_event()
    assert isinstance(event, Decoded) and event.length == len(data)


# --- the framer ------------------------------------------------------------------------------


def test_frames_begin_where_the_framer_is_told() -> None:
    framer = Framer(JMQ, position=1000)
    frame = framer.next_frame(GOOD, False)
    assert frame is not None and (frame.start, frame.stop, frame.status) == (1000, 1000 + N, OK)
    assert framer.position == 1000 + N and framer.is_aligned
    assert framer.next_frame(b"", True) is None


def test_a_framer_out_of_step_says_so() -> None:
    framer = Framer(JMQ)
    assert framer.next_frame(b"garbage", False) is None
    assert not framer.is_aligned
    assert framer.position == 7
    frame = framer.next_frame(GOOD, False)
    assert frame is not None and (frame.start, frame.stop, frame.status) == (0, 7, GARBAGE)
    assert framer.is_aligned
