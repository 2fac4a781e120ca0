"""Hex dumps of the rows at an offset or in a captured frame, with the meaning of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wireyard.captures.directed import CapturedStream
from wireyard.cli.tables import print_lines
from wireyard.errors import DecodeError, SourceError, UsageError
from wireyard.formats import Format
from wireyard.formats.base import Annotation
from wireyard.streams.blocks import Block, DirectedStream
from wireyard.streams.framer import GAP, GARBAGE, MALFORMED, OK, TAIL, Framer
from wireyard.streams.redaction import annotate
from wireyard.streams.scan import OpenedStream, load_fast_path
from wireyard.text import count_text, printable


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A row of a stream with its bytes and its neighbours."""

    start: int
    stop: int
    status: str
    context: int
    error: DecodeError | None
    data: bytes
    """Its bytes; for garbage larger than a window only the last ones."""
    previous: int | None
    """Offset of the previous row; None if it is the first."""
    has_next: bool


def find_frame(
    opened: DirectedStream, format: Format, at: int, max_packet_bytes: int | None
) -> FoundFrame:
    """Return the row of a stream that contains the byte at offset `at`.

    A `SourceError` is raised if the stream is empty, a `UsageError` if there is no such offset.
    """
    if at < 0:
        raise UsageError(f"--at {at}: offsets count from the start of the stream, from 0")
    limit = max_packet_bytes or format.framing.max_packet_bytes
    framer = Framer(format, limit, context=opened.context)
    for found in _find(opened, format, at, at + 1, framer):
        return found
    if not framer.position:
        raise SourceError(f"{opened.name}: is empty")
    raise UsageError(f"--at {at}: {opened.stream} has {framer.position} bytes")


def find_frames(
    opened: DirectedStream, format: Format, start: int, stop: int, max_packet_bytes: int | None
) -> Iterator[FoundFrame]:
    """Yield the rows of a stream that overlap the bytes ``[start, stop)``."""
    limit = max_packet_bytes or format.framing.max_packet_bytes
    return _find(opened, format, start, stop, Framer(format, limit, context=opened.context))


def offsets_in(opened: CapturedStream, frame: int) -> list[tuple[int, int]]:
    """Return the ranges of a stream, start and stop, that arrived in a captured frame.

    Frames are numbered from 1 on.
    """
    captured = opened.captured
    runs = captured.runs
    places = np.flatnonzero(np.isin(runs.records, captured.content.completed_with(frame - 1)))
    starts = runs.offsets[places]
    return list(zip(starts.tolist(), (starts + runs.lengths[places]).tolist(), strict=True))


def _find(
    opened: DirectedStream, format: Format, start: int, stop: int, framer: Framer
) -> Iterator[FoundFrame]:
    """Yield the rows that overlap the bytes ``[start, stop)``.

    The stream is read from its beginning, because rows depend on all bytes before them.
    """
    fast = load_fast_path(format, opened.bytes_ahead)
    previous: int | None = None
    for block in opened.blocks(framer, fast.scan_frames if fast else None, stop):
        offsets = block.offsets.tolist()
        for row in np.flatnonzero(block.offsets + block.lengths > start).tolist():
            if offsets[row] < stop:
                before = offsets[row - 1] if row else previous
                yield _frame(opened, format, block, row, before)
        previous = offsets[-1]


def _frame(
    opened: DirectedStream, format: Format, block: Block, row: int, previous: int | None
) -> FoundFrame:
    start = int(block.offsets[row])
    stop = start + int(block.lengths[row])
    place = int(block.places[row])
    end = place + stop - start
    data = block.data[max(place, 0) : end].tobytes()
    context = int(block.contexts[row])
    odd = block.odd.get(row)
    if odd is not None:
        status, error = odd.status, odd.error
        data = b"" if status == GAP else data  # not captured
    else:
        _, error = format.read_row(data, context)
        status = MALFORMED if error else OK
    if isinstance(opened, OpenedStream):  # its size may be unknown
        following = next(opened.rest, None) if end == block.stop else None
        more = end < block.stop or (following is not None and len(following.view) > 0)
    else:
        more = opened.size is not None and stop < opened.size
    return FoundFrame(start, stop, status, context, error, data, previous, more)


_LINE_BYTES = 8
_DUMP_BYTES = 16
_MOST_LINES = 16
_FIELD_WIDTH = 24
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

    `stream` is the name of its stream, if the input has several.
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
            lines = [_HIDDEN + f" ({count_text(len(taken), 'byte')})"]
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

    `skipped` is the number of bytes before them that are not in `data`.
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
