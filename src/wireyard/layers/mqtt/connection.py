"""The state of a connection: the packets each side may send, CONNECT, CONNACK and DISCONNECT.

`CONNECTION` is the state table; `Connection` is the state of one connection, and `Stream` is one
direction of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.packet_row import FilterRow, PacketRow, Properties
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT
from wireyard.layers.mqtt.records import (
    SMALLEST_WINDOW,
    ConnectionRecord,
    Message,
    Output,
    Subscribed,
    content_of,
    properties_of,
)
from wireyard.layers.mqtt.session import Broker, Session
from wireyard.layers.mqtt.topics import Aliases
from wireyard.layers.mqtt.violations import NEEDS_ALL_CONNECTIONS, NEEDS_ALL_PACKETS, Breach, cite
from wireyard.layers.mqtt.will import Will
from wireyard.layers.records import Position, position_of
from wireyard.layers.states import Cell, StateTable

__all__ = [
    "CONNECTION",
    "CONNECTION_EVENTS",
    "FLOWING",
    "MAX_EARLY",
    "PLAIN",
    "Connection",
    "Request",
    "Stream",
    "StreamInfo",
    "connack",
    "connect",
    "connection_event",
    "disconnect",
    "open_unanswered",
]

CONNECTION_EVENTS: Final = (
    "connect", "client", "client_auth", "client_disconnect",
    "connack", "refusal", "server", "server_auth", "server_disconnect",
)  # fmt: skip
"""``client`` and ``server`` are all other packets of that side."""


def _forbidden(state: str, rule: str) -> dict[str, Cell[str, str]]:
    return dict.fromkeys(CONNECTION_EVENTS, Cell(state, None, rule))


CONNECTION: Final[StateTable[str, str, str]] = StateTable(
    {
        "new": {
            **_forbidden("new", "connack_first"),
            "connect": Cell("asked"),
            "client": Cell("unknown", None, "connect_first"),
            "client_auth": Cell("unknown", None, "connect_first"),
            "client_disconnect": Cell("left", "left", "connect_first"),
        },
        # The beginning of the connection was not captured.
        "unknown": {
            "connect": Cell("asked", None, "connect_twice"),
            "client": Cell("unknown"),
            "client_auth": Cell("unknown"),
            "client_disconnect": Cell("left", "left"),
            "connack": Cell("open", "opened"),
            "refusal": Cell("refused", "refused"),
            "server": Cell("unknown"),
            "server_auth": Cell("unknown"),
            "server_disconnect": Cell("closed", "closed"),
        },
        # A client need not wait for CONNACK.
        "asked": {
            **_forbidden("asked", "connack_first"),
            "connect": Cell("asked", None, "connect_twice"),
            "client": Cell("asked"),
            "client_auth": Cell("asked"),
            "client_disconnect": Cell("left", "left"),
            "connack": Cell("open", "opened"),
            "refusal": Cell("refused", "refused"),
            "server_auth": Cell("asked"),
        },
        "open": {
            **_forbidden("open", "connack_twice"),
            "connect": Cell("open", None, "connect_twice"),
            "client": Cell("open"),
            "client_auth": Cell("open"),
            "client_disconnect": Cell("left", "left"),
            "server": Cell("open"),
            "server_auth": Cell("open"),
            "server_disconnect": Cell("closed", "closed"),
        },
        # Packets that the client sent before it read the refusal have no effect.
        "refused": {
            **_forbidden("refused", "after_refusal"),
            "connect": Cell("refused", None, "connect_twice"),
            "client": Cell("refused"),
            "client_auth": Cell("refused"),
            "client_disconnect": Cell("refused"),
        },
        # Packets that the broker sent before it read the DISCONNECT still arrive.
        "left": {
            **_forbidden("left", "after_disconnect"),
            "connack": Cell("left", "opened"),
            "refusal": Cell("refused", "refused"),
            "server": Cell("left"),
            "server_auth": Cell("left"),
            "server_disconnect": Cell("left"),
        },
        # Packets that the client sent before it read the DISCONNECT still arrive.
        "closed": {
            **_forbidden("closed", "after_disconnect"),
            "connect": Cell("closed", None, "connect_twice"),
            "client": Cell("closed"),
            "client_auth": Cell("closed"),
            "client_disconnect": Cell("closed"),
        },
    },
    CONNECTION_EVENTS,
)
"""A connection from CONNECT to DISCONNECT; the table is complete."""

_BOTH: Final = {
    layout.PUBLISH, layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP,
}  # fmt: skip
_CLIENT: Final = {
    layout.CONNECT: "connect",
    **dict.fromkeys(_BOTH, "client"),
    **dict.fromkeys((layout.SUBSCRIBE, layout.UNSUBSCRIBE, layout.PINGREQ), "client"),
    layout.DISCONNECT: "client_disconnect",
    layout.AUTH: "client_auth",
}
_SERVER: Final = {
    layout.CONNACK: "connack",
    **dict.fromkeys(_BOTH, "server"),
    **dict.fromkeys((layout.SUBACK, layout.UNSUBACK, layout.PINGRESP), "server"),
    layout.DISCONNECT: "server_disconnect",
    layout.AUTH: "server_auth",
}
_NOT_OF_A_BROKER_BEFORE_5: Final = layout.DISCONNECT

FLOWING: Final = frozenset({"open", "unknown"})
"""The states in which the packets of both sides take effect."""
PLAIN: Final[Mapping[bool, frozenset[int]]] = MappingProxyType(
    {
        True: frozenset(kind for kind, event in _CLIENT.items() if event == "client"),
        False: frozenset(kind for kind, event in _SERVER.items() if event == "server"),
    }
)
"""The packet types that leave these states unchanged, by whether the client sends them."""


def connection_event(
    from_client: bool, packet_type: int, version: int, code: int = 0
) -> str | None:
    """Return the event of a packet in its connection, None if its sender may not send it.

    Parameters
    ----------
    code
        Return or reason code of CONNACK.
    """
    if from_client:
        return _CLIENT.get(packet_type)
    if packet_type == _NOT_OF_A_BROKER_BEFORE_5 and version < 5:
        return None
    return "refusal" if packet_type == layout.CONNACK and code else _SERVER.get(packet_type)


_WITH_RETAIN_AS_PUBLISHED: Final = 5
MAX_EARLY: Final = 1000
"""Packets of a client that wait for CONNACK, which comes within a round trip."""


class StreamInfo(NamedTuple):
    """The context of a stream, known before its packets."""

    from_client: bool
    alone: bool
    """Whether nothing was captured of the other stream of its connection."""
    begun: bool | None
    """Whether its beginning was captured; None if the capture shows no beginnings and ends."""
    resets: bool
    """Whether it ends with a reset, which ends the other stream too."""
    older: bool = False
    """As of `Side`, like the next one."""
    followed: bool = False
    until_ns: int | None = None
    """The time of the last packet of its capture."""


class Request(NamedTuple):
    """A SUBSCRIBE or an UNSUBSCRIBE that waits for its answer."""

    filters: list[FilterRow]
    identifier: int | None
    at: Position


class Connection:
    """The state of a connection.

    Parameters
    ----------
    key
        The key that its streams share.
    info
        The context of the first of them.
    """

    __slots__ = (
        "_begun",
        "aliases",
        "alone",
        "asked",
        "broker",
        "connect_row",
        "early",
        "key",
        "leaving",
        "lost_last",
        "lost_since_ns",
        "most_bytes",
        "open_streams",
        "output",
        "pending_violations",
        "pings",
        "record",
        "session",
        "shows_end",
        "state",
        "streams",
        "unanswered",
        "unconfirmed",
        "unread",
    )  # fmt: skip

    def __init__(
        self,
        key: tuple[str, ...],
        info: StreamInfo,
        record: ConnectionRecord,
        broker: Broker,
        output: Output,
    ) -> None:
        self.key = key
        self.record = record
        self.broker = broker
        self.output = output
        self.state = "new" if info.begun else "unknown"
        self._begun = bool(info.begun)
        self.shows_end = info.begun is not None
        """Whether the capture would show its end."""
        self.alone = info.alone
        self.unanswered = False
        """Whether its CONNACK was not captured."""
        self.lost_last = {True: False, False: False}
        """Whether the latest gap is behind all captured packets, by `from_client`."""
        self.lost_since_ns: int | None = None
        """Since when packets of the client may be missing that change retained values, until its
        next packet; 0 before the first packet of the connection."""
        self.open_streams = 1 if info.alone else 2
        """How many of its captured streams have not ended."""
        self.streams: list[tuple[str, str]] = []
        """Its streams that had packets."""
        self.session = Session(record.client.name, False, output.tracker)
        self.session.connection = record
        self.connect_row: PacketRow | None = None
        """The CONNECT."""
        self.early: list[tuple[PacketRow, Position]] = []
        """Packets of the client before CONNACK."""
        self.pending_violations: list[Breach] = []
        """Violations before CONNACK, which may assign the client id."""
        self.aliases = {True: Aliases(), False: Aliases()}
        """By whether the client sets them."""
        self.most_bytes: dict[bool, int | None] = {True: None, False: None}
        """The Maximum Packet Size, by whether it limits the client."""
        self.asked: dict[int, Request] = {}
        """Unanswered SUBSCRIBE packets by packet identifier."""
        self.leaving: dict[int, Request] = {}
        """Unanswered UNSUBSCRIBE packets by packet identifier."""
        self.pings: deque[Position] = deque()
        """Unanswered PINGREQ packets."""
        self.unread: Any = None
        """The tracker's state: messages at QoS 0 without evidence yet that the broker read them."""
        self.unconfirmed: deque[Subscribed] = deque()
        """Subscriptions whose retained values may still follow; at most `MAX_FILTERS`."""

    def keep_session(self) -> None:
        """Use a session of its own, if the session has moved to a newer connection."""
        if self.session.connection is not self.record:
            self.session = Session(self.record.client.name, False, self.output.tracker)
            self.session.connection = self.record

    def observe_behind_gap(self, at: Position, from_client: bool) -> None:
        """Observe a packet of one side, which may be the first one behind a gap."""
        if self.lost_since_ns is not None:
            self.lost_since_ns = self.lost_since_ns or at.reached_ns
            if from_client:
                self.lose_until(at.reached_ns)
        if self.lost_last[from_client]:
            self.lost_last[from_client] = False
            if not self.lost_last[not from_client]:
                self.record.unsure_before = at

    def lose_until(self, stop_ns: int) -> None:
        """Note that packets of the client may be missing until a time, if any are."""
        if self.lost_since_ns is not None:
            self.broker.lost.append((self.lost_since_ns, stop_ns))
            self.lost_since_ns = None

    def confirm_read(self, request: Position, answer: Position) -> None:
        """Mark everything sent before `request` as read by the broker."""
        self.record.answered = max(self.record.answered or request, request)
        self.confirm(request, answer)
        self.output.tracker.accept_before(self, request, answer)

    def confirm(self, request: Position, answer: Position) -> None:
        """Confirm subscriptions before `request`: the broker has sent their retained values."""
        waiting = self.unconfirmed
        if not waiting or waiting[0].granted > request or self.record.damaged:
            return
        if len(self.session.to_client.in_flight()) >= SMALLEST_WINDOW:
            return
        while waiting and waiting[0].granted < request:
            subscribed = waiting.popleft()
            if subscribed.gone is None:
                subscribed.confirmed = answer

    def breaks(
        self, rule: str, from_client: bool, at: Position, message_key: str | None = None
    ) -> None:
        """Add a violation of a rule by one side, if the connection's version has the rule."""
        if rule in NEEDS_ALL_PACKETS and not self._is_whole:
            return
        if rule in NEEDS_ALL_CONNECTIONS and self.broker.has_older:
            return
        citation = cite(rule, self.record.version)
        if citation is not None:
            self.add_violation(Breach(*citation, self.record, from_client, at, message_key))

    @property
    def may_publish_as_retained(self) -> bool:
        """Whether a subscription that was not captured may have Retain As Published."""
        is_known = self.session.known and self.session.is_whole and not self.record.has_gap
        return self.record.version == _WITH_RETAIN_AS_PUBLISHED and not is_known

    @property
    def _is_whole(self) -> bool:
        """Whether all packets of the session up to now were captured."""
        is_damaged = self.record.damaged or not self.session.is_whole
        return (self.record.begun or self._begun) and not (is_damaged or self.alone)

    def add_violation(self, breach: Breach) -> None:
        """Output a violation; before CONNACK keep it until the client id is known."""
        if self.state in ("new", "asked") and len(self.pending_violations) < MAX_EARLY:
            self.pending_violations.append(breach)
        else:
            self.output.violations.append(breach)

    def flush_violations(self) -> None:
        """Output the pending violations: CONNACK has come, or none will."""
        self.output.violations += self.pending_violations
        self.pending_violations.clear()

    def release_session(self, session: Session) -> None:
        """Output the messages and subscriptions of a session that no connection will resume."""
        self.output.subscriptions += session.filters.values()
        session.filters.clear()
        over = list(session.leave())
        self.broker.tracked -= len(over)
        self.output.tracker.over(over)


class Stream:
    """One direction of a connection, and its progress.

    Parameters
    ----------
    row
        The first of its rows.
    from_client
        Whether the client sends it.
    """

    __slots__ = ("connection", "first", "frame", "from_client", "name", "ns", "source")

    connection: Connection

    def __init__(self, row: PacketRow, from_client: bool) -> None:
        self.source: str = row["source"]
        self.name: str = row["stream"]
        self.from_client = from_client
        self.ns = self.frame = 0
        self.first = self.advance(row)

    def advance(self, row: PacketRow) -> Position:
        """Return the position of the next row."""
        ns: int | None = row.get("captured_ns")
        frame: int = row.get("frame", 0)
        if ns is not None and (ns > self.ns or (ns == self.ns and frame > self.frame)):
            self.ns, self.frame = ns, frame
        return position_of((self.ns, self.frame, self.name, row["offset"], ns, frame, self.source))


_WITH_WILL: Final = 4
"""Reason code of a DISCONNECT after which the will is still published."""
_WITH_SESSION_PRESENT: Final = 4
"""The first version whose CONNACK has Session Present."""
_WITH_SERVER_KEEP_ALIVE: Final = 5
"""The version whose CONNACK may replace the keep-alive of the client."""
_FOREVER_S: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire."""


def connect(connection: Connection, row: PacketRow, at: Position) -> None:
    """Observe the CONNECT of a connection."""
    record = connection.record
    properties = properties_of(row.get("properties"))
    record.opened, record.begun = at, True
    client_id = row.get("client_id")
    name = client_id or record.client.name
    record.client = record.client._replace(name=name, client_id=client_id)
    record.user = row.get("username")
    record.keep_alive = row.get("keep_alive")
    record.clean_start = bool(row.get("clean_start"))
    record.maximum_packet_size = properties.get("maximum_packet_size")
    connection.most_bytes[False] = record.maximum_packet_size
    _set_expiry(record, properties.get("session_expiry_interval", 0))
    connection.aliases[False] = Aliases(properties.get("topic_alias_maximum", 0))
    connection.connect_row = row
    if connection.unanswered:
        open_unanswered(connection, at)


def open_unanswered(connection: Connection, at: Position) -> None:
    """Open a connection whose CONNACK was not captured: presume that it was accepted."""
    connection.state = "unknown"
    if connection.record.version == _WITH_SERVER_KEEP_ALIVE:
        connection.record.keep_alive = None
    _open(connection, {}, at)
    connection.aliases[True] = Aliases()


def connack(connection: Connection, row: PacketRow, at: Position) -> None:
    """Observe a CONNACK, which refuses the connection or opens it."""
    record = connection.record
    record.status = row.get("return_code") or 0
    if record.status:
        record.ended_by, record.closed, record.until = "refused", at, at
        connection.early.clear()
    elif record.accepted is None:
        present = row.get("session_present") if record.version >= _WITH_SESSION_PRESENT else None
        record.resumed = present
        if present and record.clean_start and connection.connect_row:
            connection.breaks("session_present_clean", False, at)
        _open(connection, properties_of(row.get("properties")), at)
    connection.flush_violations()


def _open(connection: Connection, answer: Properties, at: Position) -> None:
    """Open the session of a connection; `answer` has the properties of CONNACK."""
    record, connect_row = connection.record, connection.connect_row
    request = properties_of(connect_row.get("properties") if connect_row else None)
    record.accepted = at
    if assigned := answer.get("assigned_client_identifier"):
        record.client = record.client._replace(name=assigned, client_id=assigned)
    if "session_expiry_interval" in answer:
        _set_expiry(record, answer["session_expiry_interval"])
    record.keep_alive = answer.get("server_keep_alive", record.keep_alive)
    connection.aliases[True] = Aliases(answer.get("topic_alias_maximum", 0))
    connection.most_bytes[True] = answer.get("maximum_packet_size")
    limits = (
        answer.get("receive_maximum", MAX_IN_FLIGHT),
        request.get("receive_maximum", MAX_IN_FLIGHT),
    )
    will = _will_of(connection, connect_row) if connect_row else None
    # Without the CONNECT the client id is unknown, so the session may be an older one.
    present = record.resumed if record.begun else True
    before, connection.session = (
        connection.session,
        connection.broker.open(record, will, present, limits),
    )
    connection.broker.has_older |= not (connection.session.known or connection.alone)
    if before is not connection.session:
        connection.release_session(before)


def disconnect(connection: Connection, row: PacketRow, at: Position, from_client: bool) -> None:
    """Observe a DISCONNECT."""
    record, session = connection.record, connection.session
    properties = properties_of(row.get("properties"))
    if from_client and "session_expiry_interval" in properties:
        _set_expiry(record, properties["session_expiry_interval"])
    if session.connection is not record:
        return
    event = "dropped"
    if from_client:
        with_will = row.get("return_code") == _WITH_WILL
        event = "disconnected_with_will" if with_will else "disconnected"
    elif record.ended_by == "open":
        record.end_code = row.get("return_code") or 0
        record.end_reason = properties.get("reason_string")
    connection.broker.close(session, at, "client" if from_client else "server", event)
    if from_client:
        # The broker reads the stream in order, so it has read everything before.
        connection.output.tracker.accept_all(connection, at)


def _set_expiry(record: ConnectionRecord, expiry_s: int) -> None:
    """Set how long the session outlives the connection."""
    if record.version == 5:
        record.persistent = expiry_s > 0
        record.expires_s = None if expiry_s == _FOREVER_S else expiry_s
    else:
        record.persistent = not record.clean_start


def _will_of(connection: Connection, connect_row: PacketRow) -> Will | None:
    topic = connect_row.get("will_topic")
    if topic is None:
        return None
    properties = properties_of(connect_row.get("will_properties"))
    payload, retain = connect_row.get("will_payload") or b"", bool(connect_row.get("will_retain"))
    message = Message(
        origin="will",
        sent=connection.record.opened,
        client=connection.record.client,
        topic=topic,
        content=content_of(payload),
        qos=connect_row.get("will_qos") or 0,
        retain=retain,
        value=payload if retain else None,
        expires_s=properties.get("message_expiry_interval"),
        response_topic=properties.get("response_topic"),
        correlation_data=properties.get("correlation_data"),
    )
    return Will(message, properties.get("will_delay_interval", 0))
