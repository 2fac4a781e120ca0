"""The three tables, cell by cell, on members that the walk of a simulated network brings there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from tests.ring.sequencer.network import SETTINGS, Network
from wireyard.layers.states import StateTable
from wireyard_ring.sequencer.changes import Changes, Decision
from wireyard_ring.sequencer.contacts import Contacts
from wireyard_ring.sequencer.frames import (
    Accept,
    Accepted,
    Ballot,
    Beat,
    Frame,
    Install,
    Member,
    Prepare,
    Promise,
    Refuse,
)
from wireyard_ring.sequencer.links import Links
from wireyard_ring.sequencer.member import Failed, NewView, RingMember
from wireyard_ring.sequencer.peers import Peers
from wireyard_ring.sequencer.states import (
    ADDRESSES,
    BALLOTS,
    PHASES,
    Action,
    Address,
    AddressEvent,
    BallotAction,
    BallotEvent,
    Phase,
    PhaseEvent,
    Stage,
)

ADDRESS_LIST = tuple(f"10.0.0.{n}:7077" for n in range(1, 5))
ME, ANNA, BERT = Member(0, 10), Member(1, 11), Member(2, 12)
OTHER_RING, RING = 98, 99


@pytest.mark.parametrize(
    ("table", "states", "events", "over"),
    [
        (PHASES, Phase, PhaseEvent, {Phase.GONE}),
        (BALLOTS, Stage, BallotEvent, set()),
        (ADDRESSES, Address, AddressEvent, set()),
    ],
)
def test_a_table_has_its_states_and_nothing_leads_out_of_the_last(
    table: StateTable[StrEnum, StrEnum, Any],
    states: type[StrEnum],
    events: type[StrEnum],
    over: set[StrEnum],
) -> None:
    legal = set(table)
    assert legal <= set(itertools.product(states, events))
    assert {state for state, _ in legal} == set(states) - over
    assert {event for _, event in legal} == set(events)
    for pair in set(itertools.product(states, events)) - legal:
        with pytest.raises(KeyError):
            table[pair]


# --- a member -------------------------------------------------------------------------------


def member_in(phase: Phase) -> RingMember:
    """Return a member of a ring with Anna, or a process that joins one, in a phase."""
    member = RingMember(ADDRESS_LIST, ME.place, ME.incarnation, 0.0, SETTINGS)
    if phase is not Phase.JOINING:
        member._on_frame(ANNA, Install(RING, 5, 0, (ANNA, ME)))
    if phase in (Phase.PROMISED, Phase.ACCEPTED):
        member._on_frame(ANNA, Prepare(5, 1, ANNA.place, (ANNA, ME)))
    if phase is Phase.ACCEPTED:
        member._on_frame(ANNA, Accept(5, 1, ANNA.place, 0, (ANNA, ME, BERT)))
    return member


def expire(member: RingMember) -> None:
    member.pause()
    member._traffic._holding.held = 1
    now = 0.0
    while not member.gone and now < 4 * SETTINGS.give_up_s:
        now += SETTINGS.tick_s
        member.handle_timer(now)


def refuse_all(member: RingMember) -> None:
    for place in (1, 2, 3):
        member.refused(place, 0.0)


HAPPENINGS: dict[PhaseEvent, Callable[[RingMember], object]] = {
    PhaseEvent.ALONE: refuse_all,
    PhaseEvent.PREPARE: lambda one: one._on_frame(ANNA, Prepare(5, 2, ANNA.place, (ANNA, ME))),
    PhaseEvent.ACCEPT: lambda one: one._on_frame(
        ANNA, Accept(5, 1, ANNA.place, 0, (ANNA, ME, BERT))
    ),
    PhaseEvent.INSTALL: lambda one: one._on_frame(ANNA, Install(RING, 6, 0, (ANNA, ME, BERT))),
    PhaseEvent.EXCLUDED: lambda one: one._on_frame(ANNA, Beat(1, 0, RING, 6, False, 0)),
    PhaseEvent.EXPIRE: expire,
    PhaseEvent.LEAVE: lambda one: one.leave(),
}


BEFORE_THE_END = [(phase, event) for phase in Phase for event in PhaseEvent
                  if phase is not Phase.GONE]  # fmt: skip


@pytest.mark.parametrize("cell", BEFORE_THE_END, ids=": ".join)
def test_phases(cell: tuple[Phase, PhaseEvent]) -> None:
    phase, event = cell
    member = member_in(phase)
    assert member.phase is phase
    events = [member.next_event() for _ in range(phase is not Phase.JOINING)]
    assert all(isinstance(one, NewView) for one in events)
    HAPPENINGS[event](member)
    if cell not in PHASES:
        assert (member.phase, member.next_event()) == (phase, None)
        return
    after, action, _ = PHASES[cell]
    assert member.phase is after
    found = member.next_event()
    if action in (Action.FOUND, Action.ENTER, Action.CHANGE):
        assert isinstance(found, NewView) and found.members[0] in ADDRESS_LIST[:2]
    elif action is Action.FAIL:
        assert isinstance(found, Failed) and found.reason
    else:
        assert found is None
    assert (member.get_timer() is None) == (after is Phase.GONE)


def test_a_process_that_has_failed_takes_nothing_and_does_nothing() -> None:
    member = member_in(Phase.MEMBER)
    member.leave()
    member.next_event()
    while member.next_command() is not None:
        pass
    member.connected(1, 1.0)
    member.refused(1, 1.0)
    member.lost(1, 1.0)
    member.handle_timer(2.0)
    member.leave()
    assert not member.send(b"x", 3.0)
    assert (member.next_command(), member.next_event(), member.get_timer()) == (None, None, None)


# --- a ballot -------------------------------------------------------------------------------


def changes() -> Changes:
    """Return the changes of a view of three, of which Bert is silent since 1.0."""
    contacts = Contacts(patience_s=1.0)
    found = Changes(ME, contacts, 0.2)
    contacts.installed((ME, ANNA, BERT), 0.0)
    found.begin(5, (ME, ANNA, BERT))
    contacts.beat(ANNA, Beat(1, 1, RING, 5, True, 0), 1.0, grant=True)
    return found


def answer(at: Changes, *frames: Frame, now: float = 1.5) -> list[tuple[Member, Frame]]:
    sent: list[tuple[Member, Frame]] = []
    for frame in frames:
        for voter in (ME, ANNA):
            sent += at.receive(Phase.MEMBER, voter, frame, 0, now)[1]  # type: ignore[arg-type]
    return sent


PROMISE, ACCEPTED = Promise(5, 1, 0, 7, 0, 0, 0, ()), Accepted(5, 1, 0)


@pytest.mark.parametrize("cell", BALLOTS, ids=": ".join)
def test_ballots(cell: tuple[Stage, BallotEvent]) -> None:
    stage, event = cell
    at = changes()
    before = {Stage.IDLE: (), Stage.PREPARING: (), Stage.ACCEPTING: (PROMISE,)}[stage]
    sent = [] if stage is Stage.IDLE else at.review(Phase.MEMBER, (), 1.5)
    answer(at, *before)
    after, action, _ = BALLOTS[cell]
    if event is BallotEvent.CALL:
        sent = at.review(Phase.MEMBER, (), 1.5)
        assert sent == [(one, Prepare(5, 1, 0, (ME, ANNA))) for one in (ME, ANNA)]
    elif event is BallotEvent.OVER:
        assert answer(at, Refuse(5, 3, 1)) == []
    elif stage is Stage.PREPARING:
        sent = answer(at, PROMISE)
        assert sent == [(one, Accept(5, 1, 0, 7, (ME, ANNA))) for one in (ME, ANNA)]
    else:
        answer(at, ACCEPTED)
    assert (at._own.stage if at._own else Stage.IDLE) is after
    decided = action is BallotAction.DECIDE
    assert at.decision == (Decision((ME, ANNA), 7) if decided else None)


def test_a_ballot_that_was_refused_is_followed_by_a_greater_one() -> None:
    at = changes()
    at.review(Phase.MEMBER, (), 1.5)
    answer(at, Refuse(5, 3, 1))
    assert at.review(Phase.MEMBER, (), 1.5)[0][1] == Prepare(5, 4, 0, (ME, ANNA))


def test_what_a_voter_accepted_before_is_proposed_again() -> None:
    at = changes()
    at.review(Phase.MEMBER, (Member(3, 13),), 1.5)
    at.receive(Phase.MEMBER, ME, PROMISE, 0, 1.5)
    older = Promise(5, 1, 0, 9, 1, 2, 4, (ME, BERT))
    sent = at.receive(Phase.MEMBER, ANNA, older, 0, 1.5)[1]
    assert sent[0][1] == Accept(5, 1, 0, 4, (ME, BERT))


def test_a_voter_promises_in_no_lesser_ballot_and_without_nobody_who_may_live() -> None:
    at = changes()
    phase, sent = at.receive(Phase.MEMBER, ANNA, Prepare(5, 1, 1, (ME, ANNA)), 7, 0.5)
    assert (phase, sent) == (Phase.MEMBER, [])  # Bert was heard at 0.0
    phase, sent = at.receive(Phase.MEMBER, ANNA, Prepare(5, 2, 1, (ME, ANNA)), 7, 1.1)
    assert (phase, sent) == (Phase.PROMISED, [(ANNA, Promise(5, 2, 1, 7, 0, 0, 0, ()))])
    phase, sent = at.receive(phase, BERT, Prepare(5, 1, 2, (ME, ANNA, BERT)), 7, 1.2)
    assert sent == [(BERT, Refuse(5, *Ballot(2, 1)))]


# --- an address -----------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ADDRESSES, ids=": ".join)
def test_addresses(cell: tuple[Address, AddressEvent]) -> None:
    state, event = cell
    links = Links(2, ME, 64)
    at = Peers(ADDRESS_LIST[:2], ME, links, Contacts(1.0), SETTINGS)
    at._states[1] = state
    at.apply(1, event)
    after = ADDRESSES[cell].state
    assert at.alone == (after in (Address.FREE, Address.JOINING))
    assert at.silent == ([1] if after is Address.UNKNOWN else [])


def test_of_two_that_join_at_once_the_first_forms_the_ring() -> None:
    for seed in range(20):
        network = Network(seed, 4)
        processes = [network.start(place) for place in (3, 1, 2)]
        network.run(1.0)
        views = {event.ring for one in processes for event in one.events
                 if isinstance(event, NewView)}  # fmt: skip
        assert len(views) == 1
        assert {one.events[-1] for one in processes} == {processes[0].events[-1]}
