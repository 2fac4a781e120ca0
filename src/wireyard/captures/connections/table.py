"""Connections of TCP and UDP as columns, and the table of their streams."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bools, Bytes, Grid, Ints
from wireyard.captures.connections.flows import FlowTable, stream_name
from wireyard.captures.connections.stream import Content, Runs, Stream, previous_stops
from wireyard.captures.connections.tcp_kernels import NONE
from wireyard.captures.records import NO_TIME

ENDINGS: Final = (None, "fin", "rst")
"""The possible ends of a stream; None if no end was captured."""
_LATEST: Final = (1 << 63) - 1


class Endings(NamedTuple):
    """The captured ends of streams. Shapes: (t)."""

    records: Ints
    """The record of the packet that first showed the end; `NONE` without one."""
    kinds: Bytes
    """Index into `ENDINGS`."""


class Connections(NamedTuple):
    """Connections of one protocol; connection e has the sides 2 e and 2 e + 1.

    Shapes: conversations, first_records, first_ways (e); sizes, opened, begun, captured, reset,
    finished, closing_records (s); run_bounds (s + 1); runs (u).
    """

    protocol: str
    conversations: Ints
    first_records: Ints
    """The record of each connection's first packet."""
    first_ways: Ints
    """The direction of that packet."""
    sizes: Ints
    opened: Bools
    begun: Bools
    captured: Bools
    """Whether there are packets of each side, be it without bytes."""
    reset: Bools
    finished: Bools
    closing_records: Ints
    """The record of the first packet with a FIN or RST; `NONE` without one."""
    run_bounds: Ints
    runs: Runs

    def brought(self) -> Ints:
        """Return the captured bytes of each side, those in its runs. Shapes: (s)."""
        return self._reduced(np.add, self.runs.lengths, 0)

    def gap_counts(self) -> Ints:
        """Return the number of gaps of each side. Shapes: (s)."""
        filled = self.run_bounds[:-1] < self.run_bounds[1:]
        stops = self.runs.stops
        before = previous_stops(stops, self.run_bounds[:-1][filled])
        counts = self._reduced(np.add, (self.runs.offsets > before).astype(np.int64), 0)
        ends = np.zeros(len(self.sizes), np.int64)
        ends[filled] = stops[self.run_bounds[1:][filled] - 1]
        return counts + (self.sizes > ends)

    def spans_ns(self, times_ns: Ints) -> tuple[Ints, Ints]:
        """Return the times of the first and of the last packet with bytes of each side.

        `NO_TIME` for a side without times. Shapes: times_ns (u), one for each run; results (s).
        """
        last = self._reduced(np.maximum, times_ns, NO_TIME)
        if len(times_ns) and times_ns.min() == NO_TIME:  # which is the least integer
            times_ns = np.where(times_ns == NO_TIME, _LATEST, times_ns)
        first = self._reduced(np.minimum, times_ns, NO_TIME)
        return np.where(last == NO_TIME, NO_TIME, first), last

    def endings(self, sides: Ints) -> Endings:
        """Return the ends of some sides; a reset from one without bytes ends the other's too."""
        silent = self.reset[sides ^ 1] & (self.sizes[sides ^ 1] == 0)
        ours, theirs = self.closing_records[sides], self.closing_records[sides ^ 1]
        first = np.where(ours == NONE, theirs, np.minimum(ours, theirs))
        kinds = np.where(self.reset[sides] | silent, 2, self.finished[sides])
        return Endings(np.where(silent, first, ours), kinds.astype(np.uint8))

    def _reduced(self, reduce: np.ufunc, values: Ints, without: int) -> Ints:
        """Reduce the values of the runs of each side to one; `without` if it has no runs."""
        found = np.full(len(self.sizes), without, np.int64)
        filled = self.run_bounds[:-1] < self.run_bounds[1:]
        if filled.any():  # sides that are left out have no runs, so the ranges stay adjacent
            found[filled] = reduce.reduceat(values, self.run_bounds[:-1][filled])
        return found


class StreamTable(Sequence[Stream]):
    """The streams of a capture with bytes, as columns; a `Stream` is created on access.

    Streams are in the order of their connections' first packets; in a connection, the side that
    sent the first packet comes first. A connection without bytes has no streams, but counts for the
    ``#n`` in the names of later ones.

    Shapes: protocols, sides, connections, conversations, ordinals, rows (t).
    """

    def __init__(
        self, protocols: Sequence[Connections], flows: FlowTable, content: Content
    ) -> None:
        self.found = protocols
        self.flows, self.content = flows, content
        self.times_ns = [content.times_of(each.runs.records) for each in protocols]
        """The times of the runs, for each protocol."""
        counts = [len(each.conversations) for each in protocols]
        protocol = np.repeat(np.arange(len(protocols)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        first_record = np.concatenate([each.first_records for each in protocols])
        conversation = np.concatenate([each.conversations for each in protocols])
        ordinal = _ordinals(_endpoints(flows, conversation), first_record)
        there = np.concatenate([each.sizes.reshape(-1, 2) for each in protocols]) > 0
        order = np.argsort(first_record, kind="stable")
        order = order[there[order].any(axis=1)]
        first = np.concatenate([each.first_ways for each in protocols])[order]
        ways = np.stack([first, 1 - first], axis=1)
        kept = there[order[:, np.newaxis], ways]
        places = np.broadcast_to(order[:, np.newaxis], kept.shape)[kept]
        self.protocols: Ints = protocol[places]
        """Index into `found`, the connections of each protocol."""
        self.sides: Ints = 2 * number[places] + ways[kept]
        """Index of each stream among the sides of its protocol."""
        self.conversations: Ints = conversation[places]
        self.ordinals: Ints = ordinal[places]
        """Number of the connection, from 1 on, among those of the same endpoints."""
        self.connections: Ints = places
        """Number of the connection, the same for both of its streams, which are adjacent."""

    @cached_property
    def sizes(self) -> Ints:
        """Bytes of each stream, including gaps."""
        return self._of_sides([each.sizes for each in self.found])

    @cached_property
    def gap_bytes(self) -> Ints:
        """Bytes of each stream that were not captured."""
        return self._of_sides([each.sizes - each.brought() for each in self.found])

    @cached_property
    def gap_counts(self) -> Ints:
        """Number of gaps of each stream."""
        return self._of_sides([each.gap_counts() for each in self.found])

    @cached_property
    def endings(self) -> Endings:
        """The ends of the streams."""
        records, kinds = np.full(len(self), NONE, np.int64), np.zeros(len(self), np.uint8)
        for protocol, each in enumerate(self.found):
            own = self.protocols == protocol
            records[own], kinds[own] = each.endings(self.sides[own])
        return Endings(records, kinds)

    @cached_property
    def spans_ns(self) -> Grid:
        """The times of the first and of the last packet with bytes of each stream.

        `NO_TIME` for streams without times. Shapes: (2, t).
        """
        spans_ns = np.full((2, len(self)), NO_TIME)
        for protocol, each in enumerate(self.found):
            own = self.protocols == protocol
            for side, found in zip(spans_ns, each.spans_ns(self.times_ns[protocol]), strict=True):
                side[own] = found[self.sides[own]]
        return spans_ns

    @property
    def ways(self) -> Ints:
        """The direction of each stream in its conversation."""
        return self.sides & 1

    def endpoint_names(self, places: Ints) -> tuple[list[str], list[str]]:
        """Return the source and the target endpoints of streams, as text."""
        conversations, ways = self.conversations[places], self.ways[places]
        names = self.flows.names(conversations, ways, np.ones(len(places), np.int64)).to_pylist()
        pairs = [name.split(">") for name in names]
        return [src for src, _ in pairs], [dst for _, dst in pairs]

    def _of_sides(self, values: Sequence[Ints]) -> Ints:
        """Return the value of each stream, given those of all sides of each protocol."""
        found = np.zeros(len(self), np.int64)
        for protocol, of_sides in enumerate(values):
            own = self.protocols == protocol
            found[own] = of_sides[self.sides[own]]
        return found

    def __len__(self) -> int:
        return len(self.sides)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self.stream(place) for place in range(*at.indices(len(self)))]
        return self.stream(range(len(self))[at])

    def runs_of(self, places: Ints) -> tuple[Ints, Ints]:
        """Return the runs of streams of one protocol, one behind the other, and how many each has.

        They are numbers of runs of the protocol.
        """
        sides = self.sides[places]
        bounds = self.found[int(self.protocols[places[0]])].run_bounds
        counts = bounds[sides + 1] - bounds[sides]
        before = np.cumsum(counts) - counts
        runs = np.repeat(bounds[sides] - before, counts) + np.arange(int(counts.sum()))
        return runs, counts

    def keep(self, wanted: Bools) -> StreamTable:
        """Return the table with only some of its streams."""
        kept = copy(self)
        for name in ("protocols", "sides", "conversations", "ordinals", "connections"):
            setattr(kept, name, getattr(self, name)[wanted])
        for name in ("sizes", "gap_bytes", "gap_counts", "endings", "spans_ns"):
            kept.__dict__.pop(name, None)
        return kept

    def stream(self, place: int) -> Stream:
        """Return a stream by its index in the table."""
        protocol, side = int(self.protocols[place]), int(self.sides[place])
        found, times_ns = self.found[protocol], self.times_ns[protocol]
        way = side & 1
        endpoints = self.flows.endpoints(int(self.conversations[place]))
        src, dst = endpoints[way], endpoints[1 - way]
        closing = int(self.endings.records[place])
        run = slice(int(found.run_bounds[side]), int(found.run_bounds[side + 1]))
        return Stream(
            name=stream_name(src, dst, int(self.ordinals[place])),
            protocol=found.protocol,
            src=src,
            dst=dst,
            size=int(found.sizes[side]),
            opened=bool(found.opened[side]),
            begun=bool(found.begun[side]),
            paired=bool(found.captured[side ^ 1]),
            ended=ENDINGS[self.endings.kinds[place]],
            closing_record=None if closing == NONE else closing,
            runs=Runs(*(column[run] for column in found.runs)),
            times_ns=times_ns[run],
            content=self.content,
        )


def _endpoints(flows: FlowTable, conversations: Ints) -> Ints:
    """Return a number for the endpoints of each connection."""
    protocols = flows.protocols()
    if len(protocols) and (protocols == protocols[0]).all() and not flows.has_networks():
        return conversations  # one for each pair of endpoints
    return flows.endpoint_pairs()[conversations]


def _ordinals(groups: Ints, times: Ints) -> Ints:
    """Return the rank, from 1 on, of each member in its group by time."""
    if not len(groups) or np.bincount(groups).max() == 1:
        return np.ones(len(groups), np.int64)
    order = np.lexsort((times, groups))
    places = np.arange(len(order))
    begins = np.r_[True, np.diff(groups[order]) != 0][: len(order)]
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
    return ordinals
