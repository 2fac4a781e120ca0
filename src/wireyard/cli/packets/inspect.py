"""``wireyard inspect``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

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
from wireyard.cli.progress import waiting
from wireyard.errors import UsageError
from wireyard.formats import Format, get_format

if TYPE_CHECKING:
    from rich.console import Console

    from wireyard.captures.accounts import StoreAccount, StreamAccount
    from wireyard.captures.inputs import Input
    from wireyard.cli.packets.hexdump import FoundFrame
    from wireyard.streams.blocks import DirectedStream


class _Number(NamedTuple):
    """A number in the account of a stream or file; the last one is the sum of the others."""

    column: str
    heading: str
    text: str


_LABEL_WIDTH: Final = 16
"""Width of the column `holds`, so that a line of a store fits 80 columns."""
_OF_BOTH: Final = (
    _Number("message_bytes", "messages", "in messages"),
    _Number("undecoded_bytes", "+undecoded", "undecoded"),
)
_OF_STREAMS: Final = (
    *_OF_BOTH,
    _Number("gap_bytes", "+gaps", "in gaps"),
    _Number("payload_bytes", "=payload", "bytes of payload"),
)
_OF_FILES: Final = (
    *_OF_BOTH,
    _Number("free_bytes", "+free", "free"),
    _Number("own_bytes", "+own", "the store's own"),
    _Number("file_bytes", "=file", "bytes in files"),
)


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

    Of a capture without --frame and --stream: one line a stream, the bytes in messages, those that
    could not be decoded and those of gaps, which together are all that TCP or UDP carried. Of a
    store one line a file: the bytes in messages, those that could not be decoded, those of records
    that are free, and the store's own. If they do not add up, or bytes are of no known format, the
    exit status is 1.
    """
    from wireyard.captures.inputs import open_input
    from wireyard.cli.tables import console_on

    named = get_format(format_name) if format_name else None
    with waiting(f"reading {file}"):
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
            of = _store_accounts if stored else _stream_accounts
            with waiting("counting bytes"):
                accounts, numbers = of(found, max_packet_bytes)
            return _show_accounts(found, accounts, numbers, console)
        from wireyard.cli.packets.hexdump import show_frame

        several = found.captured or stored
        for number, (format, opened, one) in enumerate(shown):
            if number:
                console.print()
            name = opened.stream if several else None
            show_frame(one, format, console, whole=whole, secrets=secrets, stream=name)
    return exits.DONE


def _is_bare(found: Input) -> bool:
    """Return whether an input is a bare stream."""
    from wireyard.streams.scan import OpenedStream

    return bool(found.readables) and isinstance(found.readables[0].opened, OpenedStream)


def _packet_at(
    found: Input, stream: str | None, at: int, max_packet_bytes: int | None
) -> tuple[Format, DirectedStream, FoundFrame]:
    from wireyard.cli.packets.hexdump import find_frame

    streams = found.readables if stream is None else found.streams_named({stream})
    for format, opened in streams:
        return format, opened, find_frame(opened, format, at, max_packet_bytes)
    raise UsageError(
        f"--stream {stream}: {found.name} has no such stream of a known format;"
        f" 'wireyard inspect {found.name}' lists them"
    )


def _packets_in(
    found: Input, number: int, max_packet_bytes: int | None
) -> Iterator[tuple[Format, DirectedStream, FoundFrame]]:
    """Yield the packets that have bytes in a frame.

    A `UsageError` is raised if the frame has no bytes of a stream of a known format.
    """
    from wireyard.captures.bundled import BundledStreams
    from wireyard.captures.directed import CapturedStream
    from wireyard.cli.packets.hexdump import find_frames, offsets_in

    none = True
    streams = (
        (format, one)
        for format, opened in found.readables
        for one in (opened.of_frame(number) if isinstance(opened, BundledStreams) else [opened])
    )
    for format, opened in streams:
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


def _stream_accounts(
    found: Input, max_packet_bytes: int | None
) -> tuple[Sequence[StreamAccount], Sequence[_Number]]:
    """Return the accounts of a capture's streams, and their numbers."""
    from wireyard.captures.accounts import account_streams

    return list(account_streams(found, max_packet_bytes)), _OF_STREAMS


def _store_accounts(
    found: Input, max_packet_bytes: int | None
) -> tuple[Sequence[StoreAccount], Sequence[_Number]]:
    """Return the accounts of a store's files, and their numbers."""
    from wireyard.captures.accounts import account_store
    from wireyard.captures.stores.read import read_store

    return list(account_store(read_store(found.name), max_packet_bytes)), _OF_FILES


def _show_accounts(
    found: Input,
    accounts: Sequence[StreamAccount | StoreAccount],
    numbers: Sequence[_Number],
    console: Console,
) -> int:
    from rich.text import Text

    _print_accounts(accounts, numbers, console)
    *parts, total = (
        f"{sum(getattr(one, number.column) for one in accounts):,} {number.text}"
        for number in numbers
    )
    line = " + ".join(parts)
    console.print()
    if not all(one.balances for one in accounts):
        text = f"does not balance: {line}, but {total}"
        console.print(Text(text, "bold red"), soft_wrap=True)
        return exits.DATA_LOST
    console.print(Text(f"balances: {line} = {total}", "green"), soft_wrap=True)
    exits.notes_on(found.name, (*found.notes, found.damage, found.unread, *found.closed))
    return exits.DATA_LOST if found.damage or found.unread else exits.DONE


def _print_accounts(
    accounts: Sequence[StreamAccount | StoreAccount], numbers: Sequence[_Number], console: Console
) -> None:
    """Print a line for each stream or file; a capture may have some hundred thousand streams."""
    from rich.text import Text

    from wireyard.text import printable

    names = ("file", "holds") if numbers is _OF_FILES else ("stream", "format")
    lines = [(*names, *(number.heading for number in numbers))]
    lines += [
        (
            printable(getattr(one, names[0])),
            _clipped(printable(getattr(one, names[1]) or "unknown")),
            *(str(getattr(one, number.column)) for number in numbers),
        )
        for one in accounts
    ]
    first, second, *widths = (max(map(len, cells)) for cells in zip(*lines, strict=True))
    styles = ["dim", *("" if one.balances else "bold red" for one in accounts)]
    for style, (name, label, *cells) in zip(styles, lines, strict=True):
        line = f"{name:<{first}} {label:<{second}} {' '.join(map(str.rjust, cells, widths))}"
        if style and console.is_terminal:
            console.print(Text(line, style), soft_wrap=True)
        else:
            console.file.write(f"{line}\n")


def _clipped(label: str) -> str:
    return label if len(label) <= _LABEL_WIDTH else f"{label[: _LABEL_WIDTH - 2]}.."
