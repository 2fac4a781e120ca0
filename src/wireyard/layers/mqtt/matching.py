"""Which delivery attempt is of which message: by topic and payload, in their order.

No packet says it. Brokers forward a topic and a payload as they are, so the two are the key; of
messages that have both in common each was delivered after it was sent, in order. That leaves one
answer where nothing is missing; where something is, the one with the shortest waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from wireyard.layers.mqtt.expected import Expected
from wireyard.layers.mqtt.records import Attempt

__all__ = ["assign"]

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
