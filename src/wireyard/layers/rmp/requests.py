"""Requests that wait for replies: the replies that are wanted, the members, the end."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from wireyard.layers.rmp.events import Delivered, Event, Replied, RequestDone
from wireyard.layers.rmp.limits import Drop, Drops
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.states import DONE_REASONS, REQUESTS, Asking, RequestEvent


class Want(StrEnum):
    """The replies that are wanted, if that is not a number."""

    ALL = "all"
    """One of every member that the request reached when it was sent."""
    STREAM = "stream"
    """All until the sentinel, a stall, the timeout, or the bound on replies."""


@dataclass(slots=True)
class Request:
    """A request that waits for replies.

    Members that have left will not reply. One reply is expected of each member; several clients of
    a process may each reply, but they are not known in advance.
    """

    ring: str
    want: int | Want
    timeout_s: float
    asked_at: float
    stall_s: float | None
    sentinel: Callable[[bytes], bool] | None
    number: int
    """Its message number."""
    members: frozenset[str] | None
    """Members that may reply; None on a ring without views."""
    state: Asking = Asking.ASKED
    replies: int = 0
    stalled_at: float | None = None
    _answered: set[tuple[str, int | None]] = field(default_factory=set)
    _sources: set[str] = field(default_factory=set)
    """The processes that have replied, by any of their clients."""

    @property
    def timeout_at(self) -> float:
        """The latest time of its end."""
        return self.asked_at + self.timeout_s

    @property
    def due(self) -> float:
        """The time of its end if no reply comes."""
        return min(self.timeout_at, self.timeout_at if self.stalled_at is None else self.stalled_at)

    def count(self, source: str, client: int | None) -> bool:
        """Count a reply; return False if it is a further one of its client and no stream."""
        replier = source, client
        if replier in self._answered and self.want is not Want.STREAM:
            return False
        self._answered.add(replier)
        self._sources.add(source)
        self.replies += 1
        return True

    def after_reply(self, data: bytes, max_replies: int) -> RequestEvent:
        """Return the event that follows from a reply that was counted."""
        if self.sentinel is not None and self.sentinel(data):
            return RequestEvent.SENTINEL
        if isinstance(self.want, int) and self.replies >= self.want:
            return RequestEvent.ENOUGH
        if self.want is Want.ALL and self.members is not None and self.members <= self._sources:
            return RequestEvent.ALL
        return RequestEvent.TOO_MANY if self.replies >= max_replies else RequestEvent.REPLY

    def after_departure(self) -> RequestEvent | None:
        """Return the event that follows from the remaining members, None if enough can reply."""
        if self.members is None:
            return None
        awaited = len(self._awaited())
        match self.want:
            case Want.ALL if not awaited:
                return RequestEvent.ALL if self.replies else RequestEvent.DEPARTURE
            case Want.STREAM if not self.members:
                return RequestEvent.DEPARTURE
            case int() if self.replies + awaited < self.want:
                return RequestEvent.DEPARTURE
        return None

    def _awaited(self) -> frozenset[str]:
        """Return the members that have not replied."""
        assert self.members is not None
        return self.members - self._sources


class Requests:
    """The requests of one process; `events` is the queue for replies and ends of requests."""

    def __init__(
        self, numbers: Numbers, drops: Drops, max_replies: int, events: deque[Event]
    ) -> None:
        self._numbers = numbers
        self._drops = drops
        self._max_replies = max_replies
        self._events = events
        self._ids = count(1)
        self._requests: dict[int, Request] = {}
        self._by_number: dict[tuple[str, int], int] = {}
        self._due: list[tuple[float, int]] = []

    def add(self, request: Request, now: float) -> int:
        """Add a request that was sent, to wait for its replies; return the id of the request."""
        id_ = next(self._ids)
        self._requests[id_] = request
        self._by_number[request.ring, request.number] = id_
        heapq.heappush(self._due, (request.due, id_))
        # Without a member that can reply, it must not wait until the next view.
        self._departed(id_, now)
        return id_

    def reply(self, number: int, delivered: Delivered, now: float) -> bool:
        """Count a reply to a message of this process; return whether a request waited for it."""
        id_ = self._by_number.get((delivered.ring, number))
        if id_ is None:
            self._drops.counts[Drop.LATE_REPLY] += 1
            return False
        request = self._requests[id_]
        if not request.count(delivered.source, delivered.client):
            self._drops.counts[Drop.REPEATED_REPLY] += 1
            return False
        if request.stall_s is not None:
            first = request.stalled_at is None
            request.stalled_at = now + request.stall_s
            if first:  # later replies only postpone it
                heapq.heappush(self._due, (request.due, id_))
        self._events.append(Replied(id_, delivered))
        self._apply(id_, request.after_reply(delivered.data, self._max_replies), now)
        return True

    def view(self, ring: str, members: Iterable[str], now: float) -> None:
        """Stop waiting for members that are not in a new view."""
        present = frozenset(members)
        for id_, request in list(self._requests.items()):
            if request.ring == ring and request.members is not None:
                request.members &= present
                self._departed(id_, now)

    def cancel(self, id_: int, now: float) -> None:
        """End a request; one that is done stays as it is."""
        if id_ in self._requests:
            self._apply(id_, RequestEvent.CANCEL, now)

    def close(self, ring: str, now: float) -> None:
        """End the requests of a ring that this process leaves."""
        for id_, request in list(self._requests.items()):
            if request.ring == ring:
                self._apply(id_, RequestEvent.CANCEL, now)

    def get_timer(self) -> float | None:
        """Return the time at which the next request may end, None if there is none."""
        while self._due and self._due[0][1] not in self._requests:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def handle_timer(self, now: float) -> None:
        """End the requests that have timed out or stalled."""
        while (due := self.get_timer()) is not None and due <= now:
            _, id_ = heapq.heappop(self._due)
            request = self._requests[id_]
            if request.due > now:
                heapq.heappush(self._due, (request.due, id_))  # a reply has postponed it
                continue
            stalled = request.timeout_at > now
            self._apply(id_, RequestEvent.STALL if stalled else RequestEvent.TIMEOUT, now)

    def _departed(self, id_: int, now: float) -> None:
        event = self._requests[id_].after_departure()
        if event is not None:
            self._apply(id_, event, now)

    def _apply(self, id_: int, event: RequestEvent, now: float) -> None:
        request = self._requests[id_]
        request.state = REQUESTS[request.state, event].state
        if request.state is not Asking.DONE:
            return
        del self._requests[id_]
        del self._by_number[request.ring, request.number]
        # Members may still reply to it, because they do not know of the end.
        self._numbers.rest(request.number, Hold.PENDING, now + 2 * request.timeout_s)
        self._events.append(RequestDone(id_, DONE_REASONS[event], request.replies))
