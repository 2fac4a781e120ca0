"""Benchmark: how late `wireyard replay` sends packets, in turns with a bare timer.

``python -m benchmarks.replay`` prints the table of docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

import wireyard
from tests.shadow.scenario import Scenario
from wireyard.captures.inputs import open_input
from wireyard.client.address import parse_address
from wireyard.replay.player import run
from wireyard.replay.script import Script, Send, read_script

TURNS: Final = 4
ROUNDS: Final = 60


def replayed(script: Script) -> list[float]:
    """Return how late the packets of a replay are sent, in ms."""
    with wireyard.broker() as broker:
        (played,) = run([script], {None: parse_address(broker.url)}, print)
    return [late * 1e3 for late in played.late_s]


def timed(script: Script) -> list[float]:
    """Return how late a timer is that does nothing at the same times, in ms."""
    first = script.steps[0].time_ns
    due = [(step.time_ns - first) / 1e9 for step in script.steps if isinstance(step.what, Send)]
    late = []

    async def wait() -> None:
        now = asyncio.get_running_loop().time
        began = now()
        for moment in due:
            await asyncio.sleep(began + moment - now())
            late.append((now() - began - moment) * 1e3)

    asyncio.run(wait())
    return late


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.pcapng")
        Scenario(path).run(ROUNDS)
        with closing(open_input(str(path))) as source:
            script = read_script(source)
    print("| | median, ms | 99th percentile, ms |\n|---|---|---|")
    for _ in range(TURNS):
        for name, late in (("replay", replayed(script)), ("timer", timed(script))):
            late.sort()
            print(f"| {name} | {late[len(late) // 2]:.1f} | {late[len(late) * 99 // 100]:.1f} |")


if __name__ == "__main__":
    main()
