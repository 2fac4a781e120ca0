"""What Spark's Java says while a command runs: kept, and shown only when something fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import copyfileobj
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

from wireyard.errors import WireError

__all__ = ["SparkLog"]

_STDERR = 2


class SparkLog:
    """Keeps what processes that were started under it write to standard error.

    It is shown at the end of the block if that is left with an error that is none of ours. An
    interrupt leaves the block as an interrupt, also where Spark's cancelled job came after it.
    """

    def __enter__(self) -> Self:
        self._file: IO[bytes] = TemporaryFile()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        interrupted = _follows_an_interrupt(error)
        if isinstance(error, Exception) and not (interrupted or isinstance(error, WireError)):
            self._show()
        self._file.close()
        if interrupted:
            raise KeyboardInterrupt from None

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Have processes that are started now write here; this process too, while it lasts."""
        sys.stderr.flush()
        own = os.dup(_STDERR)
        os.dup2(self._file.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, _STDERR)
            os.close(own)

    def _show(self) -> None:
        self._file.seek(0)
        with open(_STDERR, "wb", closefd=False) as target:
            copyfileobj(self._file, target)


def _follows_an_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is an interrupt, or came while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
