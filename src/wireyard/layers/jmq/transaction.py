"""The states of a transaction, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wireyard.layers.jmq.records import Use
from wireyard.layers.records import Position
from wireyard.layers.states import StateTable

__all__ = ["TRANSACTION", "TRANSACTION_EVENTS", "TRANSACTION_OUTCOMES", "Transaction"]

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
"""A transaction, across all connections that take part in it."""

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


@dataclass(slots=True)
class Transaction:
    """A transaction; its events on all connections are applied in the order of time."""

    first: Use
    state: str = "unseen"
    begun: Position | None = None
    ended: Position | None = None
    sent: int = 0
    acknowledged: int = 0

    def apply(self, use: Use) -> bool:
        """Apply the next event; return whether the state allows it."""
        following, _, rule = TRANSACTION.lookup(self.state, use.event)
        if rule is not None:
            return False
        match use.event:
            case "start":
                self.begun = self.begun or use.at
            case "send":
                self.sent += use.messages
            case "deny_send":
                self.sent -= use.messages
            case "acknowledge":
                self.acknowledged += use.messages
            case "deny_acknowledge":
                self.acknowledged -= use.messages
        if following != self.state and TRANSACTION_OUTCOMES[following] != "open":
            self.ended = use.at
        self.state = following
        return True
