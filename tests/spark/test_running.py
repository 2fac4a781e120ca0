"""Tasks give the same results in Spark and in this process, which runs small ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from tests.spark.lakes import TABLES, all_rows, assert_as_one_run, run
from wireyard.lake.writer import Lake
from wireyard.pipeline.running import Runner
from wireyard.spark import executors, running
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES_OF_ALL = {*TABLES, "packets_mqtt", "packets_rmp", "store_records"} - {"quarantine"}


def squares(number: int) -> Iterator[int]:
    yield number * number


def test_both_engines_give_the_same_tables(
    examples: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """All examples: captures, streams and a store, in the clear and encrypted."""
    keys = tuple(map(str, sorted((examples / "encrypted").glob("*.keys"))))
    given: dict[str, Any] = {"decode_as": ("udp.port==7078,rmp",), "keylog": keys}
    run(tmp_path / "spark", spark, examples, **given)
    run(tmp_path / "process", None, examples, **given)
    by_spark, by_process = all_rows(tmp_path / "spark"), all_rows(tmp_path / "process")
    assert by_spark.keys() == by_process.keys() >= TABLES_OF_ALL
    for name, rows in by_process.items():
        assert by_spark[name] == rows, name


def test_a_task_continues_an_input_that_has_grown(
    examples: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its state in the lake, or from the beginning, unless several tasks read it sooner."""
    path, lake = tmp_path / "in" / "some.pcap", tmp_path / "lake"
    path.parent.mkdir()
    data = (examples / "traffic.pcap").read_bytes()
    grown = []
    for part, most in ((2, 0), (4, 0), (6, 1 << 20), (8, 0)):
        monkeypatch.setattr("wireyard.pipeline.job.MOST_GROWN_BYTES", most)
        path.write_bytes(data[: len(data) * part // 8])
        report = run(lake, spark, path)
        grown.append((report.grown, report.held_bytes > 0))
    assert grown == [(0, False), (0, False), (1, False), (1, True)]
    assert_as_one_run(path.parent, lake)


def test_spark_starts_with_the_first_task(tmp_path: Path, spark: SparkSession) -> None:
    started: list[Any] = []

    def start() -> SparkSession:
        started.append(spark)
        return spark

    with Lake.open(str(tmp_path / "lake")) as lake:
        here = Runner(None, lake).run(range(3), squares, int)
        engine = SparkEngine(start)
        runner = Runner(engine, lake)
        assert runner.run([], squares, int) == []
        assert not started and engine.use is None
        by_spark = runner.run(range(3), squares, int)
        Runner(engine, lake).run([1], squares, int)
        assert len(started) == 1
    assert by_spark == here == [0, 1, 4]
    assert engine.use is not None
    assert (engine.use.version, engine.use.master) == (spark.version, "local[2]")
    assert (engine.use.stages, engine.use.tasks) == (2, 4)


def test_a_worker_tries_once_to_access_a_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer costs seconds; the text has the cause, and what a URL needs."""
    tried: list[str] = []

    def fail(path: str, *_: Any) -> None:
        tried.append(path)
        raise OSError("Could not resolve host: bucket.s3.us-east-1.amazonaws.com")

    monkeypatch.setattr(executors, "filesystem", fail)
    batches = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(3)]
    found = [row for batch in batches for row in executors._yield_failure(iter([batch]), "s3://a")]
    assert tried == ["s3://a"]
    assert {row["failure"][0].as_py() for row in found} == {
        "OSError: Could not resolve host: bucket.s3.us-east-1.amazonaws.com"
    }


def test_spark_starts_short_tasks_together(tmp_path: Path, spark: SparkSession) -> None:
    with Lake.open(str(tmp_path / "lake")) as lake:
        cluster = SparkEngine(lambda: spark)(lake)
        # Two run at once: four rounds of them at least, and no more together than may be.
        wanted = {(8, 4): 8, (30, 4): 8, (40, 4): 10, (30, 1): 30}
        assert {each: running._partitions(spark, *each) for each in wanted} == wanted
        found = cluster.run(range(30), squares, int, 4, None)
        assert found == [number * number for number in range(30)]


def test_a_run_that_has_nothing_to_do_loads_neither_spark_nor_kernels(
    examples: Path, tmp_path: Path, spark: SparkSession
) -> None:
    lake = tmp_path / "lake"
    run(lake, None, examples / "traffic")
    command = [sys.executable, "-X", "importtime", "-m", "wireyard", "run"]
    done = subprocess.run(
        [*command, str(examples / "traffic"), "--lake", str(lake)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("nothing new: 28 inputs in the lake already")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "wireyard.lake.writer" in loaded
    assert not loaded & {"pyspark", "numba", "pandas", "wireyard.pipeline.decoding.task"}


_MEMORY = """
import sys

import numpy as np
from wireyard.arena import pooled
from wireyard.spark import workers
from wireyard.spark.workers import begin_task, settle

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon"))

settle()
before = held()
arrays = [np.ones(1 << 17) for _ in range(64)]
pool = [pooled(1 << 17, np.int64) for _ in range(64)]
for array in pool:
    array[:] = 1
behind = np.ones(1 << 10)  # so that the heap does not end where the arrays did
full = held()
del arrays, array, pool
workers._MOST_OWN = full << 21
begin_task()
same = held()
workers._MOST_OWN = before << 20
begin_task()
print(before, full, same, held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_has_much_gives_back_what_is_free() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True
    )
    before, full, same, after = map(int, done.stdout.split())
    assert full - before > 100
    assert same - before > 50  # which the next task takes
    assert after - before < 30


def pools(_: int) -> Iterator[str | None]:
    context = TaskContext.get()
    assert context is not None
    yield context.getLocalProperty("spark.scheduler.pool")


def test_threads_share_the_cores(tmp_path: Path, spark: SparkSession) -> None:
    """Parts of growing inputs do not wait for all facts, which a thread makes."""
    found = list[str]()
    with Lake.open(str(tmp_path / "lake")) as lake:
        runner = Runner(SparkEngine(lambda: spark), lake)

        def run_one() -> None:
            found.extend(runner.run([0], pools, str | None))

        thread = Thread(target=run_one, name="all facts")
        thread.start()
        thread.join()
        run_one()
    assert found == ["all facts", current_thread().name]
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
