"""A stream as windows: bounded buffers, one after the other, without losing a byte between them.

A window is bytes of the stream from a known offset. Its consumer advances `start`; the bytes that
are left begin the next window.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from wireyard.arrays import Bytes
from wireyard.streams.source import Damaged, Reading, reading

WINDOW_BYTES = 3 << 20
"""A window should stay in the cache, which is shared, while about 100 us of Python are spent on
each: 2 MiB and 4 MiB are measurably slower."""
_LEFT_PART = 8
"""All windows together have room for 1 / `_LEFT_PART` of a window more than the stream, because
each leaves the packet at its end to the next."""


@dataclass(slots=True)
class Window:
    """Bytes ``[start, stop)`` of `data`; ``data[0]`` is at offset `base` of the stream.

    The consumer advances `start` past the bytes that it has used.
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
    """Return a size of windows of which every core gets the same number.

    With one window more than the others, one core would make them wait. If `size` is None, it is
    `WINDOW_BYTES`.
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
    size = window_bytes
    while True:
        stop = min(start + size, len(data))
        window = Window(data, 0, start, stop, stop == len(data))
        yield window
        if window.at_end:
            return
        # If nothing was consumed, a packet is larger than the window.
        size = window_bytes if window.start > start else size * 2
        start = window.start


def windows_of_file(
    file: Reading,
    name: str,
    base: int,
    window_bytes: int = WINDOW_BYTES,
    *,
    accepts_damage: bool = False,
) -> Windows:
    """Yield the windows of a file from offset `base` on, and close it at the end.

    Each window has a buffer of its own, because earlier ones may still be decoded. A buffer grows
    only by bytes that have arrived, to twice the largest frame. If the file cannot be read further,
    `SourceError` is raised after the bytes read before; with `accepts_damage`, the windows end
    there instead, with the file's `damage` set.
    """
    kept: Bytes = np.empty(0, np.uint8)
    capacity = window_bytes
    with closing(file):
        while True:
            left = len(kept)
            data = np.empty(capacity + left, np.uint8)
            data[:left] = kept
            kept = data[:0]  # the buffer before is as large as a packet may be
            count, failure = _fill(file, data[left:].data)
            filled = left + count
            if failure is not None and filled and accepts_damage:
                file.damage, failure = _damage(file, failure), None
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


def _damage(file: Reading, failure: OSError) -> Damaged:
    if isinstance(failure, Damaged):
        return failure
    reason = failure.strerror or failure
    return Damaged(f"cannot be read on at byte {file.position} ({reason})")


def _fill(file: Reading, buffer: memoryview) -> tuple[int, OSError | None]:
    """Read until `buffer` is full, or the file ends or fails; a short read is not an end."""
    filled = 0
    try:
        while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
            filled += count
    except OSError as failure:
        return filled, failure
    return filled, None
