"""Benchmark: the time of facts against that of bronze, in one run on all cores.

The captures are synthetic, a JMQ broker with consumers and acknowledgements and MQTT sensors, and
those that `WIREYARD_CAPTURES` names, separated by colons. Spark is started before, and its start is
not included. Only the ratio is meaningful on other machines.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.connections import sensors, write_capture
from benchmarks.jmq_load import write_load
from benchmarks.spark_source import FOLDER
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.spark import session
from wireyard.spark.running import SparkEngine

ROUNDS = 3
JMQ_MESSAGES = 100_000
MQTT_BYTES = 100 << 20


class Stopwatch:
    """A watch that records when all packets were in rows."""

    def __init__(self) -> None:
        self.began = self.read = time.perf_counter()

    def stage(self, name: str) -> None:
        if name == "writing tables":
            self.read = time.perf_counter()

    def at(self, done_bytes: int, total_bytes: int) -> None:
        pass


def measure(spark: SparkSession, path: Path) -> tuple[float, float, int]:
    """Return the seconds of bronze and of all stages after it, and the number of packets."""
    lake = FOLDER / "facts-lake"
    shutil.rmtree(lake, ignore_errors=True)
    with Lake.open(str(lake)) as opened:
        watch = Stopwatch()
        inputs = list_inputs([str(path)]).inputs
        report = fill_lake(opened, inputs, SparkEngine(lambda: spark), watch)
        end = time.perf_counter()
    packets = sum(one.packets_ok for each in report.added for one in each.ledger.values())
    shutil.rmtree(lake)
    return watch.read - watch.began, end - watch.read, packets


def main() -> None:
    """Measure and print one table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    jmq, mqtt = FOLDER / "broker.pcap", FOLDER / "sensors.pcap"
    write_load(jmq, JMQ_MESSAGES)
    write_capture(mqtt, sensors(), MQTT_BYTES)
    named = os.environ.get("WIREYARD_CAPTURES", "")
    paths = [jmq, mqtt, *map(Path, filter(None, named.split(":")))]
    spark = session()
    spark.range(1).collect()
    table = Table(title=f"bronze and facts, best of {ROUNDS} rounds")
    for heading in ("capture", "packets", "bronze s", "facts s", "facts to bronze"):
        table.add_column(heading, justify="left" if heading == "capture" else "right")
    for path in paths:
        rounds = [measure(spark, path) for _ in range(ROUNDS)]
        bronze, facts = (min(one[place] for one in rounds) for place in (0, 1))
        figures = f"{rounds[0][2]:,}", f"{bronze:.2f}", f"{facts:.2f}", f"{facts / bronze:.2f}x"
        table.add_row(path.name, *figures)
    Console(width=120).print(table)
    spark.stop()
    for path in (jmq, mqtt):
        path.unlink()


if __name__ == "__main__":
    main()
