"""How far a reading came, in bytes: one line on standard error while results go elsewhere."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]

_EVERY_S = 0.2
_MB = 1_000_000


class Progress:
    """A line that is written over and over; silent unless standard error is a terminal.

    Parameters
    ----------
    name
        What is read.
    size
        Its bytes, None if nobody knows.
    wanted
        False where the results themselves go to the terminal.
    """

    def __init__(self, name: str, size: int | None, wanted: bool) -> None:
        self._name = name
        self._size = size
        self._wanted = wanted and sys.stderr.isatty()
        self._done = 0
        self._next = time.monotonic() + _EVERY_S
        self._shown = False

    def add(self, size: int) -> None:
        """Show that `size` more bytes are done."""
        self._done += size
        if not self._wanted or time.monotonic() < self._next:
            return
        text = f"{self._name}: {self._done / _MB:,.0f} MB"
        if self._size:
            text += f" of {self._size / _MB:,.0f}, {self._done / self._size:.0%}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._next = time.monotonic() + _EVERY_S
        self._shown = True

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
