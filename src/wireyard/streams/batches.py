"""Blocks to Arrow batches.

The format's compiled columns answer the packets they are sure of, the scalar reader the rest. Both
give the same values, so which one answered can only be seen in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.schema import CAPTURED, Repeated, arrow_type, rows_to_batch, storable
from wireyard.streams.blocks import Block, DirectedStream, Ints
from wireyard.streams.framer import MALFORMED, OK
from wireyard.streams.plan import Plan

__all__ = ["BlockReader"]


@dataclass(slots=True)
class _Found:
    """What the packets of a block say: the format's own columns, and which rows are odd."""

    arrays: dict[str, pa.Array]
    bad: dict[int, DecodeError | None]
    """Rows that are no well-formed packets, and why."""
    formats: dict[int, str]
    """Rows of another name than the format's."""


class BlockReader:
    """Reads blocks into batches of one plan; one thread uses it at a time.

    Parameters
    ----------
    plan
        What is wanted.
    opened
        The stream that the blocks are of.
    fast
        The module of the format's compiled columns, None to read every packet one by one.
    """

    def __init__(self, plan: Plan, opened: DirectedStream, fast: Any) -> None:
        self._plan = plan
        self._opened = opened
        self._constants = {
            "source": storable(opened.name),
            "stream": storable(opened.stream),
            "format": plan.format.name,
            "status": OK,
        }
        self._repeated = Repeated()
        self._fast = fast
        self._own = plan.own_columns
        self._relative = [column.name for column in self._own if column.kind == "offset"]
        self._captured = [column for column in CAPTURED if column.name in plan.schema.names]
        self._condition_reader: BlockReader | None = None
        if plan.expression is not None:
            self._condition_reader = BlockReader(plan.conditions(), opened, fast)
        self._decoder = fast.ColumnDecoder(self._own, plan.validates) if fast else None

    def read(self, block: Block) -> pa.RecordBatch:
        """Return the block's rows that the plan wants."""
        if self._condition_reader is not None:
            block = block.pick(self._wanted(block))
        found = self._columns(block)
        arrays = found.arrays
        for name in self._relative:
            arrays[name] = pc.add(arrays[name], block.offsets)
        if self._captured:
            arrays.update(self._captured_columns(block))
        batch = pa.RecordBatch.from_arrays(
            [
                arrays[name] if name in arrays else self._common(name, block, found)
                for name in self._plan.schema.names
            ],
            schema=self._plan.schema,
        )
        if not found.bad or self._plan.mode == "permissive":
            return batch
        if self._plan.mode == "failfast":
            self._raise_fault(block, found.bad)
            return batch
        good = np.ones(len(block.offsets), np.bool_)
        good[list(found.bad)] = False
        return batch.filter(pa.array(good))

    def _wanted(self, block: Block) -> Ints:
        assert self._condition_reader is not None and self._plan.expression is not None
        batch = self._condition_reader.read(block)
        rows = np.arange(batch.num_rows)
        table = pa.table({**dict(zip(batch.schema.names, batch.columns, strict=True)), "": rows})
        wanted: Ints = table.filter(self._plan.expression)[""].to_numpy()
        return wanted

    def _columns(self, block: Block) -> _Found:
        """Return what the packets of a block say."""
        rows = len(block.offsets)
        found = _Found({}, {row: frame.error for row, frame in block.odd.items()}, {})
        if self._decoder is None:
            packets = [row for row in range(rows) if row not in block.odd]
            scalar = self._scalar(block, packets, found)
            order = np.full(rows, len(packets), np.int64)
            order[packets] = np.arange(len(packets))
            found.arrays = self._arranged(scalar, order if block.odd else None)
            return found
        framed = block.pick(_framed(block)) if block.odd else block
        arrays, rejected = self._decoder.decode(
            block.data, block.stop, framed.offsets - block.base, framed.lengths, framed.contexts
        )
        if not len(rejected) and not block.odd:
            found.arrays = dict(zip(_names(self._own), arrays, strict=True))
            return found
        of_row = _framed(block)
        scalar = self._scalar(block, of_row[rejected].tolist(), found)
        merged = [
            pa.concat_arrays([array, more]) for array, more in zip(arrays, scalar, strict=True)
        ]
        order = np.full(rows, len(of_row) + len(rejected), np.int64)
        order[of_row] = np.arange(len(of_row))
        order[of_row[rejected]] = len(of_row) + np.arange(len(rejected))
        found.arrays = self._arranged(merged, order)
        return found

    def _scalar(self, block: Block, rows: list[int], found: _Found) -> list[pa.Array]:
        """Read rows one by one, note what is odd; one null row stands for the others."""
        values: list[Row] = []
        for row in rows:
            value, error = self._plan.format.read_row(block.view(row), int(block.contexts[row]))
            values.append(value)
            if error is not None:
                found.bad[row] = error
            if "format" in value:
                found.formats[row] = value["format"]
        arrays: list[pa.Array] = rows_to_batch(self._own, [*values, {}]).columns
        return arrays

    def _arranged(self, arrays: list[pa.Array], order: Ints | None) -> dict[str, pa.Array]:
        if order is None:
            arrays = [array.slice(0, len(array) - 1) for array in arrays]
        else:
            indices = pa.array(order)
            arrays = [array.take(indices) for array in arrays]
        return dict(zip(_names(self._own), arrays, strict=True))

    def _captured_columns(self, block: Block) -> dict[str, pa.Array]:
        """Return the columns of captures; of other sources they are null."""
        known = self._opened.columns(block)
        rows = len(block.offsets)
        return {
            column.name: known[column.name]
            if column.name in known
            else self._repeated.column(column.kind, None, rows)
            for column in self._captured
        }

    def _common(self, name: str, block: Block, found: _Found) -> pa.Array:
        """Return a column that rows of every format have."""
        rows, bad = len(block.offsets), found.bad
        match name:
            case "offset":
                return pa.array(block.offsets)
            case "length":
                return pa.array(block.lengths)
            case "status" if bad:
                return pa.array(_statuses(block, bad), pa.string())
            case "error" if bad:
                errors: list[Row | None] = [None] * rows
                for row, error in bad.items():
                    errors[row] = error.row() if error else None
                return pa.array(errors, arrow_type("error"))
            case "error":
                return self._repeated.column("error", None, rows)
            case "format" if found.formats:
                own = self._plan.format.name
                return pa.array([found.formats.get(row, own) for row in range(rows)], pa.string())
        return self._repeated.column("string", self._constants[name], rows)

    def _raise_fault(self, block: Block, bad: dict[int, DecodeError | None]) -> None:
        """Raise the first fault; what is between the packets of a store is none."""
        for row in sorted(bad):
            if (error := bad[row]) is not None:
                error.add_note(f"in {self._constants['source']}, offset {block.offsets[row]}")
                raise error


def _framed(block: Block) -> Ints:
    """Return the rows that are framed packets."""
    return np.delete(np.arange(len(block.offsets)), list(block.odd))


def _names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def _statuses(block: Block, bad: dict[int, DecodeError | None]) -> list[str]:
    statuses = [OK] * len(block.offsets)
    for row in bad:
        statuses[row] = block.odd[row].status if row in block.odd else MALFORMED
    return statuses
