"""What the layer tells its application, in the order in which it happened."""

from __future__ import annotations

from typing import Any, NamedTuple

from wireyard.errors import DecodeError
from wireyard.layers.rmp.qos import QoS

__all__ = [
    "Aborted",
    "Delivered",
    "Event",
    "Foreign",
    "MalformedPacket",
    "MessageId",
    "Replied",
    "RequestDone",
    "Stalled",
    "UnknownLayer",
    "ViewChanged",
]


class MessageId(NamedTuple):
    """What a reply says it replies to."""

    source: str
    """Process that sent the message, as ``address:port``."""
    number: int


class Delivered(NamedTuple):
    """A whole message, at its place."""

    ring: str
    source: str
    """Process that sent it, as ``address:port``."""
    qos: QoS
    layer: int
    client: int | None
    """Client of the source that sent it."""
    domain: int | None
    number: int | None
    reply_to: MessageId | None
    reply_requested: bool
    data: bytes
    destinations: tuple[int, ...]
    """Clients of this process that it is for; empty where the ring has no clients here."""

    @property
    def message_id(self) -> MessageId | None:
        """What a reply to this message names; None where none can (errata R21)."""
        return None if self.number is None else MessageId(self.source, self.number)


class Foreign(NamedTuple):
    """A message of another protocol, at its place; its data begins with the typing word."""

    ring: str
    source: str
    data: bytes


class UnknownLayer(NamedTuple):
    """Messages for a layer that is not registered here were dropped; `dropped` since the last."""

    ring: str
    source: str
    layer: int
    dropped: int


class MalformedPacket(NamedTuple):
    """A packet was dropped whole."""

    ring: str
    source: str
    error: DecodeError


class Aborted(NamedTuple):
    """A message that will not be delivered: what arrived of it was dropped."""

    ring: str
    source: str
    number: int
    reason: str
    packets: int
    """Packets that were dropped with it."""
    place: Any = None
    """Where its first packet was seen, if whoever gave the packets said so."""


class Stalled(NamedTuple):
    """An unfinished message holds back others; only the ring can help, by expelling its source."""

    ring: str
    source: str
    number: int


class ViewChanged(NamedTuple):
    """The members of a ring, from this place in the order of messages on."""

    ring: str
    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]


class Replied(NamedTuple):
    """A reply to a request of this process."""

    request: int
    reply: Delivered


class RequestDone(NamedTuple):
    """A request has ended, and why."""

    request: int
    reason: str
    replies: int


Event = (
    Delivered
    | Foreign
    | UnknownLayer
    | MalformedPacket
    | Aborted
    | Stalled
    | ViewChanged
    | Replied
    | RequestDone
)
