"""The states of a transaction, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.jmq_chain.records import Use
from wireyard.layers.jmq.states import TRANSACTION, TRANSACTION_OUTCOMES
from wireyard.layers.records import Position

__all__ = ["Transaction"]


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
