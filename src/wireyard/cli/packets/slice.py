"""``wireyard slice``."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.options import (
    PATH,
    WHERE_HELP,
    complete_columns,
    decode_as_option,
    examples,
    format_option,
    keylog_option,
    max_packet_option,
    write_option,
)
from wireyard.cli.output import open_output
from wireyard.cli.progress import waiting
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.text import count_text

if TYPE_CHECKING:
    from wireyard.captures.inputs import Input, Readable

_ROW = ("offset",)
_MOST_NAMED = 5


@click.command(
    "slice",
    epilog=examples(
        "wireyard slice traffic.pcap --where 'topic == plant/7/state' -w plant7.pcap",
        "wireyard slice traffic.pcap --where 'destination == orders OR qos == 2' -w some.pcap",
        "wireyard slice traffic.pcap --client till -w till.pcap",
    ),
)
@click.argument("files", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option(
    "--where",
    multiple=True,
    shell_complete=complete_columns,
    metavar="CONDITION",
    help=WHERE_HELP.format("Only the frames of such rows"),
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="ID",
    help="All frames of this client's connections, both directions, with all that TCP sent; a"
    " client id, or ADDRESS:PORT. With --where only the frames of rows among those.",
)
@write_option(required=True)
@format_option("each stream by its first bytes")
@decode_as_option
@keylog_option
@max_packet_option
def command(
    files: tuple[str, ...],
    where: tuple[str, ...],
    clients: tuple[str, ...],
    write: str,
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    max_packet_bytes: int | None,
) -> int:
    """Write the frames behind rows of a capture as a capture.

    INPUT is a pcap or pcapng file; several are pieces of one capture, in any order. Every frame
    that brought some byte of a row that matches is written, byte for byte as it was captured, in
    the format of its file, so that any other tool shows what the row was made from. The file
    says that it is a slice, so that nothing is concluded from what it leaves out. --client takes
    whole connections, from the first SYN to the last ACK.
    """
    from wireyard.captures.files.slicing import slice_captures
    from wireyard.captures.inputs import open_captures

    named = get_format(format_name) if format_name else None
    with waiting(f"reading {files[0]}"):
        found = open_captures(files, named, decode_as, keylog=keylog)
    if not found.readables:
        _note_unread(found)
        raise UsageError(f"{found.name}: no stream of it is known")
    streams: Sequence[Readable] = found.readables
    if clients:
        from wireyard.captures.clients import Clients, frames_of_connections, streams_of_clients

        streams = streams_of_clients(found, clients)
        if not streams:
            shown, known = " or ".join(clients), sorted({*Clients.of(found.readables).ids.values()})
            close = [like for one in clients for like in get_close_matches(one, known, 1)]
            there = close or known[:_MOST_NAMED]
            near = f"; there is {', '.join(there)}" if there else ""
            raise UsageError(f"--client {shown}: {found.name} shows no client of this id{near}")
    with waiting("finding frames"):
        if clients and not where:
            wanted = frames_of_connections(found, streams)
        else:
            wanted = _packets_of(streams, where, named is None, max_packet_bytes)
    if not wanted and where:
        from wireyard.cli.decoding.job import what_there_is

        values = what_there_is(found, where)
        exits.note(f"{found.name}: no row matches{f'; {values}' if values else ''}")
    parts = slice_captures(found.files, wanted)
    with open_output(write, binary=True) as target:
        for part in parts:
            target.write(part.data)
    exits.note_written(write, count_text(len(wanted), "frame"))
    _note_unread(found)
    return exits.DATA_LOST if found.damage else exits.DONE


def _note_unread(found: Input) -> None:
    exits.notes_on(found.name, (*found.notes, *found.closed, found.unread, found.damage))


def _packets_of(
    streams: Sequence[Readable],
    where: tuple[str, ...],
    lenient: bool,
    max_packet_bytes: int | None,
) -> set[int]:
    from wireyard.captures.bundled import BundledStreams
    from wireyard.captures.directed import CapturedStream
    from wireyard.streams.conditions import bind, parse
    from wireyard.streams.plan import make_plan
    from wireyard.streams.scan import scan_parts

    tree, limit = parse(where), max_packet_bytes
    formats = {format.label: format for format, _ in streams}
    plans = {
        label: make_plan(
            *(format, _ROW, where), max_packet_bytes=limit, captured=True, lenient=lenient
        )
        for label, format in formats.items()
        if not bind(tree, format, captured=True, lenient=lenient).never
    }
    if not plans:
        known = " and ".join(sorted({format.name for format in formats.values()}))
        raise UsageError(f"--where {' '.join(where)}: {known} rows have no such column")
    wanted: set[int] = set()
    matching = (
        (opened, plans[format.label]) for format, opened in streams if format.label in plans
    )
    for found in scan_parts(matching):
        for opened, block in found.parts:
            assert isinstance(opened, CapturedStream | BundledStreams)
            wanted.update(opened.packets_of(block).tolist())
    return wanted
