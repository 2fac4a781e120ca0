"""``wireyard flows``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

from wireyard.cli import exits
from wireyard.cli.decoding.cells import json_line
from wireyard.cli.options import PATH, decode_as_option, examples, keylog_option
from wireyard.cli.output import open_output, to_terminal
from wireyard.cli.progress import waiting
from wireyard.text import moment

if TYPE_CHECKING:
    from rich.console import Console

    from wireyard.captures.conversations import Conversation
    from wireyard.captures.packets.headers import Cut
    from wireyard.captures.read import Capture

_SHOWN = ("frame", "captured_ns", "flow", "seq", "ack", "flags", "window", "payload_length")
"""The columns of segments in a table for people."""


_SORTS = ("bytes", "packets", "time")
"""Sort keys of conversations; the largest comes first."""


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
    type=click.Choice(_SORTS),
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

    FILE is a pcap or pcapng file, a URL, or - for standard input; compressed files are opened by
    their content. A conversation is a TCP connection, or all datagrams between two UDP endpoints;
    'sent' counts the side that sent first. Packets are counted if the format is known. Bytes are
    those that TCP or UDP carried; those that were not captured are gaps.
    TLS, WebSocket and HTTP are named with what their handshakes show. A narrow terminal shows
    fewer columns, jsonl has all.
    """
    kind = out or ("table" if to_terminal(None) else "jsonl")
    if segments:
        return _list_segments(file, kind)
    from wireyard.captures.carriers.tls_keys import embedded_secrets, read_key_logs
    from wireyard.captures.conversations import Conversations
    from wireyard.captures.detection.assignment import describe_proxies, parse_decode_as
    from wireyard.captures.detection.stream_formats import find_formats
    from wireyard.captures.read import read_capture
    from wireyard.captures.records import describe_damage

    rules = [parse_decode_as(text) for text in decode_as]
    with waiting(f"reading {file}"):
        capture = read_capture(file)
        keys = read_key_logs(keylog, lambda: embedded_secrets(capture.files))
        formats = find_formats(capture, rules, keys=keys)
        found = Conversations(capture, formats)
        order = None if sort is None else found.order(sort)
    with open_output(None, binary=False) as target:
        if kind == "jsonl":
            for one in found.rows(order):
                carriers = [asdict(carrier) for carrier in one.carriers]
                target.write(json_line({**one._asdict(), "carriers": carriers}))
        else:
            from wireyard.cli.tables import console_on

            with console_on(target) as console:
                _write_table(console, lambda: map(_cells, found.rows(order)))
                console.print()
                console.print(_ledger(capture), soft_wrap=True)
    if not len(found):
        exits.note(f"{file}: has no TCP connection and no datagram")
    _note_unread(file, capture.unread, capture.cut)
    if proxies := describe_proxies(formats.apart.values()):
        exits.note(f"{file}: {proxies}")
    if capture.damage is not None:
        exits.note(f"{file}: {describe_damage(capture.damage, capture.unread_bytes)}")
        return exits.DATA_LOST
    return exits.DONE


def _list_segments(file: str, kind: str) -> int:
    from wireyard.captures.packets.headers import Tally
    from wireyard.captures.packets.segment_columns import SEGMENTS
    from wireyard.captures.packets.segments import scan_segments
    from wireyard.captures.packets.unread import name_unread
    from wireyard.cli.tables import TableWriter, console_on
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
                target.write(json_line(row))
        else:
            with console_on(target) as console:
                shown = [column for column in SEGMENTS if column.name in _SHOWN]
                TableWriter(console, chosen=True).write(rows(), shown)
    _note_unread(file, name_unread(tally.endings), tally.cut)
    if damage:
        exits.note(str(damage[0]))
        return exits.DATA_LOST
    return exits.DONE


def _note_unread(file: str, unread: Mapping[str, int], cut: Cut) -> None:
    """Print how many frames are in no conversation, by reason, and how many were cut off."""
    from wireyard.captures.packets.unread import describe_unread

    if note := describe_unread(unread, cut):
        exits.note(f"{file}: {note}")


def _ledger(capture: Capture) -> str:
    """Return the account of all captured bytes as one line."""
    parts = capture.payload_bytes | capture.other_bytes
    shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items() if count]
    text = f"{sum(parts.values()):,} captured bytes = {' + '.join(shown) or '0'}"
    return f"{text}; {capture.cut.bytes:,} more were cut off" if capture.cut.bytes else text


_MOST_ID = 20
_LEFT = ("first", "client", "client id", "server", "format", "carried by")
_KEPT = (
    *("client", "server", "format", "bytes", "client id", "packets", "first", "gaps", "seconds"),
    "carried by",
)
"""The columns of the table by priority: the last ones are left out if there is no room."""


def _write_table(console: Console, rows: Callable[[], Iterable[Mapping[str, str]]]) -> None:
    """Print the columns for which there is room.

    `rows` returns the cells of all conversations. It is called twice, because the widths of columns
    depend on all rows, which are not held in memory.
    """
    from rich.table import Table
    from rich.text import Text

    from wireyard.cli.tables import padded, print_lines, width_of

    widest: dict[str, int] = {}
    for row in rows():
        for name, cell in row.items():
            widest[name] = max(widest.get(name, 0), width_of(cell))
    widths = {name: max(width, len(name)) for name, width in widest.items()}
    shown, left = set[str](), console.width
    for name in _KEPT if widest else ():
        needed = widths[name] + (2 if shown else 0)
        if name in _KEPT[:4] or (widest[name] and needed <= left):
            shown.add(name)
            left -= needed
    names = [name for name in widths if name in shown]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        justify: Literal["left", "right"] = "left" if name in _LEFT else "right"
        least = widths[name] if left >= 0 else None
        table.add_column(name, justify=justify, overflow="fold", min_width=least)
    if left < 0:  # cells are cut to several lines
        for row in rows():
            table.add_row(*(Text(row[name]) for name in names))
    print_lines(console, table)
    for row in rows() if left >= 0 else ():
        cells = (padded(row[name], widths[name], right=name not in _LEFT) for name in names)
        console.file.write("  ".join(cells).rstrip(" ") + "\n")


def _clipped(client: str) -> str:
    """Return the beginning of a long id, which many clients make of random digits."""
    return client if len(client) <= _MOST_ID else f"{client[: _MOST_ID - 1]}…"


def _cells(one: Conversation) -> dict[str, str]:
    """Return the cells of a conversation, in the order of the columns."""
    from wireyard.text import printable

    known = one.first_ns is not None and one.last_ns is not None
    counted = one.packets_sent is not None
    return {
        "first": moment(one.first_ns, 3) if one.first_ns is not None else "",
        "client": printable(one.client),
        "client id": _clipped(printable(one.client_id or "")),
        "server": printable(one.server),
        "format": one.format or one.transport,
        "packets": f"{one.packets_sent} / {one.packets_received}" if counted else "",
        "bytes": f"{one.bytes_sent} / {one.bytes_received}",
        "gaps": str(one.gaps) if one.gaps else "",
        "seconds": f"{((one.last_ns or 0) - (one.first_ns or 0)) / 1e9:.3f}" if known else "",
        "carried by": printable(", in ".join(map(str, one.carriers[::-1]))),
    }
