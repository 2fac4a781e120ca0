"""Fact tables of many RMP packets: a cluster orders the packets of each sender, row by row.

A sender and its group are one stream. Stages (``wireyard.layers.stages``) run over its packets.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from wireyard.formats import get_format
from wireyard.layers.rmp.chain import CHAIN
from wireyard.layers.rmp.observer import NEEDED
from wireyard.pipeline.exchange import Keyed
from wireyard.pipeline.facts.keyed import run_rows, stages_of
from wireyard.pipeline.facts.tasks import Division, Group, Output, Results, run_stages
from wireyard.pipeline.running import Runner
from wireyard.streams.plan import make_plan

__all__ = ["DIVISION"]

_MOST_PACKETS: Final = 1 << 13
"""Packets that a task holds at once, with their bodies of up to 64 kB."""
_FIRST, *_LATER = CHAIN


def _write_by_sender(runner: Runner, output: Output, group: Group) -> Results:
    """Write the facts of some inputs, sender by sender; yield rows of `RESULTS`."""
    schema = make_plan(get_format("rmp"), captured=True).schema
    key, paths = ("source", "stream"), [path for _, path in group.files]
    packets = Keyed(paths, schema, NEEDED, key, "offset", group.sources)
    parts = -(-group.packets // _MOST_PACKETS)
    work = partial(run_rows, name=_FIRST, stages=dict(CHAIN), parts=parts, output=output)
    later = stages_of({name: CHAIN[name] for name in _LATER}, parts, output)
    return run_stages(runner, packets, work, later)


DIVISION: Final = Division(_MOST_PACKETS, sys.maxsize, _write_by_sender)
