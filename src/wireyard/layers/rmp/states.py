"""The states of the layer as tables without logic: incoming messages, own messages, requests.

A pair of state and event that is not in its table cannot happen; looking it up is a bug.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from wireyard.layers.states import Cell, StateTable


class Arriving(StrEnum):
    """The state of a message number of a source at a receiver."""

    ABSENT = "absent"
    OPEN = "open"
    """Some packets of the message have arrived. A message with all its packets has left this table:
    its number may be reused while it waits for the messages before it."""


class Arrival(StrEnum):
    """The events of a message number."""

    ONLY = "packet 1 of 1"
    FIRST = "packet 1"
    REFUSED = "packet 1, over a bound"
    OVERTAKING = "a later packet without order, unknown number"
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
    """The actions of a transition."""

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
            # Without order it may have overtaken packet 1.
            Arrival.OVERTAKING: Cell(Arriving.OPEN, (Step.BEGIN,)),
            # A late joiner lacks first packets, and all members lack those from before the view.
            Arrival.LATER: Cell(Arriving.ABSENT, (Step.ORPHAN,)),
        },
        Arriving.OPEN: {
            # Packet 1 again: the sender was interrupted and began anew.
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
"""The reason why a message is aborted, by event."""


class Own(StrEnum):
    """The state of an own message with a number, whose packets come back to the sender."""

    SENT = "sent"
    """None of its packets has come back."""
    PARTLY = "partly back"
    TAIL = "cut, its tail on the way"
    """Every member has dropped its packets so far, and will drop the packets on the way."""
    BACK = "back"
    """All packets have come back; the number is free."""


class OwnEvent(StrEnum):
    """The events of an own message."""

    PACKET = "a packet of it"
    LAST = "the last one missing"
    VIEW = "a new view"
    NO_ROOM = "receivers have no room left"
    DRAINED = "none of it is on the way"


class Effect(StrEnum):
    """The action of a transition."""

    NOTHING = "nothing"
    STOP = "give the ring no more of it"
    RESEND = "send it again, from packet 1"
    FREE = "free the number"


OWN: Final[StateTable[Own, OwnEvent, Effect]] = StateTable(
    {
        Own.SENT: {
            OwnEvent.PACKET: Cell(Own.PARTLY, Effect.NOTHING),
            OwnEvent.LAST: Cell(Own.BACK, Effect.FREE),  # packet 1 of 1
            # The ring will order all of it in the new view; sent again, it would arrive twice.
            OwnEvent.VIEW: Cell(Own.SENT, Effect.NOTHING),
        },
        Own.PARTLY: {
            OwnEvent.PACKET: Cell(Own.PARTLY, Effect.NOTHING),
            OwnEvent.LAST: Cell(Own.BACK, Effect.FREE),
            # Every member has dropped its packets so far, at the same packet.
            OwnEvent.VIEW: Cell(Own.TAIL, Effect.STOP),
            OwnEvent.NO_ROOM: Cell(Own.TAIL, Effect.STOP),
        },
        Own.TAIL: {
            OwnEvent.PACKET: Cell(Own.TAIL, Effect.NOTHING),
            OwnEvent.VIEW: Cell(Own.TAIL, Effect.NOTHING),
            # Now no packet can be mistaken for one of the second attempt.
            OwnEvent.DRAINED: Cell(Own.SENT, Effect.RESEND),
        },
    },
    OwnEvent,
)
"""An own message with a number, on a ring that delivers every packet to its sender too."""


class Asking(StrEnum):
    """The state of a request."""

    ASKED = "asked"
    ANSWERED = "answered"
    """A reply has come, and others may follow."""
    DONE = "done"


class RequestEvent(StrEnum):
    """The events of a request."""

    REPLY = "a reply, more wanted"
    ENOUGH = "the last reply wanted"
    ALL = "the last member's reply"
    SENTINEL = "the reply that ends a stream"
    TOO_MANY = "a reply over the bound"
    DEPARTURE = "no member left that could reply"
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
        # A stall needs a reply before it, and one reply never exceeds the bound.
        Asking.ANSWERED: {
            RequestEvent.REPLY: Asking.ANSWERED,
            **dict.fromkeys((*_ENDS, RequestEvent.TOO_MANY, RequestEvent.STALL), Asking.DONE),
        },
    },
    RequestEvent,
)
"""A request. It is removed when it is done; then a reply to it is a message like any other."""

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
"""The reason why a request is done, by event."""
