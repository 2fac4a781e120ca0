"""Expected deliveries: who should get a message, and which of the attempts is whose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from wireyard.layers.mqtt.records import Attempt, Message, Subscribed
from wireyard.layers.records import Position

__all__ = [
    "Audience",
    "Expected",
    "Turn",
    "assign",
    "ends_of",
    "expected_deliveries",
]

_MAX_REMEMBERED: Final = 1 << 20
"""Subscriptions that stood at some times, together: what is forgotten is found once more."""
_BEGINS, _ENDS = range(2)
"""What begins at a position is there, what ends at it still is."""

Turn = tuple[Position, int]
"""A position, and 0 for what begins then or 1 for what ends."""


@dataclass(slots=True, eq=False)
class Expected:
    """A message and a client that has subscriptions which match it, or a group that shares one."""

    message: Message
    name: str
    """The client, or the filter with the group's name."""
    matching: list[Subscribed] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def start(self) -> Position:
        """From when on the message can have been delivered."""
        return self.message.start

    @property
    def copies(self) -> int:
        """How many copies of it are due: one for each subscription that matches."""
        return 1 if self.matching[0].group else len(self.matching)

    @property
    def capacity(self) -> int:
        """How many copies of it there may be, as often as its client sent it."""
        return self.copies * self.message.copies

    @property
    def retain(self) -> bool:
        """Whether it is delivered with RETAIN though it is no retained value."""
        return self.message.retain and any(one.retain_as_published for one in self.matching)

    @property
    def qos(self) -> set[int]:
        """What it may be delivered with."""
        sent = self.message.qos
        return {min(sent, one.qos) for one in self.matching}

    def certain(self, taken: Position) -> list[Subscribed]:
        """Return the subscriptions from before the message that did not end before `taken`."""
        return [
            one
            for one in self.matching
            if one.granted < self.start and (one.leaving is None or taken < one.leaving)
        ]


class Audience:
    """The subscriptions that match a topic, as they came and went.

    Parameters
    ----------
    subscriptions
        All that ever did. Those that stand at one time are in this order.
    """

    def __init__(self, subscriptions: Sequence[Subscribed]) -> None:
        ends = ends_of(subscriptions)
        self._spans = [((one.asked, _BEGINS), ends[one], one) for one in subscriptions]
        turns = {begin for begin, _, _ in self._spans} | set(filter(None, ends.values()))
        self._turns = sorted(turns)
        self._found: dict[int, list[Subscribed]] = {}
        self._remembered = 0

    def at(self, position: Position) -> list[Subscribed]:
        """Return the subscriptions that stood at a position."""
        turn = position, _ENDS
        behind = bisect_left(self._turns, turn)
        found = self._found.get(behind)
        if found is None:
            found = [
                one
                for begin, end, one in self._spans
                if begin < turn and (end is None or turn <= end)
            ]
            if self._remembered > _MAX_REMEMBERED:
                self._found.clear()
                self._remembered = 0
            self._found[behind] = found
            self._remembered += len(found) + 1
        return found


def ends_of(subscriptions: Iterable[Subscribed]) -> dict[Subscribed, Turn | None]:
    """Return when subscriptions end, of which there are all to the same filters."""
    newer: dict[tuple[str, str], Turn] = {}
    ends: dict[Subscribed, Turn | None] = {}
    for one in sorted(subscriptions, key=lambda one: one.asked, reverse=True):
        key = one.client.name, one.filter
        end = None if one.gone is None else (one.gone, _ENDS)
        # A newer one with the same filter takes its place, which may be a little earlier.
        ends[one] = min(filter(None, (end, newer.get(key))), default=None)
        newer[key] = one.asked, _BEGINS
    return ends


def expected_deliveries(messages: Iterable[Message], audience: Audience) -> Iterator[Expected]:
    """Yield, for every message of a topic, the clients and groups that should get it."""
    for message in messages:
        matching: dict[tuple[str, str], Subscribed] = {}
        before: list[Subscribed] | None = None
        for position in _probes(message):
            standing = audience.at(position)
            if standing is before:  # Nothing came or went.
                continue
            before = standing
            for one in standing:
                name = one.client.name
                if not one.no_local or name != message.client.name:
                    matching.setdefault((name, one.filter), one)
        found: dict[str, Expected] = {}
        for one in matching.values():
            name = one.served_as
            found.setdefault(name, Expected(message, name)).matching.append(one)
        yield from found.values()


def _probes(message: Message) -> Iterator[Position]:
    """Yield the positions between which the broker forwarded a message."""
    yield message.start
    if message.accepted is not None and message.accepted > message.start:
        yield message.accepted


_at = attrgetter("at")


def assign(expected: Sequence[Expected], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Give messages of one topic and payload what was delivered of them.

    Parameters
    ----------
    expected, attempts
        In the order of their places. What is assigned is appended to `Expected.attempts`.

    Returns
    -------
    list of Attempt
        What is none of them.
    """
    rest = _latest_first(expected, attempts, lambda one: one.qos)
    if rest:
        # What came with a QoS that it should not have has come all the same.
        rest = _latest_first(expected, rest, lambda one: (0, 1, 2))
    for one in expected:
        one.attempts.sort(key=_at, reverse=True)
    _cover(expected)
    for one in expected:
        one.attempts.reverse()
    return rest


def _latest_first(
    expected: Sequence[Expected],
    attempts: Sequence[Attempt],
    levels: Callable[[Expected], Iterable[int]],
) -> list[Attempt]:
    """Give each, from the last one back, to the latest message before it that takes its QoS."""
    open_ones: dict[int, list[Expected]] = {0: [], 1: [], 2: []}
    for one in expected:
        for qos in levels(one):
            open_ones[qos].append(one)
    rest = []
    for each in reversed(attempts):
        candidates = open_ones[each.qos]
        # What is full, or was sent later, is nothing for those before either.
        while candidates and not _takes(candidates[-1], each):
            candidates.pop()
        if candidates:
            candidates[-1].attempts.append(each)
        else:
            rest.append(each)
    return rest[::-1]


def _takes(one: Expected, each: Attempt) -> bool:
    return one.start < each.at and len(one.attempts) < one.capacity


def _cover(expected: Sequence[Expected]) -> None:
    """Give those that have nothing the first of a later message that has more than it needs.

    That is as causal as before: it was delivered after a message that was sent after theirs.
    """
    rich: list[Expected] = []
    for one in reversed(expected):
        if len(one.attempts) > 1:
            rich.append(one)
        elif not one.attempts and rich:
            one.attempts.append(rich[-1].attempts.pop())
            if len(rich[-1].attempts) == 1:
                rich.pop()
