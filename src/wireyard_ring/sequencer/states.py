"""The states of a ring's member as tables without logic: its phase, its ballot, an address.

A pair of state and event that is not in its table cannot happen; looking it up is a bug.
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
    """The phase of a member in the ring and in a change of its view."""

    JOINING = "joining"
    MEMBER = "member"
    """It is in a view; packets are held, acknowledged and delivered."""
    PROMISED = "promised"
    """It has promised a ballot; no more packets of the view are held or acknowledged."""
    ACCEPTED = "accepted"
    """It has accepted the next view in that ballot."""
    GONE = "gone"


class PhaseEvent(StrEnum):
    """The events of a member."""

    ALONE = "no other address has a ring"
    PREPARE = "a ballot it may promise to"
    ACCEPT = "the proposal of that ballot"
    INSTALL = "a decided view with it"
    EXCLUDED = "a later view without it"
    EXPIRE = "too long without progress"
    LEAVE = "the application leaves"


class Action(StrEnum):
    """The action of a member in a transition."""

    FOUND = "form a view of its own"
    PROMISE = "promise, and send what it holds"
    ACCEPT = "keep the proposal"
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
        # The new promise contains the accepted view, because that may have been decided.
        Phase.ACCEPTED: {PhaseEvent.PREPARE: Cell(Phase.PROMISED, Action.PROMISE), **_CHANGING},
    },
    PhaseEvent,
)
"""A member. Only a view or the end leads out of a promise: later packets are never held."""


class Stage(StrEnum):
    """The stage of this member's own ballot."""

    IDLE = "no ballot"
    PREPARING = "waiting for promises"
    ACCEPTING = "waiting for acceptances"


class BallotEvent(StrEnum):
    """The events of a ballot."""

    CALL = "the view has to change"
    ALL = "every voter has answered"
    OVER = "its time is over, or it cannot win"


class BallotAction(StrEnum):
    """The action of the proposer in a transition."""

    PREPARE = "ask the voters for promises"
    PROPOSE = "send what was accepted before, or a new view"
    DECIDE = "install the view at all its members"
    DROP = "drop the ballot"


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
"""A ballot of this member. Its voters never change: other voters need another ballot."""


class Address(StrEnum):
    """The state of another address of the ring, as known to a joining process."""

    UNKNOWN = "unknown"
    FREE = "free"
    """Connections are refused, so no process has the address."""
    JOINING = "joining"
    RING = "in a ring"


class AddressEvent(StrEnum):
    """The events of an address."""

    REFUSED = "a connection was refused"
    CONNECTED = "a connection was accepted"
    JOINER = "a beat of a process without a view"
    MEMBER = "a beat of a process with a view"


ADDRESSES: Final[StateTable[Address, AddressEvent, str]] = StateTable(
    {
        state: {
            AddressEvent.REFUSED: Address.FREE,
            # A process has come; the state of one that only accepts connections is unknown.
            AddressEvent.CONNECTED: Address.UNKNOWN if state is Address.FREE else state,
            AddressEvent.JOINER: Address.JOINING,
            AddressEvent.MEMBER: Address.RING,
        }
        for state in Address
    },
    AddressEvent,
)
"""Another address. Once none is unknown, the first of the joining processes forms the ring."""
