"""Spark sessions with the settings that wireyard needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from socket import create_connection
from types import FrameType
from typing import TYPE_CHECKING, Any

from wireyard.errors import SourceError, UsageError
from wireyard.spark.java import archive_options, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASK_ATTEMPTS = 4
"""Spark's default on a cluster; ``local[*]`` has one, so that a lost worker would end the job."""
_DAEMON = "wireyard.spark.daemon"

SETTINGS: Mapping[str, str] = {
    # A task costs 22 ms instead of 50: TCP over the loopback waits for delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker that crashes prints its stack.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Times of packets are UTC, and readers other than Spark refuse its default for Parquet.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Batches of rows with cells of megabytes, as our stages shuffle them, are few rows each.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",
    # Needed by the option `pushFilters`; without effect on sources that do not have it.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A thread's jobs do not wait for all tasks of another thread's.
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Default settings of our sessions; the caller's settings take precedence."""
LOCAL_SETTINGS: Mapping[str, str] = {
    # All processes are on this machine, so do not listen on the network.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Further settings for a Spark that runs on this machine only."""
SHORT_LIVED: Mapping[str, str] = {
    # Its second compiler takes half of the processor time of a Java that lives for some seconds.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Nor do its queries, which are few and short, gain from being compiled or planned again.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Its shuffles stay on the disk of this machine.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
}
"""Settings of a Spark on this machine that only runs our tasks, which are not in Java."""
_OF_LAUNCH = (
    "spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath", "spark.driver.extraLibraryPath", "spark.jars.packages",
)  # fmt: skip
"""Settings that have no effect once Java runs."""
_UNLISTED = (
    "spark.app.name", "spark.driver.defaultJavaOptions", "spark.local.dir", "spark.logConf",
    "spark.port.maxRetries",
)  # fmt: skip
"""Settings of Spark that its registry does not have."""
_OPEN_FAMILIES = (
    "spark.connect.", "spark.driver.resource.", "spark.executor.resource.", "spark.executorEnv.",
    "spark.hadoop.", "spark.hive.", "spark.kubernetes.", "spark.metrics.conf.",
    "spark.sql.catalog.", "spark.sql.hive.", "spark.ssl.", "spark.task.resource.",
    "spark.worker.", "spark.yarn.",
)  # fmt: skip
"""Beginnings of names that others choose, or whose part of Spark is loaded later."""
_ALIKE = 0.8
"""How alike a name is, by `difflib`, of which another is taken for a misspelling."""
_CONNECT_S = 3.0
"""Time to connect to a master."""


def is_embedded(master: str | None) -> bool:
    """Return whether Spark runs in a Java of its own on this machine."""
    return not _has_java() and (master is None or master.startswith("local"))


def session(master: str | None = None, app_name: str = "wireyard", **conf: Any) -> SparkSession:
    """Return a Spark session with the settings that wireyard needs.

    Parameters
    ----------
    master
        ``local[*]`` if None, unless ``spark-submit`` already chose one. In a local session tasks
        are retried as on a cluster, and workers start with the kernels loaded. ``sc://...``
        connects to a Spark Connect server, which keeps its own settings.
    app_name
        Name of the application in Spark.
    **conf
        Settings of Spark by name, as in ``**{"spark.driver.memory": "8g"}``; they take precedence
        over ours.

    Raises
    ------
    SourceError
        There is no Java that Spark can start on, or the master cannot be reached.
    UsageError
        A setting cannot be applied, because Spark runs already.

    Examples
    --------
    >>> from wireyard.spark import session
    >>> spark = session("local[2]")  # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).config(map=conf).getOrCreate()
    if master is not None and master.startswith("spark://"):
        _check_reachable(master)
    settings = dict(SETTINGS)
    if _has_java():
        for name in conf.keys() & _OF_LAUNCH:
            raise UsageError(f"{name}: cannot be set, because Java runs already")
    else:
        if options := archive_options(find_java()):
            settings["spark.driver.defaultJavaOptions"] = options
        master = _with_attempts(master or "local[*]")
    if python := conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # a Python driver takes it from here only
    # This Python has wireyard; the first one on the path of executors may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= _local_settings()
    with _startup_on_path(), _interrupts_wait():
        spark = builder.config(map=settings | conf).getOrCreate()
    _check_applied(spark, conf)
    return spark


def _has_java() -> bool:
    """Return whether the Java of sessions runs: spark-submit, or an earlier session, started it."""
    from pyspark import SparkContext

    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None


def _check_reachable(master: str) -> None:
    """Raise an error if no master of a standalone cluster listens: Spark would try for a minute."""
    reason = ""
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdigit():
            raise SourceError(f"{master}: names no port, as in spark://head:7077")
        try:
            with create_connection((host.strip("[]"), int(port)), _CONNECT_S):
                return
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise SourceError(f"{master}: cannot be reached ({reason})")


def _check_applied(spark: SparkSession, conf: Mapping[str, Any]) -> None:
    """Raise an error if a setting has no effect, because the session was there before."""
    from pyspark.sql.utils import to_str

    of_context = spark.sparkContext.getConf()
    for name, value in conf.items():
        # Spark drops blanks around a setting, and puts options of its own before those of a Java.
        wanted = str(to_str(value)).strip()
        is_of_context = (of_context.get(name) or "").endswith(wanted)
        is_of_session = (
            spark.conf.isModifiable(name) and str(spark.conf.get(name)).strip() == wanted
        )
        if not (is_of_context or is_of_session):
            raise UsageError(f"{name}={wanted}: cannot be set, because Spark runs already")


def check_names(spark: SparkSession, names: Iterable[str]) -> None:
    """Raise an error if Spark has no setting of a name: it would ignore it in silence.

    Spark Connect has no registry that we could ask.
    """
    if not hasattr(spark, "_jvm"):
        return
    jvm: Any = spark._jvm
    entries = getattr(getattr(jvm.org.apache.spark.internal.config, "ConfigEntry$"), "MODULE$")
    for name in names:
        if (
            name in _UNLISTED
            or name.startswith(_OPEN_FAMILIES)
            or entries.findEntry(name) is not None
        ):
            continue
        known = str(jvm.java.lang.String.join("\n", entries.knownConfigs().keySet())).split("\n")
        nearest = get_close_matches(name, [*known, *_UNLISTED], 1, _ALIKE)
        remedy = f"did you mean {nearest[0]}?" if nearest else "see Spark's page on configuration"
        raise UsageError(f"{name}: is no setting of Spark; {remedy}")


def _with_attempts(master: str) -> str:
    """Return a local master with as many attempts for a task as on a cluster."""
    threads = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{threads[1] or 1},{_TASK_ATTEMPTS}]" if threads else master


def _local_settings() -> dict[str, str]:
    """Return the settings of a local session, and set its environment variables."""
    os.environ.setdefault("SPARK_LOCAL_IP", LOCAL_SETTINGS["spark.driver.bindAddress"])
    settings = {**LOCAL_SETTINGS, "spark.driver.memory": f"{_driver_gigabytes()}g"}
    if _can_import(os.environ["PYSPARK_PYTHON"], _DAEMON):
        settings["spark.python.daemon.module"] = _DAEMON
    return settings


@contextmanager
def _startup_on_path() -> Iterator[None]:
    """Put `startup` on the import path of the Python processes of a Java that starts meanwhile."""
    before = os.environ.get("PYTHONPATH")
    folder = str(Path(__file__).with_name("startup"))
    os.environ["PYTHONPATH"] = folder if not before else os.pathsep.join((folder, before))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until Java has started, and restore the program's own handlers.

    A Java that is interrupted while it starts never exits. Spark installs a handler of SIGINT that
    cancels its jobs, which may replace Python's default handler, but no other.
    """
    waiting = list[int]()

    def wait(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if None in kept.values() or threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in kept:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, before in kept.items():
            if before is not signal.default_int_handler or signal.getsignal(number) is wait:
                signal.signal(number, before)
        for received in waiting:
            signal.raise_signal(received)


def _can_import(python: str, module: str) -> bool:
    """Return whether a new Python process can import a module; without it every task would fail."""
    command = [python, "-c", f"import {module}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _driver_gigabytes() -> int:
    """Return the driver's memory: a third of the machine's, because the workers need some too."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(8, pages // 3 >> 30))
