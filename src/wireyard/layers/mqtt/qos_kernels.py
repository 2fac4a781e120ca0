"""Messages in flight: PUBLISH and its acknowledgements, many packets in one call.

Rules of this file:

1. The state tables of `qos` have the rules; the arrays here are compiled from them.
2. A packet is an index among the tracked packets, which are sorted by connection, then by time. A
   record, also an index, is a message that one side published; -1 is none.
3. Nothing here depends on more than the packets of one connection: a run of them ends before an
   answer that may concern subscriptions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.accelerate import I64, array, inlined, kernel
from wireyard.accelerate import record as record_type
from wireyard.arrays import Bytes, Grid, Grid32, Int32s, Ints
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.qos import (
    EVENTS,
    FACTS,
    IN_FLIGHT,
    RECEIVER,
    SENDER,
)
from wireyard.layers.mqtt.subscriptions import MAX_ASKED
from wireyard.layers.mqtt.violations import RULES
from wireyard.layers.states import EFFECT, NEXT, NONE, RULE, transitions

__all__ = [
    "FIRST_STATES",
    "IN_FLIGHT_STATES",
    "MAX_UNREAD",
    "NONE",
    "RULE_NAMES",
    "TABLES",
    "Breach",
    "ConnectionField",
    "ConnectionState",
    "Direction",
    "Flag",
    "Packet",
    "Record",
    "Status",
    "Total",
    "track",
    "track_run",
]

MAX_UNREAD: Final = 10_000
"""Messages at QoS 0 of one connection without evidence yet that the broker read them."""

Table = np.ndarray[tuple[int, int, int, int], np.dtype[np.int32]]


class Packet(IntEnum):
    """Columns of a packet, as far as tracking needs it."""

    KIND = 0
    FLAGS = 1
    QOS = 2
    ID = 3
    """Packet identifier; 0 if it has none."""
    CODE = 4
    """Return or reason code; 0 if it has none."""
    TOPIC = 5
    """Number of the topic name; -1 if it has none."""
    ALIAS = 6
    """Topic alias; -1 if it has none."""


class Flag(IntEnum):
    """Bits of `Packet.FLAGS`."""

    DUP = 1
    RETAIN = 2
    FROM_CLIENT = 4
    MALFORMED = 8
    """It violates a rule but can be read."""
    IDENTIFIED = 16
    """It has a subscription identifier."""


class Record(IntEnum):
    """Columns of a message that one side published, and its outcome."""

    PACKET = 0
    """Its first PUBLISH."""
    TOPIC = 1
    """Its topic, also if the packet has only an alias of it."""
    CLIENT = 2
    """Number of the client that published it, or that it was delivered to."""
    TO_BROKER = 3
    ACCEPTED = 4
    """For a client's message, the packet that shows that the broker accepted it; for a broker's,
    its acknowledgement."""
    RELEASED = 5
    """PUBREL of a client's message."""
    REFUSED = 6
    """Reason code of its refusal."""
    AGAIN = 7
    """Its last PUBLISH, if it was sent again."""
    COPIES = 8
    """For a client's message, the most messages that the broker may have taken its copies for; for
    a broker's, the number of its deliveries."""
    STATUS = 9
    """Bits of `Status`."""
    NEXT = 10
    """The next message of its connection without evidence that the broker accepted it."""


class Status(IntEnum):
    """Bits of `Record.STATUS`; the fields of `Message` and `Attempt` describe them."""

    AGAIN = 1
    LOST_ACK = 2
    ABANDONED = 4
    UNTRACED = 8
    REPEATED = 16
    MAY_BE_LIVE = 32
    RECEIVED = 64
    """The broker answered it with PUBREC."""


class Total(IntEnum):
    """Counters that are kept between runs, and parameters of one run."""

    RECORDS = 0
    TRACKED = 1
    """Messages that sessions track by packet identifier."""
    MOST_TRACKED = 2
    BREACHES = 3
    """Protocol violations in this run."""
    DROPPED_FLOWS = 4
    DROPPED_UNREAD = 5
    DROPPED_REQUESTS = 6
    ANSWERED = 7
    """The last request that was answered in this run; -1 if none."""
    CONFIRMS_FROM = 8
    """A run ends before an answer to a request after this packet; -1 for no such limit."""
    IS_OLDER = 9
    """Whether packets to the server may be missing: see `Broker.has_older`."""
    CLIENT = 10
    EMPTY_TOPIC = 11
    """Number of the empty topic name."""
    MAY_BE_LIVE = 12
    """Whether a subscription that was not captured may have Retain As Published."""
    HAS_GAP = 13
    """Whether bytes of the connection were not captured."""


class ConnectionField(IntEnum):
    """Fields of the state of a connection; UP is to the broker, DOWN to the client."""

    UNREAD_FIRST = 0
    UNREAD_LAST = 1
    UNREAD = 2
    PING_FIRST = 3
    PINGS = 4
    ALIAS_MAXIMUM_UP = 5
    ALIAS_MAXIMUM_DOWN = 6


class Direction(NamedTuple):
    """The messages of a session in one direction."""

    states: Bytes
    """State of each flow: ``[role * identifiers + packet identifier]``; role 0 is the sender."""
    tracked: Int32s
    """By packet identifier: the record of its message, -1 for none."""
    limits: Ints
    """Quota and Receive Maximum."""


class ConnectionState(NamedTuple):
    """The state of a connection while its packets are tracked."""

    fields: Ints
    """Values of `ConnectionField`."""
    aliases: Int32s
    """``[side * aliases + alias]``: the topic, -1 for none; side 0 is the client. Empty if no
    packet has an alias."""
    pings: Int32s
    """Ring buffer of the PINGREQ packets that wait for PINGRESP."""


class Breach(IntEnum):
    """Columns of a protocol violation."""

    RULE = 0
    FROM_CLIENT = 1
    PACKET = 2
    RECORD = 3


RULE_NAMES: Final = tuple(RULES)
_FACTS: Final = tuple(FACTS)
_EVENT: Final = {name: place for place, name in enumerate(EVENTS)}
_STATES: Final = (SENDER.states, RECEIVER.states)


TABLES: Final[Table] = np.full(
    (2, max(map(len, _STATES)), len(EVENTS), len(("next state", "effect", "rule"))), NONE, np.int32
)
"""Role (0 sends, 1 receives) x state x event -> next state, effect and rule, as `transitions`."""
for _role, _table in enumerate((SENDER, RECEIVER)):
    TABLES[_role, : len(_table.states)] = transitions(_table, _FACTS, RULE_NAMES)
FIRST_STATES: Final = {
    known: np.array(
        [[states.index("free" if known else "unknown")] for states in _STATES], np.uint8
    )
    for known in (False, True)
}
"""The initial states of a packet identifier, by whether the session was captured from its
beginning."""
IN_FLIGHT_STATES: Final = np.array(
    [[state in IN_FLIGHT for state in (*states, *[""] * (TABLES.shape[1] - len(states)))]
     for states in _STATES]
)  # fmt: skip
"""Role x state -> whether a message is in flight in it."""

_PUBLISH, _PUBACK, _PUBREC = int(layout.PUBLISH), int(layout.PUBACK), int(layout.PUBREC)
_PUBREL, _PUBCOMP = int(layout.PUBREL), int(layout.PUBCOMP)
_PINGREQ, _PINGRESP = int(layout.PINGREQ), int(layout.PINGRESP)
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
_FREES: Final = np.array(
    [event in ("puback", "puback_error", "pubrec_error", "pubcomp") for event in EVENTS]
)
_SENT_AGAIN: Final = tuple(map(_FACTS.index, ("repeated", "lost_ack")))
_REPEATED, _LOST_ACK = _SENT_AGAIN
_DELIVERED, _RECEIVED, _RELEASED = map(_FACTS.index, ("delivered", "received", "released"))
_ACKNOWLEDGED, _REFUSED = map(_FACTS.index, ("acknowledged", "refused"))
(
    _ID_IN_USE, _ID_IN_USE_BROKER, _MAXIMUM_CLIENT, _MAXIMUM_BROKER, _ALIAS_CLIENT, _ALIAS_BROKER,
    _ALIAS_UNKNOWN, _SUBSCRIPTION_IDENTIFIER, _PINGRESP_UNASKED,
) = map(
    RULE_NAMES.index,
    (
        "id_in_use", "id_in_use_broker", "receive_maximum_client", "receive_maximum_broker",
        "alias_maximum_client", "alias_maximum_broker", "alias_unknown",
        "subscription_identifier", "pingresp_unasked",
    ),
)  # fmt: skip
_ERROR: Final = 128
_QUOTA, _MAXIMUM = 0, 1
_MOST_BREACHES_A_PACKET: Final = 4

_INTS: Final = array("int64")
_GRID: Final = array("int32", 2)
_HASHES: Final = array("int64", 2)
_TABLE: Final = array("int32", 4, readonly=True)


@inlined
def _breaks(
    breaches: Grid32, total: Ints, rule: int, from_client: bool, packet: int, record: int
) -> None:
    at = total[Total.BREACHES]
    breaches[at, Breach.RULE] = rule
    breaches[at, Breach.FROM_CLIENT] = from_client
    breaches[at, Breach.PACKET] = packet
    breaches[at, Breach.RECORD] = record
    total[Total.BREACHES] = at + 1


@inlined
def _accept_before(records: Grid32, fields: Ints, total: Ints, request: int, answer: int) -> None:
    """Mark all messages before an answered request as accepted by the broker."""
    if request > total[Total.ANSWERED]:
        total[Total.ANSWERED] = request
    first = fields[ConnectionField.UNREAD_FIRST]
    while first != NONE and records[first, Record.PACKET] < request:
        records[first, Record.ACCEPTED] = answer
        first = records[first, Record.NEXT]
        fields[ConnectionField.UNREAD] -= 1
    fields[ConnectionField.UNREAD_FIRST] = first


@inlined
def _new_record(
    packets: Grid32, records: Grid32, total: Ints, packet: int, topic: int, to_broker: bool
) -> int:
    record = total[Total.RECORDS]
    total[Total.RECORDS] = record + 1
    records[record, Record.PACKET] = packet
    records[record, Record.TOPIC] = topic
    records[record, Record.CLIENT] = total[Total.CLIENT]
    records[record, Record.TO_BROKER] = to_broker
    records[record, Record.ACCEPTED] = NONE
    records[record, Record.RELEASED] = NONE
    records[record, Record.REFUSED] = NONE
    records[record, Record.AGAIN] = NONE
    records[record, Record.COPIES] = 1
    dup = packets[packet, Packet.FLAGS] & Flag.DUP != 0
    retain = packets[packet, Packet.FLAGS] & Flag.RETAIN != 0
    status = Status.AGAIN if dup and not to_broker else 0
    if retain and not to_broker and total[Total.MAY_BE_LIVE]:
        status |= Status.MAY_BE_LIVE
    records[record, Record.STATUS] = status
    records[record, Record.NEXT] = NONE
    return int(record)


@inlined
def _step(flow: Any, role: int, packet_id: int, event: int) -> tuple[int, int]:
    """Apply an event to a flow; return the effect and the violated rule, -1 for none."""
    at = role * len(flow.tracked) + packet_id
    cell = TABLES[role, flow.states[at], event]
    if cell[NEXT] == NONE:
        return NONE, int(cell[RULE])
    flow.states[at] = cell[NEXT]
    limits = flow.limits
    if role == 0:
        if event < 4:
            limits[_QUOTA] -= 1
        elif _FREES[event] and limits[_QUOTA] < limits[_MAXIMUM]:
            limits[_QUOTA] += 1
    return int(cell[EFFECT]), int(cell[RULE])


@inlined
def _topic_of(
    packets: Grid32, packet: int, to_broker: bool, connection: Any, total: Ints, breaches: Grid32
) -> int:
    """Return the topic of a PUBLISH; -1 if its alias is unknown."""
    topic, alias = packets[packet, Packet.TOPIC], packets[packet, Packet.ALIAS]
    if alias != NONE:
        side = 0 if to_broker else 1
        at = side * (len(connection.aliases) // 2) + alias
        most = connection.fields[ConnectionField.ALIAS_MAXIMUM_UP + side]
        above = most != NONE and alias > most
        if topic != total[Total.EMPTY_TOPIC]:
            connection.aliases[at] = topic
        else:
            topic = connection.aliases[at]
        if above:
            rule = _ALIAS_CLIENT if to_broker else _ALIAS_BROKER
            _breaks(breaches, total, rule, to_broker, packet, NONE)
        elif topic == NONE:
            _breaks(breaches, total, _ALIAS_UNKNOWN, to_broker, packet, NONE)
    if to_broker and packets[packet, Packet.FLAGS] & Flag.IDENTIFIED:
        _breaks(breaches, total, _SUBSCRIPTION_IDENTIFIER, True, packet, NONE)
    return int(topic)


@inlined
def _untrace(records: Grid32, record: int) -> None:
    """Note that the acknowledgement of a delivery attempt may not have been captured."""
    if records[record, Record.ACCEPTED] == NONE:
        records[record, Record.STATUS] |= Status.UNTRACED


@inlined
def _publish_flow(
    packets: Grid32, contents: Grid, packet: int, topic: int, to_broker: bool, records: Grid32,
    flow: Any, total: Ints, breaches: Grid32,
) -> None:  # fmt: skip
    packet_id, qos = packets[packet, Packet.ID], packets[packet, Packet.QOS]
    event = _PUBLISHED[qos - 1, packets[packet, Packet.FLAGS] & Flag.DUP]
    before = flow.tracked[packet_id]
    if before == NONE and total[Total.TRACKED] >= total[Total.MOST_TRACKED]:
        total[Total.DROPPED_FLOWS] += 1
        _new_record(packets, records, total, packet, topic, to_broker)
        return
    fact, rule = _step(flow, 0, packet_id, event)
    received, _ = _step(flow, 1, packet_id, event)
    again = before != NONE and fact in (_REPEATED, _LOST_ACK)
    if again:
        old = records[before, Record.PACKET]
        same = (
            records[before, Record.TOPIC] == topic
            and contents[old, 0] == contents[packet, 0]
            and contents[old, 1] == contents[packet, 1]
        )
        if not same:
            rule = _ID_IN_USE
            again = False
    if before == NONE:
        total[Total.TRACKED] += 1
    record = int(before)
    if again:
        if to_broker:
            records[record, Record.AGAIN] = packet
            if received == _DELIVERED or packets[records[record, Record.PACKET], Packet.QOS] == 1:
                records[record, Record.COPIES] += 1
        else:
            records[record, Record.COPIES] += 1
            lost = Status.LOST_ACK if fact == _LOST_ACK else 0
            records[record, Record.STATUS] |= Status.AGAIN | lost
    else:
        if before != NONE and not to_broker and total[Total.HAS_GAP]:
            _untrace(records, before)
        record = _new_record(packets, records, total, packet, topic, to_broker)
        flow.tracked[packet_id] = record
        dup = packets[packet, Packet.FLAGS] & Flag.DUP != 0
        if (
            before == NONE
            and to_broker
            and qos == 1
            and dup
            and (fact == _REPEATED or total[Total.IS_OLDER])
        ):
            records[record, Record.STATUS] |= Status.REPEATED
    named = record if to_broker else NONE
    if rule == _ID_IN_USE and not to_broker:
        rule = _ID_IN_USE_BROKER
    if rule != NONE:
        _breaks(breaches, total, rule, to_broker, packet, named)
    if flow.limits[_QUOTA] < 0:
        rule = _MAXIMUM_CLIENT if to_broker else _MAXIMUM_BROKER
        _breaks(breaches, total, rule, to_broker, packet, named)


@inlined
def _acknowledge(
    packets: Grid32, packet: int, from_client: bool, to_broker: bool, records: Grid32, flow: Any,
    fields: Ints, total: Ints, breaches: Grid32,
) -> None:  # fmt: skip
    packet_id, code = packets[packet, Packet.ID], packets[packet, Packet.CODE]
    kind = packets[packet, Packet.KIND]
    event = _ANSWERS[kind - _PUBACK, 1 if code >= _ERROR else 0]
    sent, sent_rule = _step(flow, 0, packet_id, event)
    received, received_rule = _step(flow, 1, packet_id, event)
    rule = sent_rule if kind == _PUBREL else received_rule
    record = flow.tracked[packet_id]
    if rule != NONE:
        _breaks(breaches, total, rule, from_client, packet, record if to_broker else NONE)
    fact = sent if sent != NONE else received
    if record == NONE:
        return
    if to_broker:
        if not from_client:
            again = records[record, Record.AGAIN]
            request = records[record, Record.PACKET] if again == NONE else again
            _accept_before(records, fields, total, request, packet)
        if fact == _REFUSED:
            records[record, Record.REFUSED] = code
        elif fact == _RECEIVED:
            records[record, Record.STATUS] |= Status.RECEIVED
        elif fact == _RELEASED and records[record, Record.RELEASED] == NONE:
            records[record, Record.RELEASED] = packet
        elif (
            fact == _ACKNOWLEDGED
            and records[record, Record.ACCEPTED] == NONE
            and records[record, Record.REFUSED] == NONE
        ):
            records[record, Record.ACCEPTED] = packet
    elif fact == _ACKNOWLEDGED:
        if records[record, Record.ACCEPTED] == NONE:
            records[record, Record.ACCEPTED] = packet
    elif fact == _REFUSED:
        records[record, Record.REFUSED] = code


@inlined
def _asks_before(
    packets: Grid32, packet: int, from_client: bool, records: Grid32, tracked: Int32s, connection:
    Any, since: int,
) -> bool:  # fmt: skip
    """Return whether a packet answers a request that came after the packet `since`."""
    kind = packets[packet, Packet.KIND]
    if from_client or kind in (_PUBLISH, _PUBREL):
        return False
    if kind == _PINGRESP:
        fields = connection.fields
        return bool(
            fields[ConnectionField.PINGS] > 0
            and connection.pings[fields[ConnectionField.PING_FIRST]] > since
        )
    record = tracked[packets[packet, Packet.ID]]
    if packets[packet, Packet.ID] == 0 or record == NONE:
        return False
    again = records[record, Record.AGAIN]
    return bool((records[record, Record.PACKET] if again == NONE else again) > since)


@inlined
def track_run(
    packets: Grid32,
    contents: Grid,
    start: int,
    stop: int,
    records: Grid32,
    to_broker: Direction,
    to_client: Direction,
    connection: ConnectionState,
    total: Ints,
    breaches: Grid32,
) -> int:
    """Track a run of packets of one connection; return the index after the last tracked one.

    Parameters
    ----------
    packets, contents
        Columns of `Packet`, and two hashes of each payload.
    records
        Columns of `Record`.
    to_broker, to_client
        The messages of the session in each direction.
    total, breaches
        Values of `Total`; columns of `Breach`.
    """
    fields, pings = connection.fields, connection.pings
    for packet in range(start, stop):
        if total[Total.BREACHES] + _MOST_BREACHES_A_PACKET > len(breaches):
            return packet
        kind, flags = packets[packet, Packet.KIND], packets[packet, Packet.FLAGS]
        from_client = flags & Flag.FROM_CLIENT != 0
        since = total[Total.CONFIRMS_FROM]
        if since != NONE and _asks_before(
            packets, packet, from_client, records, to_broker.tracked, connection, since
        ):
            return packet
        if kind == _PUBLISH:
            qos = packets[packet, Packet.QOS]
            if packets[packet, Packet.TOPIC] == NONE or qos < 0 or qos > 2:
                continue
            topic = _topic_of(packets, packet, from_client, connection, total, breaches)
            if topic == NONE:
                continue
            if qos > 0 and packets[packet, Packet.ID] > 0:
                _publish_flow(
                    packets, contents, packet, topic, from_client, records,
                    to_broker if from_client else to_client, total, breaches,
                )  # fmt: skip
                continue
            record = _new_record(packets, records, total, packet, topic, from_client)
            if from_client:
                if fields[ConnectionField.UNREAD] >= MAX_UNREAD:
                    total[Total.DROPPED_UNREAD] += 1
                    continue
                if fields[ConnectionField.UNREAD_FIRST] == NONE:
                    fields[ConnectionField.UNREAD_FIRST] = record
                else:
                    records[fields[ConnectionField.UNREAD_LAST], Record.NEXT] = record
                fields[ConnectionField.UNREAD_LAST] = record
                fields[ConnectionField.UNREAD] += 1
        elif kind == _PINGREQ:
            if fields[ConnectionField.PINGS] < MAX_ASKED:
                pings[
                    (fields[ConnectionField.PING_FIRST] + fields[ConnectionField.PINGS]) % MAX_ASKED
                ] = packet
                fields[ConnectionField.PINGS] += 1
            else:
                total[Total.DROPPED_REQUESTS] += 1
        elif kind == _PINGRESP:
            if fields[ConnectionField.PINGS] > 0:
                request = pings[fields[ConnectionField.PING_FIRST]]
                fields[ConnectionField.PING_FIRST] = (
                    fields[ConnectionField.PING_FIRST] + 1
                ) % MAX_ASKED
                fields[ConnectionField.PINGS] -= 1
                _accept_before(records, fields, total, request, packet)
            else:
                _breaks(breaches, total, _PINGRESP_UNASKED, False, packet, NONE)
        elif packets[packet, Packet.ID] > 0:
            is_to_broker = from_client == (kind == _PUBREL)
            _acknowledge(
                packets, packet, from_client, is_to_broker, records,
                to_broker if is_to_broker else to_client, fields, total, breaches,
            )  # fmt: skip
    return stop


@kernel(
    I64(
        _GRID, _HASHES, I64, I64, _GRID, record_type(Direction), record_type(Direction),
        record_type(ConnectionState), _INTS, _GRID,
    )
)  # fmt: skip
def track(
    packets: Grid32,
    contents: Grid,
    start: int,
    stop: int,
    records: Grid32,
    to_broker: Direction,
    to_client: Direction,
    connection: ConnectionState,
    total: Ints,
    breaches: Grid32,
) -> int:
    """Track a run of one connection's packets, as `track_run` does."""
    return track_run(
        packets, contents, start, stop, records, to_broker, to_client, connection, total, breaches
    )
