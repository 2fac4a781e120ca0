"""Decoding of blocks to Arrow batches.

The format's compiled decoder decodes common packets, the scalar reader the rest. Both give the same
values, so the difference is speed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Ints
from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.formats.rows import rows_to_batch
from wireyard.java import storable
from wireyard.schema import CAPTURED, COMMON, Repeated, as_array, as_numbers, repeat_texts
from wireyard.streams.blocks import (
    UNKNOWN,
    Block,
    DirectedStream,
    FrameScanner,
    StreamBundle,
    join_blocks,
)
from wireyard.streams.framer import MALFORMED, OK, TAIL
from wireyard.streams.plan import Plan

Part = tuple[DirectedStream, Block]
"""A block and its stream."""


@dataclass(frozen=True)
class ScalarRows:
    """The rows that the scalar reader decoded, of which equal ones are held once.

    Shapes: numbers, which, offsets, lengths (r). `numbers` are the row numbers, ascending. Row r
    has the values ``kinds[which[r]]``, but those in the columns `relative` are counted from its
    offset.
    """

    numbers: Ints
    which: Ints
    offsets: Ints
    lengths: Ints
    kinds: Sequence[Row] = ()
    relative: Sequence[str] = ()

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self.numbers)))

    def row(self, place: int) -> Row:
        """Return the values of the row whose number is at `place`."""
        values, offset = self.kinds[self.which[place]], int(self.offsets[place])
        row = {**values, "offset": offset, "length": int(self.lengths[place])}
        for name in self.relative:
            if row.get(name) is not None:
                row[name] += offset
        return row

    @property
    def bad(self) -> Ints:
        """The numbers of the rows that are no well-formed packets."""
        is_bad = np.array([values["status"] != OK for values in self.kinds], np.bool_)
        return self.numbers[is_bad[self.which]]

    def positions(self) -> dict[str, pa.Array]:
        """Return the columns of positions in the stream."""
        columns = {"offset": as_array(self.offsets), "length": as_array(self.lengths)}
        for name in self.relative:
            values = [values.get(name) for values in self.kinds]
            moved = np.array([UNKNOWN if value is None else value for value in values])[self.which]
            columns[name] = _nullable(np.where(moved == UNKNOWN, moved, moved + self.offsets))
        return columns

    def among(self, chosen: Bools) -> ScalarRows:
        """Return those of the chosen rows of a block, numbered as these are."""
        ours = chosen[self.numbers]
        numbers = (np.cumsum(chosen) - 1)[self.numbers[ours]]
        of_rows = self.which[ours], self.offsets[ours], self.lengths[ours]
        return ScalarRows(numbers, *of_rows, self.kinds, self.relative)


class DecodedParts(NamedTuple):
    """Blocks that were decoded together, and the rows in them that a plan wants."""

    read: Sequence[Part]
    parts: Sequence[Part]
    """The blocks with only those rows."""
    batches: list[pa.RecordBatch]
    scalar_rows: ScalarRows
    found_bad: bool
    """Whether there were rows that are no well-formed packets."""


_MOST_RUNS = 8
"""Most batches of a block; more would be too short."""

_SHORT_BYTES = 64
"""Packets up to which equal ones are decoded once: those of an attack are short, and alike."""
_OFFSET = next(column for column in COMMON if column.name == "offset")
_TIMES = ("captured_ns", "frame")
"""The columns of captures that differ from row to row."""
_NO_ROWS: Ints = np.empty(0, np.int64)
_OF_STREAMS = ("source", "stream")
"""The common columns that identify the stream of a row."""
_OF_ALL = tuple(column.name for column in COMMON if column.name not in _OF_STREAMS)
"""The common columns with the position and the status of a row."""


class BlockReader:
    """Reads blocks into batches of one plan; one thread uses it at a time.

    `fast` is the module of the format's compiled decoder; None to decode every packet by the scalar
    reader. With `scalar`, the scalar reader decodes every row that meets the conditions. With
    `apart`, the caller uses `scalar_rows`, and the batches have only the common columns of those
    rows.
    """

    def __init__(self, plan: Plan, fast: Any, *, apart: bool = False, scalar: bool = False) -> None:
        self.plan, self.fast, self._how = plan, fast, (apart, scalar)
        self._repeated = Repeated()
        names = {column.name for column in plan.columns}
        self._of_streams = [name for name in _OF_STREAMS if name in names]
        self._captured = {column.name: column.kind for column in CAPTURED if column.name in names}
        self._timed = not names.isdisjoint(_TIMES)
        given = {*self._of_streams, *self._captured}
        self._given_fields = [
            (place, field) for place, field in enumerate(plan.schema) if field.name in given
        ]
        own = tuple(column for column in plan.columns if column.name not in given)
        # A batch without any column would not have a number of rows.
        self._own = own or (_OFFSET,)
        self._has_own = bool(own)
        self._relative = [one.name for one in plan.format.columns if one.kind == "offset"]
        self._condition_reader: BlockReader | None = None
        if plan.mask is not None:
            self._condition_reader = BlockReader(plan.conditions(), fast)
        self._same = {"format": plan.format.label, "status": OK}
        columns = self._own, plan.validates, self._same
        self._decoder = fast.ColumnDecoder(*columns) if fast and not scalar else None

    def fits(self, plan: Plan, fast: Any, *, apart: bool = False, scalar: bool = False) -> bool:
        """Return whether this reader can serve a plan: it would be made of the same arguments."""
        if fast is not self.fast or (apart, scalar) != self._how:
            return False
        # Two masks cannot be compared.
        filtered = plan.mask is not None or self.plan.mask is not None
        return plan is self.plan or (not filtered and plan == self.plan)

    @property
    def scanner(self) -> FrameScanner | None:
        """The scanner to use if this reader is the only one; it may decode the frames it finds."""
        if self._condition_reader is not None:
            return self._condition_reader.scanner
        if self.fast is None:
            return None
        scanner: FrameScanner = getattr(self._decoder, "scan_frames", self.fast.scan_frames)
        return scanner

    def read(self, read: Sequence[Part]) -> DecodedParts:
        """Return the rows of blocks that the plan wants, in order, in one batch or a few.

        All blocks have the same `data`.
        """
        parts = read
        if self._condition_reader is not None:
            parts = self._wanted(self._condition_reader, parts)
        block = join_blocks([each for _, each in parts])
        batches, scalar_rows = self._decoded(block)
        bad = scalar_rows.bad
        given = self._given(parts)
        start = 0
        for number, batch in enumerate(batches):
            batches[number] = self._with_given(batch, given, start)
            start += batch.num_rows
        if self.plan.mode == "failfast":
            self._raise_fault(parts, block, bad)
        if not len(bad) or self.plan.mode != "dropmalformed":
            return DecodedParts(read, parts, batches, scalar_rows, len(bad) > 0)
        good = np.ones(len(block.offsets), np.bool_)
        good[bad] = False
        table = pa.Table.from_batches(batches).filter(as_array(good))
        return DecodedParts(read, parts, table.to_batches(), scalar_rows.among(good), True)

    def _with_given(
        self, batch: pa.RecordBatch, given: Mapping[str, pa.Array], start: int
    ) -> pa.RecordBatch:
        """Return decoded rows, from row `start` on, with the columns that the streams have."""
        rows = batch.num_rows
        if not self._has_own:
            batch = batch.select([])
        # Inserted in ascending order, so each gets its place in the schema.
        for place, field in self._given_fields:
            column = given[field.name]
            if rows != len(column):
                column = column.slice(start, rows)
            batch = batch.add_column(place, field, column)
        return batch

    def _given(self, parts: Sequence[Part]) -> dict[str, pa.Array]:
        """Return the columns whose values come from the streams, not from packets."""
        if len(parts) > 1 and any(each.owners is not None for _, each in parts):
            by_part = [self._given([part]) for part in parts]
            return {
                name: pa.concat_arrays([given[name] for given in by_part]) for name in by_part[0]
            }
        opened, block = parts[0]
        if block.owners is not None:
            assert isinstance(opened, StreamBundle)
            return self._given_of_bundle(opened, block)
        counts = [len(each.offsets) for _, each in parts]
        given = {}
        for name in self._of_streams:
            names = [opened.name if name == "source" else opened.stream for opened, _ in parts]
            given[name] = self._column("string", [storable(name) for name in names], counts)
        if not self._captured:
            return given
        constants = [opened.constants for opened, _ in parts]
        per_row = [opened.columns(each) for opened, each in parts]
        for name, kind in self._captured.items():
            if name in per_row[0]:
                given[name] = _nullable(np.concatenate([columns[name] for columns in per_row]))
            else:
                values = [constant.get(name) for constant in constants]
                given[name] = self._column(kind, values, counts)
        return given

    def _given_of_bundle(self, bundle: StreamBundle, block: Block) -> dict[str, pa.Array]:
        """Return the columns whose values come from the streams of a bundle."""
        source = storable(bundle.name)
        per_row = bundle.columns(block) if self._timed else {}
        return {
            name: self._column("string", [source], [len(block.offsets)])
            if name == "source"
            else _nullable(per_row[name])
            if name in per_row
            else bundle.given(name, block)
            for name in (*self._of_streams, *self._captured)
        }

    def _wanted(self, reader: BlockReader, parts: Sequence[Part]) -> list[Part]:
        """Return the parts with only the rows that meet the plan's conditions."""
        from pyarrow import compute as pc

        assert self.plan.mask is not None
        matches, start = [_NO_ROWS], 0
        for batch in reader.read(parts).batches:
            matches.append(as_numbers(pc.indices_nonzero(self.plan.mask(batch))).astype(np.int64))
            matches[-1] += start
            start += batch.num_rows
        wanted = np.concatenate(matches)
        picked, start = [], 0
        for opened, block in parts:
            stop = start + len(block.offsets)
            first, last = np.searchsorted(wanted, (start, stop))
            picked.append((opened, block.pick(wanted[first:last] - start)))
            start = stop
        return picked

    def _decoded(self, block: Block) -> tuple[list[pa.RecordBatch], ScalarRows]:
        """Decode the rows of a block."""
        rows = len(block.offsets)
        if self._decoder is None:
            batch, scalar_rows = self._scalar(block, np.arange(rows))
            return [batch], scalar_rows
        framed = np.delete(np.arange(rows), list(block.odd)) if block.odd else None
        packets = block if framed is None else block.pick(framed)
        batch, rejected = self._decoder.decode(
            block.data,
            block.stop,
            packets.places,
            packets.lengths,
            packets.contexts,
            packets.offsets,
        )
        if framed is None:
            if not len(rejected):
                return [batch], ScalarRows(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)
            framed = np.arange(rows)
        others = np.union1d(framed[rejected], list(block.odd)).astype(np.int64)
        order = np.empty(rows, np.int64)
        order[framed] = np.arange(len(framed))
        order[others] = len(framed) + np.arange(len(others))
        more, scalar_rows = self._scalar(block, others)
        return _in_order(batch, more, order), scalar_rows

    def _scalar(self, block: Block, rows: Ints) -> tuple[pa.RecordBatch, ScalarRows]:
        """Decode rows by the scalar reader.

        Equal packets are decoded once, and equal frames that are no packets, of which many streams
        of the same bytes have one.
        """
        offsets, lengths = block.offsets[rows], block.lengths[rows]
        kinds: list[Row] = []
        known: dict[Any, int] = {}
        which = np.empty(len(rows), np.int64)
        data = block.data.data
        starts, contexts = block.places[rows].tolist(), block.contexts[rows].tolist()
        for place, (row, start, length) in enumerate(
            zip(rows.tolist(), starts, lengths.tolist(), strict=True)
        ):
            frame = block.odd.get(row)
            key: object = None if frame is None else id(frame)
            if frame is None and length <= _SHORT_BYTES:
                key = bytes(data[start : start + length]), contexts[place]
            kind = known.get(key)
            if kind is None:
                kind = len(kinds)
                kinds.append(self._scalar_row(block, row))
                if key is not None:
                    known[key] = kind
            which[place] = kind
        scalar_rows = ScalarRows(rows, which, offsets, lengths, kinds, self._relative)
        names = _OF_ALL if self._how[0] else None
        shown = [{name: one[name] for name in names} for one in kinds] if names else kinds
        batch = rows_to_batch(self._own, shown)
        if len(kinds) < len(rows):
            batch = batch.take(as_array(which))
        positions = scalar_rows.positions()
        columns = [positions.get(name, batch[name]) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema), scalar_rows

    def _scalar_row(self, block: Block, row: int) -> Row:
        """Return the values of one row, counted from its offset."""
        values, status, error = self._read_row(block, row)
        shown = error.row() if error else None
        return {**self._same, "offset": 0, "length": 0, **values, "status": status, "error": shown}

    def _read_row(self, block: Block, row: int) -> tuple[Row, str, DecodeError | None]:
        """Decode one row; return its fields, its status and its error.

        Bytes that begin no packet have no fields; an unfinished packet has those that are whole.
        """
        frame = block.odd.get(row)
        if frame is not None and frame.status != TAIL:
            return {}, frame.status, frame.error
        values, error = self.plan.format.read_row(block.view(row), int(block.contexts[row]))
        if frame is not None:
            return values, TAIL, frame.error
        return values, MALFORMED if error else OK, error

    def _column(
        self, kind: str, values: Sequence[str | int | None], counts: Sequence[int]
    ) -> pa.Array:
        """Return a column with each value repeated in `counts` rows."""
        if len(set(values)) == 1:
            return self._repeated.column(kind, values[0], sum(counts))
        if kind != "string":
            return as_array(np.repeat(np.array(values, kind), counts))
        return repeat_texts([str(value) for value in values], counts)

    def _raise_fault(self, parts: Sequence[Part], block: Block, bad: Ints) -> None:
        """Raise the first error; the bytes between the packets of a store have none."""
        stops = np.cumsum([len(each.offsets) for _, each in parts])
        for row in bad.tolist():
            _, _, error = self._read_row(block, row)
            if error is not None:
                opened, _ = parts[int(np.searchsorted(stops, row, "right"))]
                error.add_note(f"in {storable(opened.name)}, offset {block.offsets[row]}")
                raise error


def _nullable(values: Ints) -> pa.Array:
    """Return a column with null for `UNKNOWN`."""
    unknown = values == UNKNOWN
    return as_array(values, unknown if unknown.any() else None)


def _in_order(batch: pa.RecordBatch, more: pa.RecordBatch, order: Ints) -> list[pa.RecordBatch]:
    """Return the rows of two batches in an order, which numbers those of `more` after the others.

    Gathering rows costs as much as decoding them, so a few runs are returned as slices instead.
    """
    rows = batch.num_rows
    cuts = np.flatnonzero((np.diff(order) != 1) | (order[1:] == rows)) + 1
    if len(cuts) > _MOST_RUNS:
        return [pa.concat_batches([batch, more]).take(as_array(order))]
    runs = []
    for start, stop in pairwise((0, *cuts.tolist(), len(order))):
        at = int(order[start])
        run = batch.slice(at) if at < rows else more.slice(at - rows)
        runs.append(run.slice(0, stop - start))
    return runs
