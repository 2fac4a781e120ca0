"""The input of the delivery kernels: grids of integers, grouped by topic and payload.

The kernels are in `expected_kernels` and `delivery_kernels`, which also define the columns of the
grids.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bools, Grid, Ints
from wireyard.layers.grouping import by_group, dense_ids
from wireyard.layers.mqtt import delivery_kernels as kernels
from wireyard.layers.mqtt.delivery_kernels import NO_OLDER, SEVERAL, VERDICT_NAMES, Delivered
from wireyard.layers.mqtt.expected_kernels import Expected, Message, Subscription
from wireyard.layers.mqtt.grids import NONE, Status
from wireyard.layers.mqtt.numbering import Numbers
from wireyard.layers.mqtt.packets import NO_TIME
from wireyard.layers.mqtt.records import Subscribed
from wireyard.layers.mqtt.topics import OWN_PREFIXES

__all__ = [
    "NO_INTS",
    "DeliveredColumns",
    "SentColumns",
    "assign_all",
    "assign_retained",
    "delivered_grid",
    "group_contents",
    "group_starts",
    "mark_served",
    "message_grid",
    "older_messages",
    "subscription_grid",
]

_REFUSED, _MALFORMED = 1, 2
_EARLY_NS: Final = 5_000_000
"""Most by which packets of several connections are captured out of order: less than it takes to
send a segment again."""
_SIDES: Final = ("left", "right")
_OF_RETAINED: Final = [Delivered.NAME, Delivered.AT, Delivered.SETTER, Delivered.GROUP]
NO_INTS: Final[Ints] = np.zeros(0, np.int64)


@dataclass(slots=True)
class SentColumns:
    """Messages that clients sent, and published wills, as columns."""

    sent: Ints
    accepted: Ints
    released: Ints
    """Numbers of positions, like those before and `start`."""
    start: Ints
    topic: Ints
    content: Grid
    client: Ints
    qos: Ints
    retain: Ints
    copies: Ints
    refused: Ints
    """Reason code; -1 if it was not refused."""
    malformed: Ints
    is_repeated: Ints
    is_received: Ints
    is_unseen: Ints
    is_will: Ints
    expires_s: Ints


@dataclass(slots=True)
class DeliveredColumns:
    """Delivery attempts as columns."""

    at: Ints
    topic: Ints
    content: Grid
    client: Ints
    qos: Ints
    retain: Ints
    is_acknowledged: Ints
    copies: Ints
    refused: Ints
    status: Ints
    identifier: Ints
    is_live: Ints
    may_be_live: Ints
    is_extra: Ints
    setter: Ints
    expires_s: Ints
    acknowledged_ns: Ints
    acknowledged_frame: Ints
    several: Mapping[int, Sequence[int]]
    """By row, the subscription identifiers of the attempts that have several."""


def subscription_grid(
    subs: Sequence[Subscribed], positions: Sequence[Sequence[int]], ranks: Ints,
    names: Numbers[Any], damaged: Set[tuple[str, str, str]],
) -> Grid:  # fmt: skip
    """Return subscriptions as columns of `Subscription`.

    Parameters
    ----------
    damaged
        Source, server and name of the clients of which packets were not captured.
    positions
        For each the numbers of `asked`, `granted`, `leaving` and of the end; then 1 if that is an
        end, 0 if it is the beginning of a newer subscription.
    """
    grid = np.empty((len(subs), len(Subscription)), np.int64)
    filters = Numbers[str]()
    for row, one, (asked, granted, leaving, end, ends) in zip(grid, subs, positions, strict=True):
        broker = one.client[:2]
        row[Subscription.BEGINS] = 2 * ranks[asked]
        row[Subscription.ENDS] = NONE if end == NONE else 2 * ranks[end] + ends
        row[Subscription.GRANTED], row[Subscription.LEAVING] = ranks[granted], ranks[leaving]
        row[Subscription.NAME] = names[*broker, one.client.name]
        row[Subscription.SERVED_AS] = names[*broker, one.served_as]
        row[Subscription.FILTER] = filters[one.filter]
        row[Subscription.IS_SHARED] = bool(one.group)
        row[Subscription.IS_OWED] = one.group not in OWN_PREFIXES
        row[Subscription.QOS] = one.qos
        row[Subscription.RETAIN_AS_PUBLISHED] = one.retain_as_published
        row[Subscription.NO_LOCAL] = one.no_local
        row[Subscription.IS_WHOLE] = one.known and one.client[:3] not in damaged
        row[Subscription.IDENTIFIER] = NONE if one.identifier is None else one.identifier
    return grid


def group_contents(
    sent: SentColumns, delivered: DeliveredColumns, by_start: Ints, by_at: Ints
) -> tuple[tuple[Ints, Ints, int], Ints, Ints]:
    """Group messages and attempts by topic and payload; keep their order within each group.

    Returns
    -------
    groups, messages, deliveries
        The group of each message and of each attempt, and the number of groups; then the order of
        the messages and of the attempts.
    """
    topic = np.concatenate((sent.topic[by_start], delivered.topic[by_at]))
    content = np.concatenate((sent.content[by_start], delivered.content[by_at]))
    number, count = dense_ids(topic, content[:, 0], content[:, 1])
    order, _ = by_group(number, count)
    group = number[order].astype(np.int64)
    is_message = order < len(by_start)
    messages, deliveries = by_start[order[is_message]], by_at[order[~is_message] - len(by_start)]
    return (group[is_message], group[~is_message], count), messages, deliveries


def message_grid(
    sent: SentColumns, order: Ints, groups: tuple[Ints, Ints, int], ranks: Ints, client_names: Ints
) -> Grid:
    """Return messages, in the given order, as columns of `Message`."""
    grid = np.empty((len(order), len(Message)), np.int64)
    grid[:, Message.GROUP] = groups[0]
    grid[:, Message.TOPIC] = sent.topic[order]
    grid[:, Message.SENT] = ranks[sent.sent[order]]
    grid[:, Message.START] = ranks[sent.start[order]]
    grid[:, Message.ACCEPTED] = ranks[sent.accepted[order]]
    grid[:, Message.NAME] = client_names[sent.client[order]]
    grid[:, Message.QOS] = sent.qos[order]
    grid[:, Message.RETAIN] = sent.retain[order]
    grid[:, Message.COPIES] = sent.copies[order]
    grid[:, Message.IS_REPEATED] = sent.is_repeated[order]
    grid[:, Message.UNCONFIRMED] = _unconfirmed(sent, order)
    grid[:, Message.IS_LEFT_OUT] = 0
    refused = sent.refused[order] != NONE
    grid[:, Message.IS_REFUSED] = np.where(
        refused, _REFUSED, np.where(sent.malformed[order] != 0, _MALFORMED, 0)
    )
    return grid


def _unconfirmed(sent: SentColumns, order: Ints) -> Ints:
    """Return the verdict of each message if nothing shows that the broker accepted it."""
    unaccepted, unreleased, undecided = map(
        VERDICT_NAMES.index, ("unaccepted", "unreleased", "undecided")
    )
    is_released = sent.released[order] != NONE
    received = np.where(is_released, undecided, unreleased)
    verdicts = np.where(sent.is_received[order] != 0, received, unaccepted)
    return np.where(sent.is_unseen[order] != 0, undecided, verdicts)


def delivered_grid(
    delivered: DeliveredColumns,
    order: Ints,
    groups: tuple[Ints, Ints, int],
    ranks: Ints,
    names: Ints,
) -> Grid:
    """Return attempts, in the given order, as columns of `Delivered`."""
    grid = np.empty((len(order), len(Delivered)), np.int64)
    grid[:, Delivered.GROUP] = groups[1]
    grid[:, Delivered.AT] = ranks[delivered.at[order]]
    grid[:, Delivered.NAME] = names[delivered.client[order]]
    grid[:, Delivered.QOS] = delivered.qos[order]
    grid[:, Delivered.RETAIN] = delivered.retain[order]
    grid[:, Delivered.IS_LIVE] = delivered.is_live[order]
    grid[:, Delivered.MAY_BE_LIVE] = delivered.may_be_live[order]
    grid[:, Delivered.IS_EXTRA] = delivered.is_extra[order]
    grid[:, Delivered.IDENTIFIER] = delivered.identifier[order]
    grid[:, Delivered.SETTER] = ranks[delivered.setter[order]]
    is_open = (delivered.qos[order] > 0) & (delivered.is_acknowledged[order] == 0)
    status = delivered.status[order]
    verdicts = {name: VERDICT_NAMES.index(name) for name in VERDICT_NAMES}
    finished = np.where(status & Status.LOST_ACK != 0, verdicts["lost_ack"], verdicts["delivered"])
    unfinished = np.where(
        status & Status.ABANDONED != 0, verdicts["abandoned"], verdicts["in_flight"]
    )
    unfinished = np.where(status & Status.UNTRACED != 0, verdicts["undecided"], unfinished)
    outcome = np.where(is_open, unfinished, finished)
    refused = delivered.refused[order] != NONE
    grid[:, Delivered.OUTCOME] = np.where(refused, verdicts["refused_by_client"], outcome)
    return grid


def group_starts(sorted_groups: Ints, groups: tuple[Ints, Ints, int]) -> Ints:
    """Return the index at which each group begins, and the end, in an ascending array of groups."""
    return np.searchsorted(sorted_groups, np.arange(groups[2] + 1))


class Assigned(NamedTuple):
    """For each delivery attempt, the expected delivery that it belongs to."""

    entries: Ints
    """The expected delivery, or -1."""
    ordinals: Ints
    """The number among the attempts of that."""
    is_unsure: Bools
    """Whether it may belong to several expected deliveries."""
    is_early: Bools
    """Whether it was captured before its message."""
    times_ns: tuple[Ints, Ints]
    """Of the messages and of the attempts."""


def assign_all(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    names: Numbers[Any], times_ns: tuple[Ints, Ints],
) -> Assigned:  # fmt: skip
    """Assign delivery attempts to expected deliveries.

    Parameters
    ----------
    times_ns
        Of the messages and of the attempts.
    """
    first_subs = expected_subs[expected[:, Expected.FIRST]] if len(expected) else NO_INTS
    is_shared = subs[first_subs, Subscription.IS_SHARED] == 1
    own, live = np.flatnonzero(~is_shared), np.flatnonzero(delivered[:, Delivered.IS_LIVE] == 1)
    count = 2 * max(len(names.all), 1)
    group = messages[expected[own, Expected.MESSAGE], Message.GROUP]
    keys = group * count + 2 * expected[own, Expected.NAME] + expected[own, Expected.RETAIN]
    order = np.argsort(keys, kind="stable")
    attempt_keys = delivered[live, Delivered.GROUP] * count + 2 * delivered[live, Delivered.NAME]
    attempt_keys += delivered[live, Delivered.RETAIN]
    attempt_order = np.argsort(attempt_keys, kind="stable")
    assigned = Assigned(
        np.full(len(delivered), NONE, np.int64),
        np.zeros(len(delivered), np.int64),
        np.zeros(len(delivered), np.bool_),
        np.zeros(len(delivered), np.bool_),
        times_ns,
    )
    buffers = np.empty(len(delivered), np.int64), np.empty((3, max(len(expected), 1)), np.int64)
    _assign_keyed(
        messages, expected, (keys[order], own[order]), delivered,
        (attempt_keys[attempt_order], live[attempt_order]), assigned, buffers,
    )  # fmt: skip
    if is_shared.any():
        _assign_shared(
            messages, expected, expected_subs, subs, delivered, is_shared, assigned, buffers
        )
    _assign_other_flags(messages, expected, own, delivered, assigned)
    kernels.number_attempts(expected, delivered, assigned.entries, assigned.ordinals)
    return assigned


def _assign_other_flags(
    messages: Grid, expected: Grid, own: Ints, delivered: Grid, assigned: Assigned
) -> None:
    """Assign attempts at messages with RETAIN that came with another flag than was expected.

    Where some of a client's subscriptions have Retain As Published, either flag may come. Messages
    without an attempt come first, and of these the latest one.
    """
    count = expected[own, Expected.DELIVERED]
    is_open = messages[expected[own, Expected.MESSAGE], Message.RETAIN] == 1
    is_open &= count < expected[own, Expected.CAPACITY]
    left = (delivered[:, Delivered.IS_LIVE] == 1) & (assigned.entries == NONE)
    left &= ~assigned.is_unsure
    if not (is_open.any() and left.any()):
        return
    entries: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for entry in own[is_open].tolist():
        group = int(messages[expected[entry, Expected.MESSAGE], Message.GROUP])
        entries[group, int(expected[entry, Expected.NAME])].append(entry)
    attempts: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for attempt in np.flatnonzero(left).tolist():
        group, name = delivered[attempt, [Delivered.GROUP, Delivered.NAME]].tolist()
        if (group, name) in entries:
            attempts[group, name].append(attempt)
    for key, of_key in attempts.items():
        _assign_latest(messages, expected, entries[key], delivered, of_key, assigned)


def _assign_latest(
    messages: Grid, expected: Grid, entries: list[int], delivered: Grid, attempts: list[int],
    assigned: Assigned,
) -> None:  # fmt: skip
    """Assign attempts in order to the latest entries before them; see `_assign_other_flags`."""
    starts = messages[expected[entries, Expected.MESSAGE], Message.START].tolist()
    following = deque(sorted(zip(starts, entries, strict=True)))
    fresh: list[tuple[int, int]] = []
    again: list[tuple[int, int]] = []
    for attempt in attempts:
        while following and following[0][0] < delivered[attempt, Delivered.AT]:
            start, entry = following.popleft()
            heappush(again if expected[entry, Expected.DELIVERED] else fresh, (-start, entry))
        if not (fresh or again):
            continue
        _, entry = (fresh or again)[0]
        is_older = messages[expected[entry, Expected.MESSAGE], Message.HAS_OLDER]
        if is_older and len(fresh) + len(again) > 1:
            assigned.is_unsure[attempt] = True
            expected[[one for _, one in fresh], Expected.IS_UNSURE] = 1
            continue
        place = heappop(fresh or again)
        assigned.entries[attempt] = entry
        expected[entry, Expected.DELIVERED] += 1
        if expected[entry, Expected.DELIVERED] < expected[entry, Expected.CAPACITY]:
            heappush(again, place)


def mark_served(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid, assigned: Ints
) -> None:
    """Mark the groups without an attempt of which a member got the message in another way."""
    if not len(expected):
        return
    shared = subs[expected_subs[expected[:, Expected.FIRST]], Subscription.IS_SHARED] == 1
    missing = np.flatnonzero(shared & (expected[:, Expected.DELIVERED] == 0))
    attempts = np.flatnonzero(assigned != NONE)
    if not (len(missing) and len(attempts)):
        return
    names = int(max(subs[:, Subscription.NAME].max(), delivered[:, Delivered.NAME].max())) + 1
    got = expected[assigned[attempts], Expected.MESSAGE] * names
    got += delivered[attempts, Delivered.NAME]
    counts = expected[missing, Expected.SUBSCRIPTIONS]
    firsts = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) + np.repeat(expected[missing, Expected.FIRST] - firsts, counts)
    members = subs[expected_subs[places], Subscription.NAME]
    wanted = np.repeat(expected[missing, Expected.MESSAGE] * names, counts) + members
    is_served = np.logical_or.reduceat(np.isin(wanted, got), firsts)
    expected[missing[is_served], Expected.IS_SERVED] = 1


def _assign_shared(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    is_shared: Bools, assigned: Assigned, buffers: tuple[Ints, Grid],
) -> None:  # fmt: skip
    """Assign to groups the attempts that no subscription of the member itself accounts for."""
    by_group: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
    for entry in np.flatnonzero(is_shared).tolist():
        group = int(messages[expected[entry, Expected.MESSAGE], Message.GROUP])
        by_group[group].setdefault(int(expected[entry, Expected.NAME]), []).append(entry)
    bounds = np.searchsorted(delivered[:, Delivered.GROUP], [[one, one + 1] for one in by_group])
    for sharing, (start, stop) in zip(by_group.values(), bounds.tolist(), strict=True):
        for entries in sharing.values():
            is_left = (assigned.entries[start:stop] == NONE) & ~assigned.is_unsure[start:stop]
            rest = start + np.flatnonzero(is_left)
            members: set[int] = set()
            for entry in entries:
                first = expected[entry, Expected.FIRST]
                own = expected_subs[first : first + expected[entry, Expected.SUBSCRIPTIONS]]
                members.update(subs[own, Subscription.NAME].tolist())
            of_members = rest[np.isin(delivered[rest, Delivered.NAME], list(members))]
            _assign_keyed(
                messages, expected, (np.zeros(len(entries), np.int64), np.array(entries, np.int64)),
                delivered, (np.zeros(len(of_members), np.int64), of_members), assigned, buffers,
            )  # fmt: skip


def _assign_keyed(
    messages: Grid, expected: Grid, entries: tuple[Ints, Ints], delivered: Grid,
    attempts: tuple[Ints, Ints], assigned: Assigned, buffers: tuple[Ints, Grid],
) -> None:  # fmt: skip
    """Assign attempts to expected deliveries with the same key: see `kernels.assign`."""
    kernels.assign(messages, expected, *entries, delivered, *attempts, assigned.entries, *buffers)
    has_older = messages[expected[entries[1], Expected.MESSAGE], Message.HAS_OLDER] == 1
    if has_older.any():
        older = entries[0][has_older], entries[1][has_older]
        _release_unsure(messages, expected, older, delivered, attempts, assigned)
    if not has_older.all():
        whole = entries[0][~has_older], entries[1][~has_older]
        _assign_early(messages, expected, whole, delivered, attempts, assigned, buffers)


def _assign_early(
    messages: Grid, expected: Grid, entries: tuple[Ints, Ints], delivered: Grid,
    attempts: tuple[Ints, Ints], assigned: Assigned, buffers: tuple[Ints, Grid],
) -> None:  # fmt: skip
    """Assign attempts again where some were captured a little before their messages.

    That is so where an attempt has no message, and an equal one follows a moment later.
    """
    (keys, order), (attempt_keys, by_time) = entries, attempts
    sent_ns, at_ns = assigned.times_ns
    is_left = (assigned.entries[by_time] == NONE) & np.isin(attempt_keys, keys)
    for key in np.unique(attempt_keys[is_left]).tolist():
        of_key = order[slice(*np.searchsorted(keys, [key, key + 1]).tolist())]
        own = by_time[slice(*np.searchsorted(attempt_keys, [key, key + 1]).tolist())]
        numbers = expected[of_key, Expected.MESSAGE]
        starts, ats = messages[numbers, Message.START], delivered[own, Delivered.AT]
        # The first attempt from a moment before each message.
        first = np.searchsorted(at_ns[own], sent_ns[numbers] - _EARLY_NS)
        is_timed = sent_ns[numbers] != NO_TIME
        earliest = np.where(is_timed & (first < len(own)), ats.take(first, mode="clip") - 1, starts)
        left = ats[assigned.entries[own] == NONE]
        following = np.searchsorted(starts, left, "right")
        left, following = left[following < len(starts)], following[following < len(starts)]
        if not (earliest[following] < left).any():
            continue
        assigned.entries[own] = NONE
        expected[of_key, Expected.DELIVERED] = 0
        messages[numbers, Message.START] = np.minimum(starts, earliest)
        kernels.assign(
            messages, expected, np.zeros_like(of_key), of_key, delivered, np.zeros_like(own), own,
            assigned.entries, *buffers,
        )  # fmt: skip
        messages[numbers, Message.START] = starts
        found = own[assigned.entries[own] != NONE]
        start = messages[expected[assigned.entries[found], Expected.MESSAGE], Message.START]
        assigned.is_early[found] = delivered[found, Delivered.AT] < start


def _release_unsure(
    messages: Grid, expected: Grid, entries: tuple[Ints, Ints], delivered: Grid,
    attempts: tuple[Ints, Ints], assigned: Assigned,
) -> None:  # fmt: skip
    """Take back the attempts that may belong to several expected deliveries.

    Where packets may be missing, equal messages have several pairings with their attempts. Only
    what all of them have in common is certain.
    """
    (entry_keys, order), (attempt_keys, by_time) = entries, attempts
    keys = np.unique(entry_keys)
    bounds = [
        np.searchsorted(of, keys, side) for of in (entry_keys, attempt_keys) for side in _SIDES
    ]
    starts = messages[expected[order, Expected.MESSAGE], Message.START]
    ats = delivered[by_time, Delivered.AT]
    partners = np.full(len(by_time), NONE, np.int64)
    runs = _runs(bounds, delivered[by_time])
    kernels.find_partners(
        starts, expected[order, Expected.CAPACITY], ats, runs, np.empty_like(order), partners
    )
    places = np.flatnonzero(np.isin(attempt_keys, keys))
    partner, own = partners[places], assigned.entries[by_time[places]]
    is_unsure = partner == SEVERAL
    is_unsure |= (partner >= 0) & (order[np.maximum(partner, 0)] != own)
    assigned.is_unsure[by_time[places[is_unsure]]] = True
    assigned.entries[by_time[places[is_unsure]]] = NONE
    # A message without an attempt of its own may have any of the later ones that are not certain.
    latest = np.full(len(keys), NONE, np.int64)
    unsure = places[is_unsure]
    np.maximum.at(latest, np.searchsorted(keys, attempt_keys[unsure]), ats[unsure])
    is_open = starts < latest[np.searchsorted(keys, entry_keys)]
    is_open &= ~np.isin(order, own[~is_unsure])
    expected[order, Expected.IS_UNSURE] = is_open


def _runs(bounds: Sequence[Ints], delivered: Grid) -> Grid:
    """Return the rows of `find_partners`, given the first four columns.

    A payload that was sent once and delivered once is taken for one that is not sent again.
    """
    first, last, start, stop = bounds
    lack = np.concatenate(([0], np.cumsum(delivered[:, Delivered.LACKS_EQUALS])))
    is_once = (last - first <= 1) & (stop - start <= 1)
    return np.stack((*bounds, np.where(is_once, stop, stop - lack[stop] + lack[start])), 1)


def assign_retained(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, delivered: Grid,
    assigned: Ints, matching: Callable[[int], Ints],
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Assign deliveries with RETAIN that are no retained values; yield each with its subscription.

    A broker has to forward a message without RETAIN to a subscription that was there before. Where
    nothing else was delivered, and no newer subscription may be why, the one with RETAIN counts.
    With Retain As Published that is right, and the subscription is -1.

    Parameters
    ----------
    matching
        Returns the subscriptions that match a topic.
    """
    open_ones = (delivered[:, Delivered.IS_LIVE] == 0) & (delivered[:, Delivered.MAY_BE_LIVE] == 0)
    places = np.flatnonzero(open_ones & (assigned == NONE))
    if not len(places) or not len(expected):
        return
    is_shared = subs[expected_subs[expected[:, Expected.FIRST]], Subscription.IS_SHARED] != 0
    groups = messages[expected[:, Expected.MESSAGE], Message.GROUP]
    missing: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for entry in np.flatnonzero(~is_shared & (expected[:, Expected.DELIVERED] == 0)).tolist():
        missing[int(expected[entry, Expected.NAME]), int(groups[entry])].append(entry)
    for place in places.tolist():
        name, at, setter, group = delivered[place, _OF_RETAINED].tolist()
        entries = [
            entry
            for entry in missing.get((name, group), ())
            if _may_be(messages[expected[entry, Expected.MESSAGE]], at, setter)
        ]
        if not entries:
            continue
        entry = entries[-1]
        message = expected[entry, Expected.MESSAGE]
        start, first = messages[message, Message.START], expected[entry, Expected.FIRST]
        own = expected_subs[first : first + expected[entry, Expected.SUBSCRIPTIONS]]
        own = own[subs[own, Subscription.GRANTED] < start]
        others = subs[matching(int(messages[message, Message.TOPIC]))]
        others = others[others[:, Subscription.NAME] == name, Subscription.BEGINS]
        if not len(own) or ((2 * start < others) & (others < 2 * at)).any():
            continue
        missing[name, group].remove(entry)
        expected[entry, [Expected.DELIVERED, Expected.FIRST_AT]] = 1, at
        delivered[place, Delivered.IS_LIVE] = 1
        assigned[place] = entry
        yield place, NONE if expected[entry, Expected.RETAIN] else int(own[0])


def _may_be(message: Ints, at: int, setter: int) -> bool:
    """Return whether a delivery with RETAIN may be of a message, given where its value was set."""
    if setter != NONE:
        return bool(message[Message.SENT] == setter and message[Message.START] < at)
    return bool(message[Message.START] < at and not message[Message.HAS_OLDER])


def older_messages(
    messages: Grid, expected: Grid, delivered: Grid, assigned: Assigned, first_messages: Ints
) -> tuple[Ints, Ints]:
    """Find the messages of unexpected attempts where subscriptions may not have been captured.

    A client whose subscriptions were not captured is assumed to get a message as often as it was
    sent. An attempt that is left over is of a message from before the capture.

    Returns
    -------
    message_of, open_messages
        For each attempt the message, -1 without one, `SEVERAL` if it may be of several, or
        `NO_OLDER` if all subscriptions are known; and the messages that such an attempt may be of.
    """
    message_of = np.full(len(delivered), NO_OLDER, np.int64)
    open_messages = [expected[expected[:, Expected.IS_UNSURE] == 1, Expected.MESSAGE]]
    group = delivered[:, Delivered.GROUP]
    first = first_messages[group]
    has_older = (first < first_messages[group + 1]) & (assigned.entries == NONE)
    has_older[has_older] = messages[first[has_older], Message.HAS_OLDER] == 1
    message_of[has_older] = np.where(assigned.is_unsure[has_older], SEVERAL, NONE)
    is_live = (delivered[:, Delivered.IS_LIVE] == 1) & (delivered[:, Delivered.SETTER] == NONE)
    names, served = delivered[:, Delivered.NAME], expected[:, Expected.NAME]
    size = max(int(names.max(initial=0)), int(served.max(initial=0))) + 1
    keys = group * size + names
    known = messages[expected[:, Expected.MESSAGE], Message.GROUP] * size + served
    places = np.flatnonzero((message_of == NONE) & is_live & ~np.isin(keys, known))
    places = places[np.argsort(keys[places], kind="stable")]
    if not len(places):
        return message_of, open_messages[0]
    bounds = np.flatnonzero(np.diff(keys[places], prepend=NONE, append=NONE))
    groups = group[places[bounds[:-1]]]
    of_runs = first_messages[groups], first_messages[groups + 1], bounds[:-1], bounds[1:]
    runs = _runs(of_runs, delivered[places])
    starts, ats = messages[:, Message.START].copy(), delivered[places, Delivered.AT]
    partners = np.empty(len(places), np.int64)
    copies = messages[:, Message.COPIES].copy()
    kernels.find_partners(starts, copies, ats, runs, np.empty_like(starts), partners)
    message_of[places] = partners
    unsure = np.flatnonzero(partners == SEVERAL)
    for run in np.unique(np.searchsorted(bounds, unsure, "right") - 1).tolist():
        begin, end, start, stop, _ = runs[run].tolist()
        of_run = np.arange(begin, end)
        latest = ats[start:stop][partners[start:stop] == SEVERAL].max()
        is_open = (starts[begin:end] < latest) & ~np.isin(of_run, partners[start:stop])
        open_messages.append(of_run[is_open])
    return message_of, np.concatenate(open_messages)
