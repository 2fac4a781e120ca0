"""Spark as the cluster of the pipeline: tasks run in its Python workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from wireyard.formats import load_columns
from wireyard.lake.staging import Staging
from wireyard.pipeline.exchange import dump_each, load_one
from wireyard.pipeline.inputs.listing import literal
from wireyard.pipeline.running import Keyed, StartCluster
from wireyard.spark.executors import (
    check_access,
    check_executors,
    explaining_access,
    is_elsewhere,
)
from wireyard.spark.workers import begin_task, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkCluster", "on_spark"]

_ROUNDS: Final = 4
"""Least number of Spark tasks per core, so that no core is idle for long at the end of a stage."""
_BETWEEN: Final = "\0"
"""Separator of the parts of a key: it is in no path, address or id."""


def on_spark(get_session: Callable[[], SparkSession]) -> StartCluster:
    """Return the function that starts Spark for a lake; it calls `get_session` once."""
    return partial(SparkCluster, get_session)


class SparkCluster:
    """A session that runs the tasks of stages: a `wireyard.pipeline.running.Cluster`.

    Raises
    ------
    LakeError
        Spark or its executors cannot access the lake.
    SourceError
        Executors cannot run our tasks.
    """

    def __init__(self, get_session: Callable[[], SparkSession], lake: Staging) -> None:
        self._lake = lake
        self._spark = get_session()
        if "://" in lake.root:
            check_access(self._spark, lake)
        if is_elsewhere(self._spark):
            check_executors(self._spark, lake)

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
        return self._collect(numbers, do, schema)

    def run_by_key(
        self,
        rows: Keyed,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> pa.Table:
        """Run tasks, each over the rows of some keys; return their batches."""
        from pyspark.sql import functions as F  # noqa: N812 - the usual name

        from wireyard.spark.types import spark_schema

        reader = self._spark.read.schema(spark_schema(rows.schema))
        with explaining_access(self._lake):
            found = reader.parquet(*map(literal, rows.paths))
        if rows.sources is not None:
            found = found.where(F.col("source").isin(*rows.sources))
        names = dict.fromkeys((*rows.columns, rows.order))
        keyed = found.select(*names, F.concat_ws(_BETWEEN, *rows.key).alias("key"))
        ordered = keyed.repartition("key").sortWithinPartitions("key", rows.order)
        return self._collect(ordered.select("key", *rows.columns), work, schema)

    def _collect(
        self,
        rows: DataFrame,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> pa.Table:
        from wireyard.spark.types import spark_schema

        with explaining_access(self._lake):
            return rows.mapInArrow(work, spark_schema(schema)).toArrow()

    def _partitions(self, tasks: int, together: int) -> int:
        """Return the number of Spark tasks that run our tasks."""
        context = getattr(self._spark, "sparkContext", None)  # Spark Connect has none
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
