"""Records of JMQ connections: the output of the first stage, and the input of the others.

The first stage passes them on in the order in which they become final. No record holds a packet,
only its `Position`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wireyard.errors import EncodeError
from wireyard.formats.properties import Property
from wireyard.formats.property_rows import typed_value
from wireyard.layers.endpoints import endpoints_of
from wireyard.layers.jmq.packet_row import PacketRow
from wireyard.layers.records import Position, Violation

__all__ = [
    "MAX_TEXT",
    "NEEDS_ALL",
    "RULES",
    "ConnectionRecord",
    "Delivery",
    "Exchange",
    "Output",
    "Relay",
    "Report",
    "Run",
    "Sending",
    "Use",
    "number",
    "properties_of",
    "text",
]

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "before_login": "a client sent a request before the broker had accepted its login",
        "second_login": "a login, or an answer to one, on a connection that was logged in",
        "after_goodbye": "a packet from a client after its GOODBYE",
        "reply_without_request": "a reply with an id that no request waited with",
        "request_id_reused": "a request with an id that another one still waited with",
        "unknown_consumer": "a message for a consumer that the connection never had, or no longer",
        "handed_over_twice": "a message for a consumer that still held it",
        "acknowledged_nothing": "an acknowledgement of a message that the consumer did not hold",
        "malformed_records": "a body that is no list of message ids, in a packet that needs one",
        "sent_while_paused": "a message after flag F or C, before the flow was resumed",
        "transaction_over": "a transaction was used or ended after its end",
        "sequence_gap": "numbers of a sender are missing from its captured packets",
        "sequence_back": "a new packet has a lower number than its sender had used",
        "sequence_reused": "a new packet has a number that another one of its sender has",
        "transaction_id_missing": "flag T, and no transaction id",
    }
)
"""The rules that a row of `violations` may have, and the text of a violation of each."""


MAX_TEXT: Final = 1024
"""The most characters of a name or an id that are kept: the wire allows 65535 bytes, and a peer
must not determine how much memory is held. Names in use are far shorter."""


def properties_of(row: PacketRow) -> Mapping[str, Any]:
    """Return a row's properties, in the form of packets or in that of columns."""
    return row.get("properties") or _NONE


_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def number(properties: Mapping[str, Any], name: str) -> int | None:
    """Return an integer or boolean property, None if there is none with this name."""
    value = _value(properties, name)
    return value if isinstance(value, int) else None


def text(properties: Mapping[str, Any], name: str) -> str | None:
    """Return a string property, None if there is none with this name."""
    value = _value(properties, name)
    return value[:MAX_TEXT] if isinstance(value, str) else None


def _value(properties: Mapping[str, Any], name: str) -> Any:
    entry = properties.get(name)
    if entry is None or isinstance(entry, Property):
        return entry and entry.value
    try:
        return typed_value(name, entry["type"], entry["value"])
    except EncodeError:
        return None


@dataclass(slots=True)
class Exchange:
    """A request, and its reply if there is one."""

    request: str
    """Name of the packet type, or the destination of a JMS message."""
    requester: str
    responder: str
    requested: Position
    replied: Position | None = None
    status: int | None = None
    request_message: str | None = None
    reply_message: str | None = None
    """The message keys of a JMS request and its reply."""


@dataclass(slots=True)
class Sending:
    """A message that a client sent, and the broker's reply to it.

    A message whose sending was not captured has one too, made of its first delivery.
    """

    message_key: str
    producer: str
    server: str
    client_id: str | None
    destination: str | None
    reply_to: str | None
    correlation_id: str | None
    message_id: str | None
    transaction_id: int | None
    at: Position
    accepted: Position | None = None
    status: int | None = None
    rolled_back: bool = False
    """Whether the transaction that it was sent in was rolled back."""


@dataclass(slots=True)
class Delivery:
    """A delivery attempt of a message to a consumer; `state` is a state of `DELIVERY`."""

    message_key: str
    producer: str
    destination: str | None
    consumer: str
    server: str
    consumer_id: int
    client_id: str | None
    subscription: str | None
    redelivered: bool
    delivery_count: int | None
    at: Position
    state: str
    dead_reason: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    acknowledged: Position | None = None
    transaction_id: int | None = None
    gaps: int = 0
    gaps_acknowledged: int = 0
    """The values of `Consumers.gaps` when it was delivered, and when it was acknowledged."""


class Use(NamedTuple):
    """An event of a transaction; `event` is an event of `TRANSACTION`."""

    server: str
    transaction_id: int
    event: str
    messages: int
    """The number of messages sent or acknowledged."""
    client: str
    client_id: str | None
    at: Position


@dataclass(slots=True)
class ConnectionRecord:
    """A connection, from its login to its end; `state` is a state of `SESSION`."""

    client: str
    server: str
    opened: Position
    last: Position
    state: str = "new"
    known: bool = False
    """Whether its HELLO was captured; if not, the connection is older than the capture."""
    client_id: str | None = None
    user: str | None = None
    status: int | None = None
    protocol_level: int | None = None
    ended_by: str | None = None
    packets: int = 0
    size_bytes: int = 0
    in_flight_sent: int = 0
    in_flight_received: int = 0
    pauses: int = 0
    paused_ns: int = 0
    has_gap: bool = False
    """Whether bytes of it were not captured, so these four counts are unknown."""


class Relay(NamedTuple):
    """A message that one broker relayed to another, for a consumer there."""

    message_key: str
    consumer_id: int
    broker: str | None
    """Endpoint of the port mapper of the broker that relays it."""
    at: Position
    sender: str
    receiver: str
    """Endpoints of both brokers."""
    kind: str = "relayed"
    """``relayed``, or ``relay_acknowledged`` for the consumer's acknowledgement on its way back."""


class Run(NamedTuple):
    """Sequence numbers ``[start, stop)`` of a stream.

    A ``run`` has no gaps; the ``span`` of a stream is from its first number to its last.
    """

    kind: str
    host: str
    from_client: bool
    sender: str
    start: int
    stop: int
    at: Position
    """The packet with the first number of the run; for a span, of the stream's last run."""


@dataclass(slots=True)
class Output:
    """Buffers for final records of all connections, and the counts of open items.

    The caller empties the buffers as packets are observed. Caps are for all connections together,
    so a peer that opens many connections cannot multiply them.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    sendings: list[Sending] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    logins: list[ConnectionRecord] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of dropped items, by the name of the cap."""
    _open: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def admit(self, cap: str, most: int) -> bool:
        """Count an item as open, or as dropped above the cap; return whether there was room."""
        if self._open[cap] < most:
            self._open[cap] += 1
            return True
        self.dropped[cap] += 1
        return False

    def release(self, cap: str, things: int = 1) -> None:
        """Count items as no longer open."""
        self._open[cap] -= things

    def clear(self) -> None:
        """Empty the buffers."""
        for buffer in (
            self.deliveries,
            self.sendings,
            self.uses,
            self.exchanges,
            self.logins,
            self.violations,
            self.runs,
            self.relays,
        ):
            buffer.clear()


NEEDS_ALL: Final = frozenset(
    {
        "reply_without_request",
        "request_id_reused",
        "unknown_consumer",
        "handed_over_twice",
        "acknowledged_nothing",
    }
)
"""The rules whose violation may be explained by lost packets."""


class Report:
    """The facts about a connection that its parts share, and their access to the output.

    Parameters
    ----------
    client, server
        The connection's endpoints.
    output
        Buffers for final records.
    """

    def __init__(self, client: str, server: str, output: Output) -> None:
        self.client = client
        self.server = server
        self.output = output
        self.client_id: str | None = None
        self.known = False
        """Whether all packets were captured, from the first on: then unknown means nonexistent."""

    def add_violation(
        self,
        rule: str,
        row: PacketRow,
        at: Position,
        message_key: str | None = None,
        times: int = 1,
    ) -> None:
        """Record a violation by the sender of a packet, unless lost packets may explain it."""
        if rule in NEEDS_ALL and not self.known:
            return
        name = row.get("packet_type_name") or f"packet type {row['packet_type']}"
        text = f"{name}: {RULES[rule]}" + (f", {times} times" if times > 1 else "")
        self.output.violations.append(
            Violation(rule, text, at, endpoints_of(row)[0], self.client_id, message_key)
        )

    def use(self, transaction_id: int, event: str, at: Position, messages: int = 0) -> None:
        """Record an event of a transaction."""
        self.output.uses.append(
            Use(self.server, transaction_id, event, messages, self.client, self.client_id, at)
        )
