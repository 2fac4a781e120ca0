"""Preparation of Spark's Python workers: imports, kernels and memory settings."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import cache
from importlib import import_module
from mmap import PAGESIZE
from pathlib import Path

import pyarrow as pa

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in glibc's malloc.h
_LARGEST_BLOCK = 32 << 20
_MOST_KEPT = 256 << 20
_MOST_OWN = 320 << 20
"""Private memory of a worker above which it returns free memory before a task, in bytes."""


@cache
def settle() -> None:
    """Prepare the process for long work, once.

    1. Exclude all objects that are alive now from later garbage collections. Spark collects after
       every task, which takes longer than a small task once Numba is loaded.
    2. Make the C library keep large blocks that are freed. Every window of a stream is one: to
       return it to the system and fault its pages in again costs more than to read narrow columns
       from it.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
    gc.collect()
    gc.freeze()


def begin_task() -> None:
    """Return free memory to the system if the worker holds more than `_MOST_OWN`.

    Below that, the next task reuses the memory that a task has freed.
    """
    with suppress(AttributeError, OSError):  # another system, or C library
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
        if (int(resident) - int(shared)) * PAGESIZE > _MOST_OWN:
            pa.default_memory_pool().release_unused()
            ctypes.CDLL(None).malloc_trim(0)


def import_tasks() -> None:
    """Import the modules that tasks of this package need."""
    for name in ("spark.reader", "pipeline.decoding.task"):
        import_module(f"wireyard.{name}")


@cache
def load_kernels() -> None:
    """Load all kernels and the modules that call them, once a process."""
    from wireyard import accelerate
    from wireyard.formats import load_columns

    load_columns()
    accelerate.load_kernels()
    settle()
