"""The states of a ring's member as tables, no logic: its own phase, its ballot, an address.

A table maps a state and an event to the next state and to an action. A pair that is not in its
table cannot happen, and looking it up is an error of ours.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

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
    PROMISE = "promise, and tell what it holds"
    ACCEPT = "remember the proposal"
    ENTER = "deliver the view"
    CHANGE = "deliver up to the cut, then the view"
    FAIL = "fail with the reason"
    CLOSE = "close all connections"


_CHANGING = {
    PhaseEvent.INSTALL: (Phase.MEMBER, Action.CHANGE),
    PhaseEvent.EXCLUDED: (Phase.GONE, Action.FAIL),
    PhaseEvent.EXPIRE: (Phase.GONE, Action.FAIL),
    PhaseEvent.LEAVE: (Phase.GONE, Action.CLOSE),
}

PHASES: Final = MappingProxyType(
    {
        (Phase.JOINING, PhaseEvent.ALONE): (Phase.MEMBER, Action.FOUND),
        (Phase.JOINING, PhaseEvent.INSTALL): (Phase.MEMBER, Action.ENTER),
        (Phase.JOINING, PhaseEvent.EXPIRE): (Phase.GONE, Action.FAIL),
        (Phase.JOINING, PhaseEvent.LEAVE): (Phase.GONE, Action.CLOSE),
        (Phase.MEMBER, PhaseEvent.PREPARE): (Phase.PROMISED, Action.PROMISE),
        **{(Phase.MEMBER, event): cell for event, cell in _CHANGING.items()},
        (Phase.PROMISED, PhaseEvent.PREPARE): (Phase.PROMISED, Action.PROMISE),
        (Phase.PROMISED, PhaseEvent.ACCEPT): (Phase.ACCEPTED, Action.ACCEPT),
        **{(Phase.PROMISED, event): cell for event, cell in _CHANGING.items()},
        # What it accepted goes with the new promise, for it may have been decided.
        (Phase.ACCEPTED, PhaseEvent.PREPARE): (Phase.PROMISED, Action.PROMISE),
        **{(Phase.ACCEPTED, event): cell for event, cell in _CHANGING.items()},
    }
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


BALLOTS: Final = MappingProxyType(
    {
        (Stage.IDLE, BallotEvent.CALL): (Stage.PREPARING, BallotAction.PREPARE),
        (Stage.PREPARING, BallotEvent.ALL): (Stage.ACCEPTING, BallotAction.PROPOSE),
        (Stage.PREPARING, BallotEvent.OVER): (Stage.IDLE, BallotAction.DROP),
        (Stage.ACCEPTING, BallotEvent.ALL): (Stage.IDLE, BallotAction.DECIDE),
        (Stage.ACCEPTING, BallotEvent.OVER): (Stage.IDLE, BallotAction.DROP),
    }
)
"""A ballot of this member. Its voters never change: with others it is another ballot."""


class Address(StrEnum):
    """What a joining process knows of another address of the ring."""

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


ADDRESSES: Final = MappingProxyType(
    {
        (state, event): after
        for state in Address
        for event, after in (
            (AddressEvent.REFUSED, Address.FREE),
            # Somebody came since; nothing is known of a process that only accepts.
            (AddressEvent.CONNECTED, Address.UNKNOWN if state is Address.FREE else state),
            (AddressEvent.JOINER, Address.JOINING),
            (AddressEvent.MEMBER, Address.RING),
        )
    }
)
"""Another address. The first of the joining ones forms the ring, once none is unknown."""
