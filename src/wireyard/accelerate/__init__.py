"""The only module that uses Numba: declaration, compilation and caching of kernels.

There are three decorators. A `kernel` is called from Python with arrays, and compiled for the types
of its annotations; an `inlined` function is called from kernels only; an `instruction` is one
written as LLVM code, with an equivalent Python function. With ``NUMBA_DISABLE_JIT=1`` all three are
plain Python, and kernels run over numpy arrays. Numba is loaded only to compile.

Compiled code is loaded from the package if it was shipped (`caching`), else from the cache of this
machine; if it is in neither, the missing kernels of all modules that are loaded are compiled in
parallel, once (`compiling`). If no cache can be written, each kernel is compiled in every process
at its first call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wireyard.accelerate.declare import COMPILED, brief_kernel, inlined, instruction, kernel

if TYPE_CHECKING:
    from wireyard.accelerate.caching import cache_folder, shipped_for
    from wireyard.accelerate.compiling import (
        Progress,
        compile_missing,
        core_count,
        find_kernels,
        load_kernels,
        print_notice,
        set_notice,
    )

_CACHING = ("cache_folder", "shipped_for")

__all__ = [
    "COMPILED",
    "Progress",
    "brief_kernel",
    "cache_folder",
    "compile_missing",
    "core_count",
    "find_kernels",
    "inlined",
    "instruction",
    "kernel",
    "load_kernels",
    "print_notice",
    "set_notice",
    "shipped_for",
]


def __getattr__(name: str) -> Any:
    """Return what needs Numba, which is loaded for it."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    home = "caching" if name in _CACHING else "compiling"
    return getattr(import_module(f"{__name__}.{home}"), name)
