"""TCP segments and UDP datagrams of a capture as columns, with fragments reassembled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from wireyard.arena import room, with_room
from wireyard.arrays import Bytes, Grid, Int32s, Ints, UInt32s
from wireyard.captures.layout import Unit


@dataclass(frozen=True, slots=True)
class Units:
    """TCP segments or UDP datagrams in the order of capture.

    Shapes: all columns (r). `starts` are the addresses of payloads in the capture's `Places`,
    `lengths` their bytes on the wire.
    """

    records: Int32s
    flows: Int32s
    sequences: UInt32s
    acknowledgments: UInt32s
    flags: Bytes
    starts: Ints
    captured: Int32s
    lengths: Int32s

    @classmethod
    def of(cls, grid: Grid, flows: Ints) -> Self:
        """Return the columns of a grid of `Unit` whose flows are numbered."""
        return cls(
            records=grid[Unit.RECORD].astype(np.int32),
            flows=flows.astype(np.int32),
            sequences=grid[Unit.SEQUENCE].astype(np.uint32),
            acknowledgments=grid[Unit.ACKNOWLEDGMENT].astype(np.uint32),
            flags=grid[Unit.FLAGS].astype(np.uint8),
            starts=np.ascontiguousarray(grid[Unit.START]),
            captured=grid[Unit.CAPTURED].astype(np.int32),
            lengths=grid[Unit.LENGTH].astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.records)


class Columns:
    """Columns of one length that grow.

    `kinds` has the type of each column by name.
    """

    def __init__(self, kinds: Mapping[str, npt.DTypeLike]) -> None:
        self._columns = {name: np.empty(0, kind) for name, kind in kinds.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a column; its rows do not change any more."""
        return self._columns[name][: self._count]

    def append(self, values: Sequence[npt.NDArray[Any]], rows: Ints | None = None) -> None:
        """Add rows; all values of each column, or those of `rows`.

        Rows are copied when the columns grow; to concatenate blocks at the end takes longer.
        """
        count = len(values[0]) if rows is None else len(rows)
        part = slice(self._count, self._count + count)
        for (name, column), added in zip(self._columns.items(), values, strict=True):
            self._columns[name] = column = with_room(column, part.start, part.stop, room)
            if rows is None:
                column[part] = added
            else:
                added.take(rows, out=column[part], mode="clip")
        self._count = part.stop


class Share(NamedTuple):
    """The conversations of a capture that one of several readers keeps: part `part` of `of`."""

    part: int
    of: int
    port: int
    """All readers get the conversations of this port, because they show the formats of others."""
