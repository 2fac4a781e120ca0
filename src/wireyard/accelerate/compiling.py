"""Finding, loading and parallel compilation of all kernels of the package.

Numba compiles under one lock, so kernels are compiled in parallel by processes. A process is
started that finds the missing kernels and forks one process for each, the longest kernel first. The
process that needs a kernel is not forked itself, because it may have threads; nor does it load
Numba, unless no code can be stored.
"""

from __future__ import annotations

import dis
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from wireyard.accelerate.caching import (
    cache_folder,
    find_code,
    is_kept,
    keep_code,
    platform_baseline,
    ship_code,
)
from wireyard.accelerate.declare import KERNELS, Kernel
from wireyard.accelerate.folders import PACKAGE

_DECLARATION: Final = re.compile(rb"^@(brief_)?kernel$", re.MULTILINE)
_NOTICE_AFTER_S: Final = 0.3
_TICK_S: Final = 0.5
_POLL_S: Final = 0.02
_BAR: Final = 24
_LENGTH_A_SECOND: Final = 800.0
"""First estimate of the `_length` of kernels that is compiled per second."""
_RUN: Final = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of compilation; `total` is 0 while another process compiles.

    `name` is the kernel that was compiled last.
    """

    done: int
    total: int
    seconds_left: float
    name: str = ""


# --- finding and loading --------------------------------------------------------------------


def find_kernels(modules: Sequence[str] = ()) -> list[Kernel]:
    """Import modules of the package that declare kernels, or all; return their kernels by name."""
    top = resources.files(PACKAGE)
    for module in modules or sorted(_modules_with_kernels(top, PACKAGE)):
        import_module(module)
    return sorted(filter(_is_ours, KERNELS), key=_name)


def _is_ours(kernel: Kernel) -> bool:
    return kernel.py_func.__module__.startswith(f"{PACKAGE}.")


def _modules_with_kernels(folder: Traversable, package: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules_with_kernels(entry, f"{package}.{entry.name}")
        elif entry.name.endswith(".py") and _DECLARATION.search(entry.read_bytes()):
            yield f"{package}.{entry.name.removesuffix('.py')}"


def load_kernels() -> int:
    """Load every kernel of the package, and compile missing ones; return the number of kernels."""
    kernels = find_kernels()
    for kernel in kernels:
        kernel.load()
    return len(kernels)


def _name(kernel: Kernel) -> str:
    return f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"


@cache
def _length(function: Callable[..., Any]) -> int:
    """Return the number of instructions of a function and of all functions inlined in it.

    The time to compile a kernel is proportional to it, within a factor of two.
    """
    total = 0
    for instruction in dis.get_instructions(function):
        total += 1
        if instruction.opname == "LOAD_GLOBAL":
            called = getattr(function.__globals__.get(instruction.argval), "py_func", None)
            total += _length(called) if called else 0
    return total


# --- the process that needs kernels ---------------------------------------------------------


def code_of(kernel: Kernel) -> tuple[bytes, str]:
    """Return the code of a kernel, and its origin: ``shipped``, ``kept`` or ``compiled`` here.

    If it is missing, what else is missing is compiled in parallel.
    """
    found = find_code(kernel)
    can_start = _is_ours(kernel) and not _COMPILER.is_set()
    if found is None and can_start and is_kept(kernel) and _compile_loaded():
        found = find_code(kernel)
    if found is None:
        with _NOTICE.compiling(is_kept(kernel)):
            found = _compile(kernel), "compiled"
        keep_code(kernel, found[0])
    return found


def _compile(kernel: Kernel) -> bytes:
    from wireyard.accelerate.dispatchers import compile_kernel

    code: bytes = compile_kernel(kernel.py_func, kernel.signature)
    return code


def compile_missing(
    report: Callable[[Progress], None],
    ship_to: Path | None = None,
    modules: Collection[str] = (),
) -> bool:
    """Compile kernels that are neither shipped nor cached, in other processes; return success.

    Parameters
    ----------
    report
        Called at the beginning and after each kernel, unless none is missing.
    ship_to
        Folder to write all kernels to, compiled for the baseline of this architecture; None to
        compile the missing ones for the cache of this machine.
    modules
        The modules whose kernels are compiled; all of the package if there are none.

    Raises
    ------
    LookupError
        There is a folder to ship to, but no baseline for this architecture.
    """
    command = [sys.executable, "-P", "-c", _RUN, str(ship_to or ""), *sorted(modules)]
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as nowhere:
        if ship_to is not None:
            baseline = platform_baseline()
            if baseline is None:
                raise LookupError("there is no baseline for this kind of processor")
            environment |= {
                "NUMBA_CACHE_DIR": nowhere,
                "NUMBA_CPU_NAME": baseline.cpu,
                "NUMBA_CPU_FEATURES": "",
                "PYTHONHASHSEED": "0",  # for reproducible code
            }
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if ship_to is None else None,
                env=environment,
                text=True,
            )
        except OSError:  # this Python cannot start another process
            return False
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    try:
                        progress = Progress(**json.loads(line))
                    except (ValueError, TypeError):  # output of an imported module
                        continue
                    report(progress)
            except KeyboardInterrupt:
                process.terminate()  # it would be waited for
                raise
        return process.returncode == 0


_ATTEMPTED: Final[set[str]] = set()
"""Modules whose kernels this process has had compiled, or has tried to."""


def _compile_loaded() -> bool:
    """Compile what is missing of the modules that are loaded, once each; return success.

    They are those that this process needs, because formats and layers are loaded where they occur.
    """
    modules = {kernel.py_func.__module__ for kernel in filter(_is_ours, KERNELS)} - _ATTEMPTED
    _ATTEMPTED.update(modules)
    return bool(modules) and compile_missing(_NOTICE.report, modules=modules)


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


# --- the process that compiles --------------------------------------------------------------

_COMPILER: Final = threading.Event()
"""Set if this process compiles kernels, so that it must not start another one."""


def main(words: Sequence[str] | None = None) -> None:
    """Compile missing kernels, with a line of JSON on standard output for each `Progress`.

    The arguments are a folder to ship them to, which may be empty, and the modules that have them.
    """
    folder, *modules = sys.argv[1:] if words is None else words
    _COMPILER.set()
    with _alone():
        kernels = find_kernels(modules)
        missing = [kernel for kernel in kernels if folder or find_code(kernel) is None]
        done = _compile_all(missing, Path(folder) if folder else None)
    sys.exit(0 if done == len(missing) else 1)


@contextmanager
def _alone() -> Iterator[None]:
    """Lock the cache folder: wait for another process that compiles the same kernels."""
    import fcntl

    folder = cache_folder(Path(__file__))
    if folder is None:
        yield
        return
    with (folder / "compiling.lock").open("w") as lock:
        with suppress(OSError):  # without locks in the file system, kernels are compiled twice
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _print_progress(Progress(0, 0, 0))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile_all(kernels: Sequence[Kernel], ship_to: Path | None) -> int:
    """Compile kernels, each in a process of its own; return the number of successes."""
    waiting = sorted(kernels, key=lambda kernel: _length(kernel.py_func))
    running: dict[int, Kernel] = {}
    cores, start = core_count(), time.monotonic()
    whole = left = sum(_length(kernel.py_func) for kernel in kernels)
    done, end = 0, start
    if kernels:
        from numba.core.registry import cpu_target

        cpu_target.target_context.refresh()  # once, and not in each process
        longest = _length(waiting[-1].py_func)
        end += max(left / cores, longest) / _LENGTH_A_SECOND
        _print_progress(Progress(0, len(kernels), end - start))
    while waiting or running:
        while waiting and len(running) < cores:
            kernel = waiting.pop()
            child = os.fork()
            if child == 0:
                _compile_and_exit(kernel, ship_to)
            running[child] = kernel
        child, status = _wait(done, len(kernels), end)
        kernel = running.pop(child)
        left -= _length(kernel.py_func)
        done += status == 0
        now = time.monotonic()
        end = now + (now - start) * left / (whole - left)
        _print_progress(Progress(done, len(kernels), _until(end), _name(kernel)))
    return done


def _until(end: float) -> float:
    return max(end - time.monotonic(), 0.0)


def _wait(done: int, total: int, end: float) -> tuple[int, int]:
    """Wait for a child, and print the time left meanwhile; return its number and status."""
    next_tick = time.monotonic() + _TICK_S
    while True:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            return child, status
        if time.monotonic() >= next_tick:
            _print_progress(Progress(done, total, _until(end)))
            next_tick += _TICK_S
        time.sleep(_POLL_S)


def _compile_and_exit(kernel: Kernel, ship_to: Path | None) -> None:
    """Compile one kernel and exit the process, without its exit handlers."""
    status = 1
    try:
        code = _compile(kernel)
        if ship_to is None:
            keep_code(kernel, code)
        else:
            ship_code(kernel, ship_to, code)
        status = 0
    finally:
        os._exit(status)


def _print_progress(progress: Progress) -> None:
    print(json.dumps(asdict(progress)), flush=True)


# --- the notice that kernels are being compiled ---------------------------------------------


def print_notice(text: str) -> None:
    """Print `text` as one line to standard error."""
    print(f"{PACKAGE}: {text}", file=sys.stderr, flush=True)


def set_notice(show: Callable[[str], None]) -> None:
    """Call `show` instead of `print_notice` when kernels take time to compile."""
    _NOTICE.show = show


class _Notice:
    """Shows one notice per process if compiling a kernel in it takes over `_NOTICE_AFTER_S`."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = print_notice
        self._shown = False

    @contextmanager
    def compiling(self, kept: bool) -> Iterator[None]:
        """Show the notice if the context is not left in time."""
        if self._shown or _COMPILER.is_set():
            yield
            return
        timer = threading.Timer(_NOTICE_AFTER_S, self._show, (kept,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _show(self, kept: bool) -> None:
        self._shown = True
        often = "once" if kept else "again: no folder is writable to keep them"
        self.show(f"compiling kernels ({often}), this takes some seconds ...")

    def report(self, progress: Progress) -> None:
        """Show the progress of compilation: a bar on a terminal, else one line."""
        if progress.total == 0:
            self.show("waiting for another process that compiles the kernels ...")
        elif self._has_bar():
            self._draw(progress)
        elif progress.done == 0 and not self._shown and progress.seconds_left >= _NOTICE_AFTER_S:
            self._shown = True
            self.show(
                f"compiling {progress.total} kernels for this processor, once: "
                f"about {progress.seconds_left:.0f} s on {core_count()} cores ..."
            )

    def _has_bar(self) -> bool:
        """Return whether standard error is a terminal, on which no other bar is drawn."""
        plain = self.show is print_notice and sys.stderr is sys.__stderr__
        return plain and sys.stderr.isatty()

    def _draw(self, progress: Progress) -> None:
        text = ""
        if progress.done < progress.total:
            full = "#" * (_BAR * progress.done // progress.total)
            text = (
                f"compiling kernels, once [{full:.<{_BAR}}] {progress.done} of {progress.total},"
                f" about {progress.seconds_left:.0f} s left"
            )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


_NOTICE: Final = _Notice()
