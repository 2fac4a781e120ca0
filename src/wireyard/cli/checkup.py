"""What wireyard needs on this machine, looked at piece by piece."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from wireyard import __version__
from wireyard.errors import WireError
from wireyard.formats import get_format, names

__all__ = ["Check", "check_all"]

_OLDEST_PYTHON = (3, 11)
_CORE = ("pyarrow", "numpy", "numba", "click", "rich", "fsspec")
_OLDEST_PYSPARK = (4, 3)
_FIRST_PANDAS_TOO_NEW = 3
_INSTALL_SPARK = "pip install 'wireyard[spark]'"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `advice` is what to type, None if there is nothing to do."""

    name: str
    found: str
    advice: str | None = None
    needed: bool = True


def check_all() -> Iterator[Check]:
    """Yield the findings, what everything needs first."""
    yield Check("wireyard", f"{__version__} in {Path(__file__).parents[1]}")
    yield _python()
    for package in _CORE:
        yield _package(package)
    yield from _kernels()
    yield _ciphers()
    yield _spark("pyspark")
    yield _spark("pandas")
    yield _java()


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    fits = sys.version_info >= _OLDEST_PYTHON
    return Check("Python", found, None if fits else "install Python 3.11 or newer")


def _version(package: str) -> tuple[str, tuple[int, ...]] | None:
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    numbers = (part for part in text.split(".")[:2] if part.isdigit())
    return text, tuple(map(int, numbers))


def _package(name: str) -> Check:
    found = _version(name)
    if found is None:
        return Check(name, "is not installed", "pip install wireyard")
    return Check(name, found[0])


def _kernels() -> Iterator[Check]:
    """Call the kernels of each format, and say where their compiled form is kept."""
    try:
        from wireyard import accelerate
        from wireyard.warm import warm
    except ImportError as error:
        yield Check("kernels", f"cannot be loaded: {error}", "pip install wireyard")
        return
    if not accelerate.COMPILED:
        yield Check("kernels", "run as plain Python, slowly", "unset NUMBA_DISABLE_JIT")
        return
    notices: list[str] = []
    accelerate.set_notice(notices.append)
    for name in names():
        format = get_format(name)
        seconds = warm(format)
        place = accelerate.cache_folder(Path(str(import_module(format.fast_path).__file__)))
        yield _kernel(name, seconds, bool(notices), place)
        notices.clear()


def _kernel(name: str, seconds: float, compiled: bool, place: Path | None) -> Check:
    how = f"of {name} {'compiled now' if compiled else 'loaded'} in {seconds:.1f} s"
    if place is None:
        found = f"{how}, and compiled in every process: no folder may be written"
        advice = "export NUMBA_CACHE_DIR=FOLDER, one that you may write to"
        return Check("kernels", found, advice, False)
    return Check("kernels", f"{how}, kept in {place}")


def _ciphers() -> Check:
    found = _version("cryptography")
    if found is None:
        return Check("TLS", "stays closed", "pip install 'wireyard[tls]'", False)
    return Check("TLS", f"opened with keys, by cryptography {found[0]}", None, False)


def _spark(package: str) -> Check:
    found = _version(package)
    if found is None:
        return Check(package, "is not installed", _INSTALL_SPARK, False)
    text, version = found
    if package == "pyspark" and version < _OLDEST_PYSPARK:
        return Check(package, f"{text} is too old", _INSTALL_SPARK, False)
    if package == "pandas" and version[0] >= _FIRST_PANDAS_TOO_NEW:
        return Check(package, f"{text} is newer than Spark takes", _INSTALL_SPARK, False)
    return Check(package, text, None, False)


def _java() -> Check:
    from wireyard.spark import check_java

    try:
        return Check("Java", check_java(), None, False)
    except WireError as error:
        return Check("Java", "none that Spark can use", str(error), False)
