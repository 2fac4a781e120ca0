"""The decorators `kernel`, `inlined` and `instruction`, and the types of signatures.

Nothing here loads Numba. A kernel loads it when it is first called, and the functions that are
inlined in it become Numba's only if it has to be compiled.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, cast, get_args, get_type_hints

import numpy as np

__all__ = [
    "BOOL",
    "COMPILED",
    "I32",
    "I64",
    "KERNELS",
    "READ",
    "TEXT",
    "Kernel",
    "array",
    "inlined",
    "instruction",
    "kernel",
    "record",
]

P = ParamSpec("P")
R = TypeVar("R")

COMPILED: Final[bool] = os.environ.get("NUMBA_DISABLE_JIT", "") in ("", "0")
"""False if ``NUMBA_DISABLE_JIT`` is set: then kernels are plain Python."""


# --- types of signatures ----------------------------------------------------------------------


class Kind:
    """A type in a signature. Called with the types of arguments, it returns a signature.

    Parameters
    ----------
    make
        Returns Numba's type.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @functools.cached_property
    def numba(self) -> Any:
        """Numba's type; the same object each time, because Numba compares types by number."""
        return self._make()

    def __call__(self, *arguments: Kind) -> Signature:
        return Signature(self, arguments)


class Signature:
    """The types of a function's result and arguments; without a result it returns None."""

    def __init__(self, result: Kind | None, arguments: tuple[Kind, ...]) -> None:
        self._result, self._arguments = result, arguments

    @functools.cached_property
    def numba(self) -> Any:
        """Numba's signature."""
        arguments = tuple(one.numba for one in self._arguments)
        return arguments if self._result is None else self._result.numba(*arguments)


def _scalar(name: str) -> Kind:
    return Kind(lambda: getattr(_numba_types(), name))


def _numba_types() -> Any:
    from numba import types

    return types


@functools.cache
def array(dtype: str, axes: int = 1, *, readonly: bool = False) -> Kind:
    """Return the signature type of a contiguous array of `dtype`.

    If it is `readonly`, the argument may be a read-only or a writable array.
    """
    return Kind(lambda: _array_types(dtype, axes)[readonly])


@functools.cache
def _array_types(dtype: str, axes: int) -> tuple[Any, Any]:
    """Return the types of a writable and of a read-only array.

    Both are kept: if the first writable arrays were passed for read-only ones in two threads at the
    same time, Numba could number that type twice, and find no kernel for it.
    """
    types = _numba_types()
    kind = getattr(types, dtype)
    return types.Array(kind, axes, "C"), types.Array(kind, axes, "C", readonly=True)


BOOL: Final = _scalar("boolean")
I32: Final = _scalar("int32")
I64: Final = _scalar("int64")
READ: Final = array("uint8", readonly=True)
"""Bytes that a kernel only reads."""
TEXT: Final = array("uint8")
"""Bytes that a kernel writes."""


@functools.cache
def record(kind: type) -> Kind:
    """Return the signature type of a NamedTuple of arrays and integers.

    Arrays are annotated with types of `wireyard.arrays`. It cannot have read-only arrays, because
    Numba does not convert the elements of a tuple.
    """

    def make() -> Any:
        hints = get_type_hints(kind, include_extras=True)
        fields = [_field_type(hint).numba for hint in hints.values()]
        types = _numba_types()
        if len(set(fields)) == 1:  # Numba has another type for these
            return types.NamedUniTuple(fields[0], len(fields), kind)
        return types.NamedTuple(fields, kind)

    return Kind(make)


def _field_type(hint: Any) -> Kind:
    if hint is int:
        return I64
    shape, dtype = get_args(hint)
    return array(get_args(dtype)[0].__name__, len(get_args(shape)))


# --- kernels and inlined functions ------------------------------------------------------------

KERNELS: Final[list[Kernel]] = []
"""Every kernel that is declared in this process."""
_LOADING: Final = threading.RLock()


class _Declared:
    """A declared function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        # numpy's integers warn where those of compiled code wrap around.
        plain = [int(value) if isinstance(value, np.integer) else value for value in args]
        return self.py_func(*plain, **named)


class _Inlined(_Declared):
    """A function for kernels. Where compiled code calls it, Numba finds its `_numba_type_`."""

    @functools.cached_property
    def dispatcher(self) -> Any:
        from wireyard.accelerate.dispatchers import inlined_dispatcher

        return inlined_dispatcher(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


class _Instruction(_Declared):
    """A function for kernels that is LLVM code in them."""

    def __init__(self, function: Callable[..., Any], emit: Callable[..., Any]) -> None:
        super().__init__(function)
        self._emit = emit

    @functools.cached_property
    def _intrinsic(self) -> Any:
        from wireyard.accelerate.dispatchers import instruction_intrinsic

        return instruction_intrinsic(self.py_func, self._emit)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from wireyard.accelerate.dispatchers import type_of

        return type_of(self._intrinsic)


class Kernel(_Declared):
    """A function that is called from Python, and compiled or loaded at its first call."""

    def __init__(self, function: Callable[..., Any], signature: Signature, brief: bool) -> None:
        super().__init__(function)
        self.signature, self._brief = signature, brief
        self._run: Callable[..., Any] = self._load_and_run if COMPILED else super().__call__
        if COMPILED:
            KERNELS.append(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the compiled code, or the function where nothing is compiled."""
        return self._run(*args, **named)

    def _load_and_run(self, *args: Any, **named: Any) -> Any:
        self.load()
        return self._run(*args, **named)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher, which loads or compiles the code at its first call."""
        from wireyard.accelerate.dispatchers import kernel_dispatcher

        return kernel_dispatcher(self.py_func, self._brief)

    def load(self) -> None:
        """Load the compiled code, or compile it; calls run it from now on."""
        with _LOADING:
            if self.dispatcher._can_compile:
                self.dispatcher.compile(self.signature.numba)
                self.dispatcher.disable_compile()
            self._run = self.dispatcher


def kernel(
    signature: Signature | tuple[Kind, ...], *, brief: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function that is called from Python and compiled for one `signature`.

    Compiled kernels release the GIL, check no bounds, raise nothing and allocate nothing. A `brief`
    kernel holds the GIL, because acquiring it again would take far longer than the call.
    """
    full = signature if isinstance(signature, Signature) else Signature(None, signature)

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", Kernel(function, full, brief))

    return declare


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a function for kernels, which is inlined where it is called."""
    return cast("Callable[P, R]", _Inlined(function))


def instruction(
    emit: Callable[..., Any],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function for kernels by LLVM code, with an equivalent Python function.

    Parameters
    ----------
    emit
        Called as ``emit(ir, builder, *values)`` to write the LLVM code, with the module
        `llvmlite.ir`. Arrays are passed as pointers to their first byte, all else as 64-bit
        integers; the result is a 64-bit integer, or None if the function returns None.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _Instruction(function, emit))

    return declare
