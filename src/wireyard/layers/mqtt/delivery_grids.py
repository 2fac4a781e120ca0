"""What kernels take of messages and deliveries: grids of integers, and what belongs together.

The kernels are those of `expected_kernels` and `delivery_kernels`, where the columns of the grids
stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wireyard.layers.grouping import by_group, dense_ids
from wireyard.layers.mqtt import delivery_kernels as kernels
from wireyard.layers.mqtt.delivery_kernels import VERDICT_NAMES, Delivered
from wireyard.layers.mqtt.expected_kernels import Expected, Grid, Message, Subscription
from wireyard.layers.mqtt.numbering import Numbers
from wireyard.layers.mqtt.packets import Bools, Ints
from wireyard.layers.mqtt.qos_kernels import NONE, Status
from wireyard.layers.mqtt.records import Subscribed

__all__ = [
    "NO_INTS",
    "DeliveredColumns",
    "SentColumns",
    "assign_all",
    "delivered_grid",
    "group_contents",
    "group_starts",
    "message_grid",
    "older_messages",
    "subscription_grid",
]

_REFUSED, _MALFORMED = 1, 2
_NO_OLDER: Final = -2
NO_INTS: Final[Ints] = np.zeros(0, np.int64)


@dataclass(slots=True)
class SentColumns:
    """Messages that clients sent, and wills that were published, by columns."""

    sent: Ints
    accepted: Ints
    released: Ints
    """Positions by number."""
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
    is_will: Ints
    expires_s: Ints


@dataclass(slots=True)
class DeliveredColumns:
    """Messages that brokers delivered, by columns."""

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
    setter: Ints
    acknowledged_ns: Ints
    acknowledged_frame: Ints
    several: Mapping[int, Sequence[int]]
    """The subscription identifiers of those that have several."""


def subscription_grid(
    subs: Sequence[Subscribed], positions: Sequence[Sequence[int]], ranks: Ints, names: Numbers[Any]
) -> Grid:
    """Return subscriptions as columns of `Subscription`; `positions` are the numbers of theirs."""
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
        row[Subscription.QOS] = one.qos
        row[Subscription.RETAIN_AS_PUBLISHED] = one.retain_as_published
        row[Subscription.NO_LOCAL] = one.no_local
        row[Subscription.IDENTIFIER] = NONE if one.identifier is None else one.identifier
    return grid


def group_contents(
    sent: SentColumns, delivered: DeliveredColumns, by_start: Ints, by_at: Ints
) -> tuple[tuple[Ints, Ints, int], Ints, Ints]:
    """Put together what has topic and payload in common, each in the order that it has.

    Returns
    -------
    groups, messages, deliveries
        Of each message and delivery the number of its group, and how many there are; the order.
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
    """Return messages in an order as columns of `Message`."""
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
    refused = sent.refused[order] != NONE
    grid[:, Message.IS_REFUSED] = np.where(
        refused, _REFUSED, np.where(sent.malformed[order] != 0, _MALFORMED, 0)
    )
    return grid


def delivered_grid(
    delivered: DeliveredColumns,
    order: Ints,
    groups: tuple[Ints, Ints, int],
    ranks: Ints,
    names: Ints,
) -> Grid:
    """Return deliveries in an order as columns of `Delivered`."""
    grid = np.empty((len(order), len(Delivered)), np.int64)
    grid[:, Delivered.GROUP] = groups[1]
    grid[:, Delivered.AT] = ranks[delivered.at[order]]
    grid[:, Delivered.NAME] = names[delivered.client[order]]
    grid[:, Delivered.QOS] = delivered.qos[order]
    grid[:, Delivered.RETAIN] = delivered.retain[order]
    grid[:, Delivered.IS_LIVE] = delivered.is_live[order]
    grid[:, Delivered.IDENTIFIER] = delivered.identifier[order]
    grid[:, Delivered.SETTER] = ranks[delivered.setter[order]]
    is_open = (delivered.qos[order] > 0) & (delivered.is_acknowledged[order] == 0)
    status = delivered.status[order]
    verdicts = {name: VERDICT_NAMES.index(name) for name in VERDICT_NAMES}
    closed = np.where(status & Status.LOST_ACK != 0, verdicts["lost_ack"], verdicts["delivered"])
    left = np.where(status & Status.ABANDONED != 0, verdicts["abandoned"], verdicts["in_flight"])
    left = np.where(status & Status.UNTRACED != 0, verdicts["undecided"], left)
    outcome = np.where(is_open, left, closed)
    refused = delivered.refused[order] != NONE
    grid[:, Delivered.OUTCOME] = np.where(refused, verdicts["refused_by_client"], outcome)
    return grid


def group_starts(of: Ints, groups: tuple[Ints, Ints, int]) -> Ints:
    """Return where the things of each group begin, which are in the order of their groups."""
    return np.searchsorted(of, np.arange(groups[2] + 1))


def assign_all(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, taken: Grid,
    names: Numbers[Any],
) -> tuple[Ints, Ints]:  # fmt: skip
    """Give messages what was delivered of them.

    Returns
    -------
    assigned, places
        Of each delivery what it is of, -1 if it is of nothing that was due, and the how manieth.
    """
    first_subs = expected_subs[expected[:, Expected.FIRST]] if len(expected) else NO_INTS
    is_shared = subs[first_subs, Subscription.IS_SHARED] == 1
    mine, live = np.flatnonzero(~is_shared), np.flatnonzero(taken[:, Delivered.IS_LIVE] == 1)
    count = 2 * max(len(names.all), 1)
    group = messages[expected[mine, Expected.MESSAGE], Message.GROUP]
    keys = group * count + 2 * expected[mine, Expected.NAME] + expected[mine, Expected.RETAIN]
    order = np.argsort(keys, kind="stable")
    their_keys = taken[live, Delivered.GROUP] * count + 2 * taken[live, Delivered.NAME]
    their_keys += taken[live, Delivered.RETAIN]
    their_order = np.argsort(their_keys, kind="stable")
    assigned = np.full(len(taken), NONE, np.int64)
    places = np.zeros(len(taken), np.int64)
    room = (
        assigned, places, np.empty(len(taken), np.int64),
        np.empty((3, max(len(expected), 1)), np.int64),
    )  # fmt: skip
    kernels.assign(
        messages, expected, keys[order], mine[order], taken, their_keys[their_order],
        live[their_order], *room,
    )  # fmt: skip
    if is_shared.any():
        _assign_shared(messages, expected, expected_subs, subs, taken, is_shared, room)
    return assigned, places


def _assign_shared(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, taken: Grid, is_shared: Bools,
    room: tuple[Ints, Ints, Ints, Grid],
) -> None:  # fmt: skip
    """Give groups what their members got and no subscription of their own accounts for."""
    assigned = room[0]
    by_group: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
    for entry in np.flatnonzero(is_shared).tolist():
        group = int(messages[expected[entry, Expected.MESSAGE], Message.GROUP])
        by_group[group].setdefault(int(expected[entry, Expected.NAME]), []).append(entry)
    bounds = np.searchsorted(taken[:, Delivered.GROUP], [[one, one + 1] for one in by_group])
    for sharing, (start, stop) in zip(by_group.values(), bounds.tolist(), strict=True):
        for entries in sharing.values():
            rest = start + np.flatnonzero(assigned[start:stop] == NONE)
            members: set[int] = set()
            for entry in entries:
                first = expected[entry, Expected.FIRST]
                mine = expected_subs[first : first + expected[entry, Expected.SUBSCRIPTIONS]]
                members.update(subs[mine, Subscription.NAME].tolist())
            theirs = rest[np.isin(taken[rest, Delivered.NAME], list(members))]
            kernels.assign(
                messages, expected, np.zeros(len(entries), np.int64), np.array(entries, np.int64),
                taken, np.zeros(len(theirs), np.int64), theirs, *room,
            )  # fmt: skip


def older_messages(
    messages: Grid, taken: Grid, assigned: Ints, first_messages: Ints, expected: Grid,
    expected_subs: Ints, subs: Grid,
) -> Ints:  # fmt: skip
    """Return the message of each delivery that nobody was due to get, where some may be older.

    A client gets one as often as it was sent. From the last one back, so that what is left over is
    of before the capture, and has -1; all others have -2.
    """
    found = np.full(len(taken), _NO_OLDER, np.int64)
    group = taken[:, Delivered.GROUP]
    first = first_messages[group]
    has_older = (first < first_messages[group + 1]) & (assigned == NONE)
    has_older[has_older] = messages[first[has_older], Message.HAS_OLDER] == 1
    places = np.flatnonzero(has_older)
    if not len(places):
        return found
    members = _members(messages, expected, expected_subs, subs)
    # A client's come by RETAIN, the first that it has foremost, but for those of who shares.
    keys = taken[places, Delivered.RETAIN] + 2 * (taken[places, Delivered.IS_LIVE] == 0)
    orders: dict[tuple[int, int], dict[int, int]] = {}
    for place in np.flatnonzero(np.isin(group, np.unique(group[places]))).tolist():
        key = _key_of_retain(taken[place])
        of_client = orders.setdefault((int(group[place]), int(taken[place, Delivered.NAME])), {})
        of_client.setdefault(key, len(of_client))
    ordered = []
    for place, key in zip(places.tolist(), keys.tolist(), strict=True):
        client = int(group[place]), int(taken[place, Delivered.NAME])
        rank = 0 if client in members else orders[client][min(key, 2)]
        ordered.append((client, rank, place))
    left: dict[tuple[int, int], tuple[int, int]] = {}
    for client, _, place in sorted(ordered, reverse=True):
        start, stop = first_messages[client[0]], first_messages[client[0] + 1]
        starts = messages[start:stop, Message.START]
        before = int(np.searchsorted(starts, taken[place, Delivered.AT]))
        count, copies = left.get(client, (before, 0))
        if before < count:
            count, copies = before, 0
        if count and copies == messages[start + count - 1, Message.COPIES]:
            count, copies = count - 1, 0
        found[place] = start + count - 1 if count else NONE
        left[client] = count, copies + 1
    return found


def _key_of_retain(delivered: Ints) -> int:
    return int(delivered[Delivered.RETAIN]) if delivered[Delivered.IS_LIVE] else 2


def _members(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid
) -> set[tuple[int, int]]:
    """Return the groups of messages that clients share subscriptions to, and these clients."""
    members = set()
    for first, count, message in expected[
        :, [Expected.FIRST, Expected.SUBSCRIPTIONS, Expected.MESSAGE]
    ].tolist():
        if subs[expected_subs[first], Subscription.IS_SHARED]:
            group = int(messages[message, Message.GROUP])
            mine = expected_subs[first : first + count]
            members |= {(group, name) for name in subs[mine, Subscription.NAME].tolist()}
    return members
