"""Fact tables of many RMP packets, in stages: packets by sender, then row by row.

A sender and its group are one stream. Stages (``wireyard.layers.stages``) run over its packets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats import get_format
from wireyard.lake.parts import read_batches
from wireyard.layers.gaps import stream_keys
from wireyard.layers.rmp.chain import CHAIN
from wireyard.layers.rmp.observer import NEEDED
from wireyard.pipeline.exchange import Stage, pass_by_text
from wireyard.pipeline.facts.keyed import run_rows, stages_of
from wireyard.pipeline.facts.tasks import Division, Group, Output, Outputs, Result, run_stages
from wireyard.pipeline.running import Runner
from wireyard.streams.plan import make_plan

_MOST_PACKETS: Final = 1 << 13
"""Packets that a task holds at once, with their bodies of up to 64 kB."""
_PACKETS: Final = "packets"
_FIRST, *_LATER = CHAIN


def _write_by_sender(runner: Runner, output: Output, group: Group) -> Iterable[Result]:
    """Write the facts of some inputs, sender by sender; return the results."""
    parts, paths = -(-group.packets // _MOST_PACKETS), [path for _, path in group.files]
    split = partial(_split, sources=group.sources, parts=parts)
    work = partial(run_rows, passed=_PACKETS, name=_FIRST, stages=dict(CHAIN), parts=parts,
                   output=output)  # fmt: skip
    later = stages_of({name: CHAIN[name] for name in _LATER}, parts, output)
    return run_stages(runner, paths, split, [Stage([_PACKETS], parts, work), *later])


DIVISION: Final = Division(_MOST_PACKETS, sys.maxsize, _write_by_sender)


def _split(path: str, sources: Sequence[str], parts: int) -> Outputs:
    """Partition the packets of a file by sender."""
    schema = make_plan(get_format("rmp"), captured=True).schema
    names = [*dict.fromkeys((*NEEDED, "offset"))]
    for table in read_batches(path, names):
        own = table.filter(pc.is_in(table["source"].cast(pa.string()), pa.array(sources)))
        rows = own.select(names).cast(pa.schema(map(schema.field, names)))
        rows = rows.append_column("key", stream_keys(rows))
        yield from pass_by_text(_PACKETS, rows, "key", parts)
