"""Events of the layer for its application, in the order in which they happened."""

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
    "Piece",
    "Replied",
    "RequestDone",
    "Stalled",
    "UnknownLayer",
    "ViewChanged",
]


class MessageId(NamedTuple):
    """A message as a reply names it."""

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
        """The name of this message in a reply; None where none can name it (errata R21)."""
        return None if self.number is None else MessageId(self.source, self.number)


class Piece(NamedTuple):
    """Data of a message that is still arriving, at its place; see `MessagingLayer.register_layer`.

    The pieces of a message follow each other without a gap. Where an `Aborted` of its number comes
    before the last of them, they were no message: its sender may send it again, from the beginning.
    """

    ring: str
    source: str
    """Process that sent it, as ``address:port``."""
    qos: QoS
    layer: int
    client: int | None
    domain: int | None
    number: int
    reply_requested: bool
    offset: int
    """Bytes of the message before this piece."""
    data: bytes
    last: bool
    """Whether the message ends with it."""
    destinations: tuple[int, ...]
    """Clients that the message is for; those of its first piece."""

    @property
    def message_id(self) -> MessageId:
        """The name of its message in a reply."""
        return MessageId(self.source, self.number)


class Foreign(NamedTuple):
    """A message of another protocol, at its place; its data begins with the typing word."""

    ring: str
    source: str
    data: bytes

    @property
    def typing(self) -> int:
        """The typing word."""
        return int.from_bytes(self.data[:2], "big")


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
    """Where its first packet was seen, where its receiver was given that."""


class Stalled(NamedTuple):
    """An unfinished message holds back others, which ends when the ring expels its source."""

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
    | Piece
    | Foreign
    | UnknownLayer
    | MalformedPacket
    | Aborted
    | Stalled
    | ViewChanged
    | Replied
    | RequestDone
)
