"""Streams that grow, and their rows turn by turn."""

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

__all__ = ["Grown", "read_turns"]


class Grown(NamedTuple):
    """What can be read of a stream now: from where its framer stands, which goes on with it."""

    format: Format
    opened: DirectedStream
    framer: Framer


def read_turns(
    turns: Iterable[list[Grown]], plan_of: Callable[[Format], Plan | None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of streams as they grow.

    Parameters
    ----------
    plan_of
        What is wanted of streams of a format; None if nothing is.
    """
    reader: BlockReader | None = None
    size = 0
    for turn in turns:
        plans = [(one, plan_of(one.format)) for one in turn]
        wanted = [(one, plan) for one, plan in plans if plan is not None]
        new = sum(one.opened.bytes_ahead for one, _ in wanted)
        size += new
        parts = []
        for one, plan in wanted:
            load_fast_path(plan.format, size)  # from when on it is worth it
            fast = load_fast_path(plan.format, new)
            if reader is None or not reader.fits(plan, fast):
                reader = BlockReader(plan, fast)
            for block in one.opened.blocks(one.framer, fast and fast.scan_frames):
                parts.append((one.opened, block))
        for _, some in groupby(parts, key=lambda part: id(part[1].data)):
            assert reader is not None
            yield from (batch for batch in reader.read(list(some)) if batch.num_rows)
