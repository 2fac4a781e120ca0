"""Events of the layer for its application, in the order in which they happened."""

from __future__ import annotations

from typing import Any, NamedTuple

from wireyard.errors import DecodeError
from wireyard.layers.rmp.qos import QoS


class MessageId(NamedTuple):
    """The identity of a message, by which replies name it."""

    source: str
    """Process that sent the message, as ``address:port``."""
    number: int


class Delivered(NamedTuple):
    """A whole message, in the order of messages."""

    ring: str
    source: str
    """Process that sent it, as ``address:port``."""
    qos: QoS
    layer: int
    client: int | None
    """The sending client of the source process."""
    domain: int | None
    number: int | None
    reply_to: MessageId | None
    reply_requested: bool
    data: bytes
    destinations: tuple[int, ...]
    """Clients of this process that it is for; empty if the ring has no clients here."""

    @property
    def message_id(self) -> MessageId | None:
        """The identity of this message for replies; None if it has none (errata R21)."""
        return None if self.number is None else MessageId(self.source, self.number)


class Piece(NamedTuple):
    """Data of a message that is still arriving; see `MessagingLayer.register_layer`.

    The pieces of a message come in order, without gaps. If an `Aborted` of its number comes before
    the last piece, the message is void: its sender may send it again from the beginning.
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
    """Whether the message ends with this piece."""
    destinations: tuple[int, ...]
    """Clients that the message was for when its first piece was delivered."""

    @property
    def message_id(self) -> MessageId:
        """The identity of its message for replies."""
        return MessageId(self.source, self.number)


class Foreign(NamedTuple):
    """A message of another protocol, in the order of messages; data begins with the typing word."""

    ring: str
    source: str
    data: bytes

    @property
    def typing(self) -> int:
        """The typing word."""
        return int.from_bytes(self.data[:2], "big")


class UnknownLayer(NamedTuple):
    """Messages for an unregistered layer were dropped; `dropped` counts since the last report."""

    ring: str
    source: str
    layer: int
    dropped: int


class MalformedPacket(NamedTuple):
    """A packet was dropped as a whole because it is malformed."""

    ring: str
    source: str
    error: DecodeError


class Aborted(NamedTuple):
    """A message that will not be delivered; its packets so far were dropped."""

    ring: str
    source: str
    number: int
    reason: str
    packets: int
    """The number of packets that were dropped with it."""
    place: Any = None
    """The `place` of its first packet, if `Reassembly.receive` was called with one."""


class Stalled(NamedTuple):
    """An unfinished message holds back others, until the ring expels its source."""

    ring: str
    source: str
    number: int


class ViewChanged(NamedTuple):
    """The members of a ring from this point in the order of messages on."""

    ring: str
    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]


class Replied(NamedTuple):
    """A reply to a request of this process."""

    request: int
    reply: Delivered


class RequestDone(NamedTuple):
    """The end of a request, with its reason."""

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
