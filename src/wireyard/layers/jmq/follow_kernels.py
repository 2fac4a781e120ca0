"""The kernel that follows JMQ connections: `Connection` over integer columns.

It does what `wireyard.layers.jmq.connection.Connection` and its parts do, packet by packet, and is
judged against them. The rules stand there: their state tables are compiled to arrays (`compiled`),
their handlers to codes. State is in arrays with one slot for each key that packets name (a
consumer, a request id, a held message), so nothing is looked up and nothing allocated.

Rules of this file:

1. A row is the index of a packet in the columns; -1 is none. A code is the index of a text.
2. Slots that must be kept in the order of insertion are doubly linked lists.
3. The kernel returns as soon as a buffer of what it found may be full, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.accelerate import I64, kernel, piece, record
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.layers.grouping import Int8s, Int32s, Int64s
from wireyard.layers.jmq import connection as scalar
from wireyard.layers.jmq import consumers as holding
from wireyard.layers.jmq import flow as pausing
from wireyard.layers.jmq import receiver as receiving
from wireyard.layers.jmq import requests
from wireyard.layers.jmq import sender as sending
from wireyard.layers.jmq import session as logins
from wireyard.layers.jmq.delivery import DELIVERY, SETTLED
from wireyard.layers.jmq.facts import RULES
from wireyard.layers.jmq.follow_records import (
    Connections,
    Consumers,
    Found,
    Held,
    Packets,
    Pauses,
    Properties,
    Streams,
    Waiting,
)
from wireyard.layers.jmq.receiver import Receiver
from wireyard.layers.jmq.report import NEEDS_ALL
from wireyard.layers.jmq.requests import Requests
from wireyard.layers.jmq.sender import Sender
from wireyard.layers.jmq.transaction import TRANSACTION
from wireyard.layers.state_arrays import NEXT, RULE, transitions

__all__ = [
    "ANSWERS",
    "ANSWERS_BACK",
    "CAPS",
    "DELIVERS",
    "DELIVERY_STATES",
    "FROM_CLIENT",
    "FROM_SERVER",
    "MISSED",
    "PACKET",
    "RULE_CODES",
    "SEEN",
    "SENDS",
    "USE_EVENTS",
    "compiled",
    "follow",
    "has",
]

# --- codes ----------------------------------------------------------------------------------

_NOTHING, PACKET, SEEN, MISSED = range(4)
"""Kinds of rows: says nothing; a JMQ packet to follow; shows only that its stream is there; lost
or damaged bytes."""

_HANDLERS: Final[Sequence[Callable[..., None]]] = (
    Sender.send, Receiver.deliver, Requests.answer, Requests.ask, Receiver.add, Receiver.delete,
    Receiver.acknowledge, Receiver.browse, Receiver.redeliver, Sender.start, Sender.commit,
    Sender.roll_back, Sender.set_client_id, Receiver.resume, Sender.resume, Sender.prepare,
    Sender.end, Sender.delete_producer, Receiver.destroy_session,
)  # fmt: skip
(
    SENDS, DELIVERS, ANSWERS, _ASKS, _ADDS, _DELETES, _ACKNOWLEDGES, _BROWSES, _REDELIVERS,
    _STARTS, _COMMITS, _ROLLS_BACK, _SETS_CLIENT_ID, _RESUMES, _IS_RESUMED, _PREPARES, _ENDS,
    _DELETES_PRODUCER, _DESTROYS, _ASKS_BACK, ANSWERS_BACK,
) = range(len(_HANDLERS) + 2)  # fmt: skip
"""What a packet does, by its type and direction."""
TYPES: Final = 256
"""Packet types below this have cells of their own; any other is like the last, which none has."""


def _handlers(by_type: Mapping[int, Any], other: int) -> Any:
    codes = np.full(TYPES, other, np.int8)
    for packet_type, (part, handle) in by_type.items():
        code = _HANDLERS.index(handle)
        asked_back = part == scalar.ASKED_BY_SERVER
        codes[packet_type] = ANSWERS_BACK if code == ANSWERS and asked_back else code
    return codes


FROM_CLIENT: Final = _handlers(scalar.FROM_CLIENT, _ASKS)
FROM_SERVER: Final = _handlers(scalar.FROM_SERVER, _ASKS_BACK)

RULE_CODES: Final = {rule: code for code, rule in enumerate(RULES)}
(
    _BEFORE_LOGIN, _SECOND_LOGIN, _AFTER_GOODBYE, _REPLY_WITHOUT_REQUEST, _REQUEST_ID_REUSED,
    _UNKNOWN_CONSUMER, _HANDED_OVER_TWICE, _ACKNOWLEDGED_NOTHING, _MALFORMED_RECORDS,
    _SENT_WHILE_PAUSED, _TRANSACTION_OVER, _SEQUENCE_GAP, _SEQUENCE_BACK, _SEQUENCE_REUSED,
    _TRANSACTION_ID_MISSING,
) = (
    RULE_CODES[rule]
    for rule in (
        "before_login", "second_login", "after_goodbye", "reply_without_request",
        "request_id_reused", "unknown_consumer", "handed_over_twice", "acknowledged_nothing",
        "malformed_records", "sent_while_paused", "transaction_over", "sequence_gap",
        "sequence_back", "sequence_reused", "transaction_id_missing",
    )
)  # fmt: skip

USE_EVENTS: Final = TRANSACTION.events
(_U_START, _U_SEND, _U_DENY_SEND, _U_ACK, _U_DENY_ACK, _U_END, _U_PREPARE, _U_ASK_COMMIT,
 _U_COMMIT, _U_DENY_COMMIT, _U_ROLL_BACK) = (
    USE_EVENTS.index(event)
    for event in ("start", "send", "deny_send", "acknowledge", "deny_acknowledge", "end",
                  "prepare", "ask_commit", "commit", "deny_commit", "roll_back")
)  # fmt: skip

DELIVERY_STATES: Final = DELIVERY.states
_EVENTS: Final = DELIVERY.events
(_D_ACK, _D_ACK_IN, _D_EXPIRE, _D_BURY, _D_DECLINE, _D_CONFIRMED, _D_DENIED, _D_SEEN, _D_UNSEEN,
 _D_CLOSE_UNSEEN, _D_CLOSE) = (
    _EVENTS.index(event)
    for event in ("acknowledge", "acknowledge_in_transaction", "expire", "bury", "decline",
                  "confirmed", "denied", "redeliver_seen", "redeliver_unseen", "close_unseen",
                  "close")
)  # fmt: skip
_HELD, _BROWSED, _NO_ACK_WANTED = (
    DELIVERY_STATES.index(state) for state in ("held", "browsed", "no_ack_wanted")
)
_LOGIN_STATES: Final = logins.SESSION.states
_LOGIN_EVENTS: Final = logins.SESSION.events
(_HELLO, _HELLO_OK, _HELLO_REFUSED, _CHALLENGE, _LOGIN, _LOGIN_OK, _LOGIN_REFUSED, _CLIENT_BYE,
 _SERVER_BYE, _BYE_REPLY, _CLIENT_PACKET, _SERVER_PACKET) = range(len(_LOGIN_EVENTS))  # fmt: skip
_NEW: Final = _LOGIN_STATES.index("new")
_FLOW_STATES: Final = pausing.FLOW.states
_FLOW_EVENTS: Final = pausing.FLOW.events
_FLOWING: Final = _FLOW_STATES.index("flowing")
_F_SEND, _F_SEND_LAST, _F_RESUME, _F_STOP = range(len(_FLOW_EVENTS))

CAPS: Final = ("MAX_WAITING", "MAX_HELD", "MAX_CONSUMERS", "MAX_PAUSED", "MAX_TRANSACTIONS")
_CAP_WAITING, _CAP_HELD, _CAP_CONSUMERS, _CAP_PAUSED, _CAP_TRANSACTIONS = range(len(CAPS))

_CAPS: Final = len(CAPS)

_OK: Final = requests.OK
_WANTED, _TRANSACTED = FLAGS["A"], FLAGS["T"]
_LAST_OF_CONNECTION, _LAST_OF_ONE = FLAGS["F"], FLAGS["C"]
_WITHOUT_T: Final = scalar.WITHOUT_T
_SEND_REPLY: Final = requests.SEND_REPLY
_UNDELIVERABLE, _DEAD, _EXPIRED = receiving.UNDELIVERABLE, receiving.DEAD, receiving.EXPIRED
_NEVER_ACKNOWLEDGES: Final = receiving.NO_ACKNOWLEDGE
_LAST_MESSAGE_TYPE: Final = max(MESSAGE_TYPES)
_long: Final[Any] = np.int64
_WORD, _HALF = (1 << 32) - 1, 1 << 31
_ROOM: Final = 16
"""The most things of a kind that one packet makes."""

_PROPERTIES: Final = (
    "status", "consumer", "producer", "session", "transaction", "next_transaction", "ack_mode",
    "ack_type", "dead_reason", "count_only", "set_redelivered", "size", "level",
)  # fmt: skip


def has(name: str) -> int:
    """Return the bit of `Properties.present` that tells whether a packet has a property."""
    return 1 << _PROPERTIES.index(name)


_HAS_STATUS, _HAS_CONSUMER, _HAS_PRODUCER, _HAS_SESSION, _HAS_TRANSACTION, _HAS_NEXT = map(
    has, _PROPERTIES[:6]
)
_HAS_SIZE: Final = has("size")


class Compiled(NamedTuple):
    """The state tables, each flat: ``[state * events + event]``, and what packet types mean."""

    delivery: Int8s
    settled: Int8s
    login: Int8s
    login_rules: Int8s
    steady: Int8s
    logging_in: Int8s
    login_events: Int8s
    """By type: the event; -1 any other packet, -2 one that is no event, -3 and -4 replies whose
    status decides, -5 one whose direction does."""
    flow: Int8s
    flow_rules: Int8s
    reply_of: Int32s
    needs_all: Int8s
    """By rule: whether packets that were not seen may explain that it is broken."""
    caps: Int64s
    """The most things of a connection that may be open at once, in the order of `CAPS`."""


def compiled() -> Compiled:
    """Return the tables for `follow`."""
    events = np.full(TYPES, -1, np.int8)
    events[list(logins.PINGS)] = -2
    for packet_type, event in logins.ALWAYS.items():
        events[packet_type] = _LOGIN_EVENTS.index(event)
    events[logins.HELLO_REPLY], events[logins.LOGIN_REPLY] = -3, -4
    events[logins.GOODBYE] = -5
    reply_of = np.full(TYPES, -1, np.int32)
    for packet_type, reply in requests.REPLY_OF.items():
        reply_of[packet_type] = reply
    delivery, login, flow = (
        transitions(table, (), tuple(RULES)).astype(np.int8)
        for table in (DELIVERY, logins.SESSION, pausing.FLOW)
    )
    return Compiled(
        delivery[:, :, NEXT].ravel(),
        np.array([state in SETTLED for state in DELIVERY_STATES], np.int8),
        login[:, :, NEXT].ravel(),
        login[:, :, RULE].ravel(),
        np.array([state in logins.STEADY for state in _LOGIN_STATES], np.int8),
        np.array([state in logins.LOGGING_IN for state in _LOGIN_STATES], np.int8),
        events,
        flow[:, :, NEXT].ravel(),
        flow[:, :, RULE].ravel(),
        reply_of,
        np.array([rule in NEEDS_ALL for rule in RULES], np.int8),
        np.array(
            [requests.MAX_WAITING, holding.MAX_HELD, holding.MAX_CONSUMERS, pausing.MAX_PAUSED,
             sending.MAX_TRANSACTIONS]
        ),
    )  # fmt: skip


_D_WIDTH, _L_WIDTH, _F_WIDTH = len(_EVENTS), len(_LOGIN_EVENTS), len(_FLOW_EVENTS)


# --- pieces ---------------------------------------------------------------------------------


@piece
def _cell(packet_type: int) -> int:
    """Return where a packet type stands in the tables by type."""
    return packet_type if 0 <= packet_type < TYPES else TYPES - 1


@piece
def _append(first: Any, last: Any, before: Any, after: Any, of: int, slot: int) -> None:
    """Put a slot at the end of a list."""
    before[slot], after[slot] = last[of], -1
    if last[of] < 0:
        first[of] = slot
    else:
        after[last[of]] = slot
    last[of] = slot


@piece
def _unlink(first: Any, last: Any, before: Any, after: Any, of: int, slot: int) -> None:
    """Take a slot out of a list."""
    if before[slot] < 0:
        first[of] = after[slot]
    else:
        after[before[slot]] = after[slot]
    if after[slot] < 0:
        last[of] = before[slot]
    else:
        before[after[slot]] = before[slot]


@piece
def _admit(tables: Any, links: Any, found: Any, c: int, cap: int) -> bool:
    """Take one more thing that is half open; tell whether there was room, or count it."""
    if links.open[_CAPS * c + cap] < tables.caps[cap]:
        links.open[_CAPS * c + cap] += 1
        return True
    found.dropped[cap] += 1
    return False


@piece
def _release(links: Any, c: int, cap: int) -> None:
    links.open[_CAPS * c + cap] -= 1


@piece
def _breach(
    tables: Any, links: Any, found: Any, c: int, rule: int, row: int, block: int, times: int
) -> None:
    if tables.needs_all[rule] and not links.known[c]:
        return
    at = found.counts[0]
    found.rule[at], found.rule_row[at], found.rule_block[at] = rule, row, block
    found.rule_times[at], found.rule_client_id[at] = times, links.client_id[c]
    found.counts[0] = at + 1


@piece
def _use(
    links: Any, found: Any, c: int, row: int, transaction: int, event: int, messages: int
) -> None:
    at = found.counts[1]
    found.use_row[at], found.use_event[at] = row, event
    found.use_transaction[at], found.use_messages[at] = transaction, messages
    found.use_client_id[at] = links.client_id[c]
    found.counts[1] = at + 1


@piece
def _let_go(links: Any, consumers: Any, held: Any, c: int, message: int) -> None:
    """Give up a delivery as it is."""
    consumer = held.consumer[message]
    _unlink(consumers.first_held, consumers.last_held, held.before, held.after, consumer, message)
    held.row[message] = -1
    _release(links, c, _CAP_HELD)


@piece
def _forget_consumer(links: Any, consumers: Any, c: int, consumer: int) -> None:
    """Take a consumer that holds nothing out of its connection and its session."""
    consumers.there[consumer] = 0
    _release(links, c, _CAP_CONSUMERS)
    _unlink(
        links.first_consumer, links.last_consumer, consumers.before, consumers.after, c, consumer
    )
    session = consumers.session[consumer]
    if session >= 0:
        _unlink(
            consumers.first_of_session, consumers.last_of_session, consumers.before_of_session,
            consumers.after_of_session, session, consumer,
        )  # fmt: skip


@piece
def _remove_consumer(
    p: Any, tables: Any, links: Any, consumers: Any, held: Any, c: int, consumer: int
) -> None:
    while consumers.first_held[consumer] >= 0:
        message = consumers.first_held[consumer]
        row = held.row[message]
        p.state[row] = tables.delivery[p.state[row] * _D_WIDTH + _D_CLOSE]
        _let_go(links, consumers, held, c, message)
    _forget_consumer(links, consumers, c, consumer)


@piece
def _step(
    p: Any, tables: Any, links: Any, consumers: Any, held: Any, c: int, message: int, event: int
) -> int:
    """Take an event about a held message; return its row, -1 if it is not for such a one."""
    row: int = held.row[message]
    if row < 0:
        return -1
    following = tables.delivery[p.state[row] * _D_WIDTH + event]
    if following < 0:
        return -1
    p.state[row] = following
    if tables.settled[following]:
        consumer = held.consumer[message]
        _let_go(links, consumers, held, c, message)
        if consumers.deleted[consumer] and consumers.first_held[consumer] < 0:
            _forget_consumer(links, consumers, c, consumer)
    return row


@piece
def _end_pause(p: Any, links: Any, pauses: Any, c: int, flow: int, who: int, row: int) -> None:
    since = pauses.since[who]
    pauses.state[who] = _FLOWING
    _unlink(links.first_paused, links.last_paused, pauses.before, pauses.after, flow, who)
    _release(links, c, _CAP_PAUSED)
    if p.timed[since] and p.timed[row]:
        links.paused_ns[c] += max(p.ns[row] - p.ns[since], 0)


@piece
def _step_pause(
    p: Any, tables: Any, links: Any, pauses: Any, found: Any, c: int, flow: int, who: int,
    event: int, row: int,
) -> None:  # fmt: skip
    state = pauses.state[who]
    following = tables.flow[state * _F_WIDTH + event]
    if following < 0:
        _breach(tables, links, found, c, tables.flow_rules[state * _F_WIDTH + event], row, -1, 1)
    elif following != state:
        if state != _FLOWING:
            _end_pause(p, links, pauses, c, flow, who, row)
        if following != _FLOWING:
            links.pauses[c] += 1
            room = _admit(tables, links, found, c, _CAP_PAUSED)
            if not room and links.first_paused[flow] >= 0:
                _end_pause(p, links, pauses, c, flow, links.first_paused[flow], row)
                room = _admit(tables, links, found, c, _CAP_PAUSED)
            if room:
                pauses.state[who], pauses.since[who] = following, row
                _append(
                    links.first_paused, links.last_paused, pauses.before, pauses.after, flow, who
                )


@piece
def _send_pause(
    p: Any, tables: Any, links: Any, pauses: Any, found: Any, c: int, flow: int, row: int
) -> None:
    """Take a message for a consumer, or of a producer."""
    flags = p.flags[row]
    marks = flags & (_LAST_OF_CONNECTION | _LAST_OF_ONE)
    whole = links.pause[flow]
    if whole < 0 or (marks == 0 and links.first_paused[flow] < 0):
        return
    for of_one in range(2):
        who = p.pause[row] if of_one else whole
        mark = _LAST_OF_ONE if of_one else _LAST_OF_CONNECTION
        if who >= 0:
            event = _F_SEND_LAST if flags & mark else _F_SEND
            _step_pause(p, tables, links, pauses, found, c, flow, who, event, row)


@piece
def _number(
    p: Any, tables: Any, streams: Any, links: Any, found: Any, c: int, s: int, row: int
) -> None:
    """Take the number of a packet: `Runs`."""
    if not streams.from_client[s]:
        if p.packet_type[row] < 1 or p.packet_type[row] > _LAST_MESSAGE_TYPE:
            streams.address[s] = row
        else:
            own = streams.address[s]
            if (own < 0 or p.ip_high[own] != p.ip_high[row] or p.ip_low[own] != p.ip_low[row]
                    or p.port[own] != p.port[row]):  # fmt: skip
                return
    sequence = p.sequence[row]
    if streams.place[s] < 0:
        streams.first[s] = sequence
    else:
        ahead = ((sequence - streams.stop[s] + _HALF) & _WORD) - _HALF
        if ahead == 0:
            streams.stop[s] += 1
            streams.highest[s] = row
            return
        sequence = streams.stop[s] + ahead
        if ahead < 0:
            top = streams.highest[s]
            if (p.ip_high[top] != p.ip_high[row] or p.ip_low[top] != p.ip_low[row]
                    or p.port[top] != p.port[row]):  # fmt: skip
                return
            new = p.timestamp[row] > p.timestamp[top]
            if ahead == -1:
                new = (
                    p.timestamp[row] != p.timestamp[top] or p.packet_type[row] != p.packet_type[top]
                )
            if new:
                rule = _SEQUENCE_REUSED if sequence >= streams.start[s] else _SEQUENCE_BACK
                _breach(tables, links, found, c, rule, row, -1, 1)
            return
        at = found.counts[2]
        found.run_stream[at], found.run_place[at] = s, streams.place[s]
        found.run_start[at], found.run_stop[at] = streams.start[s], streams.stop[s]
        found.counts[2] = at + 1
    streams.start[s], streams.stop[s] = sequence, sequence + 1
    streams.place[s] = streams.highest[s] = row


@piece
def _login(
    p: Any, q: Any, tables: Any, links: Any, found: Any, c: int, from_client: bool, row: int
) -> None:
    """Take a packet of either side: `Session`."""
    if links.opened[c] < 0:
        links.opened[c] = row
    links.packets[c] += 1
    links.size[c] += p.size[row]
    links.last[c] = row
    event = _long(tables.login_events[_cell(p.packet_type[row])])
    state = links.state[c]
    if event == -2 or (event == -1 and tables.steady[state]):
        return
    if event == -1:
        event = _CLIENT_PACKET if from_client else _SERVER_PACKET
    elif event == -5:
        event = _CLIENT_BYE if from_client else _SERVER_BYE
    elif event < 0:
        at = p.properties[row]
        accepted = at >= 0 and q.present[at] & _HAS_STATUS != 0 and q.status[at] == _OK
        if event == -3:
            event = _HELLO_OK if accepted else _HELLO_REFUSED
        else:
            event = _LOGIN_OK if accepted else _LOGIN_REFUSED
    following = tables.login[state * _L_WIDTH + event]
    if following < 0:
        _breach(tables, links, found, c, tables.login_rules[state * _L_WIDTH + event], row, -2, 1)
    elif following != state:
        if event == _HELLO:
            links.known[c] = links.login_known[c] = links.packets[c] == 1
            links.hello[c] = row
        elif event == _LOGIN:
            links.user[c] = row
        elif event in (_LOGIN_OK, _LOGIN_REFUSED, _HELLO_REFUSED):
            links.status[c] = row
        elif event in (_CLIENT_BYE, _SERVER_BYE) and links.ended_by[c] == 0:
            links.ended_by[c] = 1 if event == _CLIENT_BYE else 2
        links.state[c] = following


@piece
def _miss(tables: Any, links: Any, pauses: Any, c: int) -> None:
    """Take that packets are missing, or damaged."""
    links.known[c] = 0
    if links.opened[c] >= 0 and tables.logging_in[links.state[c]]:
        links.state[c] = _NEW
    for flow in range(2 * c, 2 * c + 2):
        while links.first_paused[flow] >= 0:
            who = links.first_paused[flow]
            pauses.state[who] = _FLOWING
            _unlink(links.first_paused, links.last_paused, pauses.before, pauses.after, flow, who)
            _release(links, c, _CAP_PAUSED)


@piece
def _begin(
    tables: Any, links: Any, held: Any, found: Any, c: int, row: int, transaction: int, slot: int
) -> None:
    _use(links, found, c, row, transaction, _U_START, 0)
    if not held.begun[slot] and _admit(tables, links, found, c, _CAP_TRANSACTIONS):
        held.begun[slot] = 1


# --- the kernel -----------------------------------------------------------------------------


@kernel(
    I64(I64, *map(record, (Compiled, Packets, Properties, Streams, Connections, Waiting, Consumers,
                           Held, Pauses, Found)), I64),
)  # fmt: skip
def follow(
    start: int, tables: Any, p: Any, q: Any, streams: Any, links: Any, waiting: Any,
    consumers: Any, held: Any, pauses: Any, found: Any, room: int,
) -> int:  # fmt: skip
    """Follow packets, which stand in the order of time within each connection.

    Returns
    -------
    row
        The first packet that was not taken, because a buffer of `found` is nearly full; or how
        many packets there are.
    """
    for row in range(start, len(p.kind)):
        if (found.counts[0] + _ROOM > room or found.counts[1] + _ROOM > room
                or found.counts[2] + _ROOM > room):  # fmt: skip
            return row
        kind = p.kind[row]
        if kind == _NOTHING:
            continue
        s = p.stream[row]
        c = _long(streams.connection[s])
        if kind == MISSED:
            if streams.seen[s] and links.active[c]:
                _miss(tables, links, pauses, c)
            continue
        streams.seen[s] = 1
        if kind == SEEN:
            continue
        links.active[c] = 1
        from_client = streams.from_client[s] != 0
        at = _long(p.properties[row])
        transaction = p.transaction[row]
        _number(p, tables, streams, links, found, c, s, row)
        if p.flags[row] & _TRANSACTED != 0 and p.version[row] > _WITHOUT_T and transaction == 0:
            _breach(tables, links, found, c, _TRANSACTION_ID_MISSING, row, -1, 1)
        _login(p, q, tables, links, found, c, from_client, row)

        handler = p.handler[row]
        present = _long(q.present[at]) if at >= 0 else 0
        asks = True
        # The request that takes effect with this packet, its reply, and whether that says yes.
        settled, reply, accepted = -1, -1, True

        if handler == SENDS:
            p.client_id[row] = links.client_id[c]
            _send_pause(p, tables, links, pauses, found, c, 2 * c + 1, row)
            if transaction != 0:
                _use(links, found, c, row, transaction, _U_SEND, 1)
        elif handler == DELIVERS:
            asks = False
            consumer = p.consumer[row]
            if not consumers.there[consumer] or consumers.deleted[consumer]:
                _breach(tables, links, found, c, _UNKNOWN_CONSUMER, row, -1, 1)
            p.client_id[row] = links.client_id[c]
            if consumers.there[consumer]:
                p.state[row] = consumers.begins[consumer]
                p.subscription[row] = consumers.subscription[consumer]
                p.of_dead[row] = consumers.of_dead[consumer]
            else:
                p.state[row] = _HELD
                room_for = _admit(tables, links, found, c, _CAP_CONSUMERS)
                if not room_for and links.first_consumer[c] >= 0:
                    first = links.first_consumer[c]
                    _remove_consumer(p, tables, links, consumers, held, c, first)
                    room_for = _admit(tables, links, found, c, _CAP_CONSUMERS)
                if room_for:
                    consumers.there[consumer], consumers.begins[consumer] = 1, _HELD
                    consumers.of_dead[consumer] = consumers.deleted[consumer] = 0
                    consumers.subscription[consumer] = consumers.session[consumer] = -1
                    _append(
                        links.first_consumer, links.last_consumer, consumers.before,
                        consumers.after, c, consumer,
                    )  # fmt: skip
            if consumers.there[consumer] and not tables.settled[p.state[row]]:
                message = p.message[row]
                again = held.row[message]
                if again >= 0:
                    p.state[again] = tables.delivery[p.state[again] * _D_WIDTH + _D_CLOSE]
                    _let_go(links, consumers, held, c, message)
                room_for = _admit(tables, links, found, c, _CAP_HELD)
                if not room_for and consumers.first_held[consumer] >= 0:
                    _let_go(links, consumers, held, c, consumers.first_held[consumer])
                    room_for = _admit(tables, links, found, c, _CAP_HELD)
                if room_for:
                    held.row[message], held.consumer[message] = row, consumer
                    _append(
                        consumers.first_held, consumers.last_held, held.before, held.after,
                        consumer, message,
                    )  # fmt: skip
                    if again >= 0:
                        _breach(tables, links, found, c, _HANDED_OVER_TWICE, row, -1, 1)
            _send_pause(p, tables, links, pauses, found, c, 2 * c, row)
        elif handler in (ANSWERS, ANSWERS_BACK):
            asks = False
            slot = p.request[row]
            asked = waiting.row[slot]
            packet_type = p.packet_type[row]
            if asked >= 0 and (
                packet_type == _SEND_REPLY
                or tables.reply_of[_cell(p.packet_type[asked])] == packet_type
            ):
                side = 2 * c + (handler == ANSWERS_BACK)
                waiting.row[slot] = -1
                _unlink(
                    links.first_waiting, links.last_waiting, waiting.before, waiting.after, side,
                    slot,
                )  # fmt: skip
                _release(links, c, _CAP_WAITING)
                p.answer[asked] = row
                if handler == ANSWERS:
                    settled, reply = asked, row
                    accepted = present & _HAS_STATUS != 0 and q.status[at] == _OK
            else:
                _breach(tables, links, found, c, _REPLY_WITHOUT_REQUEST, row, -2, 1)
        elif handler in (_RESUMES, _IS_RESUMED):
            asks = False
            flow = 2 * c + (handler == _IS_RESUMED)
            who = p.pause[row] if p.pause[row] >= 0 else links.pause[flow]
            event = _F_RESUME
            if handler == _IS_RESUMED and present & _HAS_SIZE != 0 and q.size[at] == 0:
                event = _F_STOP
            _step_pause(p, tables, links, pauses, found, c, flow, who, event, row)
        elif handler == _REDELIVERS:
            asks = False
            if p.malformed[row]:
                _breach(tables, links, found, c, _MALFORMED_RECORDS, row, -2, 1)
            event = _D_SEEN if at >= 0 and q.set_redelivered[at] != 0 else _D_UNSEEN
            for block in range(p.blocks[row], p.blocks[row + 1]):
                _step(p, tables, links, consumers, held, c, held.block_message[block], event)
        elif handler == _ACKNOWLEDGES:
            if at < 0 or q.count_only[at] == 0:
                if p.malformed[row]:
                    _breach(tables, links, found, c, _MALFORMED_RECORDS, row, -2, 1)
                event = _D_ACK_IN if transaction != 0 else _D_ACK
                if at >= 0 and q.ack_type[at] == _UNDELIVERABLE:
                    event = _D_DECLINE
                elif at >= 0 and q.ack_type[at] == _DEAD:
                    event = _D_EXPIRE if q.dead_reason[at] == _EXPIRED else _D_BURY
                strange, many = _long(-1), 0
                for block in range(p.blocks[row], p.blocks[row + 1]):
                    delivered = _step(
                        p, tables, links, consumers, held, c, held.block_message[block], event
                    )
                    if delivered >= 0:
                        p.acknowledged[delivered], p.joined[delivered] = row, transaction
                        held.pending[block] = 1
                    else:
                        many += 1
                        strange = block if strange < 0 else strange
                if strange >= 0:
                    _breach(tables, links, found, c, _ACKNOWLEDGED_NOTHING, row, strange, many)
                if transaction != 0:
                    blocks = p.blocks[row + 1] - p.blocks[row]
                    _use(links, found, c, row, transaction, _U_ACK, blocks)
        elif handler == _COMMITS and present & _HAS_TRANSACTION != 0:
            _use(links, found, c, row, q.transaction[at], _U_ASK_COMMIT, 0)

        if asks and p.flags[row] & _WANTED != 0:
            p.asked[row] = 1
            slot = p.request[row]
            side = 2 * c + (handler == _ASKS_BACK)
            room_for = True
            if waiting.row[slot] >= 0:
                _breach(tables, links, found, c, _REQUEST_ID_REUSED, row, -2, 1)
                _unlink(
                    links.first_waiting, links.last_waiting, waiting.before, waiting.after, side,
                    slot,
                )  # fmt: skip
            elif not _admit(tables, links, found, c, _CAP_WAITING):
                first = links.first_waiting[side]
                room_for = first >= 0
                if room_for:
                    waiting.row[first] = -1
                    _unlink(
                        links.first_waiting, links.last_waiting, waiting.before, waiting.after,
                        side, first,
                    )  # fmt: skip
            if room_for:
                waiting.row[slot] = row
                _append(
                    links.first_waiting, links.last_waiting, waiting.before, waiting.after, side,
                    slot,
                )  # fmt: skip
        elif asks and handler != _ASKS_BACK:
            settled = row

        if settled < 0:
            continue
        # --- what a request decides -------------------------------------------------------
        handler = p.handler[settled]
        asked_at = _long(p.properties[settled])
        asked_for = _long(q.present[asked_at]) if asked_at >= 0 else 0
        answered_with = present if reply >= 0 else 0
        if handler == SENDS:
            if not accepted and p.transaction[settled] != 0:
                _use(links, found, c, row, p.transaction[settled], _U_DENY_SEND, 1)
        elif handler == _ACKNOWLEDGES:
            event = _D_CONFIRMED if accepted else _D_DENIED
            for block in range(p.blocks[settled], p.blocks[settled + 1]):
                if held.pending[block]:
                    delivered = _step(
                        p, tables, links, consumers, held, c, held.block_message[block], event
                    )
                    if delivered >= 0 and not accepted:
                        p.acknowledged[delivered], p.joined[delivered] = -1, 0
            only_count = asked_at >= 0 and q.count_only[asked_at] != 0
            if not accepted and p.transaction[settled] != 0 and not only_count:
                blocks = p.blocks[settled + 1] - p.blocks[settled]
                _use(links, found, c, row, p.transaction[settled], _U_DENY_ACK, blocks)
        elif handler in (_ADDS, _BROWSES):
            if accepted and answered_with & _HAS_CONSUMER != 0:
                consumer = q.consumer_slot[at]
                if consumers.there[consumer]:
                    _remove_consumer(p, tables, links, consumers, held, c, consumer)
                room_for = _admit(tables, links, found, c, _CAP_CONSUMERS)
                if not room_for and links.first_consumer[c] >= 0:
                    first = links.first_consumer[c]
                    _remove_consumer(p, tables, links, consumers, held, c, first)
                    room_for = _admit(tables, links, found, c, _CAP_CONSUMERS)
                if room_for:
                    consumers.there[consumer], consumers.deleted[consumer] = 1, 0
                    consumers.begins[consumer] = _BROWSED if handler == _BROWSES else _HELD
                    consumers.subscription[consumer] = consumers.session[consumer] = -1
                    consumers.of_dead[consumer] = 0
                    if handler == _ADDS and asked_at >= 0:
                        if q.ack_mode[asked_at] == _NEVER_ACKNOWLEDGES:
                            consumers.begins[consumer] = _NO_ACK_WANTED
                        consumers.subscription[consumer] = q.subscription[asked_at]
                        consumers.of_dead[consumer] = q.of_dead[asked_at]
                        consumers.session[consumer] = q.session_slot[asked_at]
                    _append(
                        links.first_consumer, links.last_consumer, consumers.before,
                        consumers.after, c, consumer,
                    )  # fmt: skip
                    session = consumers.session[consumer]
                    if session >= 0:
                        _append(
                            consumers.first_of_session, consumers.last_of_session,
                            consumers.before_of_session, consumers.after_of_session, session,
                            consumer,
                        )  # fmt: skip
        elif handler == _DELETES:
            if accepted and asked_for & _HAS_CONSUMER != 0:
                consumer = q.consumer_slot[asked_at]
                if consumers.there[consumer] and not consumers.deleted[consumer]:
                    last = _long(p.message[settled])
                    unseen = last < 0 or held.row[last] < 0
                    message = _long(consumers.first_held[consumer])
                    while message >= 0:
                        following = _long(held.after[message])
                        if unseen:
                            _step(p, tables, links, consumers, held, c, message, _D_CLOSE_UNSEEN)
                        unseen = unseen or message == last
                        message = following
                    consumers.deleted[consumer] = 1
                    if consumers.first_held[consumer] < 0:
                        _forget_consumer(links, consumers, c, consumer)
                who = p.pause[settled]
                if who >= 0 and pauses.state[who] != _FLOWING:
                    _end_pause(p, links, pauses, c, 2 * c, who, row)
        elif handler == _DESTROYS:
            if accepted and asked_for & _HAS_SESSION != 0:
                session = q.session_slot[asked_at]
                while consumers.first_of_session[session] >= 0:
                    consumer = consumers.first_of_session[session]
                    _remove_consumer(p, tables, links, consumers, held, c, consumer)
        elif handler == _DELETES_PRODUCER:
            who = p.pause[settled]
            if accepted and who >= 0 and pauses.state[who] != _FLOWING:
                _end_pause(p, links, pauses, c, 2 * c + 1, who, row)
        elif handler == _SETS_CLIENT_ID:
            if accepted:
                links.client_id[c] = q.client_id[asked_at] if asked_at >= 0 else -1
        elif handler == _STARTS:
            if accepted and answered_with & _HAS_TRANSACTION != 0:
                _begin(
                    tables, links, held, found, c, row, q.transaction[at], q.transaction_slot[at]
                )
        elif handler in (_COMMITS, _ROLLS_BACK, _PREPARES, _ENDS):
            named = asked_at if asked_for & _HAS_TRANSACTION != 0 else _long(-1)
            if named < 0 and answered_with & _HAS_TRANSACTION != 0:
                named = at
                if handler == _COMMITS:
                    _use(links, found, c, row, q.transaction[at], _U_ASK_COMMIT, 0)
            if named >= 0 and (accepted or handler == _COMMITS):
                event = _U_END
                if handler == _COMMITS:
                    event = _U_COMMIT if accepted else _U_DENY_COMMIT
                elif handler == _ROLLS_BACK:
                    event = _U_ROLL_BACK
                elif handler == _PREPARES:
                    event = _U_PREPARE
                _use(links, found, c, row, q.transaction[named], event, 0)
                slot = q.transaction_slot[named]
                if event in (_U_COMMIT, _U_ROLL_BACK) and held.begun[slot]:
                    held.begun[slot] = 0
                    _release(links, c, _CAP_TRANSACTIONS)
                if handler == _COMMITS and accepted and answered_with & _HAS_NEXT != 0:
                    _begin(
                        tables, links, held, found, c, row, q.next_transaction[at], q.next_slot[at]
                    )
    return len(p.kind)
