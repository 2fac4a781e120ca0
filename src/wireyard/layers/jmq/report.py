"""Who a connection belongs to, and where what its packets say goes."""

from __future__ import annotations

from typing import Final

from wireyard.formats.base import Row
from wireyard.layers.endpoints import endpoints_of
from wireyard.layers.jmq.facts import RULES, Facts, Use
from wireyard.layers.records import Position, Violation

__all__ = [
    "NEEDS_ALL",
    "Report",
]


NEEDS_ALL: Final = frozenset(
    {
        "reply_without_request",
        "request_id_reused",
        "unknown_consumer",
        "handed_over_twice",
        "acknowledged_nothing",
    }
)


class Report:
    """What the parts of a connection's walk share.

    Parameters
    ----------
    client, server
        The connection's endpoints.
    facts
        Where everything goes.
    """

    def __init__(self, client: str, server: str, facts: Facts) -> None:
        self.client = client
        self.server = server
        self.facts = facts
        self.client_id: str | None = None
        self.known = False
        """Whether all packets were seen, from the first on: what is unknown then was not there."""

    def breach(
        self,
        rule: str,
        row: Row,
        at: Position,
        message_key: str | None = None,
        times: int = 1,
    ) -> None:
        """Take that a packet breaks a rule, if what was not seen cannot explain it.

        Its sender broke it.
        """
        if rule in NEEDS_ALL and not self.known:
            return
        name = row.get("packet_type_name") or f"packet type {row['packet_type']}"
        text = f"{name}: {RULES[rule]}" + (f", {times} times" if times > 1 else "")
        self.facts.violations.append(
            Violation(rule, text, at, endpoints_of(row)[0], self.client_id, message_key)
        )

    def use(self, transaction_id: int, event: str, at: Position, messages: int = 0) -> None:
        """Take that something happened to a transaction."""
        self.facts.uses.append(
            Use(self.server, transaction_id, event, messages, self.client, self.client_id, at)
        )
