"""``wireyard doctor``: checks of the requirements of wireyard on this machine."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wireyard import __version__
from wireyard.cli import exits
from wireyard.cli.options import examples
from wireyard.cli.output import open_output
from wireyard.cli.progress import Line
from wireyard.errors import WireError

if TYPE_CHECKING:
    from wireyard.accelerate import Progress

_OLDEST_PYTHON = (3, 11)
_CORE = (
    "pyarrow", "numpy", "numba", "click", "rich", "fsspec", "duckdb", "jinja2",
)  # fmt: skip
_OLDEST_PYSPARK = (4, 3)
_FIRST_PANDAS_TOO_NEW = 3
_INSTALL_SPARK = "pip install 'wireyard[spark]'"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `advice` is a command to type, None if nothing is to be done."""

    name: str
    found: str
    advice: str | None = None
    needed: bool = True


def check_all(report: Callable[[Progress], None]) -> Iterator[Check]:
    """Yield the results, most basic first; `report` is called while kernels compile."""
    yield Check("wireyard", f"{__version__} in {Path(__file__).parents[2]}")
    yield _python()
    for package in _CORE:
        yield _package(package)
    yield from _kernels(report)
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


def _kernels(report: Callable[[Progress], None]) -> Iterator[Check]:
    """Compile missing kernels and load all; yield how many there are and where they are stored."""
    try:
        from wireyard import accelerate
    except ImportError as error:
        yield Check("kernels", f"cannot be loaded: {error}", "pip install wireyard")
        return
    if not accelerate.COMPILED:
        yield Check("kernels", "run as plain Python, slowly", "unset NUMBA_DISABLE_JIT")
        return
    compiled: list[str] = []

    def note(progress: Progress) -> None:
        compiled.extend([progress.name] if progress.name else [])
        report(progress)

    start = time.perf_counter()
    accelerate.set_notice(lambda text: None)
    accelerate.compile_missing(note)
    count = accelerate.load_kernels()
    seconds = time.perf_counter() - start
    shipped = sum(kernel.origin == "shipped" for kernel in accelerate.find_kernels())
    if shipped == count:
        yield Check("kernels", f"{count} that came compiled, loaded in {seconds:.1f} s")
        return
    built_for = accelerate.shipped_for()
    if built_for:
        yield Check("kernels", f"came compiled for {built_for}; {count - shipped} do not fit here")
    how = (
        f"{count - shipped} compiled {'now, ' if compiled else 'before, '}ready in {seconds:.1f} s"
    )
    place = accelerate.cache_folder(Path(accelerate.__file__))
    if place is None:
        found = f"{how}, and again in every process: no folder may be written"
        advice = "export NUMBA_CACHE_DIR=FOLDER, one that you may write to"
        yield Check("kernels", found, advice, False)
    else:
        folder = place.parents[1] if place.name == "__pycache__" else place.parent
        yield Check("kernels", f"{how}, kept in {folder}")


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


@contextmanager
def _progress_shown() -> Iterator[Callable[[Progress], None]]:
    """Show on a terminal how many kernels are compiled, and the time left for the others."""
    line = Line()

    def report(progress: Progress) -> None:
        done = f"{progress.done} of {progress.total}, {progress.seconds_left:.0f} s left"
        done += f"  {progress.name}"
        line.show(f"compiling kernels: {done if progress.total else 'another process is at it'}")

    try:
        yield report
    finally:
        line.show("")


@click.command("doctor", epilog=examples("wireyard doctor"))
def command() -> int:
    """Say what is installed, what is missing, and what to type.

    Kernels that are not compiled yet are compiled, so that no other command waits for them. The
    exit status is 0 if everything works that is part of every installation.
    """
    from rich.text import Text

    from wireyard.cli.tables import console_on

    needed = optional = 0
    with (
        open_output(None, binary=False) as target,
        console_on(target) as console,
        _progress_shown() as report,
    ):
        for check in check_all(report):
            missing = check.advice is not None
            needed += missing and check.needed
            optional += missing and not check.needed
            style = "green" if not missing else "red" if check.needed else "yellow"
            word = "ok" if not missing else "missing" if check.needed else "without"
            line = Text.assemble((f"{word:<8}", style), f"{check.name:<10}", check.found)
            console.print(line, soft_wrap=True)
            if missing:
                console.print(Text(f"{'':<18}{check.advice}", "bold"), soft_wrap=True)
        if needed:
            console.print(Text("wireyard cannot work before that is done", "bold red"))
        elif optional:
            console.print(Text("wireyard works, without what is named above", "bold yellow"))
        else:
            console.print(Text("wireyard works, all of it", "bold green"))
    return exits.CANNOT_READ if needed else exits.DONE
