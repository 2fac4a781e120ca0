"""Write the man pages, made from the help of the commands: ``python -m tools.man_pages FOLDER``.

They have nothing that the help does not have, so they are written where they are installed, and are
not kept with the documents. ``man -M FOLDER wireyard-decode`` shows one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from wireyard import __version__
from wireyard.cli import main as cli

__all__ = ["pages"]

SECTION = 1


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page: of wireyard, and of its commands."""
    top = click.Context(cli, info_name="wireyard")
    yield "wireyard", "\n".join(_page(top, "Read message-broker traffic exactly."))
    yield from _commands(cli, top)


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=context)
        yield (
            inner.command_path.replace(" ", "-"),
            "\n".join(_page(inner, command.get_short_help_str(200))),
        )
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _page(context: click.Context, summary: str) -> Iterator[str]:
    """Yield the lines of a page."""
    command, name = context.command, context.command_path
    title = name.replace(" ", "-")
    yield f'.TH "{title.upper()}" "{SECTION}" "" "wireyard {__version__}" "wireyard"'
    yield from (".SH NAME", f"{_text(title)} \\- {_text(summary.rstrip('.'))}", ".SH SYNOPSIS")
    yield f".B {_text(name)}"
    yield _text(" ".join(command.collect_usage_pieces(context)))
    yield from (".SH DESCRIPTION", *_paragraphs(command.help or ""))
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", f".B {_text(record[0])}", _text(record[1]))
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from (".TP", f".B {_text(each)}", _text(inner.get_short_help_str(200)))
    if command.epilog:
        _, _, *lines = command.epilog.splitlines()  # click's mark, and a heading
        yield from (".SH EXAMPLES", ".nf", *(_text(line.strip()) for line in lines), ".fi")
    if context.parent is not None:
        yield from (".SH SEE ALSO", f".BR {_text(context.parent.command_path)} ({SECTION})")
    yield ""


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs; one that begins with click's mark is not wrapped."""
    for number, paragraph in enumerate(text.split("\n\n")):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if number:
            yield ".PP"
        if lines and lines[0] == "\b":
            yield from (".nf", *(_text(line.strip()) for line in lines[1:]), ".fi")
        else:
            yield _text(" ".join(lines))


def _text(text: str) -> str:
    """Return text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main(folder: str) -> None:
    """Write all pages below a folder."""
    target = Path(folder) / f"man{SECTION}"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (target / f"{name}.{SECTION}").write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
