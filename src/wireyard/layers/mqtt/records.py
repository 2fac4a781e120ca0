"""Records that stages pass on, and the output buffers of the observer.

A record changes while its packets come. Once it is in a buffer it is final, and may be pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from wireyard.layers.mqtt.packet_row import Properties
from wireyard.layers.records import Position, Record
from wireyard.layers.stages import KeyedRecord, Order, keyed_record

if TYPE_CHECKING:
    from wireyard.layers.mqtt.connection import Connection
    from wireyard.layers.mqtt.session import Direction
    from wireyard.layers.mqtt.violations import Breach

__all__ = [
    "BEHIND",
    "DELIVERED",
    "SMALLEST_WINDOW",
    "SUBSCRIBED",
    "UNSEEN",
    "VALUES",
    "Attempt",
    "Change",
    "Client",
    "ConnectionRecord",
    "FlowEvent",
    "Message",
    "Output",
    "Subscribed",
    "TopicKey",
    "Tracker",
    "ValueChange",
    "content_of",
    "may_exceed",
    "properties_of",
    "value_order",
    "value_records",
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
"""What ended a connection, where that was not captured."""
_HASH_BYTES: Final = 32
"""Of SHA-256, which most processors do faster than any other hash that cannot be forged."""


TopicKey = tuple[str, str, str]
"""Source, server and topic."""


class Client(NamedTuple):
    """Who is at the other end of a broker's connection."""

    source: str
    server: str
    name: str
    """The client id, or what stands for it; unique within source and server."""
    endpoint: str
    client_id: str | None
    """As in CONNECT; null or empty where the client left it to the broker."""


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


class FlowEvent(NamedTuple):
    """What a packet did to a flow; `upward` is from the client to the broker."""

    kind: str
    client_id: str
    upward: bool
    packet_id: int | None
    at: Position


@dataclass(slots=True, eq=False)
class ConnectionRecord(Record):
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

    @property
    def may_go_on(self) -> bool:
        """Whether the session from before may go on with it; CONNACK may not say."""
        return not self.fresh if self.resumed is None else self.resumed


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
    """Whether its connection ended before that, and its client id is unknown."""
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


def may_exceed(maximum_packet_size: int | None, topic: str, length: int) -> bool:
    """Return whether a message of a length may be above the largest packet that a client takes."""
    most = maximum_packet_size
    return most is not None and len(topic) + length + _ADDED_BYTES > most


def content_of(payload: bytes) -> bytes:
    """Return what stands for a payload where it is only compared: itself, or its hash if long."""
    if len(payload) < _HASH_BYTES:
        return payload
    return sha256(payload).digest()


# --- retained values, for the stage that keeps them ------------------------------------------

VALUES: Final = "values"
_SET, _CHANGES, SUBSCRIBED, DELIVERED = range(4)
"""The order of records of the same time."""


class Change(NamedTuple):
    """That a message was sent which sets the value later, with its PUBREL."""

    sent: Position
    accepted: Position | None


def value_records(change: ValueChange) -> Iterator[KeyedRecord]:
    """Pass on what a message did to the value of its topic, and from when on it may have."""
    key = (*change.client[:2], change.topic)
    yield keyed_record((VALUES, key, value_order(change.at, _SET), change))
    if change.sent < change.at:
        span = Change(change.sent, change.accepted)
        yield KeyedRecord(VALUES, key, value_order(span.sent, _CHANGES), span)


def value_order(at: Position, rank: int) -> Order:
    """Return where a record stands among those of its topic."""
    return at.time, rank, *at.order


class Tracker(Protocol):
    """Who tracks the messages of all connections, packet by packet or many at once."""

    def new_direction(self, known: bool) -> Direction:
        """Return one direction of a new session."""

    def accept_before(self, connection: Connection, request: Position, answer: Position) -> None:
        """Record that the broker took all that was published before a request it answered."""

    def accept_all(self, connection: Connection, at: Position) -> None:
        """Record that the broker took all that was published."""

    def leave(self, connection: Connection) -> None:
        """Note the messages of a connection of which nothing shows that the broker took them."""

    def over(self, records: Iterable[Any]) -> None:
        """Note messages of which nothing more can come."""


class Output:
    """What was found and is final; whoever reads on may take it away.

    Parameters
    ----------
    on_event
        Is given every `FlowEvent`.
    """

    def __init__(self, on_event: Callable[[FlowEvent], None] | None = None) -> None:
        self.connections: list[ConnectionRecord] = []
        self.messages: list[Message] = []
        """Those that clients sent, and wills that were published."""
        self.waiting: list[Message] = []
        """Wills whose time had not come when their clients were last seen."""
        self.changes: list[ValueChange] = []
        """Of messages that are held longer than the values they set."""
        self.attempts: list[Attempt] = []
        self.subscriptions: list[Subscribed] = []
        self.violations: list[Breach] = []
        self.dropped: Counter[str] = Counter()
        """By reason, what was not kept in mind."""
        self._on_event = on_event
        self.tracker: Tracker
        """Set by the tracker itself."""

    def fact(
        self,
        kind: str | None,
        connection: ConnectionRecord,
        upward: bool,
        packet_id: int | None,
        at: Position,
    ) -> None:
        """Return what a packet did to a flow, if anything."""
        if kind is not None and self._on_event is not None:
            self._on_event(FlowEvent(kind, connection.client.name, upward, packet_id, at))


_NUMBERS: Final = frozenset(
    {"message_expiry_interval", "session_expiry_interval", "receive_maximum", "topic_alias"}
    | {"topic_alias_maximum", "maximum_packet_size", "will_delay_interval"}
)


_NONE: Final = cast("Properties", MappingProxyType({}))


def properties_of(rows: Sequence[Mapping[str, Any]] | None) -> Properties:
    """Return the properties of a packet by name; of one that comes again, all in a list.

    Numbers are numbers, whether they come as rows or as columns have them.
    """
    if not rows:
        return _NONE
    found: dict[str, Any] = {}
    for one in rows:
        name, value = one["name"], one["value"]
        if name == "subscription_identifier":
            found.setdefault(name, []).append(int(value))
        elif name in _NUMBERS and value is not None:
            found[name] = int(value)
        elif name == "correlation_data" and isinstance(value, str):
            found[name] = bytes.fromhex(value)
        else:
            found[name] = value
    return cast("Properties", found)
