"""What an observer knows of one connection, and of either of its streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wireyard.layers.mqtt.aliases import Aliases
from wireyard.layers.mqtt.broker import Broker
from wireyard.layers.mqtt.notes import Notes
from wireyard.layers.mqtt.records import SMALLEST_WINDOW, Breach, Link, Subscribed
from wireyard.layers.mqtt.rules import OF_ALL_CONNECTIONS, OF_ALL_PACKETS, broken
from wireyard.layers.mqtt.sessions import Session
from wireyard.layers.records import Position, position_of

__all__ = ["MAX_EARLY", "Connection", "Known", "Request", "Row", "Stream"]

Row = Mapping[str, Any]

_WITH_RETAIN_AS_PUBLISHED: Final = 5
MAX_EARLY: Final = 1000
"""Packets of a client that wait for CONNACK, which comes within a round trip."""


class Known(NamedTuple):
    """What is known of a stream before its packets come."""

    by_client: bool
    alone: bool
    """Whether nothing was captured of the other stream of its connection."""
    begun: bool | None
    """Whether the capture shows its beginning; None where it tells of no beginnings and ends."""
    resets: bool
    """Whether its end is that of the other stream too."""
    older: bool = False
    """Whether its server has connections that are older than the capture."""


class Request(NamedTuple):
    """A SUBSCRIBE or an UNSUBSCRIBE that waits for its answer."""

    filters: list[Row]
    identifier: int | None
    at: Position


class Connection:
    """A connection as it stands.

    Parameters
    ----------
    key
        What its streams have in common.
    known
        What is known of the first of them.
    """

    __slots__ = (
        "_begun", "aliases", "alone", "asked", "broker", "early", "key", "leaving", "link",
        "most_bytes", "notes", "older", "opening", "pings", "rules_broken", "running", "session",
        "state", "streams", "told", "unconfirmed", "unproved",
    )  # fmt: skip

    def __init__(
        self, key: tuple[str, ...], known: Known, link: Link, broker: Broker, notes: Notes
    ) -> None:
        self.key = key
        self.link = link
        self.broker = broker
        self.notes = notes
        self.state = "new" if known.begun else "unknown"
        self._begun = bool(known.begun)
        self.older = known.older
        self.told = known.begun is not None
        """Whether the capture would show its end."""
        self.alone = known.alone
        self.running = 1 if known.alone else 2
        """How many of its streams have not been seen to end."""
        self.streams: list[tuple[str, str]] = []
        """Those of which there were packets."""
        self.session = Session(link.client.name, False, notes.tracker)
        self.session.link = link
        self.opening: Row | None = None
        """The CONNECT."""
        self.early: list[tuple[Row, Position]] = []
        """What the client sent before CONNACK."""
        self.rules_broken: list[Breach] = []
        """Before CONNACK, which may say who it was."""
        self.aliases = {True: Aliases(), False: Aliases()}
        """By whether they are the client's."""
        self.most_bytes: dict[bool, int | None] = {True: None, False: None}
        """The largest packet that may be sent, by whether the client sends it."""
        self.asked: dict[int, Request] = {}
        self.leaving: dict[int, Request] = {}
        self.pings: deque[Position] = deque()
        self.unproved: Any = None
        """Messages at QoS 0 of which nothing shows yet that the broker read them; whoever follows
        messages keeps them here."""
        self.unconfirmed: deque[Subscribed] = deque()
        """Subscriptions whose retained values may still be to come; a session has `MAX_FILTERS`."""

    def keep_session(self) -> None:
        """Leave a session that has moved to a newer connection, and takes nothing from this one."""
        if self.session.link is not self.link:
            self.session = Session(self.link.client.name, False, self.notes.tracker)
            self.session.link = self.link

    def prove(self, request: Position, answer: Position) -> None:
        """Take an answer: the broker has read all that came before the request."""
        self.link.answered = max(self.link.answered or request, request)
        self.confirm(request, answer)
        self.notes.tracker.accept_before(self, request, answer)

    def confirm(self, request: Position, answer: Position) -> None:
        """Take it that the broker has sent what it sends for new subscriptions."""
        waiting = self.unconfirmed
        if not waiting or waiting[0].granted > request or self.link.damaged:
            return
        if len(self.session.down.in_flight()) >= SMALLEST_WINDOW:
            return
        while waiting and waiting[0].granted < request:
            subscribed = waiting.popleft()
            if subscribed.gone is None:
                subscribed.confirmed = answer

    def breaks(
        self, rule: str, by_client: bool, at: Position, message_key: str | None = None
    ) -> None:
        """Note that a side broke a rule, if the connection's version has it."""
        if rule in OF_ALL_PACKETS and not self._is_whole:
            return
        if rule in OF_ALL_CONNECTIONS and self.older:
            return
        found = broken(rule, self.link.version)
        if found is not None:
            self.violated(Breach(*found, self.link, by_client, at, message_key))

    @property
    def may_publish_as_retained(self) -> bool:
        """Whether a subscription that was not seen may have Retain As Published."""
        return self.link.version == _WITH_RETAIN_AS_PUBLISHED and not self.session.known

    @property
    def _is_whole(self) -> bool:
        """Whether all packets of both streams so far were captured."""
        return (self.link.begun or self._begun) and not (self.link.damaged or self.alone)

    def violated(self, breach: Breach) -> None:
        """Note what was broken, now or when it is known whose connection it is."""
        if self.state in ("new", "asked") and len(self.rules_broken) < MAX_EARLY:
            self.rules_broken.append(breach)
        else:
            self.notes.violations.append(breach)

    def answered(self) -> None:
        """Take it that CONNACK has come, or that none will."""
        self.notes.violations += self.rules_broken
        self.rules_broken.clear()

    def give_up(self, session: Session) -> None:
        """Note the messages of a session that nobody comes back to."""
        over = list(session.leave())
        self.broker.carried -= len(over)
        self.notes.tracker.over(over)


class Stream:
    """One direction of a connection, and how far it has come.

    Parameters
    ----------
    row
        The first of its rows.
    by_client
        Whether the client sends it.
    """

    __slots__ = ("by_client", "connection", "first", "frame", "name", "ns", "source")

    connection: Connection

    def __init__(self, row: Row, by_client: bool) -> None:
        self.source: str = row["source"]
        self.name: str = row["stream"]
        self.by_client = by_client
        self.ns = self.frame = 0
        self.first = self.reach(row)

    def reach(self, row: Row) -> Position:
        """Return where the next row stands in the order of the capture."""
        ns: int | None = row.get("captured_ns")
        frame: int = row.get("frame", 0)
        if ns is not None and (ns > self.ns or (ns == self.ns and frame > self.frame)):
            self.ns, self.frame = ns, frame
        return position_of((self.ns, self.frame, self.name, row["offset"], ns, frame, self.source))
