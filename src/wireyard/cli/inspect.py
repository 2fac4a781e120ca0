"""``wireyard inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
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
from wireyard.formats import Format, get_format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from wireyard.captures.accounts import StreamAccount
    from wireyard.captures.inputs import Input
    from wireyard.cli.frames import FoundFrame
    from wireyard.streams.blocks import DirectedStream

__all__ = ["command"]


def _offset(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else int(value, 0)
    except ValueError:
        raise click.BadParameter(f"{value} is no offset, such as 4711 or 0x1267") from None


@click.command(
    "inspect",
    epilog=examples(
        "wireyard inspect traffic.jmq",
        "wireyard inspect traffic.jmq --at 4711",
        "wireyard inspect traffic.pcap                 the account of every stream's bytes",
        "wireyard inspect traffic.pcap --frame 127     the packets that this frame brought",
    ),
)
@click.argument("file", type=PATH)
@click.option(
    "--at",
    callback=_offset,
    metavar="OFFSET",
    help="Any byte of the packet, counted from the start of the stream; 0 if not given.",
)
@click.option(
    "--frame",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of a capture: all packets with bytes that frame N brought, as other tools count frames.",
)
@click.option(
    "--stream",
    metavar="NAME",
    help="Of a capture or a store: the stream that OFFSET counts in, as rows name it.",
)
@click.option("--all", "whole", is_flag=True, help="Show every byte of long fields.")
@click.option("--secrets", is_flag=True, help="Show the bytes of passwords.")
@format_option("by the first bytes")
@decode_as_option
@keylog_option
@max_packet_option
def command(
    file: str,
    at: int | None,
    frame: int | None,
    stream: str | None,
    whole: bool,
    secrets: bool,
    format_name: str | None,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
    max_packet_bytes: int | None,
) -> int:
    """Show what every byte of a packet means, or of a capture where each byte went.

    One line a field: where it stands in the packet, its bytes, its name and its value, under the
    section of the specification that says so. OFFSET may point into a packet; bytes that belong
    to no packet are shown as what they are. The last line says where the neighbours begin.

    Of a capture or a store without --frame and --stream: one line a stream, the bytes in messages,
    those that could not be decoded and those of gaps, which together are all that TCP or UDP
    carried, or that the file holds. If they are not, or bytes are of no known format, the exit
    status is 1.
    """
    from wireyard.captures.inputs import open_input
    from wireyard.cli.tables import console_on

    named = get_format(format_name) if format_name else None
    found = open_input(file, named, decode_as, keylog)
    stored = not found.captured and not _is_bare(found)
    with (
        closing(found),
        open_output(None, binary=False) as target,
        console_on(target) as console,
    ):
        if frame is not None:
            if not found.captured:
                raise UsageError(f"{file}: has no frames, it is no capture; --at finds a packet")
            shown = _packets_in(found, frame, max_packet_bytes)
        elif stream is not None or not (found.captured or stored):
            shown = iter([_packet_at(found, stream, at or 0, max_packet_bytes)])
        elif at is not None:
            raise UsageError(f"--at {at}: {file} has several streams; --stream names one of them")
        else:
            return _show_accounts(found, max_packet_bytes, console)
        from wireyard.cli.hexdump import show_frame

        several = found.captured or stored
        for number, (format, opened, one) in enumerate(shown):
            if number:
                console.print()
            name = opened.stream if several else None
            show_frame(one, format, console, whole=whole, secrets=secrets, stream=name)
    return exits.DONE


def _is_bare(found: Input) -> bool:
    """Return whether an input is one stream."""
    from wireyard.streams.scan import OpenedStream

    return bool(found.readables) and isinstance(found.readables[0].opened, OpenedStream)


def _packet_at(
    found: Input, stream: str | None, at: int, max_packet_bytes: int | None
) -> tuple[Format, DirectedStream, FoundFrame]:
    from wireyard.cli.frames import find_frame

    for format, opened in found.streams:
        if stream is None or opened.stream == stream:
            return format, opened, find_frame(opened, format, at, max_packet_bytes)
    raise UsageError(
        f"--stream {stream}: {found.name} has no such stream of a known format;"
        f" 'wireyard inspect {found.name}' lists them"
    )


def _packets_in(
    found: Input, number: int, max_packet_bytes: int | None
) -> Iterator[tuple[Format, DirectedStream, FoundFrame]]:
    """Yield the packets that a frame brought some bytes of.

    Raises
    ------
    UsageError
        The frame brought no byte of a stream of a known format.
    """
    from wireyard.captures.directed import CapturedStream
    from wireyard.cli.frames import find_frames, offsets_in

    none = True
    for format, opened in found.streams:
        assert isinstance(opened, CapturedStream)
        last = -1
        for start, stop in offsets_in(opened, number):
            for one in find_frames(opened, format, start, stop, max_packet_bytes):
                if one.start > last:
                    yield format, opened, one
                    last, none = one.start, False
    if none:
        raise UsageError(
            f"--frame {number}: brought no byte of a stream of a known format; 'wireyard flows"
            f" {found.name} --segments' lists what each frame is"
        )


def _show_accounts(found: Input, max_packet_bytes: int | None, console: Console) -> int:
    from rich.text import Text

    from wireyard.captures.accounts import account_streams
    from wireyard.cli.tables import print_lines

    accounts = list(account_streams(found, max_packet_bytes))
    print_lines(console, _account_table(accounts, found.captured))
    wrong = [one for one in accounts if not one.balances]
    sums = [
        sum(one.message_bytes for one in accounts),
        sum(one.undecoded_bytes for one in accounts),
        sum(one.gap_bytes for one in accounts),
    ]
    total = sum(one.payload_bytes for one in accounts)
    line = "{:,} in messages + {:,} undecoded + {:,} in gaps".format(*sums)
    of = "of payload" if found.captured else "in files"
    console.print()
    if wrong or sum(sums) != total:
        problem = f"does not balance: {line}, but {total:,} bytes {of}"
        console.print(Text(problem, "bold red"), soft_wrap=True)
        return exits.DATA_LOST
    console.print(Text(f"balances: {line} = {total:,} bytes {of}", "green"), soft_wrap=True)
    for note in filter(None, (found.damage, found.unread, *found.closed)):
        exits.note(f"{found.name}: {note}")
    return exits.DATA_LOST if found.damage or found.unread else exits.DONE


def _account_table(accounts: list[StreamAccount], captured: bool) -> Table:
    from rich.table import Table

    from wireyard.cli.tables import printable

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("stream", overflow="fold")
    table.add_column("format", no_wrap=True)
    names = ("messages", "+undecoded", "+gaps", "=payload" if captured else "=file")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in accounts:
        numbers = (one.message_bytes, one.undecoded_bytes, one.gap_bytes, one.payload_bytes)
        style = None if one.balances else "bold red"
        name = one.format or "unknown"
        table.add_row(printable(one.stream), name, *map(str, numbers), style=style)
    return table
