"""Where it is noted down what was found, once it is final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from wireyard.layers.mqtt.records import (
    Fact,
    Handed,
    Link,
    Message,
    Moment,
    Setting,
    Subscribed,
    Violation,
)

__all__ = ["Notes"]


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
        self.settings: list[Setting] = []
        """Of messages that are held longer than the values they set."""
        self.handed: list[Handed] = []
        self.subscriptions: list[Subscribed] = []
        self.violations: list[Violation] = []
        self.dropped: Counter[str] = Counter()
        """By reason, what was not kept in mind."""
        self._on_fact = on_fact

    def over(self, records: Iterable[Message | Handed]) -> None:
        """Note messages of which nothing more can come."""
        for record in records:
            if isinstance(record, Message):
                self.messages.append(record)
            else:
                self.handed.append(record)

    def fact(
        self, kind: str | None, link: Link, upward: bool, packet_id: int | None, at: Moment
    ) -> None:
        """Tell what a packet did to a flow, if anything."""
        if kind is not None and self._on_fact is not None:
            self._on_fact(Fact(kind, link.client.name, upward, packet_id, at))
