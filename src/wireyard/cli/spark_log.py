"""The log of Spark's Java while a command runs, which is shown only after a failure."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import copyfileobj
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Self

from wireyard.cli.exits import interrupt_of
from wireyard.errors import SourceError, WireError

_STDERR = 2
_JAVAS_REASON = re.compile(
    # An exception, with the names of its class, or the launcher's refusal of an option.
    r"(?:^: |Exception in thread \S+ )[\w.$]+: (.+)|^(?:Invalid|Unrecognized|Error:) .+",
    re.MULTILINE,
)


class SparkLog:
    """Captures the standard error of processes that are started within `taking`.

    The text is printed if the block is left with an error other than a `WireError`. After an
    interrupt the block raises that, even if Spark's cancelled job has raised another error since.
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
        interrupt = interrupt_of(error)
        if isinstance(error, Exception) and not (interrupt or isinstance(error, WireError)):
            self._show()
        self._file.close()
        if interrupt is not None:
            raise type(interrupt) from None

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Redirect standard error to the log, for this process and those that it starts."""
        sys.stderr.flush()
        own = os.dup(_STDERR)
        os.dup2(self._file.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, _STDERR)
            os.close(own)

    def start(self, master: str | None, app_name: str, **conf: str) -> Any:
        """Start Spark with its log taken; return the session.

        The parameters are those of `wireyard.spark.sessions.session`. A `SourceError` is raised if
        it does not start.
        """
        from wireyard.spark.sessions import session  # only `wireyard.spark` may import pyspark

        if master is None or master.startswith("local"):
            from wireyard.accelerate import load_kernels

            # Here, because notes on the time to compile would go to the log from the workers.
            load_kernels()
        with self.taking():
            try:
                return session(master, app_name=app_name, **conf)
            except WireError:
                raise
            except Exception as error:
                raise SourceError(f"Spark does not start: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        """Return one line of what Java has said, or of the error."""
        self._file.seek(0)
        said = self._file.read().decode(errors="replace")
        for text in (str(error), said):
            if found := _JAVAS_REASON.search(text):
                return found[1] or found[0]
        return str(error).partition("\n")[0]

    def _show(self) -> None:
        self._file.seek(0)
        with open(_STDERR, "wb", closefd=False) as target:
            copyfileobj(self._file, target)
