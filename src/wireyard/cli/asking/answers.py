"""The inputs of commands that run queries, and the layout of answers in lines of 80 columns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.cells import cell_len

from wireyard.cli import exits, leave_out_pandas
from wireyard.cli.options import decode_as_option, format_option, keylog_option, rotated_option
from wireyard.cli.progress import Waiting
from wireyard.errors import LakeDamaged, LakeError, UsageError
from wireyard.streams.urls import shown_url
from wireyard.text import printable

if TYPE_CHECKING:
    from wireyard.answers import Tables

F = TypeVar("F", bound=Callable[..., Any])

no_cache_option = click.option(
    "--no-cache",
    is_flag=True,
    help="Neither use nor keep derived tables for the next question about the same inputs.",
)


def limit_option(most: int, text: str, least: int = 1) -> Callable[[F], F]:
    """Return ``--limit``: how much is shown."""
    return click.option(
        "--limit",
        type=click.IntRange(min=least),
        default=most,
        show_default=True,
        metavar="N",
        help=text,
    )


def out_option(text: str, *forms: str) -> Callable[[F], F]:
    """Return ``--out``: text for people, JSON Lines, or one of other forms."""
    return click.option(
        "--out",
        type=click.Choice(["text", "jsonl", *forms]),
        default="text",
        show_default=True,
        help=text,
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
    *,
    may_be_empty: bool = False,
) -> Iterator[Tables]:
    """Open the tables of inputs or of a lake; print their notes at the end.

    Unless they may be empty, the command ends if no packet was found. The errors are those of
    `open_tables`, `UsageError` and `SourceError`, and `CannotWrite` if the temporary folder is
    full.
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
                if not (may_be_empty or tables.formats):
                    note_nothing(inputs)
                    _show_notes(tables)
                    raise click.exceptions.Exit(exits.DATA_LOST)
                yield tables
            except UsageError:  # Where nothing is found, what was not read may be why.
                _show_notes(tables)
                raise
            _show_notes(tables)
    except LakeDamaged:
        raise
    except LakeError as error:
        raise exits.CannotWrite(f"{error}; TMPDIR names another folder") from None


def note_nothing(inputs: Sequence[str]) -> None:
    """Print the answer to any question about inputs in which no packet was found."""
    exits.note(f"{', '.join(inputs)}: no packet was read, so nothing is known")


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
    *,
    format_name: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
    rotated: bool = False,
    **_: Any,
) -> str:
    """Return inputs and the options that decide their rows, as on a command line."""
    from wireyard.answers.why import quote

    # A path that begins with a dash would be taken for an option.
    words = [f"./{path}" if path[:1] == "-" != path else path for path in map(shown_url, inputs)]
    words += ["--format", format_name] if format_name else []
    words += [word for rule in decode_as for word in ("-d", rule)]
    words += [word for path in keylog for word in ("--keylog", path)]
    return " ".join(map(quote, [*words, *(["--rotated"] if rotated else [])]))


WIDTH = 80
_INDENT = 13
"""Column at which the value of a field begins."""


def field(name: str, value: str, indent: int = 2) -> Iterator[str]:
    """Yield the lines of a name and its value; further lines are aligned with the value."""
    lines = list(wrapped(value, _INDENT)) or [""]
    label = " " * indent + name
    yield f"{label:<{_INDENT}}{lines[0].strip()}".rstrip()
    yield from lines[1:]


def wrapped(text: str, indent: int) -> Iterator[str]:
    """Yield text from the wire in indented lines.

    A word that is longer than a line, such as a path, is broken after a slash, or else anywhere.
    """
    room = WIDTH - indent
    line = ""
    for gap, word in re.findall(r"(\s*)(\S+)", printable(text)):
        for number, part in enumerate(_parts(word, room)):
            space = "" if number or not line else gap
            if line and len(line) + len(space) + len(part) > room:
                yield f"{' ' * indent}{line}"
                line = part
            else:
                line += space + part
    if line:
        yield f"{' ' * indent}{line}"


def _parts(word: str, room: int) -> Iterator[str]:
    """Yield the parts of a word that is longer than a line, broken after slashes where possible."""
    if len(word) <= room:
        yield word
        return
    for part in re.findall(r"[^/]*/|[^/]+", word):
        yield from (part[at : at + room] for at in range(0, len(part), room))


def columns(widths: Sequence[int], *cells: str) -> str:
    """Return cells in columns, each cut to its width; a negative width aligns to the right."""
    shown = []
    for place, (text, width) in enumerate(zip(cells, widths, strict=True), 1):
        room = abs(width) - (place < len(widths))  # a space before the next
        cell = cut(text, room)
        fill = " " * (room - cell_len(cell))
        behind = " " * (abs(width) - room)
        shown.append(fill + cell + behind if width < 0 else cell + fill + behind)
    return "".join(shown).rstrip()


def cut(text: str, width: int | None) -> str:
    """Return text from the wire, cut to a width if there is one."""
    shown = printable(text)
    if width is None or cell_len(shown) <= width:
        return shown
    shown = shown[:width]
    while cell_len(shown) > width - 2:
        shown = shown[:-1]
    return f"{shown}.."


def ms_text(time_ns: float | None, *, unit: bool = True) -> str:
    """Return a time in milliseconds, to a tenth."""
    if time_ns is None:
        return "-"
    return f"{time_ns / 1e6:,.1f}{' ms' if unit else ''}"
