"""Running the tasks of a stage: the engine of the pipeline, which is a cluster or this process.

A task is a function of its input that returns record batches. A cluster, Spark, schedules and
retries tasks; it is started by the first stage that has any. Without a cluster the same functions
are called in this process, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.lake.parts import read_batches
from wireyard.lake.staging import Staging
from wireyard.pipeline.typed_json import first_parameter

__all__ = ["Cluster", "Keyed", "Runner", "StartCluster"]

Task = TypeVar("Task")


_BETWEEN: Final = "\0"
"""Separator of the parts of a key: it is in no path, address or id."""


class Keyed(NamedTuple):
    """Rows of Parquet files for tasks that run key by key, sorted within each key."""

    paths: Sequence[str]
    schema: pa.Schema
    """The schema of the files, or more."""
    columns: Sequence[str]
    """The columns that the tasks read besides `key`."""
    key: Sequence[str]
    """The columns whose texts are the column `key`."""
    order: str
    """The column by which the rows of a key are sorted."""
    sources: Sequence[str] | None = None
    """The inputs whose rows are read, if `key` has the column `source`; None for all."""

    @property
    def keyed_schema(self) -> pa.Schema:
        """The schema of `read`: the column `key`, then the others."""
        names = dict.fromkeys((*self.columns, self.order))
        return pa.schema([("key", pa.string()), *map(self.schema.field, names)])

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with their keys."""
        schema = self.keyed_schema
        for table in read_batches(path, dict.fromkeys((*schema.names[1:], *self.key))):
            if self.sources is not None:
                of_source = pc.is_in(table["source"].cast(pa.string()), pa.array(self.sources))
                table = table.filter(of_source)
            texts = [table[name].cast(pa.string()) for name in self.key]
            key = pc.binary_join_element_wise(*texts, _BETWEEN, null_handling="skip")
            columns = [table[name].cast(schema.field(name).type) for name in schema.names[1:]]
            yield from pa.Table.from_arrays([key, *columns], schema=schema).to_batches()


class Cluster(Protocol):
    """Processes that run the tasks of a stage, started for a lake that they can access."""

    def run(
        self,
        tasks: Sequence[Any],
        work: Callable[[Any], Iterable[pa.RecordBatch]],
        schema: pa.Schema,
        together: int,
        kind: Any,
    ) -> pa.Table:
        """Run tasks of a type, as `Runner.run` does."""

    def run_by_key(
        self,
        rows: Keyed,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> pa.Table:
        """Run tasks as `Runner.run_by_key` does."""


StartCluster = Callable[[Staging], Cluster]
"""Starts a cluster for a lake."""


class Runner:
    """Runs tasks; starts the cluster when a stage has the first ones.

    Parameters
    ----------
    start_cluster
        Called at most once; None to run all tasks in this process.
    lake
        Its staging folder must be accessible to every task.
    """

    def __init__(self, start_cluster: StartCluster | None, lake: Staging) -> None:
        self._start_cluster = start_cluster
        self._lake = lake

    @property
    def in_process(self) -> bool:
        """Whether all tasks run in this process."""
        return self._start_cluster is None

    @cached_property
    def _cluster(self) -> Cluster:
        assert self._start_cluster is not None, "all tasks run in this process"
        return self._start_cluster(self._lake)

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Task], Iterable[pa.RecordBatch]],
        schema: pa.Schema,
        *,
        together: int = 1,
        kind: Any = None,
    ) -> pa.Table:
        """Run tasks; return their batches in the order of tasks.

        Parameters
        ----------
        work
            The function of a task; a cluster may call it again for a task that was lost.
        schema
            Schema of the batches.
        together
            How many short tasks a task of the cluster may run, if there are many.
        kind
            The type of a task, as of `typed_json`; if None, that of the first parameter of `work`.

        Raises
        ------
        LakeError
            The cluster cannot access the lake.
        SourceError
            The cluster cannot run our tasks.
        """
        if self.in_process or not tasks:
            batches = (batch for task in tasks for batch in work(task))
            return pa.Table.from_batches(batches, schema)
        kind = first_parameter(work) if kind is None else kind
        return self._cluster.run(tasks, work, schema, together, kind)

    def run_by_key(
        self,
        rows: Keyed,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> pa.Table:
        """Run tasks, each over the rows of some keys; return their batches.

        Parameters
        ----------
        work
            The function of a task: its input is sorted by key, and by order within a key.
        schema
            Schema of the batches that it yields.
        """
        if not self.in_process:
            return self._cluster.run_by_key(rows, work, schema)
        batches = [batch for path in rows.paths for batch in rows.read(path)]
        read = pa.Table.from_batches(batches, rows.keyed_schema)
        ordered = read.sort_by([("key", "ascending"), (rows.order, "ascending")])
        return pa.Table.from_batches(work(iter(ordered.to_batches())), schema)
