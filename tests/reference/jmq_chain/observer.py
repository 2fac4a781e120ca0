"""The observer of packets: connections by their packets, and the messages that brokers relay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from tests.reference.jmq_chain.connection import Connection
from tests.reference.jmq_chain.records import Output
from tests.reference.jmq_chain.sequences import GPacketNumbers, Runs
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import (
    MESSAGE_TYPES,
)
from wireyard.layers.endpoints import connection_of, endpoints_of
from wireyard.layers.jmq.packet_row import (
    MAX_TEXT,
    MOST_ITEM_BYTES,
    PacketRow,
    as_packet,
    relays,
)
from wireyard.layers.jmq.rules import BY_BROKER, BY_CLIENT, RULES
from wireyard.layers.records import GAP, Position, Violation

__all__ = ["MAX_CONNECTIONS", "Observer"]

MAX_CONNECTIONS: Final = 1 << 14
"""The most connections that are tracked at once, above which the oldest is closed; a broker accepts
a thousand by default."""

_TEXTS: Final = ("destination", "reply_to", "correlation_id", "message_id")


def sent_by_client(row: PacketRow) -> bool | None:
    """Return whether a client sent a packet, None if both sides send packets of its type.

    Only messages from brokers have a delivery count.
    """
    packet_type = row["packet_type"]
    if packet_type in MESSAGE_TYPES:
        return row.get("delivery_count") is None
    if packet_type in BY_CLIENT:
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
