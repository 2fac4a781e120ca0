"""The cluster of the pipeline on Spark: a session that runs the tasks of stages.

Stages that pass something on are one lineage, and one job: ``mapInArrow``, then Spark's shuffle,
then ``mapInArrow`` again. A row of the shuffle is a blob, an Arrow stream in one binary column, so
rows of tables are not converted for Java. A blob for a later
stage, or a result for the driver, goes through the tasks of those between, which do not read it.
Spark computes again what is lost with an executor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from wireyard.errors import LakeError
from wireyard.formats import load_columns
from wireyard.lake.staging import Staging
from wireyard.pipeline.exchange import (
    Blob,
    Spill,
    Stage,
    Work,
    pass_on,
    read_tables,
)
from wireyard.pipeline.running import Show
from wireyard.pipeline.typed_json import first_parameter, from_json, to_json
from wireyard.spark.executors import check_access, check_executors, is_elsewhere
from wireyard.spark.workers import begin_task, settle

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_ROUNDS: Final = 4
"""Least number of Spark tasks per core, so that no core is idle for long at the end of a stage."""
_POLL_S: Final = 0.5
"""Time between two looks at how many tasks are done."""
_AT_ONCE: Final = 8
"""Tasks at the same time where Spark does not say it."""
_FULL: Final = "No space left on device"
RESULTS: Final = -1
"""Instead of the number of a part: the row has the results of tasks."""
IS_RESULT: Final = f"part = {RESULTS}"
_Outputs = Iterator[tuple[int, Iterable[Any]]]
Run = Callable[[Any], _Outputs]
"""Runs tasks over batches; yields the number of each, and what it yields."""
_TEXTS: Final = pa.schema([("result", pa.string())])
"""Results of tasks, in JSON of their type."""
SHUFFLED: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("stage", pa.int32()),
        ("task", pa.int32()),
        ("number", pa.int32()),
        ("name", pa.string()),
        ("size", pa.int64()),
        ("data", pa.binary()),
    ]
)
"""Rows of the shuffle: blobs, and the stage and task that each is from, with its number there.

Data are compressed. They are positions, counts and codes, which become a third in the time that it
takes to copy them; `size` is that of the data before.
"""
_CODEC: Final = "lz4"


@dataclass(slots=True)
class SparkUse:
    """What was run on Spark."""

    version: str = ""
    master: str = ""
    """Its URL; of an embedded Spark `local` and the number of threads."""
    stages: int = 0
    tasks: int = 0
    start_s: float = 0.0
    """Seconds until it could run tasks."""
    total_s: float = 0.0
    """Seconds for which the driver waited for Spark, with the start."""


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a session; Spark Connect has none."""
    return getattr(session, "sparkContext", None)


class SparkEngine:
    """Starts Spark for the first lake, and is the cluster of all lakes: a `StartCluster`.

    `get_session` starts the session; it is called once.
    """

    def __init__(self, get_session: Callable[[], SparkSession]) -> None:
        self._get_session = get_session
        self._session: SparkSession | None = None
        self._lock = Lock()
        self._use = SparkUse()
        self._groups = list[str]()
        """Job groups whose stages are not counted yet: Spark learns of the last one's end late."""

    def __call__(self, lake: Staging) -> SparkCluster:
        """Return the cluster for a lake.

        A `LakeError` is raised if executors cannot access the lake; a `SourceError` if Spark cannot
        be started, or executors cannot run our tasks.
        """
        with self._lock:
            if self._session is None:
                began_s = time.monotonic()
                session = self._get_session()
                is_remote = is_elsewhere(session)
                if is_remote:
                    check_executors(session)
                if is_remote or "://" in lake.root:
                    check_access(session, lake)
                self._use.start_s = self._use.total_s = time.monotonic() - began_s
                self._describe(session)
                self._session = session
            return SparkCluster(self._session, self)

    def _describe(self, session: SparkSession) -> None:
        self._use.version, self._use.master = session.version, "Connect"
        if (context := context_of(session)) is not None:
            url = str(context.master)
            is_local = url.startswith("local[")
            self._use.master = f"local[{context.defaultParallelism}]" if is_local else url

    @property
    def use(self) -> SparkUse | None:
        """What was run so far; None if Spark was not started."""
        with self._lock:
            if self._session is None:
                return None
            if (context := context_of(self._session)) is not None:
                context._jsc.sc().listenerBus().waitUntilEmpty()
                self._count(context.statusTracker())
            return self._use

    def collect(self, rows: DataFrame, name: str, show: Show | None = None) -> pa.Table:
        """Return the rows of a job, and count its stages and tasks.

        `name` is the description of the job in Spark's UI.
        """
        began_s, group = time.monotonic(), uuid4().hex
        if (context := context_of(rows.sparkSession)) is not None:
            context.setJobGroup(group, name)
            # Threads share the cores: facts that are made in the background do not hold up parts.
            context.setLocalProperty("spark.scheduler.pool", current_thread().name)
            with self._lock:
                self._count(context.statusTracker())
                self._groups.append(group)
        try:
            with _shown(context, group, show):
                return rows.toArrow()
        except KeyboardInterrupt:
            if context is not None:
                context.cancelAllJobs()  # Spark's own handler does so for SIGINT only
            raise
        except Exception as error:
            if _FULL in str(error):
                raise LakeError(f"Spark: {_FULL}") from None
            raise
        finally:
            with self._lock:
                self._use.total_s += time.monotonic() - began_s

    def _count(self, tracker: Any) -> None:
        """Count the stages of job groups; several jobs may list a stage that ran once."""
        jobs = (job for group in self._groups for job in tracker.getJobIdsForGroup(group))
        found = (tracker.getJobInfo(job) for job in jobs)
        for stage in {stage for job in found if job is not None for stage in job.stageIds}:
            info = tracker.getStageInfo(stage)
            if info is not None and info.numCompletedTasks:
                self._use.stages += 1
                self._use.tasks += info.numTasks
        self._groups.clear()


@contextmanager
def _shown(context: SparkContext | None, group: str, show: Show | None) -> Iterator[None]:
    """Show meanwhile how many tasks of a job group are done; over Spark Connect, none."""
    if context is None or show is None:
        yield
        return
    tracker, ended = context.statusTracker(), Event()

    def poll() -> None:
        with suppress(Exception):  # Java has ended, which the job reports
            while not ended.wait(_POLL_S):
                jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
                stages = chain.from_iterable(job.stageIds for job in jobs if job is not None)
                found = map(tracker.getStageInfo, stages)
                show(sum(stage.numCompletedTasks for stage in found if stage is not None))

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class SparkCluster:
    """The tasks of a lake on Spark: a `wireyard.pipeline.running.Cluster`."""

    def __init__(self, session: SparkSession, engine: SparkEngine) -> None:
        self._spark, self._engine = session, engine

    @property
    def at_once(self) -> int:
        """Number of tasks that run at the same time."""
        return at_once(self._spark)

    def run(
        self,
        tasks: Sequence[Any],
        work: Callable[[Any], Iterable[Any]],
        kind: Any,
        together: int,
        show: Show | None,
    ) -> list[Any]:
        """Run tasks; return their results in the order of tasks."""
        from wireyard.spark.types import spark_schema

        rows = self._numbers(len(tasks), together)
        do = partial(_results_of, run=_numbered(tasks, work), kind=kind)
        job = rows.mapInArrow(do, spark_schema(_TEXTS))
        found = self._engine.collect(job, _name_of(work), show)
        return _read_results(found, kind)

    def run_stages(
        self, first: Sequence[Any], work: Work, stages: Sequence[Stage], kind: Any, together: int
    ) -> list[Any]:
        """Run stages that pass on what later ones read, as one job; return all results."""
        rows = self._numbers(len(first), together)
        passed = first_stage(rows, _numbered(first, work), kind)
        for number in range(len(stages)):
            passed = next_stage(passed, stages[number:], number + 1, kind, together)
        return results_of(self._engine.collect(passed.where(IS_RESULT), _name_of(work)), kind)

    def _numbers(self, tasks: int, together: int) -> DataFrame:
        """Return a row for each task, with its number only."""
        return self._spark.range(0, tasks, 1, _partitions(self._spark, tasks, together))


def at_once(session: SparkSession) -> int:
    """Return how many tasks run at the same time; over Spark Connect that is not known."""
    context = context_of(session)
    return _AT_ONCE if context is None else int(context.defaultParallelism)


def _partitions(session: SparkSession, tasks: int, together: int) -> int:
    """Return the number of Spark tasks that run our tasks."""
    if together == 1 or context_of(session) is None:
        return tasks
    fewest = _ROUNDS * at_once(session)
    return min(tasks, max(fewest, -(-tasks // together)))


def first_stage(rows: DataFrame, run: Run, kind: Any) -> DataFrame:
    """Return what a stage over some rows passes on, and its results: rows of `SHUFFLED`."""
    from wireyard.spark.types import spark_schema

    do = partial(_pack, run=run, stage=0, kind=kind)
    return rows.mapInArrow(do, spark_schema(SHUFFLED))


def next_stage(
    passed: DataFrame, stages: Sequence[Stage], number: int, kind: Any, together: int
) -> DataFrame:
    """Return the same of the first of some later stages, with a number of its own.

    What the others read is placed among as many tasks as any of them has.
    """
    from pyspark.sql.functions import col

    most = max(each.parts for each in stages)
    partitions = _partitions(passed.sparkSession, most, together)
    return next_here(passed.repartitionById(partitions, col("part")), stages[0], number, kind)


def next_here(placed: DataFrame, stage: Stage, number: int, kind: Any) -> DataFrame:
    """Return the same of a later stage whose parts are placed already."""
    from wireyard.spark.types import spark_schema

    do = partial(_pack_next, reads=stage, stage=number, kind=kind)
    return placed.mapInArrow(do, spark_schema(SHUFFLED))


def results_of(rows: pa.Table, kind: Any) -> list[Any]:
    """Return the results in rows for which `IS_RESULT`."""
    tables = (read_tables(data)[0] for data in data_of(rows))
    return [result for table in tables for result in _read_results(table, kind)]


def _name_of(work: Any) -> str:
    """Return the name of the innermost function of a task."""
    while isinstance(work, partial):
        work = work.keywords.get("work", work.func)
    return f"wireyard: {work.__name__.strip('_').replace('_', ' ')}"


def _numbered(tasks: Sequence[Any], work: Work) -> Run:
    """Return what runs tasks by their numbers, with the inputs of all as texts."""
    kind = first_parameter(work)
    return partial(_run_numbered, tasks=[to_json(one, kind) for one in tasks], work=work, kind=kind)


def _read_results(rows: pa.Table, kind: Any) -> list[Any]:
    """Return the results in rows of `_TEXTS`."""
    return [from_json(text, kind) for text in rows["result"].to_pylist()]


# --- in workers, for `mapInArrow` -----------------------------------------------------------


def _prepare() -> None:
    load_columns()
    settle()


def _run_numbered(
    batches: Iterator[pa.RecordBatch], tasks: Sequence[str], work: Work, kind: Any
) -> _Outputs:
    """Run the tasks whose numbers are in a column `id`.

    `tasks` are the inputs of all tasks, in JSON: a task reads its own, and no other. `kind` is the
    type of an input.
    """
    _prepare()
    for batch in batches:
        for number in batch["id"].to_pylist():
            begin_task()
            yield number, work(from_json(tasks[number], kind))


def run_batches(batches: Iterator[pa.RecordBatch], work: Work) -> _Outputs:
    """Run a task over all rows of a partition."""
    _prepare()
    yield 0, work(batches)


def _results_of(batches: Iterator[pa.RecordBatch], run: Run, kind: Any) -> Iterator[pa.RecordBatch]:
    """Yield the results of tasks that pass nothing on, as rows of `_TEXTS`."""
    for _, outputs in run(batches):
        yield _texts(outputs, kind)


def _texts(results: Iterable[Any], kind: Any) -> pa.RecordBatch:
    texts = pa.array([to_json(result, kind) for result in results], pa.string())
    return pa.RecordBatch.from_arrays([texts], schema=_TEXTS)


def _pack(
    batches: Iterable[pa.RecordBatch], run: Run, stage: int, kind: Any
) -> Iterator[pa.RecordBatch]:
    """Yield what tasks pass on as rows of `SHUFFLED`, then a row with their results."""
    results = list[Any]()
    for task, outputs in run(batches):
        for number, output in enumerate(outputs):
            if isinstance(output, Blob):
                yield _row(output, stage, task, number)
            else:
                results.append(output)
    if results:
        ((_, _, data),) = pass_on("", [[pa.Table.from_batches([_texts(results, kind)])]])
        yield _row(Blob("", RESULTS, data), stage, 0, 0)


def _pack_next(
    batches: Iterator[pa.RecordBatch], reads: Stage, stage: int, kind: Any
) -> Iterator[pa.RecordBatch]:
    """Run the tasks of the parts that were placed here; pass on what later stages read."""
    _prepare()
    with closing(Spill()) as spill:
        for batch in batches:
            for row in range(batch.num_rows):
                one = batch.slice(row, 1)
                part, *place, name = (column[0].as_py() for column in one.columns[:-2])
                if name in reads.names:
                    (data,) = data_of(one)
                    spill.add(Blob(name, part, data), *place)
                else:
                    yield one

        def run(_: Any) -> _Outputs:
            for given in spill.inputs():
                begin_task()
                yield given.part, reads.work(given)

        yield from _pack((), run, stage, kind)


def _row(blob: Blob, *place: int) -> pa.RecordBatch:
    """Return a row of `SHUFFLED`."""
    packed = pa.compress(blob.data, _CODEC)
    offsets = pa.py_buffer(np.array([0, packed.size], np.int32))
    data = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, packed])
    numbers = (pa.array([value], pa.int32()) for value in (blob.part, *place))
    texts = pa.array([blob.name]), pa.array([blob.data.size], pa.int64())
    return pa.RecordBatch.from_arrays([*numbers, *texts, data], schema=SHUFFLED)


def data_of(rows: pa.RecordBatch | pa.Table) -> Iterator[pa.Buffer]:
    """Yield the data of rows of `SHUFFLED`."""
    for size, packed in zip(rows["size"], rows["data"], strict=True):
        yield pa.decompress(packed.as_buffer(), size.as_py(), _CODEC)
