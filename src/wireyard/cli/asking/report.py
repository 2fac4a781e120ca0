"""``wireyard report``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import (
    note_nothing,
    opened_tables,
    reading_options,
    shown_inputs,
    status_of,
)
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.cli.progress import waiting
from wireyard.errors import UsageError
from wireyard.streams.urls import shown_url
from wireyard.text import bytes_text

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.report.filters import Filter


@click.command(
    "report",
    epilog=examples(
        "wireyard report examples/traffic.pcap -o report.html",
        "wireyard report lake -o report.html",
        "wireyard report lake --serve --port 8080",
    ),
)
@click.argument("inputs", metavar="INPUT|LAKE...", nargs=-1, required=True, type=PATH)
@click.option(
    "-w",
    "--write",
    "-o",
    "--output",
    "output",
    type=PATH,
    metavar="FILE",
    help="Where the page goes, whole or not at all; - is standard output.",
)
@click.option(
    "--serve",
    is_flag=True,
    help="Serve the page on 127.0.0.1 instead, with filters by client, topic and time, until"
    " Ctrl-C; of a lake, the newest version.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port of --serve; any that is free if not given.",
)
@reading_options
def command(inputs: tuple[str, ...], output: str | None, serve: bool, port: int, **how: Any) -> int:
    """Write a page about captures, streams, stores or a lake.

    One file of HTML without scripts that loads nothing: how much is lost, stuck or slow, what was
    sent over time, the findings with the bytes that prove them; who talks to whom, latencies,
    deliveries, sessions, topics with their last values. Each number in a table has its query, and
    'wireyard sql' gives the same.
    """
    if serve == (output is not None):
        raise UsageError("the page goes to a file, -w FILE, or is served, --serve")
    if serve:
        return _serve(inputs, port, how)
    assert output is not None
    with opened_tables(inputs, may_be_empty=True, **how) as tables:
        if not tables.formats:
            note_nothing(inputs)
        with waiting("making the page"):
            page = _build(tables, inputs, how).encode()
    with open_output(output, binary=False) as file:
        file.write(page)
    exits.note_written(output, bytes_text(len(page)))
    return status_of(tables) if tables.formats else exits.DATA_LOST


def _build(
    tables: Tables, inputs: Sequence[str], how: Mapping[str, Any], only: Filter | None = None
) -> str:
    from wireyard.report import build_report

    return build_report(
        tables,
        [*map(shown_url, inputs)],
        shown_inputs(inputs, **how),
        format=how["format_name"],
        decode_as=how["decode_as"],
        keylog=how["keylog"],
        only=only,
    )


def _serve(inputs: Sequence[str], port: int, how: Mapping[str, Any]) -> int:
    """Serve pages until Ctrl-C; inputs are read once, a lake for each page."""
    from wireyard.report.serve import LOOPBACK, ReportServer

    with opened_tables(inputs, **how) as tables:

        def build(only: Filter) -> str:
            if not tables.lake:
                return _build(tables, inputs, how, only)
            with opened_tables(inputs, may_be_empty=True, **how) as newest:
                return _build(newest, inputs, how, only)

        try:
            server = ReportServer(build, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise UsageError(f"--port {port}: cannot listen on {LOOPBACK} ({reason})") from None
        with server, suppress(KeyboardInterrupt):
            exits.note(f"serving {server.url} until Ctrl-C")
            server.serve_forever()
    return status_of(tables)
