"""Inputs of the commands that run queries over captures, streams and stores, or a lake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wireyard.cli import exits
from wireyard.cli.arrow import leave_out_pandas
from wireyard.cli.blocks import wrapped
from wireyard.cli.options import decode_as_option, format_option, keylog_option, rotated_option
from wireyard.cli.progress import Waiting
from wireyard.errors import LakeDamaged, LakeError, UsageError
from wireyard.streams.urls import shown_url

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = [
    "frame_text",
    "head_of",
    "no_cache_option",
    "nothing_read",
    "opened_tables",
    "reading_options",
    "shown_inputs",
    "split_inputs",
    "status_of",
]

F = TypeVar("F", bound=Callable[..., Any])


no_cache_option = click.option(
    "--no-cache",
    is_flag=True,
    help="Neither use nor keep derived tables for the next question about the same inputs.",
)


def reading_options(function: F) -> F:
    """Add the options that `opened_tables` takes."""
    return format_option("by the first bytes of each stream")(
        decode_as_option(keylog_option(rotated_option(no_cache_option(function))))
    )


@contextmanager
def opened_tables(
    inputs: Sequence[str],
    format_name: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
    rotated: bool = False,
    no_cache: bool = False,
) -> Iterator[Tables]:
    """Open the tables of inputs or of a lake; print their notes at the end.

    Raises
    ------
    UsageError, SourceError
        Those of `open_tables`.
    CannotWrite
        The temporary folder is full.
    """
    leave_out_pandas()
    from wireyard.answers import open_tables

    try:
        with (
            Waiting() as waiting,
            open_tables(
                inputs,
                format=format_name,
                decode_as=decode_as,
                keylog=keylog,
                rotated=rotated,
                cached=not no_cache,
                watch=waiting,
            ) as tables,
        ):
            try:
                yield tables
            except UsageError:  # Where nothing is found, what was not read may be why.
                _show_notes(tables)
                raise
            _show_notes(tables)
    except LakeDamaged:
        raise
    except LakeError as error:
        raise exits.CannotWrite(f"{error}; TMPDIR names another folder") from None


def nothing_read(tables: Tables) -> str | None:
    """Return the answer to any question about inputs in which no packet was found; else None."""
    return None if tables.formats else "no packet was read, so nothing is known"


def head_of(tables: Tables) -> Iterator[str]:
    """Yield the lines above an answer in words: what the capture does not show, if anything."""
    from wireyard.answers.visibility import how_far

    if unseen := how_far(tables):
        yield from wrapped(unseen, 0)
        yield ""


def status_of(tables: Tables) -> int:
    """Return the exit status of a command that has answered from tables."""
    return exits.DATA_LOST if tables.lost else exits.DONE


def _show_notes(tables: Tables) -> None:
    for note in tables.notes:
        exits.note(note)


def split_inputs(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the inputs, and the last argument if it is no input, else None."""
    *inputs, last = arguments
    if not inputs or "://" in last or last == "-" or os.path.exists(last):
        return list(arguments), None
    return inputs, last


def shown_inputs(
    inputs: Sequence[str],
    format_name: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
    rotated: bool = False,
    no_cache: bool = False,
) -> str:
    """Return inputs and the options that decide their rows, as on a command line."""
    from wireyard.answers.why import quote

    # A path that begins with a dash would be taken for an option.
    paths = [
        f"./{path}" if path.startswith("-") and path != "-" else path
        for path in map(shown_url, inputs)
    ]
    words = [*paths, *(["--format", format_name] if format_name else [])]
    for option, values in (("-d", decode_as), ("--keylog", keylog)):
        for value in values:
            words += (option, value)
    return " ".join(map(quote, [*words, *(["--rotated"] if rotated else [])]))


def frame_text(tables: Tables, source: str, frame: int) -> str:
    """Return a frame of a source as text: its number in its file, and the file."""
    file, number = tables.frame_files.find(source, frame)
    return f"frame {number} of {file}"
