"""Where it is noted down what was found, once it is final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from wireyard.layers.mqtt.records import (
    Attempt,
    Breach,
    Fact,
    Link,
    Message,
    Subscribed,
    ValueChange,
)
from wireyard.layers.records import Position

if TYPE_CHECKING:
    from wireyard.layers.mqtt.sessions import Direction
    from wireyard.layers.mqtt.state import Connection

__all__ = ["Notes", "Tracker"]


class Tracker(Protocol):
    """Who tracks the messages of all connections, packet by packet or many at once."""

    def new_direction(self, known: bool) -> Direction:
        """Return one direction of a new session."""

    def accept_before(self, connection: Connection, request: Position, answer: Position) -> None:
        """Take it that the broker took all that was published before a request it answered."""

    def accept_all(self, connection: Connection, at: Position) -> None:
        """Take it that the broker took all that was published."""

    def leave(self, connection: Connection) -> None:
        """Note the messages of a connection of which nothing shows that the broker took them."""

    def over(self, records: Iterable[Any]) -> None:
        """Note messages of which nothing more can come."""


class Notes:
    """What was found and is final; whoever reads on may take it away.

    Parameters
    ----------
    on_fact
        Is given every `Fact`.
    """

    def __init__(self, on_fact: Callable[[Fact], None] | None = None) -> None:
        self.links: list[Link] = []
        self.messages: list[Message] = []
        """Those that clients sent, and wills that were published."""
        self.waiting: list[Message] = []
        """Wills whose time had not come when their clients were last seen."""
        self.changes: list[ValueChange] = []
        """Of messages that are held longer than the values they set."""
        self.attempts: list[Attempt] = []
        self.subscriptions: list[Subscribed] = []
        self.violations: list[Breach] = []
        self.dropped: Counter[str] = Counter()
        """By reason, what was not kept in mind."""
        self._on_fact = on_fact
        self.tracker: Tracker
        """Set by the tracker itself."""

    def fact(
        self, kind: str | None, link: Link, upward: bool, packet_id: int | None, at: Position
    ) -> None:
        """Return what a packet did to a flow, if anything."""
        if kind is not None and self._on_fact is not None:
            self._on_fact(Fact(kind, link.client.name, upward, packet_id, at))
