"""``wireyard run``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Self

import click

from wireyard.cli import exits
from wireyard.cli.engine import NOT_NEEDED, Engine, engine_options, engine_text
from wireyard.cli.options import (
    FOLDER,
    decode_as_option,
    examples,
    format_option,
    keylog_option,
    max_packet_option,
    rotated_option,
)
from wireyard.cli.output import open_output
from wireyard.errors import LakeDamaged, LakeError, LedgerError, UsageError

_HELP = """Read captures, streams and stores into a lake of Parquet tables with Spark.

INPUT is a file, a folder with all that is in it, a pattern or a URL: a stream, a capture (pcap,
pcapng) or a file of an Open MQ store. The content decides which format a file has, whether it is
compressed, and which format each stream of a capture has; in a folder, what has no known format is
named and left out.

\b
DIR/packets_FORMAT   every row of every stream, as decode shows them
DIR/messages         one row a message that was sent
DIR/destinations     messages, bytes and producers by destination and minute
DIR/deliveries       one row a message and consumer: what became of it, and the frames that prove it
DIR/latencies        one row a delivery: time in queue, and to its acknowledgement
DIR/hops             one row each time that a JMS message was seen, and what the hop took
DIR/sessions, transactions, conversations, retained, violations
DIR/quarantine       every row that is no well-formed packet, and why
DIR/streams          one row a stream: format, endpoints, times, how it ended
DIR/payloads         one row a message whose payload a rule opens: what it carries, as JSON
DIR/ledger           one row a stream: where each of its bytes went
DIR/files            one row a file of a capture: which frames are in it

A run adds new files, reads changed ones again and replaces their rows, and continues those that
have grown; other files of the lake stay as they are. It commits everything or nothing, even if it
is killed. Rows in quarantine are reported and no error; bytes in no row are one (exit status 1),
and so are packets that were cut off when they were captured, and TLS alone, without a key log.

With --follow it runs until Ctrl-C: new files are read once they are complete, two seconds after
their last change, growing captures and streams part by part. At the end everything is committed.
"""


@click.command(
    "run",
    help=_HELP,
    epilog=examples(
        "wireyard run traffic/ --lake lake",
        "wireyard run traffic/ --lake lake --engine process",
        "wireyard run /var/captures --follow --rotated --lake lake",
        "wireyard run rotated/ --rotated -d tcp.port==1884,mqtt --lake lake",
        "wireyard run '/captures/2026-*/*.jmq.gz' --lake /data/lake",
        "wireyard run s3://captures/jmq --lake s3://lake/jmq --master spark://head:7077",
        "duckdb -c \"SELECT destination, count(*) FROM 'lake/messages/*.parquet' GROUP BY 1\"",
    ),
)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=FOLDER)
@click.option("--lake", type=FOLDER, metavar="DIR", required=True, help="Where the tables are.")
@click.option(
    "--table-format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Folders of Parquet files, or Delta or Iceberg tables; that of the lake if not given, or"
    " Parquet.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["day"]),
    help="Files of a day each, by UTC and the time of rows; as the lake is if not given.",
)
@engine_options
@format_option("by the first bytes of each file")
@decode_as_option
@keylog_option
@rotated_option
@click.option("--follow", is_flag=True, help="Follow the INPUTs until Ctrl-C: new and grown files.")
@click.option(
    "--by-content",
    is_flag=True,
    help="Recognize copies of a file by all of its bytes, and read them once; links always are.",
)
@click.option(
    "--skip-missing", is_flag=True, help="Leave out files that are deleted before they are read."
)
@click.option("--secrets", is_flag=True, help="Keep passwords, which are left out otherwise.")
@click.option(
    "--payload",
    multiple=True,
    metavar="FILTER=DECODER",
    help="Decode the payloads of messages to destinations that match, as in plant/#=json, into the"
    " table payloads. This applies to inputs that are read, not to those already in the lake.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@max_packet_option
def command(
    inputs: tuple[str, ...],
    lake: str,
    table_format: str | None,
    partition_by: str | None,
    engine: str,
    master: str | None,
    conf: tuple[str, ...],
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    rotated: bool,
    follow: bool,
    by_content: bool,
    skip_missing: bool,
    secrets: bool,
    payload: tuple[str, ...],
    quiet: bool,
    max_packet_bytes: int | None,
) -> int:
    """Read captures, streams and stores into a lake of Parquet tables with Spark."""
    if not inputs or "-" in inputs:
        raise UsageError("run: name INPUTs: files, folders, patterns or URLs")
    if follow and rotated and by_content:
        raise UsageError("run: --follow --rotated reads files on, which --by-content would not")
    chosen = Engine.of("run", engine, master, conf)
    if payload:
        from wireyard.payloads import parse_rules

        parse_rules(payload)
    settings: dict[str, Any] = {
        "secrets": secrets,
        "max_packet_bytes": max_packet_bytes,
        "decode_as": decode_as,
        "keylog": keylog,
        "payload": payload,
    }
    kinds = {"table_format": table_format, "partition_by": partition_by}
    options = {"format": format_name, "by_content": by_content, "skip_missing": skip_missing}
    given = _Given(inputs, lake, kinds, chosen, options, rotated, quiet, settings)
    lost = False
    try:
        if follow:
            _follow(given)
        else:
            lost = _fill(given)
    except LakeDamaged:
        raise
    except LakeError as error:
        raise exits.CannotWrite(str(error)) from None
    except LedgerError as error:
        exits.note(f"{error}; nothing was added to the lake")
        return exits.DATA_LOST
    return exits.DATA_LOST if lost else exits.DONE


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of the command line."""

    inputs: tuple[str, ...]
    lake: str
    kinds: dict[str, Any]
    """Table format and partitioning: parameters of `Lake.open`."""
    engine: Engine
    input_options: dict[str, Any]
    """Parameters of `InputOptions`."""
    rotated: bool
    quiet: bool
    settings: dict[str, Any]
    """Parameters of `fill_lake`."""


def _fill(given: _Given) -> bool:
    """Add the new inputs to a lake; return whether damaged files had bytes that are in no row."""
    from wireyard.cli.spark_log import SparkLog
    from wireyard.cli.summary import print_summary
    from wireyard.lake.writer import Lake
    from wireyard.pipeline.inputs.finding import InputOptions, list_inputs
    from wireyard.pipeline.inputs.listing import absolute
    from wireyard.pipeline.report import Report, held_commit, new_inputs

    known = held_commit(given.lake)
    held = [each.stamp for each in known.inputs.values()] if known is not None else []
    options = InputOptions(**given.input_options, held=held)
    listing = list_inputs(given.inputs, options, inside=absolute(given.lake), rotated=given.rotated)
    for text in listing.left_out:
        exits.note(f"left out: {text}")
    with (
        SparkLog() as log,
        Lake.open(given.lake, **given.kinds, known=known) as lake,
        _Watch(given.quiet) as watch,
    ):
        new, again = new_inputs(lake, listing.inputs)
        ran = NOT_NEEDED if given.engine.conf else None
        if new:
            from wireyard.pipeline.job import fill_lake

            engine = given.engine.start(log, watch.starting_spark)
            missing = given.input_options["skip_missing"]
            settings = given.settings
            report = fill_lake(
                lake, listing.inputs, engine, watch, skip_missing=missing, **settings
            )
            ran = engine_text(engine)
        else:
            report = Report(unchanged=len(listing.inputs) - len(again), notes=again)
    for text in report.notes:
        exits.note(text)
    if not given.quiet:
        with open_output(None, binary=False) as target:
            print_summary(target, lake, report, watch.reading_s, watch.total_s, ran)
    return report.lost


def _follow(given: _Given) -> None:
    """Follow the inputs into a lake, until Ctrl-C."""
    from wireyard.cli.decoding.live import stopping
    from wireyard.cli.follow import FollowLine
    from wireyard.cli.spark_log import SparkLog
    from wireyard.lake.writer import Lake
    from wireyard.pipeline.growing.following import follow_lake
    from wireyard.pipeline.inputs.finding import InputOptions

    line = FollowLine(given.quiet)
    options = InputOptions(**given.input_options)
    with (
        SparkLog() as log,
        Lake.open(given.lake, **given.kinds) as lake,
        _Watch(quiet=True) as watch,
        stopping() as stop,
    ):
        engine = given.engine.start(log, watch.starting_spark)
        try:
            how = {"options": options, "rotated": given.rotated, **given.settings}
            follow_lake(lake, given.inputs, engine, watch, line, stop, **how)
        finally:
            line.end()


_SHARES = {"starting Spark": 10, "reading headers": 5, "reading": 50, "writing tables": 35}
"""Approximate share of each stage in a run, in percent; the longest matching prefix counts."""


class _Watch:
    """Shows the progress of a run on standard error, if that is a terminal; measures its time.

    There is one bar for the whole run: each stage has its share, and reading advances by bytes.
    """

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._held = ExitStack()
        self.name = ""
        self._at = self._start = self._share = 0.0
        self._since = self._began = time.monotonic()
        self.reading_s = self.total_s = 0.0

    def __enter__(self) -> Self:
        from rich import progress
        from rich.console import Console

        file: IO[str] = sys.stderr
        if self._shown:
            # A duplicate, because standard error is redirected while Java starts.
            file = self._held.enter_context(open(os.dup(sys.stderr.fileno()), "w"))
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[bytes]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}"),
        )
        line = progress.Progress(
            *columns, console=Console(file=file), transient=True, disable=not self._shown
        )
        self._progress = self._held.enter_context(line)
        self._task = self._progress.add_task("", total=100, bytes="", left="")
        return self

    def __exit__(self, *error: object) -> None:
        self.stage("")
        self.total_s = time.monotonic() - self._began
        self._held.close()

    def stage(self, name: str) -> None:
        """Show the name of the next stage."""
        now = time.monotonic()
        if self.name.startswith("reading"):
            self.reading_s += now - self._since
        self.name, self._since = name, now
        self._start, self._share = self._span_of(name)
        self._show(name, 0.0, "")

    @contextmanager
    def starting_spark(self) -> Iterator[None]:
        """Show that Spark starts; then the stage of before again."""
        before = self.name
        self.stage("starting Spark")
        yield
        self.stage(before)

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Show the number of bytes that are in rows, and of all bytes to read."""
        from wireyard.text import bytes_text

        text = f"{bytes_text(done_bytes)} of {bytes_text(total_bytes)}"
        self._show(self.name, done_bytes / max(total_bytes, 1), text)

    def _span_of(self, name: str) -> tuple[float, float]:
        """Return the start of a stage on the bar, and its share; the bar never goes back."""
        start = 0
        fitting = [prefix for prefix in _SHARES if name.startswith(prefix)]
        stage = max(fitting, key=len, default="")
        for prefix, share in _SHARES.items():
            if prefix == stage:
                begins = max(start, self._at)
                return begins, max(start + share - begins, 0.0)
            start += share
        return self._at, 0.0

    def _show(self, name: str, part: float, text: str) -> None:
        at = self._at = self._start + part * self._share
        elapsed = time.monotonic() - self._began
        left = elapsed * (100 - at) / at if at >= 1 else None
        shown = f"about {left:,.0f} s left" if left is not None and part else ""
        self._progress.update(self._task, description=name, completed=at, bytes=text, left=shown)
