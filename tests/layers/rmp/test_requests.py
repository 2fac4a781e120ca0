"""Requests: replies that count, who may still answer, timers, numbers that rest."""

from __future__ import annotations

import pytest

from tests.layers.rmp.make import ME, RING, YOU, events, layer, packets, plain, receive, segment
from wireyard.errors import UsageError
from wireyard.formats.rmp.packet import decode_packet
from wireyard.layers.rmp import (
    Delivered,
    Drop,
    Limits,
    MessagingLayer,
    NumbersExhausted,
    QoS,
    Want,
    numbers,
)
from wireyard.layers.rmp.events import Replied, RequestDone

THIRD = "10.0.0.3:7001"


def ask(
    at: MessagingLayer, want: int | Want = 1, now: float = 0.0, **named: object
) -> tuple[int, int]:
    """Return a request's id and the number it was sent under."""
    chosen = {"timeout_s": 1.0, **named}
    request = at.request(RING, b"?", now=now, want=want, **chosen)  # type: ignore[arg-type]
    (packet,) = packets(at)
    number = decode_packet(packet)[0].message_number
    assert number is not None
    return request, number


def answer(
    at: MessagingLayer,
    number: int,
    source: str = YOU,
    client: int | None = None,
    to: str = ME,
    now: float = 0.0,
) -> None:
    packet = plain(b"!", reply_message_number=number, reply_source=to, client=client)
    receive(at, packet, source=source, now=now)


def test_a_reply_is_told_twice_for_others_may_listen() -> None:
    at = layer()
    request, number = ask(at)
    answer(at, number)
    replied, done, delivered = events(at)
    assert isinstance(replied, Replied) and isinstance(delivered, Delivered)
    assert replied == Replied(request, delivered)
    assert done == RequestDone(request, "enough", 1)


def test_a_reply_may_be_consumed() -> None:
    at = MessagingLayer(ME, first_number=0, limits=Limits(), consume_replies=True)
    at.add_ring(RING, 100)
    _, number = ask(at)
    answer(at, number)
    answer(at, number)  # late, so a message like any other
    assert [type(event) for event in events(at)] == [Replied, RequestDone, Delivered]
    assert at.dropped == {Drop.LATE_REPLY: 1}


def test_replies_to_others_are_just_messages() -> None:
    at = layer()
    _, number = ask(at)
    answer(at, number, to=YOU)
    assert [type(event) for event in events(at)] == [Delivered]
    assert not at.dropped


def test_a_reply_on_another_ring_is_none() -> None:
    at = layer()
    at.add_ring("other", 100)
    _, number = ask(at)
    packet = plain(b"!", reply_message_number=number, reply_source=ME)
    at.receive("other", YOU, packet, qos=QoS.TOTALLY_ORDERED, now=0.0)
    assert [type(event) for event in events(at)] == [Delivered]
    assert at.dropped == {Drop.LATE_REPLY: 1}


def test_who_answers_twice_counts_once_but_its_clients_each() -> None:
    at = layer(members=(ME, YOU, THIRD))
    request, number = ask(at, 2)
    answer(at, number, client=1)
    answer(at, number, client=1)
    assert at.dropped == {Drop.REPEATED_REPLY: 1}
    answer(at, number, client=2)
    assert RequestDone(request, "enough", 2) in events(at)


def test_a_stream_takes_as_many_as_one_sends() -> None:
    at = layer()
    request, number = ask(at, Want.STREAM)
    for _ in range(5):
        answer(at, number)
    at.handle_timer(1.0)
    assert events(at)[-1] == RequestDone(request, "timeout", 5)


def test_all_are_those_who_were_there_when_it_was_sent() -> None:
    at = layer(members=(ME, YOU, THIRD))
    request, number = ask(at, Want.ALL)
    at.view(RING, (ME, YOU, THIRD, "10.0.0.4:7001"), now=0.0)
    answer(at, number)
    assert not any(isinstance(event, RequestDone) for event in events(at))
    answer(at, number, THIRD)
    assert RequestDone(request, "all", 2) in events(at)


def test_who_left_will_not_answer() -> None:
    at = layer(members=(ME, YOU, THIRD))
    every, all_number = ask(at, Want.ALL)
    two, _ = ask(at, 2)
    answer(at, all_number)
    at.view(RING, (ME, YOU), now=0.0)
    done = [event for event in events(at) if isinstance(event, RequestDone)]
    assert done == [RequestDone(every, "all", 1), RequestDone(two, "members_left", 0)]


@pytest.mark.parametrize("want", [1, Want.ALL, Want.STREAM])
def test_who_asks_nobody_is_told_at_once(want: int | Want) -> None:
    at = layer(members=(ME,))
    request, _ = ask(at, want)
    assert events(at) == [RequestDone(request, "members_left", 0)]


def test_another_client_of_this_process_may_answer() -> None:
    at = layer(members=(ME,))
    at.clients(RING).register(1)
    at.clients(RING).register(2)
    request, number = ask(at, Want.ALL, client=1)
    assert events(at) == []
    answer(at, number, ME, client=2)
    assert RequestDone(request, "all", 1) in events(at)


def test_without_views_only_time_ends_what_nobody_answers() -> None:
    at = layer(members=None)
    with pytest.raises(UsageError, match="members of ring ring are not known"):
        ask(at, Want.ALL)
    with pytest.raises(UsageError, match="1 is the least"):
        ask(at, 0)
    request, _ = ask(at, 3)
    assert at.get_timer() == 1.0
    at.handle_timer(1.0)
    assert events(at) == [RequestDone(request, "timeout", 0)]


def test_each_reply_puts_the_stall_off() -> None:
    at = layer()
    request, number = ask(at, Want.STREAM, stall_s=0.2)
    assert at.get_timer() == 1.0  # silence before the first is no stall
    for now in (0.3, 0.4, 0.5):
        answer(at, number, now=now)
        at.handle_timer(now)
    assert at.get_timer() is not None
    at.handle_timer(0.69)
    at.handle_timer(0.71)
    assert events(at)[-1] == RequestDone(request, "stall", 3)
    assert at.get_timer() is None


def test_a_number_rests_after_its_request_so_that_a_late_reply_meets_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numbers, "NUMBERS", 16)
    at = layer()
    _, number = ask(at, timeout_s=1.0)
    receive(at, segment(number, 1, 1, b"?"), source=ME)
    at.handle_timer(1.0)  # and rests until 3.0
    for _ in range(15):
        at.send(RING, bytes(200), now=2.9)
    with pytest.raises(NumbersExhausted):
        at.send(RING, bytes(200), now=2.9)
    events(at)
    answer(at, number)
    assert [type(event) for event in events(at)] == [Delivered]
    assert at.dropped == {Drop.LATE_REPLY: 1}
    at.send(RING, bytes(200), now=3.0)
    while out := packets(at):
        last = out[-1]
        receive(at, *out, source=ME)
    assert decode_packet(last)[0].message_number == number


def test_timers_do_not_grow_with_replies() -> None:
    at = layer()
    _, number = ask(at, Want.STREAM, stall_s=0.2)
    for n in range(1000):
        answer(at, number, now=n / 10_000)
    assert len(at._requests._due) <= 2
