"""``wireyard slow``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli.asking.answers import (
    columns,
    head_of,
    limit_option,
    ms_text,
    opened_tables,
    out_option,
    reading_options,
    status_of,
)
from wireyard.cli.decoding.cells import json_line
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.text import moment

if TYPE_CHECKING:
    from wireyard.answers.latencies import Latencies
    from wireyard.formats.base import Row
    from wireyard.layers.frame_files import FrameFiles

_MOST_LINES = 10
_SLOWER = (2, 21, 19, 15, -11, -12)
_WAITING = (2, 22, 15, -9, -13, 19)
_AGES = (2, 18, 22, -9, -10, -9, -10)
_TIMES = (2, 21, -8, -8, -8, -8, -9, -8, -8)


@click.command(
    "slow",
    epilog=examples(
        "wireyard slow traffic.pcap",
        "wireyard slow lake --limit 50",
        "wireyard slow lake --out jsonl | jq 'select(.table == \"slower\")'",
    ),
)
@click.argument("inputs", metavar="INPUT|LAKE...", nargs=-1, required=True, type=PATH)
@reading_options
@limit_option(_MOST_LINES, "Show the N slowest of each kind.")
@out_option("In columns, or all rows as JSON Lines with times in nanoseconds.")
def command(inputs: tuple[str, ...], limit: int, out: str, **how: Any) -> int:
    """Show which consumers are slow, and how long messages waited.

    INPUT is a capture, a stream or a store, or a folder of them. A consumer is slow if the median
    of its deliveries is twice that of the other consumers of a destination at least, and a
    millisecond more: of the time in queue, from when a message was sent to when it was delivered,
    or of the time from there to its acknowledgement. Then follow the messages that were still
    waiting when the capture ended; the full minutes at which the head of a queue was oldest, in
    seconds, of which --out jsonl has all; and percentiles by destination and by consumer,
    milliseconds, slowest first.

    Every delivery with both times is a row of the table ``latencies``, for questions of your own.
    """
    from wireyard.answers.latencies import measure_latencies

    with opened_tables(inputs, **how) as tables, open_output(None, binary=False) as target:
        found = measure_latencies(tables)
        files = tables.frame_files
        if out == "jsonl":
            lines = _json_lines(found)
        else:
            texts = chain(head_of(tables), _text(found, limit, files))
            lines = (f"{line}\n".encode() for line in texts)
        target.writelines(lines)
    return status_of(tables)


def _json_lines(found: Latencies) -> Iterator[bytes]:
    for table, rows in asdict(found).items():
        for row in rows:
            yield json_line({"table": table, **row})


def _text(found: Latencies, limit: int, files: FrameFiles) -> Iterator[str]:
    if not found.destinations and not found.waiting:
        yield "no message was seen both sent and delivered"
        return
    yield from _slower(found.slower, limit)
    yield ""
    yield from _waiting(found.waiting, limit, files)
    yield from _ages(found.ages, limit)
    for name, rows in (("destination", found.destinations), ("consumer", found.consumers)):
        yield ""
        yield from _times(name, rows, limit)


def _slower(rows: Sequence[Row], limit: int) -> Iterator[str]:
    if not rows:
        yield "no consumer is slower than its peers"
        return
    yield "slower than their peers"
    yield columns(_SLOWER, "", "consumer", "destination", "median", "its own", "its peers'")
    for row in rows[:limit]:
        own, peers = ms_text(row["median_ns"]), ms_text(row["peers_ns"])
        yield columns(_SLOWER, "", row["name"], row["destination"], row["what"], own, peers)
    yield from _rest(rows, limit)


def _waiting(rows: Sequence[Row], limit: int, files: FrameFiles) -> Iterator[str]:
    if not rows:
        yield "nothing was waiting at the end"
        return
    yield "still waiting at the end"
    yield columns(_WAITING, "", "destination", "for", "messages", "oldest", "frame")
    for row in rows[:limit]:
        file, frame = row["source"], row["frame"]
        if frame is not None:
            file, frame = files.find(file, frame)
        cells = (row["name"] or "-", row["state"], f"{row['messages']:,}")
        place = " ".join(filter(None, (frame and str(frame), PurePath(file).name)))
        yield columns(_WAITING, "", *cells, ms_text(row["oldest_ns"]), place)
    yield from _rest(rows, limit)


def _ages(rows: Sequence[Row], limit: int) -> Iterator[str]:
    """Yield the minutes at which waiting messages were oldest."""
    if not rows:
        return

    def age(row: Row) -> int:
        return max(row["oldest_ns"] or 0, row["oldest_unacknowledged_ns"] or 0)

    yield ""
    yield f"{'at full minutes, the oldest first':<42}{'in queue':<20}unacknowledged"
    yield columns(_AGES, "", "UTC", "destination", *("number", "oldest s") * 2)
    for row in sorted(rows, key=age, reverse=True)[:limit]:
        cells = [moment(row["at_ns"], 0)[:16] + "Z", row["destination"] or "-"]
        for number, oldest in (
            ("waiting", "oldest_ns"),
            ("unacknowledged", "oldest_unacknowledged_ns"),
        ):
            oldest_ns = row[oldest]
            cells += [f"{row[number]:,}", "-" if oldest_ns is None else f"{oldest_ns / 1e9:,.3f}"]
        yield columns(_AGES, "", *cells)
    yield from _rest(rows, limit)


def _times(name: str, rows: Sequence[Row], limit: int) -> Iterator[str]:
    yield f"{'by ' + name:<31}{'in queue':<33}to acknowledge"
    yield columns(_TIMES, "", name, "number", "p50", "p90", "p99", "longest", "p50", "p99")
    shown = ("p50_ns", "p90_ns", "p99_ns", "longest_ns", "acknowledge_p50_ns", "acknowledge_p99_ns")
    for row in rows[:limit]:
        times = (ms_text(row[column], unit=False) for column in shown)
        yield columns(_TIMES, "", row["name"], f"{row['deliveries']:,}", *times)
    yield from _rest(rows, limit)


def _rest(rows: Sequence[Row], limit: int) -> Iterator[str]:
    if len(rows) > limit:
        yield f"  and {len(rows) - limit:,} others"
