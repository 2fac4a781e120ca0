"""Sessions in a kernel: their flows, subscriptions and wills, which outlive connections.

A session belongs to a client id of a broker. No packet marks the end of a will delay or of a
session expiry, so both are checked when the client connects again, and at the end of the capture.
"""

from __future__ import annotations

from typing import Any, Final

from wireyard.accelerate import inlined
from wireyard.layers.mqtt.connection import CONNECTION, WILL
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NO_TIME,
    NONE,
    Connection,
    Count,
    Direction,
    EndedBy,
    Flow,
    Moment,
    Rare,
    Record,
    Session,
    Status,
    Stream,
    Subscription,
    Will,
    WillFate,
)
from wireyard.layers.mqtt.kernels.messages import (
    FIRST_STATES,
    IN_FLIGHT_STATES,
    TABLES,
    unsure_before,
    window_of,
)
from wireyard.layers.mqtt.kernels.requests import end_subscriptions
from wireyard.layers.mqtt.kernels.slots import client_of, rare_of
from wireyard.layers.mqtt.qos import EVENTS, MAX_IN_FLIGHT
from wireyard.layers.states import EFFECT, NEXT, transitions

_RESUMED, _DISCARDED = map(EVENTS.index, ("resumed", "discarded"))
_PUBLISHED, _DROPPED = range(2)
_WILLS: Final = transitions(WILL, ("published", "dropped"))
_ARMED: Final = WILL.states.index("armed")
_WILL_DROPPED, _DELAY_OVER, _SESSION_OVER, _BACK = map(
    WILL.events.index, ("dropped", "delay_over", "session_over", "back")
)
_LEFT: Final = CONNECTION.states.index("left")
_NS_PER_S: Final = 1_000_000_000


@inlined
def _delay(t: Any, moment: int, seconds: int) -> int:
    """Return the moment that is a delay after a packet or an end; -1 if that has no time."""
    packets = len(t.packets)
    if moment < packets:
        ns, stream = t.ns[moment], t.stream[moment]
    else:
        stream = moment - packets
        ns = t.streams[stream, Stream.ENDED_NS]
    if ns == NO_TIME:
        return NONE
    row = t.counts[Count.MOMENTS]
    t.counts[Count.MOMENTS] = row + 1
    t.moments[row, Moment.NS] = ns + seconds * _NS_PER_S
    t.moments[row, Moment.STREAM] = stream
    return int(packets + len(t.streams) + row)


@inlined
def _is_over(t: Any, moment: int, packet: int) -> bool:
    """Return whether a delay, if there is one, has ended before a packet."""
    if moment == NONE:
        return False
    row = moment - len(t.packets) - len(t.streams)
    ns = t.moments[row, Moment.NS]
    if ns != t.reached_ns[packet]:
        return bool(ns < t.reached_ns[packet])
    is_later = t.reached_frame[packet] > 0
    return bool(is_later or t.moments[row, Moment.STREAM] <= t.stream[packet])


# --- messages in flight ---------------------------------------------------------------------


@inlined
def new_session(t: Any, c: int, is_known: int, is_kept: int) -> int:
    """Return a new session of a connection."""
    session = t.counts[Count.SESSIONS]
    t.counts[Count.SESSIONS] = session + 1
    row = t.sessions[session]
    row[:] = NONE
    row[Session.CONNECTION] = c
    row[Session.IS_KEPT] = is_kept
    row[Session.IS_KNOWN] = is_known
    row[Session.IS_WHOLE] = 1
    row[Session.ACTIVE] = row[Session.NAME_COUNT] = 0
    for d in (2 * session, 2 * session + 1):
        t.directions[d, Direction.FLOWS] = NONE
        t.directions[d, Direction.IS_KNOWN] = is_known
        t.directions[d, Direction.QUOTA] = t.directions[d, Direction.MAXIMUM] = MAX_IN_FLIGHT
        t.directions[d, Direction.IN_FLIGHT] = 0
        t.directions[d, Direction.FREED] = NONE
    return int(session)


@inlined
def _connect_direction(t: Any, d: int, kept: int, receive_maximum: int) -> None:
    """Begin a new connection; the messages that this ends have no flow any more."""
    direction, flows = t.directions[d], t.flows
    direction[Direction.QUOTA] = direction[Direction.MAXIMUM] = receive_maximum
    direction[Direction.FREED] = NONE
    if not kept:
        direction[Direction.IS_KNOWN] = 1
    first = FIRST_STATES[direction[Direction.IS_KNOWN], 0]
    event, in_flight = _RESUMED if kept else _DISCARDED, 0
    flow = direction[Direction.FLOWS]
    while flow != NONE:
        sender = TABLES[0, flows[flow, Flow.SENDER], event, NEXT]
        flows[flow, Flow.SENDER] = sender
        flows[flow, Flow.RECEIVER] = TABLES[1, flows[flow, Flow.RECEIVER], event, NEXT]
        if sender == first:
            flows[flow, Flow.RECORD] = NONE
        in_flight += IN_FLIGHT_STATES[sender]
        flow = flows[flow, Flow.NEXT]
    direction[Direction.IN_FLIGHT] = in_flight


@inlined
def _forget(t: Any, d: int) -> None:
    """Make the state of a direction unknown, as in a session that is older than the capture."""
    flow = t.directions[d, Direction.FLOWS]
    while flow != NONE:
        t.flows[flow, Flow.SENDER] = FIRST_STATES[0, 0]
        t.flows[flow, Flow.RECEIVER] = FIRST_STATES[0, 1]
        t.flows[flow, Flow.RECORD] = NONE
        flow = t.flows[flow, Flow.NEXT]
    t.directions[d, Direction.IS_KNOWN] = t.directions[d, Direction.IN_FLIGHT] = 0


@inlined
def _mark(t: Any, d: int, status: int, before: int) -> None:
    """Mark the messages of a direction that were sent before a packet and are not acknowledged.

    With the status `ABANDONED` all messages are marked.
    """
    flow = t.directions[d, Direction.FLOWS]
    while flow != NONE:
        record = t.flows[flow, Flow.RECORD]
        if record != NONE and t.records[record, Record.PACKET] < before:
            is_open = t.records[record, Record.ACCEPTED] == NONE
            if is_open or status == Status.ABANDONED:
                t.records[record, Record.STATUS] |= status
        flow = t.flows[flow, Flow.NEXT]


@inlined
def untrace(t: Any, session: int) -> None:
    """Mark all messages of a session that are not acknowledged: they may be elsewhere."""
    _mark(t, 2 * session, Status.UNTRACED, ALWAYS)
    _mark(t, 2 * session + 1, Status.UNTRACED, ALWAYS)


@inlined
def end_flows(t: Any, session: int, c: int) -> None:
    """Count the messages in flight at the end of a connection.

    Those whose acknowledgement may be in a gap are marked.
    """
    connections, unsure = t.connections, unsure_before(t, c)
    if unsure != NONE:
        t.sessions[session, Session.IS_WHOLE] = 0
        _mark(t, 2 * session + 1, Status.UNTRACED, unsure)
    to_client = 2 * session + 1
    is_full = t.directions[to_client, Direction.IN_FLIGHT] >= window_of(t, to_client)
    connections[c, Connection.IS_FULL] = is_full
    connections[c, Connection.SHOWS_IN_FLIGHT] = t.sessions[session, Session.IS_WHOLE]
    connections[c, Connection.SENT] = t.directions[2 * session, Direction.IN_FLIGHT]
    connections[c, Connection.RECEIVED] = t.directions[to_client, Direction.IN_FLIGHT]


@inlined
def resume(t: Any, session: int, c: int, kept: int, up: int, down: int) -> None:
    """Begin a new connection of a session.

    If the session is not resumed (`kept`), a new one of the same name begins. `up` and `down` are
    the Receive Maximum of the broker and of the client.
    """
    row = t.sessions[session]
    row[Session.CONNECTION], row[Session.EXPIRES] = c, NONE
    if not kept:
        row[Session.IS_KNOWN] = row[Session.IS_WHOLE] = 1
        _mark(t, 2 * session + 1, Status.ABANDONED, ALWAYS)
    _connect_direction(t, 2 * session, kept, up)
    _connect_direction(t, 2 * session + 1, kept, down)
    row[Session.WILL] = _new_will(t, c)


@inlined
def may_have_changed(t: Any, session: int) -> bool:
    """Return whether a connection of an unknown client id may have continued a session."""
    c = t.sessions[session, Session.CONNECTION]
    stream = t.stream[t.connections[c, Connection.FIRST]]
    is_followed = t.streams[stream, Stream.IS_FOLLOWED]
    return bool(is_followed and t.connections[c, Connection.IS_PERSISTENT])


@inlined
def ended_with_connection(t: Any, session: int) -> bool:
    """Return whether a session, of which no connection was missed, was over with its last one."""
    c = t.sessions[session, Session.CONNECTION]
    is_followed = t.streams[t.stream[t.connections[c, Connection.FIRST]], Stream.IS_FOLLOWED]
    return not (t.connections[c, Connection.IS_PERSISTENT] or is_followed)


# --- wills ----------------------------------------------------------------------------------


@inlined
def _new_will(t: Any, c: int) -> int:
    """Return the will of a connection, -1 if it has none."""
    connect = t.connections[c, Connection.CONNECT]
    if connect == NONE or not t.rare[rare_of(t, connect), Rare.HAS_WILL]:
        return NONE
    will = t.counts[Count.WILLS]
    t.counts[Count.WILLS] = will + 1
    row = t.wills[will]
    row[:] = NONE
    row[Will.CONNECT], row[Will.CLIENT] = connect, client_of(t, c)
    row[Will.STATE], row[Will.FATE] = _ARMED, WillFate.OPEN
    return int(will)


@inlined
def _step_will(t: Any, will: int, event: int, at: int, fate: int) -> int:
    """Apply an event to a will; return the effect. It may be published, at a moment."""
    row = t.wills[will]
    cell = _WILLS[row[Will.STATE], event]
    row[Will.STATE] = cell[NEXT]
    if cell[EFFECT] == _PUBLISHED:
        row[Will.ACCEPTED], row[Will.FATE] = at, fate
    return int(cell[EFFECT])


@inlined
def _close_will(t: Any, will: int, event: int, c: int, at: int) -> None:
    if will == NONE or _step_will(t, will, event, at, WillFate.PUBLISHED) == _DROPPED:
        return
    last, expires_s = t.connections[c, Connection.LAST], t.connections[c, Connection.EXPIRES_S]
    # A broker that drops a client may publish the will before it sends its FIN.
    t.wills[will, Will.RELEASED] = at if last == NONE else last
    delay_s = t.rare[rare_of(t, t.wills[will, Will.CONNECT]), Rare.WILL_DELAY_S]
    if delay_s <= 0 or not t.connections[c, Connection.IS_PERSISTENT]:
        _step_will(t, will, _DELAY_OVER, at, WillFate.PUBLISHED)
    else:
        seconds = delay_s if expires_s == NONE else min(delay_s, expires_s)
        t.wills[will, Will.DUE] = _delay(t, at, seconds)


# --- the end of connections and sessions ----------------------------------------------------


@inlined
def close(t: Any, session: int, at: int, ended_by: int, will_event: int, until: int) -> None:
    """End the current connection of a session at the moment `at`, if it is open.

    `until` is the last moment at which it was certainly open.
    """
    c = t.sessions[session, Session.CONNECTION]
    row = t.connections[c]
    if row[Connection.ENDED_BY] != EndedBy.OPEN:
        return
    is_unsure = unsure_before(t, c) == ALWAYS
    if ended_by == EndedBy.DROPPED and is_unsure:
        ended_by = EndedBy.UNSEEN  # A goodbye may have been in the bytes that were not captured.
    if ended_by == EndedBy.DROPPED and row[Connection.STATE] == _LEFT:
        ended_by = EndedBy.CLIENT  # Its DISCONNECT waits for a CONNACK that did not come.
    row[Connection.ENDED_BY] = ended_by
    row[Connection.CLOSED], row[Connection.UNTIL] = at, until
    has_changed = may_have_changed(t, session)
    end_flows(t, session, c)
    if row[Connection.CONNECT] == NONE or has_changed:
        # The flows may go on in a connection that does not show whose it is.
        untrace(t, session)
    _close_will(t, t.sessions[session, Session.WILL], will_event, c, at)
    if not row[Connection.IS_PERSISTENT]:
        _mark(t, 2 * session + 1, Status.ABANDONED, ALWAYS)
        end_subscriptions(t, session, until, at)
    elif has_changed:
        t.sessions[session, Session.WILL] = NONE
        sub = t.sessions[session, Session.SUBSCRIPTIONS]
        while sub != NONE:
            if t.subscriptions[sub, Subscription.LEAVING] == NONE:
                t.subscriptions[sub, Subscription.LEAVING] = until
            sub = t.subscriptions[sub, Subscription.NEXT]
    elif row[Connection.EXPIRES_S] != NONE:
        t.sessions[session, Session.EXPIRES] = _delay(t, at, row[Connection.EXPIRES_S])


@inlined
def take_over(t: Any, session: int, c: int, kept: int) -> None:
    """End the current connection of a session, and the session itself unless it is resumed."""
    row = t.sessions[session]
    accepted = t.connections[c, Connection.ACCEPTED]
    opened = t.connections[c, Connection.OPENED]
    will = row[Session.WILL]
    if will != NONE and _is_over(t, t.wills[will, Will.DUE], accepted):
        _step_will(t, will, _DELAY_OVER, t.wills[will, Will.DUE], WillFate.PUBLISHED)
    if _is_over(t, row[Session.EXPIRES], accepted):
        end_subscriptions(t, session, row[Session.EXPIRES], row[Session.EXPIRES])
    last = t.connections[row[Session.CONNECTION], Connection.LAST]
    close(
        t, session, opened, EndedBy.DROPPED, _WILL_DROPPED, opened if last == NONE else last
    )  # fmt: skip
    will = row[Session.WILL]
    if will != NONE:
        _step_will(t, will, _BACK if kept else _SESSION_OVER, opened, WillFate.PUBLISHED)
    if not kept:
        end_subscriptions(t, session, opened, opened)
    if may_have_changed(t, session):
        _forget(t, 2 * session)
        _forget(t, 2 * session + 1)
        row[Session.IS_KNOWN] = 0


@inlined
def finish_session(t: Any, session: int) -> None:
    """End what ends after the last packet: a session that expires, a will that is delayed."""
    row = t.sessions[session]
    if not row[Session.IS_KEPT]:
        return
    if row[Session.EXPIRES] != NONE:
        stream = t.stream[t.connections[row[Session.CONNECTION], Connection.FIRST]]
        moment = row[Session.EXPIRES] - len(t.packets) - len(t.streams)
        if t.moments[moment, Moment.NS] <= t.streams[stream, Stream.CAPTURE_ENDS_NS]:
            _mark(t, 2 * session + 1, Status.ABANDONED, ALWAYS)
        end_subscriptions(t, session, row[Session.EXPIRES], row[Session.EXPIRES])
    will = row[Session.WILL]
    if will != NONE and t.wills[will, Will.DUE] != NONE:
        _step_will(t, will, _DELAY_OVER, t.wills[will, Will.DUE], WillFate.WAITING)
