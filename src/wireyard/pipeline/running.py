"""Running the tasks of a stage: in this process, or on a cluster.

A task is a function of its input that returns record batches. A cluster, Spark, schedules and
retries tasks. To start it takes longer than to read some tens of megabytes, so a stage with little
input calls the same function in this process, and the cluster is started by the first stage that
needs it. Without a cluster all stages run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from wireyard.lake.staging import Staging
from wireyard.pipeline.typed_json import first_parameter

__all__ = ["Cluster", "Keyed", "Runner", "StartCluster"]

Task = TypeVar("Task")


class Keyed(NamedTuple):
    """Rows of Parquet files for tasks that run key by key, sorted within each key."""

    paths: Sequence[str]
    schema: pa.Schema
    columns: Sequence[str]
    """The columns that the tasks read besides `key`."""
    key: Sequence[str]
    """The columns whose texts are the column `key`."""
    order: str
    """The column by which the rows of a key are sorted."""
    sources: Sequence[str] | None = None
    """The inputs whose rows are read; None for all."""


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
    """Runs tasks; starts the cluster when the first stage needs it.

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
        here: bool = False,
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
        here
            Whether the tasks run in this process, one after the other.
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
        if here or self.in_process or not tasks:
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
        """Run tasks on the cluster, each over the rows of some keys; return their batches.

        Parameters
        ----------
        work
            The function of a task: its input is sorted by key, and by order within a key.
        schema
            Schema of the batches that it yields.
        """
        return self._cluster.run_by_key(rows, work, schema)
