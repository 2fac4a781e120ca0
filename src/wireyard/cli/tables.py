"""Rows as a table for people: the columns that distinguish rows, as wide as the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, islice
from types import MappingProxyType
from typing import IO, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from wireyard.cli.jsonl import json_value
from wireyard.cli.moments import moment
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.streams.framer import OK

__all__ = [
    "LiveTables",
    "console_on",
    "padded",
    "print_lines",
    "printable",
    "width_of",
    "write_table",
]

_SAMPLE_ROWS = 100
"""Rows that are looked at to choose columns and widths, and so what is held before printing."""
_MOST_CELL = 56
_LEAST_CELL = 8
_LEAST_SHARED = 12
"""Of columns that all have to be there; narrower, rows are shown as records."""
_OPENED = ("payload_value", "payload_error")
_OFFSET_DIGITS = 9  # offsets grow: this much is a gigabyte
_PIPED_WIDTH = 120
_STRUCTURED = ("properties", "name_values", "filters", "json", "binary")
_PLACE = ("offset", "length")
_PLACE_CAPTURED = ("captured_ns", "frame", "length")
"""What comes first: where a packet is in its stream, or when it was captured and in which frame."""
_OF_STREAM = ("source", "stream", "src_addr", "dst_addr", "format", "status")
"""Columns that say what the heading of a stream says, or are the same in all rows of a table."""
_SHOWN_BYTES = 16


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with status 1


@contextmanager
def console_on(file: IO[bytes]) -> Iterator[Console]:
    """Give a console that writes to `file`; ``NO_COLOR`` and ``COLUMNS`` count."""
    own = file is not sys.stdout.buffer
    text = TextIOWrapper(file, "utf-8", write_through=True) if own else sys.stdout
    wide = not text.isatty() and "COLUMNS" not in os.environ
    try:
        yield _Console(file=text, width=_PIPED_WIDTH if wide else None, highlight=False)
    finally:
        if isinstance(text, TextIOWrapper) and own:
            text.detach()  # the file is not ours to close


def printable(text: str) -> str:
    """Return text from the wire for one line: nothing in it may move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def print_lines(console: Console, what: RenderableType) -> None:
    """Print something without the spaces that fill its lines up."""
    with console.capture() as captured:
        console.print(what, crop=False)
    lines = captured.get().split("\n")
    console.file.write("\n".join(line.rstrip(" ") for line in lines))


def write_table(
    rows: Iterable[Row],
    columns: Sequence[Column],
    console: Console,
    *,
    chosen: bool,
    heading: str | None = None,
) -> None:
    """Print rows as they come, below the name of their stream if they have a heading.

    Parameters
    ----------
    chosen
        Whether the user named the columns, so that none is left out.
    """
    rows = iter(rows)
    if heading is not None:
        console.print(Text(printable(heading), "bold"), soft_wrap=True)
        if not chosen:
            columns = [column for column in columns if column.name not in _OF_STREAM]
    sample = list(islice(rows, _SAMPLE_ROWS))
    shown = list(columns) if chosen else _telling(columns, sample, console.width)
    if chosen and not _fits(shown, sample, console.width):
        _write_records(chain(sample, rows), shown, console)
        return
    widths = _fit(shown, sample, console.width, drop=not chosen)
    shown = shown[: len(widths)]
    header = True
    for chunk in _chunks(chain(sample, rows), chosen):
        if isinstance(chunk, Text):
            console.print(chunk, soft_wrap=True)
            continue
        print_lines(console, _lines(chunk, shown, widths, console, header))
        header = False


class LiveTables:
    """Rows of streams that grow, printed at once under headings for those they are of.

    The columns shown are those in which rows of a format have differed so far.
    """

    def __init__(self) -> None:
        self._heading: str | None = None
        self._samples: dict[tuple[str, ...], list[Row]] = {}
        self._shown: dict[tuple[str, ...], list[Column]] = {}
        self._header: list[Column] = []

    def write(
        self,
        heading: str | None,
        rows: Iterable[Row],
        columns: Sequence[Column],
        console: Console,
        *,
        chosen: bool,
    ) -> None:
        """Print the rows that there are of a stream; the parameters are those of `write_table`."""
        held = list(rows)
        if not held:
            return
        if not chosen:
            columns = [column for column in columns if column.name not in _OF_STREAM]
        if heading is not None and heading != self._heading:
            console.print(Text(printable(heading), "bold"), soft_wrap=True)
        self._heading = heading
        names = tuple(column.name for column in columns)
        sample = self._samples[names] = [*self._samples.get(names, []), *held][-_SAMPLE_ROWS:]
        shown = list(columns)
        if not chosen:
            known = self._shown.get(names, [])
            telling = _telling(columns, sample, console.width)
            shown = telling if all(one in telling for one in known) else [*known]
            shown += [one for one in telling if one not in shown]
        self._shown[names] = shown
        widths = _fit(shown, sample, console.width, drop=not chosen)
        shown = shown[: len(widths)]
        for chunk in _chunks(iter(held), chosen):
            if isinstance(chunk, Text):
                console.print(chunk, soft_wrap=True)
                continue
            header = shown != self._header
            print_lines(console, _lines(chunk, shown, widths, console, header))
            self._header = shown


def _telling(columns: Sequence[Column], sample: Sequence[Row], width: int) -> list[Column]:
    """Choose the place, the text that differs between rows, then what has structure.

    Where rules open payloads, what they carry stands behind the place and what it is of. Where
    all that is too wide the time is left out, which the frame leads to.
    """
    opened = [
        column
        for name in _OPENED
        for column in columns
        if column.name == name and any(row.get(name) is not None for row in sample)
    ]
    captured = any(column.name == "captured_ns" for column in columns)
    first_ones = (_PLACE_CAPTURED if captured else _PLACE)[: -1 if opened else None]
    place = [column for name in first_ones for column in columns if column.name == name]
    texts = [column for column in columns if column.kind == "string" and _differs(column, sample)]
    first = next((c for c in columns if c.kind == "string" and c.name.endswith("_name")), None)
    if first is not None and first not in texts:
        texts.insert(0, first)
    texts.sort(key=lambda one: (one is not first, one.name not in ("topic", "destination")))
    rest = [column for column in columns if column.kind in _STRUCTURED and _differs(column, sample)]
    if opened:
        about = [one for one in columns if one.name in ("topic", "destination")]
        opened = [*([first] if first is not None else []), *about, *opened]
        if captured and not _fits([*place, *opened], sample, width):
            place = [one for one in place if one.name != "captured_ns"]
    others = [one for one in (*texts, *reversed(rest)) if one not in opened]
    return [*place, *opened, *others]


def _differs(column: Column, sample: Sequence[Row]) -> bool:
    packets = [row for row in sample if row["status"] == OK]
    values = [_cell(column, row) for row in packets]
    return any(values) and (len(values) == 1 or len(set(values)) > 1)


def _fit(columns: Sequence[Column], sample: Sequence[Row], width: int, *, drop: bool) -> list[int]:
    """Return a width for each column that fits, in order; the last one takes what is left.

    The first is there in any case. Those that have to be there, all or what payloads carry and
    what stands before it, share what there is: the widest are cut.
    """
    widths: list[int] = []
    wide = _wanted(columns, sample)
    names = [column.name for column in columns]
    opened = [place for place, name in enumerate(names, 1) if name in _OPENED]
    needed = max(opened, default=0) if drop else len(wide)
    most = _share(columns[:needed], wide[:needed], width)
    for column, wanted in zip(columns, [*most, *wide[needed:]], strict=True):
        left = width - sum(widths) - 2 * len(widths)
        if drop and widths and left < min(wanted, max(_LEAST_CELL, len(column.name))):
            break
        widths.append(min(wanted, left) if drop else wanted)
    return widths


def _wanted(columns: Sequence[Column], sample: Sequence[Row]) -> list[int]:
    """Return how wide columns are in which nothing is cut that is not very long."""
    wide = []
    for column in columns:
        cells = [column.name, *(_cell(column, row) for row in sample)]
        least = _OFFSET_DIGITS if column.name == "offset" else 0
        wide.append(min(max(least, *map(cell_len, cells)), _MOST_CELL))
    return wide


def _share(columns: Sequence[Column], wide: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns that share a line: the widest are cut to one width.

    Numbers and times are not cut, and nothing below `_LEAST_SHARED`.
    """
    room = width - 2 * max(len(wide) - 1, 0)
    for most in range(_MOST_CELL, _LEAST_SHARED - 1, -1):
        widths = [
            one if _is_number(column) or column.name == "captured_ns" else min(one, most)
            for column, one in zip(columns, wide, strict=True)
        ]
        if sum(widths) <= room:
            break
    return widths


def _fits(columns: Sequence[Column], sample: Sequence[Row], width: int) -> bool:
    """Return whether all columns can be read side by side."""
    shared = _share(columns, _wanted(columns, sample), width)
    return sum(shared) + 2 * max(len(shared) - 1, 0) <= width


def _write_records(rows: Iterable[Row], columns: Sequence[Column], console: Console) -> None:
    """Print each row as lines, one a column that is not null."""
    indent = max(cell_len(column.name) for column in columns) + 2
    for number, row in enumerate(rows, 1):
        console.print(Text(f"row {number}", "bold"), soft_wrap=True)
        for column in columns:
            if (cell := _cell(column, row)) or row.get(column.name) is not None:
                line = Text.assemble((f"{column.name:<{indent}}", "cyan"), cell)
                line.truncate(console.width, overflow="ellipsis")
                console.print(line, soft_wrap=True)


def _is_number(column: Column) -> bool:
    return column.kind in ("int32", "int64", "offset") and column.name != "captured_ns"


def _chunks(rows: Iterator[Row], chosen: bool) -> Iterator[list[Row] | Text]:
    """Cut rows where one is no packet: it gets a line of its own that says why."""
    chunk: list[Row] = []
    for row in rows:
        fault = not chosen and row["status"] != OK
        if chunk and (fault or len(chunk) >= _SAMPLE_ROWS):
            yield chunk
            chunk = []
        if fault:
            yield _fault(row)
        else:
            chunk.append(row)
    if chunk:
        yield chunk


def _fault(row: Row) -> Text:
    why = f" {row['error']['message']}" if row["error"] else ""
    place = f"{row['offset']}, {row['length']} bytes: "
    return Text.assemble(place, (row["status"], "bold red"), (printable(why), "red"))


def _lines(
    rows: Sequence[Row],
    columns: Sequence[Column],
    widths: Sequence[int],
    console: Console,
    header: bool,
) -> Segments:
    """Return rows as lines, below the names of their columns with `header`.

    Where a number is longer than all that were looked at, the last column is cut for it. rich's
    own table, which chooses widths again, costs eight times as much.
    """
    cells = [[_cell(column, row) for row in rows] for column in columns]
    wide = [
        max(width, *map(width_of, some)) if _is_number(column) else width
        for column, width, some in zip(columns, widths, cells, strict=True)
    ]
    if not _is_number(columns[-1]):
        over = sum(wide) + 2 * (len(wide) - 1) - console.width
        wide[-1] -= min(max(over, 0), wide[-1] - 1)
    place, bold = console.get_style("cyan"), console.get_style("table.header")
    filled = []
    for column, width, some in zip(columns, wide, cells, strict=True):
        right = _is_number(column)
        style = place if column.name in (*_PLACE, *_PLACE_CAPTURED) else None
        one = [Segment(padded(cell, width, right=right), style) for cell in some]
        filled.append([Segment(padded(column.name, width, right=right), bold), *one][not header :])
    gap, end = Segment("  "), Segment.line()
    parts: list[Segment] = []
    for line in zip(*filled, strict=True):
        parts += [part for cell in line for part in (cell, gap)]
        parts[-1] = end
    return Segments(parts)


def padded(cell: str, width: int, *, right: bool) -> str:
    """Return a cell as wide as its column, cut if it is wider."""
    wide = width_of(cell)
    if wide > width:
        cell = set_cell_size(cell, width - 1) + "…"
    room = " " * (width - wide)
    return room + cell if right else cell + room


def width_of(cell: str) -> int:
    """Return how many columns of a terminal a cell takes."""
    return len(cell) if cell.isascii() else cell_len(cell)


def _bytes_cell(data: bytes) -> str:
    shown = data[:_SHOWN_BYTES].hex()
    return shown if len(data) <= _SHOWN_BYTES else f"{shown}.. ({len(data)} bytes)"


def _properties_cell(properties: Mapping[str, tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={json_value(value)}" for name, (_, value) in properties.items())


_CELLS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "binary": _bytes_cell,
        "properties": _properties_cell,
        "bool": lambda value: "yes" if value else "no",
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "int32s": lambda values: ", ".join(map(str, values)),
        "filters": lambda filters: ", ".join(f"{f['filter']} at {f['qos']}" for f in filters),
        "name_values": lambda pairs: ", ".join(
            f"{pair['name']}={json_value(pair['value'])}" for pair in pairs
        ),
        "items": lambda items: ", ".join(f"{i['type']}={i['value'].hex()}" for i in items),
        "error": lambda error: str(error["message"]),
    }
)


def _cell(column: Column, row: Row) -> str:
    value = row.get(column.name)
    if column.name == "captured_ns" and value is not None:
        return moment(value, 3)
    return "" if value is None else printable(_CELLS.get(column.kind, str)(value))
