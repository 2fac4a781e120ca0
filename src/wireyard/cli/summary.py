"""The summary of a run and of the lake's content, on one screen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import IO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table
from rich.text import Text

from wireyard.cli.tables import console_on, print_lines
from wireyard.lake.ledgers import LedgerSum
from wireyard.lake.records import is_shown
from wireyard.lake.writer import Input, Lake
from wireyard.pipeline.report import Report
from wireyard.streams.source import filesystem
from wireyard.text import bytes_text, count_text, printable

_TOP = 8
_BAD = ("malformed", "garbage", "tail")


def print_summary(
    file: IO[bytes],
    lake: Lake,
    report: Report,
    reading_s: float,
    total_s: float,
    engine: str | None,
) -> None:
    """Print the summary of a run.

    `engine` is what ran the pipeline; None if there was nothing to do.
    """
    inputs = list(lake.inputs.values())
    with console_on(file) as console:
        done = Text(_done(report, reading_s, total_s), style="bold")
        console.print(done, soft_wrap=not console.is_terminal)
        for table in (_formats(inputs), _destinations(lake)):
            console.print()
            print_lines(console, table)
        console.print()
        total = _total(inputs)
        lines = [_balance(total), _quarantine(lake, total), _place(lake)]
        if engine is not None:
            lines.append(Text(f"engine      {engine}"))
        for line in lines:
            console.print(line, soft_wrap=not console.is_terminal)


def _done(report: Report, reading_s: float, total_s: float) -> str:
    held = f"{count_text(report.unchanged, 'input')} in the lake already, unchanged"
    if not report.added:
        return f"nothing new: {held}" if report.unchanged else "nothing new"
    read = _total(report.added).bytes_read - report.held_bytes
    speed = f"{bytes_text(read / max(reading_s, 1e-3))}/s"
    parts = [
        f"{count_text(len(report.added), 'input')} read, {bytes_text(read)} in {reading_s:.1f} s"
        f" ({speed}); {total_s:.1f} s with all tables"
    ]
    if report.replaced:
        parts.append(f"{report.replaced:,} replaced (changed since the last run)")
    if report.grown:
        parts.append(f"{report.grown:,} read on (grown since the last run)")
    if report.unchanged:
        parts.append(held)
    return "; ".join(parts)


def _formats(inputs: Sequence[Input]) -> Table:
    table = _table("format", "streams", "packets", "bytes")
    parts: defaultdict[str, list[LedgerSum]] = defaultdict(list)
    for each in inputs:
        for name, part in each.ledger.items():
            parts[name].append(part)
    for name, sums in sorted(parts.items()):
        total = LedgerSum.total(sums)
        if total.bytes_read:
            size = bytes_text(total.bytes_read)
            table.add_row(name, f"{total.streams:,}", f"{total.packets:,}", size)
    return table


def _destinations(lake: Lake) -> Table:
    """Return the destinations with the most messages."""
    kept = ["destination", "destination_kind", "messages", "bytes"]
    messages: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    # Not grouped by Arrow, whose module for that takes longer to load than all of the summary.
    for part in _read(lake, "destinations", kept):
        names, kinds, counts, lengths = (part[name].to_pylist() for name in kept)
        for name, kind, count, length in zip(names, kinds, counts, lengths, strict=True):
            messages[name or "", kind or ""] += count
            sizes[name or "", kind or ""] += length
    top = sorted(messages, key=lambda key: (-messages[key], key))
    every = messages.total()
    table = _table(f"{count_text(every, 'message')} to", "kind", "messages", "bytes")
    table.columns[1].justify = "left"
    for key in top[:_TOP]:
        name, size = Text(printable(key[0] or "-")), bytes_text(sizes[key])
        table.add_row(name, key[1], f"{messages[key]:,}", size)
    more = len(top) - _TOP
    if more > 0:
        table.add_row(Text(f"and {count_text(more, 'other')}", style="dim"))
    return table


def _read(lake: Lake, name: str, columns: list[str]) -> Iterable[pa.Table]:
    for path in lake.paths(name):
        system, inner = filesystem(path)
        yield pq.ParquetFile(system.open_input_file(inner)).read(columns)


def _balance(total: LedgerSum) -> Text:
    parts = [f"{total.bytes_ok:,} in packets"]
    counts = {bad: getattr(total, f"bytes_{bad}") for bad in _BAD}
    parts += [f"{count:,} {bad}" for bad, count in counts.items() if count]
    text = f"balances: {total.bytes_read:,} bytes read = {' + '.join(parts)}"
    return Text.assemble("ledger      ", (text, "green"))


def _quarantine(lake: Lake, total: LedgerSum) -> Text:
    if not total.bad_streams:
        return Text("quarantine  empty")
    streams = count_text(total.bad_streams, "stream")
    text = f"{streams} with bytes in no well-formed packet; the first: "
    return Text.assemble("quarantine  ", (f"{text}{printable(_first_bad(lake))}", "yellow"))


def _first_bad(lake: Lake) -> str:
    """Return the name of a stream with bytes in no well-formed packet."""
    for part in _read(lake, "ledger", ["stream", "bytes_read", "bytes_ok"]):
        found = part.filter(pc.not_equal(part["bytes_read"], part["bytes_ok"]))
        if found.num_rows:
            return str(found["stream"][0])
    return ""


def _total(inputs: Iterable[Input]) -> LedgerSum:
    return LedgerSum.total(ledger for each in inputs for ledger in each.ledger.values())


def _place(lake: Lake) -> Text:
    filled = sum(bool(files) and is_shown(name) for name, files in lake.files.items())
    folders = "" if "://" in lake.url else ", a folder each"
    return Text(f"lake        {lake.url}: {count_text(filled, 'table')}{folders}")


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        # Names are folded where a line has no room for them, numbers never.
        justify: Literal["left", "right"] = "right" if place else "left"
        table.add_column(name, justify=justify, no_wrap=bool(place), overflow="fold")
    return table
