"""Progress of reading: a bar on standard error while results go elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

__all__ = ["Progress"]

_EVERY_S = 0.2


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

        columns = (
            progress.TextColumn("{task.description}"),
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
