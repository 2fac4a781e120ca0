"""Connections as columns, which TCP and UDP both give, and the streams they are made into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.captures.flows import FlowTable
from wireyard.captures.stream import Content, Runs, Stream
from wireyard.captures.tcp_kernels import NONE

__all__ = ["Connections", "streams_of"]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Connections(NamedTuple):
    """Connections of one protocol; connection e has the sides 2 e and 2 e + 1.

    Shapes: conversations, first_records, first_ways (e); sizes, opened, begun, reset, finished,
    closing_records (s); run_bounds (s + 1); runs (u).
    """

    protocol: str
    conversations: Ints
    first_records: Ints
    """The record of the first packet of each."""
    first_ways: Ints
    """The side that sent it."""
    sizes: Ints
    opened: Flags
    begun: Flags
    reset: Flags
    finished: Flags
    closing_records: Ints
    """The record of the first packet with a FIN or RST; `NONE` without one."""
    run_bounds: Ints
    runs: Runs

    def stream(
        self,
        number: int,
        way: int,
        ordinal: int,
        flows: FlowTable,
        content: Content,
        times_ns: Ints,
    ) -> Stream:
        """Return one side of a connection that is the `ordinal`-th of its endpoints.

        `times_ns` are those of all runs.
        """
        side, other = 2 * number + way, 2 * number + 1 - way
        endpoints = flows.endpoints(int(self.conversations[number]))
        src, dst = endpoints[way], endpoints[1 - way]
        closing, is_reset = int(self.closing_records[side]), bool(self.reset[side])
        if self.reset[other] and not self.sizes[other]:  # It has no stream of its own to end.
            theirs = int(self.closing_records[other])
            closing, is_reset = theirs if closing == NONE else min(closing, theirs), True
        run = slice(int(self.run_bounds[side]), int(self.run_bounds[side + 1]))
        return Stream(
            name=f"{src}>{dst}" if ordinal == 1 else f"{src}>{dst}#{ordinal}",
            protocol=self.protocol,
            src=src,
            dst=dst,
            size=int(self.sizes[side]),
            opened=bool(self.opened[side]),
            begun=bool(self.begun[side]),
            ended="rst" if is_reset else "fin" if self.finished[side] else None,
            closing_record=None if closing == NONE else closing,
            runs=Runs(*(column[run] for column in self.runs)),
            times_ns=times_ns[run],
            content=content,
        )


def streams_of(
    protocols: Sequence[Connections], flows: FlowTable, content: Content
) -> Iterator[tuple[int, Stream]]:
    """Yield the streams that have bytes, by the first packets of their connections.

    Each comes with the number of its conversation. Of a connection the side that sent its first
    packet comes first. A connection without bytes gives no stream, but counts for the names of
    those after it.
    """
    counts = [len(found.conversations) for found in protocols]
    protocol = np.repeat(np.arange(len(protocols)), counts)
    number = np.concatenate([np.arange(count) for count in counts])
    first_record = np.concatenate([found.first_records for found in protocols])
    endpoints = flows.endpoint_pairs()[np.concatenate([found.conversations for found in protocols])]
    ordinal = _ordinals(endpoints, first_record)
    there = np.concatenate([found.sizes.reshape(-1, 2).any(axis=1) for found in protocols])
    order = np.argsort(first_record, kind="stable")
    times_ns = [content.times_of(found.runs.records) for found in protocols]
    for place in order[there[order]].tolist():
        found, at = protocols[protocol[place]], int(number[place])
        times = times_ns[protocol[place]]
        first = int(found.first_ways[at])
        for way in (first, 1 - first):
            if found.sizes[2 * at + way]:
                stream = found.stream(at, way, int(ordinal[place]), flows, content, times)
                yield int(found.conversations[at]), stream


def _ordinals(groups: Ints, times: Ints) -> Ints:
    """Return the place of each member in its group, from 1 on, in the order of their times."""
    order = np.lexsort((times, groups))
    places = np.arange(len(order))
    begins = np.r_[True, np.diff(groups[order]) != 0][: len(order)]
    ordinals = np.empty(len(order), np.int64)
    ordinals[order] = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
    return ordinals
