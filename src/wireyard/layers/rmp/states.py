"""The states of the layer as tables, no logic: messages that arrive, own messages, requests.

A pair of state and event that is not in its table cannot happen, and looking it up is an error of
ours.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from wireyard.layers.states import Cell, StateTable

__all__ = [
    "ABORT_REASONS",
    "ARRIVING",
    "DONE_REASONS",
    "OWN",
    "REQUESTS",
    "Arrival",
    "Arriving",
    "Asking",
    "Effect",
    "Own",
    "OwnEvent",
    "RequestEvent",
    "Step",
]


class Arriving(StrEnum):
    """What a receiver has under a message number of a source."""

    ABSENT = "absent"
    OPEN = "open"
    """Some of its packets. A message that has all of them is known by its place alone: its number
    may be used again while it waits for the messages before it."""


class Arrival(StrEnum):
    """What can happen to it."""

    ONLY = "packet 1 of 1"
    FIRST = "packet 1"
    REFUSED = "packet 1, over a bound"
    LATER = "a later packet, unknown number"
    NEXT = "a new packet"
    LAST = "the last one missing"
    REPEAT = "a packet again"
    CONFLICT = "a packet that contradicts"
    GAP = "a packet too early"
    OVERSIZE = "a packet, over the message's bound"
    OVERFLOW = "no room left"
    VIEW = "a new view"
    EXPIRY = "its time is over"


class Step(StrEnum):
    """What is done then."""

    ABORT = "abort the old message"
    BEGIN = "begin at the tail"
    KEEP = "keep the packet"
    COMPLETE = "complete"
    WHOLE = "a whole message"
    REFUSE = "refuse"
    ORPHAN = "drop the packet"
    IGNORE = "ignore the packet"


ARRIVING: Final[StateTable[Arriving, Arrival, tuple[Step, ...]]] = StateTable(
    {
        Arriving.ABSENT: {
            Arrival.ONLY: Cell(Arriving.ABSENT, (Step.WHOLE,)),
            Arrival.FIRST: Cell(Arriving.OPEN, (Step.BEGIN,)),
            Arrival.REFUSED: Cell(Arriving.ABSENT, (Step.REFUSE,)),
            # A late joiner has no first packet, and nobody has the first ones of before the view.
            Arrival.LATER: Cell(Arriving.ABSENT, (Step.ORPHAN,)),
        },
        Arriving.OPEN: {
            # Packet 1 again: its sender was interrupted and began anew.
            Arrival.ONLY: Cell(Arriving.ABSENT, (Step.ABORT, Step.WHOLE)),
            Arrival.FIRST: Cell(Arriving.OPEN, (Step.ABORT, Step.BEGIN)),
            Arrival.REFUSED: Cell(Arriving.ABSENT, (Step.ABORT, Step.REFUSE)),
            Arrival.NEXT: Cell(Arriving.OPEN, (Step.KEEP,)),
            Arrival.LAST: Cell(Arriving.ABSENT, (Step.KEEP, Step.COMPLETE)),
            Arrival.REPEAT: Cell(Arriving.OPEN, (Step.IGNORE,)),
            Arrival.CONFLICT: Cell(Arriving.ABSENT, (Step.ABORT, Step.ORPHAN)),
            Arrival.GAP: Cell(Arriving.ABSENT, (Step.ABORT, Step.ORPHAN)),
            Arrival.OVERSIZE: Cell(Arriving.ABSENT, (Step.ABORT, Step.ORPHAN)),
            Arrival.OVERFLOW: Cell(Arriving.ABSENT, (Step.ABORT,)),
            Arrival.VIEW: Cell(Arriving.ABSENT, (Step.ABORT,)),
            Arrival.EXPIRY: Cell(Arriving.ABSENT, (Step.ABORT,)),
        },
    },
    Arrival,
)
"""A message number of a source, at a receiver."""

ABORT_REASONS: Final = MappingProxyType(
    {
        Arrival.ONLY: "restarted",
        Arrival.FIRST: "restarted",
        Arrival.REFUSED: "restarted",
        Arrival.CONFLICT: "inconsistent",
        Arrival.GAP: "gap",
        Arrival.OVERSIZE: "too_big",
        Arrival.OVERFLOW: "overflow",
        Arrival.VIEW: "view",
        Arrival.EXPIRY: "timeout",
    }
)
"""Why a message is aborted, by what happened."""


class Own(StrEnum):
    """How far an own message with a number has come back to its sender."""

    SENT = "sent"
    """None of its packets is back."""
    PARTLY = "partly back"
    TAIL = "cut, its tail on the way"
    """Every member has dropped what it had of it, and will drop the packets on the way."""
    BACK = "back"
    """All of it; the number is free."""


class OwnEvent(StrEnum):
    """What can happen to it."""

    PACKET = "a packet of it"
    LAST = "the last one missing"
    VIEW = "a new view"
    NO_ROOM = "receivers have no room left"
    DRAINED = "none of it is on the way"


class Effect(StrEnum):
    """What is done then."""

    NOTHING = "nothing"
    STOP = "give the ring no more of it"
    RESEND = "send it again, from packet 1"
    FREE = "free the number"


OWN: Final[StateTable[Own, OwnEvent, Effect]] = StateTable(
    {
        Own.SENT: {
            OwnEvent.PACKET: Cell(Own.PARTLY, Effect.NOTHING),
            OwnEvent.LAST: Cell(Own.BACK, Effect.FREE),  # packet 1 of 1
            # The ring will order all of it in the new view: sent again, it would be there twice.
            OwnEvent.VIEW: Cell(Own.SENT, Effect.NOTHING),
        },
        Own.PARTLY: {
            OwnEvent.PACKET: Cell(Own.PARTLY, Effect.NOTHING),
            OwnEvent.LAST: Cell(Own.BACK, Effect.FREE),
            # Every member dropped what it had of it, at the same packet.
            OwnEvent.VIEW: Cell(Own.TAIL, Effect.STOP),
            OwnEvent.NO_ROOM: Cell(Own.TAIL, Effect.STOP),
        },
        Own.TAIL: {
            OwnEvent.PACKET: Cell(Own.TAIL, Effect.NOTHING),
            OwnEvent.VIEW: Cell(Own.TAIL, Effect.NOTHING),
            # Now no packet of it can be mistaken for one of the second time.
            OwnEvent.DRAINED: Cell(Own.SENT, Effect.RESEND),
        },
    },
    OwnEvent,
)
"""An own message that has a number, on a ring that gives its sender every packet back."""


class Asking(StrEnum):
    """How far a request has come."""

    ASKED = "asked"
    ANSWERED = "answered"
    """Somebody has replied, others still may."""
    DONE = "done"


class RequestEvent(StrEnum):
    """What can happen to it."""

    REPLY = "a reply, more wanted"
    ENOUGH = "the last reply wanted"
    ALL = "the last member's reply"
    SENTINEL = "the reply that ends a stream"
    TOO_MANY = "a reply over the bound"
    DEPARTURE = "nobody left who could"
    TIMEOUT = "its time is over"
    STALL = "no reply for too long"
    CANCEL = "cancelled"


_ENDS = (
    RequestEvent.ENOUGH,
    RequestEvent.ALL,
    RequestEvent.SENTINEL,
    RequestEvent.DEPARTURE,
    RequestEvent.TIMEOUT,
    RequestEvent.CANCEL,
)

REQUESTS: Final[StateTable[Asking, RequestEvent, str]] = StateTable(
    {
        Asking.ASKED: {RequestEvent.REPLY: Asking.ANSWERED, **dict.fromkeys(_ENDS, Asking.DONE)},
        # A stall is silence after a reply, and one reply is under every bound.
        Asking.ANSWERED: {
            RequestEvent.REPLY: Asking.ANSWERED,
            **dict.fromkeys((*_ENDS, RequestEvent.TOO_MANY, RequestEvent.STALL), Asking.DONE),
        },
    },
    RequestEvent,
)
"""A request. One that is done is forgotten, and a reply to it is a message like any other."""

DONE_REASONS: Final = MappingProxyType(
    {
        RequestEvent.ENOUGH: "enough",
        RequestEvent.ALL: "all",
        RequestEvent.SENTINEL: "sentinel",
        RequestEvent.TOO_MANY: "too_many",
        RequestEvent.DEPARTURE: "members_left",
        RequestEvent.TIMEOUT: "timeout",
        RequestEvent.STALL: "stall",
        RequestEvent.CANCEL: "cancelled",
    }
)
"""Why a request is done, by what happened."""
