"""How kernels are declared: `kernel`, `piece` and `instruction`, and the types of signatures."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, cast, get_type_hints

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from wireyard.accelerate.caching import NUMBA_CONFIG, KernelCache
from wireyard.accelerate.compiling import KERNELS

__all__ = [
    "BOOL",
    "COMPILED",
    "I32",
    "I64",
    "READ",
    "TEXT",
    "array",
    "instruction",
    "kernel",
    "piece",
    "record",
]

P = ParamSpec("P")
R = TypeVar("R")

COMPILED: Final[bool] = not NUMBA_CONFIG.DISABLE_JIT
"""False when ``NUMBA_DISABLE_JIT`` asks for plain Python."""

BOOL: Final = numba.types.boolean
I32: Final = numba.types.int32
I64: Final = numba.types.int64
READ: Final = numba.types.Array(numba.types.uint8, 1, "C", readonly=True)
"""Bytes a kernel only reads: the signature takes read-only and writable arrays alike."""
TEXT: Final = numba.types.Array(numba.types.uint8, 1, "C")
"""Bytes a kernel writes."""

# Without reference counts ("_nrt"), moving a short text takes a fifth of the time.
_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
}
_COMPILING: Final = threading.Lock()


def array(dtype: str, axes: int = 1, *, readonly: bool = False) -> Any:
    """Return the signature type of a contiguous array of `dtype`."""
    return numba.types.Array(getattr(numba.types, dtype), axes, "C", readonly=readonly)


def record(kind: type) -> Any:
    """Return the signature type of a NamedTuple of arrays and integers.

    Each array is annotated with its dtype, ``Annotated[NDArray[...], "int64"]``, or with its
    signature type if it has more than one axis. An array that the caller may not write to cannot
    be in it: Numba takes a tuple as it is.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = [_field_type(hint) for hint in hints.values()]
    types: Any = numba.types
    if len(set(fields)) == 1:  # which Numba has a type of its own for
        return types.NamedUniTuple(fields[0], len(fields), kind)
    return types.NamedTuple(fields, kind)


def _field_type(hint: Any) -> Any:
    if hint is int:
        return I64
    (found,) = hint.__metadata__
    return array(found) if isinstance(found, str) else found


# --- kernels and pieces ---------------------------------------------------------------------


def kernel(signature: Any, *, brief: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function called from Python, compiled for one `signature` at the first call.

    Kernels release the GIL, check no bounds, raise nothing and allocate nothing. A `brief` one
    keeps the GIL: to release it and wait for it again would take far longer.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        if not COMPILED:
            return _plain(function)
        dispatcher: Any = numba.njit(**{**_OPTIONS, "nogil": not brief})(function)
        with contextlib.suppress(RuntimeError):  # typed at a prompt: compiled, but not kept
            dispatcher._cache = KernelCache(function)
        KERNELS[dispatcher] = signature

        def compile_first(*args: Any, **named: Any) -> Any:
            with _COMPILING:
                if dispatcher._can_compile:
                    dispatcher.compile(signature)
                    dispatcher.disable_compile()
            return dispatcher  # which Numba calls again with the arguments

        # Numba would compile explicit signatures here and now, at import; the dispatcher calls
        # this method only when nothing compiled fits the arguments.
        dispatcher._compile_for_args = compile_first
        return cast("Callable[P, R]", dispatcher)

    return declare


def piece(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a function that kernels are built from; it is inlined where it is called."""
    if not COMPILED:
        return _plain(function)
    return cast("Callable[P, R]", numba.njit(**_OPTIONS, forceinline=True)(function))


def instruction(
    emit: Callable[..., ir.Value | None],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a plain Python function its compiled form.

    Parameters
    ----------
    emit
        Called as ``emit(builder, *values)`` to write the LLVM code. Arrays arrive as pointers to
        their first byte, everything else as 64-bit integers; the result is a 64-bit integer, or
        None where the function returns None.
    """

    def declare(twin: Callable[P, R]) -> Callable[P, R]:
        if not COMPILED:
            return _plain(twin)
        names = inspect.signature(twin)
        gives_nothing = inspect.get_annotations(twin)["return"] in ("None", None)

        def define(context: Any, *types: Any) -> Any:
            taken = [kind if isinstance(kind, numba.types.Array) else I64 for kind in types]
            given = numba.types.none if gives_nothing else I64

            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, numba.types.Array)
                    else value
                    for kind, value in zip(signature.args, args, strict=True)
                ]
                made = emit(builder, *values)
                return context.get_dummy_value() if gives_nothing else made

            return given(*taken), generate

        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(define)["__signature__"] = names.replace(
            parameters=[first, *names.parameters.values()]
        )
        define.__name__, define.__doc__ = twin.__name__, twin.__doc__
        return cast("Callable[P, R]", intrinsic(define))

    return declare


def _plain(function: Callable[P, R]) -> Callable[P, R]:
    """Keep numpy's integers out of plain Python: they warn where kernels wrap around."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        plain = [int(value) if isinstance(value, np.integer) else value for value in args]
        return function(*plain, **named)  # type: ignore[arg-type]

    return call
