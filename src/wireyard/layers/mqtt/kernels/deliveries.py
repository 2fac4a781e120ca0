"""Assignment of delivery attempts to expected deliveries, and verdicts.

Axes: m = messages, by topic and payload and then by when they were sent; d = delivery attempts, by
topic and payload and then by time; u = subscriptions; e = expected deliveries, each of a message to
a client or a group; g = groups of messages and attempts with one topic and payload; r = rows.
Positions are ranks: the smaller of two is the earlier, and -1 is none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Grid32 as Grid
from wireyard.arrays import Ints
from wireyard.layers.grouping import dense_ids
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.mqtt.kernels.expected import NONE, Expected, Message, Subscription

VERDICT_NAMES: Final = tuple(VERDICTS)
(
    _DELIVERED, _LOST_ACK, _IN_FLIGHT, _DUPLICATE, _ABANDONED, _REFUSED_BY_CLIENT, _REFUSED,
    _NO_SUBSCRIBER, UNDECIDED,
) = map(
    VERDICT_NAMES.index,
    (
        "delivered", "lost_ack", "in_flight", "duplicate", "abandoned", "refused_by_client",
        "refused", "no_subscriber", "undecided",
    ),
)  # fmt: skip
SEVERAL: Final = -2
"""The message of an attempt that may be of several, or of none that was captured."""
NO_OLDER: Final = -3
MISSED: Final = -2
"""The verdict of a certainly missing delivery until a later stage finds the reason."""


class Delivered(IntEnum):
    """Columns of a delivery attempt."""

    GROUP = 0
    AT = 1
    NAME = 2
    """Number of the client's name."""
    QOS = 3
    RETAIN = 4
    IS_LIVE = 5
    """Whether the broker forwarded it when it was published, and not for a new subscription."""
    IDENTIFIER = 6
    """Its only subscription identifier; -1 if it has none."""
    OUTCOME = 7
    """Its verdict if it was expected."""
    SETTER = 8
    """Position of the message that set the delivered retained value; -1 if it is unknown."""
    MAY_BE_LIVE = 9
    """Whether a subscription that was not captured may have Retain As Published."""
    IS_EXTRA = 10
    """Whether a retained value came once more than new subscriptions account for."""


class DeliveryRow(IntEnum):
    """Columns of a row of `deliveries`: indexes of its parts, and the verdict."""

    MESSAGE = 0
    DELIVERED = 1
    SUBSCRIPTION = 2
    VERDICT = 3
    EXPECTED = 4
    CLIENT = 5
    """The client without the delivery, if a connection identifies it; -1 otherwise."""


def latest_of(keys: Ints, start: Ints, at: Ints) -> Ints:
    """Return, for each key, the index of the first attempt of the message that was sent last."""
    numbers, count = dense_ids(keys)
    latest = np.full(count, NONE, np.int64)
    _find_latest(numbers.astype(np.int64), start.astype(np.int64), at.astype(np.int64), latest)
    return latest


@kernel
def _find_latest(numbers: Ints, start: Ints, at: Ints, latest: Ints) -> None:
    for place in range(len(numbers)):
        best = latest[numbers[place]]
        if (
            best == NONE
            or start[place] > start[best]
            or (start[place] == start[best] and at[place] < at[best])
        ):
            latest[numbers[place]] = place


# --- assignment -----------------------------------------------------------------------------


@inlined
def _assign_latest_first(
    messages: Grid, expected: Grid, by_message: Ints, first: int, last: int,
    delivered: Grid, by_time: Ints, start: int, stop: int, assigned: Ints, stacks: Grid,
    any_qos: bool,
) -> None:  # fmt: skip
    """Assign each attempt, the last one first, to the latest message before it with its QoS."""
    top0 = top1 = top2 = 0
    for place in range(first, last):
        entry = by_message[place]
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
        attempt = by_time[place]
        if assigned[attempt] != NONE:
            continue
        qos = delivered[attempt, Delivered.QOS]
        top = top0 if qos == 0 else top1 if qos == 1 else top2
        while top > 0:
            entry = stacks[qos, top - 1]
            began = messages[expected[entry, Expected.MESSAGE], Message.START]
            full = expected[entry, Expected.DELIVERED] >= expected[entry, Expected.CAPACITY]
            if began < delivered[attempt, Delivered.AT] and not full:
                break
            # A message that is full, or was sent later, is no candidate for earlier attempts.
            top -= 1
        if top > 0:
            entry = stacks[qos, top - 1]
            assigned[attempt] = entry
            expected[entry, Expected.DELIVERED] += 1
        if qos == 0:
            top0 = top
        elif qos == 1:
            top1 = top
        else:
            top2 = top


@kernel
def find_runs(expected_keys: Ints, attempt_keys: Ints, runs: Grid) -> int:
    """Find the keys that both have, which are ascending; return how many there are.

    A row of `runs` is filled for each key: the first expected delivery, the end of them, the first
    attempt, the end of them.
    """
    count = first = start = 0
    while start < len(attempt_keys) and first < len(expected_keys):
        key = attempt_keys[start]
        stop = start
        while stop < len(attempt_keys) and attempt_keys[stop] == key:
            stop += 1
        while first < len(expected_keys) and expected_keys[first] < key:
            first += 1
        last = first
        while last < len(expected_keys) and expected_keys[last] == key:
            last += 1
        if last > first:
            runs[count, 0], runs[count, 1] = first, last
            runs[count, 2], runs[count, 3] = start, stop
            count += 1
        start, first = stop, last
    return count


@kernel
def assign(
    messages: Grid,
    expected: Grid,
    by_message: Ints,
    delivered: Grid,
    by_time: Ints,
    runs: Grid,
    assigned: Ints,
    following: Ints,
    stacks: Grid,
) -> None:
    """Assign attempts to expected deliveries with the same name, topic, payload and RETAIN.

    `by_message` has expected deliveries in the order of their messages, `by_time` attempts in the
    order of time; `runs` has those that belong together, as of `find_runs`. `assigned` is filled:
    for each attempt its expected delivery, or -1. `following` and `stacks` are buffers, [d] and [3,
    e].
    """
    for run in range(len(runs)):
        first, last, start, stop = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        _assign_latest_first(
            messages, expected, by_message, first, last, delivered, by_time, start, stop,
            assigned, stacks, False,
        )  # fmt: skip
        # Attempts with a wrong QoS count too, after those with a right one.
        _assign_latest_first(
            messages, expected, by_message, first, last, delivered, by_time, start, stop,
            assigned, stacks, True,
        )  # fmt: skip
        for qos in range(3):
            _prefer_earlier(messages, expected, delivered, by_time, start, stop, qos, assigned)
        _redistribute(
            expected, by_message, first, last, by_time, start, stop, assigned, following, stacks
        )


@inlined
def _prefer_earlier(
    messages: Grid, expected: Grid, delivered: Grid, by_time: Ints, start: int, stop: int, qos: int,
    assigned: Ints,
) -> None:  # fmt: skip
    """Exchange attempts with earlier ones that are left: of too many, the last are duplicates."""
    free = start
    for place in range(start, stop):
        attempt = by_time[place]
        entry = assigned[attempt]
        if entry == NONE or delivered[attempt, Delivered.QOS] != qos:
            continue
        if not expected[entry, Expected.QOS] & (1 << qos):
            continue
        began = messages[expected[entry, Expected.MESSAGE], Message.START]
        while free < place and (
            assigned[by_time[free]] != NONE
            or delivered[by_time[free], Delivered.QOS] != qos
            or delivered[by_time[free], Delivered.AT] <= began
        ):
            free += 1
        if free < place:
            assigned[by_time[free]] = entry
            assigned[attempt] = NONE


@inlined
def _redistribute(
    expected: Grid, by_message: Ints, first: int, last: int, by_time: Ints, start: int, stop: int,
    assigned: Ints, following: Ints, stacks: Grid,
) -> None:  # fmt: skip
    """Give messages without an attempt the first one of a later message that has several."""
    without = surplus = 0
    for place in range(first, last):
        attempts = expected[by_message[place], Expected.DELIVERED]
        without += attempts == 0
        surplus += attempts > 1
        stacks[1, place - first] = NONE
        # The index of an entry among those of its key.
        expected[by_message[place], Expected.FIRST_AT] = place - first
    if without == 0 or surplus == 0:
        return
    # A linked list of the attempts of each entry, the first one first.
    for place in range(stop - 1, start - 1, -1):
        attempt = by_time[place]
        if assigned[attempt] != NONE:
            index = expected[assigned[attempt], Expected.FIRST_AT]
            following[attempt] = stacks[1, index]
            stacks[1, index] = attempt
    top = 0
    for place in range(last - 1, first - 1, -1):
        entry = by_message[place]
        if expected[entry, Expected.DELIVERED] > 1:
            stacks[0, top] = place
            top += 1
        elif expected[entry, Expected.DELIVERED] == 0 and top > 0:
            donor = stacks[0, top - 1]
            attempt = stacks[1, donor - first]
            stacks[1, donor - first] = following[attempt]
            assigned[attempt] = entry
            expected[entry, Expected.DELIVERED] = 1
            expected[by_message[donor], Expected.DELIVERED] -= 1
            if expected[by_message[donor], Expected.DELIVERED] == 1:
                top -= 1


@kernel
def number_attempts(expected: Grid, delivered: Grid, assigned: Ints, ordinals: Ints) -> None:
    """Count the attempts of each expected delivery, and fill their ordinals.

    Attempts are in the order of time among those of one topic and payload.
    """
    for entry in range(len(expected)):
        expected[entry, Expected.DELIVERED] = 0
    for attempt in range(len(delivered)):
        entry = assigned[attempt]
        if entry == NONE:
            continue
        ordinals[attempt] = expected[entry, Expected.DELIVERED]
        if ordinals[attempt] == 0:
            expected[entry, Expected.FIRST_AT] = delivered[attempt, Delivered.AT]
        expected[entry, Expected.DELIVERED] += 1


# --- what several pairings have in common ---------------------------------------------------


@kernel
def find_partners(
    starts: Ints, capacities: Ints, ats: Ints, runs: Grid, left: Ints, partners: Ints
) -> None:
    """Find the messages that attempts have in every pairing in order with the most pairs.

    A pairing that gives each attempt the earliest message left, and one that gives it the latest,
    are the limits of all. Up to the last attempt for which no message is left, any attempt may be
    the one without. Messages were sent at `starts` and have at most `capacities` attempts; attempts
    were made at `ats`. A row of `runs` has equal messages and their attempts, both in order: the
    first message, the end of them, the first attempt, the end of them, and the first attempt that
    may be of a message that is not among them. `left` is a buffer for each message. `partners` is
    filled for the attempts in runs: the index of the message, `NONE` if there was none before, or
    `SEVERAL`.
    """
    for run in range(len(runs)):
        first, last, start, stop = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 4]
        for message in range(first, last):
            left[message] = capacities[message]
        latest = last - 1
        for attempt in range(stop - 1, start - 1, -1):
            while latest >= first and (starts[latest] >= ats[attempt] or left[latest] == 0):
                latest -= 1
            partners[attempt] = NONE
            if latest >= first:
                partners[attempt] = latest
                left[latest] -= 1
        for message in range(first, last):
            left[message] = capacities[message]
        earliest, without = first, start
        for attempt in range(start, stop):
            while earliest < last and left[earliest] == 0:
                earliest += 1
            if earliest < last and starts[earliest] < ats[attempt]:
                left[earliest] -= 1
                if partners[attempt] != earliest:
                    partners[attempt] = SEVERAL
            elif first < last and starts[first] < ats[attempt]:
                without = attempt + 1
        for attempt in range(start, without):
            if starts[first] < ats[attempt]:
                partners[attempt] = SEVERAL
        for attempt in range(stop, runs[run, 3]):
            is_behind = first < last and starts[first] < ats[attempt]
            partners[attempt] = SEVERAL if is_behind else NONE


# --- verdicts -------------------------------------------------------------------------------


@inlined
def _put_row(
    rows: Grid, count: int, message: int, attempt: int, sub: int, verdict: int, entry: int
) -> int:
    """Write the row number `count` of `DeliveryRow`; return how many there are then."""
    rows[count, DeliveryRow.MESSAGE] = message
    rows[count, DeliveryRow.DELIVERED] = attempt
    rows[count, DeliveryRow.SUBSCRIPTION] = sub
    rows[count, DeliveryRow.VERDICT] = verdict
    rows[count, DeliveryRow.EXPECTED] = entry
    rows[count, DeliveryRow.CLIENT] = NONE
    return count + 1


@kernel
def find_verdicts(
    messages: Grid,
    subs: Grid,
    expected: Grid,
    expected_subs: Ints,
    delivered: Grid,
    assigned: Ints,
    ordinals: Ints,
    first_messages: Ints,
    first_expected: Ints,
    older_messages: Ints,
    confirmed: Ints,
    has_row: Ints,
    rows: Grid,
) -> int:
    """Fill the rows of all messages with their verdicts; return how many rows there are.

    `first_messages` and `first_expected` have the index of the first message and of the first
    expected delivery of each group. `older_messages` has the message of unexpected attempts on
    topics with subscriptions from before the capture, -1 without one, or `SEVERAL`; all others have
    -3. `confirmed` and `has_row`, [m], are -1 and 0 at the beginning and are filled: when the
    broker confirmed each message, and whether there is a row of it. `rows` is filled with columns
    of `DeliveryRow`.
    """
    count = 0
    for entry in range(len(expected)):
        message = expected[entry, Expected.MESSAGE]
        has_row[message] = 1
        if messages[message, Message.IS_REFUSED] > 0:
            continue
        accepted = messages[message, Message.ACCEPTED]
        if accepted != NONE and confirmed[message] == NONE:
            confirmed[message] = accepted
        # The delivery may be of an earlier message with the same payload.
        is_first = message == first_messages[messages[message, Message.GROUP]]
        if expected[entry, Expected.DELIVERED] > 0 and (accepted == NONE or is_first):
            first = expected[entry, Expected.FIRST_AT]
            if confirmed[message] == NONE or first < confirmed[message]:
                confirmed[message] = first
    for attempt in range(len(delivered)):
        entry = assigned[attempt]
        if entry != NONE:
            message = expected[entry, Expected.MESSAGE]
            one = _subscription(messages, subs, expected, expected_subs, entry, delivered, attempt)
            first_sub = expected_subs[expected[entry, Expected.FIRST]]
            copies = expected[entry, Expected.SUBSCRIPTIONS]
            if subs[first_sub, Subscription.IS_SHARED]:
                copies = 1
            verdict = _outcome(messages, message, delivered, attempt)
            if ordinals[attempt] >= copies:
                verdict = _DUPLICATE
            elif (
                verdict == _DELIVERED
                and messages[message, Message.HAS_OLDER]
                and messages[message, Message.COPIES] > 1
                and expected[entry, Expected.DELIVERED] < expected[entry, Expected.CAPACITY]
                and not _shows_all(subs, expected, expected_subs, entry)
            ):
                verdict = UNDECIDED
        else:
            message, verdict = _unexpected(
                messages, expected, delivered, attempt, first_messages, first_expected,
                older_messages[attempt],
            )  # fmt: skip
            if message != NONE:
                has_row[message] = 1
            one = NONE
        count = _put_row(rows, count, message, attempt, one, verdict, entry)
    for entry in range(len(expected)):
        if expected[entry, Expected.DELIVERED] > 0 or expected[entry, Expected.IS_SERVED]:
            continue
        message = expected[entry, Expected.MESSAGE]
        verdict = UNDECIDED
        first_sub = expected_subs[expected[entry, Expected.FIRST]]
        if messages[message, Message.IS_REFUSED] == 1:
            verdict = _REFUSED
        elif expected[entry, Expected.IS_UNSURE] or messages[message, Message.IS_REPEATED]:
            verdict = UNDECIDED
        elif confirmed[message] == NONE:
            verdict = messages[message, Message.UNCONFIRMED]
        elif (
            messages[message, Message.HAS_OLDER] and subs[first_sub, Subscription.IS_SHARED]
        ) or not subs[first_sub, Subscription.IS_OWED]:
            verdict = UNDECIDED
        elif _has_active(messages, subs, expected, expected_subs, entry, confirmed[message]):
            verdict = MISSED
        count = _put_row(rows, count, message, NONE, first_sub, verdict, entry)
    for message in range(len(messages)):
        if has_row[message]:
            continue
        verdict = _NO_SUBSCRIBER
        if messages[message, Message.IS_REFUSED] == 1:
            verdict = _REFUSED
        elif messages[message, Message.QOS] > 0 and messages[message, Message.ACCEPTED] == NONE:
            verdict = messages[message, Message.UNCONFIRMED]
        elif messages[message, Message.HAS_OLDER] or messages[message, Message.IS_LEFT_OUT]:
            verdict = UNDECIDED
        count = _put_row(rows, count, message, NONE, NONE, verdict, NONE)
    return count


@inlined
def _subscription(
    messages: Grid, subs: Grid, expected: Grid, expected_subs: Ints, entry: int, delivered: Grid,
    attempt: int,
) -> int:  # fmt: skip
    """Return the subscription of an attempt: by its identifier, else by QoS, else any.

    It is -1 if none fits, and it may be one that was not captured.
    """
    first = expected[entry, Expected.FIRST]
    identifier, name = delivered[attempt, Delivered.IDENTIFIER], delivered[attempt, Delivered.NAME]
    sent_at, came_at = (
        messages[expected[entry, Expected.MESSAGE], Message.QOS],
        delivered[attempt, Delivered.QOS],
    )
    own, fits = NONE, False
    for place in range(first, first + expected[entry, Expected.SUBSCRIPTIONS]):
        one = expected_subs[place]
        is_own = subs[one, Subscription.NAME] == name
        by_it = identifier != NONE and subs[one, Subscription.IDENTIFIER] == identifier
        if by_it and (is_own or not subs[one, Subscription.IS_SHARED]):
            return int(one)
        if is_own and not fits:
            fits = min(sent_at, subs[one, Subscription.QOS]) == came_at
            if fits or own == NONE:
                own = one
    if own == NONE:
        own = expected_subs[first]
    return int(own) if fits or subs[own, Subscription.IS_WHOLE] else NONE


@inlined
def _shows_all(subs: Grid, expected: Grid, expected_subs: Ints, entry: int) -> bool:
    """Return whether all packets to the clients of an expected delivery were captured."""
    first = expected[entry, Expected.FIRST]
    for place in range(first, first + expected[entry, Expected.SUBSCRIPTIONS]):
        if not subs[expected_subs[place], Subscription.IS_WHOLE]:
            return False
    return True


@inlined
def _unexpected(
    messages: Grid, expected: Grid, delivered: Grid, attempt: int, first_messages: Ints,
    first_expected: Ints, older_message: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the message and the verdict of an unexpected attempt."""
    group = delivered[attempt, Delivered.GROUP]
    message = NONE
    has_older = older_message != NO_OLDER
    first, last = first_messages[group], first_messages[group + 1]
    setter = delivered[attempt, Delivered.SETTER]
    if older_message == SEVERAL:
        return int(message), _outcome(messages, message, delivered, attempt)
    if setter != NONE:
        for one in range(first, last):
            if messages[one, Message.SENT] == setter:
                message = one
    elif delivered[attempt, Delivered.IS_LIVE] and has_older:
        message = older_message
    elif delivered[attempt, Delivered.IS_LIVE]:
        at = delivered[attempt, Delivered.AT]
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if messages[middle, Message.START] < at:
                low = middle + 1
            else:
                high = middle
        if low > first:
            message = low - 1
    verdict = _outcome(messages, message, delivered, attempt)
    if delivered[attempt, Delivered.IS_EXTRA] and verdict == _DELIVERED:
        return int(message), _DUPLICATE
    if message == NONE:
        return int(message), int(verdict)
    if has_older and verdict == _DELIVERED and messages[message, Message.COPIES] > 1:
        return int(message), UNDECIDED
    if delivered[attempt, Delivered.IS_LIVE]:
        for entry in range(first_expected[group], first_expected[group + 1]):
            if expected[entry, Expected.NAME] == delivered[attempt, Delivered.NAME]:
                verdict = UNDECIDED if has_older else _DUPLICATE
    return int(message), int(verdict)


@inlined
def _outcome(messages: Grid, message: int, delivered: Grid, attempt: int) -> int:
    """Return the verdict of an attempt."""
    verdict = delivered[attempt, Delivered.OUTCOME]
    is_closed = verdict in (_DELIVERED, _LOST_ACK) and message != NONE
    if is_closed and messages[message, Message.IS_REPEATED] and messages[message, Message.QOS] == 1:
        return int(UNDECIDED)  # Its first copy may have been delivered before; at QoS 2 one is.
    return int(verdict)


@inlined
def _has_active(
    messages: Grid,
    subs: Grid,
    expected: Grid,
    expected_subs: Ints,
    entry: int,
    confirmed: int,
) -> bool:
    """Return whether a subscription was active from before a message until its confirmation."""
    start = messages[expected[entry, Expected.MESSAGE], Message.START]
    first = expected[entry, Expected.FIRST]
    for place in range(first, first + expected[entry, Expected.SUBSCRIPTIONS]):
        one = expected_subs[place]
        leaving = subs[one, Subscription.LEAVING]
        if subs[one, Subscription.GRANTED] < start and (leaving == NONE or confirmed < leaving):
            return True
    return False
