"""The outputs of ``wireyard decode`` that are text: a list, tables, JSON Lines, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, cast

from wireyard.cli.decoding.jsonl import JsonArray, json_line
from wireyard.errors import UsageError

if TYPE_CHECKING:
    from wireyard.cli.decoding.job import Job
    from wireyard.cli.decoding.reading import OpenInput
    from wireyard.streams.blocks import DirectedStream

__all__ = ["WRITERS"]


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
    from wireyard.cli.decoding.rows import read_rows
    from wireyard.cli.tables import LiveTables, console_on, write_table
    from wireyard.streams.framer import GAP

    chosen = job.request.columns is not None
    live = LiveTables()
    with console_on(file) as console:
        for reading, opened in _each_stream(readings):
            if reading.live:
                columns = reading.selection.table_columns
                heading = opened.stream if reading.selection.captured else None
                live.write(heading, read_rows(reading, opened), columns, console, chosen=chosen)
                continue
            rows = iter(read_rows(reading, opened))
            stored = isinstance(opened, StoreStream)
            if stored and not chosen:  # what is between the packets of a store is its own
                rows = (row for row in rows if row["status"] != GAP)
            first = next(rows, None)
            if first is None:
                continue
            headed = len(job.paths) > 1 or reading.selection.captured or stored
            write_table(
                chain([first], rows),
                reading.selection.table_columns,
                console,
                chosen=chosen,
                heading=opened.stream if headed else None,
            )


def _write_fields(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.cli.decoding.columnar import read_batches
    from wireyard.cli.decoding.wireshark import column_of, fields_text

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
                file.write(fields_text(names, row, between))


def _write_jsonl(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.cli.decoding.rows import read_rows

    for reading in readings:
        if reading.has_compiled_columns:
            from wireyard.cli.decoding.lines import write_lines  # with kernels

            write_lines(reading, file)
            continue
        for opened in reading.wanted_streams():
            for row in read_rows(reading, opened):
                file.write(json_line(*reading.selection.shape(row)))


def _each_stream(readings: Iterator[OpenInput]) -> Iterator[tuple[OpenInput, DirectedStream]]:
    for reading in readings:
        for opened in reading.wanted_streams():
            yield reading, opened


def _write_json(job: Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    with closing(JsonArray(file)) as array:
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
