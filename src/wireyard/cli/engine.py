"""The engine of the pipeline on the command line: its options, its start, its part of a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from wireyard.cli.exits import note
from wireyard.errors import SourceError, UsageError

if TYPE_CHECKING:
    from wireyard.cli.spark_log import SparkLog
    from wireyard.spark.running import SparkEngine

F = TypeVar("F", bound=Callable[..., Any])
_PROCESS = "--engine process"
NOT_NEEDED = "Spark, which was not needed"
"""What a summary says instead of what Spark ran: settings of Spark were not applied."""


def engine_options(function: F) -> F:
    """Add ``--engine``, ``--master`` and ``--conf``, the arguments of `Engine.of`."""
    for option in (
        click.option(
            "--conf",
            metavar="KEY=VALUE",
            multiple=True,
            help="A setting of Spark; can be given again.",
        ),
        click.option(
            "--master", metavar="URL", help="Spark to run on; one on this machine if not given."
        ),
        click.option(
            "--engine",
            type=click.Choice(["spark", "process"]),
            default="spark",
            show_default=True,
            help="What runs the pipeline: Spark, or this process alone, which needs no pyspark.",
        ),
    ):
        function = option(function)
    return function


class Engine(NamedTuple):
    """The engine that a command was given."""

    name: Literal["spark", "process"]
    master: str | None
    conf: Mapping[str, str]
    command: str

    @classmethod
    def of(cls, command: str, engine: Any, master: str | None, conf: tuple[str, ...]) -> Engine:
        """Return the engine of a command; raise `UsageError` if a setting cannot be applied."""
        if engine == "process" and (master is not None or conf):
            raise UsageError(
                f"{command}: {_PROCESS} starts no Spark: leave out --master and --conf"
            )
        settings = {}
        for each in conf:
            key, sign, value = each.partition("=")
            if not sign or not key.startswith("spark."):
                raise UsageError(
                    f"--conf {each}: is no setting of Spark, as in spark.driver.memory=4g"
                )
            if key == "spark.master":
                raise UsageError(f"--conf {each}: say --master {value}")
            settings[key] = value
        return cls(engine, master, settings, command)

    def start(
        self, log: SparkLog, starting: Callable[[], AbstractContextManager[object]]
    ) -> SparkEngine | None:
        """Return Spark, which starts with the first task; None for this process.

        `starting` returns a context that is entered while Spark starts. A `UsageError` is raised if
        Spark is not installed.
        """
        if self.name == "process":
            return None
        if find_spec("pyspark") is None:
            raise UsageError(
                f"{self.command}: needs Spark: pip install 'wireyard[spark]', or {_PROCESS}"
            )
        from wireyard.spark.running import SparkEngine, context_of
        from wireyard.spark.sessions import SHORT_LIVED, check_names, is_embedded

        def get_session() -> Any:
            with starting():
                ours = SHORT_LIVED if is_embedded(self.master) else {}
                conf = {**ours, **self.conf}
                try:
                    session = log.start(self.master, f"wireyard {self.command}", **conf)
                except SourceError as error:
                    error.add_note(f"{_PROCESS} works without Spark")
                    raise
            check_names(session, self.conf)
            context = context_of(session)
            if context is not None and context.uiWebUrl:
                note(f"Spark's UI is at {context.uiWebUrl} while it runs")
            return session

        return SparkEngine(get_session)


def engine_text(engine: SparkEngine | None) -> str:
    """Return what ran the pipeline, for a summary."""
    from wireyard.text import count_text

    if engine is None:
        return "this process"
    if (use := engine.use) is None:
        return NOT_NEEDED
    return (
        f"Spark {use.version}, {use.master}: {count_text(use.stages, 'stage')},"
        f" {count_text(use.tasks, 'task')},"
        f" {use.total_s:.1f} s ({use.start_s:.1f} s of it the start)"
    )
