"""Spark's Python daemon, started warm: ``spark.python.daemon.module`` of our sessions.

Spark starts it for the workers of tasks, and forks them from it.

1. What tasks need is imported before the fork, once instead of once a worker.
2. A reader that has enough rows (``limit``, ``first``, ``show``) hangs up on its worker. That is
   no error, and nothing to print a traceback for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from socket import socket

__all__ = ["main"]

Worker = Callable[[socket, bool], int]
"""What the daemon forks for: it serves tasks over a socket, and returns an exit status."""


def main() -> None:
    """Run Spark's daemon."""
    from pyspark import daemon

    from wireyard.spark.workers import preload

    daemon.worker = _until_hung_up(daemon.worker)  # type: ignore[assignment]
    import_module("pyspark.worker")
    # What is wrong with a preload is said by the first task, in the words of its own error.
    with suppress(Exception):
        preload()
    daemon.manager()


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
