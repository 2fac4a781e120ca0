"""Declared functions as Numba's objects, and the code that it makes of kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import numba
from llvmlite import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from wireyard.accelerate.caching import ENTRY
from wireyard.accelerate.declare import Signature

# Without reference counts ("_nrt"), moving a short text takes a fifth of the time.
_OPTIONS: Final[dict[str, Any]] = {
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
}
_NO_ADDRESS: Final = 1
_WORD: Final = ir.IntType(64)


class _NoEnvironment:
    """The code generator, for a function that raises nothing and so needs no objects of Python."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: there is no machine code yet that it could be written to."""


class _InlinedCode(JITCodeLibrary):
    """The code of a function that is linked into the entry of a kernel, and optimized there alone.

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

    def emit(self) -> bytes:
        """Optimize the code and return it as an object file, whose only name is the entry."""
        self.finalize()
        module = self._final_module
        for symbol in (*module.functions, *module.global_variables):
            if not symbol.is_declaration and symbol.name != ENTRY:
                symbol.linkage = "internal"
        self._optimize_final_module()  # type: ignore[no-untyped-call]
        module.verify()
        unknown = [each.name for each in module.functions if each.is_declaration]
        if unknown := [name for name in unknown if not name.startswith("llvm.")]:
            raise NotImplementedError(f"a kernel calls {', '.join(unknown)}, which is not in it")
        return self._codegen._tm.emit_object(module)  # type: ignore[no-any-return]


class _InlinedCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        library = library or _InlinedCode(target.codegen(), "inlined")  # type: ignore[no-untyped-call]
        super().__init__(typing, target, library, *rest)  # type: ignore[no-untyped-call]


_INLINED: Final[dict[str, Any]] = {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _InlinedCompiler,
}


def compile_kernel(function: Callable[..., Any], signature: Signature) -> bytes:
    """Return the code of a kernel as an object file with the function `ENTRY`.

    It is called with the address of words, packed by `Kind.pack`, leaves the result in the first,
    and returns a status, which is 0.
    """
    with global_compiler_lock:
        dispatcher: Any = numba.njit(**_OPTIONS, **_INLINED)(function)
        dispatcher.compile(signature.numba)
        (compiled,) = dispatcher.overloads.values()
        library = _InlinedCode(cpu_target.target_context.codegen(), ENTRY)  # type: ignore[no-untyped-call]
        library.add_ir_module(_entry(compiled.fndesc))  # type: ignore[no-untyped-call]
        library.add_linking_library(compiled.library)  # type: ignore[no-untyped-call]
        return library.emit()


def _entry(made: Any) -> Any:
    """Return a module with the entry, which calls a compiled function."""
    context = cpu_target.target_context
    module = context.create_module(ENTRY)
    convention = context.call_conv
    called = ir.Function(
        module, convention.get_function_type(made.restype, made.argtypes), made.llvm_func_name
    )
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [_WORD.as_pointer()]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    words = _load_words(builder, entry.args[0])
    values = [_unpacked(context, builder, kind, words) for kind in made.argtypes]
    status, result = convention.call_function(builder, called, made.restype, made.argtypes, values)
    if made.restype is not numba.types.none:
        builder.store(builder.zext(result, _WORD), entry.args[0])
    builder.ret(status.code)
    return module


def _load_words(builder: Any, address: Any) -> Iterator[Any]:
    for number in count():
        yield builder.load(builder.gep(address, [_WORD(number)]))


def _unpacked(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """Return a value that `Kind.pack` has packed."""
    if isinstance(kind, numba.types.Array):
        element = context.get_data_type(kind.dtype)
        first = builder.inttoptr(next(words), element.as_pointer())
        shape = [next(words) for _ in range(kind.ndim)]
        size = context.get_abi_sizeof(element)
        strides = [_WORD(size)]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        value = make_array(kind)(context, builder)  # type: ignore[no-untyped-call]
        populate_array(value, first, shape, strides, size, None)  # type: ignore[no-untyped-call]
        return value._getvalue()
    if isinstance(kind, numba.types.BaseTuple):
        kinds: Any = kind
        fields = [_unpacked(context, builder, each, words) for each in kinds.types]
        return context.make_tuple(builder, kind, fields)
    return builder.trunc(next(words), context.get_value_type(kind))


def inlined_dispatcher(function: Callable[..., Any]) -> Any:
    """Return the dispatcher of a function that is called from compiled code only."""
    return numba.njit(**_OPTIONS, **_INLINED, forceinline=True)(function)


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
