"""``wireyard slice``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.options import (
    PATH,
    decode_as_option,
    examples,
    format_option,
    keylog_option,
    max_packet_option,
)
from wireyard.cli.output import open_output
from wireyard.errors import UsageError
from wireyard.formats import get_format

if TYPE_CHECKING:
    from wireyard.captures.inputs import Input

__all__ = ["command"]

_ROW = ("offset", "length", "status")


@click.command(
    "slice",
    epilog=examples(
        "wireyard slice traffic.pcap --where 'topic == plant/7/state' -w plant7.pcap",
        "wireyard slice traffic.pcap --format jmq --where 'status != ok' -w broken.pcap",
    ),
)
@click.argument("files", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only the frames of such rows: COLUMN, one of == != < <= > >= in, VALUE. All conditions"
    " have to hold.",
)
@click.option(
    "-w", "--write", type=PATH, metavar="FILE", required=True, help="Write the capture there."
)
@format_option("each stream by its first bytes")
@decode_as_option
@keylog_option
@max_packet_option
def command(
    files: tuple[str, ...],
    where: tuple[str, ...],
    write: str,
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    max_packet_bytes: int | None,
) -> int:
    """Write the frames behind rows of a capture as a capture.

    INPUT is a pcap or pcapng file; several are pieces of one capture, in any order. Every frame
    that brought some byte of a row that matches is written, byte for byte as it was captured, in
    the format of its file, so that any other tool shows what the row was made from.
    """
    from wireyard.captures.inputs import open_captures
    from wireyard.captures.slicing import slice_captures

    named = get_format(format_name) if format_name else None
    found = open_captures(files, named, decode_as, keylog=keylog)
    wanted = _packets_of(found, where, max_packet_bytes)
    parts = slice_captures(found.files, wanted)
    with open_output(write, binary=True) as target:
        for part in parts:
            target.write(part.data)
    exits.note(f"{len(wanted)} frames written to {write}")
    for note in filter(None, (*found.notes, *found.closed, found.unread)):
        exits.note(f"{found.name}: {note}")
    if found.damage:
        exits.note(f"{found.name}: {found.damage}")
        return exits.DATA_LOST
    return exits.DONE


def _packets_of(found: Input, where: tuple[str, ...], max_packet_bytes: int | None) -> set[int]:
    from wireyard.captures.directed import CapturedStream
    from wireyard.cli.where import parse_conditions
    from wireyard.streams.plan import make_plan
    from wireyard.streams.scan import scan_stream

    if not found.streams:
        raise UsageError(f"{found.name}: no stream of it is known; --decode-as says what they are")
    wanted: set[int] = set()
    for format, opened in found.streams:
        assert isinstance(opened, CapturedStream)
        conditions = parse_conditions(format, where, captured=True)
        plan = make_plan(format, _ROW, conditions, max_packet_bytes=max_packet_bytes, captured=True)
        for rows in scan_stream(opened, plan):
            wanted |= opened.packets_of(rows)
    return wanted
