"""``wireyard decode``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, cast

import click

from wireyard.cli import exits
from wireyard.cli.arrow import leave_out_pandas
from wireyard.cli.bodies import CHOICES
from wireyard.cli.jsonl import JsonArray, json_line
from wireyard.cli.options import (
    PATH,
    WHERE_HELP,
    decode_as_option,
    examples,
    format_option,
    keylog_option,
    max_packet_option,
    split_names,
)
from wireyard.cli.output import kind_of, open_output, to_terminal
from wireyard.cli.progress import Progress
from wireyard.errors import UsageError
from wireyard.formats import get_format

if TYPE_CHECKING:
    from wireyard.captures.inputs import Input, Readable
    from wireyard.cli.reading import Budget, OpenInput
    from wireyard.cli.selection import Request
    from wireyard.formats import Format
    from wireyard.streams.blocks import DirectedStream

__all__ = ["command"]


@dataclass
class _Job:
    """The arguments of one call, and its exit status."""

    paths: tuple[str, ...]
    format_name: str | None
    decode_as: tuple[str, ...]
    keylog: tuple[str, ...]
    request: Request
    budget: Budget
    shows_progress: bool
    max_packet_bytes: int | None
    follows: bool
    """Whether files are followed while they grow."""
    rotated: bool
    """Whether the files are one capture."""
    tables: bool
    """Whether the output has columns, which are written even if there are no rows."""
    one_format: bool
    """Whether all rows of growing streams must have the same format."""
    status: int = field(default=exits.DONE)
    matchless: dict[str, bool] = field(default_factory=dict)
    """By format: whether it has none of the columns of the conditions."""

    def readings(self) -> Generator[OpenInput]:
        """Yield the inputs one after the other; the problems of an input are printed after it."""
        from wireyard.captures.inputs import open_captures, open_input
        from wireyard.streams.arrivals import is_live

        named = get_format(self.format_name) if self.format_name else None
        for path in self.paths[:1] if self.rotated else self.paths:
            if self.budget.spent:
                return
            if self.follows or (is_live(path) and not self.rotated):
                yield from self._follow(path, named)
                continue
            if self.rotated:
                found = open_captures(self.paths, named, self.decode_as, keylog=self.keylog)
            else:
                found = open_input(path, named, self.decode_as, self.keylog)
            with closing(found):
                yield from self._read(found, named)
            for note in (*found.notes, *found.closed):
                exits.note(f"{path}: {note}")
            if found.unread:
                exits.note(f"{path}: {found.unread}")
                self.status = exits.DATA_LOST
            if found.damage:
                exits.note(f"{path}: {found.damage}")
                self.status = exits.DATA_LOST
        if self.matchless and all(self.matchless.values()):
            where, columns = " ".join(self.request.where), ",".join(self.request.columns or ())
            asked = f"--where {where}" if where else f"--columns {columns}"
            known = " and ".join(self.matchless)
            raise UsageError(f"{asked}: {known} rows have no such column")

    def _follow(self, path: str, named: Format | None) -> Generator[OpenInput]:
        """Yield the streams of a followed input each time they have grown."""
        from wireyard.captures.live.following import follow
        from wireyard.cli.live import LiveReading, flush_output, stopping

        with stopping() as stop:
            following = follow(
                path,
                named,
                self.decode_as,
                self.keylog,
                max_packet_bytes=self.max_packet_bytes,
                stop=stop,
            )
            wanted = self.request, self.budget, self.shows_progress
            shape = self.tables, self.one_format
            live = LiveReading(following, named, *wanted, flush_output, *shape)
            with closing(following):
                yield from live.readings()
        self.status = max(self.status, live.status)

    def _read(self, found: Input, named: Format | None) -> Generator[OpenInput]:
        """Yield runs of adjacent streams of an input that have the same format."""
        from wireyard.cli.reading import OpenInput
        from wireyard.cli.selection import Selection

        groups: Iterable[tuple[Format, Iterable[Readable]]]
        groups = groupby(found.readables, key=attrgetter("format"))
        is_known = found.closed or found.unread or found.damage
        if named is not None and not found.readables and not is_known:
            exits.note(f"{found.name}: holds no stream of {named.name}")
        if self.tables and named is not None and not found.readables:
            groups = [(named, [])]  # a table without rows
        for format, some in groups:
            if self.budget.spent:
                return
            streams = [each.opened for each in some]
            sizes = [each.size for each in streams]
            size = None if None in sizes else sum(filter(None, sizes))
            progress = Progress(found.name, size, self.shows_progress)
            selection = Selection(format, self.request, found.captured)
            self.matchless[format.name] = selection.matches_nothing
            if selection.matches_nothing:
                continue
            reading = OpenInput(streams, selection, self.budget, progress)
            yield reading
            progress.end()
            for line in reading.faults.lines(found.name, captured=found.captured):
                exits.note(line)
                self.status = exits.DATA_LOST


def _write_table(job: _Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.captures.stores.stream import StoreStream
    from wireyard.cli.rows import read_rows
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


def _write_jsonl(job: _Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    from wireyard.cli.rows import read_rows

    for reading in readings:
        if reading.has_compiled_columns:
            from wireyard.cli.lines import write_lines  # with kernels

            write_lines(reading, file)
            continue
        for opened in reading.wanted_streams():
            for row in read_rows(reading, opened):
                file.write(json_line(*reading.selection.shape(row)))


def _each_stream(readings: Iterator[OpenInput]) -> Iterator[tuple[OpenInput, DirectedStream]]:
    for reading in readings:
        for opened in reading.wanted_streams():
            yield reading, opened


def _write_json(job: _Job, readings: Iterator[OpenInput], file: IO[bytes]) -> None:
    with closing(JsonArray(file)) as array:
        _write_jsonl(job, readings, cast(IO[bytes], array))


_WRITERS: Mapping[str, Callable[[_Job, Iterator[OpenInput], IO[bytes]], None]] = MappingProxyType(
    {"table": _write_table, "jsonl": _write_jsonl, "json": _write_json}
)
_KINDS = ("table", "csv", "jsonl", "json", "arrow", "parquet")
_TABLES = ("csv", "arrow", "parquet")
_SEEN = ("table", "csv", "jsonl", "json")
"""Kinds of text output, which progress on the same terminal would disturb."""


def _payload_request(given: tuple[str, ...]) -> dict[str, Any]:
    """Return the view of payloads, and the rules by which they are decoded.

    Raises
    ------
    UsageError
        An option is neither a view nor a rule, or there are two views.
    """
    rules = [one for one in given if "=" in one]
    ways = [one for one in given if "=" not in one]
    for way in ways:
        if way not in CHOICES:
            known = ", ".join(CHOICES)
            raise UsageError(f"--payload {way}: is none of {known}, nor a rule FILTER=DECODER")
    if len(ways) > 1:
        raise UsageError(f"--payload {' and '.join(ways)}: payloads are shown in one way")
    chosen = ways[0] if ways else None
    if not rules:
        return {"payload": chosen, "rules": ()}
    from wireyard.payloads import parse_rules

    return {"payload": chosen, "rules": parse_rules(rules)}


@click.command(
    "decode",
    epilog=examples(
        "wireyard decode traffic.jmq --columns offset,packet_type_name,destination",
        "wireyard decode traffic.jmq --where 'packet_type in 1,2' --body text | jq -r .body",
        "wireyard decode *.jmq -w packets.parquet",
        "wireyard decode traffic.pcap --payload 'plant/#=json' -w plant.parquet",
        "tcpdump -U -w - port 1883 | wireyard decode -",
        "wireyard decode --follow 'traffic.pcap*'",
        "wireyard decode --rotated traffic.pcap* -w packets.parquet",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, type=PATH)
@click.option("-r", "--read", multiple=True, type=PATH, metavar="FILE", help="The same as FILE.")
@format_option("by the first bytes")
@decode_as_option
@keylog_option
@click.option(
    "--out",
    type=click.Choice(_KINDS),
    help="By the ending of the -w file if not given; without one a table on a terminal, else"
    " jsonl.",
)
@click.option(
    "-w",
    "--write",
    type=PATH,
    metavar="FILE",
    help="Write there, whole or not at all; a table of several formats to a file each, as in"
    " x.mqtt.csv.",
)
@click.option(
    "--columns",
    callback=split_names,
    metavar="A,B,..",
    help="Only these columns, in this order; 'wireyard formats NAME' lists them.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help=WHERE_HELP.format("Only such rows"),
)
@click.option(
    "--mode",
    default="permissive",
    show_default=True,
    metavar="MODE",
    help="What becomes of bad rows: permissive keeps them with their error, dropmalformed leaves"
    " them out, failfast stops at the first.",
)
@click.option(
    "--payload",
    "--body",
    "payloads",
    multiple=True,
    metavar="HOW|RULE",
    help=f"How payloads are shown, one of {', '.join(CHOICES)}: csv as text where they are text,"
    " else 0x and hexadecimal; other outputs as hex. In those text and value open them; hash is"
    " SHA-256. Or a rule, FILTER=DECODER as in 'plant/#=json', by which they are opened; the first"
    " of several that fits counts.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut payloads after N bytes, and say in them how many were cut.",
)
@click.option(
    "--spreadsheet",
    is_flag=True,
    help="CSV for a spreadsheet: a byte order mark, and ' before text that would be a formula.",
)
@click.option("--secrets", is_flag=True, help="Show passwords, which are left out otherwise.")
@click.option(
    "--nested", is_flag=True, help="Show the packets inside packets too, each after its parent."
)
@click.option("--since", metavar="TIME", help="Only packets captured at this time or later.")
@click.option("--until", metavar="TIME", help="Only packets captured before this time.")
@click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N rows.")
@click.option(
    "--follow",
    is_flag=True,
    help="Read a file on while it grows or is replaced, until Ctrl-C; FILE may be a pattern, in"
    " quotes.",
)
@click.option(
    "--rotated",
    is_flag=True,
    help="The files are one capture that went on in a new file again and again, in any order.",
)
@max_packet_option
def command(
    files: tuple[str, ...],
    read: tuple[str, ...],
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    out: str | None,
    write: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    follow: bool,
    rotated: bool,
    payloads: tuple[str, ...],
    **request: Any,
) -> int:
    """Show packets as a table, CSV, JSON Lines, Arrow or Parquet.

    FILE is a path, a URL, or - for standard input; compressed files are opened by their
    content. Rows come in stream order and cover every byte: bytes that are no packet are a row with
    the reason, and are reported in a line on standard error with exit status 1.

    A pipe is read as its bytes arrive, so rows of different streams are in the order of their
    packets. Ctrl-C ends reading: everything read so far is written, and a summary is printed.
    """
    from wireyard.cli.reading import Budget
    from wireyard.cli.selection import Request

    paths = (*read, *files)
    if not paths:
        raise UsageError("decode: name a FILE, or - for standard input")
    if paths.count("-") > 1:
        raise UsageError("decode: standard input can be read once only")
    if follow and (len(paths) > 1 or paths == ("-",)):
        raise UsageError("decode: --follow takes one FILE, or a pattern in quotes")
    if rotated and follow:
        raise UsageError("decode: --follow reads the files of a capture one after the other itself")
    kind = kind_of(write, out, _KINDS)
    if request["spreadsheet"] and kind != "csv":
        raise UsageError("decode: --spreadsheet is for csv")
    request |= _payload_request(payloads)
    times = ((">=", since), ("<", until))
    request["where"] += tuple(f"captured_ns {sign} {time}" for sign, time in times if time)
    wanted = Request(**request, lenient=format_name is None, csv=kind == "csv"), Budget(limit)
    shows_progress = not (to_terminal(write) and kind in _SEEN)
    live = request["max_packet_bytes"], follow, rotated
    tables = kind in _TABLES
    shape = tables, tables and write in (None, "-")
    job = _Job(paths, format_name, decode_as, keylog, *wanted, shows_progress, *live, *shape)
    with closing(job.readings()) as readings:
        if tables:
            leave_out_pandas()
            from wireyard.cli.columnar import Tables

            for name, format in Tables(write, kind).write(readings).items():
                exits.note(f"{name}: the rows of {format}")
        else:
            with open_output(write, binary=False) as file:
                _WRITERS[kind](job, readings, file)
    return job.status
