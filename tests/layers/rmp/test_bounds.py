"""What a hostile peer can make grow, against its bound, and that what was dropped was counted."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random

import pytest

from tests.formats.rmp.make import random_packet
from tests.formats.rmp.subject import SUBJECT
from tests.layers.rmp.make import RING, YOU, events, layer, plain, receive, segment
from tests.mutations import mutate_packet
from wireyard.layers.rmp import Drop, MessagingLayer, Order, QoS

MANY = 70_000
"""More than there are numbers of messages, which come again."""


def sources() -> Iterator[str]:
    return (f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:7001" for n in range(MANY))


@cache
def first_packets() -> list[bytes]:
    """Return the first packet of a message of each number."""
    return [segment(number, 1, 9, b"x") for number in range(1 << 16)]


def flood(at: MessagingLayer, count: int, source: str | None, qos: QoS) -> None:
    """Send the first packets of so many messages, of one source or each of its own."""
    packet = first_packets()
    names = sources()
    for n in range(count):
        at.receive(RING, source or next(names), packet[n & 0xFFFF], qos=qos, now=0.0)
        while at.next_event() is not None:
            pass


@pytest.mark.slow
def test_many_half_open_messages_of_as_many_sources() -> None:
    at = layer()
    flood(at, MANY, None, QoS.UNORDERED)
    # Each is aborted by one that came after it, but for those that are still there.
    assert at.dropped == {Drop.ABORTED: MANY - 4096}
    packet = segment(1, 1, 9, b"x")
    tracemalloc.start()
    for source in islice(sources(), 2 * 4096):
        at.receive(RING, source, packet, qos=QoS.UNORDERED, now=0.0)
        at.next_event()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert at.dropped == {Drop.ABORTED: MANY + 4096}
    assert grown < 4096 * 1024  # what replaced 4096 messages, each under a kibibyte


@pytest.mark.slow
@pytest.mark.parametrize("qos", [QoS.UNORDERED, QoS.SOURCE_ORDERED, QoS.TOTALLY_ORDERED])
def test_many_half_open_messages_of_one_source(qos: QoS) -> None:
    at = layer()
    flood(at, MANY, YOU, qos)
    unfinished = sum(len(one) for one in at._rings[RING].reassemblies)
    assert unfinished == 64
    # After 65536 the numbers come again: packet 1 again begins anew what is open.
    again = MANY // 65536 * 64
    if qos is QoS.UNORDERED:
        assert at.dropped == {Drop.TOO_MANY: MANY - 64 - again, Drop.REPEAT: again}
    else:
        assert at.dropped == {Drop.TOO_MANY: MANY - 64 - again, Drop.ABORTED: again}


def test_messages_behind_an_unfinished_one_are_bounded_and_then_released() -> None:
    at = layer(max_held_bytes=100_000)
    receive(at, segment(1, 1, 9, b"head"))
    for _ in range(1000):
        receive(at, plain(b""), plain(b"x" * 50))
    found = events(at)
    assert at.dropped == {Drop.ABORTED: 1}
    assert len(found) == 2001  # one is aborted, all others are there


def test_messages_that_were_aborted_behind_an_unfinished_one_cost_nothing() -> None:
    at = layer(max_held_bytes=100_000)
    receive(at, segment(1, 1, 9, b"head"))
    reassembly = at._rings[RING].reassembly(Order.TOTAL, YOU)
    held_bytes = reassembly.held_bytes
    for _ in range(1000):
        receive(at, segment(2, 1, 9, b"x"), segment(2, 3, 9, b"gap"))
    assert (reassembly.held_bytes, len(reassembly)) == (held_bytes, 1)
    assert at.dropped[Drop.ABORTED] == 1000


def test_a_message_longer_than_its_bound_is_refused_at_its_first_packet() -> None:
    at = layer(100, max_message_bytes=1000)
    receive(at, segment(1, 1, 11, b"x"))
    assert at.dropped == {Drop.TOO_BIG: 1}
    receive(at, segment(1, 1, 10, b"x"), segment(1, 2, 10, bytes(999)))
    assert at.dropped == {Drop.TOO_BIG: 1}
    receive(at, segment(1, 3, 10, b"x"))  # longer packets than ours: 1001 bytes by now
    assert at.dropped == {Drop.TOO_BIG: 1, Drop.ABORTED: 2, Drop.ORPHAN: 1}


def test_packets_without_data_fill_a_bound_too() -> None:
    at = layer(64, max_message_bytes=64 * 65535, max_held_bytes=1_000_000)
    receive(at, segment(1, 1, 65535, b""))
    for place in range(2, 65535):
        receive(at, segment(1, place, 65535, b""))
    assert at.dropped[Drop.ABORTED] + at.dropped[Drop.ORPHAN] == 65534
    assert at.dropped[Drop.ABORTED] < 1_000_000 // 128 + 2


def test_malformed_packets_are_counted_by_source_up_to_so_many() -> None:
    at = layer(max_counted_sources=10)
    for _, source in zip(range(1000), sources(), strict=False):
        receive(at, b"\0", source=source)
    assert len(at.malformed_of) == 11
    assert at.malformed_of[None] == 990
    assert at.dropped == {Drop.MALFORMED: 1000}


def test_every_layer_number_is_reported_once_a_second_at_most() -> None:
    at = layer()
    for n in range(10_000):
        receive(at, plain(b"", layer=1 + n % 63))
    assert len(events(at)) == 63
    assert at.dropped == {Drop.UNKNOWN_LAYER: 10_000}


@pytest.mark.parametrize("seed", range(3))
def test_anything_at_all_ends_in_events_and_counts(seed: int) -> None:
    rng = Random(seed)
    at = layer(max_held_bytes=50_000, max_unfinished=20)
    at.register_layer(2)
    for n in range(3000):
        packet = mutate_packet(random_packet(rng), rng, SUBJECT)
        source = f"10.0.0.{rng.randrange(9)}:1"
        at.receive(RING, source, packet, qos=rng.choice(list(QoS)), now=n / 100)
        if rng.random() < 0.01:
            at.view(RING, (YOU,), now=n / 100)
        due = at.get_timer()
        if due is not None and due <= n / 100:
            at.handle_timer(n / 100)
            later = at.get_timer()
            assert later is None or later > n / 100
        events(at)
    at.view(RING, (), now=99.0)
    assert all(one.idle and not len(one) for one in at._rings[RING].reassemblies)
