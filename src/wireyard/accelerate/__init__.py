"""The one door to Numba: how kernels are declared, compiled and kept.

Three decorators. A `kernel` is called from Python on arrays, a `piece` only from kernels, and an
`instruction` is a piece given as LLVM code with a Python twin beside it. With
``NUMBA_DISABLE_JIT=1`` all three return plain Python: kernels then run over numpy arrays, and
instructions are their twins.

Compiled code is found in the package if it was shipped (`caching`), else in the cache of this
machine, and else all of it is compiled in parallel (`compiling`), once. Where nothing can be
written, kernels still compile in every process, each when it is first called.
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
    instruction,
    kernel,
    piece,
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
    "instruction",
    "kernel",
    "load_kernels",
    "piece",
    "print_notice",
    "record",
    "set_notice",
    "shipped_for",
]
