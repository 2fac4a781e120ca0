"""The cluster of the pipeline on Spark: a session that runs the tasks of stages.

Rows of tables do not pass through Java, except those that are ordered by key. Tasks return small
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from wireyard.errors import LakeError
from wireyard.formats import load_columns
from wireyard.lake.staging import Staging
from wireyard.pipeline.exchange import dump_each, load_one
from wireyard.pipeline.running import Keyed
from wireyard.spark.executors import check_access, check_executors, is_elsewhere
from wireyard.spark.workers import begin_task, settle

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkCluster", "SparkEngine", "SparkUse", "context_of"]

_ROUNDS: Final = 4
"""Least number of Spark tasks per core, so that no core is idle for long at the end of a stage."""
_FULL: Final = "No space left on device"
_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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

    Parameters
    ----------
    get_session
        Starts the session; called once.
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

        Raises
        ------
        LakeError
            Executors cannot access the lake.
        SourceError
            Spark cannot be started, or executors cannot run our tasks.
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
            return SparkCluster(self._session, lake, self)

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

    def collect(self, rows: DataFrame, name: str) -> pa.Table:
        """Return the rows of a job, and count its stages and tasks.

        Parameters
        ----------
        name
            The description of the job in Spark's UI.
        """
        began_s = time.monotonic()
        if (context := context_of(rows.sparkSession)) is not None:
            group = uuid4().hex
            context.setJobGroup(group, name)
            with self._lock:
                self._count(context.statusTracker())
                self._groups.append(group)
        try:
            return rows.toArrow()
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


class SparkCluster:
    """The tasks of a lake on Spark: a `wireyard.pipeline.running.Cluster`."""

    def __init__(self, session: SparkSession, lake: Staging, engine: SparkEngine) -> None:
        self._spark, self._lake, self._engine = session, lake, engine

    def run(
        self,
        tasks: Sequence[Any],
        work: Callable[[Any], Iterable[pa.RecordBatch]],
        schema: pa.Schema,
        together: int,
        kind: Any,
    ) -> pa.Table:
        """Run tasks of a type; return their batches in the order of tasks."""
        # A row for each task, with its number only. Tasks read their inputs from a file: as an
        # argument of the function, the inputs of all would be sent to each.
        path = dump_each(self._lake.staged(""), tasks, kind)
        numbers = self._spark.range(0, len(tasks), 1, self._partitions(len(tasks), together))
        do = partial(_run_numbered, path=path, work=work, kind=kind)
        return self._collect(numbers, do, schema, _name_of(work))

    def run_by_key(self, rows: Keyed, work: _Work, schema: pa.Schema) -> pa.Table:
        """Run tasks, each over the rows of some keys; return their batches."""
        from wireyard.spark.types import spark_schema

        files = self._spark.range(0, len(rows.paths), 1, len(rows.paths))
        read = files.mapInArrow(partial(_read_numbered, rows=rows), spark_schema(rows.keyed_schema))
        ordered = read.repartition("key").sortWithinPartitions("key", rows.order)
        return self._collect(ordered.select("key", *rows.columns), work, schema, _name_of(work))

    def _collect(self, rows: DataFrame, work: _Work, schema: pa.Schema, name: str) -> pa.Table:
        from wireyard.spark.types import spark_schema

        return self._engine.collect(rows.mapInArrow(work, spark_schema(schema)), name)

    def _partitions(self, tasks: int, together: int) -> int:
        """Return the number of Spark tasks that run our tasks."""
        context = context_of(self._spark)
        if together == 1 or context is None:
            return tasks
        fewest = _ROUNDS * int(context.defaultParallelism)
        return min(tasks, max(fewest, -(-tasks // together)))


def _name_of(work: Any) -> str:
    """Return the name of the innermost function of a task."""
    while isinstance(work, partial):
        work = work.keywords.get("work", work.func)
    return f"wireyard: {work.__name__.strip('_').replace('_', ' ')}"


def _run_numbered(
    batches: Iterator[pa.RecordBatch],
    path: str,
    work: Callable[[Any], Iterable[pa.RecordBatch]],
    kind: Any,
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in a column `id`. For `mapInArrow`.

    Parameters
    ----------
    path
        File with the inputs of all tasks, from `dump_each`.
    kind
        The type of an input.
    """
    load_columns()
    settle()
    for batch in batches:
        for number in batch["id"].to_pylist():
            begin_task()
            yield from work(load_one(path, number, kind))


def _read_numbered(batches: Iterator[pa.RecordBatch], rows: Keyed) -> Iterator[pa.RecordBatch]:
    """Read the files whose numbers are in a column `id`. For `mapInArrow`."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from rows.read(rows.paths[number])
