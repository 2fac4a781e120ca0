"""Run by a test in a process of its own: fill a lake by the executors of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.cluster import CONF
from tests.spark.lakes import run
from wireyard.spark import session


def main(url: str, split_bytes: int, lake: str, *inputs: str) -> None:
    """Read inputs into a lake."""
    sources = str(Path(__file__).parents[2] / "src")
    conf = {**CONF, "spark.executorEnv.PYTHONPATH": sources}
    spark = session(url, **conf)
    run(Path(lake), spark, *map(Path, inputs), split_bytes=split_bytes)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
