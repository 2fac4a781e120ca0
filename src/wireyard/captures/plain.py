"""Which streams of a capture can be read together: those whose first bytes surely show a format.

Nothing is missing of them, and they are found by columns; no stream is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Final

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import DecodeAs
from wireyard.captures.connections import StreamTable
from wireyard.captures.flows import Endpoint
from wireyard.formats import FIRST_BYTES, Format, get_format
from wireyard.formats.base import Shown

__all__ = ["APART", "Plain", "are_enough", "find_plain", "without_gaps"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

LEAST_STREAMS = 64
"""Of fewer streams of a format each is read by itself before the kernels for many are loaded."""
_HEAD_BYTES: Final = 72
"""As much of a stream as any format looks at."""
APART: Final = -1
"""In place of the number of a format: a stream that is read by itself."""


@dataclass(frozen=True)
class Plain:
    """The streams of a table that can be read together, and how.

    Shapes: all (t); what is said of a stream that is read by itself means nothing.
    """

    formats: Sequence[Format]
    numbers: Ints
    """The place of its format in `formats`; -1 of a stream that is read by itself."""
    firsts: Ints
    """The context of the first packet."""
    followings: Ints
    """The context of the packets behind one that a client opens a connection with."""
    clients: Flags
    """Whether a stream shows that a client opens the connection."""

    @classmethod
    def none_of(cls, count: int, formats: Sequence[Format] = ()) -> Plain:
        """Return that all streams of a table are read by themselves."""
        firsts, followings = np.zeros((2, count), np.int64)
        return cls(formats, np.full(count, APART), firsts, followings, np.zeros(count, np.bool_))

    @cached_property
    def there(self) -> Flags:
        """Whether a stream can be read together with others."""
        there: Flags = self.numbers != APART
        return there

    def places(self, named: Format | None) -> Ints:
        """Return the places in the table of the streams of a format; of all of them if None."""
        of_format = [named is None or named.name == each.name for each in self.formats]
        return np.flatnonzero(np.array([*of_format, False])[self.numbers])

    def format_at(self, place: int) -> Format:
        """Return the format of a stream that can be read together with others."""
        return self.formats[int(self.numbers[place])]

    def opened(self, table: StreamTable) -> Iterator[tuple[Endpoint, str]]:
        """Yield the endpoints that clients opened connections to, and in which format."""
        for number, format in enumerate(self.formats):
            rows = np.flatnonzero(self.clients & (self.numbers == number))
            servers = table.flows.unlike(table.conversations[rows], table.ways[rows] ^ 1)
            yield from ((server, format.name) for server in servers)


def are_enough(streams: int) -> bool:
    """Return whether so many streams are read faster together than each by itself."""
    return streams >= LEAST_STREAMS


def find_plain(
    table: StreamTable, rules: Sequence[DecodeAs] = (), named: Format | None = None
) -> Plain:
    """Return the streams of connections that begin as those of one format do, and have no gap.

    Parameters
    ----------
    rules, named
        Those of `assign_formats`.
    """
    rows = without_gaps(table)
    data, bounds = _heads(table, rows)
    bases, at = _by_first_bytes(data[bounds[:-1]])
    if not bases:
        return Plain.none_of(len(table))
    formats, at = _by_rules(table, rows, bases, at, rules, named)
    contexts = np.array([*(each.context for each in formats), 0])[at]
    shown, answers = np.zeros(len(rows), np.uint8), contexts.copy()
    for base in bases:
        own = np.array([*(each.name == base.name for each in formats), False])[at]
        sniffed = answers[own]
        sniff_heads = import_module(base.fast_path).sniff_heads
        shown[own] = sniff_heads(data, bounds[:-1][own], bounds[1:][own], sniffed)
        answers[own] = sniffed
    return _of_connections(table, rows, formats, at, shown, contexts, answers)


def without_gaps(table: StreamTable) -> Ints:
    """Return the places of the streams of TCP without a gap."""
    tcp = [at for at, one in enumerate(table.found) if one.protocol == "tcp"]
    if not tcp:
        return np.empty(0, np.int64)
    found, rows = table.found[tcp[0]], np.flatnonzero(table.protocols == tcp[0])
    sides = table.sides[rows]
    filled = found.run_bounds[sides] < found.run_bounds[sides + 1]
    whole: Ints = rows[filled & (found.brought()[sides] == found.sizes[sides])]
    return whole


def _heads(table: StreamTable, rows: Ints) -> tuple[Bytes, Ints]:
    """Return the first bytes of streams of TCP, of their first segments alone, and their bounds."""
    if not len(rows):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    found = table.found[int(table.protocols[rows[0]])]
    first = found.run_bounds[table.sides[rows]]
    lengths = np.minimum(found.runs.lengths[first], _HEAD_BYTES)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    data = np.empty(int(bounds[-1]), np.uint8)
    table.content.places.copy(found.runs.starts[first], lengths, data)
    return data, bounds


def _by_first_bytes(firsts: Bytes) -> tuple[list[Format], Ints]:
    """Return the formats that enough streams may be of, and the place in them of each stream's."""
    counts, places = np.bincount(firsts, minlength=256), np.full(256, APART)
    formats: list[Format] = []
    for name in dict.fromkeys(FIRST_BYTES.values()):
        own = [byte for byte, each in FIRST_BYTES.items() if each == name]
        if are_enough(counts[own].sum()):
            places[own] = len(formats)
            formats.append(get_format(name))
    return formats, places[firsts]


def _by_rules(
    table: StreamTable,
    rows: Ints,
    bases: Sequence[Format],
    at: Ints,
    rules: Sequence[DecodeAs],
    named: Format | None,
) -> tuple[list[Format], Ints]:
    """Return the formats as a caller wants them read, and the place in them of each stream's.

    A stream that begins as that of another format than a rule names is read by itself.
    """
    formats: list[Format] = []

    def place_of(format: Format) -> int:
        if named is not None and named.dialect and named.name == format.name:
            format = named
        if format not in formats:
            formats.append(format)
        return formats.index(format)

    found = np.array([*map(place_of, bases), APART])[at]
    ports = [table.flows.ports(table.conversations[rows], table.ways[rows] ^ end) for end in (0, 1)]
    for rule in reversed(rules):
        if rule.transport == "tcp":
            own = (ports[0] == rule.port) | (ports[1] == rule.port)
            agree = [each.name == rule.format.name for each in bases]
            places = [place_of(rule.format) if one else APART for one in agree]
            found[own] = np.array([*places, APART])[at[own]]
    return formats, found


def _of_connections(
    table: StreamTable,
    rows: Ints,
    formats: Sequence[Format],
    at: Ints,
    shown: Bytes,
    contexts: Ints,
    answers: Ints,
) -> Plain:
    """Return the streams of connections of which each stream shows the format.

    Parameters
    ----------
    at
        The place in `formats` of the format of each stream of `rows`.
    contexts, answers
        The context of its dialect, and that of a stream that answers it.
    """
    begun = table.found[int(table.protocols[rows[0]])].begun[table.sides[rows]]
    connections = table.connections
    alone = np.ones(len(table), np.bool_)
    both = np.flatnonzero(connections[1:] == connections[:-1])
    alone[both] = alone[both + 1] = False
    sure = (shown == Shown.CLIENT) | (shown == Shown.EITHER)
    there, firsts = sure & alone[rows], contexts.copy()
    first = np.flatnonzero(np.diff(connections[rows]) == 0)
    agree = (shown[first] != Shown.NOTHING) & (shown[first + 1] != Shown.NOTHING)
    agree &= (at[first] == at[first + 1]) & (sure[first] | sure[first + 1])
    first = first[agree]
    for ours, theirs in ((first, first + 1), (first + 1, first)):
        there[ours] = True
        # What a server's stream begins with proves nothing where that may be inside a packet.
        decides = (shown[theirs] == Shown.CLIENT) | begun[theirs]
        firsts[ours] = np.where(decides, answers[theirs], contexts[ours])
    clients = shown == Shown.CLIENT
    plain = Plain.none_of(len(table), formats)
    plain.numbers[rows] = np.where(there, at, APART)
    plain.firsts[rows] = firsts
    plain.followings[rows] = np.where(clients, answers, firsts)
    plain.clients[rows] = clients
    return plain
