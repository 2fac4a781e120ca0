"""Numbers for positions, clients and topics, so that columns and kernels have integers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from wireyard.accelerate import array, kernel
from wireyard.arrays import Bools, Ints
from wireyard.layers.mqtt.grids import NONE
from wireyard.layers.mqtt.packets import NO_TIME, KnownStream
from wireyard.layers.records import Position, position_of

__all__ = ["Numbers", "Positions", "joined", "values_at"]

T = TypeVar("T")
_LONGEST_TIE: Final = 64
_INTS: Final = array("int64")


class Positions:
    """Numbered positions: first those in columns, then those added one by one.

    Parameters
    ----------
    columns
        Tables, each with a prefix of the names of its columns.
    """

    def __init__(self, streams: Sequence[KnownStream], *columns: tuple[pa.Table, str]) -> None:
        self._streams = streams
        self._columns = {
            name: np.concatenate(
                [table[f"{prefix}_{name}"].to_numpy() for table, prefix in columns]
            )
            for name in ("reached_ns", "reached_frame", "stream", "offset", "ns", "frame")
        }
        self._count = len(self._columns["ns"])
        self._firsts: dict[tuple[int, str], int] = {}
        first = 0
        for table, prefix in columns:
            self._firsts[id(table), prefix] = first
            first += table.num_rows
        self._added: list[Position] = []
        self._places: dict[tuple[str, str], int] = {}
        self._wholes: dict[str, Ints] = {}

    def of(self, table: pa.Table, prefix: str) -> Ints:
        """Return the numbers of the positions in columns; -1 where a position is absent."""
        first = self._firsts[id(table), prefix]
        numbers = np.arange(first, first + table.num_rows)
        is_present = self._columns["reached_ns"][numbers] != NO_TIME
        return np.where(is_present, numbers, NONE)

    def add(self, position: Position | None) -> int:
        """Add a position; return its number, -1 for None."""
        if position is None:
            return NONE
        self._added.append(position)
        return self._count + len(self._added) - 1

    def numbers(self, positions: Iterable[Position | None]) -> Ints:
        """Add positions; return their numbers."""
        return np.array([self.add(position) for position in positions], np.int64)

    def get(self, number: int) -> Position | None:
        """Return a position by number; None for -1."""
        if number == NONE:
            return None
        if number >= self._count:
            return self._added[number - self._count]
        row = {name: int(column[number]) for name, column in self._columns.items()}
        stream, ns = self._streams[row["stream"]], row["ns"]
        order = row["reached_ns"], row["reached_frame"], stream.name, row["offset"]
        own = (None, None) if ns == NO_TIME else (ns, row["frame"])
        return position_of((*order, *own, stream.source))

    def at(self, number: int) -> Position:
        """Return a position by number, which is not -1."""
        position = self.get(number)
        assert position is not None
        return position

    def _stream(self, position: Position) -> int:
        if not self._places:
            self._places = {(s.source, s.name): place for place, s in enumerate(self._streams)}
        return self._places[position.source, position.stream]

    def ranks(self) -> Ints:
        """Return the rank of each position by number; equal positions share one, and -1 has -1."""
        ns, frame, stream, offset = (
            self._whole(name) for name in ("reached_ns", "reached_frame", "stream", "offset")
        )
        # Positions without a time are ordered stream by stream.
        ns = np.where(ns == 0, stream, ns)
        order = np.argsort(ns, kind="stable")
        if _longest_tie(ns[order]) > _LONGEST_TIE:
            order = np.lexsort((offset, frame, ns))
        ranks = np.empty(len(ns) + 1, np.int64)
        _rank(order, ns, frame, offset, ranks)
        ranks[NONE] = NONE
        return ranks

    def column(self, numbers: Ints, name: str) -> tuple[Ints, Bools]:
        """Return ``ns``, ``frame``, ``stream`` or ``offset`` of positions, and a mask of nulls."""
        values, missing = values_at(self._whole(name), numbers), numbers == NONE
        if name in ("ns", "frame"):
            missing |= (values_at(self._whole("ns"), numbers) == NO_TIME) | (values == NO_TIME)
        return np.where(missing, 0, values), missing

    def _whole(self, name: str) -> Ints:
        """Return a column of all positions, including the added ones."""
        count = self._count + len(self._added)
        column = self._wholes.get(name)
        if column is None or len(column) != count:
            added = [self._value(position, name) for position in self._added]
            column = self._wholes[name] = joined(self._columns[name], added)
        return column

    def _value(self, position: Position, name: str) -> int:
        if name == "stream":
            return self._stream(position)
        value: int | None = getattr(position, name)
        return NO_TIME if value is None else value


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


def joined(values: Ints, more: Sequence[int]) -> Ints:
    """Return an array with more values appended."""
    return np.concatenate((values, np.array(more, np.int64)))


def values_at(values: Ints, index: Ints) -> Ints:
    """Return values by index; where the index is -1, any value."""
    if not len(values):
        return np.full(len(index), NONE, np.int64)
    return values.take(index, mode="clip")


def _longest_tie(ordered: Ints) -> int:
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    return int(np.diff(bounds, prepend=0, append=len(ordered)).max(initial=0))


@kernel(_INTS(_INTS, _INTS, _INTS, _INTS, _INTS))
def _rank(order: Ints, ns: Ints, frame: Ints, offset: Ints, ranks: Ints) -> Ints:
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
    return ranks
