"""UDP streams: the datagrams from one endpoint to another, one run each."""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.arena import room
from wireyard.arrays import Int32s
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.merge_kernels import Run, gather_datagrams, group_rows
from wireyard.captures.connections.stream import Runs
from wireyard.captures.connections.table import Connections
from wireyard.captures.connections.tcp_kernels import NONE
from wireyard.captures.packets.units import Columns, Units

_KEPT: Final = {
    "flows": np.int32,
    "lengths": np.int32,
    "captured": np.int32,
    "starts": np.int64,
    "records": np.int32,
}
"""Types of the columns of `Units` that are kept."""


class Datagrams:
    """The UDP datagrams of a capture, which arrive in its order."""

    def __init__(self) -> None:
        self._kept = Columns(_KEPT)

    def add(self, datagrams: Units) -> None:
        """Add the next datagrams."""
        self._kept.append([getattr(datagrams, name) for name in _KEPT])

    def connections(self, table: FlowTable) -> Connections:
        """Return a stream of the datagrams of each flow."""
        flows, lengths, captured, starts, records = (self._kept[name] for name in _KEPT)
        conversation_count = len(table)
        if table.has_networks() and len(flows):
            flows = _pair_directions(flows, table)
        flow_count = 2 * conversation_count if len(flows) else 0
        bounds = np.zeros(flow_count + 2, np.int64)
        order, runs = room(len(flows)), room((len(Run), len(flows)))
        run_bounds, sizes = np.zeros(flow_count + 1, np.int64), np.zeros(flow_count, np.int64)
        run_count = 0
        if len(flows):  # else no kernel is loaded
            group_rows(flows, bounds, order)
            run_count = gather_datagrams(
                order, bounds[:-1], lengths, captured, starts, records, runs, run_bounds, sizes
            )
        # The first datagram of each flow; a number above all others for flows without one.
        filled = bounds[:-2] < bounds[1:-1]
        firsts = np.full(flow_count, len(flows))
        firsts[filled] = order[bounds[:-2][filled]]
        both = firsts.reshape(-1, 2)
        conversations = np.flatnonzero(filled.reshape(-1, 2).any(axis=1))
        sides = (2 * conversations[:, np.newaxis] + np.arange(2)).reshape(-1)
        never = np.zeros(len(sides), np.bool_)
        return Connections(
            protocol="udp",
            conversations=conversations,
            first_records=records[both[conversations].min(axis=1)].astype(np.int64),
            first_ways=both[conversations].argmin(axis=1),
            sizes=sizes[sides],
            opened=never,
            begun=never,
            captured=never,
            reset=never,
            finished=never,
            closing_records=np.full(len(sides), NONE, np.int64),
            # The flows that are left out have no runs, so the runs of these are contiguous.
            run_bounds=np.append(run_bounds[sides], run_count),
            runs=Runs(*runs[:, :run_count]),
        )


def _pair_directions(flows: Int32s, table: FlowTable) -> Int32s:
    """Return the flows, with directions of the same endpoints in two networks as one conversation.

    A network with datagrams of one direction only belongs with one that has only the other one.
    """
    used = np.zeros((len(table), 2), np.bool_)
    used.reshape(-1)[flows] = True
    pairs, targets = table.endpoint_pairs(), np.arange(len(table))
    waiting: dict[tuple[int, int], list[int]] = {}
    for conversation in np.flatnonzero(used.sum(axis=1) == 1).tolist():
        pair, way = int(pairs[conversation]), int(used[conversation, 1])
        if others := waiting.get((pair, 1 - way)):
            targets[conversation] = others.pop(0)
        else:
            waiting.setdefault((pair, way), []).append(conversation)
    paired: Int32s = (2 * targets[flows >> 1] + (flows & 1)).astype(np.int32)
    return paired
