"""What is followed of a capture's packets while their states go by, and left for the steps behind.

A record changes while its packets come. Once it is noted it is final, and may be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

from wireyard.layers.records import Position, Record, Violation, position_of

__all__ = [
    "BEHIND",
    "SMALLEST_WINDOW",
    "UNSEEN",
    "Attempt",
    "Breach",
    "Client",
    "Fact",
    "Link",
    "Message",
    "Position",
    "Subscribed",
    "ValueChange",
    "content_of",
    "may_exceed",
    "position_of",
    "violation_of",
]

BEHIND: Final = (1 << 63) - 1
"""The offset of what comes behind all packets of a stream: its end."""
_AT_PUBREL: Final = 2
"""The QoS at which a broker has a message with PUBREL."""
_ADDED_BYTES: Final = 16
"""What a broker may add to a message: packet, subscription and alias identifiers."""
SMALLEST_WINDOW: Final = 10
"""Messages in flight at which a broker may wait for acknowledgements: the smallest in use."""
UNSEEN: Final = "unseen"
"""What ended a connection, where that may have been before the capture."""
_HASH_BYTES: Final = 32
"""Of SHA-256, which most processors do faster than any other hash that cannot be forged."""


class Client(NamedTuple):
    """Who is at the other end of a broker's connection."""

    source: str
    server: str
    name: str
    """The client id, or what stands for it; unique within source and server."""
    endpoint: str
    client_id: str | None
    """As told; null or empty where the client left it to the broker."""


class ValueChange(NamedTuple):
    """A value that a message set, or deleted if it is empty."""

    client: Client
    topic: str
    payload: bytes
    qos: int
    sent: Position
    at: Position
    """When the broker had it."""
    accepted: Position | None
    """When the broker had shown that; between `sent` and then it may be the value, or not."""
    expires_s: int | None
    length: int
    """Bytes of the PUBLISH."""


class Fact(NamedTuple):
    """What a packet did to a flow; `upward` is from the client to the broker."""

    kind: str
    client_id: str
    upward: bool
    packet_id: int | None
    at: Position


@dataclass(slots=True, eq=False)
class Link(Record):
    """One connection that a client logged in on, or tried to."""

    client: Client
    opened: Position
    """Its CONNECT, or the first of its packets that was captured."""
    begun: bool = False
    """Whether its CONNECT was captured."""
    version: int = 0
    user: str | None = None
    status: int | None = None
    resumed: bool | None = None
    keep_alive: int | None = None
    fresh: bool = True
    """Whether it began with a clean start."""
    persistent: bool = True
    """Whether the session outlives the connection."""
    expires_s: int | None = None
    """After how long it ends then; None is never."""
    maximum_packet_size: int | None = None
    packets: int = 0
    bytes: int = 0
    last: Position | None = None
    closed: Position | None = None
    """The packet or the FIN that ended it."""
    until: Position | None = None
    """The last packet at which it was open for certain, once it has ended."""
    ended_by: str = "open"
    accepted: Position | None = None
    """CONNACK."""
    damaged: bool = False
    """Whether bytes of it are missing or belong to no packet."""
    in_flight: tuple[int, int] = (0, 0)
    """Messages of the client, and to it, that were on their way at the end."""
    served_as: tuple[str, ...] = ()
    """Who messages to it went to: see `Subscribed.served_as`."""
    answered: Position | None = None
    """Its last request that the broker answered: all that it was to get before that came."""


@dataclass(slots=True, eq=False)
class Message(Record):
    """A message that a client sent, or its will."""

    origin: str
    sent: Position
    client: Client
    topic: str
    content: bytes
    """Its payload, or what stands for it: see `content_of`."""
    qos: int
    retain: bool
    value: bytes | None
    """With RETAIN the payload, until the value it sets is noted."""
    length: int = 0
    expires_s: int | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    malformed: bool = False
    accepted: Position | None = None
    """What shows that the broker took it: PUBACK, PUBCOMP, or a later answer to its client."""
    released: Position | None = None
    """PUBREL; of a will the last packet of its connection."""
    refused: int | None = None
    again: list[Position] = field(default_factory=list)
    """Where it was sent again."""
    copies: int = 1
    """How often the broker may have taken it for a message of its own."""
    is_repeated: bool = False
    """Whether its first copy at QoS 1 was sent before the capture, or by a client not known."""

    @property
    def key(self) -> str:
        """The message key."""
        return self.sent.key

    @property
    def start(self) -> Position:
        """From when on it can be delivered.

        For a will that is the last packet of its connection: brokers count a delay in whole
        seconds.
        """
        if self.origin == "will" and self.released is not None:
            return self.released
        return self.sent

    @property
    def taken(self) -> Position | None:
        """When a broker has it, at QoS 2 with PUBREL; None if it refuses it or never has."""
        if self.refused is not None or self.malformed:
            return None
        if self.origin == "will":
            return self.accepted
        return self.released if self.qos == _AT_PUBREL else self.sent

    def change(self) -> ValueChange | None:
        """Return what it does to the retained value of its topic, if anything."""
        at = self.taken
        if self.value is None or at is None:
            return None
        common = self.client, self.topic, self.value, self.qos, self.sent, at
        return ValueChange(*common, self.accepted, self.expires_s, self.length)


@dataclass(slots=True, eq=False)
class Attempt(Record):
    """A message that a broker delivered to a client."""

    at: Position
    client: Client
    topic: str
    content: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...] = ()
    redelivered: bool = False
    count: int = 1
    acknowledged: Position | None = None
    refused: int | None = None
    lost_ack: bool = False
    abandoned: bool = False
    """Whether its session ended before it was acknowledged."""
    untraced: bool = False
    """Whether its connection ended before that, and nobody knows whose session it was."""
    may_be_live: bool = False
    """Whether a subscription that was not seen may ask for RETAIN as published."""
    setter: Position | None = None
    """Where the message was sent that set the retained value it has."""
    is_live: bool = True
    """Whether it came because it was sent, and not because of a new subscription."""


@dataclass(slots=True, eq=False)
class Subscribed(Record):
    """A subscription from SUBSCRIBE until it ended."""

    client: Client
    filter: str
    group: str | None
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    asked: Position
    granted: Position
    since: Position
    """Where the client asked for it first, if it asked again and again; no two have the same."""
    leaving: Position | None = None
    """The UNSUBSCRIBE, or whatever else may end it."""
    gone: Position | None = None
    """From when on it matches nothing."""
    version: int = 4
    known: bool = True
    """Whether all other subscriptions of its session were seen."""
    gets_values: bool = True
    """Whether the retained values that it matches are sent for it."""
    maximum_packet_size: int | None = None
    confirmed: Position | None = None
    """The broker's answer to a later request, when it kept nothing back for a full window."""

    @property
    def served_as(self) -> str:
        """Who messages go to: the client, or all that share the filter."""
        return self.filter if self.group else self.client.name


class Breach(NamedTuple):
    """A rule that was broken on a connection whose client id a later packet may still assign."""

    rule: str
    text: str
    link: Link
    by_client: bool
    """Whether the client broke it, and not the broker."""
    at: Position
    message_key: str | None = None

    @property
    def violation(self) -> Violation:
        """The violation by the client id that the connection has now."""
        return violation_of(
            self.rule, self.text, self.link.client, self.by_client, self.at, self.message_key
        )


def violation_of(
    rule: str, text: str, client: Client, by_client: bool, at: Position, message_key: str | None
) -> Violation:
    """Return a violation by a client, or by the broker that it is connected to."""
    endpoint = client.endpoint if by_client else client.server
    return Violation(rule, text, at, endpoint, client.client_id, message_key)


def may_exceed(maximum_packet_size: int | None, topic: str, length: int) -> bool:
    """Return whether a message of a length may be above the largest packet that a client takes."""
    most = maximum_packet_size
    return most is not None and len(topic) + length + _ADDED_BYTES > most


def content_of(payload: bytes) -> bytes:
    """Return what stands for a payload where it is only compared: itself, or its hash if long."""
    if len(payload) < _HASH_BYTES:
        return payload
    return sha256(payload).digest()
