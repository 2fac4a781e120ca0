"""Connections that began earlier than the capture, many of them found in one call.

Their first bytes show nothing. Of a format that packets have to be confirmed of, a kernel is sure
where connections are nothing but its whole packets; each other one is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from wireyard.arena import pooled
from wireyard.captures.assignment import DecodeAs, decide_format
from wireyard.captures.connections import StreamTable
from wireyard.captures.flows import Endpoint
from wireyard.captures.plain import APART, Plain, are_enough, without_gaps
from wireyard.formats import FIRST_BYTES, Format, get_format
from wireyard.streams.window import WINDOW_BYTES

__all__ = ["Earlier", "find_earlier"]

Ints = npt.NDArray[np.int64]

_MOST_BYTES: Final = 1 << 16
"""Of a stream: no more of it shows what it is."""


@dataclass(frozen=True)
class Earlier:
    """Streams of connections that are surely of one format if they are of any.

    Shapes: places, contexts (t).
    """

    format: Format | None
    """None if there are none."""
    places: Ints
    """The places in the table, ascending; both streams of a connection follow each other."""
    contexts: Ints
    """What their packets are read by if no dialect says it."""

    @classmethod
    def none(cls) -> Earlier:
        """Return that there are none."""
        return cls(None, np.empty(0, np.int64), np.empty(0, np.int64))

    def add_to(
        self,
        plain: Plain,
        table: StreamTable,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> Plain:
        """Return plain streams with those of these that a rule or their endpoints give the format.

        Parameters
        ----------
        rules, services, named
            Those of `decide_format`.
        """
        formats, numbers = [*plain.formats], plain.numbers.copy()
        firsts = plain.firsts.copy()
        begins = np.flatnonzero(np.diff(table.connections[self.places], prepend=-1))
        for first, stop in pairwise([*begins.tolist(), len(self.places)]):
            some = self.places[first:stop]
            ends = table.flows.endpoints(int(table.conversations[some[0]]))
            ordered = ends[:: -1 if table.ways[some[0]] else 1]
            format = decide_format(ordered, rules, services, named)
            if self.format is None or format is None or format.name != self.format.name:
                continue
            if format not in formats:
                formats.append(format)
            numbers[some] = formats.index(format)
            firsts[some] = format.context or self.contexts[first:stop]
        apart = plain.numbers == APART
        followings = np.where(apart, firsts, plain.followings)
        return replace(
            plain, formats=formats, numbers=numbers, firsts=firsts, followings=followings
        )


def find_earlier(table: StreamTable, plain: Plain) -> Earlier:
    """Return the streams of connections that are surely whole packets of a format.

    Of `plain` streams there are none.
    """
    rows = without_gaps(table)
    rows = rows[~plain.there[rows] & (table.sizes[rows] <= _MOST_BYTES)]
    # All streams of a connection, or none.
    connections = table.connections
    streams = np.bincount(connections)
    rows = rows[
        (np.bincount(connections[rows], minlength=len(streams)) == streams)[connections[rows]]
    ]
    if not are_enough(len(rows)):
        return Earlier.none()
    formats = map(get_format, dict.fromkeys(FIRST_BYTES.values()))
    format = next(one for one in formats if one.confirm_start is not None)
    find_contexts = import_module(format.fast_path).find_contexts
    contexts = np.concatenate(
        [
            find_contexts(data, bounds, firsts).repeat(np.diff(firsts))
            for data, bounds, firsts in _read(table, rows)
        ]
    )
    sure = contexts >= 0
    return Earlier(format, rows[sure], contexts[sure])


def _read(table: StreamTable, rows: Ints) -> Iterator[tuple[npt.NDArray[np.uint8], Ints, Ints]]:
    """Yield the bytes of streams, where each begins, and the first of each connection.

    That is of as many connections at a time as about fill a window.
    """
    places, known = table.content.places, table.found[int(table.protocols[rows[0]])].runs
    sizes = table.sizes[rows]
    begins = np.flatnonzero(np.diff(table.connections[rows], prepend=-1))
    windows = (np.cumsum(sizes) // WINDOW_BYTES)[begins]
    bounds = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(begins)]
    begins = np.append(begins, len(rows))
    for first, stop in pairwise(bounds):
        some = slice(int(begins[first]), int(begins[stop]))
        runs, _ = table.runs_of(rows[some])
        data = pooled(int(sizes[some].sum()), np.uint8)
        places.copy(known.starts[runs], known.lengths[runs], data)
        firsts = begins[first : stop + 1] - begins[first]
        yield data, np.concatenate([[0], np.cumsum(sizes[some])]), firsts
