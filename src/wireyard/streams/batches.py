"""Blocks to Arrow batches.

The format's compiled columns answer the packets they are sure of, the scalar reader the rest. Both
give the same values, so which one answered can only be seen in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.schema import CAPTURED, COMMON, Repeated, arrow_type, rows_to_batch, storable
from wireyard.streams.blocks import Block, DirectedStream, Ints
from wireyard.streams.framer import MALFORMED, OK
from wireyard.streams.plan import Plan

__all__ = ["BlockReader"]

_MOST_RUNS = 8
"""Batches that a block becomes; with more of them each is short."""


@dataclass(slots=True)
class _Odd:
    """Which rows of a block are odd."""

    bad: dict[int, DecodeError | None]
    """Those that are no well-formed packets, and why."""
    formats: dict[int, str]
    """Those of another name than the format's."""


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
        places = list(enumerate(plan.columns))
        self._common = [(n, plan.schema.field(n)) for n, one in places if one in COMMON]
        self._captured = [(n, plan.schema.field(n)) for n, one in places if one in CAPTURED]
        own = plan.own_columns
        self._relative = [n for n, one in places if one.kind == "offset" and one in own]
        self._condition_reader: BlockReader | None = None
        if plan.expression is not None:
            self._condition_reader = BlockReader(plan.conditions(), opened, fast)
        self._decoder = fast.ColumnDecoder(plan.columns, plan.validates) if fast else None

    def read(self, block: Block) -> list[pa.RecordBatch]:
        """Return the block's rows that the plan wants, in order, in one batch or a few."""
        if self._condition_reader is not None:
            block = block.pick(self._wanted(block))
        found = _Odd({row: frame.error for row, frame in block.odd.items()}, {})
        batches = self._decoded(block, found)
        given = self._given(block, found)
        start = 0
        for number, batch in enumerate(batches):
            for place in self._relative:
                moved = pc.add(batch.column(place), block.offsets[start : start + batch.num_rows])
                batch = batch.set_column(place, batch.schema.field(place), moved)
            for place, field, column in given:
                batch = batch.set_column(place, field, column.slice(start, batch.num_rows))
            start += batch.num_rows
            batches[number] = batch
        if not found.bad or self._plan.mode == "permissive":
            return batches
        if self._plan.mode == "failfast":
            self._raise_fault(block, found.bad)
            return batches
        good = np.ones(len(block.offsets), np.bool_)
        good[list(found.bad)] = False
        table = pa.Table.from_batches(batches).filter(pa.array(good))
        left: list[pa.RecordBatch] = table.to_batches()
        return left

    def _given(self, block: Block, found: _Odd) -> list[tuple[int, pa.Field, pa.Array]]:
        """Return the columns that the packets do not tell: their places, fields and values."""
        given = [
            (place, field, self._column(field.name, block, found))
            for place, field in self._common
            if found.bad or field.name != "error"  # which is null until now, as all of them are
        ]
        known = self._opened.columns(block) if self._captured else {}
        given += [(n, one, known[one.name]) for n, one in self._captured if one.name in known]
        return given

    def _wanted(self, block: Block) -> Ints:
        assert self._condition_reader is not None and self._plan.expression is not None
        table = pa.Table.from_batches(self._condition_reader.read(block))
        table = table.append_column("", pa.array(np.arange(table.num_rows)))
        wanted: Ints = table.filter(self._plan.expression)[""].to_numpy()
        return wanted

    def _decoded(self, block: Block, found: _Odd) -> list[pa.RecordBatch]:
        """Return what the packets of a block say; what the format has not is null."""
        rows = len(block.offsets)
        if self._decoder is None:
            packets = [row for row in range(rows) if row not in block.odd]
            scalar = self._scalar(block, packets, found)
            order = np.full(rows, len(packets), np.int64)
            order[packets] = np.arange(len(packets))
            return [scalar.take(pa.array(order)) if block.odd else scalar.slice(0, rows)]
        framed = block.pick(_framed(block)) if block.odd else block
        batch, rejected = self._decoder.decode(
            block.data, block.stop, framed.offsets - block.base, framed.lengths, framed.contexts
        )
        if not len(rejected) and not block.odd:
            return [batch]
        of_row = _framed(block)
        scalar = self._scalar(block, of_row[rejected].tolist(), found)
        order = np.full(rows, len(of_row) + len(rejected), np.int64)
        order[of_row] = np.arange(len(of_row))
        order[of_row[rejected]] = len(of_row) + np.arange(len(rejected))
        return _in_order(batch, scalar, order)

    def _scalar(self, block: Block, rows: list[int], found: _Odd) -> pa.RecordBatch:
        """Read rows one by one, note what is odd; one null row stands for the others."""
        values: list[Row] = []
        for row in rows:
            value, error = self._plan.format.read_row(block.view(row), int(block.contexts[row]))
            values.append(value)
            if error is not None:
                found.bad[row] = error
            if "format" in value:
                found.formats[row] = value["format"]
        return rows_to_batch(self._plan.columns, [*values, {}])

    def _column(self, name: str, block: Block, found: _Odd) -> pa.Array:
        """Return a column that rows of every format have."""
        rows, bad = len(block.offsets), found.bad
        match name:
            case "offset":
                return pa.array(block.offsets)
            case "length":
                return pa.array(block.lengths)
            case "status" if bad:
                return pa.array(_statuses(block, bad), pa.string())
            case "error":
                errors: list[Row | None] = [None] * rows
                for row, error in bad.items():
                    errors[row] = error.row() if error else None
                return pa.array(errors, arrow_type("error"))
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


def _in_order(batch: pa.RecordBatch, more: pa.RecordBatch, order: Ints) -> list[pa.RecordBatch]:
    """Return the rows of two batches, the second counting as behind the first, in an order.

    To gather them costs as much as to decode them, so a few runs stay where they are.
    """
    rows = batch.num_rows
    cuts = np.flatnonzero((np.diff(order) != 1) | (order[1:] == rows)) + 1
    if len(cuts) > _MOST_RUNS:
        return [pa.concat_batches([batch, more]).take(pa.array(order))]
    runs = []
    for start, stop in pairwise((0, *cuts.tolist(), len(order))):
        at = int(order[start])
        run = batch.slice(at) if at < rows else more.slice(at - rows)
        runs.append(run.slice(0, stop - start))
    return runs


def _framed(block: Block) -> Ints:
    """Return the rows that are framed packets."""
    return np.delete(np.arange(len(block.offsets)), list(block.odd))


def _statuses(block: Block, bad: dict[int, DecodeError | None]) -> list[str]:
    statuses = [OK] * len(block.offsets)
    for row in bad:
        statuses[row] = block.odd[row].status if row in block.odd else MALFORMED
    return statuses
