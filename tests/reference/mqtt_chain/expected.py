"""Expected deliveries: the clients that should get a message, and their delivery attempts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from wireyard.layers.mqtt.records import Attempt, Message, Subscribed
from wireyard.layers.mqtt.subscriptions import BEGINS, ENDS, ends_of
from wireyard.layers.records import Position

__all__ = [
    "Expected",
    "SubscriptionHistory",
    "assign",
    "expected_deliveries",
]

_MAX_CACHED: Final = 1 << 20
"""Cached subscriptions of one topic, over all positions; evicted ones are found again."""


@dataclass(slots=True, eq=False)
class Expected:
    """An expected delivery: a message, and a client or group whose subscriptions match it."""

    message: Message
    name: str
    """The client, or the shared filter of the group."""
    matching: list[Subscribed] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def start(self) -> Position:
        """The position from which the message can be delivered."""
        return self.message.start

    @property
    def copies(self) -> int:
        """How many copies are expected: one for each matching subscription, one for a group."""
        return 1 if self.matching[0].group else len(self.matching)

    @property
    def capacity(self) -> int:
        """The most copies there may be, because the publisher may have sent the message again."""
        return self.copies * self.message.copies

    @property
    def retain(self) -> bool:
        """Whether it is delivered with RETAIN by Retain As Published."""
        return self.message.retain and any(one.retain_as_published for one in self.matching)

    @property
    def qos(self) -> set[int]:
        """The QoS values that it may be delivered with."""
        sent = self.message.qos
        return {min(sent, one.qos) for one in self.matching}

    def active_until(self, confirmed: Position) -> list[Subscribed]:
        """Return the subscriptions that were active from before the message until `confirmed`."""
        return [
            one
            for one in self.matching
            if one.granted < self.start and (one.leaving is None or confirmed < one.leaving)
        ]


class SubscriptionHistory:
    """The subscriptions that match a topic, and when each was active.

    Parameters
    ----------
    subscriptions
        All that ever matched. Results keep this order.
    """

    def __init__(self, subscriptions: Sequence[Subscribed]) -> None:
        ends = ends_of(subscriptions)
        self._spans = [((one.asked, BEGINS), ends[one], one) for one in subscriptions]
        boundaries = {begin for begin, _, _ in self._spans} | set(filter(None, ends.values()))
        self._boundaries = sorted(boundaries)
        self._cache: dict[int, list[Subscribed]] = {}
        self._cached = 0

    def at(self, position: Position) -> list[Subscribed]:
        """Return the subscriptions that were active at a position."""
        boundary = position, ENDS
        span = bisect_left(self._boundaries, boundary)
        active = self._cache.get(span)
        if active is None:
            active = [
                one
                for begin, end, one in self._spans
                if begin < boundary and (end is None or boundary <= end)
            ]
            if self._cached > _MAX_CACHED:
                self._cache.clear()
                self._cached = 0
            self._cache[span] = active
            self._cached += len(active) + 1
        return active


def expected_deliveries(
    messages: Iterable[Message], history: SubscriptionHistory
) -> Iterator[Expected]:
    """Yield the expected deliveries of all messages of a topic."""
    for message in messages:
        matching: dict[tuple[str, str], Subscribed] = {}
        before: list[Subscribed] | None = None
        for position in _probes(message):
            active = history.at(position)
            if active is before:  # No subscription began or ended in between.
                continue
            before = active
            for one in active:
                name = one.client.name
                if not one.no_local or name != message.client.name:
                    matching.setdefault((name, one.filter), one)
        expected: dict[str, Expected] = {}
        for one in matching.values():
            name = one.served_as
            expected.setdefault(name, Expected(message, name)).matching.append(one)
        yield from expected.values()


def _probes(message: Message) -> Iterator[Position]:
    """Yield the first and the last position at which the broker may have matched a message."""
    yield message.start
    if message.accepted is not None and message.accepted > message.start:
        yield message.accepted


_at = attrgetter("at")


def assign(expected: Sequence[Expected], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Assign the attempts of one topic and payload to expected deliveries.

    Parameters
    ----------
    expected, attempts
        In the order of their positions. Attempts are appended to `Expected.attempts`.

    Returns
    -------
    list of Attempt
        The attempts that no expected delivery accounts for.
    """
    rest = _latest_first(expected, attempts, lambda one: one.qos)
    if rest:
        # Attempts with a wrong QoS count too, after those with a right one.
        rest = _latest_first(expected, rest, lambda one: (0, 1, 2))
    for one in expected:
        one.attempts.sort(key=_at, reverse=True)
    _redistribute(expected)
    for one in expected:
        one.attempts.reverse()
    return rest


def _latest_first(
    expected: Sequence[Expected],
    attempts: Sequence[Attempt],
    levels: Callable[[Expected], Iterable[int]],
) -> list[Attempt]:
    """Assign each attempt, the last one first, to the latest message before it with its QoS."""
    by_qos: dict[int, list[Expected]] = {0: [], 1: [], 2: []}
    for one in expected:
        for qos in levels(one):
            by_qos[qos].append(one)
    rest = []
    for attempt in reversed(attempts):
        candidates = by_qos[attempt.qos]
        # A message that is full, or was sent later, is no candidate for earlier attempts either.
        while candidates and not _has_room(candidates[-1], attempt):
            candidates.pop()
        if candidates:
            candidates[-1].attempts.append(attempt)
        else:
            rest.append(attempt)
    return rest[::-1]


def _has_room(one: Expected, attempt: Attempt) -> bool:
    return one.start < attempt.at and len(one.attempts) < one.capacity


def _redistribute(expected: Sequence[Expected]) -> None:
    """Give messages without an attempt the first attempt of a later message that has several.

    An attempt stays after its message, because it is after the later message, too.
    """
    surplus: list[Expected] = []
    for one in reversed(expected):
        if len(one.attempts) > 1:
            surplus.append(one)
        elif not one.attempts and surplus:
            one.attempts.append(surplus[-1].attempts.pop())
            if len(surplus[-1].attempts) == 1:
                surplus.pop()
