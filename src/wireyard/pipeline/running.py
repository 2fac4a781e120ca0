"""Running the tasks of a stage: the engine of the pipeline, which is a cluster or this process.

A task is a function of its input that returns results of a type. A cluster, Spark, schedules and
retries tasks; it is started by the first stage that has any. Without a cluster the same functions
are called in this process, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from wireyard.lake.staging import Staging
from wireyard.pipeline.exchange import Stage, Work, run_here

Task = TypeVar("Task")


class Cluster(Protocol):
    """Processes that run the tasks of a stage, started for a lake that they can access."""

    @property
    def at_once(self) -> int:
        """Number of tasks that run at the same time."""

    def run(
        self,
        tasks: Sequence[Any],
        work: Callable[[Any], Iterable[Any]],
        kind: Any,
        together: int,
        show: Show | None,
    ) -> list[Any]:
        """Run tasks as `Runner.run` does."""

    def run_stages(
        self, first: Sequence[Any], work: Work, stages: Sequence[Stage], kind: Any, together: int
    ) -> list[Any]:
        """Run stages as `Runner.run_stages` does."""


Show = Callable[[int], None]
"""Receives the number of tasks that are done, while others run."""
StartCluster = Callable[[Staging], Cluster]
"""Starts a cluster for a lake."""


class Runner:
    """Runs tasks; starts the cluster when a stage has the first ones.

    `start_cluster` is called at most once; None to run all tasks in this process. The staging
    folder of `lake` must be accessible to every task.
    """

    def __init__(self, start_cluster: StartCluster | None, lake: Staging) -> None:
        self._start_cluster = start_cluster
        self._lake = lake

    @property
    def in_process(self) -> bool:
        """Whether all tasks run in this process."""
        return self._start_cluster is None

    @property
    def at_once(self) -> int:
        """Number of tasks that run at the same time."""
        return 1 if self.in_process else self._cluster.at_once

    @cached_property
    def _cluster(self) -> Cluster:
        assert self._start_cluster is not None, "all tasks run in this process"
        return self._start_cluster(self._lake)

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Task], Iterable[Any]],
        kind: Any,
        *,
        together: int = 1,
        show: Show | None = None,
    ) -> list[Any]:
        """Run tasks; return their results in the order of tasks.

        A cluster may call `work` again for a task that was lost. The type of its first parameter is
        that of tasks, and `kind` that of results, as of `typed_json`. If there are many short
        tasks, a task of the cluster may run `together` of them. A `LakeError` is raised if the
        cluster cannot access the lake, a `SourceError` if it cannot run our tasks.
        """
        if self.in_process or not tasks:
            return [*_run_here(tasks, work, show)]
        return self._cluster.run(tasks, work, kind, together, show)

    def run_stages(
        self,
        first: Sequence[Any],
        work: Work,
        stages: Sequence[Stage],
        kind: Any,
        *,
        together: int = 1,
    ) -> list[Any]:
        """Run stages that pass on what later ones read; return the results of all tasks.

        `first` are the tasks of the first stage, and `work` is its function. `kind` and `together`
        are those of `run`.
        """
        if self.in_process:
            return [*run_here(first, work, stages)]
        return self._cluster.run_stages(first, work, stages, kind, together)


def _run_here(
    tasks: Sequence[Any], work: Callable[[Any], Iterable[Any]], show: Show | None
) -> Iterator[Any]:
    for done, task in enumerate(tasks, 1):
        yield from work(task)
        if show is not None:
            show(done)
