"""Buffers for the bytes of streams; small streams share one, so that they are read together."""

from __future__ import annotations

from threading import local

import numpy as np
import numpy.typing as npt

from wireyard.arena import pooled
from wireyard.streams.window import WINDOW_BYTES

__all__ = ["Tray"]

Bytes = npt.NDArray[np.uint8]


class Tray(local):
    """An allocator of buffers of a window's size, for one thread: each has its own state."""

    def __init__(self) -> None:
        self.data: Bytes = pooled(0, np.uint8)
        """The current buffer."""
        self._used = 0

    def take(self, size: int) -> int:
        """Allocate `size` bytes; return their offset in `data`, which may be a new buffer."""
        if size > len(self.data) - self._used:
            self.data, self._used = pooled(max(size, WINDOW_BYTES), np.uint8), 0
        place = self._used
        self._used += size
        return place
