"""Sessions in a kernel: their flows, subscriptions and wills, which outlive connections.

A session belongs to a client id of a broker. No packet marks the end of a will delay or of a
session expiry, so both are checked when the client connects again, and at the end of the capture.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NO_TIME,
    NONE,
    Client,
    Connection,
    Count,
    Direction,
    EndedBy,
    Flow,
    Key,
    Moment,
    Name,
    Rare,
    Record,
    Session,
    Status,
    Stream,
    Subscription,
    TopicFilter,
    Will,
    WillFate,
)
from wireyard.layers.mqtt.qos import EVENTS, IN_FLIGHT, MAX_IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.mqtt.slots import Owner, slot_of
from wireyard.layers.mqtt.will import WILL
from wireyard.layers.states import EFFECT, NEXT, transitions

__all__ = [
    "FIRST_STATES",
    "IN_FLIGHT_STATES",
    "MAX_FILTERS",
    "client_of",
    "close",
    "end_flows",
    "end_subscriptions",
    "finish_session",
    "new_session",
    "rare_of",
    "resume",
    "slots_of",
    "subscribe",
    "take_over",
    "unsubscribe",
]

MAX_FILTERS: Final = 1 << 14
"""Subscriptions of one session; brokers that limit them allow thousands."""

_STATES: Final = (SENDER.states, RECEIVER.states)
FIRST_STATES: Final = np.array(
    [[states.index("free" if known else "unknown") for states in _STATES] for known in (0, 1)]
)
"""Whether a session was captured from its beginning x role -> the state of a packet identifier."""
IN_FLIGHT_STATES: Final = np.array([state in IN_FLIGHT for state in SENDER.states], np.int64)
"""Whether a message is in flight in each state of the sender."""
_NEW_CONNECTION: Final = np.array(
    [
        [transitions(table)[state, EVENTS.index(name), NEXT] for state in range(len(table.states))]
        + [NONE] * (len(SENDER.states) - len(table.states))
        for table in (SENDER, RECEIVER)
        for name in ("discarded", "resumed")
    ]
).reshape(2, 2, -1)
"""Role x whether the session is resumed x state -> next state."""
_PUBLISHED, _DROPPED = range(2)
_WILLS: Final = transitions(WILL, ("published", "dropped"))
_ARMED: Final = WILL.states.index("armed")
(
    _DISCONNECTED, _DISCONNECTED_WITH_WILL, _WILL_DROPPED, _DELAY_OVER, _SESSION_OVER, _BACK,
) = map(
    WILL.events.index,
    ("disconnected", "disconnected_with_will", "dropped", "delay_over", "session_over", "back"),
)  # fmt: skip
WILL_EVENT_OF_END: Final = np.array([_DISCONNECTED, _DISCONNECTED_WITH_WILL, _WILL_DROPPED])
_NS_PER_S: Final = 1_000_000_000


@inlined
def slots_of(t: Any) -> int:
    """Return the number of slots of the current key."""
    return int(t.keys[t.counts[Count.KEY], Key.SLOTS])


@inlined
def rare_of(t: Any, packet: int) -> int:
    """Return the row of `Rare` of a packet."""
    return int(t.rare_row[t.kept_row[packet]])


@inlined
def client_of(t: Any, c: int) -> int:
    """Return the number of the client of a connection, as it is named now."""
    connections = t.connections
    client = connections[c, Connection.CLIENT]
    if client == NONE:
        client = t.counts[Count.CLIENTS]
        t.counts[Count.CLIENTS] = client + 1
        t.clients[client, Client.CONNECTION] = c
        t.clients[client, Client.NAME] = connections[c, Connection.NAME]
        t.clients[client, Client.CLIENT_ID] = connections[c, Connection.CLIENT_ID]
        connections[c, Connection.CLIENT] = client
    return int(client)


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
    return int(session)


@inlined
def _connect_direction(t: Any, d: int, kept: int, receive_maximum: int) -> None:
    """Begin a new connection; the messages that this ends have no flow any more."""
    direction, flows = t.directions[d], t.flows
    direction[Direction.QUOTA] = direction[Direction.MAXIMUM] = receive_maximum
    if not kept:
        direction[Direction.IS_KNOWN] = 1
    first = FIRST_STATES[direction[Direction.IS_KNOWN], 0]
    in_flight = 0
    flow = direction[Direction.FLOWS]
    while flow != NONE:
        sender = _NEW_CONNECTION[0, kept, flows[flow, Flow.SENDER]]
        flows[flow, Flow.SENDER] = sender
        flows[flow, Flow.RECEIVER] = _NEW_CONNECTION[1, kept, flows[flow, Flow.RECEIVER]]
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
def _mark(t: Any, session: int, status: int, before: int) -> None:
    """Mark the messages to a client that were sent before a packet and are not acknowledged.

    With the status `ABANDONED` all messages are marked.
    """
    flow = t.directions[2 * session + 1, Direction.FLOWS]
    while flow != NONE:
        record = t.flows[flow, Flow.RECORD]
        if record != NONE and t.records[record, Record.PACKET] < before:
            is_open = t.records[record, Record.ACCEPTED] == NONE
            if is_open or status == Status.ABANDONED:
                t.records[record, Record.STATUS] |= status
        flow = t.flows[flow, Flow.NEXT]


@inlined
def end_flows(t: Any, session: int, c: int) -> None:
    """Count the messages in flight at the end of a connection.

    Those whose acknowledgement may be in a gap are marked.
    """
    connections, unsure = t.connections, t.connections[c, Connection.UNSURE_BEFORE]
    if unsure != NONE:
        t.sessions[session, Session.IS_WHOLE] = 0
        _mark(t, session, Status.UNTRACED, unsure)
    connections[c, Connection.SHOWS_IN_FLIGHT] = t.sessions[session, Session.IS_WHOLE]
    connections[c, Connection.SENT] = t.directions[2 * session, Direction.IN_FLIGHT]
    connections[c, Connection.RECEIVED] = t.directions[2 * session + 1, Direction.IN_FLIGHT]


@inlined
def resume(t: Any, session: int, c: int, kept: int, up: int, down: int) -> None:
    """Begin a new connection of a session.

    Parameters
    ----------
    kept
        Whether the session is resumed; if not, a new one of the same name begins.
    up, down
        Receive Maximum of the broker, and of the client.
    """
    row = t.sessions[session]
    row[Session.CONNECTION], row[Session.EXPIRES] = c, NONE
    if not kept:
        row[Session.IS_KNOWN] = row[Session.IS_WHOLE] = 1
        _mark(t, session, Status.ABANDONED, ALWAYS)
    _connect_direction(t, 2 * session, kept, up)
    _connect_direction(t, 2 * session + 1, kept, down)
    row[Session.WILL] = _new_will(t, c)


@inlined
def _may_have_changed(t: Any, session: int) -> bool:
    """Return whether a connection of an unknown client id may have continued a session."""
    c = t.sessions[session, Session.CONNECTION]
    stream = t.stream[t.connections[c, Connection.FIRST]]
    is_followed = t.streams[stream, Stream.IS_FOLLOWED]
    return bool(is_followed and t.connections[c, Connection.IS_PERSISTENT])


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


# --- subscriptions --------------------------------------------------------------------------


@inlined
def _end_subscription(t: Any, session: int, sub: int, leaving: int, gone: int) -> None:
    if t.subscriptions[sub, Subscription.LEAVING] == NONE:
        t.subscriptions[sub, Subscription.LEAVING] = leaving
    t.subscriptions[sub, Subscription.GONE] = gone
    t.subscriptions[sub, Subscription.IS_ACTIVE] = 0
    t.sessions[session, Session.ACTIVE] -= 1


@inlined
def end_subscriptions(t: Any, session: int, leaving: int, gone: int) -> None:
    """End all subscriptions of a session."""
    sub = t.sessions[session, Session.SUBSCRIPTIONS]
    while sub != NONE:
        if t.subscriptions[sub, Subscription.IS_ACTIVE]:
            _end_subscription(t, session, sub, leaving, gone)
        sub = t.subscriptions[sub, Subscription.NEXT]
    t.sessions[session, Session.SUBSCRIPTIONS] = NONE


@inlined
def active(t: Any, session: int, filter: int) -> int:
    """Return the active subscription of a session to a filter, -1 if there is none."""
    sub = t.slot_values[slot_of(t, slots_of(t), Owner.FILTER, session, filter)]
    return int(sub) if sub != NONE and t.subscriptions[sub, Subscription.IS_ACTIVE] else NONE


@inlined
def unsubscribe(t: Any, session: int, filter: int, asked: int, answered: int) -> None:
    """End the subscription to a filter, if there is one."""
    sub = active(t, session, filter)
    if sub != NONE:
        _end_subscription(t, session, sub, asked, answered)


@inlined
def subscribe(t: Any, session: int, sub: int) -> None:
    """Add a subscription, within `MAX_FILTERS`; it replaces one to the same filter."""
    row, sessions = t.subscriptions[sub], t.sessions
    filter = t.filters[row[Subscription.FILTER], TopicFilter.FILTER]
    older = active(t, session, filter)
    if older == NONE and sessions[session, Session.ACTIVE] >= MAX_FILTERS:
        t.counts[Count.DROPPED] += 1
        return
    if older != NONE and row[Subscription.ASKED] < t.subscriptions[older, Subscription.ASKED]:
        # They were answered in another order, so the older request is replaced at once.
        newer = t.subscriptions[older]
        row[Subscription.LEAVING] = newer[Subscription.ASKED]
        row[Subscription.GONE] = newer[Subscription.GRANTED]
        if row[Subscription.SINCE] < newer[Subscription.SINCE]:
            newer[Subscription.SINCE] = row[Subscription.SINCE]
            newer[Subscription.SINCE_PLACE] = row[Subscription.SINCE_PLACE]
        _serve_as(t, session, sub, filter)
        return
    if older != NONE:
        row[Subscription.SINCE] = t.subscriptions[older, Subscription.SINCE]
        row[Subscription.SINCE_PLACE] = t.subscriptions[older, Subscription.SINCE_PLACE]
        _end_subscription(t, session, older, row[Subscription.ASKED], row[Subscription.GRANTED])
    t.slot_values[slot_of(t, slots_of(t), Owner.FILTER, session, filter)] = sub
    row[Subscription.IS_ACTIVE] = 1
    row[Subscription.NEXT] = sessions[session, Session.SUBSCRIPTIONS]
    sessions[session, Session.SUBSCRIPTIONS] = sub
    sessions[session, Session.ACTIVE] += 1
    _serve_as(t, session, sub, filter)


@inlined
def _serve_as(t: Any, session: int, sub: int, filter: int) -> None:
    """Note the name that messages of a subscription are delivered to."""
    row, sessions = t.subscriptions[sub], t.sessions
    name = NONE
    kind, number = Owner.GROUP_NAME, filter
    if not row[Subscription.IS_SHARED]:
        name = t.clients[row[Subscription.CLIENT], Client.NAME]
        kind, number = Owner.CLIENT_NAME, name
    slot = slot_of(t, slots_of(t), kind, session, number)
    if t.slot_values[slot] != NONE or sessions[session, Session.NAME_COUNT] >= MAX_FILTERS:
        return
    place = t.counts[Count.NAMES]
    t.counts[Count.NAMES] = place + 1
    t.slot_values[slot] = place
    t.names[place, Name.NAME] = name
    t.names[place, Name.FILTER] = row[Subscription.FILTER]
    t.names[place, Name.NEXT] = sessions[session, Session.NAMES]
    sessions[session, Session.NAMES] = place
    sessions[session, Session.NAME_COUNT] += 1


# --- the end of connections and sessions ----------------------------------------------------


@inlined
def close(t: Any, session: int, at: int, ended_by: int, will_event: int, until: int) -> None:
    """End the current connection of a session, if it is open.

    Parameters
    ----------
    at
        The moment.
    until
        The last moment at which it was certainly open.
    """
    c = t.sessions[session, Session.CONNECTION]
    row = t.connections[c]
    if row[Connection.ENDED_BY] != EndedBy.OPEN:
        return
    is_unsure = row[Connection.UNSURE_BEFORE] == ALWAYS
    if ended_by == EndedBy.DROPPED and is_unsure:
        ended_by = EndedBy.UNSEEN  # A goodbye may have been in the bytes that were not captured.
    row[Connection.ENDED_BY] = ended_by
    row[Connection.CLOSED], row[Connection.UNTIL] = at, until
    may_have_changed = _may_have_changed(t, session)
    end_flows(t, session, c)
    if row[Connection.CONNECT] == NONE or may_have_changed:
        _mark(t, session, Status.UNTRACED, ALWAYS)
    _close_will(t, t.sessions[session, Session.WILL], will_event, c, at)
    if not row[Connection.IS_PERSISTENT]:
        _mark(t, session, Status.ABANDONED, ALWAYS)
        end_subscriptions(t, session, until, at)
    elif may_have_changed:
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
    if _may_have_changed(t, session):
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
            _mark(t, session, Status.ABANDONED, ALWAYS)
        end_subscriptions(t, session, row[Session.EXPIRES], row[Session.EXPIRES])
    will = row[Session.WILL]
    if will != NONE and t.wills[will, Will.DUE] != NONE:
        _step_will(t, will, _DELAY_OVER, t.wills[will, Will.DUE], WillFate.WAITING)
