"""Packets between two members: where they go, and what is sent again or finds no room."""

from __future__ import annotations

import pytest

from wireyard.errors import LimitExceeded, Malformed
from wireyard_ring.sequencer import Member, Settings, Write
from wireyard_ring.sequencer.frames import (
    Commit,
    Frame,
    FrameReader,
    Held,
    Order,
    PacketFrame,
    Submit,
)
from wireyard_ring.sequencer.links import Links
from wireyard_ring.sequencer.traffic import Traffic

ANNA, BERT = Member(0, 10), Member(1, 11)
SETTINGS = Settings(max_packet_bytes=64, window_bytes=400)


def member(me: Member) -> tuple[Traffic, Links]:
    """Return a member of a view in which Anna is the sequencer, connected to the other one."""
    links = Links(2, me, 64)
    traffic = Traffic(me, links, SETTINGS)
    traffic.begin(1, (ANNA, BERT))
    other = BERT if me == ANNA else ANNA
    links.up(links[other.place], other, 0.0)
    traffic.start(other, 0)
    return traffic, links


def written(links: Links) -> list[Frame]:
    reader = FrameReader(64)
    found: list[Frame] = []
    while (command := links.next_command()) is not None:
        assert isinstance(command, Write)
        found += reader.receive(command.data)
    return found


def test_what_all_members_hold_is_delivered_and_nothing_before() -> None:
    anna, links = member(ANNA)
    assert anna.send(b"a")
    anna.receive(BERT, Submit(1, 1, b"b"))
    anna.acknowledge()
    orders = [Order(1, 1, 0, 1, b"a"), Order(1, 2, 1, 1, b"b")]
    assert written(links) == [Commit(1, 0), *orders]
    assert anna.delivered == []
    anna.receive(BERT, Held(1, 1))
    assert written(links) == [Commit(1, 1)]
    assert anna.delivered == orders[:1] and not anna.outgoing.packets


def test_a_member_acknowledges_unless_its_application_does_not_read() -> None:
    bert, links = member(BERT)
    assert written(links) == [Held(1, 0)]
    bert.paused = True
    bert.receive(ANNA, Order(1, 1, 0, 1, b"a"))
    bert.acknowledge()
    assert written(links) == [] and bert.unread
    bert.paused = False
    bert.acknowledge()
    assert written(links) == [Held(1, 1)] and not bert.unread


def test_a_connection_that_is_new_begins_with_what_the_member_may_not_have() -> None:
    anna, links = member(ANNA)
    for n in range(3):
        anna.receive(BERT, Submit(1, n + 1, bytes([n])))
    anna.acknowledge()
    anna.receive(BERT, Held(1, 1))
    written(links)
    links.failed(links[1], 0.0)
    links.up(links[1], BERT, 1.0)
    anna.start(BERT, 1)
    # What is committed comes first: else there may be no room for what follows.
    assert written(links) == [Commit(1, 1), Order(1, 2, 1, 2, b"\1"), Order(1, 3, 1, 3, b"\2")]
    anna.receive(BERT, Submit(1, 2, b"\1"))
    anna.receive(BERT, Submit(1, 4, b"\3"))
    assert written(links) == [Order(1, 4, 1, 4, b"\3")]


def test_after_a_promise_nothing_of_the_view_changes_and_the_rest_is_submitted_again() -> None:
    bert, links = member(BERT)
    bert.send(b"b")
    bert.receive(ANNA, Order(1, 1, 1, 1, b"b"))
    written(links)
    bert.close()
    bert.receive(ANNA, Order(1, 2, 0, 1, b"a"))
    bert.receive(ANNA, Commit(1, 1))
    bert.acknowledge()
    bert.send(b"c")
    assert (bert.held, bert.delivered, written(links)) == (1, [], [])
    bert.deliver(0)  # the cut: Anna was the only other one that held it
    bert.begin(2, (BERT,))
    found = [(order.view, order.number, order.data) for order in bert.delivered]
    assert found == [(2, 1, b"b"), (2, 2, b"c")]


@pytest.mark.parametrize(
    ("me", "frames", "text"),
    [
        (BERT, [Order(1, 2, 0, 1, b"")], "'Order number' is 2, the next is 1"),
        (ANNA, [Submit(1, 1, b""), Submit(1, 3, b"")], "'Submit serial' is 3, the next is 2"),
        (ANNA, [Held(1, 1)], "'Held number' is 1, the last is 0"),
    ],
)
def test_what_does_not_fit_is_one_error(me: Member, frames: list[PacketFrame], text: str) -> None:
    traffic, _ = member(me)
    with pytest.raises(Malformed, match=text):
        for frame in frames:
            traffic.receive(BERT if me == ANNA else ANNA, frame)


def test_a_sender_and_a_sequencer_have_windows() -> None:
    bert, _ = member(BERT)
    assert [bert.send(bytes(64)) for _ in range(4)] == [True, True, True, False]
    with pytest.raises(LimitExceeded, match="'Order data' is over"):
        for n in range(10):
            bert.receive(ANNA, Order(1, n + 1, 0, n + 1, bytes(64)))
    anna, _ = member(ANNA)
    with pytest.raises(LimitExceeded, match="'Submit data' is over the window"):
        for n in range(10):
            anna.receive(BERT, Submit(1, n + 1, bytes(64)))
