"""Who got which message, and what became of it: the compiled twin of `deliveries`.

Axes: m = messages, by topic and payload and then by when they were sent; d = what was delivered, by
topic and payload and then by when; u = subscriptions; e = expected deliveries, a message and a
client or a group each; g = groups of messages and deliveries with one topic and payload; r = rows.
Positions are ranks: the smaller of two is the earlier, and -1 is none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import I64, array, kernel, piece
from wireyard.layers.grouping import dense_ids
from wireyard.layers.mqtt.deliveries import VERDICTS
from wireyard.layers.mqtt.expected_kernels import (
    NONE,
    Expected,
    Grid,
    Ints,
    Message,
    Subscription,
)

__all__ = ["MISSED", "VERDICT_NAMES", "Delivered", "Fate", "assign", "judge", "latest_of"]

VERDICT_NAMES: Final = tuple(VERDICTS)
(
    _DELIVERED, _LOST_ACK, _IN_FLIGHT, _DUPLICATE, _ABANDONED, _REFUSED_BY_CLIENT, _REFUSED,
    _UNACCEPTED, _NO_SUBSCRIBER, _UNDECIDED,
) = map(
    VERDICT_NAMES.index,
    (
        "delivered", "lost_ack", "in_flight", "duplicate", "abandoned", "refused_by_client",
        "refused", "unaccepted", "no_subscriber", "undecided",
    ),
)  # fmt: skip
_NO_OLDER: Final = -2
MISSED: Final = -2
"""The verdict of what was missed for certain: why, another stage finds out."""


class Delivered(IntEnum):
    """What is known of a message that a broker delivered."""

    GROUP = 0
    AT = 1
    NAME = 2
    """Number of the name of the client that it was delivered to."""
    QOS = 3
    RETAIN = 4
    IS_LIVE = 5
    """Whether it came because it was sent, and not because of a new subscription."""
    IDENTIFIER = 6
    """Its only subscription identifier; -1 if it has none."""
    OUTCOME = 7
    """The verdict, if it was expected."""
    SETTER = 8
    """The message that set the retained value that it has; -1 if that was not seen."""


class Fate(IntEnum):
    """A row: where a message went."""

    MESSAGE = 0
    DELIVERED = 1
    SUBSCRIPTION = 2
    VERDICT = 3
    EXPECTED = 4
    CLIENT = 5
    """Who it was missed by, if a connection shows that; -1 otherwise."""


_INTS: Final = array("int64")
_GRID: Final = array("int64", 2)


def latest_of(ways: Ints, start: Ints, at: Ints) -> Ints:
    """Return, for each way, which message that came was sent last, and came first of that."""
    numbers, count = dense_ids(ways)
    found = np.full(count, NONE, np.int64)
    _find_latest(numbers.astype(np.int64), start, at, found)
    return found


@kernel((_INTS, _INTS, _INTS, _INTS))
def _find_latest(numbers: Ints, start: Ints, at: Ints, found: Ints) -> None:
    for place in range(len(numbers)):
        best = found[numbers[place]]
        if (
            best == NONE
            or start[place] > start[best]
            or (start[place] == start[best] and at[place] < at[best])
        ):
            found[numbers[place]] = place


# --- who got what ---------------------------------------------------------------------------


@piece
def _assign_latest_first(
    messages: Grid, expected: Grid, by_key: Ints, first: int, last: int,
    delivered: Grid, theirs: Ints, start: int, stop: int, assigned: Ints, stacks: Grid,
    any_qos: bool,
) -> None:  # fmt: skip
    """Give each delivery, from the last one back, to the latest message that takes its QoS."""
    top0 = top1 = top2 = 0
    for place in range(first, last):
        entry = by_key[place]
        levels = 7 if any_qos else expected[entry, Expected.QOS]
        if levels & 1:
            stacks[0, top0] = entry
            top0 += 1
        if levels & 2:
            stacks[1, top1] = entry
            top1 += 1
        if levels & 4:
            stacks[2, top2] = entry
            top2 += 1
    for place in range(stop - 1, start - 1, -1):
        each = theirs[place]
        if assigned[each] != NONE:
            continue
        qos = delivered[each, Delivered.QOS]
        top = top0 if qos == 0 else top1 if qos == 1 else top2
        while top > 0:
            entry = stacks[qos, top - 1]
            began = messages[expected[entry, Expected.MESSAGE], Message.START]
            full = expected[entry, Expected.DELIVERED] >= expected[entry, Expected.CAPACITY]
            if began < delivered[each, Delivered.AT] and not full:
                break
            # What is full, or was sent later, is nothing for those before either.
            top -= 1
        if top > 0:
            entry = stacks[qos, top - 1]
            assigned[each] = entry
            expected[entry, Expected.DELIVERED] += 1
        if qos == 0:
            top0 = top
        elif qos == 1:
            top1 = top
        else:
            top2 = top


@kernel(I64(_GRID, _GRID, _INTS, _INTS, _GRID, _INTS, _INTS, _INTS, _INTS, _INTS, _GRID))
def assign(
    messages: Grid,
    expected: Grid,
    expected_keys: Ints,
    by_key: Ints,
    delivered: Grid,
    delivered_keys: Ints,
    theirs: Ints,
    assigned: Ints,
    places: Ints,
    following: Ints,
    stacks: Grid,
) -> int:
    """Give messages what was delivered of them; return how many deliveries have one.

    Parameters
    ----------
    expected_keys, by_key
        Keys of those that have name, topic, payload and RETAIN in common, ascending, and whose they
        are; those of one key in the order of their messages.
    delivered_keys, theirs
        The same of what was delivered, in the order of time.
    assigned, places
        Filled: of each delivery what it is of, or -1, and the how manieth of that.
    following, stacks
        Room: as much as there are deliveries, and three times as much as there are expected.
    """
    found = start = first = 0
    while start < len(theirs):
        key = delivered_keys[start]
        stop = start
        while stop < len(theirs) and delivered_keys[stop] == key:
            stop += 1
        while first < len(by_key) and expected_keys[first] < key:
            first += 1
        last = first
        while last < len(by_key) and expected_keys[last] == key:
            last += 1
        if last > first:
            _assign_latest_first(
                messages, expected, by_key, first, last, delivered, theirs, start, stop,
                assigned, stacks, False,
            )  # fmt: skip
            # What came with a QoS that it should not have has come all the same.
            _assign_latest_first(
                messages, expected, by_key, first, last, delivered, theirs, start, stop,
                assigned, stacks, True,
            )  # fmt: skip
            _cover(expected, by_key, first, last, theirs, start, stop, assigned, following, stacks)
            found += _number(expected, delivered, theirs, start, stop, assigned, places)
        start, first = stop, last
    return found


@piece
def _cover(
    expected: Grid, by_key: Ints, first: int, last: int, theirs: Ints, start: int, stop: int,
    assigned: Ints, following: Ints, stacks: Grid,
) -> None:  # fmt: skip
    """Give messages that have nothing the first of a later one that has more than it needs."""
    poor = rich = 0
    for place in range(first, last):
        had = expected[by_key[place], Expected.DELIVERED]
        poor += had == 0
        rich += had > 1
        stacks[1, place - first] = NONE
        # Where an entry stands among those of its key.
        expected[by_key[place], Expected.FIRST_AT] = place - first
    if poor == 0 or rich == 0:
        return
    # What each has, the first one foremost.
    for place in range(stop - 1, start - 1, -1):
        each = theirs[place]
        if assigned[each] != NONE:
            mine = expected[assigned[each], Expected.FIRST_AT]
            following[each] = stacks[1, mine]
            stacks[1, mine] = each
    top = 0
    for place in range(last - 1, first - 1, -1):
        entry = by_key[place]
        if expected[entry, Expected.DELIVERED] > 1:
            stacks[0, top] = place
            top += 1
        elif expected[entry, Expected.DELIVERED] == 0 and top > 0:
            giver = stacks[0, top - 1]
            each = stacks[1, giver - first]
            stacks[1, giver - first] = following[each]
            assigned[each] = entry
            expected[entry, Expected.DELIVERED] = 1
            expected[by_key[giver], Expected.DELIVERED] -= 1
            if expected[by_key[giver], Expected.DELIVERED] == 1:
                top -= 1


@piece
def _number(
    expected: Grid,
    delivered: Grid,
    theirs: Ints,
    start: int,
    stop: int,
    assigned: Ints,
    places: Ints,
) -> int:
    """Count the deliveries of each message up; return how many there are in all."""
    found = 0
    for place in range(start, stop):
        if assigned[theirs[place]] != NONE:
            expected[assigned[theirs[place]], Expected.DELIVERED] = 0
    for place in range(start, stop):
        each = theirs[place]
        entry = assigned[each]
        if entry == NONE:
            continue
        found += 1
        places[each] = expected[entry, Expected.DELIVERED]
        if places[each] == 0:
            expected[entry, Expected.FIRST_AT] = delivered[each, Delivered.AT]
        expected[entry, Expected.DELIVERED] += 1
    return found


# --- verdicts -------------------------------------------------------------------------------


@kernel(
    I64(
        _GRID, _GRID, _GRID, _INTS, _GRID, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS,
        _GRID,
    )
)  # fmt: skip
def judge(
    messages: Grid,
    subs: Grid,
    expected: Grid,
    expected_subs: Ints,
    delivered: Grid,
    assigned: Ints,
    places: Ints,
    first_messages: Ints,
    first_expected: Ints,
    of_older: Ints,
    taken: Ints,
    is_found: Ints,
    fates: Grid,
) -> int:
    """Find what became of all messages; return how many rows that is.

    Parameters
    ----------
    first_messages, first_expected
        Of each group where its messages are, and what was expected of them.
    of_older
        Of each delivery that nobody was due to get, on a topic with subscriptions that nobody saw,
        the message that it is of, or -1; -2 of all others.
    taken, is_found
        Room: as much as there are messages; `taken` is -1 at the beginning, `is_found` 0. Filled:
        when the broker had shown that it had taken a message, and whether there is a row of it.
    fates
        Filled: columns of `Fate`.
    """
    count = 0
    for entry in range(len(expected)):
        message = expected[entry, Expected.MESSAGE]
        is_found[message] = 1
        if messages[message, Message.IS_REFUSED] > 0:
            continue
        accepted = messages[message, Message.ACCEPTED]
        if accepted != NONE and taken[message] == NONE:
            taken[message] = accepted
        # What was delivered may be an earlier message with the same payload.
        is_first = message == first_messages[messages[message, Message.GROUP]]
        if expected[entry, Expected.DELIVERED] > 0 and (accepted == NONE or is_first):
            first = expected[entry, Expected.FIRST_AT]
            if taken[message] == NONE or first < taken[message]:
                taken[message] = first
    for each in range(len(delivered)):
        entry = assigned[each]
        if entry != NONE:
            message = expected[entry, Expected.MESSAGE]
            one = _subscription(subs, expected, expected_subs, entry, delivered, each)
            first_sub = expected_subs[expected[entry, Expected.FIRST]]
            due = expected[entry, Expected.SUBSCRIPTIONS]
            if subs[first_sub, Subscription.IS_SHARED]:
                due = 1
            verdict = _outcome(messages, message, delivered, each)
            if places[each] >= due:
                verdict = _DUPLICATE
        else:
            message, verdict = _not_due(
                messages, expected, delivered, each, first_messages, first_expected, of_older[each]
            )
            if message != NONE:
                is_found[message] = 1
            one = NONE
        fates[count, Fate.MESSAGE] = message
        fates[count, Fate.DELIVERED] = each
        fates[count, Fate.SUBSCRIPTION] = one
        fates[count, Fate.VERDICT] = verdict
        fates[count, Fate.EXPECTED] = entry
        fates[count, Fate.CLIENT] = NONE
        count += 1
    for entry in range(len(expected)):
        if expected[entry, Expected.DELIVERED] > 0:
            continue
        message = expected[entry, Expected.MESSAGE]
        verdict = _UNDECIDED
        first_sub = expected_subs[expected[entry, Expected.FIRST]]
        if messages[message, Message.IS_REFUSED] == 1:
            verdict = _REFUSED
        elif taken[message] == NONE:
            verdict = _UNACCEPTED
        elif messages[message, Message.HAS_OLDER] and subs[first_sub, Subscription.IS_SHARED]:
            verdict = _UNDECIDED
        elif _is_certain(messages, subs, expected, expected_subs, entry, taken[message]):
            verdict = MISSED
        fates[count, Fate.MESSAGE] = message
        fates[count, Fate.DELIVERED] = NONE
        fates[count, Fate.SUBSCRIPTION] = expected_subs[expected[entry, Expected.FIRST]]
        fates[count, Fate.VERDICT] = verdict
        fates[count, Fate.EXPECTED] = entry
        fates[count, Fate.CLIENT] = NONE
        count += 1
    for message in range(len(messages)):
        if is_found[message]:
            continue
        verdict = _NO_SUBSCRIBER
        if messages[message, Message.IS_REFUSED] == 1:
            verdict = _REFUSED
        elif messages[message, Message.QOS] > 0 and messages[message, Message.ACCEPTED] == NONE:
            verdict = _UNACCEPTED
        elif messages[message, Message.HAS_OLDER]:
            verdict = _UNDECIDED
        fates[count, Fate.MESSAGE] = message
        fates[count, Fate.DELIVERED] = NONE
        fates[count, Fate.SUBSCRIPTION] = NONE
        fates[count, Fate.VERDICT] = verdict
        fates[count, Fate.EXPECTED] = NONE
        fates[count, Fate.CLIENT] = NONE
        count += 1
    return count


@piece
def _subscription(
    subs: Grid, expected: Grid, expected_subs: Ints, entry: int, delivered: Grid, each: int
) -> int:
    """Return the subscription that a message came by: by its identifier, or any that matches."""
    first = expected[entry, Expected.FIRST]
    identifier, name = delivered[each, Delivered.IDENTIFIER], delivered[each, Delivered.NAME]
    found = NONE
    for place in range(first, first + expected[entry, Expected.SUBSCRIPTIONS]):
        one = expected_subs[place]
        mine = subs[one, Subscription.NAME] == name
        by_it = identifier != NONE and subs[one, Subscription.IDENTIFIER] == identifier
        if by_it and (mine or not subs[one, Subscription.IS_SHARED]):
            return int(one)
        if mine and found == NONE:
            found = one
    return int(expected_subs[first] if found == NONE else found)


@piece
def _not_due(
    messages: Grid, expected: Grid, delivered: Grid, each: int, first_messages: Ints,
    first_expected: Ints, of_older: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the message of a delivery that nobody was due to get, and the verdict."""
    group = delivered[each, Delivered.GROUP]
    message = NONE
    has_older = of_older != _NO_OLDER
    first, last = first_messages[group], first_messages[group + 1]
    setter = delivered[each, Delivered.SETTER]
    if setter != NONE:
        for one in range(first, last):
            if messages[one, Message.SENT] == setter:
                message = one
    elif delivered[each, Delivered.IS_LIVE] and has_older:
        message = of_older
    elif delivered[each, Delivered.IS_LIVE]:
        at = delivered[each, Delivered.AT]
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if messages[middle, Message.START] < at:
                low = middle + 1
            else:
                high = middle
        if low > first:
            message = low - 1
    verdict = _outcome(messages, message, delivered, each)
    if message == NONE:
        return int(message), int(verdict)
    if has_older and verdict == _DELIVERED and messages[message, Message.COPIES] > 1:
        return int(message), _UNDECIDED
    if delivered[each, Delivered.IS_LIVE]:
        for entry in range(first_expected[group], first_expected[group + 1]):
            if expected[entry, Expected.NAME] == delivered[each, Delivered.NAME]:
                verdict = _UNDECIDED if has_older else _DUPLICATE
    return int(message), int(verdict)


@piece
def _outcome(messages: Grid, message: int, delivered: Grid, each: int) -> int:
    """Return what became of a delivery."""
    verdict = delivered[each, Delivered.OUTCOME]
    is_closed = verdict in (_DELIVERED, _LOST_ACK)
    if is_closed and message != NONE and messages[message, Message.IS_REPEATED]:
        return int(_UNDECIDED)  # Its first copy may have been delivered before.
    return int(verdict)


@piece
def _is_certain(
    messages: Grid, subs: Grid, expected: Grid, expected_subs: Ints, entry: int, taken: int
) -> bool:
    """Return whether a subscription stood from before a message until the broker had it."""
    start = messages[expected[entry, Expected.MESSAGE], Message.START]
    first = expected[entry, Expected.FIRST]
    for place in range(first, first + expected[entry, Expected.SUBSCRIPTIONS]):
        one = expected_subs[place]
        leaving = subs[one, Subscription.LEAVING]
        if subs[one, Subscription.GRANTED] < start and (leaving == NONE or taken < leaving):
            return True
    return False
