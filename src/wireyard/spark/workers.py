"""What a Python worker of Spark does once, so that each of its tasks begins ready."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import cache
from importlib import import_module
from mmap import PAGESIZE
from pathlib import Path

import pyarrow as pa

__all__ = ["begin_task", "import_tasks", "load_columns", "load_kernels", "settle"]

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in glibc's malloc.h
_LARGEST_BLOCK = 32 << 20
_MOST_KEPT = 256 << 20
_MOST_OWN = 320 << 20
"""Memory of its own with which a worker may begin a task, where it can be less."""


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


def begin_task() -> None:
    """Give memory that is free back to the system, if a worker has much of its own.

    What a task has freed is kept for the next one, where that is not too much for it.
    """
    with suppress(AttributeError, OSError):  # another system, or C library
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
        if (int(resident) - int(shared)) * PAGESIZE > _MOST_OWN:
            pa.default_memory_pool().release_unused()
            ctypes.CDLL(None).malloc_trim(0)


def import_tasks() -> None:
    """Import what the tasks of this package run."""
    for name in ("reader", "bronze"):
        import_module(f"wireyard.spark.{name}")


def load_columns() -> None:
    """Load what decodes with kernels, which many small streams are worth though none of them is."""
    from wireyard.formats import get_format, names

    for name in names():
        import_module(get_format(name).fast_path)


@cache
def load_kernels() -> None:
    """Load every kernel and what calls them, once a process."""
    from wireyard import accelerate

    load_columns()
    accelerate.load_kernels()
    settle()
