"""Sessions, which outlive connections, and the broker that keeps them.

A session belongs to a client id of a broker. No packet marks the end of a will delay or of a
session expiry, so both are checked when the client connects again, and at the end of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wireyard.layers.mqtt.records import (
    ALWAYS,
    UNSEEN,
    ConnectionRecord,
    Output,
    Span,
    Subscribed,
    Tracker,
)
from wireyard.layers.mqtt.will import Will
from wireyard.layers.records import Position

__all__ = [
    "MAX_FILTERS",
    "MAX_SESSIONS",
    "MAX_TRACKED",
    "Broker",
    "Session",
]

MAX_FILTERS: Final = 1 << 14
"""Subscriptions of one session; brokers that limit them allow thousands."""


class Session:
    """The session of a client: messages in flight, subscriptions and will.

    Parameters
    ----------
    name
        The client id.
    known
        Whether the session was captured from its beginning.
    tracker
        The tracker of its messages.
    """

    __slots__ = (
        "connection", "expires", "filters", "is_whole", "known", "name", "served_as", "to_broker",
        "to_client", "will",
    )  # fmt: skip

    def __init__(self, name: str, known: bool, tracker: Tracker) -> None:
        self.name = name
        self.known = known
        """Whether all of its subscriptions were captured."""
        self.to_broker, self.to_client = tracker.new_direction(known), tracker.new_direction(known)
        self.is_whole = True
        """Whether all bytes of its connections that have ended were captured."""
        self.filters: dict[str, Subscribed] = {}
        self.served_as: dict[str, None] = {}
        """All names that messages were delivered to: its own, and the filters that it shares."""
        self.connection: ConnectionRecord | None = None
        """Its current connection, or the last one."""
        self.will: Will | None = None
        self.expires: Position | None = None
        """When it expires, unless the client connects again before."""

    @property
    def may_have_changed(self) -> bool:
        """Whether a connection of an unknown client id may have continued it after its last one."""
        last = self.connection
        return last is not None and last.followed and last.persistent

    def connect(
        self, connection: ConnectionRecord, kept: bool, limits: tuple[int, int]
    ) -> list[Any]:
        """Begin a new connection of the session; return the messages that this ends.

        Parameters
        ----------
        kept
            Whether the session is resumed; if not, a new one of the same name begins.
        limits
            Receive Maximum of the broker, and of the client.
        """
        self.connection, self.expires = connection, None
        self.known |= not kept
        if not kept:
            self.is_whole = True
            self.to_client.abandon()
        return self.to_broker.connect(kept, limits[0]) + self.to_client.connect(kept, limits[1])

    def leave(self) -> Iterator[Any]:
        """Remove the tracked messages of both directions; yield them."""
        for direction in (self.to_broker, self.to_client):
            yield from direction.leave()


MAX_SESSIONS: Final = 1 << 17
"""Sessions of a broker: without messages about 2 KB each with the last connection, so 256 MiB."""
MAX_TRACKED: Final = 1 << 20
"""Tracked messages of all sessions of a broker: at about 700 bytes each 700 MiB."""


class Broker:
    """The sessions of one broker.

    Parameters
    ----------
    output
        Gets the subscriptions, messages and wills that are final.
    most_sessions, most_tracked
        The most sessions that are kept between connections, and the most tracked messages. The
        output counts those above.
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
        """Whether a connection is older than the capture, or some of its bytes were not captured,
        so that subscriptions and messages may be missing."""
        self.lost: list[Span] = []
        """Spans in which packets of clients were sent that were not captured."""
        self.tracked = 0
        """Tracked messages of all sessions."""

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
            Session Present; None if the version has none.
        limits
            Receive Maximum of the broker, and of the client.
        """
        kept = present if present is not None else not connection.clean_start
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
        """End the current connection of a session, and the session itself unless it is resumed."""
        assert connection.accepted is not None
        self._expire(session, connection.accepted)
        last = session.connection and session.connection.last
        self.close(session, connection.opened, "dropped", until=last or connection.opened)
        if session.will and session.will.step("back" if kept else "session_over") == "published":
            self._publish(session.will, connection.opened)
        if not kept:
            self._end_subscriptions(session, connection.opened, connection.opened)
        if session.may_have_changed:
            self._lose_track(session)

    def _lose_track(self, session: Session) -> None:
        """Make the state of a session unknown, as that of one that is older than the capture."""
        tracker, over = self._output.tracker, list(session.leave())
        self.tracked -= len(over)
        tracker.over(over)
        session.to_broker, session.to_client = (tracker.new_direction(False) for _ in range(2))
        session.known = False

    def close(
        self,
        session: Session,
        at: Position,
        ended_by: str,
        will_event: str = "dropped",
        until: Position | None = None,
    ) -> None:
        """End the current connection of a session, if it is open.

        Parameters
        ----------
        until
            The last position at which it was certainly open; `at` by default.
        """
        connection = session.connection
        if connection is None or connection.ended_by != "open":
            return
        if ended_by == "dropped" and connection.unsure_before is ALWAYS:
            ended_by = UNSEEN  # A goodbye may have been in the bytes that were not captured.
        connection.ended_by, connection.closed = ended_by, at
        connection.until = until or at
        self.end_flows(session, at)
        if not connection.begun or session.may_have_changed:
            session.to_client.untrace(ALWAYS)
        self._close_will(session.will, will_event, connection, at)
        if not connection.persistent:
            session.to_client.abandon()
            self._end_subscriptions(session, connection.until, at)
        elif session.may_have_changed:
            session.will = None
            for subscribed in session.filters.values():
                subscribed.leaving = subscribed.leaving or connection.until
        elif connection.expires_s is not None:
            session.expires = at.after(connection.expires_s)

    def end_flows(self, session: Session, at: Position) -> None:
        """Count the messages in flight at the end of a connection, and report each of them.

        Those whose acknowledgement may be in a gap are marked.
        """
        connection = session.connection
        assert connection is not None
        session.is_whole &= not connection.has_gap
        connection.shows_in_flight = session.is_whole
        if connection.unsure_before is not None:
            session.to_client.untrace(connection.unsure_before)
        counts = []
        for to_broker, direction in ((True, session.to_broker), (False, session.to_client)):
            packet_ids = direction.in_flight()
            counts.append(len(packet_ids))
            for packet_id in packet_ids:
                self._output.flow_event("in_flight", connection, to_broker, packet_id, at)
        connection.in_flight = counts[0], counts[1]

    def _close_will(
        self, will: Will | None, event: str, connection: ConnectionRecord, at: Position
    ) -> None:
        if will is None or will.step(event) == "dropped":
            return
        # A broker that drops a client may publish the will before it sends its FIN.
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

    def _expire(self, session: Session, at: Position) -> None:
        """Publish a will whose delay ended, and end a session that expired, before a position."""
        will, expires = session.will, session.expires
        if will and will.due and will.due < at and will.step("delay_over") == "published":
            self._publish(will, will.due)
        if expires is not None and expires < at:
            self._end_subscriptions(session, expires, expires)

    def _publish(self, will: Will, at: Position) -> None:
        will.message.accepted = at
        self._output.messages.append(will.message)

    def subscribe(self, session: Session, subscribed: Subscribed) -> None:
        """Add a subscription, within `MAX_FILTERS`; it replaces one to the same filter."""
        older = session.filters.get(subscribed.filter)
        if older is None and len(session.filters) >= MAX_FILTERS:
            self._output.dropped["subscriptions"] += 1
            return
        if older is not None:
            if subscribed.asked < older.asked:  # They were answered in another order.
                subscribed, older = older, subscribed
            subscribed.since = min(subscribed.since, older.since)
            self._end_subscription(older, subscribed.asked, subscribed.granted)
        session.filters[subscribed.filter] = subscribed
        if len(session.served_as) < MAX_FILTERS:
            session.served_as[subscribed.served_as] = None

    def unsubscribe(
        self, session: Session, filter: str, asked: Position, answered: Position
    ) -> None:
        """End a subscription."""
        subscribed = session.filters.pop(filter, None)
        if subscribed is not None:
            self._end_subscription(subscribed, asked, answered)

    def _end_subscription(self, subscribed: Subscribed, leaving: Position, gone: Position) -> None:
        subscribed.leaving, subscribed.gone = subscribed.leaving or leaving, gone
        self._output.subscriptions.append(subscribed)

    def _end_subscriptions(self, session: Session, leaving: Position, gone: Position) -> None:
        for subscribed in session.filters.values():
            self._end_subscription(subscribed, leaving, gone)
        session.filters.clear()

    def finish(self) -> None:
        """Output all messages and subscriptions of the sessions, and the wills still delayed."""
        for session in self.sessions.values():
            if session.expires is not None:
                last = session.connection
                if last and session.expires.time <= (last.capture_ends_ns or 0):
                    session.to_client.abandon()
                self._end_subscriptions(session, session.expires, session.expires)
            self._output.tracker.over(session.leave())
            self._output.subscriptions += session.filters.values()
            will = session.will
            if will and will.due and will.step("delay_over") == "published":
                will.message.accepted = will.due
                self._output.waiting.append(will.message)
