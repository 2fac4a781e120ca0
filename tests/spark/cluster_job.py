"""Run by a test in a process of its own: a lake follows a folder by the executors of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.cluster import CONF
from tests.spark.lakes import Silent
from wireyard.cli.follow import FollowLine
from wireyard.lake.writer import Lake
from wireyard.pipeline.facts import jmq, mqtt
from wireyard.pipeline.growing.following import follow_lake
from wireyard.spark import session
from wireyard.spark.running import SparkEngine

FEW_PACKETS = 1_000


def main(url: str, split_bytes: int, lake: str, folder: str, end: str) -> None:
    """Follow a folder until there is a file `end`; facts of few packets are divided too."""
    for module in (mqtt, jmq):
        setattr(module, "DIVISION", module.DIVISION._replace(most_packets=FEW_PACKETS))  # noqa: B010
    sources = str(Path(__file__).parents[2] / "src")
    spark = session(url, **{**CONF, "spark.executorEnv.PYTHONPATH": sources})
    with Lake.open(lake) as opened:
        given = opened, [folder], SparkEngine(lambda: spark), Silent(), FollowLine(quiet=True)
        follow_lake(*given, Path(end).exists, split_bytes=split_bytes)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
