"""The state tables of JMQ: connections, deliveries, transactions and flow.

They are the one place of these rules. Kernels index them as arrays (``kernels.codes``), the page
about JMQ draws them, and tests check them cell by cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.layers.states import Cell, StateTable

# --- connections ----------------------------------------------------------------------------

SESSION_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hello": "HELLO",
        "hello_accepted": "HELLO_REPLY with status 200",
        "hello_refused": "HELLO_REPLY with any other status",
        "challenge": "AUTHENTICATE_REQUEST",
        "login": "AUTHENTICATE",
        "login_accepted": "AUTHENTICATE_REPLY with status 200",
        "login_refused": "AUTHENTICATE_REPLY with any other status",
        "client_goodbye": "GOODBYE from the client",
        "server_goodbye": "GOODBYE from the broker",
        "goodbye_reply": "GOODBYE_REPLY",
        "client_packet": "any other packet from the client but PING",
        "server_packet": "any other packet from the broker but PING",
    }
)
"""The events, and what each of them is."""

SESSION: Final[StateTable[str, str, str]] = StateTable(
    {
        # A capture may begin in the middle: then the first packet shows that there was a login.
        "new": {
            "hello": "greeting",
            "hello_accepted": "greeting",
            "hello_refused": "refused",
            "challenge": "challenged",
            "login": "authenticating",
            "login_accepted": "open",
            "login_refused": "refused",
            "client_goodbye": "closing",
            "server_goodbye": "dismissed",
            "goodbye_reply": "closed",
            "client_packet": "open",
            "server_packet": "open",
        },
        # An error reply answers a request that the client should not have sent.
        "greeting": {
            "hello_accepted": "greeting",
            "hello_refused": "refused",
            "challenge": "challenged",
            "client_goodbye": "closing",
            "server_goodbye": "dismissed",
            "server_packet": "greeting",
        },
        "challenged": {
            "login": "authenticating",
            "client_goodbye": "closing",
            "server_goodbye": "dismissed",
            "server_packet": "challenged",
        },
        "authenticating": {
            "challenge": "challenged",
            "login_accepted": "open",
            "login_refused": "refused",
            "client_goodbye": "closing",
            "server_goodbye": "dismissed",
            "server_packet": "authenticating",
        },
        "open": {
            "client_goodbye": "closing",
            "server_goodbye": "dismissed",
            "goodbye_reply": "closed",
            "client_packet": "open",
            "server_packet": "open",
        },
        # Both may send GOODBYE when a login is refused.
        "refused": {
            "client_goodbye": "refused",
            "server_goodbye": "refused",
            "goodbye_reply": "refused",
            "server_packet": "refused",
        },
        # Messages and replies may be in transit when a client sends GOODBYE.
        "closing": {
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "server_packet": "closing",
        },
        # A client may be writing while the broker sends GOODBYE, which it does twice.
        "dismissed": {
            **dict.fromkeys(SESSION_EVENTS, "dismissed"),
            "client_goodbye": "closed",
        },
        "closed": {
            "client_goodbye": "closed",
            "server_goodbye": "closed",
            "goodbye_reply": "closed",
            "server_packet": "closed",
        },
    },
    SESSION_EVENTS,
    state_rules={
        "greeting": "before_login",
        "challenged": "before_login",
        "authenticating": "before_login",
        "open": "second_login",
        "refused": "before_login",
        "closing": "after_goodbye",
        "closed": "after_goodbye",
    },
)
"""A connection from HELLO to GOODBYE (rules J-4, J-8 of ``fact_rules``)."""

ENDED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "client": "the client sent GOODBYE",
        "server": "the broker sent GOODBYE first",
        "dropped": "the connection ended without GOODBYE",
        "refused": "the broker refused the login",
        "open": "it was open when the capture ended, as far as that shows",
    }
)
"""The values of `ended_by`, and the meaning of each."""

LOGGING_IN: Final = frozenset({"greeting", "challenged", "authenticating"})
STEADY: Final = frozenset(
    state
    for state in SESSION.states
    if all(SESSION.get((state, f"{side}_packet")) == Cell(state) for side in ("client", "server"))
)
"""States in which packets without an event of their own, which are nearly all, change nothing."""

# --- deliveries -----------------------------------------------------------------------------

DELIVERY_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "acknowledge": "ACKNOWLEDGE outside of a transaction",
        "acknowledge_in_transaction": "ACKNOWLEDGE with a transaction id",
        "expire": "ACKNOWLEDGE of type dead, reason expired",
        "bury": "ACKNOWLEDGE of type dead, any other reason",
        "decline": "ACKNOWLEDGE of type undeliverable",
        "confirmed": "ACKNOWLEDGE_REPLY with status 200, or none was wanted",
        "denied": "ACKNOWLEDGE_REPLY with any other status",
        "redeliver_seen": "REDELIVER, JMQSetRedelivered true",
        "redeliver_unseen": "REDELIVER, JMQSetRedelivered false",
        "close_unseen": "DELETE_CONSUMER whose last delivered message came before this one",
        "close_unheld": "DELETE_CONSUMER whose last delivered message is no longer held",
        "close": "its session or connection ended, or it was delivered again",
        "committed": "its transaction was committed",
        "rolled_back": "its transaction was rolled back",
        "miss": "packets of its connection were not captured",
        "reply_lost": "its session, its connection or the capture ended, and packets since its"
        " ACKNOWLEDGE were not captured",
    }
)
"""The events, and what each of them is."""

_ACKNOWLEDGED: Final = {
    "acknowledge": "acknowledging",
    "acknowledge_in_transaction": "joining",
    "expire": "expiring",
    "bury": "dying",
    "decline": "declining",
}
"""The state that waits for the reply, by the kind of ACKNOWLEDGE."""
_CONFIRMED: Final = {
    "acknowledging": "acknowledged",
    "joining": "in_transaction",
    "expiring": "expired",
    "dying": "dead",
    "declining": "returned_seen",
}
"""The state after the reply."""

DELIVERY: Final[StateTable[str, str, str]] = StateTable(
    {
        "held": {
            **_ACKNOWLEDGED,
            "redeliver_seen": "returned_seen",
            "redeliver_unseen": "returned_unseen",
            "close_unseen": "returned_unseen",
            "close_unheld": "returned_unseen",
            "close": "left",
            "miss": "undecided",
        },
        **{
            state: {
                "confirmed": confirmed,
                "denied": "held",
                "close": "unconfirmed",
                "reply_lost": "undecided",
            }
            for state, confirmed in _CONFIRMED.items()
        },
        # Later packets may show that it was not acknowledged or returned in the gap. A REDELIVER
        # does not: it may be about a transaction that was rolled back.
        "undecided": {
            **_ACKNOWLEDGED,
            "close_unseen": "returned_unseen",
            "close": "undecided",
        },
        "in_transaction": {"committed": "committed", "rolled_back": "rolled_back"},
        "acknowledged": {},
        "committed": {},
        "rolled_back": {},
        "expired": {},
        "dead": {},
        "returned_seen": {},
        "returned_unseen": {},
        "left": {},
        "unconfirmed": {},
        # The only states of deliveries to a browser, and to a consumer that never acknowledges.
        "browsed": {},
        "no_ack_wanted": {},
    },
    DELIVERY_EVENTS,
)
"""A delivery attempt (J-5, J-9, J-13, J-20 to J-24); an event without a cell does not apply."""

SETTLED: Final = frozenset(state for state in DELIVERY.states if (state, "close") not in DELIVERY)
"""States that no event on the connection changes."""
ACKNOWLEDGING: Final = tuple(_ACKNOWLEDGED)
"""Events that are an ACKNOWLEDGE, which browsers and some consumers never send."""

_UNACKNOWLEDGED: Final = "unacknowledged"
OUTCOMES: Final[Mapping[str, str | None]] = MappingProxyType(
    dict.fromkeys(DELIVERY.states, _UNACKNOWLEDGED)
    | {
        state: state
        for state in (
            "acknowledged",
            "committed",
            "rolled_back",
            "expired",
            "dead",
            "no_ack_wanted",
        )
    }
    | {"browsed": "no_ack_wanted", "undecided": None}
)
"""The `outcome` of a row by its verdict; None where the capture does not show it."""

# --- transactions ---------------------------------------------------------------------------

TRANSACTION_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "START_TRANSACTION_REPLY with status 200, or the reply to a COMMIT that names it"
        " as the next",
        "send": "a message was sent in it",
        "deny_send": "SEND_REPLY for such a message, with any other status than 200",
        "acknowledge": "ACKNOWLEDGE with its id",
        "deny_acknowledge": "ACKNOWLEDGE_REPLY with any other status than 200",
        "end": "END_TRANSACTION_REPLY with status 200: an XA transaction is set aside",
        "prepare": "PREPARE_TRANSACTION_REPLY with status 200",
        "ask_commit": "COMMIT_TRANSACTION",
        "commit": "COMMIT_TRANSACTION_REPLY with status 200",
        "deny_commit": "COMMIT_TRANSACTION_REPLY with any other status",
        "roll_back": "ROLLBACK_TRANSACTION; if it wants a reply, when that has status 200",
        "leave": "the connection that began it ended",
    }
)
"""The events, and what each of them is."""

TRANSACTION: Final[StateTable[str, str, str]] = StateTable(
    {
        # A transaction may have begun before the capture, or on a connection that is not in it.
        "unseen": {
            "start": "active",
            "send": "active",
            "deny_send": "active",
            "acknowledge": "active",
            "deny_acknowledge": "active",
            "end": "ended",
            "prepare": "prepared",
            "ask_commit": "committing",
            "commit": "committed",
            "deny_commit": "active",
            "roll_back": "rolled_back",
        },
        "active": {
            "start": "active",
            "send": "active",
            "deny_send": "active",
            "acknowledge": "active",
            "deny_acknowledge": "active",
            "end": "ended",
            "prepare": "prepared",
            "ask_commit": "committing",
            "roll_back": "rolled_back",
            "leave": "rolled_back",
        },
        "ended": {
            "start": "active",
            "deny_send": "ended",
            "deny_acknowledge": "ended",
            "end": "ended",
            "prepare": "prepared",
            "ask_commit": "committing",
            "roll_back": "rolled_back",
            "leave": "rolled_back",
        },
        # A prepared transaction outlives its connection, and any other may end it.
        "prepared": {
            "ask_commit": "committing_prepared",
            "roll_back": "rolled_back",
            "leave": "prepared",
        },
        # A client that does not wait gets replies to its messages between COMMIT and its reply.
        "committing": {
            "deny_send": "committing",
            "deny_acknowledge": "committing",
            "commit": "committed",
            "deny_commit": "active",
            "leave": "committing",
        },
        "committing_prepared": {
            "commit": "committed",
            "deny_commit": "prepared",
            "leave": "committing_prepared",
        },
        "committed": {"leave": "committed"},
        # A ROLLBACK without a reply may overtake replies to earlier packets.
        "rolled_back": {
            "deny_send": "rolled_back",
            "deny_acknowledge": "rolled_back",
            "leave": "rolled_back",
        },
    },
    TRANSACTION_EVENTS,
    event_rules=dict.fromkeys(TRANSACTION_EVENTS, "transaction_over"),
)
"""A transaction, across all connections that take part in it (J-14, J-18, J-31)."""

TRANSACTION_OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "unseen": "open",
        "active": "open",
        "ended": "open",
        "prepared": "prepared",
        "committing": "open",
        "committing_prepared": "prepared",
        "committed": "committed",
        "rolled_back": "rolled_back",
    }
)
"""The `outcome` of a row by the last state; the effect of an unanswered COMMIT is unknown."""

# --- flow -----------------------------------------------------------------------------------

# A broker sets flag F or C on the last message that a connection (F) or a consumer (C) has room
# for, a client on the last one that its connection (F) or producer (C) may send.
FLOW_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "send": "a message without the flag",
        "send_last": "a message with the flag",
        "resume": "RESUME_FLOW for it, with any size but 0",
        "stop": "RESUME_FLOW of a broker, with size 0",
    }
)
"""The events, and what each of them is."""

FLOW: Final[StateTable[str, str, str]] = StateTable(
    {
        "flowing": {
            "send": "flowing",
            "send_last": "paused",
            "resume": "flowing",
            "stop": "stopped",
        },
        "paused": {"resume": "flowing", "stop": "stopped"},
        # A message may have been in transit when the broker stopped the producer.
        "stopped": {
            "send": "stopped",
            "send_last": "stopped",
            "resume": "flowing",
            "stop": "stopped",
        },
    },
    FLOW_EVENTS,
    state_rules={"paused": "sent_while_paused"},
)
"""The flow to a consumer, from a producer, or of a connection (J-25)."""
