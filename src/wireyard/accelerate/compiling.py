"""Every kernel of the package: found, loaded, and compiled in parallel where that is needed.

Numba compiles under one lock, so what runs in parallel are processes. One is started that finds out
what is missing, and it forks one for each kernel, the longest first. The process that wanted a
kernel may have threads, and what has threads must not be forked.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
from numba.core import event
from numba.core.registry import cpu_target

__all__ = [
    "BASELINES",
    "KERNELS",
    "PACKAGE",
    "Baseline",
    "Progress",
    "compile_missing",
    "compile_once",
    "core_count",
    "find_kernels",
    "is_compiler",
    "load_kernels",
    "main",
    "platform_baseline",
    "print_notice",
    "set_notice",
]

PACKAGE: Final = __name__.partition(".")[0]
KERNELS: Final[dict[Any, Any]] = {}
"""Every kernel that was declared in this process, and its signature."""

_DECLARATION: Final = re.compile(rb"^@kernel\(", re.MULTILINE)
_NOTICE_AFTER_S: Final = 0.3
_LENGTH_A_SECOND: Final = 800.0
"""How much of a kernel's `_length` compiles in a second, before there is anything to go by."""
_RUN: Final = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far compiling came; `total` is 0 while another process does it.

    `name` is the kernel that was compiled last.
    """

    done: int
    total: int
    seconds_left: float
    name: str = ""


# --- what shipped code is compiled for -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Baseline:
    """What shipped code is compiled for: a name of LLVM, and the features that it needs."""

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
"""By the first word of LLVM's name for a platform. Every 64-bit Arm processor has the features of
``generic``; x86-64-v3 is what Intel makes since 2013 and AMD since 2015."""


def platform_baseline() -> Baseline | None:
    """Return the baseline of this kind of processor, None if code is shipped for none such."""
    return BASELINES.get(llvm.get_process_triple().partition("-")[0])


# --- finding and loading --------------------------------------------------------------------


def find_kernels() -> list[Any]:
    """Import every module of the package that declares kernels; return those, sorted by name."""
    top = resources.files(PACKAGE)
    for module in sorted(_modules_with_kernels(top, PACKAGE)):
        import_module(module)
    ours = (kernel for kernel in KERNELS if kernel.py_func.__module__.startswith(f"{PACKAGE}."))
    return sorted(ours, key=_name)


def _modules_with_kernels(folder: Traversable, package: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules_with_kernels(entry, f"{package}.{entry.name}")
        elif entry.name.endswith(".py") and _DECLARATION.search(entry.read_bytes()):
            yield f"{package}.{entry.name.removesuffix('.py')}"


def load_kernels() -> int:
    """Load every kernel of the package, compiled before if need be; return how many there are."""
    kernels = find_kernels()
    for kernel in kernels:
        kernel._compile_for_args()
    return len(kernels)


def _name(kernel: Any) -> str:
    return f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"


@cache
def _length(function: Callable[..., Any]) -> int:
    """Return the instructions of a function and of all pieces inlined in it.

    The time to compile a kernel grows with it, within a factor of two.
    """
    total = 0
    for instruction in dis.get_instructions(function):
        total += 1
        if instruction.opname == "LOAD_GLOBAL":
            called = getattr(function.__globals__.get(instruction.argval), "py_func", None)
            total += _length(called) if called else 0
    return total


# --- compiling, for whoever wants it done ---------------------------------------------------


def compile_missing(report: Callable[[Progress], None], ship_to: Path | None = None) -> bool:
    """Compile what is neither shipped nor kept, in other processes; return whether that went well.

    Parameters
    ----------
    report
        Called when it begins and after each kernel; never where nothing is missing.
    ship_to
        Compile everything for the baseline of this kind of processor and write it to this folder,
        instead of keeping it for this machine.

    Raises
    ------
    LookupError
        There is a folder to ship to, but no baseline for this kind of processor.
    """
    command = [sys.executable, "-P", "-c", _RUN]
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as nowhere:
        if ship_to is not None:
            baseline = platform_baseline()
            if baseline is None:
                raise LookupError("there is no baseline for this kind of processor")
            command.append(str(ship_to))
            environment |= {
                "NUMBA_CACHE_DIR": nowhere,
                "NUMBA_CPU_NAME": baseline.cpu,
                "NUMBA_CPU_FEATURES": "",
                "PYTHONHASHSEED": "0",  # the same code every time
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
        except OSError:  # this Python cannot be started once more
            return False
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    progress = Progress(**json.loads(line))
                except (ValueError, TypeError):  # a module that prints when it is imported
                    continue
                report(progress)
        return process.returncode == 0


@cache
def compile_once() -> bool:
    """Compile what is missing, the first time this is called; return whether that went well."""

    def show(progress: Progress) -> None:
        if progress.total == 0:
            _NOTICE.show("waiting for another process that compiles the kernels ...")
        elif progress.done == 0 and progress.seconds_left >= _NOTICE_AFTER_S:
            _NOTICE.show(
                f"compiling {progress.total} kernels for this processor, once: "
                f"about {progress.seconds_left:.0f} s on {core_count()} cores ..."
            )

    return compile_missing(show)


def core_count() -> int:
    """Return how many processes this one may run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


# --- compiling, in the process that does it -------------------------------------------------

_COMPILER: Final = threading.Event()


def is_compiler() -> bool:
    """Return whether this process is there to compile, so that it must not start another."""
    return _COMPILER.is_set()


def main(words: Sequence[str] | None = None) -> None:
    """Compile what is missing, with a line of JSON on standard output for each `Progress`."""
    folder = next(iter(sys.argv[1:] if words is None else words), None)
    _COMPILER.set()
    with _alone():
        target = cpu_target.target_context
        missing = [
            kernel
            for kernel in find_kernels()
            if kernel._cache.find(KERNELS[kernel], target) is None
        ]
        done = _compile(missing, Path(folder) if folder else None)
    sys.exit(0 if done == len(missing) else 1)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process compiles for the same folder: it leaves nothing to be done."""
    import fcntl

    from wireyard.accelerate.caching import cache_folder

    folder = cache_folder(Path(__file__))
    if folder is None:
        yield
        return
    with (folder / "compiling.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: it is done twice, that is all
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say(Progress(0, 0, 0))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(kernels: Sequence[Any], ship_to: Path | None) -> int:
    """Compile kernels, each in a process of its own; return how many went well."""
    waiting = sorted(kernels, key=lambda kernel: _length(kernel.py_func))
    running: dict[int, Any] = {}
    cores, start = core_count(), time.monotonic()
    whole = left = sum(_length(kernel.py_func) for kernel in kernels)
    done = 0
    if kernels:
        cpu_target.target_context.refresh()  # once, and not in each process
        longest = _length(waiting[-1].py_func)
        _say(Progress(0, len(kernels), max(left / cores, longest) / _LENGTH_A_SECOND))
    while waiting or running:
        while waiting and len(running) < cores:
            kernel = waiting.pop()
            child = os.fork()
            if child == 0:
                _compile_and_exit(kernel, ship_to)
            running[child] = kernel
        child, status = os.wait()
        kernel = running.pop(child)
        left -= _length(kernel.py_func)
        done += status == 0
        seconds = time.monotonic() - start
        _say(Progress(done, len(kernels), seconds * left / (whole - left), _name(kernel)))
    return done


def _compile_and_exit(kernel: Any, ship_to: Path | None) -> None:
    """Compile one kernel and end the process, without what a process does in the end."""
    status = 1
    try:
        kernel._compile_for_args()
        if ship_to is not None:
            (compiled,) = kernel.overloads.values()
            kernel._cache.ship(ship_to, KERNELS[kernel], compiled)
        status = 0
    finally:
        os._exit(status)


def _say(progress: Progress) -> None:
    print(json.dumps(asdict(progress)), flush=True)


# --- the line that says why the first call takes so long ------------------------------------


def print_notice(text: str) -> None:
    """Print `text` as one line to standard error."""
    print(f"{PACKAGE}: {text}", file=sys.stderr, flush=True)


def set_notice(show: Callable[[str], None]) -> None:
    """Have `show` called, instead of `print_notice`, when kernels take time to compile."""
    _NOTICE.show = show


class _Notice(event.Listener):
    """Says once a process that kernels are compiled in it, if that takes longer than a blink."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = print_notice
        self._timer: threading.Timer | None = None
        self._said = False

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"] not in KERNELS or self._said or self._timer or is_compiler():
            return
        kept = getattr(event.data["dispatcher"]._cache, "keeps", False)
        self._timer = threading.Timer(_NOTICE_AFTER_S, self._say, (kept,))
        self._timer.daemon = True
        self._timer.start()

    def on_end(self, event: Any) -> None:
        if event.data["dispatcher"] in KERNELS and self._timer:
            self._timer.cancel()
            self._timer = None

    def _say(self, kept: bool) -> None:
        self._said = True
        often = "once" if kept else "again: no folder is writable to keep them"
        self.show(f"compiling kernels ({often}), this takes some seconds ...")


_NOTICE: Final = _Notice()
event.register("numba:compile", _NOTICE)  # type: ignore[no-untyped-call]
