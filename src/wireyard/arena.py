"""Memory for the columns of one batch: one allocation, many arrays.

Memory that was never touched costs ten times what warm memory does. Arrow's pool keeps the pages
of large blocks that were given back, so a batch asks it once and cuts what it got.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Arena", "copied"]

_ALIGNMENT = 64  # what Arrow asks of buffers


class Arena:
    """Arrays cut from one Arrow buffer.

    Parameters
    ----------
    shapes
        Name to shape and type of each array. Their contents are undefined at first.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> None:
        sizes = [prod(shape) * np.dtype(kind).itemsize for shape, kind in shapes.values()]
        starts = [0, *accumulate(size + -size % _ALIGNMENT for size in sizes)]
        self._buffer = pa.allocate_buffer(starts[-1])
        self._starts = dict(zip(shapes, starts, strict=False))
        whole = np.frombuffer(self._buffer, np.uint8)
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: whole[start : start + size].view(kind).reshape(shape)
            for (name, (shape, kind)), start, size in zip(
                shapes.items(), starts, sizes, strict=False
            )
        }

    def buffer(self, name: str, place: int | None = None) -> pa.Buffer:
        """Return the Arrow buffer of an array, or of one row of it."""
        array = self.arrays[name]
        if place is None:
            return self._buffer.slice(self._starts[name], array.nbytes)
        stride = array.strides[0]
        return self._buffer.slice(self._starts[name] + place * stride, stride)


def copied(array: npt.NDArray[Any]) -> pa.Buffer:
    """Return an Arrow buffer of its own with the contents of an array."""
    buffer = pa.allocate_buffer(array.nbytes)
    np.frombuffer(buffer, array.dtype)[:] = array
    return buffer
