"""The cache of compiled kernels, in two places.

1. The package: shipped code, compiled for a baseline of processor features (`BASELINES`), used if
   sources and versions are the same as when it was compiled. Nothing is written or locked for it.
2. The cache of this machine, for its own processor: ``__pycache__`` beside the source, else a
   private folder of the user. Kernels that are in neither place are compiled and stored here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import caching, config
from numba.core.serialize import dumps

from wireyard.accelerate.compiling import (
    PACKAGE,
    Baseline,
    compile_loaded,
    is_compiler,
    platform_baseline,
)

__all__ = [
    "NUMBA_CONFIG",
    "KernelCache",
    "cache_folder",
    "fitting_baseline",
    "shipped_folder",
    "shipped_for",
]

NUMBA_CONFIG: Final[Any] = config  # its attributes are set at run time, from the environment


# --- shipped code ---------------------------------------------------------------------------


_PARTS_OF_A_BUILD: Final = 5
"""Versions of Numba, llvmlite and Python, platform, processor: the same for all shipped code."""


def shipped_folder() -> Traversable:
    """Return the folder of the package for shipped code, which may not exist."""
    return resources.files(PACKAGE) / "compiled"


def shipped_for() -> str | None:
    """Return the versions and the processor of the shipped code, None if there is none."""
    try:
        first = min(shipped_folder().iterdir(), key=lambda file: file.name)
        with first.open("rb") as file:
            parts = file.readline().decode().split("; ")
    except (OSError, ValueError):
        return None
    return ", ".join(parts[:_PARTS_OF_A_BUILD])


@functools.cache
def fitting_baseline() -> Baseline | None:
    """Return the baseline that this processor has, if any.

    None, too, if ``NUMBA_CPU_NAME`` or ``NUMBA_CPU_FEATURES`` set another target.
    """
    baseline = platform_baseline()
    if baseline is None or NUMBA_CONFIG.CPU_NAME or NUMBA_CONFIG.CPU_FEATURES is not None:
        return None
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM
        return None
    return baseline if all(features.get(name) for name in baseline.features.split()) else None


# --- the cache of this machine --------------------------------------------------------------


def cache_folder(source: Path) -> Path | None:
    """Return the writable cache folder for code compiled from `source`, None if there is none.

    It is the first that can be written of ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the source, a
    private folder in the user's cache, and one in the folder for temporary files.
    """
    name = f"{source.parent.name}_{_digest(str(source.parent).encode())}"
    if NUMBA_CONFIG.CACHE_DIR and (folder := _writable(Path(NUMBA_CONFIG.CACHE_DIR, name))):
        return folder
    # A source inside a zip file has no folder.
    if source.parent.is_dir() and (folder := _writable(source.parent / "__pycache__")):
        return folder
    owner = os.getuid() if hasattr(os, "getuid") else None
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in (Path(user_cache), Path(tempfile.gettempdir())):
        private = base / f"{PACKAGE}-{owner}"
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
    """Return whether only this user can write to `folder`, whose code we would run."""
    status = folder.lstat()
    return owner is None or (
        stat.S_ISDIR(status.st_mode) and status.st_uid == owner and not status.st_mode & 0o022
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _sources(function: Callable[..., Any]) -> Iterator[bytes]:
    """Yield a digest of every folder or file whose functions or constants a kernel may use.

    These are the files beside it, above it up to the top of the package, and those of `java` and
    `accelerate`, because formats import nothing else. Numba itself checks the kernel's own file
    only, so it would keep using old code after an inlined function or a constant has changed.
    """
    folders = {PACKAGE, f"{PACKAGE}.accelerate", f"{PACKAGE}.java"}
    package = getattr(sys.modules.get(function.__module__), "__package__", None) or ""
    if package.partition(".")[0] == PACKAGE:
        while package:
            folders.add(package)
            package = package.rpartition(".")[0]
    else:
        yield hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).digest()
    for folder in sorted(folders):
        yield _digest_of(folder)


@functools.cache
def _digest_of(package: str) -> bytes:
    """Return the digest of all sources of a folder, the same for all of its kernels."""
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    sources = (file.read_bytes() for file in files if file.name.endswith(".py"))
    return hashlib.sha256(b"\0".join(sources)).digest()


class _Locator(caching._CacheLocator):
    """The cache folder of one kernel, and the digest of its sources."""

    def __init__(self, function: Callable[..., Any], source: Path) -> None:
        self._py_file = str(source)
        self._source = source
        self._line = function.__code__.co_firstlineno
        self._stamp = _digest(b"\0".join(_sources(function)))
        self.beside = source.parent / "__pycache__"

    @functools.cached_property
    def folder(self) -> Path | None:
        """The folder to write to, searched only if there is no shipped code."""
        return cache_folder(self._source)

    def get_cache_path(self) -> str:
        return str(self.folder or self.beside)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        # Numba writes its index before the code. If versions shared names, another process could
        # read the new index and run the old code.
        return f"{self._line}-{self._stamp}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator | None:
        try:
            return cls(function, Path(os.path.abspath(file)))
        except OSError:  # there is no source to identify it by
            return None


class _Serializer(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012

    def reduce(self, compiled: Any) -> Any:
        """Return compiled code to write: machine code, and the names that it defines.

        Numba also stores the bitcode, so that other functions can inline it. Kernels are never
        inlined, and reading the bitcode took half of their loading time.
        """
        (name, kind, (code, bitcode)), *rest = super().reduce(compiled)  # type: ignore[no-untyped-call]
        return (name, kind, (code, _names_alone(bitcode))), *rest


def _names_alone(bitcode: bytes) -> bytes:
    """Return a module that only defines the same names, because Numba looks them up there."""
    module, whole = ir.Module(), llvm.parse_bitcode(bitcode)
    for symbol in (*whole.functions, *whole.global_variables):
        if not symbol.is_declaration:
            ir.GlobalVariable(module, ir.IntType(8), symbol.name).initializer = ir.IntType(8)(0)
    return llvm.parse_assembly(str(module)).as_bitcode()  # type: ignore[no-any-return]


class KernelCache(caching.FunctionCache):
    """The cache of one kernel's compiled code. If it fails, the kernel is compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # The constructor of the base searches a folder to write to; shipped code needs none.
        self._py_func, self._name = function, repr(function)
        self._impl = _Serializer(function)  # type: ignore[no-untyped-call]
        self._place: _Locator = self._impl.locator
        self.origin = "compiled"
        """Origin of the code: ``shipped``, ``kept`` (cached), or ``compiled`` in this process."""
        self.enable()  # type: ignore[no-untyped-call]

    @functools.cached_property
    def _kept(self) -> Any:
        return self._file_in(self._place.get_cache_path())

    @property
    def cache_path(self) -> str:
        """The cache folder."""
        return self._place.get_cache_path()

    @property
    def keeps(self) -> bool:
        """Whether there is a writable cache folder."""
        return self._place.folder is not None

    def _file_in(self, folder: str) -> Any:
        return caching.IndexDataCacheFile(  # type: ignore[no-untyped-call]
            folder, self._impl.filename_base, self._place.get_source_stamp()
        )

    def find(self, signature: Any, target: Any) -> Any:
        """Return the loaded code for a signature, or None if it has to be compiled.

        Numba's own caches initialize its compiler first, which takes a quarter of a second and is
        not needed for compiled code.
        """
        code, origin = self._load_shipped(signature, target), "shipped"
        if code is None:
            code, origin = self._load_from(self._kept, signature, target), "kept"
        if code is None and self.keeps:
            # An image or a site installation may have compiled code in read-only folders.
            code = self._load_from(self._file_in(str(self._place.beside)), signature, target)
        self.origin = self.origin if code is None else origin
        return code

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature, after compiling in parallel what else is missing."""
        code = self.find(sig, target_context)
        ours = self._py_func.__module__.partition(".")[0] == PACKAGE
        if code is None and ours and self.keeps and not is_compiler() and compile_loaded():
            code = self.find(sig, target_context)
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write compiled code to the cache, if possible."""
        self._cache_file = self._kept
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _load_from(self, file: Any, signature: Any, target: Any) -> Any:
        try:
            payload = file.load(self._index_key(signature, target.codegen()))  # type: ignore[no-untyped-call]
            return None if payload is None else self._impl.rebuild(target, payload)
        except Exception:  # unpickling a damaged file may raise anything
            with contextlib.suppress(OSError):
                file.flush()
        return None

    def ship(self, folder: Path, signature: Any, compiled: Any) -> None:
        """Write code to ship to `folder`: a line with its versions and sources, then the code."""
        baseline = platform_baseline()
        assert baseline is not None, "compiled for no baseline"
        made_from = self._made_from(signature, baseline)
        # The annotation is text for display, whose addresses differ between builds.
        plain = compiled._replace(type_annotation="")
        payload = dumps(self._impl.reduce(plain))  # type: ignore[no-untyped-call]
        (folder / self._shipped_name()).write_bytes(made_from + payload)

    def _load_shipped(self, signature: Any, target: Any) -> Any:
        baseline = fitting_baseline()
        if baseline is None:
            return None
        try:
            data = (shipped_folder() / self._shipped_name()).read_bytes()
            made_from = self._made_from(signature, baseline)
            if not data.startswith(made_from):
                return None
            return self._impl.rebuild(target, pickle.loads(data[len(made_from) :]))
        except Exception:  # missing or damaged
            return None

    def _shipped_name(self) -> str:
        return f"{self._py_func.__module__.partition('.')[2]}.{self._py_func.__qualname__}"

    def _made_from(self, signature: Any, baseline: Baseline) -> bytes:
        parts = (
            f"numba {numba.__version__}",
            f"llvmlite {llvmlite.__version__}",
            str(sys.implementation.cache_tag),
            llvm.get_process_triple(),
            baseline.cpu,
            f"sources {self._place.get_source_stamp()}",
            str(signature),
        )
        return ("; ".join(parts) + "\n").encode()
