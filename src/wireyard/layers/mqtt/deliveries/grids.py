"""The input of the delivery kernels: positions, names and topics as numbers, rows as grids.

The kernels are in `expected_kernels` and `delivery_kernels`, which also define the columns of the
grids. Messages and attempts are grouped by topic and payload; in a group they are in order.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from wireyard.accelerate import kernel
from wireyard.arrays import Bools, Grid, Grid32, Int32s, Ints
from wireyard.layers.grouping import by_group, dense_ids
from wireyard.layers.mqtt.deliveries.topics import OWN_PREFIXES
from wireyard.layers.mqtt.grids import NO_TIME, NONE, Status
from wireyard.layers.mqtt.kernels.deliveries import VERDICT_NAMES, Delivered
from wireyard.layers.mqtt.kernels.expected import Expected, Message, Subscription
from wireyard.layers.mqtt.packets import KnownStream
from wireyard.layers.mqtt.records import Subscribed
from wireyard.layers.records import Position, position_of

T = TypeVar("T")
Columns = dict[str, Any]
"""Integers of any size by the name of a column, one for each row."""
_POSITION: Final = ("reached_ns", "reached_frame", "stream", "offset", "ns", "frame")
_REACHED_NS, _REACHED_FRAME, _STREAM, _OFFSET, _NS, _FRAME = range(len(_POSITION))
SOON_NS: Final = 10_000_000
"""A message that nothing holds up is delivered in less time."""
_LONGEST_TIE: Final = 64
_VERDICT: Final = {name: number for number, name in enumerate(VERDICT_NAMES)}


# --- numbers ---------------------------------------------------------------------------------


class Positions:
    """Numbered positions, from columns of tables and from records."""

    def __init__(self, streams: Sequence[KnownStream]) -> None:
        self._streams = streams
        self._blocks: list[Sequence[Ints]] = []
        """Positions that follow each other, by their parts."""
        self._firsts: list[int] = []
        """The first number in each block."""
        self._count = 0
        self._whole: Grid = np.empty((len(_POSITION), 0), np.int64)

    def of(self, table: pa.Table, prefix: str) -> Ints:
        """Add the positions in columns; return their numbers, -1 for absent ones."""
        return self._add([table[f"{prefix}_{name}"].to_numpy() for name in _POSITION])

    def numbers(self, positions: Iterable[Position | None]) -> Ints:
        """Add positions; return their numbers, -1 for None."""
        rows = [list(self.columns(position, "").values()) for position in positions]
        return self._add([*np.array(rows, np.int64).reshape(-1, len(_POSITION)).T])

    def _add(self, block: Sequence[Ints]) -> Ints:
        first = self._count
        self._count += len(block[_REACHED_NS])
        self._blocks.append(block)
        self._firsts.append(first)
        return np.where(block[_REACHED_NS] == NO_TIME, NONE, np.arange(first, self._count))

    def columns(self, position: Position | None, prefix: str) -> dict[str, int]:
        """Return a position as the columns of a table."""
        values = [NO_TIME, 0, 0, 0, NO_TIME, NO_TIME]
        if position is not None:
            stream = self._numbers[position.source, position.stream]
            own = (NO_TIME if one is None else one for one in (position.ns, position.frame))
            values = [position.reached_ns, position.reached_frame, stream, position.offset, *own]
        return {f"{prefix}{name}": value for name, value in zip(_POSITION, values, strict=True)}

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        return {(one.source, one.name): number for number, one in enumerate(self._streams)}

    @property
    def _all(self) -> Grid:
        """All positions, a row for each part of them."""
        if self._whole.shape[1] < self._count:
            self._whole = np.empty((len(_POSITION), self._count), np.int64)
            for part, values in zip(self._whole, zip(*self._blocks, strict=True), strict=True):
                np.concatenate(values, out=part)
            self._blocks, self._firsts = [[*self._whole]], [0]
        return self._whole

    def get(self, number: int) -> Position | None:
        """Return a position by number; None for -1."""
        return None if number == NONE else self.at(number)

    def at(self, number: int) -> Position:
        """Return a position by number, which is not -1."""
        block = bisect(self._firsts, number) - 1
        place = number - self._firsts[block]
        values = (int(part[place]) for part in self._blocks[block])
        reached_ns, reached_frame, stream, offset, ns, frame = values
        of, is_timed = self._streams[stream], ns != NO_TIME
        own = ns if is_timed else None, frame if is_timed and frame != NO_TIME else None
        return position_of((reached_ns, reached_frame, of.name, offset, *own, of.source))

    def ranks(self) -> Int32s:
        """Return the rank of each position by number; equal positions share one, and -1 has -1."""
        ns, frame, stream, offset = self._all[: _OFFSET + 1]
        # Positions without a time are ordered stream by stream.
        ns = np.where(ns == 0, stream, ns)
        order = np.argsort(ns, kind="stable")
        if _longest_tie(ns[order]) > _LONGEST_TIE:
            order = np.lexsort((offset, frame, ns))
        ranks = np.empty(self._count + 1, np.int32)
        _rank(order, ns, np.ascontiguousarray(frame), np.ascontiguousarray(offset), ranks)
        ranks[NONE] = NONE
        return ranks

    def column(self, numbers: Ints, name: str) -> tuple[Ints, Bools]:
        """Return ``ns``, ``frame``, ``stream`` or ``offset`` of positions, and a mask of nulls."""
        part = _POSITION.index(name)
        values, missing = values_at(self._all[part], numbers), numbers == NONE
        if part in (_NS, _FRAME):
            missing |= (values == NO_TIME) | (values_at(self._all[_NS], numbers) == NO_TIME)
        return np.where(missing, 0, values), missing


class Numbers(Generic[T]):
    """Numbered values: each gets the next number at its first lookup."""

    def __init__(self, first: Iterable[T] = ()) -> None:
        self.all: list[T] = list(first)
        self._numbers: dict[T, int] = {}
        for number, value in enumerate(self.all):
            self._numbers.setdefault(value, number)

    def __getitem__(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.all)
            self.all.append(value)
        return number


def values_at(values: Any, index: Ints | Int32s) -> Ints:
    """Return values by index; where the index is -1, any value."""
    if not len(values):
        return np.full(len(index), NONE, np.int64)
    found: Ints = values.take(index, mode="clip")
    return found


def _longest_tie(ordered: Ints) -> int:
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    return int(np.diff(bounds, prepend=0, append=len(ordered)).max(initial=0))


@kernel
def _rank(order: Ints, ns: Ints, frame: Ints, offset: Ints, ranks: Int32s) -> None:
    """Fill `ranks`, equal positions sharing one; sort each run of equal `ns` in `order` first."""
    latest = -1
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and ns[order[stop]] == ns[order[start]]:
            stop += 1
        for place in range(start + 1, stop):
            one = order[place]
            before = place
            while before > start:
                other = order[before - 1]
                if frame[other] < frame[one] or (
                    frame[other] == frame[one] and offset[other] <= offset[one]
                ):
                    break
                order[before] = other
                before -= 1
            order[before] = one
        for place in range(start, stop):
            one, other = order[place], order[place - 1]
            if place == start or frame[one] != frame[other] or offset[one] != offset[other]:
                latest += 1
            ranks[one] = latest
        start = stop


# --- grids -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class DeliveryGrids:
    """Messages, delivery attempts and subscriptions, and the expected deliveries of messages."""

    messages: Grid32
    """Columns of `Message`."""
    attempts: Grid32
    """Columns of `Delivered`."""
    subs: Grid32
    """Columns of `Subscription`."""
    expected: Grid32
    """Columns of `Expected`."""
    expected_subs: Ints
    """The subscriptions of expected deliveries."""
    sent_ns: Ints
    at_ns: Ints
    """When messages were sent, and attempts made; `NO_TIME` if that is unknown."""
    lost_until_ns: Ints
    """For each attempt, the end of the last span that begins before it in which packets to the
    broker were not captured; `NO_TIME` if there is none."""
    unseen_until_ns: Ints
    """The same for packets of its own stream, `SOON_NS` after it included; at least when its stream
    begins."""
    is_sparse: Bools
    """Of each attempt: whether subscriptions of its session may not have been captured."""
    groups: int
    """The number of groups."""
    first_messages: Ints = field(init=False)
    """The index of the first message of each group, then the number of messages."""
    is_shared: Bools = field(init=False)
    """Of each expected delivery: whether it is to a group."""
    assigned: Ints = field(init=False)
    """The expected delivery that each attempt belongs to, or -1."""
    ordinals: Ints = field(init=False)
    """The number of each attempt among those of its expected delivery."""
    is_unsure: Bools = field(init=False)
    """Whether an attempt may belong to several expected deliveries."""
    is_early: Bools = field(init=False)
    """Whether an attempt was captured before its message."""

    def __post_init__(self) -> None:
        attempts = len(self.attempts)
        self.first_messages = starts_of(self.messages[:, Message.GROUP], self.groups)
        first_subs = self.expected_subs[self.expected[:, Expected.FIRST]]
        self.is_shared = self.subs[first_subs, Subscription.IS_SHARED] == 1
        self.assigned = np.full(attempts, NONE, np.int64)
        self.ordinals = np.zeros(attempts, np.int64)
        self.is_unsure, self.is_early = np.zeros((2, attempts), np.bool_)

    @property
    def entry_groups(self) -> Ints:
        """The group of each expected delivery."""
        groups: Ints = self.messages[self.expected[:, Expected.MESSAGE], Message.GROUP]
        return groups.astype(np.int64)

    def subs_of(self, entry: int) -> Ints:
        """Return the subscriptions of an expected delivery."""
        first, count = self.expected[entry, [Expected.FIRST, Expected.SUBSCRIPTIONS]].tolist()
        return self.expected_subs[first : first + count]


def columns_of(table: pa.Table, *left_out: str) -> Columns:
    """Return the integers and flags of a table, but those whose names have a prefix."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if pa.types.is_integer(column.type) and not name.startswith(left_out):
            columns[name] = column.to_numpy()
    return columns


def _grid(columns: Mapping[str, Any], order: Ints, of: type[IntEnum]) -> Grid32:
    """Return columns in an order, by the names of an enumeration."""
    grid = np.empty((len(order), len(of)), np.int32)
    for column in of:
        grid[:, column] = columns[column.name.lower()]
    return grid.take(order, axis=0)


def starts_of(groups: Ints | Int32s, count: int) -> Ints:
    """Return the index at which each group begins in ascending groups, then the end."""
    return np.concatenate(([0], np.cumsum(np.bincount(groups, minlength=count))))


def group_contents(
    sent: Columns, delivered: Columns, by_start: Ints, by_at: Ints
) -> tuple[Ints, Int32s, Ints, Int32s, int]:
    """Group messages and attempts by topic and payload; keep their order within each group.

    Return the order of the messages and the group of each in that order, the same of the attempts,
    and the number of groups.
    """
    number, count = dense_ids(
        *(
            np.concatenate((sent[name][by_start], delivered[name][by_at]))
            for name in ("topic", "content_0", "content_1")
        )
    )
    of_messages, of_attempts = number[: len(by_start)], number[len(by_start) :]
    messages, _ = by_group(of_messages, count)
    attempts, _ = by_group(of_attempts, count)
    message_groups, attempt_groups = of_messages[messages], of_attempts[attempts]
    return by_start[messages], message_groups, by_at[attempts], attempt_groups, count


def message_grid(
    sent: Columns, order: Ints, groups: Int32s, ranks: Int32s, names: Ints, has_older: Ints
) -> Grid32:
    """Return messages, in the given order, as columns of `Message`.

    `names` has the number of the name of each client, `has_older` whether a topic may have more
    subscriptions.
    """
    # Refused with a reason code, or because it is malformed.
    is_refused = np.where(sent["refused"] != NONE, 1, 2 * (sent["malformed"] != 0))
    received = np.where(sent["released"] != NONE, _VERDICT["undecided"], _VERDICT["unreleased"])
    unconfirmed = np.where(sent["is_received"] != 0, received, _VERDICT["unaccepted"])
    unconfirmed = np.where(sent["is_unseen"] != 0, _VERDICT["undecided"], unconfirmed)
    columns = sent | {
        **{name: ranks[sent[name]] for name in ("sent", "start", "accepted")},
        "name": names[sent["client"]],
        "is_refused": is_refused,
        "unconfirmed": unconfirmed,
        "has_older": has_older[sent["topic"]],
    }
    grid = _grid({**columns, "group": 0, "is_left_out": 0}, order, Message)
    grid[:, Message.GROUP] = groups
    return grid


def attempt_grid(
    delivered: Columns, order: Ints, groups: Int32s, ranks: Int32s, names: Ints
) -> Grid32:
    """Return attempts, in the given order, as columns of `Delivered`."""
    status = delivered["status"]
    outcome = np.where(status & Status.LOST_ACK != 0, _VERDICT["lost_ack"], _VERDICT["delivered"])
    is_open = (delivered["qos"] > 0) & (delivered["is_acknowledged"] == 0)
    for bit, verdict in (
        (0, "in_flight"), (Status.ABANDONED, "abandoned"), (Status.UNTRACED, "undecided"),
    ):  # fmt: skip
        outcome[is_open & (status & bit == bit)] = _VERDICT[verdict]
    outcome[delivered["refused"] != NONE] = _VERDICT["refused_by_client"]
    columns = delivered | {
        **{name: ranks[delivered[name]] for name in ("at", "setter")},
        "name": names[delivered["client"]],
        "outcome": outcome,
    }
    grid = _grid({**columns, "group": 0}, order, Delivered)
    grid[:, Delivered.GROUP] = groups
    return grid


def subscription_grid(
    subs: Sequence[Subscribed], positions: Grid32, names: Numbers[Any],
    damaged: Set[tuple[str, str, str]],
) -> Grid32:  # fmt: skip
    """Return subscriptions as columns of `Subscription`.

    `positions` has for each the ranks of `asked`, `granted`, `leaving` and of the end; then 1 if
    that is an end, 0 if it is the beginning of a newer subscription. `damaged` has source, server
    and name of the clients of which packets were not captured.
    """
    grid = np.empty((len(subs), len(Subscription)), np.int32)
    filters = Numbers[str]()
    for row, one, (asked, granted, leaving, end, ends) in zip(
        grid, subs, positions.tolist(), strict=True
    ):
        broker = one.client[:2]
        row[Subscription.BEGINS] = 2 * asked
        row[Subscription.ENDS] = NONE if end == NONE else 2 * end + ends
        row[Subscription.GRANTED], row[Subscription.LEAVING] = granted, leaving
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
