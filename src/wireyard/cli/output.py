"""Where results go: standard output, or a file that appears whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from wireyard.cli.exits import CannotWrite
from wireyard.errors import SourceError, UsageError

__all__ = ["open_output", "to_terminal"]


def to_terminal(path: str | None) -> bool:
    """Tell whether what is written to `path` is read by a person as it comes."""
    return path in (None, "-") and sys.stdout.isatty()


@contextmanager
def open_output(
    path: str | None, *, binary: bool, final: Callable[[], str] | None = None
) -> Iterator[IO[bytes]]:
    """Open a path or URL for writing; None and ``-`` are standard output.

    `final` returns the name that a local file gets when all was written; `path` if None.

    Raises
    ------
    UsageError
        Bytes that are not text would go to a terminal.
    CannotWrite
        A target that cannot be written, as far as `path` names one.
    """
    if path in (None, "-"):
        if binary and sys.stdout.isatty():
            raise UsageError("these bytes are not for a terminal; name a file with -w FILE")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    from wireyard.streams.write import whole_file

    assert path is not None
    reading: SourceError | None = None
    try:
        with whole_file(path, final) as file:
            try:
                yield file
            except SourceError as error:
                reading = error  # what was read failed, not what is written
                raise
    except SourceError as error:
        if error is reading:
            raise
        raise CannotWrite(str(error)) from None
