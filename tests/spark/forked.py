"""The command in processes that are forked from one that has loaded it: each starts at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ForkedCommand", "forked"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.spark.forked", "wireyard.pipeline.growing.following"])


class ForkedCommand:
    """A process that runs ``wireyard``, as far as `subprocess.Popen` is used of it here."""

    def __init__(self, words: Sequence[str], errors: Path) -> None:
        self._errors = errors
        self._process = _FORKS.Process(target=_run, args=(list(words), str(errors)))
        self._process.start()

    @property
    def error_text(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text() if self._errors.exists() else ""

    def poll(self) -> int | None:
        """Return its status if it has ended."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its status when it has ended, `None` when it has not."""
        self._process.join(timeout)
        return self.poll()


@contextmanager
def forked(words: Sequence[str], errors: Path) -> Iterator[ForkedCommand]:
    """Have a process run the command; it is killed at the end if it still runs."""
    command = ForkedCommand(words, errors)
    try:
        yield command
    finally:
        command.send_signal(signal.SIGKILL)
        command.wait()


def _run(words: Sequence[str], errors: str) -> None:
    from wireyard.cli import main

    written = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 2)
    main(words, prog_name="wireyard")
