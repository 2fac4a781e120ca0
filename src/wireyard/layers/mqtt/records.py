"""Records that stages pass on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict, cast

from wireyard.layers.records import Position
from wireyard.layers.stages import KeyedRecord, Order, keyed_record

PROTOCOL: Final = "mqtt"
END_OFFSET: Final = (1 << 63) - 1
"""The offset of the end of a stream, which is after all its packets."""
AT_PUBREL: Final = 2
"""The QoS at which a broker takes over a message with PUBREL."""
_ADDED_BYTES: Final = 16
"""Most bytes that a broker adds to a message: packet, subscription and alias identifiers."""
SMALLEST_WINDOW: Final = 10
"""The smallest window of the brokers in use: with this many messages in flight, a broker may wait
for acknowledgements."""
EARLY_NS: Final = 5_000_000
"""Most by which packets of several connections are captured out of order: less than it takes to
send a segment again."""
_HASH_BYTES: Final = 32
"""The size of SHA-256, which most processors compute faster than other secure hashes."""


TopicKey = tuple[str, str, str]
"""Source, server and topic."""


class Client(NamedTuple):
    """A client of a broker."""

    source: str
    server: str
    name: str
    """The client id, or a substitute if it is unknown; unique within source and server."""
    endpoint: str
    client_id: str | None
    """As in CONNECT; null or empty if the broker has to assign one."""


class ValueChange(NamedTuple):
    """A retained-value change: a message sets the value of its topic, or deletes it if empty."""

    client: Client
    topic: str
    payload: bytes
    qos: int
    sent: Position
    at: Position
    """When the broker takes it over: PUBLISH, or PUBREL at QoS 2."""
    accepted: Position | None
    """When the broker confirmed that; between `sent` and `accepted` the value is uncertain."""
    expires_s: int | None
    length: int
    """Bytes of the PUBLISH."""
    deletes: bool
    """Whether it leaves no value, as it is empty."""


@dataclass(slots=True, eq=False)
class ConnectionRecord:
    """A connection of a client to a broker that accepted it."""

    client: Client
    opened: Position
    """Its CONNECT, or its first captured packet."""
    begun: bool = False
    """Whether its CONNECT was captured."""
    resumed: bool | None = None
    """Session Present."""
    clean_start: bool = True
    """Whether it began with a clean start."""
    maximum_packet_size: int | None = None
    closed: Position | None = None
    """The packet, FIN or RST that ended it."""
    until: Position | None = None
    """Once it has ended: the last packet at which it was certainly open."""
    session_over_ns: int | None = None
    """When its session ends if no other connection resumes it; None if it does not."""
    capture_ends_ns: int | None = None
    """The time of the last packet of its capture."""
    accepted: Position | None = None
    """CONNACK."""
    damaged: bool = False
    """Whether bytes of it were not captured or belong to no packet."""
    is_full: bool = False
    """Whether the window of messages in flight to the client may have been full at its end."""
    filled: Position | None = None
    """The PUBLISH with which most messages to the client were in flight first."""
    was_fuller: bool = False
    """Whether more were in flight then than at its end."""
    served_as: tuple[str, ...] = ()
    """The names that messages to it were delivered to: see `Subscribed.served_as`."""
    answered: Position | None = None
    """Its last answered request; the broker had sent all messages from before it."""
    answered_open: Position | None = None
    """The last one since which the window was never full."""
    is_asking: bool = False
    """Whether a SUBSCRIBE was not answered."""

    @property
    def may_be_resumed(self) -> bool:
        """Whether the earlier session may continue with it; unknown if CONNACK was not captured."""
        return not self.clean_start if self.resumed is None else self.resumed


@dataclass(slots=True, eq=False)
class Message:
    """A message that a client sent, or its will."""

    origin: str
    sent: Position
    client: Client
    topic: str
    content: bytes
    """Its payload or a hash of it: see `content_of`."""
    qos: int
    retain: bool
    value: bytes | None
    """With RETAIN the payload, until the retained-value change is output."""
    length: int = 0
    expires_s: int | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    malformed: bool = False
    accepted: Position | None = None
    """The packet that shows that the broker accepted it: PUBACK, PUBCOMP, or a later answer."""
    released: Position | None = None
    """PUBREL; for a will, the last packet of its connection."""
    refused: int | None = None
    again: list[Position] = field(default_factory=list)
    """The positions of its resends."""
    copies: int = 1
    """The most messages that the broker may have taken its copies for."""
    is_repeated: bool = False
    """Whether its first copy at QoS 1 may have been sent before the capture."""
    is_lasting: bool = False
    """Whether it is a retained value without payload too, by the page of 1999."""

    @property
    def key(self) -> str:
        """The message key."""
        return self.sent.key

    @property
    def start(self) -> Position:
        """The position from which it can be delivered.

        For a will it is the last packet of its connection, because brokers count the delay in
        whole seconds.
        """
        if self.origin == "will" and self.released is not None:
            return self.released
        return self.sent

    @property
    def taken(self) -> Position | None:
        """When the broker takes it over, at QoS 2 with PUBREL; None if that never happens."""
        if self.refused is not None or self.malformed:
            return None
        if self.origin == "will":
            return self.accepted
        return self.released if self.qos == AT_PUBREL else self.sent

    def change(self) -> ValueChange | PendingChange | None:
        """Return its retained-value change, if it makes one or may make one."""
        at = self.taken
        if self.value is None:
            return None
        if at is None:
            may_be_taken = self.qos == AT_PUBREL and self.refused is None and not self.malformed
            if self.origin == "will" or not may_be_taken:
                return None
            return PendingChange(self.client, self.topic, self.sent, None)
        common = self.client, self.topic, self.value, self.qos, self.sent, at
        return ValueChange(*common, self.accepted, self.expires_s, self.length, self.deletes)

    @property
    def deletes(self) -> bool:
        """Whether it deletes the value of its topic."""
        return self.retain and not (self.is_lasting or self.value)


class Will(NamedTuple):
    """A will, the hashes of its payload, and the file and row of its CONNECT."""

    message: Message
    content: tuple[int, int]
    file: int
    row: int


@dataclass(slots=True, eq=False)
class Attempt:
    """A delivery attempt: a message that a broker sent to a client."""

    at: Position
    client: Client
    topic: str
    content: bytes
    qos: int
    retain: bool
    may_be_live: bool = False
    """Whether a subscription that was not captured may have Retain As Published."""
    setter: Position | None = None
    """The position of the message that set the delivered retained value."""
    is_live: bool = True
    """Whether the broker forwarded it when it was published, and not for a new subscription."""
    is_extra: bool = False
    """Whether a retained value came once more than new subscriptions account for."""
    is_sparse: bool = False
    """Whether subscriptions of its session may not have been captured."""
    left_s: int | None = None
    """Its Message Expiry Interval, if it was not sent again."""


@dataclass(slots=True, eq=False)
class Subscribed:
    """A subscription, from its SUBSCRIBE to its end."""

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
    """Its first SUBSCRIBE, if it was renewed; unique."""
    leaving: Position | None = None
    """The UNSUBSCRIBE or other packet that may end it."""
    gone: Position | None = None
    """When it has certainly ended."""
    version: int = 4
    known: bool = True
    """Whether all other subscriptions of its session were captured."""
    handling: int = 0
    """Retain Handling."""
    gets_values: bool = True
    """Whether the broker sends the matching retained values for it."""
    maximum_packet_size: int | None = None
    confirmed: Position | None = None
    """The answer to a later request, at a time when no full window delayed messages."""
    is_left: bool = False
    """Whether the answer to a request ended it, and not the end of the session."""

    @property
    def served_as(self) -> str:
        """The name that messages are delivered to: the client, or the shared filter."""
        return self.filter if self.group else self.client.name

    def was_left_before(self, start: Position) -> bool:
        """Return whether its client had certainly left it when a message was sent."""
        if self.gone is None or not self.is_left or None in (self.gone.ns, start.ns):
            return False
        return start.time - self.gone.time > EARLY_NS


def may_exceed(maximum_packet_size: int | None, topic: str, length: int) -> bool:
    """Return whether a message of a length may exceed the Maximum Packet Size of a client."""
    most_bytes = maximum_packet_size
    return most_bytes is not None and len(topic) + length + _ADDED_BYTES > most_bytes


def content_of(payload: bytes) -> bytes:
    """Return a payload for comparisons: itself, or its hash if it is long."""
    if len(payload) < _HASH_BYTES:
        return payload
    return sha256(payload).digest()


# --- retained values ------------------------------------------------------------------------

VALUES: Final = "values"
_ORDER_OF_LOST: Final = (-1, 0, 0, 0, "", 0)
_SET, _PENDING, SUBSCRIBED, DELIVERED = range(4)
"""The order of the kinds of records with the same time."""


class PendingChange(NamedTuple):
    """A message that was sent at QoS 2, and changes the value with its PUBREL, if not before."""

    client: Client
    topic: str
    sent: Position
    accepted: Position | None


Span = tuple[int, int]
"""The first and the last time in ns at which something may have happened."""


class Lost(NamedTuple):
    """Spans in which packets of clients of a broker were sent that were not captured."""

    spans: tuple[Span, ...] = ()
    """Ascending, without overlaps."""

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Lost:
        """Return spans in any order, those that overlap as one."""
        joined: list[Span] = []
        for first, last in sorted(spans):
            if joined and first <= joined[-1][1]:
                first, last = joined[-1][0], max(joined.pop()[1], last)
            joined.append((first, last))
        return cls(tuple(joined))

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any span has a time in common with another one."""
        place = bisect_left(self.spans, first, key=itemgetter(1))
        return place < len(self.spans) and self.spans[place][0] <= last


def lost_record(broker: tuple[str, str], topic: str, lost: Lost) -> KeyedRecord:
    """Return the record of the lost packets that may have changed the value of a topic."""
    return KeyedRecord(VALUES, (*broker, topic), _ORDER_OF_LOST, lost)


def value_records(change: ValueChange | PendingChange) -> Iterator[KeyedRecord]:
    """Yield the records of a retained-value change: at QoS 2 also from when it is pending."""
    key = (*change.client[:2], change.topic)
    if isinstance(change, ValueChange):
        yield keyed_record((VALUES, key, value_order(change.at, _SET), change))
        if not change.sent < change.at:
            return
        change = PendingChange(change.client, change.topic, change.sent, change.accepted)
    yield KeyedRecord(VALUES, key, value_order(change.sent, _PENDING), change)


def value_order(at: Position, rank: int) -> Order:
    """Return the order key of a record among those of its topic."""
    return at.time, rank, *at.order


# --- properties -----------------------------------------------------------------------------


class Properties(TypedDict, total=False):
    """The properties of a packet that sessions and messages depend on."""

    assigned_client_identifier: str
    correlation_data: bytes
    maximum_packet_size: int
    message_expiry_interval: int
    receive_maximum: int
    reason_string: str
    response_topic: str
    server_keep_alive: int
    session_expiry_interval: int
    subscription_identifier: list[int]
    topic_alias: int
    topic_alias_maximum: int
    will_delay_interval: int


_NUMBERS: Final = frozenset(
    {"message_expiry_interval", "session_expiry_interval", "receive_maximum", "topic_alias"}
    | {"topic_alias_maximum", "maximum_packet_size", "will_delay_interval", "server_keep_alive"}
)


_NONE: Final = cast("Properties", MappingProxyType({}))


def properties_of(rows: Sequence[Mapping[str, Any]] | None) -> Properties:
    """Return the properties of a packet by name; subscription identifiers are a list.

    Rows and columns represent numbers and Correlation Data differently; the result is the same.
    """
    if not rows:
        return _NONE
    properties: dict[str, Any] = {}
    for row in rows:
        name, value = row["name"], row["value"]
        if name == "subscription_identifier":
            properties.setdefault(name, []).append(int(value))
        elif name in _NUMBERS and value is not None:
            properties[name] = int(value)
        elif name == "correlation_data" and isinstance(value, str):
            properties[name] = bytes.fromhex(value)
        else:
            properties[name] = value
    return cast("Properties", properties)
