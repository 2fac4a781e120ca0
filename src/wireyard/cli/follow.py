"""``wireyard run --follow``: what is said while a lake follows folders."""

from __future__ import annotations

import sys
import time
from typing import IO

from wireyard.cli import exits
from wireyard.cli.summary import bytes_text
from wireyard.spark.following import Progress

__all__ = ["FollowLine"]

_SHOWN_EVERY_S = 0.5
_PRINTED_EVERY_S = 60.0


class FollowLine:
    """One line on standard error: how far the lake is behind.

    A terminal has the line in its place; anything else gets one a minute, if something was read.
    The last one stays, if something was read that none has said.
    """

    def __init__(self, quiet: bool, file: IO[str] | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._quiet = quiet
        self._here = self._file.isatty()
        self._shown_s = 0.0
        self._batches = 0
        self._latest: Progress | None = None
        self._width = 0

    def note(self, text: str) -> None:
        """Print a note in a line of its own."""
        self._clear()
        exits.note(text)

    def progress(self, progress: Progress) -> None:
        """Show how far it is."""
        self._latest, now_s = progress, time.monotonic()
        every_s = _SHOWN_EVERY_S if self._here else _PRINTED_EVERY_S
        new = self._here or progress.batches != self._batches
        if self._quiet or not new or now_s - self._shown_s < every_s:
            return
        self._shown_s, self._batches = now_s, progress.batches
        text = progress_text(progress)
        if not self._here:
            print(text, file=self._file, flush=True)
            return
        self._clear()
        self._file.write(text)
        self._file.flush()
        self._width = len(text)

    def end(self) -> None:
        """Leave the line; the last one says what is in the lake."""
        self._clear()
        latest = self._latest
        if latest is None or self._quiet or latest.batches == (0 if self._here else self._batches):
            return
        print(progress_text(latest), file=self._file, flush=True)

    def _clear(self) -> None:
        if self._width:
            self._file.write(f"\r{' ' * self._width}\r")
            self._file.flush()
            self._width = 0


def progress_text(progress: Progress) -> str:
    """Return one line about how far the lake is behind."""
    parts = [
        f"{progress.files:,} file{'s' * (progress.files != 1)}",
        f"{progress.inputs:,} read in {progress.batches:,} commit{'s' * (progress.batches != 1)}"
        f" ({bytes_text(progress.read_bytes)})",
    ]
    if progress.waiting:
        parts.append(f"{progress.waiting:,} wait ({bytes_text(progress.waiting_bytes)})")
    if progress.batches:
        parts.append(f"the last commit {progress.lag_s:.1f} s behind its files")
    return "; ".join(parts)
