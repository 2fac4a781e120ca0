"""Spark's Python daemon, started warm: ``spark.python.daemon.module`` of our sessions.

Spark starts it and forks the workers of tasks from it.

1. Modules that tasks need are imported before the first fork: once, not once for each worker.
2. Kernels are loaded after the first fork: the first row comes from the first worker, which may not
   need them. All later workers are forked with the kernels loaded.
3. Arrow allocates from the C library, as numpy does, so the next task reuses the memory that a task
   has freed. Arrow's own pool would return it to the system and fault it in again, page by page,
   and keep the memory that threads have freed.
4. A reader that has enough rows (``limit``, ``first``, ``show``) closes the connection to its
   worker. That is no error, and no reason for a traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from socket import socket

Worker = Callable[[socket, bool], int]
"""The main function of a worker: serve tasks over a socket, and return an exit status."""


def main() -> None:
    """Run Spark's daemon."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when Arrow is loaded
    from pyspark import daemon

    from wireyard.spark.workers import import_tasks, load_kernels

    daemon.worker = _ignoring_closed_pipes(daemon.worker)  # type: ignore[assignment]
    import_module("pyspark.worker")
    os.register_at_fork(after_in_parent=_quietly(load_kernels))
    _quietly(import_tasks)()
    daemon.manager()


def _quietly(prepare: Callable[[], None]) -> Callable[[], None]:
    """Ignore errors of a preparation: the first task that fails reports its own."""

    def attempt() -> None:
        with suppress(Exception):
            prepare()

    return attempt


def _ignoring_closed_pipes(serve: Worker) -> Worker:
    """Let a worker exit quietly when its reader has closed the connection."""

    def serve_quietly(sock: socket, authenticated: bool) -> int:
        try:
            return serve(sock, authenticated)
        except BrokenPipeError:
            return 1  # makes the daemon end the worker

    return serve_quietly


if __name__ == "__main__":
    main()
