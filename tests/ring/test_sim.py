"""The simulated ring itself: repeatable, ordered where it has to be, faulty where it is set to."""

from __future__ import annotations

import pytest

from wireyard.errors import UsageError
from wireyard.layers.rmp import Delivered, Drop, QoS, Want
from wireyard.layers.rmp.events import Aborted, Event, RequestDone, ViewChanged
from wireyard_ring.sim import SimMember, SimRing

ANNA, BERT, CARL = (f"10.0.0.{n}:7001" for n in (1, 2, 3))


def data_of(member: SimMember) -> list[bytes]:
    return [event.data for event in member.events if isinstance(event, Delivered)]


def some_run(seed: int) -> list[list[Event]]:
    ring = SimRing(seed, loss=0.2, duplication=0.2, max_packet_bytes=100)
    members = [ring.join(who) for who in (ANNA, BERT, CARL)]
    for n in range(30):
        for member in members:
            qos = (QoS.TOTALLY_ORDERED, QoS.UNRELIABLE)[n % 2]
            member.send(b"%d" % n * 20 * (n % 9), qos=qos)
        ring.step()
    ring.run()
    return [member.events for member in members]


def test_the_same_seed_gives_the_same_events() -> None:
    assert some_run(7) == some_run(7)
    assert some_run(7) != some_run(8)


def test_all_deliver_in_one_order() -> None:
    for seed in range(20):
        ring = SimRing(seed)
        members = [ring.join(who) for who in (ANNA, BERT, CARL)]
        for n in range(10):
            for member in members:
                member.send(member.process_id.encode() + b"%d" % n, urgent=True)
        ring.run()
        assert len({tuple(data_of(member)) for member in members}) == 1
        assert len(data_of(members[0])) == 30


@pytest.mark.parametrize("count", range(2, 8))
def test_a_crash_after_every_packet_of_a_message(count: int) -> None:
    """All survivors have it whole, or none has any of it; what others sent is not touched."""
    for ordered in range(count + 1):
        ring = SimRing(count, max_packet_bytes=100)
        anna, bert, carl = (ring.join(who, first_number=0xFFF0) for who in (ANNA, BERT, CARL))
        ring.run()
        carl.send(b"c" * (92 * count))
        assert ring.order(CARL, ordered) == ordered
        anna.send(b"a" * 300)
        bert.send(b"b")
        assert ring.order(ANNA, ordered) <= 4  # of the four packets
        ring.deliver(BERT, 2)
        ring.crash(CARL)
        ring.run()
        whole = ordered == count
        for member in (anna, bert):
            assert sorted({data[:1] for data in data_of(member)}) == [b"a", b"b", b"c"][: 2 + whole]
            assert len(data_of(member)) == 2 + whole
        assert data_of(anna) == data_of(bert)


@pytest.mark.parametrize("ordered", range(4))
def test_a_join_in_mid_message(ordered: int) -> None:
    """Who joins gets the message from its beginning under a new number, or not at all."""
    ring = SimRing(1, max_packet_bytes=100)
    anna = ring.join(ANNA, first_number=0xFFFF)
    anna.send(b"a" * 250)
    ring.order(ANNA, ordered)
    bert = ring.join(BERT)
    ring.run()
    assert data_of(anna) == [b"a" * 250]
    assert data_of(bert) == ([] if ordered == 3 else [b"a" * 250])


def test_who_comes_back_under_its_old_id_finds_nothing_of_its_forerunner() -> None:
    ring = SimRing(1, max_packet_bytes=100)
    anna, _ = ring.join(ANNA), ring.join(BERT, first_number=0xFFF0)
    ring.run()
    ring.members[BERT].send(b"old" * 100)
    ring.order(BERT, 2)
    ring.crash(BERT)
    again = ring.join(BERT, first_number=0xFFF0)
    again.send(b"new" * 100)
    ring.run()
    assert data_of(anna) == data_of(again) == [b"new" * 100]
    with pytest.raises(UsageError, match="is a member already"):
        ring.join(BERT)


def test_parts_go_on_by_themselves_and_come_together() -> None:
    ring = SimRing(3)
    anna, bert, carl = (ring.join(who) for who in (ANNA, BERT, CARL))
    ring.run()
    ring.partition((CARL,))
    for member in (anna, bert, carl):
        member.send(member.process_id.encode())
    ring.run()
    ring.heal()
    anna.send(b"all")
    ring.run()
    assert data_of(carl) == [CARL.encode(), b"all"]
    assert data_of(anna) == data_of(bert)
    assert sorted(data_of(anna)) == [ANNA.encode(), BERT.encode(), b"all"]
    views = [event.members for event in carl.events if isinstance(event, ViewChanged)]
    assert views[-2:] == [(CARL,), (ANNA, BERT, CARL)]


def test_a_slow_member_gets_the_same_later() -> None:
    ring = SimRing(3, max_packet_bytes=100)
    anna, bert = ring.join(ANNA), ring.join(BERT)
    ring.run()
    bert.paused = True
    anna.send(b"a" * 500)
    anna.send(b"b")
    ring.run()
    assert data_of(anna) == [b"a" * 500, b"b"] and data_of(bert) == []
    bert.paused = False
    ring.run()
    assert data_of(bert) == data_of(anna)


def test_lost_and_doubled_packets_cost_messages_but_spoil_none() -> None:
    ring = SimRing(5, max_packet_bytes=100, loss=0.05, duplication=0.3)
    anna, bert = ring.join(ANNA), ring.join(BERT)
    messages = [b"%04d" % n * 50 for n in range(300)]
    for message in messages:
        anna.send(message, qos=QoS.UNRELIABLE)
    ring.run()
    found = data_of(bert)
    assert set(found) <= set(messages) and 100 < len(found) < 300
    assert bert.layer.dropped[Drop.REPEAT] > 10
    assert any(isinstance(event, Aborted) for event in bert.events)


@pytest.mark.parametrize("seed", range(30))
def test_a_ring_that_doubles_what_it_orders_is_survived(seed: int) -> None:
    ring = SimRing(seed, max_packet_bytes=100, ordered_duplication=0.3)
    members = [ring.join(who, first_number=0xFFF0) for who in (ANNA, BERT)]
    messages = [b"%04d" % n * 50 for n in range(20)]
    for message in messages:
        members[0].send(message)
        ring.step()
    ring.join(CARL)
    ring.run()
    assert data_of(members[0]) == data_of(members[1])
    assert sorted(data_of(members[0])) == messages


def test_requests_over_the_ring() -> None:
    ring = SimRing(5)
    anna, bert, carl = (ring.join(who) for who in (ANNA, BERT, CARL))
    ring.run()
    anna.request(b"who?", want=Want.ALL, timeout_s=1.0)
    assert ring.order(ANNA, 9) == 1
    for member in (bert, carl):
        assert ring.deliver(member.process_id, 9) == 1
        (asked,) = (e for e in member.events if isinstance(e, Delivered) and e.reply_requested)
        member.send(member.process_id.encode(), reply_to=asked.message_id)
    ring.run()
    (done,) = (event for event in anna.events if isinstance(event, RequestDone))
    assert (done.reason, done.replies) == ("all", 2)
    assert ring.now < 1.0


def test_a_run_that_does_not_end_says_so() -> None:
    ring = SimRing()
    ring.join(ANNA).send(b"a" * 10_000)
    with pytest.raises(RuntimeError, match="after 3 steps"):
        ring.run(3)
