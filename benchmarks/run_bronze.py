"""Benchmark: the bronze stage of ``wireyard run`` against a lower bound and Spark's own writer.

The lower bound is tasks that only write: the same batches, ready in the memory of the workers, with
the same writer, in as many files. Spark's way is to read through the data source and to write with
``write.parquet``. The cases alternate, and the fastest of several rounds counts. Only ratios are
meaningful on other machines.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.spark_source import FOLDER, make_stream
from tests.readings import scan_source
from wireyard.formats import get_format
from wireyard.lake.parts import PartFile
from wireyard.lake.writer import Lake
from wireyard.pipeline.decoding.stage import BronzeStage
from wireyard.pipeline.decoding.task import BronzeSettings
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import SPLIT_BYTES
from wireyard.pipeline.running import Runner
from wireyard.spark import session
from wireyard.spark.running import SparkEngine
from wireyard.streams.plan import make_plan

ROUNDS = 7
LAKE, BY_SPARK = FOLDER / "lake", FOLDER / "by_spark"


class Unseen:
    """A watch that shows nothing."""

    def stage(self, name: str) -> None:
        pass

    def at(self, done_bytes: int, total_bytes: int) -> None:
        pass


@cache
def ready_batches(path: str, stop: int) -> list[pa.RecordBatch]:
    """Return the batches of one piece, cached in the memory of the worker."""
    return list(scan_source(path, make_plan(get_format("jmq")), limit=stop))


def write_ready(
    batches: Iterator[pa.RecordBatch], path: str, stop: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """Write the cached batches once for each row; for `mapInArrow`."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            ready = ready_batches(path, stop)
            file = PartFile(f"{folder}/{number}.parquet", ready[0].schema)
            for each in ready:
                file.write(each)
            file.close()
        yield batch


def cases(spark: SparkSession, lake: Lake, path: str) -> dict[str, Callable[[], object]]:
    """Return the work of each case, by name."""
    inputs = list_inputs([path]).inputs
    tasks = -(-inputs[0].size // SPLIT_BYTES)
    ready = partial(
        write_ready, path=path, stop=inputs[0].size // tasks, folder=lake.staged("packets_jmq")
    )
    lake.make_staging(["packets_jmq"])
    stage = BronzeStage(
        Runner(SparkEngine(lambda: spark), lake), lake, BronzeSettings(lake.staged("")), Unseen()
    )
    source = spark.read.format("wireyard").option("protocol", "jmq").load(path)
    return {
        "bronze stage": lambda: stage.read(inputs, SPLIT_BYTES),
        "tasks that only write": lambda: (
            spark.range(0, tasks, 1, tasks).mapInArrow(ready, "id long").collect()
        ),
        "data source, write.parquet": lambda: source.write.mode("overwrite").parquet(str(BY_SPARK)),
    }


def main() -> None:
    """Measure and print one table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stream = FOLDER / "stream.jmq"
    if not stream.is_file():
        make_stream(stream)
    shutil.rmtree(LAKE, ignore_errors=True)
    spark = session()
    best: dict[str, float] = {}
    with Lake.open(str(LAKE)) as lake:
        for _ in range(ROUNDS):
            for case, work in cases(spark, lake, str(stream)).items():
                start = time.perf_counter()
                work()
                best[case] = min(best.get(case, 1e9), time.perf_counter() - start)
                shutil.rmtree(lake.staged(""), ignore_errors=True)
                lake.make_staging(["packets_jmq"])
    spark.stop()
    for folder in (LAKE, BY_SPARK):
        shutil.rmtree(folder, ignore_errors=True)
    size = stream.stat().st_size
    table = Table(title=f"Bronze, {size / 1e6:.0f} MB, best of {ROUNDS} rounds")
    for heading in ("case", "s", "MB/s", "bronze stage is", "wanted"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    ours, floor, by_spark = best.values()
    ratios = ("", f"{ours / floor:.2f}x its time", f"{by_spark / ours:.1f}x as fast")
    wanted = ("", "1.6x or less", "3x or more")
    for (case, seconds), ratio, limit in zip(best.items(), ratios, wanted, strict=True):
        table.add_row(case, f"{seconds:.2f}", f"{size / seconds / 1e6:.0f}", ratio, limit)
    Console().print(table)


if __name__ == "__main__":
    # Imported by name, so that workers import it too, and its caches last between tasks.
    import_module("benchmarks.run_bronze").main()
