"""Packets of both directions in the order of a capture, and what they do to sessions.

Rules of this file:

1. State follows the client id of a broker over connections. A connection is what joins two streams
   of the same endpoints and ordinal.
2. What a client sends before CONNACK waits for it: whether it counts, and for which session, the
   broker says there.
3. A packet that breaks a rule is a violation, and is followed as far as it can be read: brokers
   take much that the standard forbids. Of an acknowledgement nobody asked for, the violation is
   that of the side that sent it.
4. Nothing is concluded from what a capture does not show. Of a session that is older than it,
   every packet is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.aliases import Aliases
from wireyard.layers.mqtt.broker import Broker
from wireyard.layers.mqtt.connections import CONNECTION, connection_event
from wireyard.layers.mqtt.directions import Side, connection_of, endpoints_of
from wireyard.layers.mqtt.exchange import Exchange
from wireyard.layers.mqtt.flows import MAX_IN_FLIGHT
from wireyard.layers.mqtt.notes import Connection, Notes, Request, Row, properties_of
from wireyard.layers.mqtt.records import End, Fact, Link, Message, Moment, Subscribed, Violation
from wireyard.layers.mqtt.sessions import Session, Will
from wireyard.layers.mqtt.topics import split_shared

__all__ = ["NEEDED", "Observer"]

NEEDED: Final = (
    "source",
    "stream",
    "offset",
    "length",
    "status",
    "error",
    "captured_ns",
    "frame",
    "src_addr",
    "src_port",
    "dst_addr",
    "dst_port",
    "packet_type",
    "dup",
    "qos",
    "retain",
    "client_id",
    "clean_start",
    "keep_alive",
    "will_topic",
    "will_payload",
    "will_qos",
    "will_retain",
    "username",
    "session_present",
    "return_code",
    "return_codes",
    "topic",
    "packet_id",
    "payload",
    "filters",
    "properties",
    "will_properties",
    "version_in_force",
    "verdict",
)
"""Columns of MQTT packets that say something here."""

MAX_EARLY: Final = 1000
"""Packets of a client that wait for CONNACK, which comes within a round trip."""
MAX_ASKED: Final = 1000
"""Requests of one connection that wait for an answer; brokers answer in order and at once."""
_ERROR: Final = 128
_WITH_WILL: Final = 4
"""Reason code of a DISCONNECT after which the will is published."""
_FOREVER_S: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire."""
_ACKNOWLEDGEMENTS: Final = (layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP)


class Observer:
    """Follows every connection of a capture.

    Parameters
    ----------
    sides
        Of each stream, by source and name.
    begun
        The streams of which the capture shows the beginning.
    on_fact
        Is given every `Fact`.

    Limits
    ------
    What is noted down grows with the messages, subscriptions and connections of the capture. What
    is kept in mind of them is capped; `dropped` of the notes and of the brokers count the rest.
    """

    def __init__(
        self,
        sides: Mapping[tuple[str, str], Side],
        begun: frozenset[tuple[str, str]] = frozenset(),
        on_fact: Callable[[Fact], None] | None = None,
    ) -> None:
        self.notes = Notes(on_fact)
        self.brokers: dict[tuple[str, str], Broker] = {}
        self._exchange = Exchange(self.notes)
        self._sides = sides
        self._begun = begun
        self._connections: dict[tuple[str, ...], Connection] = {}
        self._streams: dict[tuple[str, str], tuple[Connection, bool]] = {}
        self._readers: dict[int, Callable[[Connection, Row, Moment], None]] = {
            layout.CONNACK: self._connack,
            layout.SUBSCRIBE: self._subscribe,
            layout.SUBACK: self._suback,
            layout.UNSUBSCRIBE: self._unsubscribe,
            layout.UNSUBACK: self._unsuback,
            layout.PINGREQ: self._pingreq,
            layout.PINGRESP: self._pingresp,
        }

    # --- rows -------------------------------------------------------------------------------

    def take(self, row: Row, place: int) -> None:
        """Take the next row; `place` says where it stands in the order of the capture."""
        stream = row["source"], row["stream"]
        at = Moment(place, row.get("captured_ns"), row.get("frame"), *stream, row["offset"])
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = self._meet(row, at)
        connection, by_client = known
        link = connection.link
        connection.broker.pass_time(at)
        if row.get("packet_type") is None:
            # A tail takes nothing away from the packets before it.
            link.damaged |= row.get("status") != "tail"
            return
        link.packets += 1
        link.bytes += row["length"]
        link.last = at
        if not by_client:
            connection.broker.last_seen = place
        most = connection.most_bytes[by_client]
        if most is not None and row["length"] > most:
            side = "client" if by_client else "broker"
            self.notes.violation(f"packet_size_{side}", connection, at)
        if row.get("verdict"):
            error = row.get("error") or {}
            text = error.get("message") or "a rule of the packet is broken"
            self.notes.violations.append(Violation(row["verdict"], text, link, at))
        self._advance(connection, row, at, by_client)

    def _meet(self, row: Row, at: Moment) -> tuple[Connection, bool]:
        """Return the connection of a stream's first row, and whether the stream is a client's."""
        stream = row["source"], row["stream"]
        by_client, alone = self._sides[stream]
        key = connection_of(row)
        connection = self._connections.get(key)
        if connection is None:
            ends = endpoints_of(row)
            client, server = ends if by_client else ends[::-1]
            link = Link((row["source"], server), client, server, at, name=f"{client}#{at.place}")
            broker = self.brokers.get(link.broker)
            if broker is None:
                broker = self.brokers[link.broker] = Broker(self._closed)
            begun = stream in self._begun or row.get("packet_type") == layout.CONNECT
            connection = self._connections[key] = Connection(link, broker, begun, alone)
            self.notes.links.append(link)
        return connection, by_client

    def _advance(self, connection: Connection, row: Row, at: Moment, by_client: bool) -> None:
        kind, link = row["packet_type"], connection.link
        if kind == layout.CONNECT:
            # The version that the connection is judged by is the one it declares.
            link.version = row.get("version_in_force") or 0
        code = row.get("return_code") or 0
        event = connection_event(by_client, kind, link.version or 5, code)
        if event is None:
            if kind in layout.PACKET_TYPES:
                self.notes.violation("wrong_side", connection, at)
            return
        before = connection.state
        cell = CONNECTION[before][event]
        connection.state = cell.state
        if cell.rule is not None:
            self.notes.violation(cell.rule, connection, at)
        if event == "connect":
            if before in ("new", "unknown"):
                self._connect(connection, row, at)
        elif before == "asked" and by_client:
            self._wait(connection, row, at)
        elif before not in ("refused", "closed") and (before != "left" or not by_client):
            self._read(connection, row, at, by_client)

    def _wait(self, connection: Connection, row: Row, at: Moment) -> None:
        if len(connection.early) < MAX_EARLY:
            connection.early.append((row, at))
        else:
            self.notes.dropped["early"] += 1

    def _read(self, connection: Connection, row: Row, at: Moment, by_client: bool) -> None:
        kind = row["packet_type"]
        if connection.session.link is not connection.link:
            # The session has moved to a newer connection, and takes nothing from this one.
            connection.session = Session(connection.link.name, known=False)
            connection.session.link = connection.link
        if kind == layout.PUBLISH:
            self._exchange.publish(connection, row, at, by_client)
        elif kind in _ACKNOWLEDGEMENTS:
            self._exchange.acknowledge(connection, row, at, by_client)
        elif kind == layout.DISCONNECT:
            self._disconnect(connection, row, at, by_client)
        elif kind in self._readers:
            self._readers[kind](connection, row, at)

    # --- the beginning ----------------------------------------------------------------------

    def _connect(self, connection: Connection, row: Row, at: Moment) -> None:
        link = connection.link
        properties = properties_of(row.get("properties"))
        link.opened = at
        link.client_id = row.get("client_id")
        link.name = link.client_id or link.name
        link.user = row.get("username")
        link.keep_alive = row.get("keep_alive")
        link.fresh = bool(row.get("clean_start"))
        link.maximum_packet_size = properties.get("maximum_packet_size")
        connection.most_bytes[False] = link.maximum_packet_size
        _set_expiry(link, properties.get("session_expiry_interval", 0))
        connection.aliases[False] = Aliases(properties.get("topic_alias_maximum", 0))
        connection.opening = row
        if connection.alone:
            # Nobody will say whether it counts.
            connection.state = "unknown"
            self._open(connection, {}, at)
            connection.aliases[True] = Aliases()

    def _connack(self, connection: Connection, row: Row, at: Moment) -> None:
        link = connection.link
        link.status = row.get("return_code") or 0
        if link.status:
            link.ended_by, link.closed, link.until = "refused", at, at.place
            connection.early.clear()
            return
        if link.accepted is not None:
            return
        present = row.get("session_present") if link.version >= _WITH_SESSION_PRESENT else None
        link.resumed = present
        if present and link.fresh and connection.opening:
            self.notes.violation("session_present_clean", connection, at)
        self._open(connection, properties_of(row.get("properties")), at)
        for early, moment in connection.early:
            self._read(connection, early, moment, True)
        connection.early.clear()

    def _open(self, connection: Connection, said: Mapping[str, Any], at: Moment) -> None:
        """Begin the session; `said` are the properties of CONNACK."""
        link, opening = connection.link, connection.opening or {}
        asked = properties_of(opening.get("properties"))
        link.accepted = at
        link.name = said.get("assigned_client_identifier") or link.name
        link.client_id = said.get("assigned_client_identifier") or link.client_id
        if "session_expiry_interval" in said:
            _set_expiry(link, said["session_expiry_interval"])
        connection.aliases[True] = Aliases(said.get("topic_alias_maximum", 0))
        connection.most_bytes[True] = said.get("maximum_packet_size")
        limits = (
            said.get("receive_maximum", MAX_IN_FLIGHT),
            asked.get("receive_maximum", MAX_IN_FLIGHT),
        )
        will = _will_of(connection, opening)
        connection.session = connection.broker.open(link, will, link.resumed, limits)

    # --- subscriptions ----------------------------------------------------------------------

    def _subscribe(self, connection: Connection, row: Row, at: Moment) -> None:
        identifiers = properties_of(row.get("properties")).get("subscription_identifier")
        request = Request(row.get("filters") or [], identifiers[0] if identifiers else None, at)
        self._ask(connection.asked, row, request)

    def _unsubscribe(self, connection: Connection, row: Row, at: Moment) -> None:
        self._ask(connection.leaving, row, Request(row.get("filters") or [], None, at))

    def _ask(self, waiting: dict[int, Request], row: Row, request: Request) -> None:
        if len(waiting) < MAX_ASKED:
            waiting[row.get("packet_id") or 0] = request
        else:
            self.notes.dropped["requests"] += 1

    def _suback(self, connection: Connection, row: Row, at: Moment) -> None:
        request = connection.asked.pop(row.get("packet_id") or 0, None)
        codes = row.get("return_codes") or []
        if request is None or len(codes) != len(request.filters):
            if connection.state != "unknown":
                self.notes.violation("suback_unasked", connection, at)
            return
        connection.prove(request.at, at)
        session = connection.session
        for asked, code in zip(request.filters, codes, strict=True):
            if code < _ERROR and asked["filter"]:
                subscribed = Subscribed(
                    session.name,
                    asked["filter"],
                    split_shared(asked["filter"])[0] if connection.link.version == 5 else None,
                    code,
                    bool(asked.get("no_local")),
                    bool(asked.get("retain_as_published")),
                    request.identifier,
                    connection.link,
                    request.at,
                    at,
                )
                if connection.broker.subscribe(session, subscribed):
                    self.notes.subscriptions.append(subscribed)

    def _unsuback(self, connection: Connection, row: Row, at: Moment) -> None:
        request = connection.leaving.pop(row.get("packet_id") or 0, None)
        if request is None:
            if connection.state != "unknown":
                self.notes.violation("unsuback_unasked", connection, at)
            return
        connection.prove(request.at, at)
        for asked in request.filters:
            if asked["filter"]:
                connection.broker.unsubscribe(connection.session, asked["filter"], request.at, at)

    def _pingreq(self, connection: Connection, row: Row, at: Moment) -> None:
        if len(connection.pings) < MAX_ASKED:
            connection.pings.append(at)
        else:
            self.notes.dropped["requests"] += 1

    def _pingresp(self, connection: Connection, row: Row, at: Moment) -> None:
        if connection.pings:
            connection.prove(connection.pings.popleft(), at)
        elif connection.state != "unknown":
            self.notes.violation("pingresp_unasked", connection, at)

    # --- the end ----------------------------------------------------------------------------

    def _disconnect(self, connection: Connection, row: Row, at: Moment, by_client: bool) -> None:
        link, session = connection.link, connection.session
        if by_client and "session_expiry_interval" in (
            said := properties_of(row.get("properties"))
        ):
            _set_expiry(link, said["session_expiry_interval"])
        if session.link is not link:
            return
        event = "dropped"
        if by_client:
            keeps = row.get("return_code") == _WITH_WILL
            event = "disconnected_with_will" if keeps else "disconnected"
        connection.broker.close(session, at, "client" if by_client else "server", event)
        if by_client:
            # The broker reads a stream in order, so it has read what came before.
            for message in connection.unproved:
                message.accepted = at

    def finish(self, ends_known: bool) -> None:
        """Count what is on its way on the connections that the capture leaves open.

        Parameters
        ----------
        ends_known
            Whether those connections were open to the end; if not, they were as long as packets
            came.
        """
        for connection in self._connections.values():
            link, session = connection.link, connection.session
            if link.ended_by == "open" and session.link is link:
                last = link.last or link.opened
                link.until = None if ends_known else last.place
                self._closed(session, last)

    def _closed(self, session: Session, at: Moment) -> None:
        """Tell what was on its way when a connection ended."""
        link = session.link
        assert link is not None
        counts = []
        for upward, direction in ((True, session.up), (False, session.down)):
            packet_ids = sorted(direction.sender.in_flight())
            counts.append(len(packet_ids))
            for packet_id in packet_ids:
                self.notes.fact("in_flight", link, upward, packet_id, at)
        link.in_flight = counts[0], counts[1]

    def end(self, end: End, place: int) -> None:
        """Take the end of a stream, as TCP shows it; the first of a connection ends it."""
        known = self._streams.get((end.source, end.stream))
        if known is None:
            return
        connection = known[0]
        at = Moment(place, end.captured_ns, end.frame, end.source, end.stream, -1)
        connection.broker.pass_time(at)
        if connection.session.link is connection.link:
            connection.broker.close(connection.session, at, "dropped")


_WITH_SESSION_PRESENT: Final = 4


def _set_expiry(link: Link, expiry_s: int) -> None:
    """Say how long the session outlives the connection."""
    if link.version == 5:
        link.persistent = expiry_s > 0
        link.expires_s = None if expiry_s == _FOREVER_S else expiry_s
    else:
        link.persistent = not link.fresh


def _will_of(connection: Connection, opening: Mapping[str, Any]) -> Will | None:
    topic = opening.get("will_topic")
    if topic is None:
        return None
    properties = properties_of(opening.get("will_properties"))
    message = Message(
        origin="will",
        sent=connection.link.opened,
        link=connection.link,
        topic=topic,
        payload=opening.get("will_payload") or b"",
        qos=opening.get("will_qos") or 0,
        retain=bool(opening.get("will_retain")),
        expires_s=properties.get("message_expiry_interval"),
        response_topic=properties.get("response_topic"),
        correlation_data=properties.get("correlation_data"),
    )
    return Will(message, properties.get("will_delay_interval", 0))
