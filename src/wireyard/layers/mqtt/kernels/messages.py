"""Messages in a kernel: PUBLISH and its acknowledgements, and what answers show of others.

Rules of this file:

1. The state tables of `qos` have the rules; the arrays here are compiled from them.
2. A record is a message that one side published. A flow is a packet identifier of a session in one
   direction, with the record that it is in use for.
3. `t` are the arrays (`Tracking`), `c` is the connection of a packet, and `d` a direction.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.grids import (
    NONE,
    Breach,
    Connection,
    Count,
    Direction,
    Flag,
    Flow,
    Packet,
    Record,
    Session,
    Status,
    Stream,
    Subscription,
)
from wireyard.layers.mqtt.kernels.slots import Owner, client_of, slot_of
from wireyard.layers.mqtt.qos import EVENTS, FACTS, IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.mqtt.records import SMALLEST_WINDOW
from wireyard.layers.mqtt.violations import NEEDS_ALL_CONNECTIONS, NEEDS_ALL_PACKETS, RULES
from wireyard.layers.states import EFFECT, NEXT, RULE, transitions

RULE_NAMES: Final = tuple(RULES)
_NEEDS_ALL_PACKETS: Final = np.array([name in NEEDS_ALL_PACKETS for name in RULE_NAMES])
_NEEDS_ALL_CONNECTIONS: Final = np.array([name in NEEDS_ALL_CONNECTIONS for name in RULE_NAMES])
_FACTS: Final = tuple(FACTS)
_EVENT: Final = {name: place for place, name in enumerate(EVENTS)}

TABLES: Final = np.full((2, len(SENDER.states), len(EVENTS), 3), NONE, np.int32)
"""Role (0 sends, 1 receives) x state x event -> next state, effect and rule, as `transitions`."""
for _role, _table in enumerate((SENDER, RECEIVER)):
    TABLES[_role, : len(_table.states)] = transitions(_table, _FACTS, RULE_NAMES)
_STATES: Final = (SENDER.states, RECEIVER.states)
FIRST_STATES: Final = np.array(
    [[states.index("free" if known else "unknown") for states in _STATES] for known in (0, 1)]
)
"""Whether a session was captured from its beginning x role -> the state of a packet identifier."""
IN_FLIGHT_STATES: Final = np.array([state in IN_FLIGHT for state in SENDER.states], np.int64)
"""Whether a message is in flight in each state of the sender."""
_PUBACK, _PUBREL = int(layout.PUBACK), int(layout.PUBREL)
_PUBLISHED: Final = np.array(
    [[_EVENT[f"{name}_{qos}"] for name in ("publish", "dup")] for qos in (1, 2)], np.int32
)
_ANSWERS: Final = np.array(
    [
        [_EVENT[name] for name in names]
        for names in (
            ("puback", "puback_error"), ("pubrec", "pubrec_error"),
            ("pubrel", "pubrel"), ("pubcomp", "pubcomp"),
        )
    ],
    np.int32,
)  # fmt: skip
_QUOTA: Final = np.array(
    [
        -1 if event.startswith(("publish", "dup"))
        else event in ("puback", "puback_error", "pubrec_error", "pubcomp")
        for event in EVENTS
    ],
    np.int64,
)  # fmt: skip
"""What an event does to the quota of the sender."""
_REPEATED, _LOST_ACK, _DELIVERED, _RECEIVED, _RELEASED, _ACKNOWLEDGED, _REFUSED = map(
    _FACTS.index,
    ("repeated", "lost_ack", "delivered", "received", "released", "acknowledged", "refused"),
)
(
    _ID_IN_USE, _ID_IN_USE_BROKER, _MAXIMUM_CLIENT, _MAXIMUM_BROKER, _ALIAS_CLIENT, _ALIAS_BROKER,
    _ALIAS_UNKNOWN, _SUBSCRIPTION_IDENTIFIER, _DUP_FIRST, _SESSION_OVER,
) = map(
    RULE_NAMES.index,
    (
        "id_in_use", "id_in_use_broker", "receive_maximum_client", "receive_maximum_broker",
        "alias_maximum_client", "alias_maximum_broker", "alias_unknown",
        "subscription_identifier", "dup_first", "session_over",
    ),
)  # fmt: skip
_ERROR: Final = 128
_WITH_RETAIN_AS_PUBLISHED: Final = 5
WITHOUT_DELETION: Final = 2
"""The version of 1999, in which nothing deletes a retained value."""


# --- violations -----------------------------------------------------------------------------


@inlined
def add_breach(t: Any, c: int, rule: int, from_client: bool, packet: int, record: int) -> None:
    """Add a violation."""
    at = t.counts[Count.BREACHES]
    t.counts[Count.BREACHES] = at + 1
    t.breaches[at, Breach.RULE] = rule
    t.breaches[at, Breach.FROM_CLIENT] = from_client
    t.breaches[at, Breach.PACKET] = packet
    t.breaches[at, Breach.RECORD] = record
    t.breaches[at, Breach.CONNECTION] = c
    t.breaches[at, Breach.VERSION] = t.connections[c, Connection.VERSION]


@inlined
def _is_whole(t: Any, c: int) -> bool:
    """Return whether all packets of the session up to now were captured."""
    row, first = t.connections[c], t.stream[t.connections[c, Connection.FIRST]]
    session = row[Connection.SESSION]
    if row[Connection.IS_DAMAGED] or t.streams[first, Stream.IS_ALONE]:
        return False
    if session != NONE and not t.sessions[session, Session.IS_WHOLE]:
        return False
    return bool(row[Connection.CONNECT] != NONE or t.streams[first, Stream.BEGUN] == 1)


@inlined
def breaks(t: Any, c: int, rule: int, from_client: bool, packet: int, record: int) -> None:
    """Add a violation of a rule, unless packets that were not captured may explain it."""
    if _NEEDS_ALL_PACKETS[rule] and not _is_whole(t, c):
        return
    if _NEEDS_ALL_CONNECTIONS[rule] and t.counts[Count.HAS_OLDER]:
        return
    row = t.connections[c]
    if rule == _DUP_FIRST and not row[Connection.IS_CLEAN] and row[Connection.RESUMED] != 0:
        return  # The first copy may have been on an earlier connection, and never have left.
    add_breach(t, c, rule, from_client, packet, record)


# --- gaps -----------------------------------------------------------------------------------


@inlined
def unsure_before(t: Any, c: int) -> int:
    """Return the first packet behind the last gap of a connection, as of `Connection.LOST_UP`."""
    row = t.connections[c]
    return int(max(row[Connection.LOST_UP], row[Connection.LOST_DOWN]))


@inlined
def _may_be_of_another(t: Any, c: int, record: int) -> bool:
    """Return whether a packet with the identifier of a message may be of another message.

    So it is if packets of both sides may be missing since the message was sent.
    """
    row, last = t.connections[c], t.records[record, Record.PACKET]
    if t.records[record, Record.AGAIN] != NONE:
        last = t.records[record, Record.AGAIN]
    if last < row[Connection.OPENED] and not t.sessions[row[Connection.SESSION], Session.IS_WHOLE]:
        return True
    return bool(row[Connection.LOST_UP] > last and row[Connection.LOST_DOWN] > last)


# --- answers --------------------------------------------------------------------------------


@inlined
def window_of(t: Any, d: int) -> int:
    """Return with how many messages in flight a broker may wait for acknowledgements."""
    return int(min(SMALLEST_WINDOW, t.directions[d, Direction.MAXIMUM]))


@inlined
def accept_before(t: Any, c: int, request: int, answer: int) -> None:
    """Mark the messages at QoS 0 before a request, or a DISCONNECT, as accepted (M-38)."""
    record = t.connections[c, Connection.UNREAD_FIRST]
    while record != NONE and t.records[record, Record.PACKET] < request:
        t.records[record, Record.ACCEPTED] = answer
        record = t.records[record, Record.NEXT]
    t.connections[c, Connection.UNREAD_FIRST] = record


@inlined
def confirm_read(t: Any, c: int, request: int, answer: int) -> None:
    """Note that the broker has read a request and all before it, as its answer shows.

    So it has also sent the retained values for subscriptions that it had granted before, unless a
    full window delays them.
    """
    row = t.connections[c]
    row[Connection.ANSWERED] = max(row[Connection.ANSWERED], request)
    to_client = 2 * row[Connection.SESSION] + 1
    direction = t.directions[to_client]
    is_open = (
        direction[Direction.IN_FLIGHT] < window_of(t, to_client)
        and direction[Direction.FREED] < request
    )
    if is_open:
        row[Connection.ANSWERED_OPEN] = max(row[Connection.ANSWERED_OPEN], request)
    accept_before(t, c, request, answer)
    sub = row[Connection.UNCONFIRMED_FIRST]
    if sub == NONE or row[Connection.IS_DAMAGED] or not is_open:
        return
    while sub != NONE and t.subscriptions[sub, Subscription.GRANTED] < request:
        if t.subscriptions[sub, Subscription.GONE] == NONE:
            t.subscriptions[sub, Subscription.CONFIRMED] = answer
        sub = t.subscriptions[sub, Subscription.NEXT_UNCONFIRMED]
    row[Connection.UNCONFIRMED_FIRST] = sub


# --- records --------------------------------------------------------------------------------


@inlined
def _new_record(t: Any, c: int, packet: int, topic: int, to_broker: bool) -> int:
    record, flags = t.counts[Count.RECORDS], t.packets[packet, Packet.FLAGS]
    t.counts[Count.RECORDS] = record + 1
    row = t.records[record]
    row[Record.PACKET] = packet
    row[Record.TOPIC] = topic
    row[Record.CLIENT] = client_of(t, c)
    row[Record.TO_BROKER] = to_broker
    row[Record.ACCEPTED] = NONE
    row[Record.RELEASED] = NONE
    row[Record.REFUSED] = NONE
    row[Record.AGAIN] = NONE
    row[Record.COPIES] = 1
    row[Record.NEXT] = NONE
    status = 0
    if not to_broker:
        if flags & Flag.DUP:
            status |= Status.AGAIN
        if _is_sparse(t, c):
            status |= Status.SPARSE
            has_flag = t.connections[c, Connection.VERSION] == _WITH_RETAIN_AS_PUBLISHED
            if flags & Flag.RETAIN and has_flag:
                status |= Status.MAY_BE_LIVE
    elif t.connections[c, Connection.VERSION] == WITHOUT_DELETION:
        status |= Status.LASTING
    row[Record.STATUS] = status
    return int(record)


@inlined
def _is_sparse(t: Any, c: int) -> bool:
    """Return whether subscriptions of a session may not have been captured."""
    row = t.connections[c]
    session = row[Connection.SESSION]
    is_whole = t.sessions[session, Session.IS_KNOWN] and t.sessions[session, Session.IS_WHOLE]
    return not is_whole or unsure_before(t, c) != NONE


@inlined
def _flow_of(t: Any, d: int, packet_id: int) -> int:
    """Return the flow of a packet identifier."""
    slot = slot_of(t, Owner.FLOW, d, packet_id)
    flow = t.slot_values[slot]
    if flow == NONE:
        flow = t.counts[Count.FLOWS]
        t.counts[Count.FLOWS] = flow + 1
        t.slot_values[slot] = flow
        is_known = t.directions[d, Direction.IS_KNOWN]
        t.flows[flow, Flow.SENDER] = FIRST_STATES[is_known, 0]
        t.flows[flow, Flow.RECEIVER] = FIRST_STATES[is_known, 1]
        t.flows[flow, Flow.RECORD] = NONE
        t.flows[flow, Flow.NEXT] = t.directions[d, Direction.FLOWS]
        t.directions[d, Direction.FLOWS] = flow
    return int(flow)


@inlined
def _step(t: Any, d: int, flow: int, role: int, event: int) -> tuple[int, int]:
    """Apply an event to a flow; return the effect and the violated rule, -1 for none."""
    state = t.flows[flow, Flow.SENDER + role]
    cell = TABLES[role, state, event]
    if cell[NEXT] == NONE:
        return NONE, int(cell[RULE])
    t.flows[flow, Flow.SENDER + role] = cell[NEXT]
    if role == 0:
        row = t.directions[d]
        row[Direction.IN_FLIGHT] += IN_FLIGHT_STATES[cell[NEXT]] - IN_FLIGHT_STATES[state]
        quota = row[Direction.QUOTA] + _QUOTA[event]
        row[Direction.QUOTA] = min(quota, row[Direction.MAXIMUM])
    return int(cell[EFFECT]), int(cell[RULE])


@inlined
def _topic_of(t: Any, c: int, packet: int, to_broker: bool) -> int:
    """Return the topic of a PUBLISH; -1 if its alias is unknown."""
    topic, alias = t.packets[packet, Packet.TOPIC], t.packets[packet, Packet.ALIAS]
    if alias != NONE:
        side = 0 if to_broker else 1
        most = t.connections[c, Connection.ALIAS_MAXIMUM_UP + side]
        number = t.connections[c, Connection.ALIASES_UP + side] << 16 | alias
        slot = slot_of(t, Owner.ALIASES_UP + side, c, number)
        if topic != t.counts[Count.EMPTY_TOPIC]:
            t.slot_values[slot] = topic
        else:
            topic = t.slot_values[slot]
        if most != NONE and alias > most:
            rule = _ALIAS_CLIENT if to_broker else _ALIAS_BROKER
            breaks(t, c, rule, to_broker, packet, NONE)
        elif topic == NONE:
            breaks(t, c, _ALIAS_UNKNOWN, to_broker, packet, NONE)
    if to_broker and t.packets[packet, Packet.FLAGS] & Flag.IDENTIFIED:
        breaks(t, c, _SUBSCRIPTION_IDENTIFIER, True, packet, NONE)
    return int(topic)


# --- PUBLISH --------------------------------------------------------------------------------


@inlined
def publish(t: Any, c: int, packet: int, to_broker: bool) -> None:
    """Follow a PUBLISH."""
    qos = t.packets[packet, Packet.QOS]
    if t.packets[packet, Packet.TOPIC] == NONE or qos < 0 or qos > 2:
        return
    topic = _topic_of(t, c, packet, to_broker)
    if topic == NONE:
        return
    if qos > 0 and t.packets[packet, Packet.ID] > 0:
        _publish_flow(t, c, packet, topic, to_broker)
        return
    record = _new_record(t, c, packet, topic, to_broker)
    if to_broker:
        row = t.connections[c]
        if row[Connection.UNREAD_FIRST] == NONE:
            row[Connection.UNREAD_FIRST] = record
        else:
            t.records[row[Connection.UNREAD_LAST], Record.NEXT] = record
        row[Connection.UNREAD_LAST] = record


@inlined
def _is_same(t: Any, record: int, packet: int, topic: int) -> bool:
    """Return whether a PUBLISH has the topic and payload of a message."""
    old = t.records[record, Record.PACKET]
    return bool(
        t.records[record, Record.TOPIC] == topic
        and t.contents[old, 0] == t.contents[packet, 0]
        and t.contents[old, 1] == t.contents[packet, 1]
    )


@inlined
def _publish_flow(t: Any, c: int, packet: int, topic: int, to_broker: bool) -> None:
    records, qos = t.records, t.packets[packet, Packet.QOS]
    dup = t.packets[packet, Packet.FLAGS] & Flag.DUP
    d = 2 * t.connections[c, Connection.SESSION] + (0 if to_broker else 1)
    flow = _flow_of(t, d, t.packets[packet, Packet.ID])
    before = t.flows[flow, Flow.RECORD]
    fact, rule = _step(t, d, flow, 0, _PUBLISHED[qos - 1, dup])
    received, _ = _step(t, d, flow, 1, _PUBLISHED[qos - 1, dup])
    row, in_flight = t.connections[c], t.directions[d, Direction.IN_FLIGHT]
    if not to_broker and in_flight > row[Connection.MOST_IN_FLIGHT]:
        row[Connection.MOST_IN_FLIGHT], row[Connection.FILLED] = in_flight, packet
    again = before != NONE and fact in (_REPEATED, _LOST_ACK)
    if again and not _is_same(t, before, packet, topic):
        rule = _ID_IN_USE
        again = False
    if again:
        record = before
        _count_again(t, record, packet, fact, received, to_broker)
    else:
        has_gap = unsure_before(t, c) != NONE
        is_lost = before != NONE and not to_broker and has_gap
        if is_lost and records[before, Record.ACCEPTED] == NONE:
            # Its acknowledgement may not have been captured.
            records[before, Record.STATUS] |= Status.UNTRACED
        record = _new_record(t, c, packet, topic, to_broker)
        t.flows[flow, Flow.RECORD] = record
        is_older = fact == _REPEATED or t.counts[Count.HAS_OLDER] != 0
        if before == NONE and to_broker and dup and is_older:
            records[record, Record.STATUS] |= Status.REPEATED
    named = record if to_broker else NONE
    if rule == _ID_IN_USE and not to_broker:
        rule = _ID_IN_USE_BROKER
    if rule != NONE:
        breaks(t, c, rule, to_broker, packet, named)
    if t.directions[d, Direction.QUOTA] < 0:
        rule = _MAXIMUM_CLIENT if to_broker else _MAXIMUM_BROKER
        breaks(t, c, rule, to_broker, packet, named)


@inlined
def _count_again(
    t: Any, record: int, packet: int, fact: int, received: int, to_broker: bool
) -> None:
    """Count a resend of a message."""
    row = t.records[record]
    row[Record.AGAIN] = packet
    if to_broker:
        if received == _DELIVERED or t.packets[row[Record.PACKET], Packet.QOS] == 1:
            row[Record.COPIES] += 1
    else:
        row[Record.COPIES] += 1
        row[Record.STATUS] |= Status.AGAIN
        if fact == _LOST_ACK:
            row[Record.STATUS] |= Status.LOST_ACK


@inlined
def acknowledge(t: Any, c: int, packet: int, from_client: bool) -> None:
    """Follow a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    packet_id, code = t.packets[packet, Packet.ID], t.packets[packet, Packet.CODE]
    if packet_id <= 0:
        return
    kind = t.packets[packet, Packet.KIND]
    to_broker = from_client == (kind == _PUBREL)
    d = 2 * t.connections[c, Connection.SESSION] + (0 if to_broker else 1)
    flow = _flow_of(t, d, packet_id)
    event = _ANSWERS[kind - _PUBACK, 1 if code >= _ERROR else 0]
    if not to_broker and t.directions[d, Direction.IN_FLIGHT] >= window_of(t, d):
        t.directions[d, Direction.FREED] = packet
    sent, sent_rule = _step(t, d, flow, 0, event)
    received, received_rule = _step(t, d, flow, 1, event)
    rule = sent_rule if kind == _PUBREL else received_rule
    record = t.flows[flow, Flow.RECORD]
    if rule != NONE:
        breaks(t, c, rule, from_client, packet, record if to_broker else NONE)
    if record == NONE:
        return
    fact = sent if sent != NONE else received
    row = t.records[record]
    is_of_another = _may_be_of_another(t, c, record)
    if to_broker and not from_client:
        again = row[Record.AGAIN]
        confirm_read(t, c, row[Record.PACKET] if again == NONE else again, packet)
    if is_of_another or rule == _SESSION_OVER:
        t.flows[flow, Flow.RECORD] = NONE
        if is_of_another and row[Record.ACCEPTED] == NONE:
            row[Record.STATUS] |= Status.UNTRACED
    elif fact == _REFUSED:
        row[Record.REFUSED] = code
    elif fact == _RECEIVED and to_broker:
        row[Record.STATUS] |= Status.RECEIVED
    elif fact == _RELEASED and to_broker:
        if row[Record.RELEASED] == NONE:
            row[Record.RELEASED] = packet
    elif fact == _ACKNOWLEDGED:
        is_refused = to_broker and row[Record.REFUSED] != NONE
        if row[Record.ACCEPTED] == NONE and not is_refused:
            row[Record.ACCEPTED] = packet
