"""Where the bytes of streams are put: of small ones side by side, to be read together."""

from __future__ import annotations

from threading import local

import numpy as np
import numpy.typing as npt

from wireyard.arena import pooled
from wireyard.streams.window import WINDOW_BYTES

__all__ = ["Tray"]

Bytes = npt.NDArray[np.uint8]


class Tray(local):
    """Buffers of a window's size that streams fill one after the other; each thread has its own."""

    def __init__(self) -> None:
        self.data: Bytes = pooled(0, np.uint8)
        """The buffer that was taken last."""
        self._used = 0

    def take(self, size: int) -> int:
        """Return the place in `data` where the next `size` bytes are the caller's."""
        if size > len(self.data) - self._used:
            self.data, self._used = pooled(max(size, WINDOW_BYTES), np.uint8), 0
        place = self._used
        self._used += size
        return place
