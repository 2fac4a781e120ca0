"""What a run did and what the lake holds, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import IO, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table
from rich.text import Text

from wireyard.cli.tables import console_on, print_lines, printable
from wireyard.spark.lake import Input, Lake, StreamLedger
from wireyard.spark.report import Report
from wireyard.streams.source import filesystem

__all__ = ["bytes_text", "print_summary"]

_TOP = 8
_BAD = ("malformed", "garbage", "tail")


def print_summary(
    file: IO[bytes], lake: Lake, report: Report, reading_s: float, total_s: float
) -> None:
    """Print the summary of a run."""
    inputs = list(lake.inputs.values())
    with console_on(file) as console:
        done = Text(_done(report, reading_s, total_s), style="bold")
        console.print(done, soft_wrap=not console.is_terminal)
        for table in (_formats(inputs), _destinations(lake)):
            console.print()
            print_lines(console, table)
        console.print()
        for line in (_balance(inputs), _quarantine(inputs), _place(lake)):
            console.print(line, soft_wrap=not console.is_terminal)


def _done(report: Report, reading_s: float, total_s: float) -> str:
    held = f"{_count(report.unchanged, 'input')} in the lake already, unchanged"
    if not report.added:
        return f"nothing new: {held}"
    read = sum(one.counts["bytes_read"] for one in _streams(report.added))
    speed = f"{bytes_text(read / max(reading_s, 1e-3))}/s"
    parts = [
        f"{_count(len(report.added), 'input')} read, {bytes_text(read)} in {reading_s:.1f} s"
        f" ({speed}); {total_s:.1f} s with all tables"
    ]
    if report.replaced:
        parts.append(f"{report.replaced} of them replaced, because they had changed")
    if report.unchanged:
        parts.append(held)
    return "; ".join(parts)


def _formats(inputs: Sequence[Input]) -> Table:
    table = _table("format", "streams", "packets", "bytes")
    streams = Counter(one.format for one in _streams(inputs))
    for name in sorted(name for name in streams if name):
        ledgers = [one.counts for one in _streams(inputs) if one.format == name]
        if not any(one["bytes_read"] for one in ledgers):
            continue
        packets = sum(one["packets_ok"] + one["packets_malformed"] for one in ledgers)
        size = sum(one["bytes_read"] for one in ledgers)
        table.add_row(name, f"{streams[name]:,}", f"{packets:,}", bytes_text(size))
    return table


def _destinations(lake: Lake) -> Table:
    """Return the destinations with the most messages."""
    kept = ["destination", "destination_kind", "messages", "bytes"]
    messages: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    # Not grouped by Arrow: to load what does that takes longer than all else here.
    for part in _read(lake, "destinations", kept):
        names, kinds, counts, lengths = (part[name].to_pylist() for name in kept)
        for name, kind, count, length in zip(names, kinds, counts, lengths, strict=True):
            messages[name or "", kind or ""] += count
            sizes[name or "", kind or ""] += length
    top = sorted(messages, key=lambda one: (-messages[one], one))
    every = messages.total()
    table = _table(f"{_count(every, 'message')} to", "kind", "messages", "bytes")
    table.columns[1].justify = "left"
    for one in top[:_TOP]:
        name, size = Text(printable(one[0] or "-")), bytes_text(sizes[one])
        table.add_row(name, one[1], f"{messages[one]:,}", size)
    more = len(top) - _TOP
    if more > 0:
        table.add_row(Text(f"and {_count(more, 'other')}", style="dim"))
    return table


def _read(lake: Lake, name: str, columns: list[str]) -> Iterable[pa.Table]:
    for path in lake.paths(name):
        system, inner = filesystem(path)
        yield pq.ParquetFile(system.open_input_file(inner)).read(columns)


def _balance(inputs: Sequence[Input]) -> Text:
    total: Counter[str] = Counter()
    for one in _streams(inputs):
        total.update(one.counts)
    parts = [f"{total['bytes_ok']:,} in packets"]
    parts += [f"{total[f'bytes_{bad}']:,} {bad}" for bad in _BAD if total[f"bytes_{bad}"]]
    text = f"balances: {total['bytes_read']:,} bytes read = {' + '.join(parts)}"
    return Text.assemble("ledger      ", (text, "green"))


def _quarantine(inputs: Sequence[Input]) -> Text:
    bad = [one for one in _streams(inputs) if one.counts["bytes_ok"] != one.counts["bytes_read"]]
    if not bad:
        return Text("quarantine  empty")
    text = f"{_count(len(bad), 'stream')} with bytes in no well-formed packet; the first: "
    return Text.assemble("quarantine  ", (f"{text}{printable(bad[0].stream)}", "yellow"))


def _streams(inputs: Sequence[Input]) -> list[StreamLedger]:
    return [one for each in inputs for one in each.streams]


def _place(lake: Lake) -> Text:
    filled = sum(map(bool, lake.files.values()))
    return Text(f"lake        {lake.url}: {_count(filled, 'table')}, a folder each")


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        # Names are folded where a line has no room for them, numbers never.
        justify: Literal["left", "right"] = "right" if place else "left"
        table.add_column(name, justify=justify, no_wrap=bool(place), overflow="fold")
    return table


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def bytes_text(count: float) -> str:
    """Return bytes as people say them, in powers of ten as disks and links are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
