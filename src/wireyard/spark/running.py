"""Running the tasks of a stage: in Spark, or in this process.

A task is a function of its input that returns record batches. Spark schedules and retries tasks. To
start its Java takes longer than to read some tens of megabytes, so a stage with little input calls
the same function in this process, and Java is started by the first stage that needs it. Without a
session all stages run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from wireyard.spark.exchange import dump_each, load_one
from wireyard.spark.executors import check_access, check_executors, is_elsewhere
from wireyard.spark.staging import Staging
from wireyard.spark.typed_json import first_parameter
from wireyard.spark.workers import begin_task, load_columns, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Runner"]

_ROUNDS: Final = 4
"""Least number of Spark tasks per core, so that no core is idle for long at the end of a stage."""

Task = TypeVar("Task")


class Runner:
    """Runs tasks; starts Spark when the first stage needs it.

    Parameters
    ----------
    get_session
        Called at most once; None to run all tasks in this process.
    lake
        Its staging folder must be accessible to every task.
    """

    def __init__(self, get_session: Callable[[], SparkSession] | None, lake: Staging) -> None:
        self._get_session = get_session
        self._lake = lake

    @property
    def in_process(self) -> bool:
        """Whether all tasks run in this process."""
        return self._get_session is None

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started at the first access.

        Raises
        ------
        LakeError
            Spark or its executors cannot access the lake.
        SourceError
            Executors cannot run our tasks.
        """
        assert self._get_session is not None, "all tasks run in this process"
        spark = self._get_session()
        if "://" in self._lake.root:
            check_access(spark, self._lake)
        if is_elsewhere(spark):
            check_executors(spark, self._lake)
        return spark

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Task], Iterable[pa.RecordBatch]],
        schema: pa.Schema,
        *,
        here: bool = False,
        together: int = 1,
        kind: Any = None,
    ) -> pa.Table:
        """Run tasks; return their batches in the order of tasks.

        Parameters
        ----------
        work
            The function of a task; Spark may call it again for a task that was lost.
        schema
            Schema of the batches.
        here
            Whether the tasks run in this process, one after the other.
        together
            How many short tasks a task of Spark may run, if there are many.
        kind
            The type of a task, as of `typed_json`; if None, that of the first parameter of `work`.
        """
        if here or self.in_process or not tasks:
            batches = (batch for task in tasks for batch in work(task))
            return pa.Table.from_batches(batches, schema)
        spark = self.spark
        from wireyard.spark.types import spark_schema

        # A row for each task, with its number only. Tasks read their inputs from a file: as an
        # argument of the function, the inputs of all would be sent to each.
        kind = first_parameter(work) if kind is None else kind
        path = dump_each(self._lake.staged(""), tasks, kind)
        numbers = spark.range(0, len(tasks), 1, self._partitions(len(tasks), together))
        do = partial(_run_numbered, path=path, work=work, kind=kind)
        return numbers.mapInArrow(do, spark_schema(schema)).toArrow()

    def _partitions(self, tasks: int, together: int) -> int:
        """Return the number of Spark tasks that run our tasks."""
        context = getattr(self.spark, "sparkContext", None)  # Spark Connect has none
        if together == 1 or context is None:
            return tasks
        fewest = _ROUNDS * int(context.defaultParallelism)
        return min(tasks, max(fewest, -(-tasks // together)))


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
