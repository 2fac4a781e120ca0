"""The receiver's rules, R1 to R9: places, cuts, bounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from tests.layers.rmp.make import (
    ME,
    RING,
    YOU,
    delivered,
    events,
    layer,
    plain,
    receive,
    segment,
)
from wireyard.layers.rmp import Delivered, Drop, MessagingLayer, QoS
from wireyard.layers.rmp.events import Aborted, Event, Stalled, ViewChanged

THIRD = "10.0.0.3:7001"
A = [segment(1, place, 3, b"A%d" % place) for place in (1, 2, 3)]
INTERLEAVED = [A[0], plain(b"B1"), A[1], plain(b"B2"), A[2], plain(b"B3")]
UNORDERED = QoS.UNORDERED


def reasons(found: Sequence[Event]) -> list[str]:
    return [event.reason for event in found if isinstance(event, Aborted)]


def test_a_message_stands_where_its_first_packet_stood() -> None:
    at = layer()
    for packet in INTERLEAVED:
        receive(at, packet, source=YOU if packet in A else THIRD)
    assert delivered(at) == [b"A1A2A3", b"B1", b"B2", b"B3"]


# --- R1 to R5 -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [QoS.TOTALLY_ORDERED, QoS.SOURCE_ORDERED])
def test_r1_packet_1_again_begins_anew_at_the_tail(qos: QoS) -> None:
    at = layer()
    receive(at, A[0], A[1], segment(2, 1, 2, b"x"), A[0], segment(2, 2, 2, b"y"), qos=qos)
    assert reasons(events(at)) == ["restarted"]
    receive(at, A[1], A[2], qos=qos)
    assert delivered(at) == [b"A1A2A3"]


def test_r1_without_order_the_same_packet_1_again_is_a_duplicate() -> None:
    """Datagrams are doubled by networks; only another packet 1 says that the sender began anew."""
    at = layer()
    receive(at, A[0], A[1], A[0], A[2], qos=UNORDERED)
    assert delivered(at) == [b"A1A2A3"]
    receive(at, A[0], A[1], segment(1, 1, 3, b"other"), A[2], qos=UNORDERED)
    assert reasons(events(at)) == ["restarted"]


def test_r2_a_later_packet_of_nothing_is_dropped_and_counted() -> None:
    at = layer()
    receive(at, A[1], A[2], plain(b"b"))
    assert delivered(at) == [b"b"]
    assert at.dropped == {Drop.ORPHAN: 2}


def test_r3_another_count_aborts() -> None:
    at = layer()
    receive(at, A[0], segment(1, 2, 2, b"x"), plain(b"b"))
    found = events(at)
    assert reasons(found) == ["inconsistent"]
    assert at.dropped == {Drop.ABORTED: 1, Drop.ORPHAN: 1}


def test_r4_the_same_packet_again_counts_once_and_another_one_aborts() -> None:
    at = layer()
    receive(at, A[0], A[1], A[1], A[2])
    assert delivered(at) == [b"A1A2A3"]
    receive(at, A[0], A[1], segment(1, 2, 3, b"x"), A[2])
    assert reasons(events(at)) == ["inconsistent"]


def test_r4_packets_may_overtake_each_other_only_where_nothing_is_ordered() -> None:
    at = layer()
    receive(at, A[0], A[2], A[1], qos=UNORDERED)
    assert delivered(at) == [b"A1A2A3"]
    for qos in (QoS.SOURCE_ORDERED, QoS.TOTALLY_ORDERED):
        receive(at, A[0], A[2], A[1], qos=qos)
        assert reasons(events(at)) == ["gap"]


def test_r5_layer_and_qos_are_those_of_the_first_packet() -> None:
    at = layer()
    receive(at, A[0], segment(1, 2, 3, b"x", layer=2))
    assert reasons(events(at)) == ["inconsistent"]
    receive(at, A[0])
    receive(at, A[1], qos=QoS.K_RESILIENT)
    assert reasons(events(at)) == ["inconsistent"]


def test_r5_a_packet_outside_the_order_cannot_touch_what_is_ordered() -> None:
    """Members see it at different places, so what it would do would differ."""
    at = layer()
    receive(at, A[0], A[1])
    receive(at, A[2], segment(1, 3, 3, b"x"), segment(1, 1, 3, b"x"), qos=UNORDERED)
    receive(at, A[2])
    assert delivered(at) == [b"A1A2A3"]


# --- R6: who waits for whom -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("qos", "order"),
    [
        (QoS.TOTALLY_ORDERED, [b"A1A2A3", b"B1", b"own", b"B2", b"B3"]),
        (QoS.TOTALLY_RESILIENT, [b"A1A2A3", b"B1", b"own", b"B2", b"B3"]),
        (QoS.SOURCE_ORDERED, [b"B1", b"B2", b"A1A2A3", b"own", b"B3"]),
        (QoS.UNORDERED, [b"B1", b"own", b"B2", b"A1A2A3", b"B3"]),
        (QoS.UNRELIABLE, [b"B1", b"own", b"B2", b"A1A2A3", b"B3"]),
    ],
)
def test_r6_who_waits_for_an_unfinished_message(qos: QoS, order: list[bytes]) -> None:
    at = layer()
    for packet in (*INTERLEAVED[:2], plain(b"own"), *INTERLEAVED[2:]):
        receive(at, packet, source=THIRD if b"B" in packet else YOU, qos=qos)
    assert delivered(at) == order


def test_r6_complete_messages_wait_for_the_first_unfinished_one() -> None:
    at = layer()
    two = [segment(2, place, 2, b"c%d" % place) for place in (1, 2)]
    receive(at, A[0], two[0], two[1], A[1])
    assert delivered(at) == []
    receive(at, A[2])
    assert delivered(at) == [b"A1A2A3", b"c1c2"]


def test_r6_a_number_may_be_used_again_while_its_message_waits() -> None:
    at = layer()
    receive(at, segment(9, 1, 2, b"x"), source=THIRD)
    receive(at, *A, *A)
    receive(at, segment(9, 2, 2, b"y"), source=THIRD)
    assert delivered(at) == [b"xy", b"A1A2A3", b"A1A2A3"]


# --- R7: the cut ----------------------------------------------------------------------------


def test_r7_a_view_drops_the_unfinished_and_delivers_the_rest_before_it() -> None:
    at = layer()
    receive(at, A[0], A[1])
    receive(at, plain(b"b"), source=THIRD)
    receive(at, segment(5, 1, 2, b"own"), source=ME)
    receive(at, plain(b"c"), source=THIRD)
    assert delivered(at) == []
    at.view(RING, (ME, THIRD), now=0.0)
    found = events(at)
    assert [type(event) for event in found] == [Aborted, Delivered, Aborted, Delivered, ViewChanged]
    assert reasons(found) == ["view", "view"]
    assert found[-1] == ViewChanged(RING, (ME, THIRD), (THIRD,), (YOU,))
    receive(at, A[2])  # of before the view: nothing knows it
    assert at.dropped == {Drop.ABORTED: 3, Drop.ORPHAN: 1}


@pytest.mark.parametrize("qos", QoS)
def test_r7_is_the_same_for_every_quality_of_service(qos: QoS) -> None:
    at = layer()
    receive(at, A[0], A[1], qos=qos)
    at.view(RING, (ME, YOU), now=0.0)
    receive(at, A[2], plain(b"b"), qos=qos)
    found = events(at)
    assert reasons(found) == ["view"]
    assert [event.data for event in found if isinstance(event, Delivered)] == [b"b"]


def test_r7_rings_do_not_touch_each_other() -> None:
    at = layer()
    at.add_ring("other", 100)
    receive(at, A[0])
    at.receive("other", YOU, plain(b"o"), qos=QoS.TOTALLY_ORDERED, now=0.0)
    at.view("other", (ME,), now=0.0)
    receive(at, A[1], A[2])
    assert delivered(at) == [b"o", b"A1A2A3"]


# --- R8: time -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [QoS.TOTALLY_ORDERED, QoS.SOURCE_ORDERED])
def test_r8_time_decides_nothing_where_there_is_an_order(qos: QoS) -> None:
    at = layer(stall_after_s=5.0)
    receive(at, A[0], plain(b"b"), now=1.0, qos=qos)
    assert at.get_timer() == 6.0
    at.handle_timer(5.9)
    assert events(at) == []
    at.handle_timer(100.0)
    assert events(at) == [Stalled(RING, YOU, 1)]
    assert at.get_timer() is None
    receive(at, A[1], A[2], now=200.0, qos=qos)
    assert delivered(at) == [b"A1A2A3", b"b"]


@pytest.mark.parametrize("qos", [QoS.UNORDERED, QoS.UNRELIABLE])
@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_r8_elsewhere_x_of_n_are_whole_in_any_order(qos: QoS, order: tuple[int, ...]) -> None:
    at = layer()
    for place in order:
        receive(at, A[place], A[place], qos=qos)
    assert delivered(at) == [b"A1A2A3"]


@pytest.mark.parametrize("qos", [QoS.UNORDERED, QoS.UNRELIABLE])
def test_r8_elsewhere_an_unfinished_message_ends_in_time(qos: QoS) -> None:
    at = layer(reassembly_timeout_s=5.0)
    receive(at, A[0], now=1.0, qos=qos)
    receive(at, segment(2, 1, 2, b"x"), plain(b"b"), now=2.0, qos=qos)
    assert delivered(at) == [b"b"]
    at.handle_timer(6.0)
    assert reasons(events(at)) == ["timeout"]
    assert at.get_timer() == 7.0
    at.handle_timer(7.0)
    assert reasons(events(at)) == ["timeout"]
    assert at.get_timer() is None
    receive(at, A[1], A[2], now=8.0, qos=qos)
    assert at.dropped == {Drop.ABORTED: 2}
    at.handle_timer(13.0)
    assert reasons(events(at)) == ["timeout"]


def test_what_is_whole_while_nothing_waits_is_there_at_once() -> None:
    at: MessagingLayer = layer()
    receive(at, plain(b"a"))
    (found,) = events(at)
    assert isinstance(found, Delivered)
    assert (found.ring, found.source, found.qos) == (RING, YOU, QoS.TOTALLY_ORDERED)
    assert found.message_id is None
