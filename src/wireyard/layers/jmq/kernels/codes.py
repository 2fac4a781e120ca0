"""Codes for kernels: packet types, rules, states and events of JMQ connections as numbers.

They follow from the tables of ``states.py`` and ``rules.py``: `compiled` returns these as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Int8s, Ints
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.layers.jmq import rules, states
from wireyard.layers.jmq.rules import HANDLERS, NEEDS, RULES
from wireyard.layers.jmq.states import DELIVERY, FLOW, SESSION, TRANSACTION
from wireyard.layers.states import NEXT, RULE, transitions

NOTHING, PACKET, SEEN, MISSED, LOST = range(5)
"""Kinds of rows: another format; a JMQ packet to track; one that only shows that its stream exists;
damaged bytes; a gap."""

(
    SENDS, DELIVERS, REPLIES, REQUESTS, ADDS, DELETES, ACKNOWLEDGES, BROWSES, REDELIVERS,
    STARTS, COMMITS, ROLLS_BACK, SETS_CLIENT_ID, RESUMES, IS_RESUMED, PREPARES, ENDS,
    DELETES_PRODUCER, DESTROYS, SERVER_REQUESTS, CLIENT_REPLIES,
) = range(len(HANDLERS))  # fmt: skip
"""The handlers of packets, by type and direction."""
TYPES: Final = 256
"""The size of tables by packet type; types outside use the last cell, whose type does not exist."""


def _handlers(by_type: Mapping[int, str], other: int) -> Any:
    codes = np.full(TYPES, other, np.int8)
    numbers = {name: code for code, name in enumerate(HANDLERS)}
    for packet_type, name in by_type.items():
        codes[packet_type] = numbers[name]
    return codes


CLIENT_HANDLERS: Final = _handlers(rules.CLIENT_HANDLERS, REQUESTS)
BROKER_HANDLERS: Final = _handlers(rules.BROKER_HANDLERS, SERVER_REQUESTS)

RULE_CODES: Final = {rule: code for code, rule in enumerate(RULES)}
(
    BEFORE_LOGIN, SECOND_LOGIN, AFTER_GOODBYE, REPLY_WITHOUT_REQUEST, REQUEST_ID_REUSED,
    UNKNOWN_CONSUMER, HANDED_OVER_TWICE, ACKNOWLEDGED_NOTHING, MALFORMED_RECORDS,
    SENT_WHILE_PAUSED, TRANSACTION_OVER, SEQUENCE_BACK, SEQUENCE_REUSED, TRANSACTION_ID_MISSING,
) = (
    RULE_CODES[rule]
    for rule in (
        "before_login", "second_login", "after_goodbye", "reply_without_request",
        "request_id_reused", "unknown_consumer", "handed_over_twice", "acknowledged_nothing",
        "malformed_records", "sent_while_paused", "transaction_over", "sequence_back",
        "sequence_reused", "transaction_id_missing",
    )
)  # fmt: skip

BOTH, ALL = rules.BOTH, rules.ALL

USE_EVENTS: Final = TRANSACTION.events
(U_START, U_SEND, U_DENY_SEND, U_ACK, U_DENY_ACK, U_END, U_PREPARE, U_ASK_COMMIT,
 U_COMMIT, U_DENY_COMMIT, U_ROLL_BACK) = (
    USE_EVENTS.index(event)
    for event in ("start", "send", "deny_send", "acknowledge", "deny_acknowledge", "end",
                  "prepare", "ask_commit", "commit", "deny_commit", "roll_back")
)  # fmt: skip

DELIVERY_STATES: Final = DELIVERY.states
EVENTS: Final = DELIVERY.events
(D_ACK, D_ACK_IN, D_EXPIRE, D_BURY, D_DECLINE, D_CONFIRMED, D_DENIED, D_SEEN, D_UNSEEN,
 D_CLOSE_UNSEEN, D_CLOSE_UNHELD, D_CLOSE, D_MISS, D_REPLY_LOST) = (
    EVENTS.index(event)
    for event in ("acknowledge", "acknowledge_in_transaction", "expire", "bury", "decline",
                  "confirmed", "denied", "redeliver_seen", "redeliver_unseen", "close_unseen",
                  "close_unheld", "close", "miss", "reply_lost")
)  # fmt: skip
ACKNOWLEDGING: Final = tuple(map(EVENTS.index, states.ACKNOWLEDGING))
HELD, BROWSED, NO_ACK_WANTED, UNDECIDED = (
    DELIVERY_STATES.index(state) for state in ("held", "browsed", "no_ack_wanted", "undecided")
)
LOGIN_STATES: Final = SESSION.states
LOGIN_EVENTS: Final = SESSION.events
(HELLO, HELLO_OK, HELLO_REFUSED, CHALLENGE, LOGIN, LOGIN_OK, LOGIN_REFUSED, CLIENT_BYE,
 SERVER_BYE, BYE_REPLY, CLIENT_PACKET, SERVER_PACKET) = range(len(LOGIN_EVENTS))  # fmt: skip
NEW: Final = LOGIN_STATES.index("new")
FLOW_STATES: Final = FLOW.states
FLOW_EVENTS: Final = FLOW.events
FLOWING: Final = FLOW_STATES.index("flowing")
F_SEND, F_SEND_LAST, F_RESUME, F_STOP = range(len(FLOW_EVENTS))

CAPS: Final = ("MAX_WAITING", "MAX_HELD", "MAX_CONSUMERS", "MAX_PAUSED", "MAX_TRANSACTIONS")
CAP_WAITING, CAP_HELD, CAP_CONSUMERS, CAP_PAUSED, CAP_TRANSACTIONS = range(len(CAPS))

CAP_COUNT: Final = len(CAPS)

OK, DONE_BEFORE = rules.OK, rules.DONE_BEFORE
WANTED, TRANSACTED, RESENT = FLAGS["A"], FLAGS["T"], FLAGS["I"]
LAST_OF_CONNECTION, LAST_OF_ONE = FLAGS["F"], FLAGS["C"]
WITHOUT_T: Final = rules.WITHOUT_T
UNDELIVERABLE, DEAD, EXPIRED = rules.UNDELIVERABLE, rules.DEAD, rules.EXPIRED
NEVER_ACKNOWLEDGES: Final = rules.NO_ACKNOWLEDGE
LAST_MESSAGE_TYPE: Final = max(MESSAGE_TYPES)
LONG: Final[Any] = np.int64
"""The type that kernels convert numbers to, where branches would give variables different types."""
WORD, HALF = (1 << 32) - 1, 1 << 31
ROOM: Final = 16
"""The most entries of an output buffer that one packet adds."""

PROPERTIES: Final = (
    "status", "consumer", "producer", "session", "transaction", "next_transaction", "ack_mode",
    "ack_type", "dead_reason", "count_only", "set_redelivered", "size", "level",
)  # fmt: skip


def has(name: str) -> int:
    """Return the bit of a property in `Properties.present`."""
    return 1 << PROPERTIES.index(name)


HAS_STATUS, HAS_CONSUMER, HAS_PRODUCER, HAS_SESSION, HAS_TRANSACTION, HAS_NEXT = map(
    has, PROPERTIES[:6]
)
HAS_SIZE: Final = has("size")


class Compiled(NamedTuple):
    """The state tables, each flat: ``[state * events + event]``, and tables by packet type."""

    delivery: Int8s
    settled: Int8s
    login: Int8s
    login_rules: Int8s
    steady: Int8s
    logging_in: Int8s
    login_events: Int8s
    """The event of each packet type; -1 any other packet, -2 no event, -3 and -4 replies whose
    status determines the event, -5 a packet whose direction does."""
    flow: Int8s
    flow_rules: Int8s
    is_reply: Int8s
    """Whether a packet type is one of `rules.REPLIES`."""
    needs: Int8s
    """For each rule, which packets may explain a violation if they are missing: `ALL`, `BOTH`."""
    caps: Ints
    """The caps in the order of `CAPS`: the most items of a connection that may be open at once."""


def compiled() -> Compiled:
    """Return the tables for `track_packets`."""
    events = np.full(TYPES, -1, np.int8)
    events[list(rules.PINGS)] = -2
    for packet_type, event in rules.ALWAYS.items():
        events[packet_type] = LOGIN_EVENTS.index(event)
    for code, packet_type in enumerate((*rules.BY_STATUS, *rules.BY_SIDE), 3):
        events[packet_type] = -code
    delivery, login, flow = (
        transitions(table, (), tuple(RULES)).astype(np.int8) for table in (DELIVERY, SESSION, FLOW)
    )
    return Compiled(
        delivery[:, :, NEXT].ravel(),
        np.array([state in states.SETTLED for state in DELIVERY_STATES], np.int8),
        login[:, :, NEXT].ravel(),
        login[:, :, RULE].ravel(),
        np.array([state in states.STEADY for state in LOGIN_STATES], np.int8),
        np.array([state in states.LOGGING_IN for state in LOGIN_STATES], np.int8),
        events,
        flow[:, :, NEXT].ravel(),
        flow[:, :, RULE].ravel(),
        np.isin(np.arange(TYPES), list(rules.REPLIES)).astype(np.int8),
        np.array(list(NEEDS.values()), np.int8),
        np.array([getattr(rules, cap) for cap in CAPS]),
    )


D_WIDTH, L_WIDTH, F_WIDTH = len(EVENTS), len(LOGIN_EVENTS), len(FLOW_EVENTS)
