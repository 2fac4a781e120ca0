"""The formats of a table's streams as columns, and detection of those of many in one call.

Plain streams are TCP streams of connections whose first bytes identify their format. They are
detected by columns, and read together, without a `Stream` for each. The first bytes of connections
that began before the capture show no format. For the format that has `confirm_start`, a kernel
finds those that are certain to consist of its whole packets; all others are examined one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Final

import numpy as np

from wireyard.arena import pooled
from wireyard.arrays import Bools, Bytes, Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.table import StreamTable
from wireyard.captures.detection.assignment import (
    HEAD_BYTES,
    LEAST_BYTES,
    DecodeAs,
    decide_format,
)
from wireyard.formats import FIRST_BYTES, Format, get_format, sniff
from wireyard.formats.base import Shown
from wireyard.streams.window import WINDOW_BYTES

LEAST_STREAMS = 64
"""Fewer streams of a format are read one by one: to load the kernels for many takes longer."""
_MOST_EARLIER_BYTES: Final = 1 << 16
"""Size of the largest stream that is examined by `find_earlier`."""
APART: Final = -1
"""Instead of the index of a format: that is unknown, or the stream is not as the table has it."""


@dataclass(frozen=True)
class Known:
    """The formats and contexts of the streams of a table.

    Shapes: all (t); only `numbers` is defined for a stream that is `APART`.
    """

    formats: Sequence[Format]
    numbers: Ints
    """Index of the format in `formats`, or `APART`."""
    firsts: Ints
    """Context of the first packet."""
    followings: Ints
    """Context of the packets after one with which a client opens the connection."""
    clients: Bools
    """Whether the stream begins with a packet with which a client opens the connection."""
    alone: Bools
    """Whether the stream is not plain, so that it is read by itself."""

    @classmethod
    def none_of(cls, count: int, formats: Sequence[Format] = ()) -> Known:
        """Return a value for a table of `count` streams, none of whose formats are known."""
        firsts, followings = np.zeros((2, count), np.int64)
        never = np.zeros((2, count), np.bool_)
        return cls(formats, np.full(count, APART), firsts, followings, *never)

    @cached_property
    def is_known(self) -> Bools:
        """Whether the format of a stream is known."""
        is_known: Bools = self.numbers != APART
        return is_known

    def indexes(self, named: Format | None) -> Ints:
        """Return the indexes in the table of the streams of a format; of all if None."""
        of_format = [named is None or named.name == each.name for each in self.formats]
        return np.flatnonzero(np.array([*of_format, False])[self.numbers])

    def format_at(self, index: int) -> Format:
        """Return the format of a stream by its index in the table."""
        return self.formats[int(self.numbers[index])]

    def opened(self, table: StreamTable) -> Iterator[tuple[Endpoint, str]]:
        """Yield the endpoints that clients opened connections to, each with its format."""
        for number, format in enumerate(self.formats):
            rows = np.flatnonzero(self.clients & (self.numbers == number))
            servers = table.flows.unlike(table.conversations[rows], table.ways[rows] ^ 1)
            yield from ((server, format.name) for server in servers)


def are_enough(streams: int) -> bool:
    """Return whether this many streams are read faster together than one by one."""
    return streams >= LEAST_STREAMS


def find_plain(
    table: StreamTable, rules: Sequence[DecodeAs] = (), named: Format | None = None
) -> Known:
    """Find the connections all of whose streams begin like one format.

    A stream whose first bytes were not captured has the format of the other stream. `rules` and
    `named` are as for `find_formats`.
    """
    rows = _with_captured_bytes(table)
    data, bounds = _heads(table, rows)
    headless = np.diff(bounds) == 0
    firsts = np.zeros(len(rows), np.uint8)
    firsts[~headless] = data[bounds[:-1][~headless]]
    bases, numbers = _by_first_bytes(firsts)
    first = np.flatnonzero(np.diff(table.connections[rows]) == 0)
    for ours, theirs in ((first, first + 1), (first + 1, first)):
        numbers[ours] = np.where(headless[ours], numbers[theirs], numbers[ours])
    if not bases:
        return Known.none_of(len(table))
    formats, numbers = _by_rules(table, rows, bases, numbers, rules, named)
    contexts = np.array([*(each.context for each in formats), 0])[numbers]
    shown, answers = np.zeros(len(rows), np.uint8), contexts.copy()
    for base in bases:
        own = np.array([*(each.name == base.name for each in formats), False])[numbers]
        sniffed = answers[own]
        sniff_heads = import_module(base.columnar.module).sniff_heads
        shown[own] = sniff_heads(data, bounds[:-1][own], bounds[1:][own], sniffed)
        answers[own] = sniffed
    return _of_connections(table, rows, formats, numbers, shown, headless, contexts, answers)


def _with_captured_bytes(table: StreamTable) -> Ints:
    """Return the indexes of the TCP streams that have captured bytes."""
    numbers = [number for number, each in enumerate(table.found) if each.protocol == "tcp"]
    if not numbers:
        return np.empty(0, np.int64)
    tcp, rows = table.found[numbers[0]], np.flatnonzero(table.protocols == numbers[0])
    sides = table.sides[rows]
    filled: Ints = rows[tcp.run_bounds[sides] < tcp.run_bounds[sides + 1]]
    return filled


def _without_gaps(table: StreamTable) -> Ints:
    """Return the indexes of the TCP streams that have bytes, and no gap."""
    rows = _with_captured_bytes(table)
    whole: Ints = rows[table.gap_bytes[rows] == 0]
    return whole


def _heads(table: StreamTable, rows: Ints) -> tuple[Bytes, Ints]:
    """Return the first bytes of TCP streams, from their first segments only, and the bounds.

    A stream whose first byte was not captured has none.
    """
    if not len(rows):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    tcp = table.found[int(table.protocols[rows[0]])]
    first = tcp.run_bounds[table.sides[rows]]
    lengths = np.minimum(tcp.runs.lengths[first], HEAD_BYTES) * (tcp.runs.offsets[first] == 0)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    data = np.empty(int(bounds[-1]), np.uint8)
    table.content.places.copy(tcp.runs.starts[first], lengths, data)
    return data, bounds


def _by_first_bytes(firsts: Bytes) -> tuple[list[Format], Ints]:
    """Return the formats that enough streams may have, and the index of each stream's format."""
    counts, numbers = np.bincount(firsts, minlength=256), np.full(256, APART)
    formats: list[Format] = []
    for name in dict.fromkeys(FIRST_BYTES.values()):
        own = [byte for byte, each in FIRST_BYTES.items() if each == name]
        if are_enough(counts[own].sum()):
            numbers[own] = len(formats)
            formats.append(get_format(name))
    return formats, numbers[firsts]


def _by_rules(
    table: StreamTable,
    rows: Ints,
    bases: Sequence[Format],
    numbers: Ints,
    rules: Sequence[DecodeAs],
    named: Format | None,
) -> tuple[list[Format], Ints]:
    """Apply the rules and the named dialect; return the formats, and the index of each stream's.

    A stream that begins like another format than its rule has is read by itself. `bases` and
    `numbers` are the result of `_by_first_bytes`.
    """
    formats: list[Format] = []

    def number_of(format: Format) -> int:
        if named is not None and named.dialect and named.name == format.name:
            format = named
        if format not in formats:
            formats.append(format)
        return formats.index(format)

    assigned = np.array([*map(number_of, bases), APART])[numbers]
    ports = [table.flows.ports(table.conversations[rows], table.ways[rows] ^ end) for end in (0, 1)]
    for rule in reversed(rules):
        if rule.transport == "tcp":
            own = (ports[0] == rule.port) | (ports[1] == rule.port)
            agree = [each.name == rule.format.name for each in bases]
            of_bases = [number_of(rule.format) if same else APART for same in agree]
            assigned[own] = np.array([*of_bases, APART])[numbers[own]]
    return formats, assigned


def _of_connections(
    table: StreamTable,
    rows: Ints,
    formats: Sequence[Format],
    numbers: Ints,
    shown: Bytes,
    headless: Bools,
    contexts: Ints,
    answers: Ints,
) -> Known:
    """Return the streams of the connections all of whose streams show the same format.

    For each stream of `rows`, `numbers` has the index in `formats` of its format, `shown` a value
    of `Shown`, and `headless` whether its first bytes were not captured. `contexts` has the context
    of its dialect, and `answers` that of the stream that answers it.
    """
    begun = table.found[int(table.protocols[rows[0]])].begun[table.sides[rows]]
    connections = table.connections
    alone = np.ones(len(table), np.bool_)
    both = np.flatnonzero(connections[1:] == connections[:-1])
    alone[both] = alone[both + 1] = False
    sure = (shown == Shown.CLIENT) | (shown == Shown.EITHER)
    is_plain, firsts = sure & alone[rows], contexts.copy()
    first = np.flatnonzero(np.diff(connections[rows]) == 0)
    fits = (shown != Shown.NOTHING) | headless
    agree = fits[first] & fits[first + 1]
    agree &= (numbers[first] == numbers[first + 1]) & (sure[first] | sure[first + 1])
    first = first[agree]
    for ours, theirs in ((first, first + 1), (first + 1, first)):
        is_plain[ours] = True
        # If the beginning of a server's stream was not captured, it may begin inside a packet.
        decides = (shown[theirs] == Shown.CLIENT) | (begun & ~headless)[theirs]
        firsts[ours] = np.where(decides, answers[theirs], contexts[ours])
    clients = shown == Shown.CLIENT
    plain = Known.none_of(len(table), formats)
    plain.numbers[rows] = np.where(is_plain, numbers, APART)
    plain.firsts[rows] = firsts
    plain.followings[rows] = np.where(clients, answers, firsts)
    plain.clients[rows] = clients
    return plain


# --- connections that began before the capture -----------------------------------------------


@dataclass(frozen=True)
class Earlier:
    """Streams that need a rule or an endpoint to show their format.

    They consist of packets of one format, or have too few bytes for a packet of any.

    Shapes: indexes, contexts (t).
    """

    format: Format | None
    """None if there are no streams."""
    indexes: Ints
    """Indexes in the table, ascending; both streams of a connection follow each other."""
    contexts: Ints
    """Contexts of their packets if the format has no dialect; negative without a packet."""

    @classmethod
    def none(cls) -> Earlier:
        """Return a value without streams."""
        return cls(None, np.empty(0, np.int64), np.empty(0, np.int64))

    def add_to(
        self,
        plain: Known,
        table: StreamTable,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> Known:
        """Return `plain` with those of these streams whose format a rule or an endpoint confirms.

        `rules`, `services` and `named` are as for `decide_format`.
        """
        formats, numbers = [*plain.formats], plain.numbers.copy()
        firsts = plain.firsts.copy()
        begins = np.flatnonzero(np.diff(table.connections[self.indexes], prepend=-1))
        streams, of_connections = self.indexes[begins], []
        conversations, ways = table.conversations[streams].tolist(), table.ways[streams].tolist()
        own_name = None if self.format is None else self.format.name
        are_packets = (self.contexts[begins] >= 0).tolist()
        for conversation, way, is_packets in zip(conversations, ways, are_packets, strict=True):
            ends = table.flows.endpoints(conversation)[:: -1 if way else 1]
            format = decide_format(ends, rules, services, named)
            if format is None or (is_packets and format.name != own_name):
                of_connections.append(APART)
                continue
            if format not in formats:
                formats.append(format)
            of_connections.append(formats.index(format))
        found = np.repeat(of_connections, np.diff(begins, append=len(self.indexes)))
        own = found != APART
        contexts = np.array([*(each.context for each in formats), 0])[found]
        contexts = np.where(contexts != 0, contexts, np.maximum(self.contexts, 0))
        numbers[self.indexes[own]], firsts[self.indexes[own]] = found[own], contexts[own]
        apart = plain.numbers == APART
        followings = np.where(apart, firsts, plain.followings)
        return replace(
            plain, formats=formats, numbers=numbers, firsts=firsts, followings=followings
        )


def find_earlier(table: StreamTable, plain: Known) -> Earlier:
    """Find the connections that are certain to consist of whole packets of a format.

    So are those of too few bytes for a packet, of which there may be many. Plain streams are left
    out.
    """
    rows = _without_gaps(table)
    rows = rows[~plain.is_known[rows] & (table.sizes[rows] <= _MOST_EARLIER_BYTES)]
    # Drop connections of which a stream is missing here.
    connections = table.connections
    streams = np.bincount(connections)
    rows = rows[
        (np.bincount(connections[rows], minlength=len(streams)) == streams)[connections[rows]]
    ]
    if not are_enough(len(rows)):
        return Earlier.none()
    formats = map(get_format, dict.fromkeys(FIRST_BYTES.values()))
    format = next(each for each in formats if each.evidence.confirm_start is not None)
    find_contexts = import_module(format.columnar.module).find_contexts
    contexts = np.concatenate(
        [
            find_contexts(data, bounds, firsts).repeat(np.diff(firsts))
            for data, bounds, firsts in _read(table, rows)
        ]
    )
    is_certain = (contexts >= 0) | _show_nothing(table, rows)
    return Earlier(format, rows[is_certain], contexts[is_certain])


def _show_nothing(table: StreamTable, rows: Ints) -> Bools:
    """Return which streams belong to connections of a byte each way, which shows no format."""
    begins = np.flatnonzero(np.diff(table.connections[rows], prepend=-1))
    counts = np.diff(begins, append=len(rows))
    tiny = (np.maximum.reduceat(table.sizes[rows], begins) < LEAST_BYTES).repeat(counts)
    shows = np.array([sniff(bytes((byte,))) is not None for byte in range(256)])
    shown = ~tiny
    shown[tiny] = shows[_heads(table, rows[tiny])[0]]
    nothing: Bools = ~np.logical_or.reduceat(shown, begins).repeat(counts)
    return nothing


def _read(table: StreamTable, rows: Ints) -> Iterator[tuple[Bytes, Ints, Ints]]:
    """Yield the bytes of streams in batches of connections of about a window each.

    A batch has the bytes of the streams, the bounds of each, and the first stream of each
    connection.
    """
    places, all_runs = table.content.places, table.found[int(table.protocols[rows[0]])].runs
    sizes = table.sizes[rows]
    begins = np.flatnonzero(np.diff(table.connections[rows], prepend=-1))
    windows = (np.cumsum(sizes) // WINDOW_BYTES)[begins]
    bounds = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(begins)]
    begins = np.append(begins, len(rows))
    for first, stop in pairwise(bounds):
        batch = slice(int(begins[first]), int(begins[stop]))
        runs, _ = table.runs_of(rows[batch])
        data = pooled(int(sizes[batch].sum()), np.uint8)
        places.copy(all_runs.starts[runs], all_runs.lengths[runs], data)
        firsts = begins[first : stop + 1] - begins[first]
        yield data, np.concatenate([[0], np.cumsum(sizes[batch])]), firsts
