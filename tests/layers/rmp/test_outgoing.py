"""The order of a sender over views, and what is sent again: errata R28 to R30."""

from __future__ import annotations

import pytest

from tests.layers.rmp.make import (
    ME,
    RING,
    YOU,
    circulate,
    delivered,
    events,
    layer,
    packets,
    plain,
    receive,
    segment,
)
from wireyard.formats.rmp.packet import decode_packet
from wireyard.layers.rmp import (
    MessageTooBig,
    MessagingLayer,
    QoS,
    numbers,
)
from wireyard.layers.rmp.events import Aborted, Replied, ViewChanged

# --- R28: the order of a sender -------------------------------------------------------------


@pytest.mark.parametrize("qos", [one for one in QoS if one.reliable])
def test_r28_nothing_leaves_behind_a_message_of_several_packets_before_it_is_back(
    qos: QoS,
) -> None:
    at = layer(max_delay_s=0)
    for data in (b"1" * 90, b"2" * 250, b"3" * 90, b"4" * 250):
        at.send(RING, data, now=0.0, qos=qos)
    out = packets(at)
    assert [packet[-1:] for packet in out] == [b"1", b"2", b"2", b"2"]
    last = out.pop()
    several = QoS.SOURCE_ORDERED if qos is QoS.UNORDERED else qos
    receive(at, *out, source=ME, qos=several)
    assert packets(at) == []
    receive(at, last, source=ME, qos=several)
    assert [packet[-1:] for packet in packets(at)] == [b"3", b"4", b"4", b"4"]


def test_r28_an_unordered_message_of_several_packets_is_sent_source_ordered() -> None:
    at = layer(max_delay_s=0)
    for data in (b"small", bytes(150)):
        at.send(RING, data, now=0.0, qos=QoS.UNORDERED)
    qualities = [qos for qos, _ in circulate(at)]
    assert qualities == [QoS.UNORDERED, QoS.SOURCE_ORDERED, QoS.SOURCE_ORDERED]


def test_r28_messages_of_one_packet_wait_for_nothing_and_unreliable_ones_never_come_back() -> None:
    at = layer(max_delay_s=0)
    for n in range(3):
        at.send(RING, b"%d" % n, now=0.0)
        at.request(RING, b"?", now=0.0, want=1, timeout_s=1.0)
        at.send(RING, bytes(150), now=0.0, qos=QoS.UNRELIABLE)
    assert len(packets(at)) == 12
    assert at.waiting_bytes(RING) == 3  # the requests


def test_r28_a_cut_message_and_all_behind_it_arrive_in_the_order_sent() -> None:
    at = layer()
    at.send(RING, b"1" * 250, now=0.0)
    for data in (b"2", b"3" * 250):
        at.send(RING, data, now=0.0)
    ring = packets(at)
    receive(at, ring[0], source=ME)
    at.view(RING, (ME, YOU), now=0.0)
    receive(at, *ring[1:], source=ME)
    assert delivered(at) == []
    circulate(at)
    assert delivered(at) == [b"1" * 250, b"2", b"3" * 250]


# --- S6 and R29: views ----------------------------------------------------------------------


def test_s6_a_message_that_a_view_cut_is_sent_again_whole_when_its_tail_is_back() -> None:
    at = layer(first_number=0xFFFF)
    at.send(RING, bytes(200), now=0.0)
    out = packets(at)
    receive(at, out[0], source=ME)
    at.view(RING, (ME,), now=0.0)
    found = events(at)
    assert [type(event) for event in found] == [Aborted, ViewChanged]
    assert packets(at) == []
    receive(at, *out[1:], source=ME)  # the tail belongs to nothing
    assert packets(at) == out
    receive(at, *out, source=ME)
    assert delivered(at) == [bytes(200)]
    assert at.waiting_bytes(RING) == 0


def test_s6_the_ring_is_given_no_more_of_a_cut_message() -> None:
    at = layer()
    at.send(RING, bytes(500), now=0.0)
    first, second = (at.next_packet(RING) for _ in range(2))
    assert first is not None and second is not None
    receive(at, first[1], source=ME)
    at.view(RING, (ME,), now=0.0)
    assert at.next_packet(RING) is None
    receive(at, second[1], source=ME)
    assert at.next_packet(RING) == first


def test_s6_a_message_of_which_nothing_is_back_is_left_alone() -> None:
    at = layer()
    at.send(RING, bytes(200), now=0.0)
    out = packets(at)
    at.view(RING, (ME,), now=0.0)
    assert packets(at) == []
    receive(at, *out, source=ME)
    assert delivered(at) == [bytes(200)]


def test_s6_several_views_in_a_row_cut_a_message_as_often() -> None:
    at = layer()
    at.send(RING, b"1" * 250, now=0.0)
    at.send(RING, b"2", now=0.0)
    at.flush()
    for members in ((ME,), (ME, YOU), (ME,)):
        out = packets(at)
        receive(at, out[0], source=ME)
        at.view(RING, members, now=0.0)
        receive(at, out[1], source=ME)
        at.view(RING, members, now=0.0)
        receive(at, out[2], source=ME)
    assert delivered(at) == []
    circulate(at)
    assert delivered(at) == [b"1" * 250, b"2"]


def test_s6_a_request_that_was_sent_again_has_its_number() -> None:
    at = layer(members=(ME, YOU, "10.0.0.3:7001"))
    request = at.request(RING, bytes(150), now=0.0, want=1, timeout_s=1.0)
    out = packets(at)
    receive(at, out[0], source=ME)
    at.view(RING, (ME, YOU), now=0.0)
    receive(at, out[1], source=ME)
    assert packets(at) == out
    number = decode_packet(out[0])[0].message_number
    receive(at, plain(b"!", reply_message_number=number, reply_source=ME))
    answered = [event for event in events(at) if isinstance(event, Replied)]
    assert [event.request for event in answered] == [request]


def test_s6_what_was_packed_goes_before_the_view() -> None:
    at = layer(max_delay_s=9.0)
    at.send(RING, b"a", now=0.0)
    at.view(RING, (ME,), now=0.0)
    assert packets(at) == [plain(b"a")]


def test_s6_what_was_cut_needs_no_free_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "NUMBERS", 16)
    at = layer()
    for n in range(16):
        at.send(RING, b"%02d" % n * 50, now=0.0)
    out = packets(at)
    receive(at, out[0], source=ME)
    at.view(RING, (ME,), now=0.0)
    receive(at, out[1], source=ME)
    circulate(at)
    assert delivered(at) == [b"%02d" % n * 50 for n in range(16)]


def overflows(of: MessagingLayer) -> list[str]:
    aborted = [event for event in events(of) if isinstance(event, Aborted)]
    assert {event.reason for event in aborted} <= {"overflow"}
    return [event.source for event in aborted]


def test_r30_a_message_for_which_receivers_have_no_room_is_sent_again() -> None:
    at = layer(max_held_bytes=2500)
    receive(at, segment(1, 1, 2, b"o"))
    at.send(RING, b"m" * 250, now=0.0)
    out = packets(at)
    receive(at, *out[:2], source=ME)
    receive(at, plain(b"x"), plain(b"y"))  # 640 bytes each, behind 1641 of the unfinished ones
    assert overflows(at) == [ME]
    receive(at, out[2], source=ME)
    receive(at, segment(1, 2, 2, b"o"))
    assert delivered(at) == [b"oo", b"x", b"y"]
    assert packets(at) == out
    receive(at, *out, source=ME)
    assert delivered(at) == [b"m" * 250]


def test_r30_the_first_of_all_is_aborted_last() -> None:
    """Otherwise many senders of long messages would abort each other's for ever."""
    at = layer(max_held_bytes=2500)
    for number in (1, 2, 3):
        receive(at, segment(number, 1, 3, b"x"), source=f"10.0.0.{number}:1")
    receive(at, segment(1, 2, 3, bytes(500)), source="10.0.0.1:1")
    assert overflows(at) == ["10.0.0.3:1"]
    receive(at, plain(b""))
    assert overflows(at) == ["10.0.0.2:1"]
    receive(at, plain(b""))
    assert overflows(at) == ["10.0.0.1:1"]


def test_r30_where_sources_do_not_wait_for_each_other_each_has_room_of_its_own() -> None:
    at = layer(max_held_bytes=1000)
    for n in range(2, 9):
        source = f"10.0.0.{n}:7001"
        receive(at, segment(1, 1, 2, b"a"), source=source, qos=QoS.SOURCE_ORDERED)
    for n in range(2, 9):
        source = f"10.0.0.{n}:7001"
        receive(at, segment(1, 2, 2, b"b"), source=source, qos=QoS.SOURCE_ORDERED)
    assert delivered(at) == [b"ab"] * 7


def test_r30_a_message_that_receivers_never_have_room_for_is_refused() -> None:
    at = layer(max_held_bytes=2000)
    at.send(RING, bytes(592), now=0.0)
    with pytest.raises(MessageTooBig, match="costs receivers 2001 bytes, 2000 are the most"):
        at.send(RING, bytes(593), now=0.0)
