"""Tables for people: the columns that distinguish rows, fitted to the width of the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, islice
from typing import IO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from wireyard.cli.decoding.cells import cell_of
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.streams.framer import OK
from wireyard.text import count_text, printable

_SAMPLE_ROWS = 100
"""Rows that are read before printing, to choose columns and widths."""
_MOST_CELL = 56
_LEAST_CELL = 8
_LEAST_SHARED = 12
"""Least width of columns that must all be shown; if they are narrower, rows become records."""
_OPENED = ("payload_value", "payload_error")
_OFFSET_DIGITS = 9  # offsets grow: this much is a gigabyte
_PIPED_WIDTH = 120
_STRUCTURED = ("properties", "name_values", "filters", "json", "binary")
_PLACE = ("offset", "length")
_PLACE_CAPTURED = ("captured_ns", "frame", "length")
"""The first columns: the position of a packet in its stream, or its capture time and frame."""
_OF_STREAM = ("source", "stream", "src_addr", "dst_addr", "format", "status")
"""Columns that repeat the heading of a stream, or are equal in all rows of a table."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with status 1


@contextmanager
def console_on(file: IO[bytes]) -> Iterator[Console]:
    """Open a console that writes to `file`; ``NO_COLOR`` and ``COLUMNS`` are honoured."""
    own = file is not sys.stdout.buffer
    text = TextIOWrapper(file, "utf-8", write_through=True) if own else sys.stdout
    wide = not text.isatty() and "COLUMNS" not in os.environ
    try:
        yield _Console(file=text, width=_PIPED_WIDTH if wide else None, highlight=False)
    finally:
        if isinstance(text, TextIOWrapper) and own:
            text.detach()  # leaves the file open


def print_lines(console: Console, what: RenderableType) -> None:
    """Print a renderable without trailing spaces."""
    with console.capture() as captured:
        console.print(what, crop=False)
    lines = captured.get().split("\n")
    console.file.write("\n".join(line.rstrip(" ") for line in lines))


class TableWriter:
    """Prints rows in columns, those of each stream below its heading.

    If the user has `chosen` the columns, none is left out. Rows that are `live`, of growing
    streams, are printed at once, in the columns in which the rows of a format have differed so far;
    otherwise the columns are those in which the first rows differ.
    """

    def __init__(self, console: Console, *, chosen: bool, live: bool = False) -> None:
        self._console, self._chosen, self._live = console, chosen, live
        self._heading: str | None = None
        self._samples: dict[tuple[str, ...], list[Row]] = {}
        self._shown: dict[tuple[str, ...], list[Column]] = {}
        self._header: list[Column] = []

    def write(
        self, rows: Iterable[Row], columns: Sequence[Column], heading: str | None = None
    ) -> None:
        """Print rows of a stream below its name, if there is one and it is not yet above them."""
        console, chosen, live = self._console, self._chosen, self._live
        rows = iter(rows)
        held = list(rows if live else islice(rows, _SAMPLE_ROWS))
        if not held:
            return
        if heading is not None and heading != self._heading:
            console.print(Text(printable(heading), "bold"), soft_wrap=True)
        self._heading = heading
        if not chosen and (live or heading is not None):
            columns = [column for column in columns if column.name not in _OF_STREAM]
        names = tuple(column.name for column in columns)
        before = self._samples.get(names, []) if live else []
        sample = self._samples[names] = [*before, *held][-_SAMPLE_ROWS:]
        shown = list(columns) if chosen else self._differing(columns, names, sample)
        if chosen and not live and not _fits(shown, sample, console.width):
            _write_records(chain(held, rows), shown, console)
            return
        widths = _fit(shown, sample, console.width, drop=not chosen)
        shown = shown[: len(widths)]
        header = not live or shown != self._header
        for chunk in _chunks(chain(held, rows), chosen):
            if isinstance(chunk, Text):
                console.print(chunk, soft_wrap=True)
                continue
            print_lines(console, _lines(chunk, shown, widths, console, header))
            header, self._header = False, shown

    def _differing(
        self, columns: Sequence[Column], names: tuple[str, ...], sample: Sequence[Row]
    ) -> list[Column]:
        """Return the columns to show; of growing streams those that were shown stay."""
        wanted = _distinguishing(columns, sample, self._console.width)
        known = self._shown.get(names, []) if self._live else []
        shown = wanted if all(column in wanted for column in known) else [*known]
        self._shown[names] = shown = [*shown, *(one for one in wanted if one not in shown)]
        return shown


def _distinguishing(columns: Sequence[Column], sample: Sequence[Row], width: int) -> list[Column]:
    """Choose columns: the position, then text that differs between rows, then structured values.

    If payloads are decoded, their values follow the position and the destination. If all that is
    too wide, the time is left out, which can be found by the frame.
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
    texts.sort(key=lambda c: (c is not first, c.name not in ("topic", "destination")))
    rest = [column for column in columns if column.kind in _STRUCTURED and _differs(column, sample)]
    if opened:
        about = [column for column in columns if column.name in ("topic", "destination")]
        opened = [*([first] if first is not None else []), *about, *opened]
        if captured and not _fits([*place, *opened], sample, width):
            place = [column for column in place if column.name != "captured_ns"]
    others = [column for column in (*texts, *reversed(rest)) if column not in opened]
    return [*place, *opened, *others]


def _differs(column: Column, sample: Sequence[Row]) -> bool:
    packets = [row for row in sample if row["status"] == OK]
    values = [cell_of(column, row) for row in packets]
    return any(values) and (len(values) == 1 or len(set(values)) > 1)


def _fit(columns: Sequence[Column], sample: Sequence[Row], width: int, *, drop: bool) -> list[int]:
    """Return the widths of the columns that fit, in order; the last one gets the remaining width.

    The first column always fits. Required columns (all, or those up to the decoded payloads) share
    the width: the widest are cut.
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
    """Return the widths that columns need for their cells, up to `_MOST_CELL`."""
    wide = []
    for column in columns:
        cells = [column.name, *(cell_of(column, row) for row in sample)]
        least = _OFFSET_DIGITS if column.name == "offset" else 0
        wide.append(min(max(least, *map(cell_len, cells)), _MOST_CELL))
    return wide


def _share(columns: Sequence[Column], wide: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns that share a line: the widest are cut to the same width.

    Numbers and times are not cut, and no column below `_LEAST_SHARED`.
    """
    room = width - 2 * max(len(wide) - 1, 0)
    for most in range(_MOST_CELL, _LEAST_SHARED - 1, -1):
        widths = [
            needed if _is_number(column) or column.name == "captured_ns" else min(needed, most)
            for column, needed in zip(columns, wide, strict=True)
        ]
        if sum(widths) <= room:
            break
    return widths


def _fits(columns: Sequence[Column], sample: Sequence[Row], width: int) -> bool:
    """Return whether all columns fit side by side."""
    shared = _share(columns, _wanted(columns, sample), width)
    return sum(shared) + 2 * max(len(shared) - 1, 0) <= width


def _write_records(rows: Iterable[Row], columns: Sequence[Column], console: Console) -> None:
    """Print each row as a record, with a line for each column that is not null."""
    indent = max(cell_len(column.name) for column in columns) + 2
    for number, row in enumerate(rows, 1):
        console.print(Text(f"row {number}", "bold"), soft_wrap=True)
        for column in columns:
            if (cell := cell_of(column, row)) or row.get(column.name) is not None:
                line = Text.assemble((f"{column.name:<{indent}}", "cyan"), cell)
                line.truncate(console.width, overflow="ellipsis")
                console.print(line, soft_wrap=True)


def _is_number(column: Column) -> bool:
    return column.kind in ("int32", "int64", "offset") and column.name != "captured_ns"


def _chunks(rows: Iterator[Row], chosen: bool) -> Iterator[list[Row] | Text]:
    """Yield rows in chunks; a row that is no packet becomes a line of its own, with its error."""
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
    place = f"{row['offset']}, {count_text(row['length'], 'byte')}: "
    return Text.assemble(place, (row["status"], "bold red"), (printable(why), "red"))


def _lines(
    rows: Sequence[Row],
    columns: Sequence[Column],
    widths: Sequence[int],
    console: Console,
    header: bool,
) -> Segments:
    """Return rows as lines, below the names of their columns with `header`.

    If a number is longer than all numbers of the sample, the last column is cut for it. rich's own
    table computes widths again, and takes eight times as long.
    """
    cells = [[cell_of(column, row) for row in rows] for column in columns]
    wide = [
        max(width, *map(width_of, texts)) if _is_number(column) else width
        for column, width, texts in zip(columns, widths, cells, strict=True)
    ]
    if not _is_number(columns[-1]):
        over = sum(wide) + 2 * (len(wide) - 1) - console.width
        wide[-1] -= min(max(over, 0), wide[-1] - 1)
    place, bold = console.get_style("cyan"), console.get_style("table.header")
    filled = []
    for column, width, texts in zip(columns, wide, cells, strict=True):
        right = _is_number(column)
        style = place if column.name in (*_PLACE, *_PLACE_CAPTURED) else None
        name = Segment(padded(column.name, width, right=right), bold)
        segments = [Segment(padded(cell, width, right=right), style) for cell in texts]
        filled.append([name, *segments][not header :])
    gap, end = Segment("  "), Segment.line()
    parts: list[Segment] = []
    for line in zip(*filled, strict=True):
        parts += [part for cell in line for part in (cell, gap)]
        parts[-1] = end
    return Segments(parts)


def padded(cell: str, width: int, *, right: bool) -> str:
    """Pad or cut a cell to the width of its column."""
    wide = width_of(cell)
    if wide > width:
        cell = set_cell_size(cell, width - 1) + "…"
    room = " " * (width - wide)
    return room + cell if right else cell + room


def width_of(cell: str) -> int:
    """Return the width of a cell in columns of a terminal."""
    return len(cell) if cell.isascii() else cell_len(cell)
