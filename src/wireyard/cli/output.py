"""Output of results: standard output, or a file that appears whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from types import MappingProxyType
from typing import IO

from wireyard.cli.exits import CannotWrite
from wireyard.errors import SourceError, UsageError
from wireyard.formats import names

_ENDINGS: Mapping[str, str] = MappingProxyType(
    {
        "": "jsonl",
        ".csv": "csv",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "json",
        ".parquet": "parquet",
        ".arrow": "arrow",
        ".arrows": "arrow",
        ".txt": "table",
    }
)
"""Kinds of output by file name suffix."""


def to_terminal(path: str | None) -> bool:
    """Return whether `path` is standard output, and that is a terminal."""
    return path in (None, "-") and sys.stdout.isatty()


def wants_colours() -> bool:
    """Return whether the terminal, if there is one, has colours and the user wants them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def kind_of(
    write: str | None, out: str | None, kinds: Collection[str], on_terminal: str = "table"
) -> str:
    """Return the kind of output: `out` if given, else by the suffix of the file name.

    `on_terminal` is the kind on a terminal. A `UsageError` is raised if the suffix belongs to none
    of the kinds.
    """
    if out is not None:
        return out
    if to_terminal(write):
        return on_terminal
    suffix = PurePath(write or "").suffix.lower()
    endings = {ending: kind for ending, kind in _ENDINGS.items() if kind in kinds}
    if suffix in endings:
        return endings[suffix]
    known = ", ".join(filter(None, endings))
    problem = f"'{suffix}' is the ending of no output; there are {known}, or --out says what it is"
    if suffix[1:] in names():
        problem = f"{suffix} files hold packets, which 'wireyard encode' writes from JSON Lines"
    raise UsageError(f"-w {write}: {problem}")


@contextmanager
def open_output(
    path: str | None,
    *,
    binary: bool,
    final: Callable[[], str] | None = None,
    private: bool = False,
) -> Iterator[IO[bytes]]:
    """Open a path or URL for writing; None and ``-`` are standard output.

    `binary` output is not text, so a `UsageError` is raised if it would go to a terminal. `final`
    returns the name of a local file once it is complete; `path` if None. A `private` file is for
    its owner alone. `CannotWrite` is raised if the file at `path` cannot be written.
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
        with whole_file(path, final, private=private) as file:
            try:
                yield file
            except SourceError as error:
                reading = error  # from reading an input, not from writing
                raise
    except SourceError as error:
        if error is reading:
            raise
        raise CannotWrite(str(error)) from None
