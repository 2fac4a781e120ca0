"""A standalone cluster of Spark on the loopback interface, for tests.

A master and workers of one core, each a process in a folder of its own, with a path on which no
Python has wireyard.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.conftest import JAVA_OPTIONS

__all__ = ["CONF", "kill_one", "pids", "standalone"]

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_HOST = "127.0.0.1"
_WAIT_S = 180.0
CONF = {
    "spark.driver.host": _HOST,
    "spark.driver.bindAddress": _HOST,
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.cores.max": "2",
    "spark.ui.enabled": "false",
}
"""Settings of a session on the cluster."""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HOST, 0))
        port: int = found.getsockname()[1]
    return port


def _is_open(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex((_HOST, port)) == 0


@contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a daemon of Spark in a folder; end it and what it started."""
    folder.mkdir(parents=True)
    environ = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "HOME": str(folder),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(_CLASS), *command],
            cwd=folder,
            env={name: value for name, value in environ.items() if value},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """Start a cluster; return the URL of its master."""
    port = _free_port()
    url = f"spark://{_HOST}:{port}"
    web = ("--webui-port", "0")
    with ExitStack() as running:
        master = ("--host", _HOST, "--port", str(port), *web)
        running.enter_context(_daemon(folder / "master", f"{_DEPLOY}.master.Master", *master))
        _wait_for(lambda: _is_open(port), folder / "master" / "log")
        logs = []
        for number in range(workers):
            own = folder / f"worker{number}"
            size = ("--host", _HOST, "--cores", "1", "--memory", "2g", *web)
            running.enter_context(
                _daemon(own, f"{_DEPLOY}.worker.Worker", *size, "--work-dir", str(own / "w"), url)
            )
            logs.append(own / "log")
        for log in logs:
            _wait_for(lambda log=log: b"Successfully registered" in log.read_bytes(), log)
        yield url


def _wait_for(happened: object, log: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while not happened():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError(log.read_text())
        time.sleep(0.1)


def pids(folder: Path, *words: str) -> list[int]:
    """Return the processes that a cluster in `folder` has started, whose command has all words."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            cwd = os.readlink(entry / "cwd")
        except OSError:
            continue
        if cwd.startswith(str(folder)) and all(word in command for word in words):
            found.append(int(entry.name))
    return found


def kill_one(found: list[int], number: int) -> bool:
    """Kill one of some processes; return whether there was one."""
    if not found:
        return False
    try:
        os.kill(found[number % len(found)], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
