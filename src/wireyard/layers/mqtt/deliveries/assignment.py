"""Delivery attempts are assigned to expected deliveries, by the kernels and by what is rare.

An attempt belongs to an expected delivery of an equal message to its client, or to a group of it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

import numpy as np

from wireyard.arrays import Bools, Grid32, Int32s, Ints
from wireyard.layers.grouping import by_group
from wireyard.layers.mqtt.deliveries.grids import SOON_NS, DeliveryGrids, starts_of
from wireyard.layers.mqtt.grids import NO_TIME, NONE
from wireyard.layers.mqtt.kernels import deliveries as kernels
from wireyard.layers.mqtt.kernels.deliveries import NO_OLDER, SEVERAL, Delivered
from wireyard.layers.mqtt.kernels.expected import Expected, Message, Subscription
from wireyard.layers.mqtt.records import EARLY_NS

_APART_NS: Final = 2_000_000_000
"""Most by which the clocks of two taps differ."""
_OF_RETAINED: Final = [Delivered.NAME, Delivered.AT, Delivered.SETTER, Delivered.GROUP]


def assign_all(g: DeliveryGrids) -> None:
    """Assign delivery attempts to expected deliveries."""
    expected, attempts = g.expected, g.attempts
    own, live = np.flatnonzero(~g.is_shared), np.flatnonzero(attempts[:, Delivered.IS_LIVE] == 1)
    recipient = 2 * expected[own, Expected.NAME] + expected[own, Expected.RETAIN]
    of_attempt = 2 * attempts[live, Delivered.NAME] + attempts[live, Delivered.RETAIN]
    count = int(max(recipient.max(initial=0), of_attempt.max(initial=0))) + 1
    keys, order = _by_key(g.entry_groups[own], recipient, g.groups, count)
    attempt_keys, by_time = _by_key(attempts[live, Delivered.GROUP], of_attempt, g.groups, count)
    entries, by_time = own[order], live[by_time]
    runs = _assign_keyed(g, keys, entries, attempt_keys, by_time)
    if g.is_shared.any():
        _assign_shared(g)
    _assign_left(g, entries, by_time, runs)
    if g.messages[:, Message.RETAIN].any():
        _assign_other_flags(g, own)
    kernels.number_attempts(expected, attempts, g.assigned, g.ordinals)


def _by_key(groups: Ints, recipients: Int32s, most: int, count: int) -> tuple[Ints, Ints]:
    """Return keys of groups and recipients, ascending, and the order; it is stable."""
    order, _ = by_group(recipients, count)
    order = order[by_group(groups[order], most)[0]]
    return groups[order].astype(np.int64) * count + recipients[order], order


def _assign_other_flags(g: DeliveryGrids, own: Ints) -> None:
    """Assign attempts at messages with RETAIN that came with another flag than was expected.

    Where some of a client's subscriptions have Retain As Published, either flag may come. Messages
    without an attempt come first, and of these the latest one.
    """
    expected, attempts = g.expected, g.attempts
    is_open = g.messages[expected[own, Expected.MESSAGE], Message.RETAIN] == 1
    is_open &= expected[own, Expected.DELIVERED] < expected[own, Expected.CAPACITY]
    is_open &= expected[own, Expected.IS_UNSURE] == 0
    left = (attempts[:, Delivered.IS_LIVE] == 1) & (g.assigned == NONE) & ~g.is_unsure
    entries: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for entry in own[is_open].tolist():
        group = int(g.messages[expected[entry, Expected.MESSAGE], Message.GROUP])
        entries[group, int(expected[entry, Expected.NAME])].append(entry)
    of_keys: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for attempt in np.flatnonzero(left).tolist() if entries else ():
        group, name = attempts[attempt, [Delivered.GROUP, Delivered.NAME]].tolist()
        if (group, name) in entries:
            of_keys[group, name].append(attempt)
    for key, of_key in of_keys.items():
        _assign_latest(g, entries[key], of_key)


def _assign_latest(g: DeliveryGrids, entries: list[int], attempts: list[int]) -> None:
    """Assign attempts in order to the latest entries before them; see `_assign_other_flags`."""
    expected = g.expected
    starts = g.messages[expected[entries, Expected.MESSAGE], Message.START].tolist()
    following = deque(sorted(zip(starts, entries, strict=True)))
    fresh: list[tuple[int, int]] = []
    again: list[tuple[int, int]] = []
    for attempt in attempts:
        while following and following[0][0] < g.attempts[attempt, Delivered.AT]:
            start, entry = following.popleft()
            heappush(again if expected[entry, Expected.DELIVERED] else fresh, (-start, entry))
        if not (fresh or again):
            continue
        _, entry = (fresh or again)[0]
        is_older = g.messages[expected[entry, Expected.MESSAGE], Message.HAS_OLDER]
        if is_older and len(fresh) + len(again) > 1:
            g.is_unsure[attempt] = True
            expected[[one for _, one in fresh], Expected.IS_UNSURE] = 1
            continue
        place = heappop(fresh or again)
        g.assigned[attempt] = entry
        expected[entry, Expected.DELIVERED] += 1
        if expected[entry, Expected.DELIVERED] < expected[entry, Expected.CAPACITY]:
            heappush(again, place)


def mark_served(g: DeliveryGrids) -> None:
    """Mark the groups without an attempt of which a member got the message in another way."""
    expected = g.expected
    missing = np.flatnonzero(g.is_shared & (expected[:, Expected.DELIVERED] == 0))
    attempts = np.flatnonzero(g.assigned != NONE)
    messages = expected[g.assigned[attempts], Expected.MESSAGE]
    is_wanted = _marked(expected[missing, Expected.MESSAGE], len(g.messages))[messages]
    names = g.attempts[attempts[is_wanted], Delivered.NAME]
    served = set(zip(messages[is_wanted].tolist(), names.tolist(), strict=True))
    for entry in missing.tolist():
        message, members = int(expected[entry, Expected.MESSAGE]), g.subs_of(entry)
        got = ((message, name) in served for name in g.subs[members, Subscription.NAME].tolist())
        expected[entry, Expected.IS_SERVED] = any(got)


def _assign_shared(g: DeliveryGrids) -> None:
    """Assign to groups the attempts that no subscription of the member itself accounts for."""
    by_content: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
    groups = g.entry_groups
    for entry in np.flatnonzero(g.is_shared).tolist():
        of_name = by_content[int(groups[entry])]
        of_name.setdefault(int(g.expected[entry, Expected.NAME]), []).append(entry)
    starts = starts_of(g.attempts[:, Delivered.GROUP], g.groups)
    for group, sharing in by_content.items():
        start, stop = starts[group : group + 2].tolist()
        for entries in sharing.values():
            is_left = (g.assigned[start:stop] == NONE) & ~g.is_unsure[start:stop]
            rest = start + np.flatnonzero(is_left)
            members = np.concatenate([g.subs[g.subs_of(one), Subscription.NAME] for one in entries])
            rest = rest[np.isin(g.attempts[rest, Delivered.NAME], members)]
            order = np.array(entries, np.int64)
            same = (np.zeros(len(one), np.int64) for one in (order, rest))
            runs = _assign_keyed(g, next(same), order, next(same), rest)
            _assign_left(g, order, rest, runs)


def _assign_keyed(
    g: DeliveryGrids, keys: Ints, order: Ints, attempt_keys: Ints, by_time: Ints
) -> Grid32:
    """Assign attempts to expected deliveries with the same ascending keys: `kernels.assign`.

    Return the runs of which all packets were captured.
    """
    runs = np.empty((min(len(order), len(by_time)), 4), np.int32)
    runs = runs[: kernels.find_runs(keys, attempt_keys, runs)]
    _assign_runs(g, order, by_time, runs)
    first = g.expected[order[runs[:, 0]], Expected.MESSAGE]
    has_older = g.messages[first, Message.HAS_OLDER] == 1
    if has_older.any():
        _release_unsure(g, order, by_time, runs[has_older])
    whole: Grid32 = runs[~has_older]
    return whole


def _assign_left(g: DeliveryGrids, order: Ints, by_time: Ints, runs: Grid32) -> None:
    """Assign attempts that have no message, nor one of a group, to those a little behind them."""
    left = np.concatenate(([0], np.cumsum(g.assigned[by_time] == NONE)))
    for first, last, start, stop in runs[left[runs[:, 3]] > left[runs[:, 2]]].tolist():
        entries, attempts = order[first:last], by_time[start:stop]
        taken = g.assigned[attempts]
        attempts = attempts[(taken == NONE) | np.isin(taken, entries)]
        _assign_early(g, entries, attempts)
        if len(entries) == len(attempts) == 1:
            _leave_open(g, int(entries[0]), int(attempts[0]))


def _assign_runs(g: DeliveryGrids, order: Ints, by_time: Ints, runs: Grid32) -> None:
    buffers = np.empty(len(g.attempts), np.int64), np.empty((3, len(order)), np.int32)
    kernels.assign(
        g.messages, g.expected, order, g.attempts, by_time, runs, g.assigned, *buffers
    )  # fmt: skip


def _assign_early(g: DeliveryGrids, entries: Ints, attempts: Ints) -> None:
    """Assign attempts of one key again if some were captured a little before their messages.

    That is so where an attempt has no message, and an equal one follows a moment later.
    """
    numbers = g.expected[entries, Expected.MESSAGE]
    starts, ats = g.messages[numbers, Message.START], g.attempts[attempts, Delivered.AT]
    # The first attempt from a moment before each message.
    first = np.searchsorted(g.at_ns[attempts], g.sent_ns[numbers] - EARLY_NS)
    is_timed = g.sent_ns[numbers] != NO_TIME
    earliest = np.where(is_timed & (first < len(ats)), ats.take(first, mode="clip") - 1, starts)
    left = ats[g.assigned[attempts] == NONE]
    following = np.searchsorted(starts, left, "right")
    left, following = left[following < len(starts)], following[following < len(starts)]
    if not (earliest[following] < left).any():
        return
    g.assigned[attempts] = NONE
    g.expected[entries, Expected.DELIVERED] = 0
    g.messages[numbers, Message.START] = np.minimum(starts, earliest)
    run = np.array([[0, len(entries), 0, len(attempts)]], np.int32)
    _assign_runs(g, entries, attempts, run)
    g.messages[numbers, Message.START] = starts
    found = attempts[g.assigned[attempts] != NONE]
    start = g.messages[g.expected[g.assigned[found], Expected.MESSAGE], Message.START]
    g.is_early[found] = g.attempts[found, Delivered.AT] < start


def _leave_open(g: DeliveryGrids, entry: int, attempt: int) -> None:
    """Mark the only message of a key as unsure if the only attempt, before it, may be of it.

    So it is where taps whose clocks differ were merged. Of a payload that comes again, an attempt
    that is left over is of a publisher that was not captured.
    """
    left_ns = g.at_ns[attempt]
    before_ns = g.sent_ns[g.expected[entry, Expected.MESSAGE]] - left_ns
    if g.assigned[attempt] == NONE and left_ns != NO_TIME and 0 < before_ns <= _APART_NS:
        g.expected[entry, Expected.IS_UNSURE] = 1


def _release_unsure(g: DeliveryGrids, order: Ints, by_time: Ints, runs: Grid32) -> None:
    """Take back the attempts that may belong to several expected deliveries.

    Where packets may be missing, equal messages have several pairings with their attempts. Only
    what all of them have in common is certain.
    """
    starts = g.messages[g.expected[order, Expected.MESSAGE], Message.START].astype(np.int64)
    ats = g.attempts[by_time, Delivered.AT].astype(np.int64)
    partners = np.full(len(by_time), NONE, np.int64)
    capacities = g.expected[order, Expected.CAPACITY].astype(np.int64)
    of_runs = _with_lacking(g, g.expected[order, Expected.MESSAGE], by_time, runs, is_expected=True)
    kernels.find_partners(starts, capacities, ats, of_runs, np.empty_like(order), partners)
    entries, of_entry = _places(runs[:, 0], runs[:, 1])
    places, of_place = _places(runs[:, 2], runs[:, 3])
    partner, own = partners[places], g.assigned[by_time[places]]
    is_unsure = partner == SEVERAL
    is_unsure |= (partner >= 0) & (order[np.maximum(partner, 0)] != own)
    unsure = by_time[places[is_unsure]]
    released = own[is_unsure & (own != NONE)]
    np.subtract.at(g.expected[:, Expected.DELIVERED], released, 1)
    g.is_unsure[unsure] = True
    g.assigned[unsure] = NONE
    # A message without an attempt of its own may have any of the later ones that are not certain.
    latest = np.full(len(runs), NONE, np.int64)
    np.maximum.at(latest, of_place[is_unsure], ats[places[is_unsure]])
    is_open = starts[entries] < latest[of_entry]
    is_open &= ~_marked(own[~is_unsure], len(g.expected))[order[entries]]
    g.expected[order[entries], Expected.IS_UNSURE] = is_open


def _with_lacking(
    g: DeliveryGrids, messages: Ints | Int32s, attempts: Ints, runs: Grid32, is_expected: bool
) -> Grid32:
    """Add the first attempt that may be of a message that is not among those of its run.

    That message was not captured, or is one that no captured subscription of the client accounts
    for. A payload that was sent once and delivered once is taken for one that is not sent again,
    unless both another message and its own delivery may be in what was not captured; to a client
    that is not expected to get it, there need not be one if this one comes late.
    """
    first, last, start, stop = runs.T
    is_lacking = g.lost_until_ns[attempts] != NO_TIME
    is_lacking |= _is_behind_others(g, messages, attempts, runs)
    lack = np.concatenate(([0], np.cumsum(is_lacking)))
    behind = stop - lack[stop] + lack[start]
    is_pair = np.flatnonzero((last - first == 1) & (stop - start == 1))
    message, attempt = messages[first[is_pair]], attempts[start[is_pair]]
    group = g.messages[message, Message.GROUP]
    is_once = g.first_messages[group + 1] - g.first_messages[group] == 1
    is_seen = g.lost_until_ns[attempt] < g.sent_ns[message] - SOON_NS
    is_own = is_expected | (g.at_ns[attempt] - g.sent_ns[message] < SOON_NS)
    is_seen |= is_own & (g.unseen_until_ns[attempt] < g.sent_ns[message])
    sure = is_pair[is_once & is_seen]
    behind[sure] = stop[sure]
    found: Grid32 = np.column_stack((runs, behind.astype(np.int32)))
    return found


def _is_behind_others(
    g: DeliveryGrids, messages: Ints | Int32s, attempts: Ints, runs: Grid32
) -> Bools:
    """Return which attempts are behind an equal message that is not among those of their run.

    Only those of a client count of whose subscriptions some may not have been captured.
    """
    found = np.zeros(len(attempts), np.bool_)
    places, of_place = _places(runs[:, 2], runs[:, 3])
    is_sparse = np.bincount(of_place, g.is_sparse[attempts[places]], len(runs)) > 0
    wide = runs[is_sparse]
    if not len(wide):
        return found
    # The messages of a group follow each other, and so do those of a run up to the first other.
    group = g.messages[messages[wide[:, 0]], Message.GROUP]
    first, end = g.first_messages[group], g.first_messages[group + 1]
    entries, of_entry = _places(wide[:, 0], wide[:, 1])
    is_next = messages[entries] == first[of_entry] + entries - wide[of_entry, 0]
    other = first + np.bincount(of_entry[is_next], minlength=len(wide))
    start = np.full(len(wide), np.iinfo(np.int32).max)
    start[other < end] = g.messages[other[other < end], Message.START]
    places, of_place = _places(wide[:, 2], wide[:, 3])
    found[places] = g.attempts[attempts[places], Delivered.AT] > start[of_place]
    return found


def _places(starts: Int32s, stops: Int32s) -> tuple[Ints, Ints]:
    """Return the indexes in some ranges, and the number of the range of each."""
    sizes = stops - starts
    firsts = np.cumsum(sizes) - sizes
    of = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(of)) + (starts - firsts)[of], of


def _marked(places: Ints | Int32s, count: int) -> Bools:
    """Return which of `count` places are among those given; -1 is none."""
    marks = np.zeros(count, np.bool_)
    marks[places[places != NONE]] = True
    return marks


def assign_retained(g: DeliveryGrids, matching: Callable[[int], Ints]) -> Iterator[tuple[int, int]]:
    """Assign deliveries with RETAIN that are no retained values; yield each with its subscription.

    A broker has to forward a message without RETAIN to a subscription that was there before. Where
    nothing else was delivered, and no newer subscription may be why, the one with RETAIN counts.
    With Retain As Published that is right, and the subscription is -1. Where the value may be that
    of an older message, both are open. `matching` returns the subscriptions that match a topic.
    """
    attempts, expected = g.attempts, g.expected
    is_open = (attempts[:, Delivered.IS_LIVE] == 0) & (attempts[:, Delivered.MAY_BE_LIVE] == 0)
    places = np.flatnonzero(is_open & (g.assigned == NONE) & ~g.is_unsure)
    if not len(places):
        return
    groups = g.entry_groups
    missing: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    is_missing = ~g.is_shared & (expected[:, [Expected.DELIVERED, Expected.IS_UNSURE]] == 0).all(1)
    for entry in np.flatnonzero(is_missing).tolist():
        missing[int(expected[entry, Expected.NAME]), int(groups[entry])].append(entry)
    for place in places.tolist():
        name, at, setter, group = attempts[place, _OF_RETAINED].tolist()
        entries = [
            entry
            for entry in missing.get((name, group), ())
            if _may_be(g.messages[expected[entry, Expected.MESSAGE]], at, setter)
        ]
        if not entries:
            continue
        entry = entries[-1]
        message = expected[entry, Expected.MESSAGE]
        start, own = g.messages[message, Message.START], g.subs_of(entry)
        own = own[g.subs[own, Subscription.GRANTED] < start]
        others = g.subs[matching(int(g.messages[message, Message.TOPIC]))]
        others = others[others[:, Subscription.NAME] == name, Subscription.BEGINS]
        if not len(own) or ((2 * start < others) & (others < 2 * at)).any():
            continue
        missing[name, group].remove(entry)
        if setter == NONE and g.messages[message, Message.HAS_OLDER]:
            expected[entry, Expected.IS_UNSURE] = attempts[place, Delivered.MAY_BE_LIVE] = 1
            g.is_unsure[place] = True
            continue
        expected[entry, [Expected.DELIVERED, Expected.FIRST_AT]] = 1, at
        attempts[place, Delivered.IS_LIVE] = 1
        g.assigned[place] = entry
        yield place, NONE if expected[entry, Expected.RETAIN] else int(own[0])


def _may_be(message: Int32s, at: int, setter: int) -> bool:
    """Return whether a delivery with RETAIN may be of a message, given where its value was set."""
    return bool(setter in (NONE, message[Message.SENT]) and message[Message.START] < at)


def older_messages(g: DeliveryGrids) -> tuple[Ints, Ints]:
    """Find the messages of unexpected attempts where subscriptions may not have been captured.

    A client whose subscriptions were not captured is assumed to get a message as often as it was
    sent. An attempt that is left over is of a message from before the capture. Return for each
    attempt the message, -1 without one, `SEVERAL` if it may be of several, or `NO_OLDER` if all
    subscriptions are known; and the messages that such an attempt may be of.
    """
    attempts, expected, first_messages = g.attempts, g.expected, g.first_messages
    message_of = np.full(len(attempts), NO_OLDER, np.int64)
    open_messages = [expected[expected[:, Expected.IS_UNSURE] == 1, Expected.MESSAGE]]
    left = np.flatnonzero(g.assigned == NONE)
    group = attempts[left, Delivered.GROUP].astype(np.int64)
    first = first_messages[group]
    has_older = first < first_messages[group + 1]
    has_older[has_older] = g.messages[first[has_older], Message.HAS_OLDER] == 1
    left, group = left[has_older], group[has_older]
    message_of[left] = np.where(g.is_unsure[left], SEVERAL, NONE)
    is_live = (attempts[left, Delivered.IS_LIVE] == 1) & (attempts[left, Delivered.SETTER] == NONE)
    names, served = attempts[left, Delivered.NAME], expected[:, Expected.NAME]
    size = max(int(names.max(initial=0)), int(served.max(initial=0))) + 1
    keys = group * size + names
    of_group = _marked(group, g.groups)[g.entry_groups]
    known = (g.entry_groups * size + served)[of_group]
    wanted = np.flatnonzero(is_live & ~g.is_unsure[left] & ~np.isin(keys, known))
    wanted = wanted[np.argsort(keys[wanted], kind="stable")]
    if not len(wanted):
        return message_of, open_messages[0]
    bounds = np.flatnonzero(np.diff(keys[wanted], prepend=NONE, append=NONE))
    groups = group[wanted[bounds[:-1]]]
    bounds_of = first_messages[groups], first_messages[groups + 1], bounds[:-1], bounds[1:]
    runs = np.stack(bounds_of, 1).astype(np.int32)
    every = np.arange(len(g.messages))
    runs = _with_lacking(g, every, left[wanted], runs, is_expected=False)
    starts, copies = g.messages[:, [Message.START, Message.COPIES]].T.astype(np.int64)
    ats = attempts[left[wanted], Delivered.AT].astype(np.int64)
    partners = np.empty(len(wanted), np.int64)
    kernels.find_partners(starts, copies, ats, runs, np.empty_like(starts), partners)
    message_of[left[wanted]] = partners
    unsure = np.flatnonzero(partners == SEVERAL)
    for run in np.unique(np.searchsorted(bounds, unsure, "right") - 1).tolist():
        begin, end, start, stop, _ = runs[run].tolist()
        of_run = np.arange(begin, end)
        latest = ats[start:stop][partners[start:stop] == SEVERAL].max()
        is_open = (starts[begin:end] < latest) & ~np.isin(of_run, partners[start:stop])
        open_messages.append(of_run[is_open])
    return message_of, np.concatenate(open_messages)
