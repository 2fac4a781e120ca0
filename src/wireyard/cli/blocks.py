"""Layout of text for people in lines of 80 columns: fields, wrapped text, and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from wireyard.cli.tables import printable

__all__ = ["WIDTH", "columns", "cut", "field", "ms_text", "wrapped"]

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
