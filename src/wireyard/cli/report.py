"""``wireyard report``."""

from __future__ import annotations

from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.answers import (
    no_cache_option,
    nothing_read,
    opened_tables,
    shown_inputs,
    status_of,
)
from wireyard.cli.options import (
    PATH,
    decode_as_option,
    examples,
    format_option,
    rotated_option,
)
from wireyard.cli.output import open_output
from wireyard.streams.urls import shown_url

__all__ = ["command"]


@click.command(
    "report",
    epilog=examples(
        "wireyard report examples/traffic.pcap -o report.html",
        "wireyard report lake -o report.html",
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
    required=True,
    help="Where the page goes, whole or not at all; - is standard output.",
)
@format_option("by the first bytes of each stream")
@decode_as_option
@click.option(
    "--keylog",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="A key log with the secrets of a capture's TLS connections.",
)
@rotated_option
@no_cache_option
def command(
    inputs: tuple[str, ...],
    output: str,
    **how: Any,
) -> int:
    """Write a page about captures, streams, stores or a lake.

    One file of HTML without scripts that loads nothing: what needs attention and the bytes that
    prove it, what was sent over time, who talks to whom, latencies, deliveries, sessions, retained
    values. Each number has its query, and 'wireyard sql' gives the same.
    """
    from wireyard.report import build_report

    with opened_tables(inputs, **how) as tables:
        if nothing := nothing_read(tables):
            exits.note(nothing)
        page = build_report(
            tables,
            [*map(shown_url, inputs)],
            shown_inputs(inputs, **how),
            format=how["format_name"],
            decode_as=how["decode_as"],
            keylog=how["keylog"],
        )
    with open_output(output, binary=False) as file:
        file.write(page.encode())
    return exits.DATA_LOST if nothing else status_of(tables)
