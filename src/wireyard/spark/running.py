"""Running the tasks of a stage: by Spark, or in this process where they are small.

A task is a function of its input, and what it returns are record batches. Spark starts, places and
repeats tasks; to start its Java takes longer than to read some tens of megabytes, so a stage whose
input is small calls the same function here, and Java is only started for a stage that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from wireyard.spark.exchange import dump_each, load_one
from wireyard.spark.executors import check_executors, check_reach, is_elsewhere
from wireyard.spark.lake import Lake
from wireyard.spark.workers import begin_task, load_columns, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Runner"]

_ROUNDS: Final = 4
"""Tasks of Spark for each that runs at once, at least: the last of them leave no core idle long."""

Task = TypeVar("Task")


class Runner:
    """Runs tasks; starts Spark when the first stage needs it.

    Parameters
    ----------
    get_session
        Called at most once.
    lake
        Whose staging folder every task can reach.
    """

    def __init__(self, get_session: Callable[[], SparkSession], lake: Lake) -> None:
        self._get_session = get_session
        self._lake = lake

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started by the first who asks for it.

        Raises
        ------
        LakeError
            Spark, or its executors, do not reach the lake.
        SourceError
            Executors cannot run our tasks.
        """
        spark = self._get_session()
        if "://" in self._lake.root:
            check_reach(spark, self._lake)
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
    ) -> pa.Table:
        """Return the batches of all tasks, in their order.

        Parameters
        ----------
        work
            What a task does; Spark may call it again for a task that was lost.
        schema
            Of the batches.
        here
            Whether the tasks run in this process, one after the other.
        together
            How many short tasks one of Spark's may take, where there are many.
        """
        if here or not tasks:
            found = (batch for task in tasks for batch in work(task))
            return pa.Table.from_batches(found, schema)
        from wireyard.spark.types import spark_schema

        # One row a task. Its input is read by the task alone: within the function every task would
        # be sent the input of all.
        places = dump_each(self._lake.staged(""), tasks)
        numbers = self.spark.range(0, len(tasks), 1, self._partitions(len(tasks), together))
        do = partial(_run_numbered, places=places, work=work)
        return numbers.mapInArrow(do, spark_schema(schema)).toArrow()

    def _partitions(self, tasks: int, together: int) -> int:
        """Return how many tasks Spark is to start for some of ours."""
        context = getattr(self.spark, "sparkContext", None)  # Spark Connect has none
        if together == 1 or context is None:
            return tasks
        fewest = _ROUNDS * int(context.defaultParallelism)
        return min(tasks, max(fewest, -(-tasks // together)))


def _run_numbered(
    batches: Iterator[pa.RecordBatch],
    places: Any,
    work: Callable[[Any], Iterable[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in a column `id`. For `mapInArrow`."""
    load_columns()
    settle()
    for batch in batches:
        for number in batch["id"].to_pylist():
            begin_task()
            yield from work(load_one(places, number))
