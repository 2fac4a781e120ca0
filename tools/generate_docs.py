"""Write the documents that follow from the code: docs/cli.md and docs/formats/jmq.md.

`python tools/generate_docs.py` writes them; with `--check` it only says which are not what it would
write, and exits with 1 when any is.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from wireyard.cli import main as cli
from wireyard.formats.jmq.layout import (
    COLUMNS,
    FLAGS,
    HEADERS,
    ITEMS,
    MAX_PACKET_BYTES,
    PACKET_TYPES,
    SPEC,
)
from wireyard.layout import Column, Layout
from wireyard.schema import COMMON, arrow_type

DOCS = Path(__file__).resolve().parent.parent / "docs"
HELP_WIDTH = 96

CLI_HEAD = """
# The command line

Every command reads paths, URLs or `-` for standard input; gzip and zstandard are opened by their
content, and the first bytes tell the format. Results go to standard output, notes to standard
error. A closed pipe ends a command quietly, `NO_COLOR` is honoured, and a file written with `-w`
appears whole or not at all.

| exit status | means |
|---|---|
| 0 | done |
| 1 | data lost: damaged packets, bytes that belong to none, a stream that was cut short |
| 2 | bad usage |
| 3 | cannot read |
| 4 | cannot write |

Bad input is never left out in silence: it is a row that says why, and one line on standard error
names the first place.

## Shell completion

| shell | type |
|---|---|
| bash | `eval "$(wireyard completion bash)"`, in `~/.bashrc` to keep it |
| zsh | `eval "$(wireyard completion zsh)"`, in `~/.zshrc` to keep it |
| fish | `wireyard completion fish > ~/.config/fish/completions/wireyard.fish` |

## JSON Lines

`decode --out jsonl` prints one object a line, with every column in order. Integers are exact to 64
bits, bytes are lowercase hexadecimal, what a row does not have is null. Properties are
`{name: {type, value}}`; floats that JSON has no number for are `"NaN"`, `"Infinity"` and
`"-Infinity"`. Passwords are left out unless `--secrets` asks for them. `encode` takes these lines
back: for well-formed packets it returns the bytes they came from.
"""

JMQ_HEAD = f"""
# JMQ

The packet that clients and brokers of Sun/Open Message Queue exchange, as {SPEC} describes it
and the shipped classes write it; [errata.md](../errata.md) rules where they differ. Everything is
big-endian and every Java integer signed. A packet is a fixed header, a list of items (the variable
header), properties, and a body; sizes up to {MAX_PACKET_BYTES} bytes are believed.
"""

ITEMS_TEXT = """
Type and length take two bytes each, then comes the value; type 0 ends the list. Items of other
types are kept and written back (`unknown_items`).
"""

FLAGS_TEXT = "Letters in `flags` stand in this order."


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def cli_document() -> Iterator[str]:
    """Yield the lines of docs/cli.md."""
    yield from CLI_HEAD.strip().splitlines()
    settings = cli.context_settings
    top = click.Context(cli, info_name="wireyard", terminal_width=HELP_WIDTH, **settings)
    yield from help_section("wireyard", cli.get_help(top))
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=top, terminal_width=HELP_WIDTH)
        yield from help_section(f"wireyard {name}", command.get_help(context))


def help_section(title: str, text: str) -> Iterator[str]:
    """Yield a heading and a help text under it."""
    yield from ("", f"## {title}", "", "```", *(line.rstrip() for line in text.splitlines()), "```")


def jmq_document() -> Iterator[str]:
    """Yield the lines of docs/formats/jmq.md."""
    yield from JMQ_HEAD.strip().splitlines()
    yield from ("", "## Fixed header, versions 200 and 301", "", *header(HEADERS[301]))
    yield from ("## Fixed header, version 103", "", *header(HEADERS[103]))
    yield from ("## Items of the variable header", *ITEMS_TEXT.splitlines(), "")
    items = sorted(ITEMS.values(), key=lambda item: item.code)
    yield from markdown(
        ("type", "name", "value", "meaning", "source"),
        ((i.code, f"`{i.name}`", item_kind(i.width), i.doc, i.spec) for i in items),
    )
    yield from ("## Flags", "", FLAGS_TEXT, "")
    yield from markdown(("letter", "bit"), ((name, f"{bit:#06x}") for name, bit in FLAGS.items()))
    yield from ("## Packet types", "")
    yield from markdown(("type", "name"), PACKET_TYPES.items())
    yield from ("## Columns of a row", "")
    yield from columns((*COMMON, *COLUMNS))


def header(layout: Layout) -> Iterator[str]:
    """Yield the fields of a fixed header."""
    return markdown(
        ("offset", "bytes", "field", "type", "unit", "meaning", "section"),
        (
            (f.offset, f.width, f"`{f.name}`", f.kind, f.unit or "", f.doc, f.spec)
            for f in layout.fields
        ),
    )


def item_kind(width: int | None) -> str:
    """Return what an item's value is."""
    return "UTF-8 text" if width is None else f"i{width * 8}"


def columns(rows: Sequence[Column]) -> Iterator[str]:
    """Yield the columns of a row."""
    return markdown(
        ("column", "type", "unit", "meaning", "section"),
        ((f"`{c.name}`", arrow_type(c.kind), c.unit or "", c.doc, c.spec) for c in rows),
    )


DOCUMENTS = {"cli.md": cli_document, "formats/jmq.md": jmq_document}


def main(arguments: Sequence[str]) -> int:
    """Write every document, or compare; return the exit status."""
    stale = 0
    for name, lines in DOCUMENTS.items():
        path = DOCS / name
        wanted = "\n".join(lines()).rstrip() + "\n"
        found = path.read_text("utf-8") if path.exists() else ""
        if wanted == found:
            continue
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, "utf-8")
            continue
        stale = 1
        print(f"docs/{name} is stale: run python tools/generate_docs.py")
        changed = difflib.unified_diff(found.splitlines(), wanted.splitlines(), lineterm="", n=0)
        print(*list(changed)[:12], sep="\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
