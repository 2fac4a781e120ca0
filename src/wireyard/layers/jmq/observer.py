"""The observer of packets: connections by their packets, and the messages that brokers relay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.formats.gpacket.layout import LINK_VERSION
from wireyard.formats.gpacket.payload import payload_value
from wireyard.formats.jmq.layout import (
    BROKER_TYPES,
    CLIENT_TYPES,
    HEADER_BYTES,
    MESSAGE_TYPES,
    SYS_MESSAGE_ID,
)
from wireyard.formats.jmq.packet import read_row
from wireyard.layers.endpoints import connection_of, endpoint, endpoints_of
from wireyard.layers.jmq.connection import Connection
from wireyard.layers.jmq.packet_row import PacketRow, as_packet
from wireyard.layers.jmq.records import MAX_TEXT, RULES, Output, Relay, number, properties_of, text
from wireyard.layers.jmq.requests import REPLIES
from wireyard.layers.jmq.sequences import GPacketNumbers, Runs
from wireyard.layers.records import GAP, Position, Violation

__all__ = [
    "BY_BROKER",
    "FROM_CLIENT",
    "MAX_CONNECTIONS",
    "MESSAGE_ACK",
    "MESSAGE_DATA",
    "MOST_ITEM_BYTES",
    "NEEDED",
    "Observer",
    "relays",
    "sent_by_client",
]

MAX_CONNECTIONS: Final = 1 << 14
"""The most connections that are tracked at once, above which the oldest is closed; a broker accepts
a thousand by default."""

NEEDED: Final = (
    "source",
    "stream",
    "offset",
    "format",
    "status",
    "captured_ns",
    "frame",
    "src_addr",
    "src_port",
    "dst_addr",
    "dst_port",
    "version",
    "packet_type",
    "packet_type_name",
    "size",
    *SYS_MESSAGE_ID,
    "source_ip_text",
    "property_offset",
    "property_size",
    "bit_flags",
    "consumer_id",
    "transaction_id",
    "producer_id",
    "delivery_count",
    "destination",
    "message_id",
    "sys_message_id",
    "correlation_id",
    "reply_to",
    "properties",
    "body",
    "payload",
)
"""The columns of JMQ packets and GPackets that are read; bodies of messages are not."""

_TEXTS: Final = ("destination", "reply_to", "correlation_id", "message_id")
MOST_ITEM_BYTES: Final = HEADER_BYTES + MAX_TEXT
"""The largest property offset of packets whose header items all fit in `MAX_TEXT`."""
_PING_REPLY: Final = 55
FROM_CLIENT: Final = frozenset(CLIENT_TYPES) | {code - 1 for code in REPLIES - {_PING_REPLY}}
BY_BROKER: Final = frozenset(BROKER_TYPES)


def sent_by_client(row: PacketRow) -> bool | None:
    """Return whether a client sent a packet, None if both sides send packets of its type.

    Only messages from brokers have a delivery count.
    """
    packet_type = row["packet_type"]
    if packet_type in MESSAGE_TYPES:
        return row.get("delivery_count") is None
    if packet_type in FROM_CLIENT:
        return True
    return False if packet_type in BY_BROKER else None


@dataclass(slots=True)
class _Pair:
    """The two directions of a connection, whose client is known from a later packet on."""

    connection: Connection | None = None
    client: str = ""
    lost: list[str] = field(default_factory=list)
    """The senders of the gaps before that packet."""


@dataclass(slots=True)
class _Direction:
    """One direction of a connection."""

    key: tuple[str, ...]
    pair: _Pair
    src: str
    dst: str
    host: str
    runs: Runs | None = None
    numbers: GPacketNumbers | None = None
    """The sequence numbers of GPackets."""


class Observer:
    """All connections of captures; packets are observed in the order of time.

    A raw stream has no endpoints and only one direction: its name takes the place of the sender's
    endpoint.
    """

    def __init__(self) -> None:
        self.output = Output()
        self._directions: dict[tuple[str, str], _Direction] = {}
        self._pairs: OrderedDict[tuple[str, ...], _Pair] = OrderedDict()
        self._streams: dict[tuple[str, ...], list[tuple[str, str]]] = {}

    def observe(self, row: Row) -> None:
        """Observe the next row; packets inside others are skipped.

        After damaged or missing packets the state of the connection is uncertain (`miss`, `lose`).

        The row needs `source`, `stream`, `offset`, `status` and the columns of its format; rows of
        captures also `captured_ns`, `frame` and the addresses. `NEEDED` has all columns that are
        read. Properties are a mapping, in the form of packets or in that of columns.
        """
        format = row.get("format", "jmq").partition("/")[0]
        if format not in ("jmq", "gpacket") or row.get("parent_offset") is not None:
            return
        status = row.get("status", "ok")
        if status == GAP:
            self._lose(row)
        elif status != "ok":
            self._miss((row["source"], row["stream"]))
        elif format == "gpacket":
            self._observe_gpacket(row)
        else:
            self._observe_packet(row)

    def _miss(self, stream: tuple[str, str]) -> None:
        direction = self._directions.get(stream)
        if direction is not None and direction.pair.connection is not None:
            direction.pair.connection.miss()

    def _lose(self, row: Row) -> None:
        direction = self._direction_of(row)
        pair = direction.pair
        if pair.connection is None:
            pair.lost.append(direction.src)
        else:
            pair.connection.lose(
                direction.src == pair.client, is_over=row.get("captured_ns") is not None
            )

    def _observe_gpacket(self, row: Row) -> None:
        direction = self._direction_of(row)
        if direction.numbers is None:
            direction.numbers = GPacketNumbers()
        rule = direction.numbers.observe(as_packet(row))
        if rule is not None:
            text = f"GPacket {row['sequence']}: {RULES[rule]}"
            violation = Violation(rule, text, Position.of(row), direction.src)
            self.output.violations.append(violation)
        self.output.relays.extend(relays(row))

    def _direction_of(self, row: Row) -> _Direction:
        stream = row["source"], row["stream"]
        return self._directions.get(stream) or self._add(row, stream)

    def _observe_packet(self, row: Row) -> None:
        direction = self._direction_of(row)
        pair = direction.pair
        if pair.connection is None:
            from_client = sent_by_client(as_packet(row))
            if from_client is None:
                return
            client, server = (
                (direction.src, direction.dst) if from_client else (direction.dst, direction.src)
            )
            pair.connection = Connection(client, server, self.output)
            pair.client = client
            for src in pair.lost:
                pair.connection.lose(src == client, is_over=False)
        if row["property_offset"] > MOST_ITEM_BYTES:
            row = row | {name: row[name][:MAX_TEXT] for name in _TEXTS if row.get(name)}
        from_client = direction.src == pair.client
        if direction.runs is None:
            direction.runs = Runs(direction.host, direction.src, from_client, self.output.runs)
        packet = as_packet(row)
        rule = direction.runs.observe(packet)
        if rule is not None:
            pair.connection.add_violation(rule, packet)
        pair.connection.observe(packet, from_client)

    def finish(self, ended: Collection[tuple[str, str]] = ()) -> None:
        """Close all connections at the end of the packets.

        Parameters
        ----------
        ended
            Source and name of the streams that end with a FIN or a reset.
        """
        for key in list(self._pairs):
            self._close(key, any(stream in ended for stream in self._streams[key]))

    def _add(self, row: Row, stream: tuple[str, str]) -> _Direction:
        key = connection_of(row)
        src, dst = endpoints_of(row)
        host = row.get("src_addr") or src
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= MAX_CONNECTIONS:
                self._close(next(iter(self._pairs)), False)
                self.output.dropped["MAX_CONNECTIONS"] += 1
            pair = self._pairs[key] = _Pair()
            self._streams[key] = []
        direction = self._directions[stream] = _Direction(key, pair, src, dst, host)
        self._streams[key].append(stream)
        return direction

    def _close(self, key: tuple[str, ...], ended: bool) -> None:
        pair = self._pairs.pop(key)
        if pair.connection is not None:
            pair.connection.finish(ended)
        for stream in self._streams.pop(key):
            direction = self._directions.pop(stream)
            if direction.runs is not None:
                direction.runs.close()


MESSAGE_DATA: Final = 1
MESSAGE_ACK: Final = 3
_CONSUMED, _PREPARED = 3, 9
"""Values of the property T: consumed; acknowledged in a transaction that is being committed."""


def relays(row: Row) -> Iterator[Relay]:
    """Yield the messages that a GPacket relays or acknowledges; none if it is damaged."""
    packet = as_packet(row)
    packet_type = packet["packet_type"]
    if packet_type not in (MESSAGE_DATA, MESSAGE_ACK) or packet["version"] == LINK_VERSION:
        return
    properties = properties_of(packet)
    kind = "relayed" if packet_type == MESSAGE_DATA else "relay_acknowledged"
    if kind == "relay_acknowledged" and number(properties, "T") not in (_CONSUMED, _PREPARED):
        return
    try:
        payload = payload_value(row)
    except DecodeError:
        return
    host, port = text(properties, "host"), number(properties, "port")
    broker = None if host is None or port is None else endpoint(host, port)
    sender, receiver = endpoints_of(row)
    at = Position.of(row)
    for message_key, consumer_id in _message_consumers(kind, payload):
        yield Relay(message_key, consumer_id, broker, at, sender, receiver, kind)


def _message_consumers(kind: str, payload: Any) -> Iterator[tuple[str, int]]:
    """Yield each message of a payload with each consumer that it is for."""
    if payload is None:
        return
    if kind == "relay_acknowledged":
        for entry in payload:
            yield entry["sys_message_id"], entry["consumer"]["consumer_id"]
        return
    message, error = read_row(payload["packet"], 0)
    if error is None:
        for consumer in payload["consumers"]:
            yield message["sys_message_id"], consumer["consumer_id"]
