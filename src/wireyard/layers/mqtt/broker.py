"""A broker as its connections show it: sessions by client id, and wills in waiting."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Final

from wireyard.layers.mqtt.records import Link, Message, Moment, Subscribed
from wireyard.layers.mqtt.sessions import MAX_FILTERS, Session, Will

__all__ = ["MAX_CARRIED", "MAX_SESSIONS", "Broker"]

MAX_SESSIONS: Final = 1 << 17
"""Sessions kept; without messages one takes about 2 KB with its last connection, so 256 MiB."""
MAX_CARRIED: Final = 1 << 20
"""Messages that sessions remember by packet identifier: at about 700 bytes each 700 MiB."""
_NS_PER_S: Final = 1_000_000_000


class Broker:
    """What one broker keeps.

    Parameters
    ----------
    on_close
        Is given a session whose connection has just ended, and when.
    most_sessions, most_carried
        How many sessions are kept over connections, and messages in them. `dropped` counts, by
        reason, what was not.
    """

    def __init__(
        self,
        on_close: Callable[[Session, Moment], None],
        most_sessions: int = MAX_SESSIONS,
        most_carried: int = MAX_CARRIED,
    ) -> None:
        self.most_sessions = most_sessions
        self.most_carried = most_carried
        self._on_close = on_close
        self.sessions: dict[str, Session] = {}
        self.wills: list[Message] = []
        """Those that were published."""
        self.carried = 0
        """Messages that sessions remember by packet identifier."""
        self.dropped: Counter[str] = Counter()
        self.last_seen = 0
        """Place of the last packet that it sent."""
        self._due: list[tuple[int, int, int, Will | Session]] = []
        """A heap: wills by the end of their delay, sessions by their expiry; since which place."""
        self._waited = 0

    def open(
        self, link: Link, will: Will | None, present: bool | None, limits: tuple[int, int]
    ) -> Session:
        """Take a connection that the broker accepted; return its session.

        Parameters
        ----------
        present
            Session Present; None where the version does not tell.
        limits
            Receive Maximum of the broker, and of the client.
        """
        assert link.accepted is not None
        kept = present if present is not None else not link.fresh
        session = self.sessions.get(link.name)
        if session is None:
            session = Session(link.name, known=not kept)
            if len(self.sessions) < self.most_sessions:
                self.sessions[link.name] = session
            else:
                self.dropped["sessions"] += 1
        else:
            self._leave(session, link.opened, kept)
        self.carried -= session.connect(link, kept, limits)
        session.will = will
        return session

    def _leave(self, session: Session, at: Moment, kept: bool) -> None:
        """End the connection a session is on, and all it has if it does not go on."""
        last = session.link and session.link.last
        self.close(session, at, "dropped", until=last or at)
        if session.will and session.will.step("back" if kept else "session_over") == "published":
            self._publish(session.will, at)
        if not kept:
            _end_filters(session, at.place, at)

    def close(
        self,
        session: Session,
        at: Moment,
        ended_by: str,
        will_event: str = "dropped",
        until: Moment | None = None,
    ) -> None:
        """End the connection that a session is on, if it has not ended.

        Parameters
        ----------
        until
            The last moment at which it was open for certain, `at` if that is not given.
        """
        link = session.link
        if link is None or link.ended_by != "open":
            return
        link.ended_by, link.closed = ended_by, at
        link.until = (until or at).place
        self._on_close(session, at)
        if not link.persistent:
            _end_filters(session, link.until, at)
        elif link.expires_s is not None and at.ns is not None:
            self._wait(at.ns + link.expires_s * _NS_PER_S, at, session)
        self._close_will(session.will, will_event, link, at)

    def _close_will(self, will: Will | None, event: str, link: Link, at: Moment) -> None:
        if will is None or will.step(event) == "dropped":
            return
        # A broker that gives a client up may publish its will before its FIN leaves.
        will.message.released = link.last or at
        if not will.delay_s or not link.persistent:
            if will.step("delay_over") == "published":
                self._publish(will, at)
        elif at.ns is not None:
            delays = [will.delay_s] if link.expires_s is None else [will.delay_s, link.expires_s]
            self._wait(at.ns + min(delays) * _NS_PER_S, at, will)

    def _wait(self, due_ns: int, at: Moment, what: Will | Session) -> None:
        # The number keeps what is due at the same time from being compared.
        self._waited += 1
        heapq.heappush(self._due, (due_ns, self._waited, at.place, what))

    def pass_time(self, at: Moment) -> None:
        """Do what became due before a packet: wills are published, sessions expire."""
        if not self._due or at.ns is None or self._due[0][0] > at.ns:
            return
        at = at._replace(place=at.place - 1)
        while self._due and self._due[0][0] <= at.time:
            _, _, place, what = heapq.heappop(self._due)
            if isinstance(what, Will):
                if what.step("delay_over") == "published":
                    self._publish(what, at)
            elif what.link and what.link.closed and what.link.closed.place == place:
                _end_filters(what, at.place, at)

    def _publish(self, will: Will, at: Moment) -> None:
        will.message.accepted = at
        self.wills.append(will.message)

    def subscribe(self, session: Session, subscribed: Subscribed) -> bool:
        """Note a subscription; tell whether it is kept."""
        older = session.filters.get(subscribed.filter)
        if older is None and len(session.filters) >= MAX_FILTERS:
            self.dropped["subscriptions"] += 1
            return False
        if older is not None:
            older.leaving, older.gone = subscribed.asked.place, subscribed.granted.place
        session.filters[subscribed.filter] = subscribed
        return True

    @staticmethod
    def unsubscribe(session: Session, filter: str, asked: Moment, answered: Moment) -> None:
        """Note the end of a subscription."""
        subscribed = session.filters.pop(filter, None)
        if subscribed is not None:
            subscribed.leaving, subscribed.gone = asked.place, answered.place


def _end_filters(session: Session, leaving: int, at: Moment) -> None:
    for subscribed in session.filters.values():
        subscribed.leaving, subscribed.gone = leaving, at.place
    session.filters.clear()
