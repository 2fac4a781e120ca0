"""``wireyard flows``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.moments import moment
from wireyard.cli.options import PATH, decode_as_option, examples, keylog_option
from wireyard.cli.output import open_output, to_terminal
from wireyard.formats import Format

if TYPE_CHECKING:
    from rich.table import Table

    from wireyard.captures.assignment import Assigned
    from wireyard.captures.inner import Carrier
    from wireyard.captures.read import Capture

__all__ = ["command"]

_PORT_MAPPER = "portmapper"
"""What a conversation with a broker's port mapper is called; it has no packets."""
_SHOWN = ("frame", "captured_ns", "flow", "seq", "ack", "flags", "window", "payload_length")
"""The columns of segments in a table for people."""


@dataclass(frozen=True)
class Conversation:
    """The two directions of a connection, the one that spoke first being `client`."""

    client: str
    server: str
    transport: str
    format: str | None
    """Of what is inside; where that is not known, what carries it: ``tls``, ``http``."""
    carriers: list[Carrier]
    """What carries it, the outermost first."""
    packets_sent: int | None
    packets_received: int | None
    bytes_sent: int
    bytes_received: int
    gaps: int
    gap_bytes: int
    first_ns: int | None
    last_ns: int | None
    ended: str | None


_SORTS: Mapping[str, Callable[[Conversation], int]] = {
    "bytes": lambda one: one.bytes_sent + one.bytes_received,
    "packets": lambda one: (one.packets_sent or 0) + (one.packets_received or 0),
    "time": lambda one: (one.last_ns or 0) - (one.first_ns or 0),
}
"""What conversations are sorted by, the largest first."""


@click.command(
    "flows",
    epilog=examples(
        "wireyard flows traffic.pcap",
        "wireyard flows traffic.pcapng.gz --out jsonl",
        "wireyard flows traffic.pcap --sort bytes",
        "wireyard flows traffic.pcap --segments | jq 'select(.window == 0)'",
    ),
)
@click.argument("file", type=PATH)
@click.option("--out", type=click.Choice(["table", "jsonl"]), help="A table on a terminal.")
@click.option(
    "--segments",
    is_flag=True,
    help="Every TCP segment and UDP datagram as it was captured, without its payload, instead.",
)
@click.option(
    "--sort",
    type=click.Choice(list(_SORTS)),
    help="Most bytes or packets first, or longest; in the order of their beginnings if not given.",
)
@decode_as_option
@keylog_option
def command(
    file: str,
    out: str | None,
    sort: str | None,
    segments: bool,
    decode_as: tuple[str, ...],
    keylog: tuple[str, ...],
) -> int:
    """List the conversations of a capture: who, in which format, how much, when.

    FILE is a pcap or pcapng file, a URL, or - for standard input; gzip and zstandard are opened by
    their content. A conversation is a TCP connection, or all datagrams between two UDP endpoints;
    sent is what the side says that spoke first. Packets are counted where the format is
    known. Bytes are those that TCP or UDP carried; what the capture never saw of them are gaps.
    TLS, WebSocket and HTTP are named with what their handshakes show. A narrow terminal shows
    fewer columns, jsonl has all.
    """
    kind = out or ("table" if to_terminal(None) else "jsonl")
    if segments:
        return _list_segments(file, kind)
    from wireyard.captures.assignment import assign_formats, describe_proxies, parse_decode_as
    from wireyard.captures.read import read_capture
    from wireyard.captures.tls_keys import embedded_secrets, read_key_logs

    rules = [parse_decode_as(text) for text in decode_as]
    capture = read_capture(file)
    keys = read_key_logs(keylog, lambda: embedded_secrets(capture.files))
    assigned = assign_formats(capture.streams, rules, keys=keys)
    found = list(_conversations(assigned))
    if sort is not None:
        found.sort(key=_SORTS[sort], reverse=True)
    with open_output(None, binary=False) as target:
        if kind == "jsonl":
            for one in found:
                target.write(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n")
        else:
            from wireyard.cli.tables import console_on, print_lines

            with console_on(target) as console:
                print_lines(console, _table(found, console.width))
                console.print()
                console.print(_ledger(capture), soft_wrap=True)
    _note_unread(file, capture.unread)
    if proxies := describe_proxies(assigned):
        exits.note(f"{file}: {proxies}")
    if capture.damage is not None:
        exits.note(f"{file}: {capture.damage}; {capture.unread_bytes} bytes are not read")
        return exits.DATA_LOST
    return exits.DONE


def _list_segments(file: str, kind: str) -> int:
    from wireyard.captures.headers import Tally
    from wireyard.captures.segment_columns import SEGMENTS
    from wireyard.captures.segments import scan_segments
    from wireyard.captures.unread import name_unread
    from wireyard.cli.tables import console_on, write_table
    from wireyard.errors import SourceError

    names = [column.name for column in SEGMENTS if column.name != "payload"]
    tally = Tally()
    reader = scan_segments(file, names if kind == "jsonl" else _SHOWN, tally)
    damage: list[SourceError] = []

    def rows() -> Iterator[dict[str, Any]]:
        try:
            for batch in reader:
                yield from batch.to_pylist()
        except SourceError as error:  # what is before the damage was there
            damage.append(error)

    with open_output(None, binary=False) as target:
        if kind == "jsonl":
            for row in rows():
                target.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        else:
            with console_on(target) as console:
                shown = [column for column in SEGMENTS if column.name in _SHOWN]
                write_table(rows(), shown, console, chosen=True)
    _note_unread(file, name_unread(tally.endings))
    if damage:
        exits.note(str(damage[0]))
        return exits.DATA_LOST
    return exits.DONE


def _note_unread(file: str, unread: Mapping[str, int]) -> None:
    """Say which frames are in no conversation."""
    from wireyard.captures.unread import describe_unread

    if note := describe_unread(unread):
        exits.note(f"{file}: {note}")


def _ledger(capture: Capture) -> str:
    """Say where every captured byte is."""
    parts = capture.payload_bytes | capture.other_bytes
    shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items() if count]
    text = f"{sum(parts.values()):,} captured bytes = {' + '.join(shown) or '0'}"
    return f"{text}; {capture.cut_bytes:,} more were cut off" if capture.cut_bytes else text


def _conversations(assigned: Iterable[Assigned]) -> Iterator[Conversation]:
    for _, both in groupby(assigned, key=lambda each: each.stream.connection):
        yield _conversation(list(both))


def _conversation(sides: list[Assigned]) -> Conversation:
    directions = [side.captured for side in sides]
    first = directions[0]
    back = directions[1] if len(directions) > 1 else None
    format = sides[0].format
    carriers = list(sides[0].carriers)
    name = format.name if format else carriers[-1].name if carriers else None
    gaps = [gap for one in directions for gap in one.gaps.tolist()]
    spans = [span for one in directions if (span := one.span_ns) is not None]
    return Conversation(
        client=str(first.src),
        server=str(first.dst),
        transport=first.protocol,
        format=name or (_PORT_MAPPER if sides[0].port_mapper else None),
        carriers=carriers,
        packets_sent=_count(sides[0], format),
        packets_received=_count(sides[1] if back else None, format),
        bytes_sent=first.size,
        bytes_received=back.size if back else 0,
        gaps=len(gaps),
        gap_bytes=sum(stop - start for start, stop in gaps),
        first_ns=min((first for first, _ in spans), default=None),
        last_ns=max((last for _, last in spans), default=None),
        ended=first.ended or (back.ended if back else None),
    )


def _count(side: Assigned | None, format: Format | None) -> int | None:
    """Return how many whole packets a direction has."""
    if format is None:
        return None
    if side is None:
        return 0
    stream = side.stream
    from wireyard.captures.directed import CapturedStream
    from wireyard.streams.framer import Framer
    from wireyard.streams.scan import load_fast_path

    fast = load_fast_path(format, stream.size)
    opened = CapturedStream("", stream, format.context, stream.size)
    blocks = opened.blocks(Framer(format), fast.scan_frames if fast else None)
    return sum(len(block.offsets) - len(block.odd) for block in blocks)


_LEFT = ("first", "client", "server", "format", "carried by")
_KEPT = ("client", "server", "format", "bytes", "packets", "gaps", "seconds", "first", "carried by")
"""The columns of the table, the ones first that stay where there is no room for all."""


def _table(found: Sequence[Conversation], width: int) -> Table:
    """Return conversations as a table of the columns that there is room for."""
    from rich.cells import cell_len
    from rich.table import Table

    rows = [_cells(one) for one in found]
    shown, left = set[str](), width
    for name in _KEPT:
        widest = max((cell_len(row[name]) for row in rows), default=0)
        needed = max(widest, len(name)) + (2 if shown else 0)
        if name in _KEPT[:4] or (widest and needed <= left):
            shown.add(name)
            left -= needed
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    names = [name for name in _cells(found[0]) if name in shown] if found else []
    for name in names:
        table.add_column(name, justify="left" if name in _LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(one: Conversation) -> dict[str, str]:
    """Return the cells of a conversation, in the order of the columns."""
    from wireyard.cli.tables import printable

    known = one.first_ns is not None and one.last_ns is not None
    counted = one.packets_sent is not None
    return {
        "first": moment(one.first_ns, 3) if one.first_ns is not None else "",
        "client": printable(one.client),
        "server": printable(one.server),
        "format": one.format or one.transport,
        "packets": f"{one.packets_sent} / {one.packets_received}" if counted else "",
        "bytes": f"{one.bytes_sent} / {one.bytes_received}",
        "gaps": str(one.gaps) if one.gaps else "",
        "seconds": f"{((one.last_ns or 0) - (one.first_ns or 0)) / 1e9:.3f}" if known else "",
        "carried by": printable(", in ".join(map(str, one.carriers[::-1]))),
    }
