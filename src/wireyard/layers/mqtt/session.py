"""What a client and a broker keep for each other over connections, and the broker that keeps it.

Everything follows the client id. An endpoint has one `Session`, of which it runs its own roles; an
observer has one for every client id of a broker, and runs all four. Nothing happens at the end of a
delay or an expiry but by the clock, so either is looked at when its client comes back, and at the
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wireyard.layers.mqtt.qos import RECEIVER, SENDER, Flows
from wireyard.layers.mqtt.records import ConnectionRecord, Output, Subscribed, Tracker
from wireyard.layers.mqtt.will import Will
from wireyard.layers.records import Position

__all__ = [
    "MAX_FILTERS",
    "MAX_SESSIONS",
    "MAX_TRACKED",
    "Broker",
    "Direction",
    "Session",
]

MAX_FILTERS: Final = 1 << 14
"""Subscriptions of one session; brokers in use limit them to thousands where they do."""


class Direction:
    """The messages of a session that go one way.

    Parameters
    ----------
    known
        Whether the session is seen from its beginning.
    """

    __slots__ = ("receiver", "sender", "tracked")

    def __init__(self, known: bool) -> None:
        self.sender = Flows(SENDER, known)
        self.receiver = Flows(RECEIVER, known)
        self.tracked: dict[int, Any] = {}
        """By packet identifier, what the caller has noted of the message."""

    def connect(self, kept: bool, receive_maximum: int) -> list[Any]:
        """Begin a new connection, as `Flows.connect` does; return what is over with that."""
        self.sender.connect(kept, receive_maximum)
        self.receiver.connect(kept, receive_maximum)
        over = [packet_id for packet_id in self.tracked if packet_id not in self.sender]
        return [self.tracked.pop(packet_id) for packet_id in over]

    def abandon(self) -> None:
        """Note that the session ends before these messages are acknowledged."""
        for attempt in self.tracked.values():
            attempt.abandoned = True

    def untrace(self) -> None:
        """Note that the connection ends, and that its client id is unknown."""
        for attempt in self.tracked.values():
            attempt.untraced = attempt.acknowledged is None

    def leave(self) -> Iterable[Any]:
        """Forget the messages; return them."""
        tracked, self.tracked = self.tracked, {}
        return tracked.values()

    def in_flight(self) -> list[int]:
        """Return the packet identifiers of the messages that are on their way."""
        return sorted(self.sender.in_flight())


class Session:
    """What a broker and a client keep for each other.

    Parameters
    ----------
    name
        The client id.
    known
        Whether the session is seen from its beginning.
    tracker
        Who tracks its messages.
    """

    __slots__ = (
        "connection", "expires", "filters", "known", "name", "served_as", "to_broker", "to_client",
        "will",
    )  # fmt: skip

    def __init__(self, name: str, known: bool, tracker: Tracker) -> None:
        self.name = name
        self.known = known
        """Whether all of its subscriptions were seen."""
        self.to_broker, self.to_client = tracker.new_direction(known), tracker.new_direction(known)
        self.filters: dict[str, Subscribed] = {}
        self.served_as: dict[str, None] = {}
        """Under which names messages ever went to it: its own, or a filter that it shares."""
        self.connection: ConnectionRecord | None = None
        """The connection it is on, or was on last."""
        self.will: Will | None = None
        self.expires: Position | None = None
        """When it ends, unless its client comes back before."""

    def connect(
        self, connection: ConnectionRecord, kept: bool, limits: tuple[int, int]
    ) -> list[Any]:
        """Take up the session on a new connection; return the messages that are over with that.

        Parameters
        ----------
        kept
            Whether it goes on; if not, this is a new one of the same name.
        limits
            Receive Maximum of the broker, and of the client.
        """
        self.connection, self.expires = connection, None
        self.known |= not kept
        if not kept:
            self.to_client.abandon()
        return self.to_broker.connect(kept, limits[0]) + self.to_client.connect(kept, limits[1])

    def leave(self) -> Iterator[Any]:
        """Yield the messages that it remembers by packet identifier, and forget them."""
        for direction in (self.to_broker, self.to_client):
            yield from direction.leave()


MAX_SESSIONS: Final = 1 << 17
"""Sessions kept; without messages one takes about 2 KB with its last connection, so 256 MiB."""
MAX_TRACKED: Final = 1 << 20
"""Messages that sessions remember by packet identifier: at about 700 bytes each 700 MiB."""


class Broker:
    """What one broker keeps.

    Parameters
    ----------
    output
        Takes what is over: subscriptions, messages and wills.
    most_sessions, most_tracked
        How many sessions are kept over connections, and messages in them. What was not is counted
        in the output.
    """

    def __init__(
        self,
        output: Output,
        most_sessions: int = MAX_SESSIONS,
        most_tracked: int = MAX_TRACKED,
    ) -> None:
        self.most_sessions = most_sessions
        self.most_tracked = most_tracked
        self._output = output
        self.sessions: dict[str, Session] = {}
        self.has_older = False
        """Whether a session is older than the capture, or bytes of one were not captured, so that
        subscriptions and messages may not be seen."""
        self.tracked = 0
        """Messages that sessions remember by packet identifier."""

    def open(
        self,
        connection: ConnectionRecord,
        will: Will | None,
        present: bool | None,
        limits: tuple[int, int],
    ) -> Session:
        """Open a connection that the broker accepted; return its session.

        Parameters
        ----------
        present
            Session Present; None where the version has none.
        limits
            Receive Maximum of the broker, and of the client.
        """
        kept = present if present is not None else not connection.fresh
        name = connection.client.name
        session = self.sessions.get(name)
        if session is None:
            session = Session(name, not kept, self._output.tracker)
            if len(self.sessions) < self.most_sessions:
                self.sessions[name] = session
            else:
                self._output.dropped["sessions"] += 1
        else:
            self._take_over(session, connection, kept)
        over = session.connect(connection, kept, limits)
        self.tracked -= len(over)
        self._output.tracker.over(over)
        session.will = will
        return session

    def _take_over(self, session: Session, connection: ConnectionRecord, kept: bool) -> None:
        """End the connection a session is on, and all it has if it does not go on."""
        assert connection.accepted is not None
        self._pass_time(session, connection.accepted)
        last = session.connection and session.connection.last
        self.close(session, connection.opened, "dropped", until=last or connection.opened)
        if session.will and session.will.step("back" if kept else "session_over") == "published":
            self._publish(session.will, connection.opened)
        if not kept:
            self._end_filters(session, connection.opened, connection.opened)

    def close(
        self,
        session: Session,
        at: Position,
        ended_by: str,
        will_event: str = "dropped",
        until: Position | None = None,
    ) -> None:
        """End the connection that a session is on, if it has not ended.

        Parameters
        ----------
        until
            The last position at which it was open for certain, `at` if that is not given.
        """
        connection = session.connection
        if connection is None or connection.ended_by != "open":
            return
        connection.ended_by, connection.closed = ended_by, at
        connection.until = until or at
        self.count_in_flight(session, at)
        if not connection.begun:
            session.to_client.untrace()
        if not connection.persistent:
            self._end_filters(session, connection.until, at)
        elif connection.expires_s is not None:
            session.expires = at.after(connection.expires_s)
        self._close_will(session.will, will_event, connection, at)

    def count_in_flight(self, session: Session, at: Position) -> None:
        """Return what was on its way when a connection ended."""
        connection = session.connection
        assert connection is not None
        counts = []
        for upward, direction in ((True, session.to_broker), (False, session.to_client)):
            packet_ids = direction.in_flight()
            counts.append(len(packet_ids))
            for packet_id in packet_ids:
                self._output.fact("in_flight", connection, upward, packet_id, at)
        connection.in_flight = counts[0], counts[1]

    def _close_will(
        self, will: Will | None, event: str, connection: ConnectionRecord, at: Position
    ) -> None:
        if will is None or will.step(event) == "dropped":
            return
        # A broker that gives a client up may publish its will before its FIN leaves.
        will.message.released = connection.last or at
        if not will.delay_s or not connection.persistent:
            if will.step("delay_over") == "published":
                self._publish(will, at)
        else:
            delays = (
                [will.delay_s]
                if connection.expires_s is None
                else [will.delay_s, connection.expires_s]
            )
            will.due = at.after(min(delays))

    def _pass_time(self, session: Session, at: Position) -> None:
        """Do what became due before a position: a will is published, the session expires."""
        will, expires = session.will, session.expires
        if will and will.due and will.due < at and will.step("delay_over") == "published":
            self._publish(will, will.due)
        if expires is not None and expires < at:
            self._end_filters(session, expires, expires)

    def _publish(self, will: Will, at: Position) -> None:
        will.message.accepted = at
        self._output.messages.append(will.message)

    def subscribe(self, session: Session, subscribed: Subscribed) -> None:
        """Note a subscription, if it can be kept."""
        older = session.filters.get(subscribed.filter)
        if older is None and len(session.filters) >= MAX_FILTERS:
            self._output.dropped["subscriptions"] += 1
            return
        if older is not None:
            subscribed.since = older.since
            self._end_filter(older, subscribed.asked, subscribed.granted)
        session.filters[subscribed.filter] = subscribed
        if len(session.served_as) < MAX_FILTERS:
            session.served_as[subscribed.served_as] = None

    def unsubscribe(
        self, session: Session, filter: str, asked: Position, answered: Position
    ) -> None:
        """Note the end of a subscription."""
        subscribed = session.filters.pop(filter, None)
        if subscribed is not None:
            self._end_filter(subscribed, asked, answered)

    def _end_filter(self, subscribed: Subscribed, leaving: Position, gone: Position) -> None:
        subscribed.leaving, subscribed.gone = leaving, gone
        self._output.subscriptions.append(subscribed)

    def _end_filters(self, session: Session, leaving: Position, gone: Position) -> None:
        for subscribed in session.filters.values():
            self._end_filter(subscribed, leaving, gone)
        session.filters.clear()

    def finish(self) -> None:
        """Note what its sessions still have, and the wills that are in waiting."""
        for session in self.sessions.values():
            self._output.tracker.over(session.leave())
            if session.expires is not None:
                self._end_filters(session, session.expires, session.expires)
            self._output.subscriptions += session.filters.values()
            will = session.will
            if will and will.due and will.step("delay_over") == "published":
                will.message.accepted = will.due
                self._output.waiting.append(will.message)
