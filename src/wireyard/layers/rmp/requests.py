"""Requests that wait for replies: how many are wanted, from which members, why it ended."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from wireyard.layers.rmp.counters import Drop, Drops
from wireyard.layers.rmp.events import Delivered, Event, Replied, RequestDone
from wireyard.layers.rmp.numbers import Hold, Numbers
from wireyard.layers.rmp.states import DONE_REASONS, REQUESTS, Asking, RequestEvent

__all__ = ["Request", "Requests", "Want"]


class Want(StrEnum):
    """How many replies, where that is no number."""

    ALL = "all"
    """One of every member that the request could reach when it was sent."""
    STREAM = "stream"
    """All that come, until its sentinel, a stall, the timeout, or the bound on replies."""


@dataclass(slots=True)
class Request:
    """A request that is waiting.

    Members that left will not answer. A member is taken to answer once; several clients of one
    process may each answer, but nobody can know of them beforehand.
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
    """Members that may answer, None on a ring without views."""
    state: Asking = Asking.ASKED
    replies: int = 0
    stalled_at: float | None = None
    _answered: set[tuple[str, int | None]] = field(default_factory=set)
    _sources: set[str] = field(default_factory=set)
    """The processes among them, whichever of their clients it was."""

    @property
    def timeout_at(self) -> float:
        """When it ends at the latest."""
        return self.asked_at + self.timeout_s

    @property
    def due(self) -> float:
        """When it ends if nothing happens."""
        return min(self.timeout_at, self.timeout_at if self.stalled_at is None else self.stalled_at)

    def counts(self, source: str, client: int | None) -> bool:
        """Count a reply; return whether it is the first of its client, or a stream is wanted."""
        who = source, client
        if who in self._answered and self.want is not Want.STREAM:
            return False
        self._answered.add(who)
        self._sources.add(source)
        self.replies += 1
        return True

    def after_reply(self, data: bytes, max_replies: int) -> RequestEvent:
        """Return what follows from a reply that was counted."""
        if self.sentinel is not None and self.sentinel(data):
            return RequestEvent.SENTINEL
        if isinstance(self.want, int) and self.replies >= self.want:
            return RequestEvent.ENOUGH
        if self.want is Want.ALL and self.members is not None and self.members <= self._sources:
            return RequestEvent.ALL
        return RequestEvent.TOO_MANY if self.replies >= max_replies else RequestEvent.REPLY

    def after_departure(self) -> RequestEvent | None:
        """Return what follows from the members left, None if enough can still answer."""
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
        """Return the members that have not answered."""
        assert self.members is not None
        return self.members - self._sources


class Requests:
    """The requests of one process.

    Parameters
    ----------
    events
        Where replies and ends are put.
    """

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
        """Wait for the replies to a request that was sent; return the id of the request."""
        id_ = next(self._ids)
        self._requests[id_] = request
        self._by_number[request.ring, request.number] = id_
        heapq.heappush(self._due, (request.due, id_))
        # With no member to answer it, it should not wait until the next view.
        self._departed(id_, now)
        return id_

    def reply(self, number: int, delivered: Delivered, now: float) -> bool:
        """Count a reply to a message of this process; return whether a request waited for it."""
        id_ = self._by_number.get((delivered.ring, number))
        if id_ is None:
            self._drops.counts[Drop.LATE_REPLY] += 1
            return False
        request = self._requests[id_]
        if not request.counts(delivered.source, delivered.client):
            self._drops.counts[Drop.REPEATED_REPLY] += 1
            return False
        if request.stall_s is not None:
            first = request.stalled_at is None
            request.stalled_at = now + request.stall_s
            if first:  # later ones only put it off
                heapq.heappush(self._due, (request.due, id_))
        self._events.append(Replied(id_, delivered))
        self._happen(id_, request.after_reply(delivered.data, self._max_replies), now)
        return True

    def view(self, ring: str, members: Iterable[str], now: float) -> None:
        """Wait no more for members that are not in a new view."""
        present = frozenset(members)
        for id_, request in list(self._requests.items()):
            if request.ring == ring and request.members is not None:
                request.members &= present
                self._departed(id_, now)

    def cancel(self, id_: int, now: float) -> None:
        """End a request; one that is done stays as it is."""
        if id_ in self._requests:
            self._happen(id_, RequestEvent.CANCEL, now)

    def close(self, ring: str, now: float) -> None:
        """End the requests of a ring that this process leaves."""
        for id_, request in list(self._requests.items()):
            if request.ring == ring:
                self._happen(id_, RequestEvent.CANCEL, now)

    def get_timer(self) -> float | None:
        """Return when a request may end by itself."""
        while self._due and self._due[0][1] not in self._requests:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def handle_timer(self, now: float) -> None:
        """End the requests whose time is over."""
        while (due := self.get_timer()) is not None and due <= now:
            _, id_ = heapq.heappop(self._due)
            request = self._requests[id_]
            if request.due > now:
                heapq.heappush(self._due, (request.due, id_))  # a reply came since
                continue
            stalled = request.timeout_at > now
            self._happen(id_, RequestEvent.STALL if stalled else RequestEvent.TIMEOUT, now)

    def _departed(self, id_: int, now: float) -> None:
        event = self._requests[id_].after_departure()
        if event is not None:
            self._happen(id_, event, now)

    def _happen(self, id_: int, event: RequestEvent, now: float) -> None:
        request = self._requests[id_]
        request.state = REQUESTS[request.state, event].state
        if request.state is not Asking.DONE:
            return
        del self._requests[id_]
        del self._by_number[request.ring, request.number]
        # Members that do not know of the end may still reply to it.
        self._numbers.rest(request.number, Hold.PENDING, now + 2 * request.timeout_s)
        self._events.append(RequestDone(id_, DONE_REASONS[event], request.replies))
