"""Expected deliveries: the subscriptions that a message has to be delivered to.

Axes: m = messages; u = subscriptions; e = expected deliveries, each of a message to a client or a
group. Positions are ranks: the smaller of two is the earlier, and -1 is none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Grid32 as Grid
from wireyard.arrays import Ints

NONE: Final = -1


class Message(IntEnum):
    """Columns of a message that was sent, or of a published will."""

    GROUP = 0
    """Number of its topic and payload together."""
    TOPIC = 1
    SENT = 2
    START = 3
    """Position from which it can be delivered."""
    ACCEPTED = 4
    NAME = 5
    """Number of the name of the client that sent it."""
    QOS = 6
    RETAIN = 7
    COPIES = 8
    IS_REFUSED = 9
    """Whether it was refused: 1 with a reason code, 2 because it is malformed."""
    IS_REPEATED = 10
    HAS_OLDER = 11
    """Whether there may be subscriptions to its topic that were not captured."""
    UNCONFIRMED = 12
    """Its verdict if nothing shows that the broker accepted it."""
    IS_LEFT_OUT = 13
    """Whether some of its subscriptions are above a limit."""
    IS_AGAIN = 14
    """Whether its client sent it again."""


class Subscription(IntEnum):
    """Columns of a subscription.

    `BEGINS` and `ENDS` are twice a rank, and one more for an end.
    """

    BEGINS = 0
    ENDS = 1
    GRANTED = 2
    LEAVING = 3
    NAME = 4
    """Number of the client's name."""
    SERVED_AS = 5
    """Number of the name that messages are delivered to: the client's, or the shared filter."""
    FILTER = 6
    IS_SHARED = 7
    QOS = 8
    RETAIN_AS_PUBLISHED = 9
    NO_LOCAL = 10
    IDENTIFIER = 11
    IS_OWED = 12
    """Whether it has the same meaning for every broker."""
    IS_WHOLE = 13
    """Whether all packets to its client were captured."""


class Expected(IntEnum):
    """Columns of an expected delivery."""

    MESSAGE = 0
    NAME = 1
    FIRST = 2
    """Index of its first subscription in the array of all."""
    SUBSCRIPTIONS = 3
    CAPACITY = 4
    """The most copies there may be."""
    RETAIN = 5
    QOS = 6
    """Bit set of the QoS values that it may be delivered with."""
    DELIVERED = 7
    """The number of its attempts."""
    FIRST_AT = 8
    """Position of its first attempt."""
    IS_UNSURE = 9
    """Whether an attempt may be of this message or of another one."""
    IS_SERVED = 10
    """Of a group: whether a member got the message in another way."""


@inlined
def _is_active(subs: Grid, one: int, position: int) -> bool:
    after = 2 * position + 1
    ends = subs[one, Subscription.ENDS]
    return bool(subs[one, Subscription.BEGINS] < after and (ends == NONE or after <= ends))


@inlined
def _matches(messages: Grid, message: int, subs: Grid, one: int) -> int:
    """Return 1 if a subscription is active when a message is sent, 2 if only at its acceptance."""
    if (
        subs[one, Subscription.NO_LOCAL]
        and subs[one, Subscription.NAME] == messages[message, Message.NAME]
    ):
        return 0
    if _is_active(subs, one, messages[message, Message.START]):
        return 1
    accepted = messages[message, Message.ACCEPTED]
    if accepted > messages[message, Message.START] and _is_active(subs, one, accepted):
        return 2
    return 0


@kernel
def count_expected(messages: Grid, subs: Grid, firsts: Ints, matching: Ints) -> int:
    """Count the pairs of a message and an active subscription that matches it.

    The subscriptions that match topic t are ``matching[firsts[t]:firsts[t + 1]]``.
    """
    count = 0
    for message in range(len(messages)):
        topic = messages[message, Message.TOPIC]
        for place in range(firsts[topic], firsts[topic + 1]):
            count += _matches(messages, message, subs, matching[place]) > 0
    return count


@kernel
def find_expected(
    messages: Grid,
    subs: Grid,
    firsts: Ints,
    matching: Ints,
    filters: Ints,
    expected: Grid,
    expected_subs: Ints,
    attempts: Grid,
    most: int,
    names: Grid,
    latest: Ints,
    scratch: Ints,
) -> int:
    """Find the clients and groups that should get each message; return how many there are.

    `filters` has a number for the client and the filter of each subscription. `expected` is filled
    with columns of `Expected`, `expected_subs` with the subscriptions of each. `attempts` has for
    each delivery attempt its group, ascending, and the number of the client's name. `most` is the
    most pairs of a message and a subscription; of those above, only as many as there were attempts
    to the client are found, and their messages get `Message.IS_LEFT_OUT`. The rest are buffers:
    `names` with an element for each name, -1 and 0 at the beginning; `latest` for each number of
    `filters`, -1 at the beginning, the latest message of it; `scratch` for as many subscriptions as
    match one topic.
    """
    count = used = attempt = 0
    group = NONE
    for message in range(len(messages)):
        topic, first = messages[message, Message.TOPIC], count
        begin = used
        if messages[message, Message.GROUP] != group:
            before = attempt
            while before > 0 and attempts[before - 1, 0] == group:
                before -= 1
                names[1, attempts[before, 1]] = 0
            group = messages[message, Message.GROUP]
            while attempt < len(attempts) and attempts[attempt, 0] <= group:
                if attempts[attempt, 0] == group:
                    names[1, attempts[attempt, 1]] += 1
                attempt += 1
        # First those that were active when the message was sent, then those only at its acceptance.
        for phase in range(1, 3):
            for place in range(firsts[topic], firsts[topic + 1]):
                one = matching[place]
                if _matches(messages, message, subs, one) != phase:
                    continue
                if phase > 1 and latest[filters[one]] == message:
                    continue
                name = subs[one, Subscription.SERVED_AS]
                if used >= most:
                    client = subs[one, Subscription.NAME]
                    if names[1, client] == 0 or names[0, name] >= first:
                        messages[message, Message.IS_LEFT_OUT] = 1
                        continue
                    names[1, client] -= 1
                if names[0, name] < first:
                    names[0, name] = count
                    _begin(messages, message, subs, one, expected, count)
                    count += 1
                _add(messages, message, subs, one, expected, names[0, name])
                expected_subs[used] = one
                latest[filters[one]] = message
                used += 1
        if count - first < used - begin:
            _group_by_name(subs, expected, expected_subs, begin, used, first, count, names, scratch)
        else:
            for entry in range(first, count):
                expected[entry, Expected.FIRST] = begin + entry - first
    return count


@inlined
def _begin(messages: Grid, message: int, subs: Grid, one: int, expected: Grid, entry: int) -> None:
    expected[entry, Expected.MESSAGE] = message
    expected[entry, Expected.NAME] = subs[one, Subscription.SERVED_AS]
    expected[entry, Expected.SUBSCRIPTIONS] = 0
    expected[entry, Expected.CAPACITY] = 0
    expected[entry, Expected.RETAIN] = 0
    expected[entry, Expected.QOS] = 0
    expected[entry, Expected.DELIVERED] = 0
    expected[entry, Expected.FIRST_AT] = NONE
    expected[entry, Expected.IS_UNSURE] = 0
    expected[entry, Expected.IS_SERVED] = 0


@inlined
def _add(messages: Grid, message: int, subs: Grid, one: int, expected: Grid, entry: int) -> None:
    expected[entry, Expected.SUBSCRIPTIONS] += 1
    copies = messages[message, Message.COPIES]
    if not subs[one, Subscription.IS_SHARED] or expected[entry, Expected.CAPACITY] == 0:
        expected[entry, Expected.CAPACITY] += copies
    if messages[message, Message.RETAIN] and subs[one, Subscription.RETAIN_AS_PUBLISHED]:
        expected[entry, Expected.RETAIN] = 1
    qos = min(messages[message, Message.QOS], subs[one, Subscription.QOS])
    expected[entry, Expected.QOS] |= 1 << qos


@inlined
def _group_by_name(
    subs: Grid, expected: Grid, expected_subs: Ints, begin: int, used: int, first: int, count: int,
    names: Grid, scratch: Ints,
) -> None:  # fmt: skip
    """Sort the subscriptions of one message by expected delivery; the sort is stable."""
    at = begin
    for entry in range(first, count):
        expected[entry, Expected.FIRST] = at
        at += expected[entry, Expected.SUBSCRIPTIONS]
    for place in range(begin, used):
        scratch[place - begin] = expected_subs[place]
    for place in range(used - begin):
        entry = names[0, subs[scratch[place], Subscription.SERVED_AS]]
        # Until all have their places, this is the number of those that have.
        expected_subs[expected[entry, Expected.FIRST] + expected[entry, Expected.DELIVERED]] = (
            scratch[place]
        )
        expected[entry, Expected.DELIVERED] += 1
    for entry in range(first, count):
        expected[entry, Expected.DELIVERED] = 0
