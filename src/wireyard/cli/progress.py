"""Progress on standard error, in one line that a terminal shows while something takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from threading import Event, Lock, Thread
from typing import IO, Self

from wireyard.streams.urls import shown_text
from wireyard.text import bytes_text, clipped, printable

_EVERY_S = 0.2
_PATIENCE_S = 1.0
"""Time after which a line is shown."""


class Line:
    """A line that is written again and again; silent unless standard error is a terminal.

    `wanted` is whether to show it; not if the results themselves go to the terminal.
    """

    def __init__(self, file: IO[str] | None = None, *, wanted: bool = True) -> None:
        self._file = sys.stderr if file is None else file
        self.is_shown = wanted and self._file.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """Show a text in place of the last one; an empty one clears the line."""
        if self.is_shown and (text or self._width):
            line = text[: get_terminal_size().columns - 1]
            self._file.write(f"\r{line:<{self._width}}" + ("" if line else "\r"))
            self._file.flush()
            self._width = len(line)


class Waiting:
    """A line that names the stage of a command that takes over a second, with its time.

    A stage without a name has no line, so that results can be printed.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._line = Line(file)
        self._name = self._detail = ""
        self._began = time.monotonic()
        self._ended, self._lock = Event(), Lock()
        self._thread = Thread(target=self._run, daemon=True) if self._line.is_shown else None

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
            self._line.show("")

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Show the part of the bytes that is done."""
        self._detail = f" {100 * done_bytes // max(total_bytes, 1)} %"

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            took_s = time.monotonic() - self._began
            with self._lock:
                if self._name and took_s >= _PATIENCE_S:
                    self._line.show(f"{self._name}{self._detail}, {took_s:.0f} s")


@contextmanager
def waiting(stage: str) -> Iterator[None]:
    """Show a stage by its name if it takes over a second, and its time."""
    with Waiting() as line:
        line.stage(printable(shown_text(stage)))
        yield


class Progress:
    """A line with the bytes that are read, the speed, and the time left.

    Parameters
    ----------
    name
        Name of the input.
    size
        Its size in bytes; None if unknown.
    wanted
        As for `Line`.
    """

    def __init__(self, name: str, size: int | None, wanted: bool) -> None:
        self._name, self._size, self._done = name, size, 0
        self._line = Line(wanted=wanted)
        self._began = time.monotonic()
        self._next = self._began + _PATIENCE_S

    def add(self, size: int) -> None:
        """Count `size` more bytes as done."""
        self._done += size
        now = time.monotonic()
        if not self._line.is_shown or now < self._next:
            return
        self._next = now + _EVERY_S
        speed = self._done / max(now - self._began, 1e-3)
        parts = [bytes_text(self._done), f"{bytes_text(speed)}/s"]
        if self._size is not None:
            parts[0] += f" of {bytes_text(self._size)}"
            parts.append(f"{max(self._size - self._done, 0) / max(speed, 1):.0f} s left")
        name = clipped(self._name, get_terminal_size().columns // 3)
        self._line.show(f"reading {name}: {', '.join(parts)}")

    def end(self) -> None:
        """Clear the line."""
        self._line.show("")
