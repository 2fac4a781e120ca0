"""UDP: the datagrams from one endpoint to another are a stream, each datagram a run of it."""

from __future__ import annotations

import numpy as np

from wireyard.captures.connections import Connections
from wireyard.captures.stream import Runs
from wireyard.captures.tcp_kernels import NONE
from wireyard.captures.units import Units

__all__ = ["gather"]


def gather(datagrams: Units) -> Connections:
    """Put the datagrams of each flow, which are in the order of capture, behind each other."""
    conversations, first_rows, number = np.unique(
        datagrams.flows >> 1, return_index=True, return_inverse=True
    )
    first_ways = (datagrams.flows[first_rows] & 1).astype(np.int64)
    sides = 2 * number + (datagrams.flows & 1)
    order = np.argsort(sides, kind="stable")
    side_count = 2 * len(conversations)
    bounds = np.searchsorted(sides[order], np.arange(side_count + 1))
    stops = np.r_[0, np.cumsum(datagrams.lengths[order], dtype=np.int64)]
    offsets = stops[:-1] - np.repeat(stops[bounds[:-1]], np.diff(bounds))
    # A datagram without a payload is no run: it brings no byte.
    there = datagrams.captured[order] > 0
    rows = order[there]
    never = np.zeros(side_count, np.bool_)
    return Connections(
        protocol="udp",
        conversations=conversations.astype(np.int64),
        first_records=datagrams.records[first_rows].astype(np.int64),
        first_ways=first_ways,
        sizes=np.diff(stops[bounds]),
        opened=never,
        begun=never,
        reset=never,
        finished=never,
        closing_records=np.full(side_count, NONE, np.int64),
        run_bounds=np.r_[0, np.cumsum(there)][bounds],
        runs=Runs(
            offsets[there],
            datagrams.captured[rows].astype(np.int64),
            datagrams.starts[rows],
            datagrams.records[rows].astype(np.int64),
        ),
    )
