"""``wireyard sql``, and its prompt: line editing, history, completion of tables and columns."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import opened_tables, reading_options, status_of
from wireyard.cli.options import PATH, examples, write_option
from wireyard.cli.output import kind_of, open_output, to_terminal
from wireyard.errors import UsageError
from wireyard.layout import Column
from wireyard.text import count_text

if TYPE_CHECKING:
    import pyarrow as pa

    from wireyard.answers import Tables

_LINE: Final = 80
_BATCH_ROWS: Final = 1 << 12
_SHOW_TABLES: Final = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)


@click.command(
    "sql",
    epilog=examples(
        "wireyard sql examples/traffic.pcap",
        "wireyard sql examples/traffic.pcap 'SELECT verdict, count(*) FROM deliveries GROUP BY 1'",
        "wireyard sql lake 'PIVOT deliveries ON verdict USING count(*) GROUP BY topic'",
        "wireyard sql lake 'FROM destinations ORDER BY bytes DESC LIMIT 10' -w top.csv",
        "wireyard sql a.pcap b.pcap 'SELECT * FROM sessions WHERE ended_by = $$dropped$$'",
    ),
)
@click.argument("inputs", metavar="INPUT|LAKE... [QUERY]", nargs=-1, required=True, type=PATH)
@reading_options
@click.option(
    "--out",
    type=click.Choice(["table", "csv", "jsonl", "parquet"]),
    help="By the ending of the -w file if not given; without one a table on a terminal, else"
    " jsonl.",
)
@write_option()
def command(
    inputs: tuple[str, ...],
    out: str | None,
    write: str | None,
    **how: Any,
) -> int:
    """Ask captures, streams, stores or a lake with SQL.

    QUERY is one SELECT or PIVOT in DuckDB's SQL. SHOW TABLES lists the tables, with their rows and
    columns; so does no query, but on a terminal that opens a prompt with history and completion.
    The tables are those of a lake: of captures, streams and stores they are made in a temporary
    folder while the command runs. The word offset, a column of all tables, is quoted in SQL:
    "offset". A query reads the tables and nothing else: no file, no network.
    """
    *paths, last = inputs
    is_query = any(char.isspace() for char in last) and not os.path.exists(last)
    query = last if is_query else None
    paths = paths if is_query else [*inputs]
    if not paths:
        raise UsageError("sql: name an INPUT or a LAKE before the query")
    kind = kind_of(write, out, WRITERS)
    typed = query is None and out is None and to_terminal(write) and sys.stdin.isatty()
    with opened_tables(paths, may_be_empty=True, **how) as tables:
        if typed:
            prompt(tables.names, tables.columns, lambda text: _answer(tables, text, kind, write))
        else:
            _answer(tables, query or "SHOW TABLES", kind, write)
    return status_of(tables)


def _answer(tables: Tables, query: str, kind: str, write: str | None) -> None:
    """Write the answer to a query."""
    if _SHOW_TABLES.fullmatch(query):
        found, writer = _listing(tables), _write_listing if kind == "table" else WRITERS[kind]
    else:
        found, writer = tables.sql(query), WRITERS[kind]
    with open_output(write, binary=kind == "parquet") as file:
        writer(found, file)
    exits.note_written(write, count_text(found.num_rows, "row"))


# --- tables ---------------------------------------------------------------------------------


def _listing(tables: Tables) -> pa.Table:
    """Return all tables with their numbers of rows, and their columns with types."""
    import pyarrow as pa

    from wireyard.answers.tables import identifier

    rows = []
    for name in tables.names:
        table = identifier(name)
        count = tables.sql(f"SELECT count(*) AS rows FROM {table}")["rows"][0].as_py()
        columns = tables.sql(f"SELECT column_name, column_type FROM (DESCRIBE {table})").to_pylist()
        texts = [f"{column['column_name']} {column['column_type']}" for column in columns]
        rows.append({"table": name, "rows": count, "columns": texts})
    return pa.Table.from_pylist(rows)


def _write_listing(found: pa.Table, file: IO[bytes]) -> None:
    for row in found.to_pylist():
        names = ", ".join(text.partition(" ")[0] for text in row["columns"])
        indent = " " * 4
        lines = textwrap.fill(names, _LINE, initial_indent=indent, subsequent_indent=indent)
        file.write(f"{row['table']}  {count_text(row['rows'], 'row')}\n{lines}\n".encode())


def _write_table(found: pa.Table, file: IO[bytes]) -> None:
    from wireyard.cli.tables import TableWriter, console_on
    from wireyard.formats.plain_values import json_value

    columns = [Column(field.name, _shown_kind(field.type), "") for field in found.schema]
    rows = (
        {
            name: value if isinstance(value, bytes | bool | None) else json_value(value)
            for name, value in row.items()
        }
        for batch in found.to_batches(_BATCH_ROWS)
        for row in batch.to_pylist()
    )
    with console_on(file) as console:
        TableWriter(console, chosen=True).write(rows, columns)


def _shown_kind(kind: pa.DataType) -> str:
    """Return the kind of column for showing values of an Arrow type."""
    import pyarrow as pa

    if pa.types.is_binary(kind):
        return "binary"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_nested(kind):
        return "json"
    return "int64" if pa.types.is_integer(kind) else "string"


def _write_jsonl(found: pa.Table, file: IO[bytes]) -> None:
    from wireyard.cli.decoding.cells import json_line
    from wireyard.formats.plain_values import json_value

    for batch in found.to_batches(_BATCH_ROWS):
        for row in batch.to_pylist():
            file.write(json_line(json_value(row)))


def _write_csv(found: pa.Table, file: IO[bytes]) -> None:
    from wireyard.cli.decoding.csv import write_csv

    write_csv(found.to_batches(_BATCH_ROWS), found.schema, file)


def _write_parquet(found: pa.Table, file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(found, pa.PythonFile(file, mode="w"), compression="zstd")


WRITERS: Mapping[str, Callable[[pa.Table, IO[bytes]], None]] = MappingProxyType(
    {"table": _write_table, "csv": _write_csv, "jsonl": _write_jsonl, "parquet": _write_parquet}
)


_MOST_LINES: Final = 1000
_WORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DESC", "JOIN"),
    *("USING", "PIVOT", "count(*)", "DISTINCT", "SHOW TABLES"),
)
_AT_ONCE: Final = ("show tables", "show all tables")
_ENDS: Final = ("exit", "quit", ".exit", ".quit", "\\q")


def completions(text: str, names: Iterable[str]) -> list[str]:
    """Return the words of SQL, tables and columns that begin like a text."""
    words = [word for word in _WORDS if text and word.lower().startswith(text.lower())]
    found = sorted({name for name in names if name.startswith(text)})
    quoted = ('"offset"' if name == "offset" else name for name in found)
    return [*quoted, *words]


def prompt(
    tables: Sequence[str], columns: Callable[[str], Sequence[str]], run: Callable[[str], None]
) -> None:
    """Run queries that are typed, until Ctrl-D.

    A query ends with a semicolon, or with an empty line; Ctrl-C drops it. `columns` returns the
    columns of a table; `run` runs a query and prints its answer.
    """
    _edit_lines(lambda line: _names(line, tables, columns))
    print(f"{len(tables)} tables, listed by SHOW TABLES; a query ends with ; and Ctrl-D ends all")
    lines: list[str] = []
    while True:
        try:
            lines.append(input(" ..> " if lines else "sql> "))
            query = "\n".join(lines).strip()
            word = query.rstrip("; ").lower()
            if word in _ENDS:
                return
            if lines[-1].strip() and not query.endswith(";") and word not in _AT_ONCE:
                continue
            lines = []
            if word:
                run(query)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            if exits.is_terminated():
                raise
            print()
            lines = []
        except UsageError as error:
            exits.note(str(error))


def _names(line: str, tables: Sequence[str], columns: Callable[[str], Sequence[str]]) -> list[str]:
    """Return the tables, and the columns of those that a line names, or of all."""
    named = [name for name in re.findall(r"\w+", line) if name in tables]
    return [*tables, *(column for name in named or tables for column in columns(name))]


def _edit_lines(names: Callable[[str], list[str]]) -> None:
    """Let `input` edit lines, with a history that is kept, and complete words."""
    try:
        import readline
    except ImportError:  # Python without it: lines are read as they are typed
        return
    import atexit

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    history = state / "wireyard" / "sql_history"
    with suppress(OSError):
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        history.touch(mode=0o600, exist_ok=True)
        readline.read_history_file(history)

    def save() -> None:
        with suppress(OSError):
            readline.write_history_file(history)

    def complete(text: str, number: int) -> str | None:
        found = completions(text, names(readline.get_line_buffer()))
        return found[number] if number < len(found) else None

    readline.set_history_length(_MOST_LINES)
    readline.set_completer_delims(" \t\n,()=<>;.*")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    atexit.register(save)
