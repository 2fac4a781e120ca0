"""What an observer knows of one connection, and where it notes down what it finds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wireyard.layers.mqtt.aliases import Aliases
from wireyard.layers.mqtt.broker import Broker
from wireyard.layers.mqtt.records import (
    Fact,
    Handed,
    Link,
    Message,
    Moment,
    Subscribed,
    Violation,
)
from wireyard.layers.mqtt.rules import RULES, SEEN_AS
from wireyard.layers.mqtt.sessions import Session

__all__ = ["Connection", "Notes", "Request", "Row", "properties_of"]

Row = Mapping[str, Any]


class Request(NamedTuple):
    """A SUBSCRIBE or an UNSUBSCRIBE that waits for its answer."""

    filters: list[Row]
    identifier: int | None
    at: Moment


class Connection:
    """A connection as it stands.

    Parameters
    ----------
    begun
        Whether the capture shows its beginning.
    alone
        Whether only one of its streams was captured.
    """

    __slots__ = (
        "aliases", "alone", "asked", "broker", "early", "leaving", "link", "most_bytes",
        "opening", "pings", "session", "state", "unproved",
    )  # fmt: skip

    def __init__(self, link: Link, broker: Broker, begun: bool, alone: bool) -> None:
        self.link = link
        self.alone = alone
        self.broker = broker
        self.state = "new" if begun else "unknown"
        self.session = Session(link.name, known=False)
        self.session.link = link
        self.opening: Row | None = None
        """The CONNECT."""
        self.early: list[tuple[Row, Moment]] = []
        """What the client sent before CONNACK."""
        self.aliases = {True: Aliases(), False: Aliases()}
        """By whether they are the client's."""
        self.most_bytes: dict[bool, int | None] = {True: None, False: None}
        """The largest packet that may be sent, by whether the client sends it."""
        self.asked: dict[int, Request] = {}
        self.leaving: dict[int, Request] = {}
        self.pings: deque[Moment] = deque()
        self.unproved: deque[Message] = deque()
        """Messages at QoS 0 of which nothing shows yet that the broker read them."""

    def prove(self, request: Moment, answer: Moment) -> None:
        """Take an answer: the broker has read all that came before the request."""
        while self.unproved and self.unproved[0].sent.place < request.place:
            self.unproved.popleft().accepted = answer


class Notes:
    """What was found, to be joined afterwards.

    Parameters
    ----------
    on_fact
        Is given every `Fact`.
    """

    def __init__(self, on_fact: Callable[[Fact], None] | None = None) -> None:
        self.links: list[Link] = []
        self.messages: list[Message] = []
        self.handed: list[Handed] = []
        self.subscriptions: list[Subscribed] = []
        self.violations: list[Violation] = []
        self.dropped: Counter[str] = Counter()
        """By reason, what was not kept in mind."""
        self._on_fact = on_fact

    def violation(
        self, rule: str, connection: Connection, at: Moment, message: Message | None = None
    ) -> None:
        """Note a rule that was broken, if the connection's version has it."""
        broken = RULES[rule]
        version = connection.link.version or SEEN_AS
        if broken.holds(version):
            text = f"against the rule that {broken.text}"
            self.violations.append(
                Violation(broken.verdict(version), text, connection.link, at, message)
            )

    def fact(
        self,
        kind: str | None,
        link: Link,
        upward: bool,
        packet_id: int | None,
        at: Moment,
    ) -> None:
        """Tell what a packet did to a flow, if anything."""
        if kind is not None and self._on_fact is not None:
            self._on_fact(Fact(kind, link.name, upward, packet_id, at))


def properties_of(rows: Any) -> dict[str, Any]:
    """Return the properties of a packet by name; of one that comes again, all in a list.

    Numbers are numbers, whether they come as rows or as columns have them.
    """
    found: dict[str, Any] = {}
    if not rows:
        return found
    for one in rows:
        name, value = one["name"], one["value"]
        if name == "subscription_identifier":
            found.setdefault(name, []).append(int(value))
        elif name in _NUMBERS and value is not None:
            found[name] = int(value)
        elif name == "correlation_data" and isinstance(value, str):
            found[name] = bytes.fromhex(value)
        else:
            found[name] = value
    return found


_NUMBERS = frozenset(
    {"message_expiry_interval", "session_expiry_interval", "receive_maximum", "topic_alias"}
    | {"topic_alias_maximum", "maximum_packet_size", "will_delay_interval"}
)
