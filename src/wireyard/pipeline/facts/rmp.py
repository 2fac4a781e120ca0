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
from wireyard.pipeline.facts.keyed import RESULTS, run_stage
from wireyard.pipeline.facts.tasks import Division, Group, Results
from wireyard.pipeline.running import Keyed, Runner
from wireyard.streams.plan import make_plan

__all__ = ["DIVISION"]

_MOST_PACKETS: Final = 1 << 13
"""Packets that a task holds at once, with their bodies of up to 64 kB."""
_FIRST, *_LATER = CHAIN
_LATER_STAGES: Final = {name: CHAIN[name] for name in _LATER}
"""The stages over the records that `_write_by_sender` passes on."""


def _write_by_sender(runner: Runner, staging: str, group: Group) -> Results:
    """Write the facts of some inputs, sender by sender; yield rows of `RESULTS`."""
    schema = make_plan(get_format("rmp"), captured=True).schema
    key, paths = ("source", "stream"), [path for _, path in group.files]
    packets = Keyed(paths, schema, NEEDED, key, "offset", group.sources)
    work = partial(run_stage, name=_FIRST, stages=dict(CHAIN), packed=False, staging=staging)
    yield from runner.run_by_key(packets, work, RESULTS).to_pylist()


DIVISION: Final = Division(_MOST_PACKETS, sys.maxsize, _write_by_sender, _LATER_STAGES)
