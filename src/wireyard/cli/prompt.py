"""The prompt of ``wireyard sql``: line editing, history, completion of tables and columns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wireyard.cli import exits
from wireyard.errors import UsageError

__all__ = ["completions", "prompt"]

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

    A query ends with a semicolon, or with an empty line; Ctrl-C drops it.

    Parameters
    ----------
    columns
        Returns the columns of a table.
    run
        Runs a query and prints its answer.
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
