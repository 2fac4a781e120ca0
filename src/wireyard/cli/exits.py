"""Exit statuses of commands, and one-line errors and notes on standard error."""

from __future__ import annotations

import errno
import mmap
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from wireyard.errors import (
    DecodeError,
    EncodeError,
    LakeDamaged,
    LakeError,
    SourceError,
    UnknownFormat,
    UsageError,
    WireError,
)
from wireyard.streams.urls import shown_text
from wireyard.text import printable

DONE, DATA_LOST, USAGE, CANNOT_READ, CANNOT_WRITE = range(5)
NO_PACKET = "has no packet of a known format"
_INTERRUPTED, _TERMINATED = 130, 143  # what shells report for SIGINT and SIGTERM
_NO_MEMORY = re.compile("can't start new thread|failed to map segment|cannot allocate memory", re.I)
"""What Python and the dynamic loader say if they are refused memory."""
_LEAST_BYTES = 1 << 30
"""Address space that the libraries of most commands take: numpy, Arrow, LLVM and DuckDB."""


class CannotWrite(WireError):
    """The output cannot be written."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: whatever tidies up after Ctrl-C does so after it too."""


_terminated = threading.Event()
"""Set if SIGTERM was received: libraries make other errors of an interrupt."""


def is_terminated() -> bool:
    """Return whether SIGTERM was received by `sigterm_interrupts`."""
    return _terminated.is_set()


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (CannotWrite, CANNOT_WRITE),
    (SourceError, CANNOT_READ),
    (EncodeError, CANNOT_READ),  # a row that no packet can represent
    (DecodeError, DATA_LOST),
    (UnknownFormat, DATA_LOST),
    (UsageError, USAGE),
    (LakeDamaged, DATA_LOST),
    (LakeError, CANNOT_READ),
)


def say(text: str) -> None:
    """Print a line on standard output, with unprintable characters escaped."""
    click.echo(printable(text))


def note(text: str) -> None:
    """Print a note in one line on standard error: no control characters, no secrets of URLs."""
    click.echo(f"wireyard: {printable(' '.join(shown_text(text).split()))}", err=True)


def note_written(path: str | None, what: str) -> None:
    """Print what a file now holds; nothing about standard output."""
    if path not in (None, "-"):
        note(f"wrote {path}, {what}")


def notes_on(name: str, texts: Iterable[str | None]) -> None:
    """Print the notes on an input; None is none."""
    for text in filter(None, texts):
        note(f"{name}: {text}")


def report_error(error: BaseException) -> int:
    """Print an error and return the exit status; an unexpected error, a bug, is raised."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.Abort) or interrupt_of(error) is not None:
        if not is_terminated():
            return _INTERRUPTED
        note("ended by SIGTERM")
        return _TERMINATED
    if isinstance(error, BrokenPipeError):
        drop_stdout()
        return DONE  # the reader has closed the pipe
    if isinstance(error, click.ClickException):
        note(_usage_text(error))
        return error.exit_code
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            note("; ".join([str(error), *getattr(error, "__notes__", ())]))
            return status
    if _lacks_memory(error):
        note("there is not enough memory for this, or too low a limit for it")
        return CANNOT_READ
    if not isinstance(error, OSError):
        raise error
    if error.errno is None:
        note(str(error))  # of a library that cannot be loaded
        return CANNOT_READ
    if error.filename is not None:
        note(f"{error.filename}: {error.strerror}")
        return CANNOT_READ
    drop_stdout()
    note(f"standard output: cannot be written ({error.strerror or error})")
    return CANNOT_WRITE


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error follows from one by which memory or a thread was refused."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def check_memory() -> None:
    """Raise an `OSError` if a limit refuses the memory that libraries take before they read.

    They end the process, without a line, if it is refused to them.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mmap.mmap(-1, _LEAST_BYTES, flags=flags, prot=mmap.PROT_READ).close()


def interrupt_of(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interrupt that an error is, or during whose handling it was raised, if any.

    Up to 3.11 Python itself raises RuntimeError if it is interrupted while it makes a class.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, unless it is ignored or handled; a second one ends at once.

    A process that Python's default handler ends leaves behind what it has begun.
    """

    def terminate(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        _terminated.set()
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    _terminated.clear()
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _usage_text(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    text = error.format_message().rstrip(".")
    if context is None:
        return text
    command = context.command_path.partition(" ")[2]
    where = f"{command}: " if command else ""
    return f"{where}{text} (see {context.command_path} --help)"


def open_standard_streams() -> None:
    """Open standard streams that the caller closed, so that no other file gets their numbers.

    Reading input and writing output fail then, as they do in other programs; notes are lost.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def drop_stdout() -> None:
    """Redirect standard output to null, so that flushing its buffer at exit does not fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # replaced by a test, and no file
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)
