"""What is noted down of a capture's packets while their states go by, to be joined afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["End", "Fact", "Handed", "Link", "Message", "Moment", "Subscribed", "Violation"]


class Moment(NamedTuple):
    """A packet's place: in the order of the capture, in time, in its stream."""

    place: int
    ns: int | None
    frame: int | None
    source: str
    stream: str
    offset: int

    @property
    def time(self) -> int:
        """What tells earlier from later: the time, the order where there is none."""
        return self.place if self.ns is None else self.ns

    @property
    def key(self) -> str:
        """How a message is called whose packet this is."""
        return f"{self.stream}@{self.offset}"


class End(NamedTuple):
    """Where a capture shows the end of a stream: its FIN or RST."""

    source: str
    stream: str
    frame: int
    captured_ns: int


class Fact(NamedTuple):
    """What a packet did to a flow; `upward` is from the client to the broker."""

    kind: str
    client_id: str
    upward: bool
    packet_id: int | None
    at: Moment


@dataclass(slots=True, eq=False)
class Link:
    """One connection that a client logged in on, or tried to."""

    broker: tuple[str, str]
    """Source and server endpoint: what a client id is unique within."""
    client: str
    server: str
    opened: Moment
    version: int = 0
    client_id: str | None = None
    """As told; null or empty where the client left it to the broker."""
    name: str = ""
    """The client id, or what stands for it."""
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
    last: Moment | None = None
    closed: Moment | None = None
    """The packet or the FIN that ended it."""
    until: int | None = None
    """Place of the last packet at which it was open for certain, once it has ended."""
    ended_by: str = "open"
    accepted: Moment | None = None
    """CONNACK."""
    damaged: bool = False
    """Whether bytes of it are missing or belong to no packet."""
    in_flight: tuple[int, int] = (0, 0)
    """Messages of the client, and to it, that were on their way at the end."""


@dataclass(slots=True, eq=False)
class Message:
    """A message that a client sent, or its will."""

    origin: str
    sent: Moment
    link: Link
    topic: str
    payload: bytes
    qos: int
    retain: bool
    length: int = 0
    expires_s: int | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    accepted: Moment | None = None
    """What shows that the broker took it: PUBACK, PUBCOMP, or a later answer to its client."""
    released: Moment | None = None
    """PUBREL; of a will the last packet of its connection."""
    refused: int | None = None
    malformed: bool = False
    again: list[Moment] = field(default_factory=list)
    """Where it was sent again."""
    copies: int = 1
    """How often the broker may have taken it for a message of its own."""

    @property
    def key(self) -> str:
        """The message key."""
        return self.sent.key


@dataclass(slots=True, eq=False)
class Handed:
    """A message that a broker handed to a client."""

    at: Moment
    link: Link
    topic: str
    payload: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...] = ()
    redelivered: bool = False
    count: int = 1
    acknowledged: Moment | None = None
    refused: int | None = None
    lost_ack: bool = False
    abandoned: bool = False
    """Whether its session ended before it was acknowledged."""
    value: Message | None = None
    """The message that set the retained value it has."""


@dataclass(slots=True, eq=False)
class Subscribed:
    """A subscription from SUBSCRIBE until it ended."""

    name: str
    filter: str
    group: str | None
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    link: Link
    asked: Moment
    granted: Moment
    leaving: int | None = None
    """Place of the UNSUBSCRIBE, or of whatever else may end it."""
    gone: int | None = None
    """Place from which on it matches nothing."""


@dataclass(slots=True, eq=False)
class Violation:
    """A rule that was broken."""

    rule: str
    text: str
    link: Link
    at: Moment
    message: Message | None = None
