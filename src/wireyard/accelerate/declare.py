"""The decorators for compiled functions, and the types of their signatures.

Nothing here loads Numba, and to call compiled code does not either: it is called by its address.
Kernels, and the functions that are inlined in them, become Numba's only to be compiled.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from typing import (
    Annotated,
    Any,
    Final,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

COMPILED: Final[bool] = os.environ.get("NUMBA_DISABLE_JIT", "") in ("", "0")
"""False if ``NUMBA_DISABLE_JIT`` is set: then kernels are plain Python."""


# --- types of signatures ----------------------------------------------------------------------


class Kind(ABC):
    """A type in a signature."""

    @abstractmethod
    def __str__(self) -> str: ...

    @functools.cached_property
    @abstractmethod
    def numba(self) -> Any:
        """Numba's type."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of words (`pack`)."""

    @abstractmethod
    def pack(self, value: Any, words: list[int]) -> None:
        """Append a value as words, as the entry of compiled code reads them.

        An integer is a word. An array is the address of its first element and the length of each
        axis. A record is its fields. A value of another type raises `TypeError`.
        """


@dataclass(frozen=True, eq=False)
class _Scalar(Kind):
    name: str

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def numba(self) -> Any:
        return getattr(_numba_types(), self.name)

    @property
    def size(self) -> int:
        return 1

    def pack(self, value: Any, words: list[int]) -> None:
        words.append(index(value))


@dataclass(frozen=True, eq=False)
class _Array(Kind):
    dtype: np.dtype[Any]
    axes: int
    readonly: bool

    def __str__(self) -> str:
        return f"{'read-only ' * self.readonly}{self.dtype}[{self.axes}]"

    @functools.cached_property
    def numba(self) -> Any:
        types = _numba_types()
        element = getattr(types, "boolean" if self.dtype == np.bool_ else self.dtype.name)
        return types.Array(element, self.axes, "C", readonly=self.readonly)

    @property
    def size(self) -> int:
        return 1 + self.axes

    def pack(self, value: Any, words: list[int]) -> None:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} is no {self}")
        flags, shape = value.flags, value.shape
        is_plain = flags.c_contiguous and flags.aligned and (self.readonly or flags.writeable)
        if value.dtype != self.dtype or len(shape) != self.axes or not is_plain:
            raise TypeError(f"{value.dtype}[{len(shape)}] is no plain {self}")
        words.append(value.ctypes.data)
        words.extend(shape)


@dataclass(frozen=True, eq=False)
class _Record(Kind):
    kind: type

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))})"

    @functools.cached_property
    def fields(self) -> tuple[Kind, ...]:
        """The types of the fields."""
        return tuple(map(_kind_of, get_type_hints(self.kind).values()))

    @functools.cached_property
    def numba(self) -> Any:
        types, fields = _numba_types(), [field.numba for field in self.fields]
        if len(set(fields)) == 1:  # Numba has another type for these
            return types.NamedUniTuple(fields[0], len(fields), self.kind)
        return types.NamedTuple(fields, self.kind)

    @property
    def size(self) -> int:
        return sum(field.size for field in self.fields)

    def pack(self, value: Any, words: list[int]) -> None:
        if not isinstance(value, self.kind):
            raise TypeError(f"a {type(value).__name__} is no {self.kind.__name__}")
        for field, one in zip(self.fields, cast("tuple[Any, ...]", value), strict=True):
            field.pack(one, words)


class Signature:
    """The types of a function's result, if it has one, and arguments, by its annotations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function, include_extras=True)
        result = hints.pop("return")
        self.result = None if result is type(None) else _kind_of(result)
        self.arguments = tuple(map(_kind_of, hints.values()))

    def __str__(self) -> str:
        return f"{self.result}({', '.join(map(str, self.arguments))})"

    @property
    def numba(self) -> Any:
        """Numba's signature."""
        arguments = tuple(one.numba for one in self.arguments)
        return arguments if self.result is None else self.result.numba(*arguments)

    def caller(self, address: int, name: str, brief: bool) -> Callable[..., Any]:
        """Return a function that calls the compiled code at an address; parameters as `kernel`."""
        # The code is called with a buffer of words, in the first of which it leaves its result.
        buffer = ctypes.c_int64 * max(sum(one.size for one in self.arguments), 1)
        prototype = ctypes.PYFUNCTYPE if brief else ctypes.CFUNCTYPE
        entry = prototype(ctypes.c_int32, ctypes.c_void_p)(address)
        arguments, convert = self.arguments, bool if self.result is _BOOL else int

        def call(*values: Any) -> Any:
            words: list[int] = []
            for kind, value in zip(arguments, values, strict=True):
                kind.pack(value, words)
            packed = buffer(*words)
            if status := entry(packed):
                raise RuntimeError(f"{name}: compiled code failed with status {status}")
            return None if self.result is None else convert(packed[0])

        return call


def _numba_types() -> Any:
    from numba import types

    return types


_BOOL: Final = _Scalar("boolean")
_INTEGER: Final = _Scalar("int64")


@functools.cache
def _kind_of(hint: Any) -> Kind:
    """Return the type in compiled code of what is annotated so.

    That is an integer, a flag, an array type of `wireyard.arrays`, or a NamedTuple of these.
    """
    if hint is int or hint is bool:
        return _BOOL if hint is bool else _INTEGER
    if get_origin(hint) is Annotated:
        return replace(cast("_Array", _kind_of(hint.__origin__)), readonly=True)
    if get_origin(hint) is np.ndarray:
        shape, dtype = get_args(hint)
        return _Array(np.dtype(*get_args(dtype)), len(get_args(shape)), readonly=False)
    return _Record(hint)


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

    def __init__(self, function: Callable[..., Any], *, brief: bool = False) -> None:
        super().__init__(function)
        self._brief = brief
        self.origin: str | None = None
        """Origin of the code (`compiling.code_of`), None before it is loaded."""
        self._run: Callable[..., Any] = self._load_and_run if COMPILED else super().__call__
        if COMPILED:
            KERNELS.append(self)

    @functools.cached_property
    def signature(self) -> Signature:
        """The types of its arguments and its result."""
        return Signature(self.py_func)

    def __call__(self, *args: Any) -> Any:
        """Run the compiled code, or the function where nothing is compiled."""
        return self._run(*args)

    def _load_and_run(self, *args: Any) -> Any:
        self.load()
        return self._run(*args)

    def load(self) -> None:
        """Load the compiled code, or compile it; calls run it from now on."""
        with _LOADING:
            if self.origin is None:
                from wireyard.accelerate.caching import load_code
                from wireyard.accelerate.compiling import code_of

                code, origin = code_of(self)
                name = self.py_func.__qualname__
                self._run = self.signature.caller(load_code(code), name, self._brief)
                self.origin = origin


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a function that is called from Python and compiled for the types of its annotations.

    Compiled kernels release the GIL, check no bounds, raise nothing and allocate nothing.
    """
    return cast("Callable[P, R]", Kernel(function))


def brief_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Declare a kernel that holds the GIL: to acquire it again takes far longer than the call."""
    return cast("Callable[P, R]", Kernel(function, brief=True))


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
