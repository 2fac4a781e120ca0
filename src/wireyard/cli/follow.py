"""``wireyard run --follow``: the progress line while a lake follows folders."""

from __future__ import annotations

import sys
import time
from typing import IO

from wireyard.cli import exits
from wireyard.cli.progress import Line
from wireyard.pipeline.growing.following import Progress
from wireyard.text import bytes_text, count_text

_SHOWN_EVERY_S = 0.5
_PRINTED_EVERY_S = 60.0


class FollowLine:
    """A line on standard error that shows how far the lake is behind.

    On a terminal the line is updated in place; otherwise a line is printed at most once a minute,
    if something was read. A last line is printed at the end if no line has shown the last commit.
    """

    def __init__(self, quiet: bool, file: IO[str] | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._quiet = quiet
        self._line = Line(self._file)
        self._is_terminal = self._line.is_shown
        self._shown_s = 0.0
        self._batches = 0
        self._latest: Progress | None = None

    def note(self, text: str) -> None:
        """Print a note on a line of its own."""
        self._line.show("")
        exits.note(text)

    def progress(self, progress: Progress) -> None:
        """Show the progress."""
        self._latest, now_s = progress, time.monotonic()
        every_s = _SHOWN_EVERY_S if self._is_terminal else _PRINTED_EVERY_S
        new = self._is_terminal or progress.batches != self._batches
        if self._quiet or not new or now_s - self._shown_s < every_s:
            return
        self._shown_s, self._batches = now_s, progress.batches
        text = progress_text(progress)
        if self._is_terminal:
            self._line.show(text)
        else:
            print(text, file=self._file, flush=True)

    def end(self) -> None:
        """Print the last line, with the final state of the lake."""
        self._line.show("")
        latest = self._latest
        if (
            latest is None
            or self._quiet
            or latest.batches == (0 if self._is_terminal else self._batches)
        ):
            return
        print(progress_text(latest), file=self._file, flush=True)


def progress_text(progress: Progress) -> str:
    """Return the progress as one line."""
    parts = [
        count_text(progress.files, "file"),
        f"{progress.inputs:,} read in {count_text(progress.batches, 'commit')}"
        f" ({bytes_text(progress.read_bytes)})",
    ]
    if progress.waiting:
        wait = "waits" if progress.waiting == 1 else "wait"
        parts.append(f"{progress.waiting:,} {wait} ({bytes_text(progress.waiting_bytes)})")
    if progress.batches:
        parts.append(f"the last commit {progress.lag_s:.1f} s behind its files")
    return "; ".join(parts)
