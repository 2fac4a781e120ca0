"""The observer: applies the packets of both directions, in the order of the capture, to sessions.

Rules of this file:

1. State belongs to a client id of a broker and outlives connections. A connection consists of the
   two streams with the same endpoints and ordinal. So an observer needs the packets of one client
   id only.
2. Packets of a client before CONNACK wait for it: CONNACK decides whether they count, and for which
   session.
3. A packet that violates a rule still takes effect as far as it can be read, because brokers accept
   much that the standard forbids. An unexpected acknowledgement is a violation by its sender.
4. Records that can no longer change are output and released: a message when its packet identifier
   is used again or its session ends, a connection when both its streams have ended.
5. Missing packets prove nothing. In a session that is older than the capture every packet counts as
   allowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from wireyard.formats.base import Row
from wireyard.formats.mqtt import layout
from wireyard.layers.endpoints import connection_of, endpoints_of
from wireyard.layers.mqtt.connection import (
    CONNECTION,
    FLOWING,
    MAX_EARLY,
    PLAIN,
    Connection,
    Stream,
    StreamInfo,
    connack,
    connect,
    connection_event,
    disconnect,
    open_unanswered,
)
from wireyard.layers.mqtt.packet_row import PacketRow, StreamRow, as_packet, as_stream
from wireyard.layers.mqtt.records import (
    ALWAYS,
    END_OFFSET,
    UNSEEN,
    Client,
    ConnectionRecord,
    FlowEvent,
    Output,
    Tracker,
)
from wireyard.layers.mqtt.session import Broker
from wireyard.layers.mqtt.subscriptions import Requests
from wireyard.layers.mqtt.violations import Breach
from wireyard.layers.records import GAP, Position

__all__ = ["MAX_LINGERING", "Observer"]

MAX_LINGERING: Final = 1000
"""Ended connections that are kept: packets still in flight arrive within seconds."""
MAX_CONNECTIONS: Final = 1 << 17
"""Open connections: without messages about 3 KB each, so 400 MiB."""

_FIRST_OF_BROKER: Final = (layout.CONNACK, layout.AUTH)
_OF_MESSAGES: Final = (
    layout.PUBLISH, layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP,
    layout.PINGREQ, layout.PINGRESP,
)  # fmt: skip
_SMALLEST_BYTES: Final = 5
"""Of a packet that subscribes or publishes, or grants a subscription."""
_SMALLEST_CHANGE_BYTES: Final = 4
"""Of a packet that changes a retained value: PUBREL."""
_BRIDGES: Final = (0x83, 0x84)
"""The protocol levels of bridges (erratum M18)."""
_OF_LEVEL: Final = ("MQTT-3.1.2-2", "protocol_level")
"""The rule on the protocol level, by version."""
_NO_LENGTH: Final = "remaining_length"
"""The rule that a Remaining Length of five bytes violates."""
_StreamName = tuple[str, str]
"""Source and name."""


class Observer:
    """Observer of all connections of a capture, or of one client id.

    Parameters
    ----------
    streams
        All streams that will have packets, as `stream_rows` yields them.
    tracker_of
        Creates the tracker of the messages.
    on_event
        Is called with every `FlowEvent`.

    Limits
    ------
    All state is limited; `dropped` of the output counts what exceeds a limit. If there are too many
    connections, the session of the oldest is output, and its later packets are counted as ``late``.
    """

    def __init__(
        self,
        streams: Iterable[Row],
        tracker_of: Callable[[Output], Tracker],
        on_event: Callable[[FlowEvent], None] | None = None,
    ) -> None:
        self.output = Output(on_event)
        self.brokers: dict[tuple[str, str], Broker] = {}
        self.last: Position | None = None
        """The position of the last packet."""
        self._stream_info: dict[_StreamName, StreamInfo] = {}
        self._ends: list[Position] = []
        """The ends of streams that are still to come, the next one last."""
        for row in streams:
            self._add_stream_info(as_stream(row))
        self._ends.sort(reverse=True)
        self._connections: dict[tuple[str, ...], Connection] = {}
        self._streams: dict[_StreamName, Stream] = {}
        self._lingering: deque[Connection] = deque()
        tracker, requests = tracker_of(self.output), Requests(self.output)
        self._readers: dict[int, Callable[[Connection, PacketRow, Position, bool], None]] = {
            layout.CONNACK: self._connack,
            **dict.fromkeys(_OF_MESSAGES, tracker.observe),
            layout.SUBSCRIBE: requests.subscribe,
            layout.SUBACK: requests.suback,
            layout.UNSUBSCRIBE: requests.unsubscribe,
            layout.UNSUBACK: requests.unsuback,
            layout.DISCONNECT: disconnect,
        }

    def _add_stream_info(self, row: StreamRow) -> None:
        name, begun = (row["source"], row["stream"]), row["begun"]
        resets = row["ended"] == "rst"
        context = bool(row.get("older")), bool(row.get("followed")), row.get("until_ns")
        self._stream_info[name] = StreamInfo(
            row["from_client"], row["alone"], begun, resets, *context
        )
        if row["ended"] is not None:
            ns, frame = row["ended_ns"], row["ended_frame"]
            self._ends.append(Position(ns, frame, name[1], END_OFFSET, ns, frame, name[0]))

    def observe(self, packet: Row) -> None:
        """Observe the next row in the order of the capture."""
        row = as_packet(packet)
        name = row["source"], row["stream"]
        stream = self._streams.get(name)
        if stream is None:
            if name not in self._stream_info:
                self.output.dropped["late"] += 1
                return
            stream = self._add_stream(name, row)
        self.advance(row, stream, stream.advance(row))

    def advance(self, row: PacketRow, stream: Stream, at: Position) -> None:
        """Observe a row of a stream at its position."""
        self.last = at
        self.end_before(at)
        connection, from_client = stream.connection, stream.from_client
        record = connection.record
        kind = row.get("packet_type")
        if kind is None:
            self._observe_other_bytes(connection, row, at, from_client)
            return
        connection.observe_behind_gap(at, from_client)
        record.packets += 1
        record.bytes += row["length"]
        record.last = at
        if not record.version:
            record.version = row.get("version_in_force") or 0
        most = connection.most_bytes[from_client]
        if most is not None and row["length"] > most:
            rule = "packet_size_client" if from_client else "packet_size_broker"
            connection.breaks(rule, from_client, at)
        is_bridge = kind == layout.CONNECT and row.get("protocol_version") in _BRIDGES
        record.is_bridge |= is_bridge
        verdict = row.get("verdict")
        if verdict and not (is_bridge and verdict in _OF_LEVEL):
            connection.add_violation(Breach(verdict, _problem(row), record, from_client, at))
            if kind == layout.DISCONNECT:
                return  # Its receiver closes the connection, as after any malformed packet.
        if kind in PLAIN[from_client] and connection.state in FLOWING:
            self._dispatch(connection, row, at, from_client)
        else:
            self._step(connection, row, at, from_client)

    def _observe_other_bytes(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        """Observe a row of bytes that are no packet, or that were not captured."""
        record, code = connection.record, (row.get("error") or {}).get("code")
        # After a gap, or before the first captured packet, bytes need not begin a packet.
        if code == _NO_LENGTH and not record.damaged and connection.state != "unknown":
            connection.add_violation(Breach(code, _problem(row), record, from_client, at))
        # An unfinished tail loses no packet before it.
        record.damaged |= row.get("status") != "tail"
        if row.get("status") == GAP:
            self._observe_gap(connection, row, at, from_client)

    def _observe_gap(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        """Observe bytes that were not captured, which may have been any packets."""
        self._lose(connection, at, from_client, row["length"])

    def _lose(
        self, connection: Connection, at: Position, from_client: bool, most: int = END_OFFSET
    ) -> None:
        """Note that up to `most` bytes of one side were not captured, all if its stream was not."""
        connection.lost_last[from_client] = True
        connection.record.unsure_before = ALWAYS
        connection.broker.has_older |= most >= _SMALLEST_BYTES
        if from_client:
            if connection.lost_since_ns is None and most >= _SMALLEST_CHANGE_BYTES:
                connection.lost_since_ns = at.reached_ns
            if connection.state == "new":
                connection.state = "unknown"
        else:
            self._miss_connack(connection, at)

    def _miss_connack(self, connection: Connection, at: Position) -> None:
        """Note that CONNACK was not captured, unless it was seen before."""
        if connection.state == "new":
            connection.unanswered = True
        elif connection.state == "asked":
            open_unanswered(connection, at)
            self._read_early(connection)

    def _add_stream(self, name: _StreamName, row: PacketRow) -> Stream:
        """Add the stream of a first row, and its connection if it is new."""
        info = self._stream_info[name]
        stream = self._streams[name] = Stream(row, info.from_client)
        key = connection_of(row)
        connection = self._connections.get(key)
        if connection is None:
            ends = endpoints_of(row)
            endpoint, server = ends if stream.from_client else ends[::-1]
            client = Client(stream.source, server, stream.first.key, endpoint, None)
            broker = self.brokers.get(client[:2])
            if broker is None:
                broker = self.brokers[client[:2]] = Broker(self.output)
            broker.has_older |= info.older
            record = ConnectionRecord(client, stream.first)
            record.followed, record.capture_ends_ns = info.followed, info.until_ns
            connection = Connection(key, info, record, broker, self.output)
            if row.get("packet_type") == layout.CONNECT:
                connection.state = "new"
            self._connections[key] = connection
            if len(self._connections) > MAX_CONNECTIONS:
                self._evict(next(iter(self._connections.values())))
        stream.connection = connection
        connection.streams.append(name)
        if info.alone:
            self._lose(connection, stream.first, not stream.from_client)
        is_answer = stream.from_client or row.get("packet_type") in _FIRST_OF_BROKER
        if info.begun is False and not is_answer:
            self._miss_connack(connection, stream.first)
        return stream

    def _step(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        kind, record = row["packet_type"], connection.record
        if kind == layout.CONNECT:
            # The version that CONNECT declares decides which rules apply.
            record.version = row.get("version_in_force") or 0
        code = row.get("return_code") or 0
        event = connection_event(from_client, kind, record.version or 5, code)
        if event is None:
            if kind in layout.PACKET_TYPES:
                connection.breaks("wrong_side", from_client, at)
            return
        before = connection.state
        cell = CONNECTION[before, event]
        connection.state = cell.state
        if cell.rule is not None:
            connection.breaks(cell.rule, from_client, at)
        if event == "connect":
            if before in ("new", "unknown"):
                connect(connection, row, at)
        elif before == "asked" and from_client:
            self._hold(connection, row, at)
        elif before not in ("refused", "closed") and (before != "left" or not from_client):
            self._dispatch(connection, row, at, from_client)

    def _hold(self, connection: Connection, row: PacketRow, at: Position) -> None:
        if len(connection.early) < MAX_EARLY:
            connection.early.append((row, at))
        else:
            self.output.dropped["early"] += 1

    def _dispatch(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        connection.keep_session()
        reader = self._readers.get(row["packet_type"])
        if reader is not None:
            reader(connection, row, at, from_client)

    def _connack(self, connection: Connection, row: PacketRow, at: Position, _: bool) -> None:
        connack(connection, row, at)
        self._read_early(connection)

    def _read_early(self, connection: Connection) -> None:
        """Read what the client sent before the connection was open."""
        early, connection.early = connection.early, []
        for packet, position in early:
            self._dispatch(connection, packet, position, True)

    # --- the end ----------------------------------------------------------------------------

    def end_before(self, at: Position) -> None:
        """End the streams that end before a position."""
        while self._ends and self._ends[-1] < at:
            self._end(self._ends.pop())

    @property
    def next_end(self) -> Position | None:
        """The next end of a stream."""
        return self._ends[-1] if self._ends else None

    def stream(self, name: tuple[str, str]) -> Stream | None:
        """Return a stream that had rows, by source and name."""
        return self._streams.get(name)

    def _end(self, at: Position) -> None:
        """End a stream by its FIN or RST; the first end of a stream ends the connection."""
        name = at.source, at.stream
        stream = self._streams.get(name)
        if stream is None or at < stream.first:
            return
        connection = stream.connection
        if connection.session.connection is connection.record:
            # If no packet of the client was captured, its DISCONNECT may have been before.
            client_seen = any(self._streams[name].from_client for name in connection.streams)
            is_shown = (connection.record.begun or client_seen) and not any(
                connection.lost_last.values()
            )
            end = ("dropped", "dropped") if is_shown else (UNSEEN, "disconnected")
            connection.broker.close(connection.session, at, *end)
        connection.open_streams -= 2 if self._stream_info[name].resets else 1
        if connection.open_streams <= 0:
            self._lingering.append(connection)
            if len(self._lingering) > MAX_LINGERING:
                self._evict(self._lingering.popleft())

    def finish(self) -> None:
        """Output everything that is open at the end of the capture."""
        while self._ends:
            self._end(self._ends.pop())
        for connection in list(self._connections.values()):
            record, session = connection.record, connection.session
            if record.ended_by == "open" and session.connection is record:
                last = record.last or record.opened
                record.until = None if connection.shows_end else last
                connection.broker.end_flows(session, last)
            self._evict(connection)
        for broker in self.brokers.values():
            broker.finish()

    def _evict(self, connection: Connection) -> None:
        """Output a connection that is final, if it was not output before."""
        if self._connections.pop(connection.key, None) is None:
            return
        record, session = connection.record, connection.session
        connection.flush_violations()
        connection.lose_until((record.closed or ALWAYS).reached_ns)
        self.output.tracker.leave(connection)
        kept = connection.broker.sessions.get(record.client.name)
        if kept is not session:
            connection.release_session(session)
        if kept is not None:
            record.served_as = tuple(kept.served_as)
        self.output.connections.append(record)
        for name in connection.streams:
            del self._streams[name], self._stream_info[name]


def _problem(row: PacketRow) -> str:
    """Return the error of a packet as a sentence."""
    return (row.get("error") or {}).get("message") or "the packet violates a rule"
