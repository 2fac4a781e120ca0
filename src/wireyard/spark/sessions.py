"""A Spark session in which wireyard runs well."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from wireyard.spark.java import archive_options, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

_TASK_ATTEMPTS = 4
"""What a cluster gives a task. A plain ``local[*]`` gives it one: a lost worker ends the job."""
_DAEMON = "wireyard.spark.daemon"

SETTINGS: Mapping[str, str] = {
    # A task costs 22 ms instead of 50: on a socket of the loopback, acknowledgements are late.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker that crashes says where.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Times of packets are UTC, and readers other than Spark refuse its default for Parquet.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without it Spark refuses the option `pushFilters`; sources without the option do not notice.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings that a session of ours begins with; the caller's own go before them."""
LOCAL_SETTINGS: Mapping[str, str] = {
    # Nothing outside of this machine takes part, so nothing outside can reach it.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings that are added where all of Spark runs in this process's machine."""


def session(master: str | None = None, app_name: str = "wireyard", **conf: Any) -> SparkSession:
    """Return a Spark session with the settings that were found to matter.

    Parameters
    ----------
    master
        ``local[*]`` if None, unless ``spark-submit`` already chose one. In a local session tasks
        are tried again like on a cluster, and workers start with the kernels loaded. ``sc://...``
        connects to a Spark Connect server, which keeps its own settings.
    app_name
        What Spark calls the application.
    **conf
        Settings of Spark by their names, as in ``**{"spark.driver.memory": "8g"}``; they go before
        ours.

    Raises
    ------
    SourceError
        There is no Java that Spark can start on.

    Examples
    --------
    >>> from wireyard.spark import session
    >>> spark = session("local[2]")  # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).config(map=conf).getOrCreate()
    settings = dict(SETTINGS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java
        if options := archive_options(find_java()):
            settings["spark.driver.defaultJavaOptions"] = options
        master = _with_attempts(master or "local[*]")
    if python := conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # which is what Spark takes from a Python driver
    # The Python that runs us has wireyard; the one that executors find first may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= _local_settings()
    with _startup_on_path(), _interrupts_wait():
        return builder.config(map=settings | conf).getOrCreate()


def _with_attempts(master: str) -> str:
    """Return a local master with as many attempts a task as a cluster gives it."""
    threads = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{threads[1] or 1},{_TASK_ATTEMPTS}]" if threads else master


def _local_settings() -> dict[str, str]:
    """Return the settings of a local session, and set what only the environment can say."""
    os.environ.setdefault("SPARK_LOCAL_IP", LOCAL_SETTINGS["spark.driver.bindAddress"])
    settings = {**LOCAL_SETTINGS, "spark.driver.memory": f"{_driver_gigabytes()}g"}
    if _can_import(os.environ["PYSPARK_PYTHON"], _DAEMON):
        settings["spark.python.daemon.module"] = _DAEMON
    return settings


@contextmanager
def _startup_on_path() -> Iterator[None]:
    """Have the Python processes of a Java that starts meanwhile begin with our `startup`."""
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
    """Have an interrupt wait until Java has started, and keep a handler that the program has.

    A Java whose start is interrupted never ends. And Spark replaces the handler of SIGINT by one
    that cancels its jobs, which is better than Python's own, but no other.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = []

    def wait(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if before is not signal.default_int_handler or signal.getsignal(signal.SIGINT) is wait:
            signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)


def _can_import(python: str, module: str) -> bool:
    """Return whether a fresh Python finds a module: where it does not, every task would fail."""
    command = [python, "-c", f"import {module}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _driver_gigabytes() -> int:
    """Return a third of the machine's memory, for Java; the workers need theirs too."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(8, pages // 3 >> 30))
