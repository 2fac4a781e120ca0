"""TCP segments and UDP datagrams of a capture as columns, with fragments reassembled."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import room
from wireyard.captures.flows import FlowTable
from wireyard.captures.headers import Headers, PacketReader
from wireyard.captures.layout import Unit
from wireyard.captures.records import Records

__all__ = ["Share", "UnitReader", "Units"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Units:
    """TCP segments and UDP datagrams in the order of capture.

    Shapes: all columns (r). `starts` are the addresses of payloads in the capture's `Places`,
    `lengths` their bytes on the wire.
    """

    records: npt.NDArray[np.int32]
    flows: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.uint32]
    acknowledgments: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    starts: Ints
    captured: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.records)

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return all columns."""
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, rows: npt.NDArray[Any] | slice) -> Units:
        """Select rows by number, by mask or by slice."""
        return Units(*(column[rows] for column in self.columns()))


_KINDS: Final = {
    "records": np.int32,
    "flows": np.int32,
    "sequences": np.uint32,
    "acknowledgments": np.uint32,
    "flags": np.uint8,
    "starts": np.int64,
    "captured": np.int32,
    "lengths": np.int32,
    "times_ns": np.int64,
}
"""Types of the columns of units, and of the times of their packets."""
_FIELDS: Final = {
    "records": Unit.RECORD,
    "sequences": Unit.SEQUENCE,
    "acknowledgments": Unit.ACKNOWLEDGMENT,
    "flags": Unit.FLAGS,
    "starts": Unit.START,
    "captured": Unit.CAPTURED,
    "lengths": Unit.LENGTH,
}
"""Columns that are copied from the headers."""
_FIRST_ROOM: Final = 1 << 12


class Share(NamedTuple):
    """The conversations of a capture that one of several readers keeps: part `part` of `of`."""

    part: int
    of: int
    port: int
    """All readers get the conversations of this port, because they show the formats of others."""


class UnitReader:
    """Incremental reader of the units of packets; numbers their flows.

    Parameters
    ----------
    share
        The conversations to keep; all if None.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.packets = PacketReader()
        self.flows = FlowTable()
        self.share = share
        self._wanted = np.empty(0, np.bool_)
        self._count = 0
        self._columns = {name: np.empty(_FIRST_ROOM, kind) for name, kind in _KINDS.items()}

    def begin(self, data: Bytes) -> None:
        """Continue with packets of another file."""
        self.packets.begin(data)

    def read(self, records: Records) -> None:
        """Read the next packets."""
        self._keep(*self.packets.read(records))

    def take(self, headers: Headers) -> None:
        """Add the next packets, whose headers were read already."""
        self._keep(*self.packets.take(headers))

    def units(self) -> tuple[Units, Ints]:
        """Return all units in the order of capture, and the times of their packets."""
        columns = {name: column[: self._count] for name, column in self._columns.items()}
        times_ns = columns.pop("times_ns")
        return Units(**columns), times_ns

    def _keep(self, grid: Grid, times_ns: Ints) -> None:
        grid = np.ascontiguousarray(grid)
        flows = self.flows.number(grid, grid.shape[1])
        share = self.share
        if share is not None:
            first = len(self._wanted)
            new = self.flows.parts(first, share.of) == share.part
            new |= self.flows.has_port(first, share.port)
            self._wanted = np.concatenate([self._wanted, new])
            rows = self._wanted[flows >> 1]
            if not rows.all():
                grid, flows, times_ns = grid[:, rows], flows[rows], times_ns[rows]
        part = slice(self._count, self._count + len(flows))
        self._make_room(part.stop)
        copied = {name: grid[unit] for name, unit in _FIELDS.items()}
        for name, values in {**copied, "flows": flows, "times_ns": times_ns}.items():
            self._columns[name][part] = values
        self._count = part.stop

    def _make_room(self, most: int) -> None:
        """Grow the columns; concatenating parts at the end would take three times as long."""
        if most <= len(self._columns["times_ns"]):
            return
        for name, column in self._columns.items():
            self._columns[name] = grown = room(2 * most, column.dtype)
            grown[: self._count] = column[: self._count]
