"""The three tables, cell by cell: what happens in each pair, and that there are no others."""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Any

import pytest

from tests.layers.rmp.make import (
    ME,
    PACKET_BYTES,
    RING,
    YOU,
    events,
    layer,
    packets,
    part,
    plain,
    reassembly,
    receive,
)
from wireyard.layers.rmp import Delivered, Drop, MessageId, Order, QoS, Want
from wireyard.layers.rmp.events import Aborted, RequestDone
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.outgoing import Outgoing, OwnMessage
from wireyard.layers.rmp.packets import Draft
from wireyard.layers.rmp.reassembly import Whole
from wireyard.layers.rmp.states import (
    ABORT_REASONS,
    ARRIVING,
    DONE_REASONS,
    OWN,
    REQUESTS,
    Arrival,
    Arriving,
    Asking,
    Effect,
    Own,
    OwnEvent,
    RequestEvent,
    Step,
)
from wireyard.layers.states import StateTable

TOTAL, NONE = QoS.TOTALLY_ORDERED, QoS.UNRELIABLE


@pytest.mark.parametrize(
    ("table", "states", "happenings", "over"),
    [
        (ARRIVING, Arriving, Arrival, set()),
        (OWN, Own, OwnEvent, {Own.BACK}),
        (REQUESTS, Asking, RequestEvent, {Asking.DONE}),
    ],
)
def test_a_table_has_its_states_and_nothing_leads_out_of_the_last(
    table: StateTable[StrEnum, StrEnum, Any],
    states: type[StrEnum],
    happenings: type[StrEnum],
    over: set[StrEnum],
) -> None:
    legal = set(table)
    assert {*table.states, *(cell.state for cell in table.values())} <= set(states)
    assert legal <= set(itertools.product(states, happenings))
    assert {state for state, _ in legal} == set(states) - over
    assert {happening for _, happening in legal} == set(happenings)
    for pair in set(itertools.product(states, happenings)) - legal:
        with pytest.raises(KeyError):
            table[pair]


def test_every_abort_and_every_end_has_a_reason() -> None:
    aborts = {
        arrival for (_, arrival), cell in ARRIVING.items() if Step.ABORT in (cell.effect or ())
    }
    assert set(ABORT_REASONS) == aborts
    ends = {event for (_, event), cell in REQUESTS.items() if cell.state is Asking.DONE}
    assert set(DONE_REASONS) == ends
    assert len(set(DONE_REASONS.values())) == len(ends)


# --- messages that arrive -------------------------------------------------------------------

OPEN = [part(1, 1, 3, b"a")]
"""What makes number 1 open."""
BIG = PACKET_BYTES * 20
ARRIVALS: dict[tuple[Arriving, Arrival], tuple[list[Any], list[bytes], list[str], dict[Drop, int]]]
ARRIVALS = {
    # What arrives; what is ready, why something is aborted, and what is counted then.
    (Arriving.ABSENT, Arrival.ONLY): ([part(1, 1, 1, b"a")], [b"a"], [], {}),
    (Arriving.ABSENT, Arrival.FIRST): (OPEN, [], [], {}),
    (Arriving.ABSENT, Arrival.REFUSED): (
        [part(1, 1, 99, b"a")], [], ["too_big"], {Drop.TOO_BIG: 1},
    ),
    (Arriving.ABSENT, Arrival.LATER): ([part(1, 2, 3, b"b")], [], [], {Drop.ORPHAN: 1}),
    (Arriving.ABSENT, Arrival.OVERTAKING): (
        [part(1, 2, 3, b"b"), part(1, 1, 3, b"a")], [], [], {},
    ),
    (Arriving.OPEN, Arrival.ONLY): (
        [*OPEN, part(1, 1, 1, b"x")], [b"x"], ["restarted"], {Drop.ABORTED: 1},
    ),
    (Arriving.OPEN, Arrival.FIRST): (
        [*OPEN, part(1, 1, 3, b"x")], [], ["restarted"], {Drop.ABORTED: 1},
    ),
    (Arriving.OPEN, Arrival.REFUSED): (
        [*OPEN, part(1, 1, 99, b"x")], [], ["restarted", "too_big"],
        {Drop.ABORTED: 1, Drop.TOO_BIG: 1},
    ),
    (Arriving.OPEN, Arrival.NEXT): ([*OPEN, part(1, 2, 3, b"b")], [], [], {}),
    (Arriving.OPEN, Arrival.LAST): (
        [*OPEN, part(1, 2, 3, b"b"), part(1, 3, 3, b"c")], [b"abc"], [], {},
    ),
    (Arriving.OPEN, Arrival.REPEAT): (
        [*OPEN, part(1, 2, 3, b"b"), part(1, 2, 3, b"b")], [], [], {Drop.REPEAT: 1},
    ),
    (Arriving.OPEN, Arrival.CONFLICT): (
        [*OPEN, part(1, 2, 4, b"b")], [], ["inconsistent"], {Drop.ABORTED: 1, Drop.ORPHAN: 1},
    ),
    (Arriving.OPEN, Arrival.GAP): (
        [*OPEN, part(1, 3, 3, b"c")], [], ["gap"], {Drop.ABORTED: 1, Drop.ORPHAN: 1},
    ),
    (Arriving.OPEN, Arrival.OVERSIZE): (
        [*OPEN, part(1, 2, 3, bytes(BIG))], [], ["too_big"], {Drop.ABORTED: 1, Drop.ORPHAN: 1},
    ),
    (Arriving.OPEN, Arrival.OVERFLOW): (
        [*OPEN, *(part(n, 1, 3, b"") for n in range(2, 6))], [], ["overflow"], {Drop.ABORTED: 1},
    ),
    (Arriving.OPEN, Arrival.VIEW): ([*OPEN, "view"], [], ["view"], {Drop.ABORTED: 1}),
    (Arriving.OPEN, Arrival.EXPIRY): ([*OPEN, "later"], [], ["timeout"], {Drop.ABORTED: 1}),
}  # fmt: skip


@pytest.mark.parametrize("cell", ARRIVING, ids=": ".join)
def test_messages_that_arrive(cell: tuple[Arriving, Arrival]) -> None:
    happenings, ready, reasons, counts = ARRIVALS[cell]
    without_order = cell[1] in (Arrival.EXPIRY, Arrival.OVERTAKING)
    found, drops = reassembly(
        Order.NONE if without_order else Order.TOTAL, max_message_bytes=BIG, max_unfinished=4
    )
    for happening in happenings:
        match happening:
            case "view":
                found.view()
            case "later":
                found.handle_timer(5.0)
            case (fields, data):
                found.receive(YOU, NONE if without_order else TOTAL, fields, data, 0.0)
    assert [whole.data for whole in found.output if isinstance(whole, Whole)] == ready
    aborted = [event for event in found.output if isinstance(event, Aborted)]
    assert [(event.source, event.reason) for event in aborted] == [(YOU, why) for why in reasons]
    assert drops.counts == counts
    others = 4 if cell[1] is Arrival.OVERFLOW else 0
    assert len(found) - others == (ARRIVING[cell].state is Arriving.OPEN)
    if not len(found):
        assert found.idle and not found.held_bytes


def test_every_cell_of_arriving_was_walked() -> None:
    assert set(ARRIVALS) == set(ARRIVING)


# --- own messages ---------------------------------------------------------------------------

OWN_WALKS: dict[tuple[Own, OwnEvent], list[int | str]] = {
    # Packets that come back, views and drops; the last of them is what the cell is about.
    (Own.SENT, OwnEvent.PACKET): ["3 given", 1],
    (Own.SENT, OwnEvent.LAST): ["only", "1 given", 1],
    (Own.SENT, OwnEvent.VIEW): ["3 given", "view"],
    (Own.PARTLY, OwnEvent.PACKET): ["3 given", 1, 2],
    (Own.PARTLY, OwnEvent.LAST): ["3 given", 1, 2, 3],
    (Own.PARTLY, OwnEvent.VIEW): ["3 given", 1, "view"],
    (Own.PARTLY, OwnEvent.NO_ROOM): ["2 given", 1, "no room"],
    (Own.TAIL, OwnEvent.PACKET): ["3 given", 1, "view", 2],
    (Own.TAIL, OwnEvent.VIEW): ["3 given", 1, "view", "view"],
    # With the last packet on the way, or at once if there is none.
    (Own.TAIL, OwnEvent.DRAINED): ["2 given", 1, "view", 2],
}


def own_message(walk: list[int | str]) -> tuple[Outgoing, OwnMessage, Numbers]:
    """Return the message after all of a walk but its last step."""
    numbers = Numbers(7)
    number = numbers.allocate(Hold.ON_THE_WAY, 0.0)
    data = b"data" if walk[0] == "only" else bytes(2 * PACKET_BYTES)
    message = OwnMessage(number, Draft(data), TOTAL, 1 if walk[0] == "only" else 3)
    outgoing = Outgoing(PACKET_BYTES, numbers)
    outgoing.send(message)
    for happening in walk[:-1]:
        own_step(outgoing, happening)
    return outgoing, message, numbers


def own_step(outgoing: Outgoing, happening: int | str) -> None:
    match happening:
        case int():
            outgoing.packet_back(7, happening)
        case "view":
            outgoing.view()
        case "no room":
            outgoing.no_room(7)
        case str() if happening.endswith("given"):
            for _ in range(int(happening[0])):
                assert outgoing.next_packet() is not None


@pytest.mark.parametrize("cell", OWN, ids=": ".join)
def test_own_messages(cell: tuple[Own, OwnEvent]) -> None:
    walk = OWN_WALKS[cell]
    outgoing, message, numbers = own_message(walk)
    assert message.state is cell[0]
    own_step(outgoing, walk[-1])
    state, effect, _ = OWN[cell]
    assert message.state is state
    assert len(numbers) == (effect is not Effect.FREE)
    assert outgoing.waiting_bytes == (0 if effect is Effect.FREE else len(message.draft.data))
    match effect:
        case Effect.STOP:
            assert outgoing.next_packet() is None
        case Effect.RESEND:
            assert (message.sent, message.back) == (0, set())
            again = outgoing.next_packet()
            assert again == (TOTAL, next(message.draft.packets(7, 3, PACKET_BYTES)))


@pytest.mark.parametrize("cut", ["view", "no room"])
def test_a_cut_message_with_no_packet_on_the_way_is_sent_again_at_once(cut: str) -> None:
    outgoing, message, _ = own_message(["1 given", 1, cut, "-"])
    assert (message.state, message.sent) == (Own.SENT, 0)
    assert outgoing.next_packet() is not None


def test_every_cell_of_own_was_walked() -> None:
    assert set(OWN_WALKS) == set(OWN)


# --- requests -------------------------------------------------------------------------------

THIRD = "10.0.0.3:7001"
_Asked = tuple[int | Want, list[Any], str | None]
ASKED: dict[tuple[Asking, RequestEvent], _Asked] = {
    # What is wanted; replies by who, and what else happens; why it is done.
    (Asking.ASKED, RequestEvent.REPLY): (2, [YOU], None),
    (Asking.ASKED, RequestEvent.ENOUGH): (1, [YOU], "enough"),
    (Asking.ASKED, RequestEvent.ALL): (Want.ALL, ["third leaves", YOU], "all"),
    (Asking.ASKED, RequestEvent.SENTINEL): (Want.STREAM, ["end"], "sentinel"),
    (Asking.ASKED, RequestEvent.DEPARTURE): (1, ["all leave"], "members_left"),
    (Asking.ASKED, RequestEvent.TIMEOUT): (1, [9.0], "timeout"),
    (Asking.ASKED, RequestEvent.CANCEL): (1, ["cancel"], "cancelled"),
    (Asking.ANSWERED, RequestEvent.REPLY): (Want.STREAM, [YOU, THIRD], None),
    (Asking.ANSWERED, RequestEvent.ENOUGH): (2, [YOU, THIRD], "enough"),
    (Asking.ANSWERED, RequestEvent.ALL): (Want.ALL, [YOU, THIRD], "all"),
    (Asking.ANSWERED, RequestEvent.SENTINEL): (Want.STREAM, [YOU, "end"], "sentinel"),
    (Asking.ANSWERED, RequestEvent.TOO_MANY): (Want.STREAM, [YOU] * 4, "too_many"),
    (Asking.ANSWERED, RequestEvent.DEPARTURE): (2, [YOU, "all leave"], "members_left"),
    (Asking.ANSWERED, RequestEvent.TIMEOUT): (Want.STREAM, [YOU, 1.0, YOU, 2.0], "timeout"),
    (Asking.ANSWERED, RequestEvent.STALL): (Want.STREAM, [YOU, 1.5], "stall"),
    (Asking.ANSWERED, RequestEvent.CANCEL): (2, [YOU, "cancel"], "cancelled"),
}


@pytest.mark.parametrize("cell", REQUESTS, ids=": ".join)
def test_requests(cell: tuple[Asking, RequestEvent]) -> None:
    want, happenings, reason = ASKED[cell]
    at = layer(members=(ME, YOU, THIRD), max_replies=4)
    request = at.request(
        RING, b"?", now=0.0, want=want, timeout_s=2.0, stall_s=1.5, sentinel=lambda data: not data
    )
    receive(at, *packets(at), source=ME)
    (asked,) = events(at)
    assert isinstance(asked, Delivered) and asked.message_id is not None
    now = 0.0
    replies = 0
    for happening in happenings:
        match happening:
            case float():
                now = happening
                at.handle_timer(now)
            case "third leaves":
                at.view(RING, (ME, YOU), now=now)
            case "all leave":
                at.view(RING, (ME,), now=now)
            case "cancel":
                at.cancel(request, now)
            case who:
                source, data = (YOU, b"") if who == "end" else (who, b"!")
                receive(at, reply(asked.message_id, data), source=source, now=now)
                replies += 1
    done = [event for event in events(at) if isinstance(event, RequestDone)]
    assert done == ([RequestDone(request, reason, replies)] if reason else [])
    at.cancel(request, now)  # whatever it was, it has ended once
    assert len(done) + len(events(at)) == 1


def reply(to: MessageId, data: bytes) -> bytes:
    return plain(data, reply_message_number=to.number, reply_source=to.source)


def test_every_cell_of_requests_was_walked() -> None:
    assert set(ASKED) == set(REQUESTS)
