"""The only module that uses Numba: declaration, compilation and caching of kernels.

There are three decorators. A `kernel` is called from Python with arrays; an `inlined` function is
called from kernels only; an `instruction` is one written as LLVM code, with an equivalent Python
function. With ``NUMBA_DISABLE_JIT=1`` all three return plain Python: kernels then run over
numpy arrays, and instructions are their Python functions.

Compiled code is loaded from the package if it was shipped (`caching`), else from the cache of this
machine; if it is in neither, all missing kernels are compiled in parallel, once (`compiling`). If
no cache can be written, each kernel is compiled in every process at its first call.
"""

from __future__ import annotations

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
from wireyard.accelerate.declare import (
    BOOL,
    COMPILED,
    I32,
    I64,
    READ,
    TEXT,
    array,
    inlined,
    instruction,
    kernel,
    record,
)

__all__ = [
    "BOOL",
    "COMPILED",
    "I32",
    "I64",
    "READ",
    "TEXT",
    "Progress",
    "array",
    "cache_folder",
    "compile_missing",
    "core_count",
    "find_kernels",
    "inlined",
    "instruction",
    "kernel",
    "load_kernels",
    "print_notice",
    "record",
    "set_notice",
    "shipped_for",
]
