"""Spark's Python daemon, started warm: ``spark.python.daemon.module`` of our sessions.

Spark starts it for the workers of tasks, and forks them from it.

1. What tasks run is imported before the first fork, once instead of once a worker.
2. Kernels are loaded after the first fork: whoever waits for the first row waits for the first
   worker, which may not need any. All workers after it are forked with the kernels loaded.
3. Arrow takes its memory from the C library, as numpy does: what a task has freed is there for the
   next one. A pool of Arrow's own gives it back to the system and takes it anew, page by page, and
   keeps what threads have freed.
4. A reader that has enough rows (``limit``, ``first``, ``show``) hangs up on its worker. That is
   no error, and nothing to print a traceback for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from socket import socket

__all__ = ["main"]

Worker = Callable[[socket, bool], int]
"""What the daemon forks for: it serves tasks over a socket, and returns an exit status."""


def main() -> None:
    """Run Spark's daemon."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when Arrow is loaded
    from pyspark import daemon

    from wireyard.spark.workers import import_tasks, load_kernels

    daemon.worker = _until_hung_up(daemon.worker)  # type: ignore[assignment]
    import_module("pyspark.worker")
    os.register_at_fork(after_in_parent=_quietly(load_kernels))
    _quietly(import_tasks)()
    daemon.manager()


def _quietly(prepare: Callable[[], None]) -> Callable[[], None]:
    """Leave what is wrong to be said by the first task, in the words of its own error."""

    def attempt() -> None:
        with suppress(Exception):
            prepare()

    return attempt


def _until_hung_up(serve: Worker) -> Worker:
    """Let a worker end quietly when nobody listens any more."""

    def serve_quietly(sock: socket, authenticated: bool) -> int:
        try:
            return serve(sock, authenticated)
        except BrokenPipeError:
            return 1  # has the daemon end the worker

    return serve_quietly


if __name__ == "__main__":
    main()
