"""The decorators `kernel`, `inlined` and `instruction`, and the types of signatures."""

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
    "inlined",
    "instruction",
    "kernel",
    "record",
]

P = ParamSpec("P")
R = TypeVar("R")

COMPILED: Final[bool] = not NUMBA_CONFIG.DISABLE_JIT
"""False if ``NUMBA_DISABLE_JIT`` is set: then kernels are plain Python."""

BOOL: Final = numba.types.boolean
I32: Final = numba.types.int32
I64: Final = numba.types.int64
# Without reference counts ("_nrt"), moving a short text takes a fifth of the time.
_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
}
_COMPILING: Final = threading.Lock()
_TYPING: Final = threading.Lock()


def array(dtype: str, axes: int = 1, *, readonly: bool = False) -> Any:
    """Return the signature type of a contiguous array of `dtype`.

    If it is `readonly`, the argument may be a read-only or a writable array.
    """
    with _TYPING:
        return _array_types(dtype, axes)[readonly]


@functools.cache
def _array_types(dtype: str, axes: int) -> tuple[Any, Any]:
    """Return the types of a writable and of a read-only array.

    Both are kept: Numba compares types by number. If two threads passed the first writable arrays
    for read-only ones at the same time, it could number that type twice, and find no kernel for it.
    """
    kind = getattr(numba.types, dtype)
    return numba.types.Array(kind, axes, "C"), numba.types.Array(kind, axes, "C", readonly=True)


READ: Final = array("uint8", readonly=True)
"""Bytes that a kernel only reads."""
TEXT: Final = array("uint8")
"""Bytes that a kernel writes."""


def record(kind: type) -> Any:
    """Return the signature type of a NamedTuple of arrays and integers.

    Each array is annotated with its dtype, ``Annotated[NDArray[...], "int64"]``, or with its
    signature type if it has more than one axis. It cannot have read-only arrays, because Numba does
    not convert the elements of a tuple.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = [_field_type(hint) for hint in hints.values()]
    types: Any = numba.types
    if len(set(fields)) == 1:  # Numba has another type for these
        return types.NamedUniTuple(fields[0], len(fields), kind)
    return types.NamedTuple(fields, kind)


def _field_type(hint: Any) -> Any:
    if hint is int:
        return I64
    (annotation,) = hint.__metadata__
    return array(annotation) if isinstance(annotation, str) else annotation


# --- kernels and inlined functions ------------------------------------------------------------


def kernel(signature: Any, *, brief: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function that is called from Python and compiled for one `signature`.

    It is compiled or loaded at the first call. Kernels release the GIL, check no bounds, raise
    nothing and allocate nothing. A `brief` kernel holds the GIL, because acquiring it again would
    take far longer than the call.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        if not COMPILED:
            return _plain(function)
        dispatcher: Any = numba.njit(**{**_OPTIONS, "nogil": not brief})(function)
        with contextlib.suppress(RuntimeError):  # without a source file, code is not cached
            dispatcher._cache = KernelCache(function)
        KERNELS[dispatcher] = signature

        def compile_first(*args: Any, **named: Any) -> Any:
            with _COMPILING:
                if dispatcher._can_compile:
                    dispatcher.compile(signature)
                    dispatcher.disable_compile()
            return dispatcher  # Numba calls it again with the arguments

        # Numba compiles explicit signatures at the declaration. The dispatcher calls this method
        # only if no compiled code fits the arguments.
        dispatcher._compile_for_args = compile_first
        return cast("Callable[P, R]", dispatcher)

    return declare


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a function for kernels, which is inlined where it is called."""
    if not COMPILED:
        return _plain(function)
    return cast("Callable[P, R]", numba.njit(**_OPTIONS, forceinline=True)(function))


def instruction(
    emit: Callable[..., ir.Value | None],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function for kernels by LLVM code, with an equivalent Python function.

    Parameters
    ----------
    emit
        Called as ``emit(builder, *values)`` to write the LLVM code. Arrays are passed as pointers
        to their first byte, all else as 64-bit integers; the result is a 64-bit integer, or None if
        the function returns None.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        if not COMPILED:
            return _plain(function)
        names = inspect.signature(function)
        returns_none = inspect.get_annotations(function)["return"] in ("None", None)

        def define(context: Any, *types: Any) -> Any:
            arguments = [kind if isinstance(kind, numba.types.Array) else I64 for kind in types]
            result = numba.types.none if returns_none else I64

            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, numba.types.Array)
                    else value
                    for kind, value in zip(signature.args, args, strict=True)
                ]
                value = emit(builder, *values)
                return context.get_dummy_value() if returns_none else value

            return result(*arguments), generate

        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(define)["__signature__"] = names.replace(
            parameters=[first, *names.parameters.values()]
        )
        define.__name__, define.__doc__ = function.__name__, function.__doc__
        return cast("Callable[P, R]", intrinsic(define))

    return declare


def _plain(function: Callable[P, R]) -> Callable[P, R]:
    """Convert numpy integers to Python's, because they warn where kernels wrap around."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        plain = [int(value) if isinstance(value, np.integer) else value for value in args]
        return function(*plain, **named)  # type: ignore[arg-type]

    return call
