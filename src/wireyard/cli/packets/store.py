"""``wireyard store``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from wireyard.cli import exits
from wireyard.cli.decoding.cells import json_line
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output, to_terminal
from wireyard.errors import UsageError
from wireyard.text import count_text

if TYPE_CHECKING:
    from rich.table import Table

    from wireyard.captures.stores.file import StoreFile

_NAME_WIDTH, _HOLDS_WIDTH = 28, 14
"""Widths of the columns `file`, up to which names are not wrapped, and `holds`."""


@dataclass(frozen=True)
class Holding:
    """The content of a file of a store: records and bytes by state."""

    file: str
    kind: str
    destination: str | None
    size: int
    records: dict[str, int]
    bytes: dict[str, int]
    packets: int
    consumers: dict[str, int]
    """Number of consumers of its packets, by their state."""


@click.command(
    "store",
    epilog=examples(
        "wireyard store /var/imq/instances/imqbroker",
        "wireyard store fs370 --queue mq.sys.dmq",
        "wireyard store txnlog --out jsonl",
    ),
)
@click.argument("path", type=PATH)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Only what this queue or topic holds, by its name or as in Q:NAME and T:NAME.",
)
@click.option("--out", type=click.Choice(["table", "jsonl"]), help="A table on a terminal.")
def command(path: str, queues: tuple[str, ...], out: str | None) -> int:
    """List the files of an Open MQ file store: records, messages, and their states.

    PATH is the folder of a broker, of its store, or of a destination in that, or one file. Files
    are opened for reading only, so the broker may be running; what it is writing meanwhile can
    show as damaged. Packets are those that the broker would load.
    """
    from wireyard.captures.stores.read import read_store

    files = list(read_store(path))
    if queues:
        files = _of_queues(files, queues)
    holdings, lost = [], False
    for file in files:
        holdings.append(_holding(file))
        lost |= _print_damage(file)
    with open_output(None, binary=False) as target:
        if (out or ("table" if to_terminal(None) else "jsonl")) == "jsonl":
            for holding in holdings:
                target.write(json_line(asdict(holding)))
        else:
            from wireyard.cli.tables import console_on, print_lines

            with console_on(target) as console:
                print_lines(console, _table(holdings))
    return exits.DATA_LOST if lost else exits.DONE


def _of_queues(files: Iterable[StoreFile], queues: Sequence[str]) -> list[StoreFile]:
    """Return the files of some destinations; raise UsageError if a destination does not exist."""
    held = [(file, file.destination) for file in files if file.destination is not None]
    there = dict.fromkeys(name for _, name in held)
    for queue in queues:
        if not any(queue in (name, name.partition(":")[2]) for name in there):
            raise UsageError(f"--queue {queue}: the store has none; it has {', '.join(there)}")
    return [file for file, name in held if {name, name.partition(":")[2]}.intersection(queues)]


def _holding(file: StoreFile) -> Holding:
    from wireyard.captures.stores.layout import HELD

    held = [
        packet
        for record in file.records
        if record.state in HELD
        for packet in record.contents.packets
    ]
    states = (consumer.state for packet in held for consumer in packet.consumers)
    return Holding(
        file=file.name,
        kind=file.kind.value.title,
        destination=file.destination,
        size=len(file.data),
        records=dict(Counter(record.label for record in file.records)),
        bytes=file.ledger,
        packets=len(held),
        consumers=dict(Counter(state for state in states if state is not None)),
    )


def _print_damage(file: StoreFile) -> bool:
    """Print the damage of a file; return whether there is any."""
    for record in file.records:
        if record.error is not None:
            size = record.stop - record.start
            exits.note(f"{file.name}: {record.start}, {count_text(size, 'byte')}: {record.error}")
    if file.failure is not None:
        exits.note(str(file.failure))
    return file.failure is not None or any(record.error for record in file.records)


def _table(holdings: Sequence[Holding]) -> Table:
    from rich.table import Table

    from wireyard.text import printable

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    longest = max((len(each.file) for each in holdings), default=0)
    table.add_column("file", overflow="fold", no_wrap=longest <= _NAME_WIDTH)
    table.add_column("holds", max_width=_HOLDS_WIDTH)
    for name in ("bytes", "packets"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("records; packets by consumer")
    for each in holdings:
        counts = (_counts(each.records, ("header", "last", "unused")), _counts(each.consumers, ()))
        table.add_row(
            printable(each.file),
            printable(each.destination or each.kind),
            str(each.size),
            str(each.packets) if each.packets else "",
            "; ".join(filter(None, counts)),
        )
    return table


def _counts(counts: dict[str, int], without: Sequence[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if name not in without)
