"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from wireyard.cli import exits
from wireyard.errors import UsageError
from wireyard.formats import labels

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(allow_dash=True, path_type=str)
"""A path or a URL; completed as a path, and not checked before it is opened."""


class _Path(click.Path):
    """A path whose opening may wait, if it is a pipe, for the program at the other end."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the path, and say if it is a pipe, except one that the shell has opened."""
        path = os.fsdecode(super().convert(value, param, ctx))
        with suppress(OSError):  # a query of `sql` may be too long for a name
            if not path.startswith(("/dev/fd/", "/proc/")) and Path(path).is_fifo():
                exits.note(f"{path}: is a pipe, so this waits for the program at its other end")
        return path


PATH = _Path(allow_dash=True, path_type=str)
"""The same, or ``-``, of a file."""


WHERE_HELP = (
    "{}: COLUMN, one of == != < <= > >= in contains ~, VALUE; with AND, OR, NOT and parentheses. ~"
    " takes a regular expression; topic == plant/# a topic filter; a time since 1970 may be written"
    " as it is printed. Of several all have to hold. Rows of a format without the column do not"
    " match; topic and destination stand for each other."
)


def examples(*lines: str) -> str:
    """Return lines as the epilog of a help text, which is not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def split_names(ctx: Any, param: Any, value: str | None) -> tuple[str, ...] | None:
    """Split names at commas; a callback of click."""
    if value is None:
        return None
    return tuple(part.strip() for part in value.split(",") if part.strip())


def complete_format(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the formats whose names begin with `incomplete`; a `shell_complete` of click."""
    return [CompletionItem(name) for name in labels() if name.startswith(incomplete)]


def complete_columns(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the columns that begin like the last word; a `shell_complete` of click."""
    from wireyard.streams.conditions import every_column

    last = re.split(r"\W", incomplete)[-1]
    before = incomplete[: len(incomplete) - len(last)]
    names = sorted(name for name in every_column() if name.startswith(last))
    return [CompletionItem(f"{before}{name}") for name in names]


def complete_fields(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return Wireshark's names that begin like a word, and columns; a `shell_complete` of click."""
    from wireyard.cli.decoding.wireshark import FIELDS

    found = [CompletionItem(name) for name in FIELDS if name.startswith(incomplete)]
    return found if "." in incomplete else [*found, *complete_columns(ctx, param, incomplete)]


def complete_verdicts(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Return the verdicts that begin like a word; a `shell_complete` of click."""
    from wireyard.answers.trace import WORST_FIRST

    return [CompletionItem(name) for name in sorted(WORST_FIRST) if name.startswith(incomplete)]


def write_option(more: str = "", *, required: bool = False) -> Callable[[F], F]:
    """Return the decorator that adds ``-w``, which is ``-o`` too; `more` is a part of its help."""
    return click.option(
        "-w",
        "--write",
        "-o",
        type=PATH,
        metavar="FILE",
        required=required,
        help=f"Write there, whole or not at all{'; ' if more else ''}{more}.",
    )


def format_option(otherwise: str) -> Callable[[F], F]:
    """Return the decorator that adds ``--format``; `otherwise` is what happens without it."""
    return click.option(
        "--format",
        "format_name",
        metavar="NAME",
        shell_complete=complete_format,
        help=f"Wire format, such as jmq or mqtt/5.0; {otherwise} if not given. 'wireyard formats'"
        " lists them.",
    )


def decode_as_option(function: F) -> F:
    """Add ``--decode-as``."""
    return click.option(
        "-d",
        "--decode-as",
        multiple=True,
        metavar="PORT,FORMAT",
        help="The format of a capture's port, as in tcp.port==1884,mqtt; other ports get theirs"
        " from first bytes, a port mapper's answer and well-known ports.",
    )(function)


def keylog_option(function: F) -> F:
    """Add ``--keylog``; ``wireyard.cli`` reads tshark's form."""
    return click.option(
        "--keylog",
        multiple=True,
        type=PATH,
        metavar="FILE",
        callback=_existing,
        help="A key log with the secrets of a capture's TLS connections, as SSLKEYLOGFILE names it;"
        " also as in -o tls.keylog_file:FILE.",
    )(function)


def _existing(ctx: Any, param: Any, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check that key logs exist; a callback of click."""
    for path in value:
        if not ("://" in path or path == "-" or os.path.exists(path)):
            raise UsageError(f"--keylog {path}: there is no such key log")
    return value


def rotated_option(function: F) -> F:
    """Add ``--rotated``."""
    return click.option(
        "--rotated",
        is_flag=True,
        help="All captures in a folder are the files of one rotated capture.",
    )(function)


def max_packet_option(function: F) -> F:
    """Add ``--max-packet-bytes``."""
    return click.option(
        "--max-packet-bytes",
        type=click.IntRange(min=1),
        metavar="N",
        help="Reject larger packet sizes as malformed; the format's own limit if not given.",
    )(function)
