"""The outputs of ``wireyard decode`` that are text: a list, tables, JSON Lines, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import repeat
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from wireyard.cli.decoding.cells import fields_line, row_line
from wireyard.cli.decoding.reading import UNOPENED, Faults, OpenInput, read_stream
from wireyard.cli.decoding.selection import PARENT, Selection
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.schema import CAPTURED
from wireyard.streams.framer import MALFORMED, OK

if TYPE_CHECKING:
    from wireyard.cli.decoding.job import Job
    from wireyard.streams.blocks import DirectedStream


def _write_list(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.cli.decoding.listing import PacketList
    from wireyard.cli.tables import console_on

    limit, several = job.budget.limit, len(job.paths) > 1
    with (
        console_on(file) as console,
        closing(PacketList(console, verbose=job.verbose, limit=limit, headings=several)) as packets,
    ):
        job.before_waits = packets.flush
        for reading in readings:
            packets.add(reading)


def _write_table(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.captures.stores.stream import StoreStream
    from wireyard.cli.tables import TableWriter, console_on
    from wireyard.streams.framer import GAP

    chosen = job.request.columns is not None
    with console_on(file) as console:
        writers = [TableWriter(console, chosen=chosen, live=live) for live in (False, True)]
        for reading in readings:
            for opened in reading.wanted_streams():
                rows = read_rows(reading, opened)
                stored = isinstance(opened, StoreStream)
                if stored and not chosen:  # what is between the packets of a store is its own
                    rows = (row for row in rows if row["status"] != GAP)
                several = len(job.paths) > 1 and not reading.live
                headed = several or reading.selection.captured or stored
                columns = reading.selection.table_columns
                writers[reading.live].write(rows, columns, opened.stream if headed else None)


def _write_fields(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.cli.decoding.columnar import read_batches
    from wireyard.cli.decoding.wireshark import column_of

    options = dict(option.partition("=")[::2] for option in job.field_options)
    if unknown := options.keys() - {"header", "separator"}:
        raise UsageError(f"-E {min(unknown)}: there are header=y and separator=CHARACTERS")
    between = options.get("separator", "\t").replace("/t", "\t").replace("/s", " ")
    if options.get("header") == "y":
        file.write(f"{between.join(job.fields)}\n".encode())
    names = [*map(column_of, job.fields)]
    for reading in readings:
        for batch in read_batches(reading):
            for row in batch.to_pylist():
                file.write(fields_line(names, row, between))


def _write_jsonl(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:

    for reading in readings:
        if reading.has_compiled_columns:
            from wireyard.cli.decoding.lines import write_lines  # with kernels

            write_lines(reading, file)
            continue
        for opened in reading.wanted_streams():
            for row in read_rows(reading, opened):
                file.write(row_line(*reading.selection.shape(row)))


class _JsonArray:
    """A file that converts JSON Lines to one JSON array in another file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._before = b"[\n"

    def write(self, lines: bytes | memoryview) -> None:
        """Write lines, or parts of them."""
        text = bytes(lines)
        if text:
            self._file.write(self._before + text.removesuffix(b"\n").replace(b"\n", b",\n"))
            self._before = b",\n" if text.endswith(b"\n") else b""

    def close(self) -> None:
        """End the array; the other file stays open."""
        self._file.write(b"\n]\n" if self._before == b",\n" else b"[]\n")


def _write_json(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    with closing(_JsonArray(file)) as array:
        _write_jsonl(job, readings, cast(IO[bytes], array))


WRITERS: Mapping[str, Callable[[Job, Iterator[OpenInput], IO[bytes]], None]] = MappingProxyType(
    {
        "list": _write_list,
        "table": _write_table,
        "fields": _write_fields,
        "jsonl": _write_jsonl,
        "json": _write_json,
    }
)


_CAPTURED = tuple(column.name for column in CAPTURED)
_PLACE = ("source", "stream", *_CAPTURED)


def read_rows(reading: OpenInput, opened: DirectedStream) -> Iterator[Row]:
    """Yield the selected rows of one stream in order, with every column.

    In mode ``failfast``, the first bad row raises a `DecodeError`.
    """
    selection, faults = reading.selection, reading.faults[opened.stream]
    request, redact = selection.request, selection.format.secrets.redact
    common = {"source": opened.name, "stream": opened.stream}
    for decoded, batch in read_stream(reading, opened, selection.row_plan, apart=True, scalar=True):
        captured = batch.select(_CAPTURED if selection.captured else ()).to_pylist()
        places = captured or repeat({}, batch.num_rows)
        # There may be more rows than the limit leaves.
        for place, values in zip(places, decoded.scalar_rows, strict=False):
            packet = values if request.secrets else redact(values)
            row = {**common, **place, **packet}
            if selection.opener is not None:
                row |= selection.opener.open(row)
            yield _open_body(row, selection, faults)
            if request.nested and row["status"] == OK:
                ((_, block),) = decoded.parts
                number = int(np.searchsorted(block.offsets, row["offset"]))
                yield from _nested(row, block.view(number), int(block.contexts[number]), selection)


def _nested(parent: Row, view: memoryview, context: int, selection: Selection) -> Iterator[Row]:
    """Yield the rows of the packets inside a packet, with its offset in `parent_offset`."""
    for label, start, stop in selection.format.inner.nested(view, context):
        format = get_format(label)
        packet, error = format.read_row(view[start:stop], format.context)
        yield {
            **{name: parent[name] for name in _PLACE if name in parent},
            "offset": parent["offset"] + start,
            "length": stop - start,
            "format": format.label,
            "status": MALFORMED if error else OK,
            "error": error.row() if error else None,
            PARENT.name: parent["offset"],
            **(packet if selection.request.secrets else format.secrets.redact(packet)),
        }


def _open_body(row: Row, selection: Selection, faults: Faults) -> Row:
    """Return the row with its body in the requested view; null if it cannot be decoded."""
    shown = selection.shown_body
    if shown is None or row.get(shown[0]) is None:
        return row
    name, view = shown
    try:
        return {**row, name: view(row)}
    except DecodeError as error:
        faults.add(UNOPENED, row["offset"], row["length"], error.row())
        return {**row, name: None}
