"""Write the documents made from the code: docs/cli.md, pages for formats, layers and symptoms.

`python -m tools.generate_docs` writes them. With `--check` it only lists the documents that are not
up to date, and exits with 1 if there are any.
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

Every command reads paths, URLs or `-` for standard input. Compression (gzip, zstandard, xz,
bzip2, lz4) and the format are recognised by content, not by name. Results go to standard output,
notes to standard error. A closed pipe ends a command quietly, `NO_COLOR` is honoured, and a file
written with `-w` appears whole or not at all.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | data lost: damaged packets, bytes that belong to no packet, a truncated stream |
| 2 | bad usage |
| 3 | cannot read |
| 4 | cannot write |
| 130, 143 | ended by Ctrl-C or SIGTERM: nothing begun is left, lakes are as last committed |

Of packets that were cut off when they were captured (snaplen), data are lost too; so are all data
of a capture of which nothing is read, as of TLS alone without a key log. Questions (`why`, `sql`)
and `run` show damaged packets and gaps as rows or findings, and end with 0 if nothing else is lost.

Bad input is never left out silently: it is a row with the reason, and one line on standard error
has the position of the first. Too little memory, or a limit (`ulimit -v`) below the 1 GB of address
space that most commands need, is one line and status 3. A file that is a named pipe is noted,
because the command waits for the program at its other end.

## Shell completion

| shell | type |
|---|---|
| bash | `eval "$(wireyard completion bash)"`, in `~/.bashrc` to keep it |
| zsh | `eval "$(wireyard completion zsh)"`, in `~/.zshrc` to keep it |
| fish | `wireyard completion fish > ~/.config/fish/completions/wireyard.fish` |

Commands, options, formats, columns, verdicts and files are completed. `make man` writes man
pages into `build/man`: `man -M build/man wireyard-decode`.

## JSON Lines

`decode --out jsonl` prints one object a line, with every column in order. Integers are exact to 64
bits, bytes are lowercase hexadecimal, and missing values are null. Properties are
`{name: {type, value}}`; floats without a number in JSON are `"NaN"`, `"Infinity"` and
`"-Infinity"`. [Secrets](secrets.md) are left out unless `--secrets` is given. `encode` accepts
these lines: for well-formed packets it returns the original bytes. `json` is the same as one array.

## CSV

`decode --out csv`, or a file name that ends in `.csv`, gives a header and a record for each row
(RFC 4180, UTF-8, lines end with LF):

- Text is in quotes and may contain line breaks. An empty field is null, `""` is empty text.
- Times are ISO 8601 in UTC, with all digits: `captured_ns` as `2026-11-21T20:22:39.816169000Z`,
  times of JMQ and GPacket (ms since 1970) as `2026-11-21T20:22:39.816Z`. 0, which means never,
  stays `0`, and a number outside the calendar stays a number.
- Payloads are text if they are UTF-8 without control characters (tab and line breaks are allowed),
  otherwise `0x` and hexadecimal, which spreadsheets do not take for a number. `--payload hex` and
  `--payload base64` keep every byte; `hash` is SHA-256, `none` leaves the column out.
  `--payload-bytes N` truncates payloads and marks them: `abc...[1997 bytes cut]`. Other columns of
  bytes are hexadecimal.
- Lists, structures and properties are JSON.
- Cells have the text that was sent, so a spreadsheet may take one that begins with `=`, `+`, `-` or
  `@` for a formula, and run it. **For a spreadsheet add `--spreadsheet`**: such text, unless it is
  a number, gets an apostrophe in front, and a byte order mark shows that the file is UTF-8. On a
  terminal, control characters are shown as escapes.

A table (CSV, Arrow, Parquet) has one format. If a capture has several formats, each goes to a file
of its own: `x.mqtt.csv` and `x.jmq.csv` for `-w x.csv`; standard error lists the files.

## Conditions

`--where` of `decode` and `slice`, and `where=` in Python, take comparisons with AND, OR, NOT and
parentheses; NOT binds closest, then AND:

    topic == plant/7/state OR (qos > 0 AND NOT retain == true)
    destination in orders, 'a, b' and payload_size >= 0x100
    topic == plant/+/state OR topic contains alarm OR topic ~ ^plant/[0-9]+$
    captured_ns >= 2026-11-21T20:22:47.5Z

A comparison is COLUMN, one of `== != < <= > >= in contains ~`, VALUE. A value is plain text up to
AND, OR or a closing parenthesis, or it is in quotes of either kind. After `in` there may be several
values, separated by commas. `wireyard formats NAME` lists the columns.

- `==` and `!=` compare a `topic` with a topic filter if the value has `+` or `#` as a level.
- `contains` takes a part of a text, `~` a regular expression of RE2, whose time is linear, of up to
  1,000 characters.
- A time since 1970 may be written as it is printed, in UTC. `decode --since TIME --until TIME` does
  the same for the time of capture.
- A row without a value in the column matches neither a comparison nor its opposite, as in SQL. A
  format without the column has no value in any row, so `--format` is not needed.
- `topic` and `destination` stand for each other in formats that have only one of them.
- Errors have a position: `condition 'topic == a AND', character 15: ...`.
"""


def cli_document() -> Iterator[str]:
    """Yield the lines of docs/cli.md."""
    yield from CLI_HEAD.strip().splitlines()
    settings = cli.context_settings
    top = click.Context(cli, info_name="wireyard", terminal_width=HELP_WIDTH, **settings)
    yield from help_section("wireyard", cli.get_help(top))
    yield from command_sections(cli, top)


def command_sections(group: click.Group, context: click.Context) -> Iterator[str]:
    """Yield a section for each command of a group, and for those of groups in it."""
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

The GPacket specification sketches under "Use In S1MQ" how a GPacket can carry a JMQ packet.
`wireyard convert` implements this, in both directions. Packet type, timestamp, sequence and bit
flags have fields in the GPacket's header. Everything else is in the properties below; a property is
left out if its field has the value of a new packet. Properties of control packets stay properties
(a name that begins with a dot gets one more dot). Properties of a JMS message are in the payload,
before its body, as JMQ encodes them. Nothing is lost: after converting back, every packet has the
same bytes. A GPacket is converted only if the JMQ packet in it would be converted to the same bytes
(errata G9, G10).
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
        print(f"docs/{name} is stale: run python -m tools.generate_docs")
        changed = difflib.unified_diff(found.splitlines(), wanted.splitlines(), lineterm="", n=0)
        print(*list(changed)[:12], sep="\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
