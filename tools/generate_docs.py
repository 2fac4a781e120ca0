"""Generate documents from the code: docs/cli.md, and the pages of formats, layers and symptoms.

`python -m tools.generate_docs` writes them; with `--check` it only prints which are out of date,
and exits with 1 if any is.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from tools.format_pages import format_page, markdown
from tools.jmq_layer_page import jmq_page
from tools.layer_pages import mqtt_page
from tools.rmp_layer_page import rmp_page
from tools.symptoms_page import symptoms_page
from wireyard.cli import main as cli
from wireyard.formats import names
from wireyard.layers.port import TERSE

DOCS = Path(__file__).resolve().parent.parent / "docs"
HELP_WIDTH = 96

CLI_HEAD = """
# The command line

Every command reads paths, URLs or `-` for standard input; gzip and zstandard are opened by their
content, and the first bytes show the format. Results go to standard output, notes to standard
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
back: for well-formed packets it returns the bytes they came from. `json` is the same as one array.

## CSV

`decode --out csv`, or a file called `.csv`, is a header and a record for each row (RFC 4180, UTF-8,
lines end with LF):

- Text is in quotes and may hold line breaks; nothing between two commas is null, `""` is empty
  text.
- Times are ISO 8601 in UTC, with all digits: `captured_ns` as `2026-11-21T20:22:39.816169000Z`,
  times of JMQ and GPacket (ms since 1970) as `2026-11-21T20:22:39.816Z`. 0, which means never,
  stays `0`, and a number that no calendar has stays a number.
- Payloads are text where they are UTF-8 without control characters (tab and line breaks may be
  there), else `0x` and hexadecimal, which no spreadsheet takes for a number. `--payload hex` and
  `--payload base64` give back every byte; `hash` is SHA-256, `none` leaves the column out.
  `--payload-bytes N` cuts payloads, and says so: `abc...[1997 bytes cut]`. Other columns of bytes
  are hexadecimal.
- Lists, structures and properties are JSON.
- Cells hold what was sent, so a spreadsheet may take one that begins with `=`, `+`, `-` or `@` for
  a formula, and run it. **For a spreadsheet add `--spreadsheet`**: such text, unless it is a
  number, gets an apostrophe in front, and a byte order mark shows that the file is UTF-8. On a
  terminal control characters are shown as escapes.

A table (CSV, Arrow, Parquet) has one format: the rows of a capture with several go to a file each,
`x.mqtt.csv` and `x.jmq.csv` for `-w x.csv`, and standard error names them.

## Conditions

`--where` of `decode` and `slice`, and `where=` in Python, take comparisons with AND, OR, NOT and
parentheses; NOT binds closest, then AND:

    topic == plant/7/state OR (qos > 0 AND NOT retain == true)
    destination in orders, 'a, b' and payload_size >= 0x100

A comparison is COLUMN, one of `== != < <= > >= in`, VALUE. A value is text as it is, up to AND, OR
or a parenthesis that closes, or in quotes of either kind; several with commas between them after
`in`. `wireyard formats NAME` lists the columns.

- A row that has no value in the column matches neither a comparison nor its opposite, as in SQL. A
  format that does not have the column has no value in any row, so `--format` is never needed.
- `topic` and `destination` stand for each other where a format has only one of them.
- What is wrong is named with its place: `condition 'topic == a AND', character 15: ...`.
"""


def cli_document() -> Iterator[str]:
    """Yield the lines of docs/cli.md."""
    yield from CLI_HEAD.strip().splitlines()
    settings = cli.context_settings
    top = click.Context(cli, info_name="wireyard", terminal_width=HELP_WIDTH, **settings)
    yield from help_section("wireyard", cli.get_help(top))
    yield from command_sections(cli, top)


def command_sections(group: click.Group, context: click.Context) -> Iterator[str]:
    """Yield a section for each command of a group, nested ones included."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=context, terminal_width=HELP_WIDTH)
        yield from help_section(inner.command_path, command.get_help(inner))
        if isinstance(command, click.Group):
            yield from command_sections(command, inner)


def help_section(title: str, text: str) -> Iterator[str]:
    """Yield a heading and a help text under it."""
    yield from ("", f"## {title}", "", "```", *(line.rstrip() for line in text.splitlines()), "```")


PORT_HEAD = """
# JMQ packets as GPackets

What the GPacket specification sketches under "Use In S1MQ", worked out: `wireyard convert` does it,
both ways. Packet type, timestamp, sequence and bit flags have their places in the GPacket's header.
Everything else is in the properties below, which are left out where a field has the value that a
new packet has. Properties of control packets stay properties (a name that begins with a dot gets
one more); those of a JMS message stand in the payload, in front of its body, as JMQ marshals them.
Nothing is lost: converted back, every packet has the same bytes. A GPacket is converted only if the
JMQ packet in it would be converted to the same bytes (errata G9, G10).
"""


def port_document() -> Iterator[str]:
    """Yield the lines of docs/formats/port.md."""
    yield from (*PORT_HEAD.strip().splitlines(), "")
    rows = (
        (f"`{one.name}`", one.type, f"`{one.field}`" if one.field else "", one.doc) for one in TERSE
    )
    yield from markdown(("property", "type", "JMQ field", "meaning"), rows)


DOCUMENTS: dict[str, Callable[[], Iterator[str]]] = {
    "cli.md": cli_document,
    **{f"formats/{name}.md": partial(format_page, name) for name in names()},
    "formats/port.md": port_document,
    "layers/jmq.md": jmq_page,
    "layers/mqtt.md": mqtt_page,
    "layers/rmp.md": rmp_page,
    "symptoms.md": symptoms_page,
}


def main(arguments: Sequence[str]) -> int:
    """Write all documents, or compare them; return the exit status."""
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
        print(f"docs/{name} is stale: run python -m tools.generate_docs")
        changed = difflib.unified_diff(found.splitlines(), wanted.splitlines(), lineterm="", n=0)
        print(*list(changed)[:12], sep="\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
