"""Hex dumps of packets, with the meaning of the bytes beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wireyard.cli.frames import FoundFrame
from wireyard.cli.tables import print_lines, printable
from wireyard.formats import Format
from wireyard.formats.base import Annotation
from wireyard.streams.framer import GAP, GARBAGE, OK, TAIL
from wireyard.streams.redaction import annotate

__all__ = ["show_frame"]

_LINE_BYTES = 8
_DUMP_BYTES = 16
_MOST_LINES = 16
_FIELD_WIDTH = 20
_STYLES = ("cyan", "green", "yellow", "magenta", "bright_blue")
_HIDDEN = "--"
_KINDS = {
    OK: "packet",
    GARBAGE: "bytes that belong to no packet",
    TAIL: "unfinished packet",
    GAP: "gap",
}


def show_frame(
    frame: FoundFrame,
    format: Format,
    console: Console,
    *,
    whole: bool,
    secrets: bool,
    stream: str | None = None,
) -> None:
    """Print a row: every field of a packet, or only the bytes if it is none.

    Parameters
    ----------
    stream
        Name of its stream, if the input has several.
    """
    most = len(frame.data) if whole else _MOST_LINES
    kind = _KINDS.get(frame.status, f"{frame.status} packet")
    size = frame.stop - frame.start
    title = f"{format.name} {kind} at offset {frame.start} ({frame.start:#x}), {size} bytes"
    console.print(Text(title, "bold"))
    if frame.error:
        console.print(Text(printable(str(frame.error)), "red"))
    skipped = size - len(frame.data)
    if frame.status == GAP:
        console.print(Text("their bytes are not in the input", "dim"))
    elif frame.status == GARBAGE and (secrets or not format.secrets.types):
        print_lines(console, _dump(frame.data, skipped, most))
    else:
        marks = annotate(format, frame.data, frame.status, frame.context)
        styled = zip(marks, _cycle(len(marks)), strict=True)
        for spec, group in groupby(styled, key=lambda pair: pair[0].spec):
            console.print(Text(f"\n{spec}", "dim"))
            print_lines(console, _section(frame.data, list(group), secrets, most))
    console.print(_neighbours(frame, stream), soft_wrap=True)


def _cycle(count: int) -> Iterator[str]:
    return (_STYLES[place % len(_STYLES)] for place in range(count))


def _section(
    data: bytes, marks: Sequence[tuple[Annotation, str]], secrets: bool, most: int
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(justify="right", width=6, style="dim", no_wrap=True)
    table.add_column(width=_LINE_BYTES * 3 - 1, no_wrap=True)
    table.add_column(width=_FIELD_WIDTH, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for mark, style in marks:
        taken = data[mark.start : mark.stop]
        lines = _hex_lines(taken, _LINE_BYTES, most)
        if mark.hidden and not secrets:
            lines = [_HIDDEN + f" ({len(taken)} bytes)"]
        style = "red" if mark.field == "not readable" else style
        table.add_row(
            str(mark.start),
            Text("\n".join(lines), style),
            Text(printable(mark.field), f"bold {style}"),
            Text(printable(mark.value)),
        )
    return table


def _hex_lines(data: bytes, width: int, most: int) -> list[str]:
    """Return lines of hex, with a note if some were cut."""
    shown = data[: most * width]
    lines = [shown[at : at + width].hex(" ") for at in range(0, len(shown), width)]
    if len(shown) < len(data):
        lines.append(f".. {len(data) - len(shown)} more (--all)")
    return lines


def _dump(data: bytes, skipped: int, most: int) -> Table:
    """Return bytes without fields, as hex and as text.

    Parameters
    ----------
    skipped
        Number of bytes before them that are not in `data`.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(style="red", no_wrap=True)
    table.add_column(no_wrap=True)
    for place, line in enumerate(_hex_lines(data, _DUMP_BYTES, most)):
        at = place * _DUMP_BYTES
        text = "".join(
            chr(byte) if 32 <= byte < 127 else "." for byte in data[at : at + _DUMP_BYTES]
        )
        last = line.startswith("..")
        table.add_row("" if last else str(skipped + at), line, Text("" if last else text))
    return table


def _neighbours(frame: FoundFrame, stream: str | None) -> Text:
    at = "--at" if stream is None else f"--stream '{printable(stream)}' --at"
    before = "the first" if frame.previous is None else f"previous: {at} {frame.previous}"
    after = f"next: {at} {frame.stop}" if frame.has_next else "the last"
    return Text(f"\n{before}, {after}", "dim")
