"""What a Python worker of Spark does once, so that each of its tasks begins ready."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import cache
from importlib import import_module

__all__ = ["preload", "settle"]

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in glibc's malloc.h
_LARGEST_BLOCK = 32 << 20
_MOST_KEPT = 64 << 20


@cache
def settle() -> None:
    """Settle down to long work, once a process.

    1. Everything that is alive now is kept out of later garbage collections. Spark collects after
       every task, which with Numba loaded takes longer than a small task.
    2. The C library keeps the memory of large blocks that are freed. Every window of a stream is
       one: given back to the system and taken anew, its pages cost more than to read narrow
       columns from it.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
    gc.collect()
    gc.freeze()


def preload() -> None:
    """Import what the tasks of this package need, and load its kernels."""
    from wireyard.formats import get_format, names
    from wireyard.warm import warm

    import_module("wireyard.spark.reader")
    for name in names():
        warm(get_format(name))
    settle()
