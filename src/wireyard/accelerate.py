"""The one door to Numba: how kernels are declared, compiled when first called, and cached.

Three decorators. A `kernel` is called from Python on arrays, a `piece` only from kernels, and an
`instruction` is a piece given as LLVM code with a Python twin beside it. With
``NUMBA_DISABLE_JIT=1`` all three hand back plain Python: kernels then run over numpy arrays, and
instructions are their twins.

The compiled code is kept beside the package, else in a private folder of the user, else nowhere;
where nothing can be written, kernels still compile in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import caching, config, event
from numba.extending import intrinsic

__all__ = [
    "BOOL",
    "COMPILED",
    "I32",
    "I64",
    "READ",
    "TEXT",
    "array",
    "cache_folder",
    "instruction",
    "kernel",
    "piece",
    "print_notice",
    "set_notice",
]

P = ParamSpec("P")
R = TypeVar("R")

_CONFIG: Final[Any] = config  # its attributes are made at run time, from the environment

COMPILED: Final[bool] = not _CONFIG.DISABLE_JIT
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
_NOTICE_AFTER_S: Final = 0.3
_COMPILING: Final = threading.Lock()
_PACKAGE: Final = __name__.partition(".")[0]


def array(dtype: str, axes: int = 1, *, readonly: bool = False) -> Any:
    """Return the signature type of a contiguous array of `dtype`."""
    return numba.types.Array(getattr(numba.types, dtype), axes, "C", readonly=readonly)


# --- kernels and pieces ---------------------------------------------------------------------


def kernel(*signatures: Any, brief: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function called from Python; its `signatures` compile together at the first call.

    Kernels release the GIL, check no bounds, raise nothing and allocate nothing. A `brief` one
    keeps the GIL: to hand it to another thread and wait for it again would take far longer.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        if not COMPILED:
            return _plain(function)
        dispatcher: Any = numba.njit(**{**_OPTIONS, "nogil": not brief})(function)
        with contextlib.suppress(RuntimeError):  # typed at a prompt: compiled, but not kept
            dispatcher._cache = _Cache(function)
        _NOTICE.kernels.add(dispatcher)

        def compile_first(*args: Any, **named: Any) -> Any:
            with _COMPILING:
                if dispatcher._can_compile:
                    for signature in signatures:
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


# --- where compiled code is kept ------------------------------------------------------------


def cache_folder(source: Path) -> Path | None:
    """Return the folder to keep code compiled from `source` in, or None if there is none.

    ``NUMBA_CACHE_DIR`` is taken first, then ``__pycache__`` beside the source, then a private
    folder in the user's cache, then one in the folder for temporary files.
    """
    name = f"{source.parent.name}_{_digest(str(source.parent).encode())}"
    if _CONFIG.CACHE_DIR and (folder := _writable(Path(_CONFIG.CACHE_DIR, name))):
        return folder
    # A source inside a zip file has no folder.
    if source.parent.is_dir() and (folder := _writable(source.parent / "__pycache__")):
        return folder
    owner = os.getuid() if hasattr(os, "getuid") else None
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in (Path(user_cache), Path(tempfile.gettempdir())):
        private = base / f"{_PACKAGE}-{owner}"
        # A user unknown to the system has no home, and "~" is left as it is.
        if base.is_absolute() and _writable(private) and _is_private(private, owner):
            return _writable(private / name)
    return None


def _writable(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def _is_private(folder: Path, owner: int | None) -> bool:
    """Tell whether nobody else could have put code for us to run into `folder`."""
    found = folder.lstat()
    return owner is None or (
        stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o022
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _sources(function: Callable[..., Any]) -> Iterator[bytes]:
    """Yield every source a kernel may take pieces or constants from.

    Those are the files beside it, above it up to the top of the package, and those of `java`,
    for formats import nothing else. Numba itself looks at the kernel's own file only, so a
    changed piece or a changed constant would leave the old code in use.
    """
    folders = {_PACKAGE, f"{_PACKAGE}.java"}
    package = getattr(sys.modules.get(function.__module__), "__package__", None) or ""
    if package.partition(".")[0] == _PACKAGE:
        while package:
            folders.add(package)
            package = package.rpartition(".")[0]
    else:
        yield Path(inspect.getfile(function)).read_bytes()
    for folder in sorted(folders):
        yield from _read_folder(folder)


@functools.cache
def _read_folder(package: str) -> tuple[bytes, ...]:
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    return tuple(file.read_bytes() for file in files if file.name.endswith(".py"))


class _Place(caching._CacheLocator):
    """Where one kernel's code is kept, and which sources it came from."""

    def __init__(self, function: Callable[..., Any], source: Path) -> None:
        self._py_file = str(source)
        self._line = function.__code__.co_firstlineno
        self._stamp = _digest(b"\0".join(_sources(function)))
        self.beside = source.parent / "__pycache__"
        self.folder = cache_folder(source)

    def get_cache_path(self) -> str:
        return str(self.folder or self.beside)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        # Numba writes its index before the code; were names shared between versions, another
        # process could read the new index and run the old code.
        return f"{self._line}-{self._stamp}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Place | None:
        try:
            return cls(function, Path(os.path.abspath(file)))
        except OSError:  # there is no source to know it by
            return None


class _Keep(caching.CompileResultCacheImpl):
    _locator_classes = [_Place]  # noqa: RUF012


class _Cache(caching.FunctionCache):
    """A cache that is allowed to fail: then the kernel is compiled, and that is all."""

    _impl_class = _Keep

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        place: _Place = self._impl.locator
        self.keeps = place.folder is not None
        # An image or a site installation may bring compiled code in folders we cannot write.
        self._installed = caching.IndexDataCacheFile(  # type: ignore[no-untyped-call]
            str(place.beside), self._impl.filename_base, place.get_source_stamp()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found, own = None, self._cache_file
        for file in (own, self._installed):
            self._cache_file = file
            try:
                found = found or super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            except Exception:  # a damaged file may break anywhere in unpickling
                with contextlib.suppress(OSError):
                    file.flush()  # type: ignore[no-untyped-call]
        self._cache_file = own
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


# --- the line that says why the first call takes so long ------------------------------------


def print_notice(text: str) -> None:
    """Print `text` as one line to standard error."""
    print(f"{_PACKAGE}: {text}", file=sys.stderr, flush=True)


def set_notice(show: Callable[[str], None]) -> None:
    """Have `show` called, instead of `print_notice`, when kernels take time to compile."""
    _NOTICE.show = show


class _Notice(event.Listener):
    """Says once a process that kernels are compiled, if that takes longer than a blink."""

    def __init__(self) -> None:
        self.kernels: set[Any] = set()
        self.show: Callable[[str], None] = print_notice
        self._timer: threading.Timer | None = None
        self._said = False

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"] not in self.kernels or self._said or self._timer:
            return
        kept = getattr(event.data["dispatcher"]._cache, "keeps", False)
        self._timer = threading.Timer(_NOTICE_AFTER_S, self._say, (kept,))
        self._timer.daemon = True
        self._timer.start()

    def on_end(self, event: Any) -> None:
        if event.data["dispatcher"] in self.kernels and self._timer:
            self._timer.cancel()
            self._timer = None

    def _say(self, kept: bool) -> None:
        self._said = True
        often = "once" if kept else "again: no folder is writable to keep them"
        self.show(f"compiling kernels ({often}), this takes some seconds ...")


_NOTICE: Final = _Notice()
event.register("numba:compile", _NOTICE)  # type: ignore[no-untyped-call]
