"""Spark's Python daemon, started warm: ``spark.python.daemon.module`` of our sessions.

Spark starts it for the workers of tasks, and forks them from it.

1. Spark puts its Python code on the path as a zip file without compiled modules, so that every
   daemon compiles all of it again, for half a second. Where the same code is installed as files,
   those are taken.
2. What tasks need is imported before the fork, once instead of once a worker.
3. A reader that has enough rows (``limit``, ``first``, ``show``) hangs up on its worker. That is
   no error, and nothing to print a traceback for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from socket import socket

__all__ = ["main"]


def main() -> None:
    """Run Spark's daemon."""
    sys.path[:] = _files_first(sys.path)
    from pyspark import daemon

    from wireyard.spark.workers import preload

    serve = daemon.worker

    def serve_until_hung_up(sock: socket, authenticated: bool) -> int:
        try:
            return serve(sock, authenticated)
        except BrokenPipeError:
            return 1  # makes the daemon end the worker

    daemon.worker = serve_until_hung_up
    import_module("pyspark.worker")
    # What is wrong with a preload is said by the first task, in the words of its own error.
    with suppress(Exception):
        preload()
    daemon.manager()


def _files_first(path: Sequence[str]) -> list[str]:
    """Move Spark's zip file to the end of `path` if the installation it lies in is on it."""
    zips = [
        entry
        for entry in path
        # <installation>/pyspark/python/lib/pyspark.zip
        if entry.endswith("pyspark.zip") and str(Path(entry).parents[3]) in path
    ]
    return [*(entry for entry in path if entry not in zips), *zips]


if __name__ == "__main__":
    main()
