"""The states of the layer as tables, no logic: messages that arrive, own messages, requests.

A table maps a state and what happens in it to the next state and to what is done. A pair that is
not in its table cannot happen, and looking it up is an error of ours.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

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


_ABSENT, _OPEN = Arriving.ABSENT, Arriving.OPEN

ARRIVING: Final = MappingProxyType(
    {
        (_ABSENT, Arrival.ONLY): (_ABSENT, (Step.WHOLE,)),
        (_ABSENT, Arrival.FIRST): (_OPEN, (Step.BEGIN,)),
        (_ABSENT, Arrival.REFUSED): (_ABSENT, (Step.REFUSE,)),
        # A late joiner has no first packet, and nobody has the first ones of before the view.
        (_ABSENT, Arrival.LATER): (_ABSENT, (Step.ORPHAN,)),
        # Packet 1 again: its sender was interrupted and began anew.
        (_OPEN, Arrival.ONLY): (_ABSENT, (Step.ABORT, Step.WHOLE)),
        (_OPEN, Arrival.FIRST): (_OPEN, (Step.ABORT, Step.BEGIN)),
        (_OPEN, Arrival.REFUSED): (_ABSENT, (Step.ABORT, Step.REFUSE)),
        (_OPEN, Arrival.NEXT): (_OPEN, (Step.KEEP,)),
        (_OPEN, Arrival.LAST): (_ABSENT, (Step.KEEP, Step.COMPLETE)),
        (_OPEN, Arrival.REPEAT): (_OPEN, (Step.IGNORE,)),
        (_OPEN, Arrival.CONFLICT): (_ABSENT, (Step.ABORT, Step.ORPHAN)),
        (_OPEN, Arrival.GAP): (_ABSENT, (Step.ABORT, Step.ORPHAN)),
        (_OPEN, Arrival.OVERSIZE): (_ABSENT, (Step.ABORT, Step.ORPHAN)),
        (_OPEN, Arrival.OVERFLOW): (_ABSENT, (Step.ABORT,)),
        (_OPEN, Arrival.VIEW): (_ABSENT, (Step.ABORT,)),
        (_OPEN, Arrival.EXPIRY): (_ABSENT, (Step.ABORT,)),
    }
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


OWN: Final = MappingProxyType(
    {
        (Own.SENT, OwnEvent.PACKET): (Own.PARTLY, Effect.NOTHING),
        (Own.SENT, OwnEvent.LAST): (Own.BACK, Effect.FREE),  # packet 1 of 1
        # The ring will order all of it in the new view: sent again, it would be there twice.
        (Own.SENT, OwnEvent.VIEW): (Own.SENT, Effect.NOTHING),
        (Own.PARTLY, OwnEvent.PACKET): (Own.PARTLY, Effect.NOTHING),
        (Own.PARTLY, OwnEvent.LAST): (Own.BACK, Effect.FREE),
        # Every member dropped what it had of it, at the same packet.
        (Own.PARTLY, OwnEvent.VIEW): (Own.TAIL, Effect.STOP),
        (Own.PARTLY, OwnEvent.NO_ROOM): (Own.TAIL, Effect.STOP),
        (Own.TAIL, OwnEvent.PACKET): (Own.TAIL, Effect.NOTHING),
        (Own.TAIL, OwnEvent.VIEW): (Own.TAIL, Effect.NOTHING),
        # Now no packet of it can be mistaken for one of the second time.
        (Own.TAIL, OwnEvent.DRAINED): (Own.SENT, Effect.RESEND),
    }
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


def _ends(state: Asking, *events: RequestEvent) -> dict[tuple[Asking, RequestEvent], Asking]:
    return {(state, event): Asking.DONE for event in events}


_ENDS = (
    RequestEvent.ENOUGH,
    RequestEvent.ALL,
    RequestEvent.SENTINEL,
    RequestEvent.DEPARTURE,
    RequestEvent.TIMEOUT,
    RequestEvent.CANCEL,
)

REQUESTS: Final = MappingProxyType(
    {
        (Asking.ASKED, RequestEvent.REPLY): Asking.ANSWERED,
        **_ends(Asking.ASKED, *_ENDS),
        # A stall is silence after a reply, and one reply is under every bound.
        (Asking.ANSWERED, RequestEvent.REPLY): Asking.ANSWERED,
        **_ends(Asking.ANSWERED, *_ENDS, RequestEvent.TOO_MANY, RequestEvent.STALL),
    }
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
