"""Why a message was not delivered, by columns: the twin of `missing` where connections explain it.

Where its subscriber was connected, or came back to the same session, the verdict depends on what
else it was delivered, of all topics: those few are left to `missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import I64, array, kernel, piece
from wireyard.layers.mqtt.delivery_kernels import MISSED, VERDICT_NAMES, Fate
from wireyard.layers.mqtt.expected_kernels import (
    NONE,
    Expected,
    Grid,
    Ints,
    Message,
    Subscription,
)
from wireyard.layers.mqtt.packets import NO_TIME
from wireyard.layers.mqtt.records import ConnectionRecord

__all__ = ["Connection", "connections_of", "explain_absence"]

_NS_PER_S: Final = 1_000_000_000
_OFFLINE, _QUEUED, _DISCARDED, _EXPIRED, _UNDECIDED = map(
    VERDICT_NAMES.index, ("offline", "queued", "discarded", "expired", "undecided")
)


class Connection(IntEnum):
    """What is known of a connection that messages of a name went to, or were missed on."""

    SERVED_AS = 0
    """Number of the name that the messages have: the client's, or that of a shared filter."""
    NAME = 1
    """Number of the client's name."""
    ACCEPTED = 2
    CLOSED = 3
    UNTIL = 4
    """Ranks of positions; -1 is none."""
    OPENED_NS = 5
    IS_BEGUN = 6
    MAY_GO_ON = 7
    IS_DAMAGED = 8
    CLIENT = 9
    """Number of the client, with its endpoint."""
    IS_SHOWN = 10
    """Whether all connections of the client that these messages went to have begun."""


_INTS: Final = array("int64")
_GRID: Final = array("int64", 2)


def connections_of(
    records: Sequence[ConnectionRecord],
    positions: Grid,
    clients: Sequence[int],
    number: Callable[[tuple[str, str, str]], int],
) -> Grid:
    """Return connections as columns of `Connection`.

    Parameters
    ----------
    records
        Accepted ones, in the order of their opening.
    positions
        Of each the ranks of `accepted`, `closed` and `until`.
    clients
        Of each the number of its client.
    number
        The number of a name: of source, server, name.
    """
    rows = [
        (
            number((*record.client[:2], name)),
            number((*record.client[:2], record.client.name)),
            *ranks,
            NO_TIME if record.opened.ns is None else record.opened.ns,
            record.begun,
            record.may_go_on,
            record.damaged,
            client,
            True,
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


@piece
def _behind(connections: Grid, first: int, last: int, position: int) -> int:
    """Return the place of the first connection that was accepted after a position."""
    while first < last:
        middle = (first + last) // 2
        if position < connections[middle, Connection.ACCEPTED]:
            last = middle
        else:
            first = middle + 1
    return first


@piece
def _place(connections: Grid, served: int, name: int) -> int:
    """Return where the connections of a client begin that messages of a name go to."""
    first, last = 0, len(connections)
    while first < last:
        middle = (first + last) // 2
        other = connections[middle, Connection.SERVED_AS]
        if other < served or (other == served and connections[middle, Connection.NAME] < name):
            first = middle + 1
        else:
            last = middle
    return first


@kernel(I64(_GRID, _GRID, _INTS, _GRID, _GRID, _INTS, _GRID, _INTS, _INTS))
def explain_absence(
    fates: Grid,
    expected: Grid,
    expected_subs: Ints,
    subs: Grid,
    messages: Grid,
    taken: Ints,
    connections: Grid,
    sent_ns: Ints,
    expires_s: Ints,
) -> int:
    """Give verdicts to what was missed, where connections explain it; return how many have one.

    Parameters
    ----------
    fates
        Columns of `Fate`; those with the verdict `MISSED` get another, and the client that they
        were missed by, where it is known without what else was delivered.
    taken
        Of each message when the broker had shown that it had taken it.
    connections
        Columns of `Connection`, by `SERVED_AS` and `NAME`, and then in the order of their opening.
    sent_ns, expires_s
        Of each message.
    """
    found = 0
    for row in range(len(fates)):
        if fates[row, Fate.VERDICT] != MISSED:
            continue
        message, entry = fates[row, Fate.MESSAGE], fates[row, Fate.EXPECTED]
        start, stop = messages[message, Message.START], taken[message]
        served = expected[entry, Expected.NAME]
        # The first who was subscribed for certain: of a group, others count only if it was there.
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
        first = last = _place(connections, served, name)
        while (
            last < len(connections)
            and connections[last, Connection.SERVED_AS] == served
            and connections[last, Connection.NAME] == name
        ):
            last += 1
        verdict, connection = _UNDECIDED, NONE
        if first < last and connections[first, Connection.IS_SHOWN]:
            verdict, connection = _absence(
                connections, first, last, start, stop, qos, sent_ns[message], expires_s[message]
            )
        if verdict != MISSED:
            found += 1
            fates[row, Fate.VERDICT] = verdict
            fates[row, Fate.CLIENT] = (
                NONE if connection == NONE else connections[connection, Connection.CLIENT]
            )
    return found


@piece
def _absence(
    connections: Grid, first: int, last: int, start: int, stop: int, qos: int, sent_ns: int,
    expires_s: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the verdict, and the connection that the message was missed on."""
    behind = _behind(connections, first, last, stop)
    connection = behind - 1
    closed = connections[connection, Connection.CLOSED] if connection >= first else NONE
    if connection >= first and not NONE < closed < start:
        until = connections[connection, Connection.UNTIL]
        is_certain = connections[connection, Connection.ACCEPTED] < start and (
            until == NONE or stop <= until
        )
        if not is_certain or connections[connection, Connection.IS_DAMAGED]:
            return _UNDECIDED, connection
        return MISSED, connection
    if qos == 0:
        return _OFFLINE, NONE
    if behind == last:
        return _QUEUED, NONE
    if not connections[behind, Connection.MAY_GO_ON]:
        return _DISCARDED, behind
    opened_ns = connections[behind, Connection.OPENED_NS]
    has_times = sent_ns != NO_TIME and opened_ns != NO_TIME
    # An expiry has 32 bits: its nanoseconds fit.
    if expires_s != NONE and has_times and opened_ns - sent_ns >= expires_s * _NS_PER_S:
        return _EXPIRED, behind
    if connections[behind, Connection.IS_DAMAGED]:
        return _UNDECIDED, behind
    return MISSED, behind
