"""Blocks to Arrow batches.

The format's compiled columns answer the packets they are sure of, the scalar reader the rest. Both
give the same values, so which one answered can only be seen in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.schema import (
    CAPTURED,
    COMMON,
    Repeated,
    arrow_type,
    repeat_texts,
    rows_to_batch,
    storable,
)
from wireyard.streams.blocks import (
    UNKNOWN,
    Block,
    DirectedStream,
    FrameScanner,
    Ints,
    join_blocks,
)
from wireyard.streams.framer import MALFORMED, OK
from wireyard.streams.plan import Plan

__all__ = ["BlockReader", "Part"]

Part = tuple[DirectedStream, Block]
"""A block and the stream it is of."""

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
    fast
        The module of the format's compiled columns, None to read every packet one by one.
    """

    def __init__(self, plan: Plan, fast: Any) -> None:
        self._plan, self._fast = plan, fast
        self._repeated = Repeated()
        # Without any column nothing would say how many rows there are.
        self._own = plan.own_columns or plan.columns[:1]
        self._relative = [one.name for one in plan.own_columns if one.kind == "offset"]
        own = {one.name for one in plan.own_columns}
        self._given_fields = [
            (place, field) for place, field in enumerate(plan.schema) if field.name not in own
        ]
        given = {field.name for _, field in self._given_fields}
        self._common = [one.name for one in COMMON if one.name in given]
        self._captured = {one.name: one.kind for one in CAPTURED if one.name in given}
        self._condition_reader: BlockReader | None = None
        if plan.expression is not None:
            self._condition_reader = BlockReader(plan.conditions(), fast)
        self._decoder = fast.ColumnDecoder(self._own, plan.validates) if fast else None

    def fits(self, plan: Plan, fast: Any) -> bool:
        """Tell whether a reader made of these would be no other."""
        if fast is not self._fast:
            return False
        # Whether two filters are the same, Arrow does not say.
        filtered = plan.expression is not None or self._plan.expression is not None
        return plan is self._plan or (not filtered and plan == self._plan)

    @property
    def scanner(self) -> FrameScanner | None:
        """What finds the frames for this reader alone; it may decode them while at it."""
        if self._condition_reader is not None:
            return self._condition_reader.scanner
        if self._fast is None:
            return None
        found: FrameScanner = getattr(self._decoder, "scan_frames", self._fast.scan_frames)
        return found

    def read(self, parts: Sequence[Part]) -> list[pa.RecordBatch]:
        """Return the rows that the plan wants of blocks, in order, in one batch or a few.

        Parameters
        ----------
        parts
            Blocks of the same `data`, each with the stream it is of.
        """
        if self._condition_reader is not None:
            parts = self._wanted(self._condition_reader, parts)
        block = join_blocks([each for _, each in parts])
        found = _Odd({row: frame.error for row, frame in block.odd.items()}, {})
        batches = self._decoded(block, found)
        given = self._given(parts, block, found)
        start = 0
        for number, batch in enumerate(batches):
            batches[number] = self._put_together(batch, given, block.offsets, start)
            start += batch.num_rows
        if not found.bad or self._plan.mode == "permissive":
            return batches
        if self._plan.mode == "failfast":
            self._raise_fault(parts, block, found.bad)
            return batches
        good = np.ones(len(block.offsets), np.bool_)
        good[list(found.bad)] = False
        table = pa.Table.from_batches(batches).filter(pa.array(good))
        left: list[pa.RecordBatch] = table.to_batches()
        return left

    def _put_together(
        self, batch: pa.RecordBatch, given: Mapping[str, pa.Array], offsets: Ints, start: int
    ) -> pa.RecordBatch:
        """Return what packets say, rows from `start` on, with what else is known of them."""
        rows = batch.num_rows
        for name in self._relative:
            place = batch.schema.get_field_index(name)
            absolute = pc.add(batch.column(place), offsets[start : start + rows])
            batch = batch.set_column(place, batch.schema.field(place), absolute)
        if not self._plan.own_columns:
            batch = batch.select([])
        # In ascending order, so each comes to stand where the schema has it.
        for place, field in self._given_fields:
            column = given[field.name]
            if rows != len(column):
                column = column.slice(start, rows)
            batch = batch.add_column(place, field, column)
        return batch

    def _given(self, parts: Sequence[Part], block: Block, found: _Odd) -> dict[str, pa.Array]:
        """Return the columns that the packets do not tell."""
        counts = [len(each.offsets) for _, each in parts]
        given = {
            name: self._common_column(name, parts, counts, block, found) for name in self._common
        }
        if not self._captured:
            return given
        constants = [opened.constants for opened, _ in parts]
        known = [opened.columns(each) for opened, each in parts]
        for name, kind in self._captured.items():
            if name in known[0]:
                values = np.concatenate([columns[name] for columns in known])
                unknown = values == UNKNOWN
                given[name] = pa.array(values, mask=unknown if unknown.any() else None)
            else:
                same = [one.get(name) for one in constants]
                given[name] = self._column(kind, same, counts)
        return given

    def _wanted(self, reader: BlockReader, parts: Sequence[Part]) -> list[Part]:
        """Return the parts with only the rows that the plan's conditions hold for."""
        assert self._plan.expression is not None
        table = pa.Table.from_batches(reader.read(parts))
        table = table.append_column("", pa.array(np.arange(table.num_rows)))
        wanted: Ints = table.filter(self._plan.expression)[""].to_numpy()
        left, start = [], 0
        for opened, block in parts:
            stop = start + len(block.offsets)
            first, last = np.searchsorted(wanted, (start, stop))
            left.append((opened, block.pick(wanted[first:last] - start)))
            start = stop
        return left

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
            block.data, block.stop, framed.places, framed.lengths, framed.contexts
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
        return rows_to_batch(self._own, [*values, {}])

    def _common_column(
        self,
        name: str,
        parts: Sequence[Part],
        counts: Sequence[int],
        block: Block,
        found: _Odd,
    ) -> pa.Array:
        """Return a column that rows of every format have."""
        rows, bad, own = len(block.offsets), found.bad, self._plan.format.name
        match name:
            case "offset":
                return pa.array(block.offsets)
            case "length":
                return pa.array(block.lengths)
            case "source":
                names = [storable(opened.name) for opened, _ in parts]
                return self._column("string", names, counts)
            case "stream":
                names = [storable(opened.stream) for opened, _ in parts]
                return self._column("string", names, counts)
            case "error" if not bad:
                return self._repeated.column("error", None, rows)
            case "error":
                errors: list[Row | None] = [None] * rows
                for row, error in bad.items():
                    errors[row] = error.row() if error else None
                return pa.array(errors, arrow_type("error"))
            case "status" if bad:
                return pa.array(_statuses(block, bad), pa.string())
            case "format" if found.formats:
                return pa.array([found.formats.get(row, own) for row in range(rows)], pa.string())
        return self._repeated.column("string", OK if name == "status" else own, rows)

    def _column(
        self, kind: str, values: Sequence[str | int | None], counts: Sequence[int]
    ) -> pa.Array:
        """Return a column that has each value in as many rows as `counts` says."""
        if len(set(values)) == 1:
            return self._repeated.column(kind, values[0], sum(counts))
        if kind != "string":
            return pa.array(np.repeat(np.array(values, kind), counts))
        return repeat_texts([str(value) for value in values], counts)

    def _raise_fault(
        self, parts: Sequence[Part], block: Block, bad: dict[int, DecodeError | None]
    ) -> None:
        """Raise the first fault; what is between the packets of a store is none."""
        stops = np.cumsum([len(each.offsets) for _, each in parts])
        for row in sorted(bad):
            if (error := bad[row]) is not None:
                opened, _ = parts[int(np.searchsorted(stops, row, "right"))]
                error.add_note(f"in {storable(opened.name)}, offset {block.offsets[row]}")
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
