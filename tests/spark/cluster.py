"""A standalone cluster of Spark on the loopback interface, for tests.

A master and two workers of one core, with a path on which no Python has wireyard.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import JAVA_OPTIONS, ROOT

__all__ = ["CONF", "EXAMPLE", "kill_one", "pids", "standalone"]

EXAMPLE = ROOT / "examples" / "cluster" / "run"
_HOST = "127.0.0.1"
CONF = {
    "spark.driver.host": _HOST,
    "spark.driver.bindAddress": _HOST,
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.cores.max": "2",
    "spark.ui.enabled": "false",
}
"""Settings of a session on the cluster."""


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Start the cluster of the example in a folder; return the URL of its master."""
    folder.mkdir()
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": sys.executable,
        "PORT": str(port),
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    with subprocess.Popen(
        [EXAMPLE],
        cwd=folder,
        env={name: value for name, value in environ.items() if value},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


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
