"""Tables for commands that answer questions about inputs or a lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wireyard.cli import exits

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = ["opened_tables"]


@contextmanager
def opened_tables(
    inputs: Sequence[str],
    format_name: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
) -> Iterator[Tables]:
    """Open the tables of inputs or of a lake; what is to be said about them is noted at the end.

    Raises
    ------
    UsageError, SourceError
        Those of `open_tables`.
    CannotWrite
        The temporary folder is full.
    """
    from wireyard.answers import open_tables
    from wireyard.answers.spool import SpoolError

    try:
        with open_tables(inputs, format=format_name, decode_as=decode_as, keylog=keylog) as tables:
            yield tables
            for note in tables.notes:
                exits.note(note)
    except SpoolError as error:
        raise exits.CannotWrite(str(error)) from None
