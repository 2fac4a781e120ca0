"""``wireyard flows``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import click
import numpy as np

from wireyard.captures.records import NO_TIME
from wireyard.cli import exits
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output, to_terminal
from wireyard.formats import Format, sniff

if TYPE_CHECKING:
    from rich.table import Table

    from wireyard.captures.stream import Stream

__all__ = ["command"]

_SNIFFED_BYTES = 1 << 16


@dataclass(frozen=True)
class Conversation:
    """The two directions of a connection, the one that spoke first being `client`."""

    client: str
    server: str
    transport: str
    format: str | None
    packets_sent: int | None
    packets_received: int | None
    bytes_sent: int
    bytes_received: int
    gaps: int
    gap_bytes: int
    first_ns: int | None
    last_ns: int | None
    ended: str | None


@click.command(
    "flows",
    epilog=examples("wireyard flows traffic.pcap", "wireyard flows traffic.pcapng.gz --out jsonl"),
)
@click.argument("file", type=PATH)
@click.option("--out", type=click.Choice(["table", "jsonl"]), help="A table on a terminal.")
def command(file: str, out: str | None) -> int:
    """List the conversations of a capture: who, in which format, how much, when.

    FILE is a pcap or pcapng file, a URL, or - for standard input; gzip and zstandard are opened by
    their content. A conversation is a TCP connection, or all datagrams between two UDP endpoints;
    sent is what the side says that spoke first. Packets are counted where the first bytes of a
    direction show a format. Bytes that the capture never saw are gaps.
    """
    from wireyard.captures.read import read_capture

    capture = read_capture(file)
    found = list(_conversations(capture.streams))
    with open_output(None, binary=False) as target:
        if (out or ("table" if to_terminal(None) else "jsonl")) == "jsonl":
            for one in found:
                target.write(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n")
        else:
            from wireyard.cli.tables import console_on, print_lines

            with console_on(target) as console:
                print_lines(console, _table(found))
    if capture.damage is not None:
        exits.note(f"{file}: {capture.damage}; {capture.unread_bytes} bytes are not read")
        return exits.DATA_LOST
    return exits.DONE


def _conversations(streams: Iterable[Stream]) -> Iterator[Conversation]:
    for _, both in groupby(streams, key=_connection):
        yield _conversation(list(both))


def _connection(stream: Stream) -> tuple[str, frozenset[str], str]:
    ends = frozenset((str(stream.src), str(stream.dst)))
    return stream.protocol, ends, stream.name.partition("#")[2]


def _conversation(directions: list[Stream]) -> Conversation:
    first = directions[0]
    back = directions[1] if len(directions) > 1 else None
    format = next((found for one in directions if (found := _format(one)) is not None), None)
    gaps = [gap for one in directions for gap in one.gaps.tolist()]
    times = np.concatenate([one.content.times_ns[one.runs.records] for one in directions])
    times = times[times != NO_TIME]
    return Conversation(
        client=str(first.src),
        server=str(first.dst),
        transport=first.protocol,
        format=format.name if format else None,
        packets_sent=_count(first, format),
        packets_received=_count(back, format),
        bytes_sent=first.size,
        bytes_received=back.size if back else 0,
        gaps=len(gaps),
        gap_bytes=sum(stop - start for start, stop in gaps),
        first_ns=int(times.min()) if len(times) else None,
        last_ns=int(times.max()) if len(times) else None,
        ended=first.ended or (back.ended if back else None),
    )


def _format(stream: Stream) -> Format | None:
    """Return the format that the first bytes of a TCP stream show."""
    pieces = stream.pieces.tolist()
    if stream.protocol != "tcp" or not pieces:
        return None
    start, stop = pieces[0]
    return sniff(stream.read(start, min(stop, start + _SNIFFED_BYTES)).tobytes())


def _count(stream: Stream | None, format: Format | None) -> int | None:
    """Return how many whole packets a direction has."""
    if format is None:
        return None
    if stream is None:
        return 0
    from wireyard.streams.blocks import cut_blocks
    from wireyard.streams.framer import Framer
    from wireyard.streams.scan import load_fast_path

    fast = load_fast_path(format, stream.size)
    packets = 0
    for start, stop in stream.pieces.tolist():
        framer = Framer(format, position=start)
        windows = stream.windows(start, stop)
        for block in cut_blocks(windows, framer, fast.scan_frames if fast else None):
            packets += len(block.offsets) - len(block.odd)
    return packets


def _table(found: Iterable[Conversation]) -> Table:
    from rich.table import Table

    from wireyard.cli.tables import printable

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("client", "server", "format"):
        table.add_column(name, no_wrap=True)
    for name in ("packets", "bytes", "gaps", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("first", no_wrap=True)
    for one in found:
        packets = f"{one.packets_sent} / {one.packets_received}" if one.format else ""
        table.add_row(
            printable(one.client),
            printable(one.server),
            one.format or one.transport,
            packets,
            f"{one.bytes_sent} / {one.bytes_received}",
            str(one.gaps) if one.gaps else "",
            *_when(one),
        )
    return table


def _when(one: Conversation) -> tuple[str, str]:
    """Return how long a conversation took, and when it began, where the capture says so."""
    if one.first_ns is None or one.last_ns is None:
        return "", ""
    return f"{(one.last_ns - one.first_ns) / 1e9:.3f}", _moment(one.first_ns)


def _moment(time_ns: int) -> str:
    """Return a time as ISO 8601, with all its digits."""
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ns)  # a capture may say any year
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
