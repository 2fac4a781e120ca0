"""The baseline of ratios: the shipped Java classes reading the same stream."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from peers import openmq

SOURCE = Path(__file__).with_name("PacketBench.java")
# The collector under which Java was fastest here, and a heap that never has to grow.
FLAGS = ("-XX:+UseParallelGC", "-Xms3g", "-Xmx3g")


def pinned(command: list[str]) -> list[str]:
    """Return `command` pinned to the last available core, if taskset is installed."""
    if shutil.which("taskset") is None:
        return command
    return ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), *command]


def java_baseline(
    format: str, stream_path: Path, warm_seconds: float = 5, rounds: int = 9
) -> dict[str, Any]:
    """Measure the shipped classes on a stream of ``jmq`` or ``gpacket``, repeated to 120 MB.

    They are called as `ReadOnlyPacket.readPacket(InputStream)` and `GPacket.read(InputStream)`.

    Returns
    -------
    dict
        `java`, `bytes`, `packets`, `pinned`, and for each case of PacketBench.java a dict of
        `packets_per_s_best`, `packets_per_s_median`, `mb_per_s_best`, `mb_per_s_median`.

    Raises
    ------
    openmq.Unavailable
        Maven or a JDK is missing.
    """
    command = pinned(openmq.java(SOURCE, *FLAGS))
    done = subprocess.run(
        [*command, format, str(stream_path), str(warm_seconds), str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return {**result, "pinned": command[0] == "taskset"}
