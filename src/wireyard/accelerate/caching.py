"""Compiled kernels on disk: where they are, whether they fit, and how they are loaded.

The file of a kernel is a line about what it was made from, with a digest of its code, and then the
code: an object file with one function. To load it only LLVM is needed, not Numba, and no value of
Python is read from it. There are two places.

1. The package: shipped code, compiled for a baseline of processor features (`BASELINES`), used if
   it was made from the same sources. Nothing is written or locked for it.
2. The cache of this machine, for its own processor: ``__pycache__`` beside the source, else a
   private folder of the user. Kernels that are in neither place are compiled and stored here.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm

from wireyard.accelerate.declare import Kernel
from wireyard.accelerate.folders import PACKAGE, private_folder, writable

ENTRY: Final = "entry"
"""The function of an object file."""
_ENDING: Final = ".kernel"


# --- loading --------------------------------------------------------------------------------

_ENGINES: Final[list[Any]] = []
"""What holds the memory of loaded code; nothing is unloaded."""


def load_code(code: bytes) -> int:
    """Return the address of the function of an object file."""
    if not _ENGINES:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address(ENTRY))


# --- files ----------------------------------------------------------------------------------


def find_code(kernel: Kernel) -> tuple[bytes, str] | None:
    """Return the code of a kernel and its origin, None if it has to be compiled.

    The origin is ``shipped`` or ``kept``.
    """
    baseline = fitting_baseline()
    if baseline is not None:
        line = _made_from(kernel, baseline)
        if code := _read(shipped_folder() / shipped_name(kernel.py_func), line):
            return code, "shipped"
    line = _made_from(kernel, _this_processor())
    source = _source(kernel.py_func)
    # An image or a site installation may have compiled code in read-only folders.
    for folder in (_folder_of(source.parent), source.parent / "__pycache__"):
        if folder and (code := _read(folder / _kept_name(kernel.py_func, line), line)):
            return code, "kept"
    return None


def is_kept(kernel: Kernel) -> bool:
    """Return whether the code of a kernel can be stored on this machine."""
    line = _made_from(kernel, _this_processor())
    return bool(line) and _folder_of(_source(kernel.py_func).parent) is not None


def keep_code(kernel: Kernel, code: bytes) -> None:
    """Write code to the cache of this machine, if possible."""
    line, folder = _made_from(kernel, _this_processor()), _folder_of(_source(kernel.py_func).parent)
    if not line or folder is None:
        return
    whole = folder / _kept_name(kernel.py_func, line)
    part = whole.with_suffix(f".{os.getpid()}")
    try:
        part.write_bytes(_content(line, code))
        part.replace(whole)
    except OSError:
        part.unlink(missing_ok=True)


def ship_code(kernel: Kernel, folder: Path, code: bytes) -> None:
    """Write code to ship to `folder`."""
    baseline = platform_baseline()
    assert baseline is not None, "compiled for no baseline"
    content = _content(_made_from(kernel, baseline), code)
    (folder / shipped_name(kernel.py_func)).write_bytes(content)


def shipped_name(function: Callable[..., Any]) -> str:
    """Return the name of the file that a function's code is shipped in."""
    return f"{function.__module__.partition('.')[2]}.{function.__qualname__}"


def _kept_name(function: Callable[..., Any], line: bytes) -> str:
    return f"{_source(function).stem}.{function.__qualname__}-{_digest(line)}{_ENDING}"


def _content(line: bytes, code: bytes) -> bytes:
    return b"%s; code %s\n%s" % (line, _digest(code).encode(), code)


def _read(file: Traversable, line: bytes) -> bytes | None:
    """Return the code in a file if it was made from what the line says, and is whole."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    code = data[data.find(b"\n") + 1 :]
    return code if line and data == _content(line, code) else None


def _made_from(kernel: Kernel, target: Baseline) -> bytes:
    """Return the line about what the code of a kernel is made from; empty if it has no source."""
    try:
        sources = _digest(b"\0".join(_sources(kernel.py_func)))
    except OSError:
        return b""
    features = _digest(target.features.encode())
    processor = f"{llvm.get_process_triple()}; {target.cpu}; features {features}"
    return f"{processor}; sources {sources}; {kernel.signature}".encode()


# --- processors -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Baseline:
    """A target of code: LLVM's name of the processor, and its features."""

    cpu: str
    features: str


BASELINES: Final = {
    "x86_64": Baseline(
        "x86-64-v3",
        "avx avx2 bmi bmi2 cmov cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf "
        "sse sse2 sse3 sse4.1 sse4.2 ssse3 xsave",
    ),
    "aarch64": Baseline("generic", ""),
}
"""By the architecture in LLVM's name of a platform. Every 64-bit Arm processor has the features of
``generic``; processors of Intel since 2013 and of AMD since 2015 are x86-64-v3."""


def platform_baseline() -> Baseline | None:
    """Return the baseline of this architecture, None if no code is shipped for it."""
    return BASELINES.get(llvm.get_process_triple().partition("-")[0])


def shipped_folder() -> Traversable:
    """Return the folder of the package for shipped code, which may not exist."""
    return resources.files(PACKAGE) / "compiled"


def shipped_for() -> str | None:
    """Return the platform and the processor of the shipped code, None if there is none."""
    try:
        first = min(shipped_folder().iterdir(), key=lambda file: file.name)
        with first.open("rb") as file:
            return ", ".join(file.readline().decode().split("; ")[:2])
    except (OSError, ValueError):
        return None


@functools.cache
def fitting_baseline() -> Baseline | None:
    """Return the baseline that this processor has, if any.

    None, too, if ``NUMBA_CPU_NAME`` or ``NUMBA_CPU_FEATURES`` set another target.
    """
    baseline = platform_baseline()
    named = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if baseline is None or named != (None, None):
        return None
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM
        return None
    return baseline if all(features.get(name) for name in baseline.features.split()) else None


@functools.cache
def _this_processor() -> Baseline:
    """Return the processor that Numba compiles for here."""
    cpu, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        try:
            features = llvm.get_host_cpu_features().flatten()
        except RuntimeError:  # unknown to LLVM
            features = ""
    return Baseline(cpu or llvm.get_host_cpu_name(), features)


# --- the cache of this machine --------------------------------------------------------------


def cache_folder(source: Path) -> Path | None:
    """Return the writable cache folder for code compiled from `source`, None if there is none.

    It is the first that can be written of ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the source, a
    private folder in the user's cache, and one in the folder for temporary files.
    """
    name = f"{source.parent.name}_{_digest(str(source.parent).encode())}"
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked and (folder := writable(Path(asked, name))):
        return folder
    # A source inside a zip file has no folder.
    if source.parent.is_dir() and (folder := writable(source.parent / "__pycache__")):
        return folder
    return private_folder(name)


@functools.cache
def _folder_of(parent: Path) -> Path | None:
    """Return `cache_folder` for all sources of a folder, determined once."""
    return cache_folder(parent / "source")


# --- sources --------------------------------------------------------------------------------


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _source(function: Callable[..., Any]) -> Path:
    return Path(os.path.abspath(inspect.getfile(function)))


def _sources(function: Callable[..., Any]) -> Iterator[bytes]:
    """Yield a digest of every folder or file whose functions or constants a kernel may use.

    These are the files beside it, above it up to the top of the package, and those of `java` and
    `accelerate`, because formats import nothing else.
    """
    folders = {PACKAGE, f"{PACKAGE}.accelerate", f"{PACKAGE}.java"}
    package = getattr(sys.modules.get(function.__module__), "__package__", None) or ""
    if package.partition(".")[0] == PACKAGE:
        while package:
            folders.add(package)
            package = package.rpartition(".")[0]
    else:
        yield hashlib.sha256(_source(function).read_bytes()).digest()
        yield str(function.__code__.co_firstlineno).encode()
    for folder in sorted(folders):
        yield _digest_of(folder)


@functools.cache
def _digest_of(package: str) -> bytes:
    """Return the digest of all sources of a folder, the same for all of its kernels."""
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    sources = (file.read_bytes() for file in files if file.name.endswith(".py"))
    return hashlib.sha256(b"\0".join(sources)).digest()
