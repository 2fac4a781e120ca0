"""Verdicts for missing deliveries as far as the connections of the subscriber decide, by columns.

If the subscriber was connected, or resumed its session, the verdict depends on its other deliveries
on all topics: `missing` decides then, with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Grid, Grid32, Int32s, Ints
from wireyard.layers.mqtt.kernels.deliveries import MISSED, VERDICT_NAMES, DeliveryRow
from wireyard.layers.mqtt.kernels.expected import NONE, Expected, Message, Subscription
from wireyard.layers.mqtt.packets import NO_TIME
from wireyard.layers.mqtt.records import ConnectionRecord

_NS_PER_S: Final = 1_000_000_000
_OFFLINE, _QUEUED, _DISCARDED, _EXPIRED, _UNDECIDED = map(
    VERDICT_NAMES.index, ("offline", "queued", "discarded", "expired", "undecided")
)


class Connection(IntEnum):
    """Columns of a connection, for each name that messages to it are delivered to."""

    SERVED_AS = 0
    """Number of the name: the client's, or that of a shared filter."""
    NAME = 1
    """Number of the client's name."""
    ACCEPTED = 2
    CLOSED = 3
    UNTIL = 4
    """Ranks of positions; -1 is none."""
    OPENED_NS = 5
    IS_BEGUN = 6
    MAY_BE_RESUMED = 7
    IS_DAMAGED = 8
    CLIENT = 9
    """Number of the client, with its endpoint."""
    IS_SHOWN = 10
    """Whether `IS_BEGUN` holds for all connections of this client and name."""
    SESSION_OVER_NS = 11
    """When its session ends if no other connection resumes it; `NO_TIME` if it does not."""
    CAPTURE_ENDS_NS = 12


def connections_of(
    records: Sequence[ConnectionRecord],
    positions: Grid32,
    clients: Sequence[int],
    number: Callable[[tuple[str, str, str]], int],
) -> Grid:
    """Return accepted connections, in the order of their opening, as columns of `Connection`.

    `positions` has the ranks of `accepted`, `closed` and `until` of each, and `clients` the number
    of the client of each. `number` returns the number of a source, server and name.
    """
    rows = [
        (
            number((*record.client[:2], name)),
            number((*record.client[:2], record.client.name)),
            *ranks,
            NO_TIME if record.opened.ns is None else record.opened.ns,
            record.begun,
            record.may_be_resumed,
            record.damaged,
            client,
            True,
            NO_TIME if record.session_over_ns is None else record.session_over_ns,
            NO_TIME if record.capture_ends_ns is None else record.capture_ends_ns,
        )
        for record, ranks, client in zip(records, positions.tolist(), clients, strict=True)
        for name in record.served_as
    ]
    grid = np.array(rows, np.int64).reshape(-1, len(Connection))
    grid = grid[np.lexsort((grid[:, Connection.NAME], grid[:, Connection.SERVED_AS]))]
    if len(grid):
        pairs = grid[:, [Connection.SERVED_AS, Connection.NAME]]
        starts = np.flatnonzero((np.diff(pairs, axis=0, prepend=NONE - 1) != 0).any(axis=1))
        are_begun = np.minimum.reduceat(grid[:, Connection.IS_BEGUN], starts)
        sizes = np.diff(starts, append=len(grid))
        grid[:, Connection.IS_SHOWN] = np.repeat(are_begun, sizes)
    return grid


def capture_ends(connections: Grid, names: Int32s) -> Ints:
    """Return when the captures end that show clients, given their names; `NO_TIME` if unknown."""
    known = connections[:, Connection.NAME]
    ends_ns = np.full(max(known.max(initial=0), names.max(initial=0)) + 1, NO_TIME, np.int64)
    np.maximum.at(ends_ns, known, connections[:, Connection.CAPTURE_ENDS_NS])
    return ends_ns[names]


@inlined
def _first_after(connections: Grid, first: int, last: int, position: int) -> int:
    """Return the index of the first connection that was accepted after a position."""
    while first < last:
        middle = (first + last) // 2
        if position < connections[middle, Connection.ACCEPTED]:
            last = middle
        else:
            first = middle + 1
    return first


@inlined
def find_connections(connections: Grid, served: int, name: int) -> tuple[int, int]:
    """Return the index of the first connection of a client and a name, and that behind the last.

    They are equal if the capture does not show all connections from their CONNECT on.
    """
    first, last = 0, len(connections)
    while first < last:
        middle = (first + last) // 2
        other = connections[middle, Connection.SERVED_AS]
        if other < served or (other == served and connections[middle, Connection.NAME] < name):
            first = middle + 1
        else:
            last = middle
    while (
        last < len(connections)
        and connections[last, Connection.SERVED_AS] == served
        and connections[last, Connection.NAME] == name
    ):
        last += 1
    if first < last and not connections[first, Connection.IS_SHOWN]:
        last = first
    return first, last


@kernel
def explain_absence(
    rows: Grid32,
    expected: Grid32,
    expected_subs: Ints,
    subs: Grid32,
    messages: Grid32,
    confirmed: Ints,
    connections: Grid,
    taken_ns: Ints,
    expires_s: Ints,
) -> int:
    """Give verdicts to missing deliveries where connections decide; return how many have one.

    `rows` are columns of `DeliveryRow`: those with the verdict `MISSED` get another one and the
    client, if other deliveries do not matter. `confirmed`, `taken_ns` and `expires_s` are by
    message; the first is when the broker confirmed it. `connections` are columns of `Connection`,
    by `SERVED_AS` and `NAME`, and then in the order of their opening.
    """
    decided = 0
    for row in range(len(rows)):
        if rows[row, DeliveryRow.VERDICT] != MISSED:
            continue
        message, entry = rows[row, DeliveryRow.MESSAGE], rows[row, DeliveryRow.EXPECTED]
        start, stop = messages[message, Message.START], confirmed[message]
        served = expected[entry, Expected.NAME]
        # The first client with an active subscription; other members of a group count only if that
        # one was connected.
        name = qos = NONE
        at = expected[entry, Expected.FIRST]
        for place in range(at, at + expected[entry, Expected.SUBSCRIPTIONS]):
            one = expected_subs[place]
            leaving = subs[one, Subscription.LEAVING]
            if subs[one, Subscription.GRANTED] >= start or NONE < leaving <= stop:
                continue
            if name == NONE:
                name = subs[one, Subscription.NAME]
            if name == subs[one, Subscription.NAME]:
                qos = max(qos, subs[one, Subscription.QOS])
        qos = min(qos, messages[message, Message.QOS])
        first, last = find_connections(connections, served, name)
        verdict, connection = verdict_of_absence(
            connections, first, last, start, stop, qos, taken_ns[message], expires_s[message]
        )
        if verdict != MISSED:
            decided += 1
            rows[row, DeliveryRow.VERDICT] = verdict
            rows[row, DeliveryRow.CLIENT] = (
                NONE if connection == NONE else connections[connection, Connection.CLIENT]
            )
    return decided


@inlined
def verdict_of_absence(
    connections: Grid, first: int, last: int, start: int, stop: int, qos: int, taken_ns: int,
    expires_s: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the verdict, and the connection on which the delivery is missing.

    The verdict is `MISSED` if that depends on the other deliveries. `first` and `last` are as of
    `find_connections`; the message was sent at `start`, and the broker confirmed it at `stop`.
    """
    if first == last:
        return _UNDECIDED, NONE
    after = _first_after(connections, first, last, stop)
    connection = after - 1 if after > first else NONE
    after = after if after < last else NONE
    closed = NONE if connection == NONE else connections[connection, Connection.CLOSED]
    if connection != NONE and not NONE < closed < start:
        until = connections[connection, Connection.UNTIL]
        is_certain = connections[connection, Connection.ACCEPTED] < start and (
            until == NONE or stop <= until
        )
        if not is_certain or connections[connection, Connection.IS_DAMAGED]:
            return _UNDECIDED, connection
        return MISSED, connection
    if qos == 0:
        return _OFFLINE, NONE
    verdict = verdict_of_wait(connections, connection, after, taken_ns, expires_s)
    if verdict != _QUEUED or after == NONE:
        return verdict, after
    if connections[after, Connection.IS_DAMAGED]:
        return _UNDECIDED, after
    return MISSED, after


@inlined
def verdict_of_wait(connections: Grid, last: int, after: int, taken_ns: int, expires_s: int) -> int:
    """Return what became of a message that waited for its subscriber.

    `last` and `after` are the last connection before and the next one, -1 without one.
    """
    is_kept = after != NONE and connections[after, Connection.MAY_BE_RESUMED] != 0
    over_ns = until_ns = NO_TIME
    if last != NONE:
        until_ns = connections[last, Connection.CAPTURE_ENDS_NS]
        if not is_kept:
            over_ns = connections[last, Connection.SESSION_OVER_NS]
    if after != NONE:
        until_ns = connections[after, Connection.OPENED_NS]
    limit_ns = until_ns if over_ns == NO_TIME else min(until_ns, over_ns)
    # An expiry has 32 bits: its nanoseconds fit.
    is_due = expires_s != NONE and taken_ns != NO_TIME and limit_ns != NO_TIME
    if is_due and limit_ns - taken_ns >= expires_s * _NS_PER_S:
        return _EXPIRED
    if after != NONE:
        return _QUEUED if is_kept else _DISCARDED
    is_over = over_ns != NO_TIME and until_ns != NO_TIME and over_ns <= until_ns
    return _DISCARDED if is_over else _QUEUED
