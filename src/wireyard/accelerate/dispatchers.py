"""Declared functions as Numba's objects: dispatchers and intrinsics."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Final

import numba
from llvmlite import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from wireyard.accelerate.caching import KernelCache

__all__ = ["inlined_dispatcher", "instruction_intrinsic", "kernel_dispatcher", "type_of"]

# Without reference counts ("_nrt"), moving a short text takes a fifth of the time.
_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
}
_NO_ADDRESS: Final = 1


class _NoEnvironment:
    """The code generator, for a function that raises nothing and so needs no objects of Python."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: there is no machine code yet that it could be written to."""


class _InlinedCode(JITCodeLibrary):
    """The code of an inlined function: it is linked into kernels, and optimized there alone.

    Numba optimizes every function by itself, with all that is inlined in it, and makes machine code
    of it, which took more than half of the time to compile our kernels.
    """

    @property
    def codegen(self) -> Any:
        """The code generator."""
        return _NoEnvironment(self._codegen)

    def finalize(self) -> None:
        """Link what is inlined in the function."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Finish the code; it is never called by address."""
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return _NO_ADDRESS


class _InlinedCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        library = library or _InlinedCode(target.codegen(), "inlined")  # type: ignore[no-untyped-call]
        super().__init__(typing, target, library, *rest)  # type: ignore[no-untyped-call]


def kernel_dispatcher(function: Callable[..., Any], brief: bool) -> Any:
    """Return the dispatcher of a kernel, with its cache."""
    dispatcher: Any = numba.njit(**{**_OPTIONS, "nogil": not brief})(function)
    with contextlib.suppress(RuntimeError):  # without a source file, code is not cached
        dispatcher._cache = KernelCache(function)
    return dispatcher


def inlined_dispatcher(function: Callable[..., Any]) -> Any:
    """Return the dispatcher of a function that is called from compiled code only."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {**_OPTIONS, **wrappers, "forceinline": True, "pipeline_class": _InlinedCompiler}
    return numba.njit(**options)(function)


def instruction_intrinsic(function: Callable[..., Any], emit: Callable[..., Any]) -> Any:
    """Return a function whose code `emit` writes, as Numba's intrinsic."""
    names = inspect.signature(function)
    returns_none = inspect.get_annotations(function)["return"] in ("None", None)
    integer = numba.types.int64

    def define(context: Any, *types: Any) -> Any:
        arguments = [kind if isinstance(kind, numba.types.Array) else integer for kind in types]
        result = numba.types.none if returns_none else integer

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, numba.types.Array)
                else value
                for kind, value in zip(signature.args, args, strict=True)
            ]
            value = emit(ir, builder, *values)
            return context.get_dummy_value() if returns_none else value

        return result(*arguments), generate

    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(define)["__signature__"] = names.replace(parameters=[first, *names.parameters.values()])
    define.__name__, define.__doc__ = function.__name__, function.__doc__
    return intrinsic(define)


def type_of(value: Any) -> Any:
    """Return Numba's type of an intrinsic."""
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)
