"""The states of a delivery: a message that was delivered to a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wireyard.layers.states import StateTable

__all__ = ["ACKNOWLEDGING", "DELIVERY", "DELIVERY_EVENTS", "OUTCOMES", "SETTLED", "VERDICTS"]

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
"""A delivery attempt; an event without a cell does not apply to it."""

SETTLED: Final = frozenset(state for state in DELIVERY.states if (state, "close") not in DELIVERY)
"""States that no event on the connection changes."""
ACKNOWLEDGING: Final = tuple(_ACKNOWLEDGED)
"""Events that are an ACKNOWLEDGE, which browsers and some consumers never send."""

VERDICTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "held": "the consumer had it when the capture ended",
        "acknowledging": "the capture ended between an ACKNOWLEDGE and its reply",
        "joining": "the same, in a transaction",
        "expiring": "the same, for a message reported as expired",
        "dying": "the same, for a message reported as dead",
        "declining": "the same, for a message reported as undeliverable",
        "in_transaction": "acknowledged in a transaction whose end was not seen, or only prepared",
        "acknowledged": "acknowledged",
        "committed": "acknowledged in a transaction that was committed",
        "rolled_back": "acknowledged in a transaction that was rolled back",
        "expired": "the client found it expired; the broker moves it to the dead message queue",
        "dead": "the client could not deliver it; the broker moves it to the dead message queue",
        "returned_seen": "returned after the application saw it; if delivered again, flagged R",
        "returned_unseen": "returned before the application saw it; if delivered again, as new",
        "left": "neither acknowledged nor returned when its session or connection ended; if"
        " delivered again, flagged R",
        "unconfirmed": "acknowledged, and the connection ended without the broker's reply",
        "undecided": "packets that were not captured may have acknowledged or returned it",
        "browsed": "a copy for a browser; the message stayed where it was",
        "no_ack_wanted": "delivered to a consumer that never acknowledges",
    }
)
"""The meaning of each last state, which is the `verdict` of a row."""

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
