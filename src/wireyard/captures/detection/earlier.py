"""Detection of connections that began before the capture, many in one call.

Their first bytes show no format. For the format that has `confirm_start`, a kernel finds the
connections that are certain to consist of its whole packets; all others are examined one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Final

import numpy as np

from wireyard.arena import pooled
from wireyard.arrays import Bytes, Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.table import StreamTable
from wireyard.captures.detection.assignment import DecodeAs, decide_format
from wireyard.captures.detection.plain import APART, Known, are_enough, without_gaps
from wireyard.formats import FIRST_BYTES, Format, get_format
from wireyard.streams.window import WINDOW_BYTES

__all__ = ["Earlier", "find_earlier"]

_MOST_BYTES: Final = 1 << 16
"""Size of the largest stream that is examined here."""


@dataclass(frozen=True)
class Earlier:
    """Streams that consist of packets of one format, but need a rule or an endpoint to confirm it.

    Shapes: indexes, contexts (t).
    """

    format: Format | None
    """None if there are no streams."""
    indexes: Ints
    """Indexes in the table, ascending; both streams of a connection follow each other."""
    contexts: Ints
    """Contexts of their packets if the format has no dialect."""

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

        Parameters
        ----------
        rules, services, named
            As for `decide_format`.
        """
        formats, numbers = [*plain.formats], plain.numbers.copy()
        firsts = plain.firsts.copy()
        begins = np.flatnonzero(np.diff(table.connections[self.indexes], prepend=-1))
        for first, stop in pairwise([*begins.tolist(), len(self.indexes)]):
            streams = self.indexes[first:stop]
            ends = table.flows.endpoints(int(table.conversations[streams[0]]))
            ordered = ends[:: -1 if table.ways[streams[0]] else 1]
            format = decide_format(ordered, rules, services, named)
            if self.format is None or format is None or format.name != self.format.name:
                continue
            if format not in formats:
                formats.append(format)
            numbers[streams] = formats.index(format)
            firsts[streams] = format.context or self.contexts[first:stop]
        apart = plain.numbers == APART
        followings = np.where(apart, firsts, plain.followings)
        return replace(
            plain, formats=formats, numbers=numbers, firsts=firsts, followings=followings
        )


def find_earlier(table: StreamTable, plain: Known) -> Earlier:
    """Find the connections that are certain to consist of whole packets of a format.

    Plain streams are left out.
    """
    rows = without_gaps(table)
    rows = rows[~plain.is_known[rows] & (table.sizes[rows] <= _MOST_BYTES)]
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
    is_certain = contexts >= 0
    return Earlier(format, rows[is_certain], contexts[is_certain])


def _read(table: StreamTable, rows: Ints) -> Iterator[tuple[Bytes, Ints, Ints]]:
    """Yield the bytes of streams in batches of connections of about a window each.

    Yields
    ------
    data, bounds, firsts
        The bytes of the streams, the bounds of each, and the first stream of each connection.
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
