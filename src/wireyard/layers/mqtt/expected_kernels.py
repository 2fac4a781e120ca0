"""Who was due to get which message: the compiled twin of `expected` and `topics`.

Axes: m = messages; u = subscriptions; e = expected deliveries, a message and a client or a group
each. Positions are ranks: the smaller of two is the earlier, and -1 is none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import I64, array, kernel, piece

__all__ = [
    "NONE",
    "Expected",
    "Grid",
    "Ints",
    "Message",
    "Subscription",
    "count_expected",
    "find_expected",
]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

NONE: Final = -1


class Message(IntEnum):
    """What is known of a message that was sent, or of a will that was published."""

    GROUP = 0
    """Topic and payload."""
    TOPIC = 1
    SENT = 2
    START = 3
    """From when on it can be delivered."""
    ACCEPTED = 4
    NAME = 5
    """Number of the name of the client that sent it."""
    QOS = 6
    RETAIN = 7
    COPIES = 8
    IS_REFUSED = 9
    """Whether it was refused: 1 with a code, 2 because it breaks a rule."""
    IS_REPEATED = 10
    HAS_OLDER = 11
    """Whether there may be subscriptions to its topic that nobody saw."""


class Subscription(IntEnum):
    """What is known of a subscription. A turn is twice a rank, and one more for an end."""

    BEGINS = 0
    ENDS = 1
    GRANTED = 2
    LEAVING = 3
    NAME = 4
    """Number of the client's name."""
    SERVED_AS = 5
    """Number of the name that messages go to: the client's, or that of the shared filter."""
    FILTER = 6
    IS_SHARED = 7
    QOS = 8
    RETAIN_AS_PUBLISHED = 9
    NO_LOCAL = 10
    IDENTIFIER = 11


class Expected(IntEnum):
    """What is known of a message and one of those who were due to get it."""

    MESSAGE = 0
    NAME = 1
    FIRST = 2
    """The place of its first subscription among those of all."""
    SUBSCRIPTIONS = 3
    CAPACITY = 4
    """How many copies of it there may be."""
    RETAIN = 5
    QOS = 6
    """Bits: what it may be delivered with."""
    DELIVERED = 7
    """How often it was."""
    FIRST_AT = 8
    """When it was delivered first."""


_INTS: Final = array("int64")
_GRID: Final = array("int64", 2)


@piece
def _stands(subs: Grid, one: int, position: int) -> bool:
    turn = 2 * position + 1
    ends = subs[one, Subscription.ENDS]
    return bool(subs[one, Subscription.BEGINS] < turn and (ends == NONE or turn <= ends))


@piece
def _matches(messages: Grid, message: int, subs: Grid, one: int) -> int:
    """Return when a subscription stood: 1 from the beginning, 2 when the broker had the message."""
    if (
        subs[one, Subscription.NO_LOCAL]
        and subs[one, Subscription.NAME] == messages[message, Message.NAME]
    ):
        return 0
    if _stands(subs, one, messages[message, Message.START]):
        return 1
    accepted = messages[message, Message.ACCEPTED]
    if accepted > messages[message, Message.START] and _stands(subs, one, accepted):
        return 2
    return 0


@kernel(I64(_GRID, _GRID, _INTS, _INTS))
def count_expected(messages: Grid, subs: Grid, firsts: Ints, matching: Ints) -> int:
    """Count messages x subscriptions that stood.

    Parameters
    ----------
    firsts, matching
        Of each topic where its subscriptions are among all that match.
    """
    found = 0
    for message in range(len(messages)):
        topic = messages[message, Message.TOPIC]
        for place in range(firsts[topic], firsts[topic + 1]):
            found += _matches(messages, message, subs, matching[place]) > 0
    return found


@kernel(I64(_GRID, _GRID, _INTS, _INTS, _GRID, _INTS, _INTS))
def find_expected(
    messages: Grid,
    subs: Grid,
    firsts: Ints,
    matching: Ints,
    expected: Grid,
    expected_subs: Ints,
    numbers: Ints,
) -> int:
    """Find the clients and groups that should get each message; return how many there are.

    Parameters
    ----------
    expected, expected_subs
        Filled: columns of `Expected`, and the subscriptions of each.
    numbers
        Of each name, room for a number; -1 at the beginning.
    """
    count = used = 0
    for message in range(len(messages)):
        topic, first = messages[message, Message.TOPIC], count
        held = used
        # First as many as there are, in their order; then those of one name together.
        for phase in range(1, 3):
            for place in range(firsts[topic], firsts[topic + 1]):
                one = matching[place]
                if _matches(messages, message, subs, one) != phase:
                    continue
                if phase > 1 and _is_held(subs, one, expected_subs, held, used):
                    continue
                name = subs[one, Subscription.SERVED_AS]
                if numbers[name] < first:
                    numbers[name] = count
                    _begin(messages, message, subs, one, expected, count)
                    count += 1
                _add(messages, message, subs, one, expected, numbers[name])
                expected_subs[used] = one
                used += 1
        if count - first < used - held:
            _put_together(subs, expected, expected_subs, held, used, first, count)
        else:
            for entry in range(first, count):
                expected[entry, Expected.FIRST] = held + entry - first
    return count


@piece
def _is_held(subs: Grid, one: int, expected_subs: Ints, held: int, used: int) -> bool:
    """Return whether another subscription of the same client to the same filter is held."""
    for place in range(held, used):
        other = expected_subs[place]
        if (
            subs[other, Subscription.NAME] == subs[one, Subscription.NAME]
            and subs[other, Subscription.FILTER] == subs[one, Subscription.FILTER]
        ):
            return True
    return False


@piece
def _begin(messages: Grid, message: int, subs: Grid, one: int, expected: Grid, entry: int) -> None:
    expected[entry, Expected.MESSAGE] = message
    expected[entry, Expected.NAME] = subs[one, Subscription.SERVED_AS]
    expected[entry, Expected.SUBSCRIPTIONS] = 0
    expected[entry, Expected.CAPACITY] = 0
    expected[entry, Expected.RETAIN] = 0
    expected[entry, Expected.QOS] = 0
    expected[entry, Expected.DELIVERED] = 0
    expected[entry, Expected.FIRST_AT] = NONE


@piece
def _add(messages: Grid, message: int, subs: Grid, one: int, expected: Grid, entry: int) -> None:
    expected[entry, Expected.SUBSCRIPTIONS] += 1
    copies = messages[message, Message.COPIES]
    if not subs[one, Subscription.IS_SHARED] or expected[entry, Expected.CAPACITY] == 0:
        expected[entry, Expected.CAPACITY] += copies
    if messages[message, Message.RETAIN] and subs[one, Subscription.RETAIN_AS_PUBLISHED]:
        expected[entry, Expected.RETAIN] = 1
    qos = min(messages[message, Message.QOS], subs[one, Subscription.QOS])
    expected[entry, Expected.QOS] |= 1 << qos


@piece
def _put_together(
    subs: Grid, expected: Grid, expected_subs: Ints, held: int, used: int, first: int, count: int
) -> None:
    """Order the subscriptions of one message by whom they serve, each in the order it had."""
    at = held
    for entry in range(first, count):
        expected[entry, Expected.FIRST] = at
        name = expected[entry, Expected.NAME]
        for place in range(at, used):
            one = expected_subs[place]
            if subs[one, Subscription.SERVED_AS] == name:
                before = place
                while before > at:
                    expected_subs[before] = expected_subs[before - 1]
                    before -= 1
                expected_subs[at] = one
                at += 1
