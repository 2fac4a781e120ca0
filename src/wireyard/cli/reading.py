"""One stream while a command reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.cli.faults import Faults
from wireyard.cli.progress import Progress
from wireyard.cli.selection import Selection
from wireyard.streams.batches import BlockReader
from wireyard.streams.blocks import Block, DirectedStream
from wireyard.streams.framer import GAP, MALFORMED
from wireyard.streams.plan import Plan
from wireyard.streams.scan import load_fast_path

__all__ = ["Budget", "OpenInput", "read_blocks"]


class Budget:
    """How many rows are still wanted: all there are if `limit` is None."""

    def __init__(self, limit: int | None) -> None:
        self._left = sys.maxsize if limit is None else limit

    @property
    def spent(self) -> bool:
        """Whether no more rows are wanted."""
        return self._left == 0

    def take(self, count: int) -> int:
        """Return how many of `count` rows are wanted, and have them counted."""
        taken = min(count, self._left)
        self._left -= taken
        return taken


@dataclass(frozen=True)
class OpenInput:
    """A stream, what of it is shown, and what is noted on the way."""

    opened: DirectedStream
    selection: Selection
    budget: Budget
    progress: Progress
    faults: Faults


def read_blocks(reading: OpenInput, plan: Plan) -> Iterator[tuple[Block, pa.RecordBatch]]:
    """Yield the blocks of a stream, each with the rows that are wanted of it.

    One thread reads: that is faster than anything is written, and each more would hold 100 MB.

    Raises
    ------
    DecodeError
        In mode ``failfast``: the first bad row.
    """
    opened, budget = reading.opened, reading.budget
    reader = BlockReader(plan, load_fast_path(plan.format, opened.bytes_ahead))
    framer = plan.framer(context=opened.context)
    for block in opened.blocks(framer, reader.scanner):
        batches = reader.read([(opened, block)]) or [pa.RecordBatch.from_pylist([], plan.schema)]
        batch = pa.concat_batches(batches)
        batch = batch.slice(0, budget.take(batch.num_rows))
        last = batch["offset"][-1].as_py() if budget.spent else sys.maxsize
        if plan.mode == "permissive":
            _count(block, batch, last, reading.faults)
        yield block, batch
        reading.progress.at(framer.position)
        if budget.spent:
            return


def _count(block: Block, batch: pa.RecordBatch, last: int, faults: Faults) -> None:
    """Count the faults up to the row at `last`.

    Bytes that are no packet are counted whatever rows are wanted: they may have been some.
    """
    for frame in block.odd.values():
        if frame.start <= last and (frame.error or frame.status != GAP):
            error = frame.error.row() if frame.error else None
            faults.add(frame.status, frame.start, frame.stop - frame.start, error)
    malformed = pc.equal(batch["status"], MALFORMED)
    if pc.any(malformed).as_py():
        names = ["status", "offset", "length", "error"]
        for row in batch.select(names).filter(malformed).to_pylist():
            faults.add(**row)
