"""TCP segments and UDP datagrams of a capture as columns, fragments put together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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

    Shapes: all columns (r). A payload begins at `starts` in the capture's `Places`, and had
    `lengths` bytes on the wire.
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

    @classmethod
    def of(cls, units: Grid, flows: Ints) -> Units:
        """Return the columns of a grid of `Unit`."""
        return cls(
            units[Unit.RECORD].astype(np.int32),
            flows.astype(np.int32),
            units[Unit.SEQUENCE].astype(np.uint32),
            units[Unit.ACKNOWLEDGMENT].astype(np.uint32),
            units[Unit.FLAGS].astype(np.uint8),
            units[Unit.START].copy(),
            units[Unit.CAPTURED].astype(np.int32),
            units[Unit.LENGTH].astype(np.int32),
        )

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return all columns."""
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, rows: npt.NDArray[Any] | slice) -> Units:
        """Return some rows, by number, by mask or as a slice."""
        return Units(*(column[rows] for column in self.columns()))


class Share(NamedTuple):
    """The conversations that fall to one of several who read the same capture."""

    part: int
    of: int
    port: int
    """Conversations of this port fall to all, for what is in them tells of others."""


class UnitReader:
    """Reads the units of packets as they follow each other, and numbers their flows.

    Parameters
    ----------
    share
        Which conversations are kept; all if None.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.packets = PacketReader()
        self.flows = FlowTable()
        self.share = share
        self._wanted = np.empty(0, np.bool_)
        nothing = np.empty((len(Unit), 0), np.int64)
        self._kept = [(Units.of(nothing, nothing[0]), nothing[0])]

    def begin(self, data: Bytes) -> None:
        """Go on with packets of another file."""
        self.packets.begin(data)

    def read(self, records: Records) -> None:
        """Read the packets that follow those before."""
        for units, times_ns in self.packets.read(records):
            self._keep(units, times_ns)

    def take(self, headers: Headers) -> None:
        """Go on with packets whose headers were read before."""
        self._keep(*self.packets.take(headers))

    def units(self) -> tuple[Units, Ints]:
        """Return all units in the order of capture, and the times of their packets."""
        columns = zip(*(units.columns() for units, _ in self._kept), strict=True)
        times_ns = np.concatenate([times for _, times in self._kept])
        return Units(*map(np.concatenate, columns)), times_ns

    def _keep(self, grid: Grid, times_ns: Ints) -> None:
        grid = np.ascontiguousarray(grid)
        units = Units.of(grid, self.flows.number(grid, grid.shape[1]))
        share = self.share
        if share is not None:
            first = len(self._wanted)
            new = self.flows.parts(first, share.of) == share.part
            new |= self.flows.has_port(first, share.port)
            self._wanted = np.concatenate([self._wanted, new])
            rows = self._wanted[units.flows >> 1]
            units, times_ns = units.take(rows), times_ns[rows]
        self._kept.append((units, times_ns))
