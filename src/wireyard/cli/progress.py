"""Progress on standard error: a bar of bytes, or a line about what is done, while it takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from threading import Event, Lock, Thread
from typing import IO, TYPE_CHECKING, Self

from wireyard.streams.urls import shown_text
from wireyard.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

__all__ = ["Progress", "Waiting", "fitted", "waiting"]

_EVERY_S = 0.2
_PATIENCE_S = 1.0
"""Time after which a line is shown."""


def fitted(text: str) -> str:
    """Return the beginning of a text that fits a line of the terminal."""
    return text[: get_terminal_size().columns - 1]


class Waiting:
    """A line that names the stage of a command that takes over a second, with its time.

    It is silent unless standard error is a terminal. A stage without a name has no line, so that
    results can be printed.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._name = self._detail = ""
        self._width = 0
        self._began = time.monotonic()
        self._ended, self._lock = Event(), Lock()
        self._thread = Thread(target=self._run, daemon=True) if self._file.isatty() else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stage("")
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def stage(self, name: str) -> None:
        """Show the name of the next stage."""
        with self._lock:
            self._name, self._detail = name, ""
            self._show("")

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Show the part of the bytes that is done."""
        self._detail = f" {100 * done_bytes // max(total_bytes, 1)} %"

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            took_s = time.monotonic() - self._began
            with self._lock:
                if self._name and took_s >= _PATIENCE_S:
                    self._show(fitted(f"{self._name}{self._detail}, {took_s:.0f} s"))

    def _show(self, line: str) -> None:
        if self._thread is not None and (line or self._width):
            self._file.write(f"\r{line:<{self._width}}" + ("" if line else "\r"))
            self._file.flush()
            self._width = len(line)


@contextmanager
def waiting(stage: str) -> Iterator[None]:
    """Show a stage by its name if it takes over a second, and its time."""
    with Waiting() as line:
        line.stage(printable(shown_text(stage)))
        yield


class Progress:
    """A bar with bytes done and time left; silent unless standard error is a terminal.

    Parameters
    ----------
    name
        Name of the input.
    size
        Its size in bytes; None if unknown.
    wanted
        Whether to show a bar; not if the results themselves go to the terminal.
    """

    def __init__(self, name: str, size: int | None, wanted: bool) -> None:
        self._name = name
        self._size = size
        self._wanted = wanted and sys.stderr.isatty()
        self._done = 0
        self._began = time.monotonic()
        self._next = self._began + _EVERY_S
        self._bars: Bars | None = None

    def add(self, size: int) -> None:
        """Count `size` more bytes as done, and update the bar."""
        self._done += size
        if not self._wanted or time.monotonic() < self._next:
            return
        if self._bars is None:
            self._bars = self._start()
        self._bars.update(self._bars.task_ids[0], completed=self._done)
        self._bars.refresh()
        self._next = time.monotonic() + _EVERY_S

    def end(self) -> None:
        """Clear the line."""
        if self._bars is not None:
            self._bars.stop()

    def _start(self) -> Bars:
        # Loaded late, because short readings show no bar.
        from rich import progress
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Column

        columns = (
            progress.TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
        )
        console = Console(stderr=True)
        bars = progress.Progress(*columns, console=console, transient=True, auto_refresh=False)
        bars.start()
        bars.add_task(escape(f"reading {self._name}"), total=self._size)
        return bars
