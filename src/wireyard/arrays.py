"""Types of numpy arrays by element and number of axes, for annotations.

A kernel is compiled for the types that it is annotated with (`wireyard.accelerate`).
"""

from typing import Annotated, TypeVar

import numpy as np

Array = TypeVar("Array")
ReadOnly = Annotated[Array, "read-only"]
"""An array that a kernel does not write: the only one that may be a read-only array."""

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""Flags, a byte each."""
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Bytes of a buffer, or small codes."""
Int8s = np.ndarray[tuple[int], np.dtype[np.int8]]
"""Small codes with a sign, such as -1 for none."""
Int32s = np.ndarray[tuple[int], np.dtype[np.int32]]
"""Integers of 32 bits: offsets of Arrow's text, codes of a dictionary, numbers of records."""
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Integers of 64 bits: the usual column, positions and indexes."""
UInt32s = np.ndarray[tuple[int], np.dtype[np.uint32]]
"""Unsigned integers of 32 bits, such as TCP's sequence numbers."""
UInt64s = np.ndarray[tuple[int], np.dtype[np.uint64]]
"""Unsigned integers of 64 bits: hashes, and words of text."""

Grid8 = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
"""Several columns or rows of bytes, such as bitmaps."""
IntGrid8 = np.ndarray[tuple[int, int], np.dtype[np.int8]]
"""Several columns or rows of small codes with a sign."""
Grid32 = np.ndarray[tuple[int, int], np.dtype[np.int32]]
"""Several columns or rows of integers of 32 bits."""
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""Several columns or rows of integers of 64 bits."""
