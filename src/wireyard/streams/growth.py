"""Rows of streams that grow, in turns: one for the bytes that arrived together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from wireyard.formats.base import Format
from wireyard.streams.batches import BlockReader
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.framer import Framer
from wireyard.streams.plan import Plan
from wireyard.streams.scan import load_fast_path


class Grown(NamedTuple):
    """The new part of a stream, from the position of its framer on, which the next turn reuses."""

    format: Format
    opened: DirectedStream
    framer: Framer


def read_turns(
    turns: Iterable[list[Grown]], plan_of: Callable[[Format], Plan | None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of streams as they grow.

    Streams of a format for which `plan_of` returns None are skipped.
    """
    reader: BlockReader | None = None
    size = 0
    for turn in turns:
        plans = [(grown, plan_of(grown.format)) for grown in turn]
        wanted = [(grown, plan) for grown, plan in plans if plan is not None]
        new = sum(grown.opened.bytes_ahead for grown, _ in wanted)
        size += new
        parts = []
        for grown, plan in wanted:
            load_fast_path(plan.format, size)  # load it once all bytes so far are worth it
            fast = load_fast_path(plan.format, new)
            if reader is None or not reader.fits(plan, fast):
                reader = BlockReader(plan, fast)
            for block in grown.opened.blocks(grown.framer, fast and fast.scan_frames):
                parts.append((grown.opened, block))
        for _, same_data in groupby(parts, key=lambda part: id(part[1].data)):
            assert reader is not None
            yield from (batch for batch in reader.read(list(same_data)) if batch.num_rows)
