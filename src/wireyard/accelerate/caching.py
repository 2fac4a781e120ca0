"""Where the compiled code of kernels is found and kept.

1. In the package: code that came with it, compiled for a baseline that every processor of a kind
   has (`BASELINES`), taken if the sources and the versions are those that it was compiled from.
   Nothing is written or locked for it.
2. In the cache of this machine, for its own processor: ``__pycache__`` beside the source, else a
   private folder of the user. What is found nowhere is compiled and put here.
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
    compile_once,
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

NUMBA_CONFIG: Final[Any] = config  # its attributes are made at run time, from the environment


# --- code that came with the package --------------------------------------------------------


_PARTS_OF_A_BUILD: Final = 5
"""Versions of Numba, llvmlite and Python, platform, processor: the same in all that is shipped."""


def shipped_folder() -> Traversable:
    """Return the folder of the package that code comes with, if any does."""
    return resources.files(PACKAGE) / "compiled"


def shipped_for() -> str | None:
    """Return what the code that came with the package was compiled for, None if none came."""
    try:
        first = min(shipped_folder().iterdir(), key=lambda file: file.name)
        with first.open("rb") as file:
            parts = file.readline().decode().split("; ")
    except (OSError, ValueError):
        return None
    return ", ".join(parts[:_PARTS_OF_A_BUILD])


@functools.cache
def fitting_baseline() -> Baseline | None:
    """Return the baseline that this processor has, None if there is none or another is asked for.

    ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` ask for another.
    """
    baseline = platform_baseline()
    if baseline is None or NUMBA_CONFIG.CPU_NAME or NUMBA_CONFIG.CPU_FEATURES is not None:
        return None
    try:
        found = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM
        return None
    return baseline if all(found.get(name) for name in baseline.features.split()) else None


# --- where compiled code is kept ------------------------------------------------------------


def cache_folder(source: Path) -> Path | None:
    """Return the folder to keep code compiled from `source` in, or None if there is none.

    ``NUMBA_CACHE_DIR`` is taken first, then ``__pycache__`` beside the source, then a private
    folder in the user's cache, then one in the folder for temporary files.
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
    """Return whether nobody else could have put code for us to run into `folder`."""
    found = folder.lstat()
    return owner is None or (
        stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o022
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _sources(function: Callable[..., Any]) -> Iterator[bytes]:
    """Yield a digest of every folder or file that a kernel may take pieces or constants from.

    Those are the files beside it, above it up to the top of the package, and those of `java` and
    `accelerate`, for formats import nothing else. Numba itself looks at the kernel's own file only,
    so a changed piece or a changed constant would leave the old code in use.
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
    """Return the digest of all sources of a folder, which most of its kernels share."""
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    sources = (file.read_bytes() for file in files if file.name.endswith(".py"))
    return hashlib.sha256(b"\0".join(sources)).digest()


class _Place(caching._CacheLocator):
    """Where one kernel's code is kept, and which sources it came from."""

    def __init__(self, function: Callable[..., Any], source: Path) -> None:
        self._py_file = str(source)
        self._source = source
        self._line = function.__code__.co_firstlineno
        self._stamp = _digest(b"\0".join(_sources(function)))
        self.beside = source.parent / "__pycache__"

    @functools.cached_property
    def folder(self) -> Path | None:
        """The folder to write to; looked for when shipped code does not do."""
        return cache_folder(self._source)

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

    def reduce(self, compiled: Any) -> Any:
        """Return compiled code to be written: machine code, and the names in it.

        Numba keeps the bitcode too, for other functions to inline. Nothing inlines a kernel, and
        reading it was half of the time that a kernel takes to load.
        """
        (name, kind, (code, bitcode)), *rest = super().reduce(compiled)  # type: ignore[no-untyped-call]
        return (name, kind, (code, _names_alone(bitcode))), *rest


def _names_alone(bitcode: bytes) -> bytes:
    """Return a module that defines the same names, which is where Numba looks them up."""
    module, whole = ir.Module(), llvm.parse_bitcode(bitcode)
    for symbol in (*whole.functions, *whole.global_variables):
        if not symbol.is_declaration:
            ir.GlobalVariable(module, ir.IntType(8), symbol.name).initializer = ir.IntType(8)(0)
    return llvm.parse_assembly(str(module)).as_bitcode()  # type: ignore[no-any-return]


class KernelCache(caching.FunctionCache):
    """The compiled code of one kernel. It is allowed to fail: then the kernel is compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # The constructor of the base looks for a folder to write to; shipped code needs none.
        self._py_func, self._name = function, repr(function)
        self._impl = _Keep(function)  # type: ignore[no-untyped-call]
        self._place: _Place = self._impl.locator
        self.origin = "compiled"
        """Where the code came from: shipped, kept, or compiled in this process."""
        self.enable()  # type: ignore[no-untyped-call]

    @functools.cached_property
    def _kept(self) -> Any:
        return self._file_in(self._place.get_cache_path())

    @property
    def cache_path(self) -> str:
        """The folder that code is written to."""
        return self._place.get_cache_path()

    @property
    def keeps(self) -> bool:
        """Whether there is a folder to keep code in."""
        return self._place.folder is not None

    def _file_in(self, folder: str) -> Any:
        return caching.IndexDataCacheFile(  # type: ignore[no-untyped-call]
            folder, self._impl.filename_base, self._place.get_source_stamp()
        )

    def find(self, signature: Any, target: Any) -> Any:
        """Return the code for a signature, loaded, or None if it has to be compiled.

        Numba's own caches make its compiler ready first, which takes a quarter of a second; code
        that is compiled already does not need it.
        """
        found, origin = self._load_shipped(signature, target), "shipped"
        if found is None:
            found, origin = self._load_from(self._kept, signature, target), "kept"
        if found is None and self.keeps:
            # An image or a site installation may bring compiled code in folders we cannot write.
            found = self._load_from(self._file_in(str(self._place.beside)), signature, target)
        self.origin = self.origin if found is None else origin
        return found

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature; what the package lacks is compiled in parallel first."""
        found = self.find(sig, target_context)
        ours = self._py_func.__module__.partition(".")[0] == PACKAGE
        if found is None and ours and self.keeps and not is_compiler() and compile_once():
            found = self.find(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code, if it can be kept."""
        self._cache_file = self._kept
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _load_from(self, file: Any, signature: Any, target: Any) -> Any:
        try:
            payload = file.load(self._index_key(signature, target.codegen()))  # type: ignore[no-untyped-call]
            return None if payload is None else self._impl.rebuild(target, payload)
        except Exception:  # a damaged file may break anywhere in unpickling
            with contextlib.suppress(OSError):
                file.flush()
        return None

    def ship(self, folder: Path, signature: Any, compiled: Any) -> None:
        """Write code to ship to `folder`: a line that says what it was made from, and the code."""
        baseline = platform_baseline()
        assert baseline is not None, "compiled for no baseline"
        made_from = self._made_from(signature, baseline)
        # The annotation is a text for people, in which addresses differ from build to build.
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
        except Exception:  # there is none, or it is damaged
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
