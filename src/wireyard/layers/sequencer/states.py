"""The states of a ring's member as tables, no logic: its own phase, its ballot, an address.

A pair of state and event that is not in its table cannot happen, and looking it up is an error of
ours.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from wireyard.layers.states import Cell, StateTable

__all__ = [
    "ADDRESSES",
    "BALLOTS",
    "PHASES",
    "Action",
    "Address",
    "AddressEvent",
    "BallotAction",
    "BallotEvent",
    "Phase",
    "PhaseEvent",
    "Stage",
]


class Phase(StrEnum):
    """How far a member is in the ring and in a change of its view."""

    JOINING = "joining"
    MEMBER = "member"
    """In a view; packets are held, acknowledged and delivered."""
    PROMISED = "promised"
    """To a ballot: of this view nothing more is held or acknowledged."""
    ACCEPTED = "accepted"
    """Of that ballot, the next view."""
    GONE = "gone"


class PhaseEvent(StrEnum):
    """What can happen to a member."""

    ALONE = "no other address has a ring"
    PREPARE = "a ballot it may promise to"
    ACCEPT = "the proposal of that ballot"
    INSTALL = "a decided view with it"
    EXCLUDED = "a later view without it"
    EXPIRE = "too long without progress"
    LEAVE = "the application leaves"


class Action(StrEnum):
    """What a member does then."""

    FOUND = "form a view of its own"
    PROMISE = "promise, and send what it holds"
    ACCEPT = "remember the proposal"
    ENTER = "deliver the view"
    CHANGE = "deliver up to the cut, then the view"
    FAIL = "fail with the reason"
    CLOSE = "close all connections"


_CHANGING = {
    PhaseEvent.INSTALL: Cell(Phase.MEMBER, Action.CHANGE),
    PhaseEvent.EXCLUDED: Cell(Phase.GONE, Action.FAIL),
    PhaseEvent.EXPIRE: Cell(Phase.GONE, Action.FAIL),
    PhaseEvent.LEAVE: Cell(Phase.GONE, Action.CLOSE),
}

PHASES: Final[StateTable[Phase, PhaseEvent, Action]] = StateTable(
    {
        Phase.JOINING: {
            PhaseEvent.ALONE: Cell(Phase.MEMBER, Action.FOUND),
            PhaseEvent.INSTALL: Cell(Phase.MEMBER, Action.ENTER),
            PhaseEvent.EXPIRE: Cell(Phase.GONE, Action.FAIL),
            PhaseEvent.LEAVE: Cell(Phase.GONE, Action.CLOSE),
        },
        Phase.MEMBER: {PhaseEvent.PREPARE: Cell(Phase.PROMISED, Action.PROMISE), **_CHANGING},
        Phase.PROMISED: {
            PhaseEvent.PREPARE: Cell(Phase.PROMISED, Action.PROMISE),
            PhaseEvent.ACCEPT: Cell(Phase.ACCEPTED, Action.ACCEPT),
            **_CHANGING,
        },
        # What it accepted goes with the new promise, for it may have been decided.
        Phase.ACCEPTED: {PhaseEvent.PREPARE: Cell(Phase.PROMISED, Action.PROMISE), **_CHANGING},
    },
    PhaseEvent,
)
"""A member. Nothing leads out of a promise but a view: what was not held then never will be."""


class Stage(StrEnum):
    """How far a ballot of this member's own is."""

    IDLE = "no ballot"
    PREPARING = "waiting for promises"
    ACCEPTING = "waiting for acceptances"


class BallotEvent(StrEnum):
    """What can happen to it."""

    CALL = "the view has to change"
    ALL = "every voter has answered"
    OVER = "its time is over, or it cannot win"


class BallotAction(StrEnum):
    """What the proposer does then."""

    PREPARE = "ask the voters for promises"
    PROPOSE = "send what was accepted before, or a new view"
    DECIDE = "install the view at all its members"
    DROP = "forget the ballot"


BALLOTS: Final[StateTable[Stage, BallotEvent, BallotAction]] = StateTable(
    {
        Stage.IDLE: {
            BallotEvent.CALL: Cell(Stage.PREPARING, BallotAction.PREPARE),
        },
        Stage.PREPARING: {
            BallotEvent.ALL: Cell(Stage.ACCEPTING, BallotAction.PROPOSE),
            BallotEvent.OVER: Cell(Stage.IDLE, BallotAction.DROP),
        },
        Stage.ACCEPTING: {
            BallotEvent.ALL: Cell(Stage.IDLE, BallotAction.DECIDE),
            BallotEvent.OVER: Cell(Stage.IDLE, BallotAction.DROP),
        },
    },
    BallotEvent,
)
"""A ballot of this member. Its voters never change: with others it is another ballot."""


class Address(StrEnum):
    """Another address of the ring, as a joining process sees it."""

    UNKNOWN = "unknown"
    FREE = "free"
    """Connections are refused: no process has it."""
    JOINING = "joining"
    RING = "in a ring"


class AddressEvent(StrEnum):
    """What can be learned of it."""

    REFUSED = "a connection was refused"
    CONNECTED = "a connection was accepted"
    JOINER = "a beat of a process without a view"
    MEMBER = "a beat of a process with a view"


ADDRESSES: Final[StateTable[Address, AddressEvent, str]] = StateTable(
    {
        state: {
            AddressEvent.REFUSED: Address.FREE,
            # Somebody came since; nothing is known of a process that only accepts.
            AddressEvent.CONNECTED: Address.UNKNOWN if state is Address.FREE else state,
            AddressEvent.JOINER: Address.JOINING,
            AddressEvent.MEMBER: Address.RING,
        }
        for state in Address
    },
    AddressEvent,
)
"""Another address. The first of the joining ones forms the ring, once none is unknown."""
