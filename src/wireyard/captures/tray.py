"""Where the bytes of streams are put: of small ones side by side, to be read together."""

from __future__ import annotations

from threading import local

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.streams.window import WINDOW_BYTES

__all__ = ["Tray"]

Bytes = npt.NDArray[np.uint8]


class Tray(local):
    """Buffers of a window's size that streams fill one after the other; each thread has its own."""

    def __init__(self) -> None:
        self.data: Bytes = _buffer(0)
        """The buffer that was taken last."""
        self._used = 0

    def take(self, size: int) -> int:
        """Return the place in `data` where the next `size` bytes are the caller's."""
        if size > len(self.data) - self._used:
            self.data, self._used = _buffer(max(size, WINDOW_BYTES)), 0
        place = self._used
        self._used += size
        return place


def _buffer(size: int) -> Bytes:
    """Return memory of Arrow's pool, which keeps the pages of large blocks that were given back."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)
