"""Benchmark: the Spark data source against lower bounds, in one session.

The lower bound for a table is a data source that yields the same batches, ready in memory, in as
many tasks; the difference is reading and decoding. The lower bound for a first row is plain
PySpark's. The cases alternate, and the fastest of several rounds counts. Only ratios are meaningful
on other machines.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from wireyard.formats import get_format
from wireyard.pipeline.inputs.listing import list_files
from wireyard.pipeline.inputs.options import Options
from wireyard.pipeline.inputs.tasks import plan_tasks
from wireyard.spark import session
from wireyard.spark.reader import Reader

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "spark_source"
STREAM_BYTES = 1_000_000_000
DISTINCT_PACKETS = 20_000
BODY_BYTES = (250, 500)  # with header, items and properties about 630 bytes a packet
NARROW = "timestamp long, sequence int, packet_type int"
ROUNDS = 7
WARM_ROUNDS = 4
COLD_ROUNDS = 3
PLAIN_FIRST_ROW = """
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().range(1).first()
"""
OUR_FIRST_ROW = """
import sys
from wireyard.spark import session
session().read.format("wireyard").option("protocol", "jmq").load(sys.argv[1]).first()
"""


def make_stream(path: Path) -> None:
    """Write a stream with incompressible bodies: random bytes, different in each packet."""
    random = np.random.default_rng(2026)
    format = get_format("jmq")
    packets, is_body = [], []
    for number in range(DISTINCT_PACKETS):
        body = bytes(int(random.integers(*BODY_BYTES)))
        row = {
            "packet_type": 1,
            "timestamp": 1_790_000_000_000 + number,
            "source_ip": bytes(10) + b"\xff\xff\x0a\x00\x00" + bytes([number % 250]),
            "source_port": 40_000 + number % 1000,
            "sequence": number,
            "consumer_id": number % 50,
            "producer_id": 1000 + number % 7,
            "destination": f"orders.{number % 20}",
            "message_id": f"ID:{number}-10.0.0.{number % 250}(a1:b2)-40000-{number}",
            "destination_class": "com.sun.messaging.BasicQueue",
            "properties": {
                "region": {"type": "string", "value": f"eu-west-{number % 3}"},
                "attempt": {"type": "integer", "value": str(number % 5)},
                "price": {"type": "double", "value": str(number / 7)},
            },
            "body": body,
        }
        packet = format.encode(format.packet_of(row, format.context))
        packets.append(packet)
        is_body.append(np.arange(len(packet)) >= len(packet) - len(body))
    block, places = np.frombuffer(b"".join(packets), np.uint8).copy(), np.concatenate(is_body)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        while file.tell() < STREAM_BYTES:
            block[places] = np.frombuffer(random.bytes(int(places.sum())), np.uint8)
            file.write(block.data)
    part.replace(path)


class Ready(DataSource):
    """A data source that yields the batches of Arrow files, one file for each task."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options["path"])


class ReadyReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(ready_batches(partition.value))


@cache
def ready_batches(path: str) -> list[pa.RecordBatch]:
    """Return the batches of a file, cached in the memory of the worker."""
    with pa.OSFile(path) as file:
        ready = pa.ipc.open_file(file.read_buffer())
    return [ready.get_batch(number) for number in range(ready.num_record_batches)]


def make_ready(stream: Path, schema: StructType, folder: Path) -> None:
    """Write the batches that our source yields for `schema` to Arrow files, task by task."""
    options = Options(protocol="jmq", paths=(str(stream),))
    reader = Reader(options, schema)
    rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, task in enumerate(plan_tasks(list_files(options), get_format("jmq"), options, {})):
        batches = reader.read(InputPartition(task))
        first = next(batches)
        with pa.ipc.new_file(folder / f"{number:03}.arrow", first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)


def seconds_to_noop(frame: DataFrame) -> float:
    """Return the seconds that Spark takes to read all rows."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def tables(spark: SparkSession, stream: Path) -> dict[str, list[list[float]]]:
    """Return the seconds of each case and of its lower bound, round by round."""
    spark.dataSource.register(Ready)
    ours = spark.read.format("wireyard").option("protocol", "jmq")
    every = ours.load(str(stream)).schema
    schemas: dict[str, Any] = {"all columns": every, "3 narrow columns": NARROW}
    pairs = {}
    for case, wanted in schemas.items():
        frame = ours.schema(wanted).load(str(stream))
        ready = FOLDER / f"ready-{case.replace(' ', '-')}"
        make_ready(stream, frame.schema, ready)
        pairs[case] = frame, spark.read.format("ready").schema(wanted).load(str(ready))
        # Several times, until the caches of all workers are filled.
        counts = [each.count() for each in pairs[case] * WARM_ROUNDS]
        if len(set(counts)) > 1:
            raise SystemExit(f"{case}: the rows are {counts}, and should be one number")
    rounds: dict[str, list[list[float]]] = {case: [] for case in pairs}
    for _ in range(ROUNDS):
        for case, frames in pairs.items():
            rounds[case].append([seconds_to_noop(frame) for frame in frames])
    return rounds


def first_rows(path: str) -> list[list[float]]:
    """Return the seconds from the start of Python to a first row, for ours and plain PySpark."""
    rounds = []
    for _ in range(COLD_ROUNDS):
        seconds = []
        for script in (OUR_FIRST_ROW, PLAIN_FIRST_ROW):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        rounds.append(seconds)
    return rounds


def main() -> None:
    """Measure and print one table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stream = FOLDER / "stream.jmq"
    if not stream.is_file():
        make_stream(stream)
    spark = session()
    measured = tables(spark, stream)
    spark.stop()
    cold = first_rows(str(ROOT / "examples" / "traffic"))
    table = Table(title=f"Spark data source, {stream.stat().st_size / 1e6:.0f} MB, best of rounds")
    for heading in ("case", "ours s", "floor s", "ratio", "wanted"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    wanted = {"all columns": "1.25", "3 narrow columns": "1.5"}
    for case, rounds in measured.items():
        ours, floor = (min(times) for times in zip(*rounds, strict=True))
        table.add_row(case, f"{ours:.2f}", f"{floor:.2f}", f"{ours / floor:.2f}", wanted[case])
    ours, plain = (min(times) for times in zip(*cold, strict=True))
    table.add_row(
        "first row, cold", f"{ours:.1f}", f"{plain:.1f}", f"+{ours - plain:.1f} s", "+3 s"
    )
    Console().print(table)


if __name__ == "__main__":
    # Imported by name, so that workers import it too, and its caches last between tasks.
    import_module("benchmarks.spark_source").main()
