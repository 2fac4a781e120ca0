"""A stream as a run of windows: one bounded buffer after another, none losing a byte between.

A window is some bytes of the stream from a known offset. The reader says how far it came; what is
left over begins the next window.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wireyard.streams.source import Reading, reading

__all__ = [
    "WINDOW_BYTES",
    "Window",
    "Windows",
    "even_bytes",
    "windows_of_bytes",
    "windows_of_file",
]

Bytes = npt.NDArray[np.uint8]

WINDOW_BYTES = 3 << 20
"""Everything done to a window should hit the cache, which others use too, and about 100 us of
Python is spent on each: 2 MiB and 4 MiB are measurably slower."""
_LEFT_PART = 8
"""All windows together are larger by this part of one than they have to be: each leaves the packet
at its end to the next."""


@dataclass(slots=True)
class Window:
    """Bytes ``[start, stop)`` of `data`; ``data[0]`` stands at offset `base` of the stream.

    The consumer moves `start` on and leaves there what needs more bytes.
    """

    data: Bytes
    base: int
    start: int
    stop: int
    at_end: bool

    @property
    def view(self) -> memoryview:
        """The unconsumed bytes."""
        return self.data[self.start : self.stop].data


Windows = Generator[Window, None, None]
"""Windows in order; closing them closes the file they come from."""


def even_bytes(size: int | None) -> int:
    """Return how large windows are to be of which every core of the machine has as many.

    One core with a window more than the others would keep them waiting. Without a `size`, nobody
    can say how many windows there will be.
    """
    if size is None or size <= WINDOW_BYTES:
        return WINDOW_BYTES
    cores = os.cpu_count() or 1
    count = -(-size // WINDOW_BYTES)
    if count > cores:
        count += -count % cores
    share = size // count
    return share + share // (_LEFT_PART * count)


def windows_of_bytes(data: Bytes, start: int = 0, window_bytes: int = WINDOW_BYTES) -> Windows:
    """Yield the windows of bytes in memory from offset `start` on, without copying them."""
    reach = window_bytes
    while True:
        stop = min(start + reach, len(data))
        window = Window(data, 0, start, stop, stop == len(data))
        yield window
        if window.at_end:
            return
        # A window that moved nothing on holds the beginning of something larger.
        reach = window_bytes if window.start > start else reach * 2
        start = window.start


def windows_of_file(
    file: Reading, name: str, base: int, window_bytes: int = WINDOW_BYTES
) -> Windows:
    """Yield the windows of a file from offset `base` on, and close it at the end.

    Each window has a buffer of its own: whoever still decodes an earlier one is not disturbed.

    Raises
    ------
    SourceError
        The file cannot be read on. What was read before it is yielded first.

    Limits
    ------
    A buffer grows only by bytes that really arrived, to twice the largest frame.
    """
    kept: Bytes = np.empty(0, np.uint8)
    capacity = window_bytes
    with closing(file):
        while True:
            data = np.empty(capacity + len(kept), np.uint8)
            data[: len(kept)] = kept
            count, failure = _fill(file, data[len(kept) :].data)
            filled = len(kept) + count
            if failure is not None and filled == 0:
                with reading(name):
                    raise failure
            window = Window(data, base, 0, filled, filled < len(data) and failure is None)
            yield window
            if failure is not None:
                with reading(name):
                    raise failure
            if window.at_end:
                return
            capacity = window_bytes if window.start > 0 else max(window_bytes, filled)
            kept = data[window.start : window.stop]
            base += window.start


def _fill(file: Reading, buffer: memoryview) -> tuple[int, OSError | None]:
    """Read until `buffer` is full or the file ends, or fails; a short read is not an end."""
    filled = 0
    try:
        while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
            filled += count
    except OSError as failure:
        return filled, failure
    return filled, None
