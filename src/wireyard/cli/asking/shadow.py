"""``wireyard shadow``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli import exits
from wireyard.cli.asking.answers import (
    columns,
    head_of,
    limit_option,
    opened_tables,
    out_option,
    reading_options,
    status_of,
    wrapped,
)
from wireyard.cli.asking.sql import WRITERS
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.cli.replay import BROKER, read, rename_option, send, sending_options
from wireyard.errors import UsageError
from wireyard.formats.marks import shown
from wireyard.text import bytes_text

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.replay.player import Played
    from wireyard.replay.script import Script
    from wireyard.shadow import Difference

_CLASSES = (18, -7, -7, -7, -7, -24)
_MOST_SHOWN = 10
_MOST_NAMED = 5
_CLIENTS = "SELECT DISTINCT consumer FROM clients WHERE consumer IS NOT NULL"


@click.command(
    "shadow",
    epilog=examples(
        "wireyard shadow old.pcapng new.pcapng",
        "wireyard shadow old.pcapng --to 'mosquitto -p {port}'",
        "wireyard shadow old.pcapng new.pcapng --rename 'plant/#=site/1/#' -w page.html",
        "wireyard shadow lake-2.0 lake-2.1 --out jsonl | jq 'select(.breaks == \"B\")'",
    ),
)
@click.argument("inputs", metavar="A [B]", nargs=-1, type=PATH)
@click.option("--to", metavar="BROKER", help=f"B is a replay of A to this broker: {BROKER}")
@click.option("--own", metavar="BROKER", help="Replay A to this broker, its own, for the noise.")
@click.option("-w", "--write", type=PATH, metavar="FILE",
              help="Write a page of HTML too, whole in one file.")  # fmt: skip
@rename_option
@sending_options
@reading_options
@limit_option(_MOST_SHOWN, "Show the first N differences.", least=0)
@out_option("A summary in words, or all differences.", "csv")
def command(
    inputs: tuple[str, ...],
    to: str | None,
    own: str | None,
    write: str | None,
    limit: int,
    out: str,
    rename: tuple[str, ...],
    record: str | None,
    speed: float | None,
    logins: str | None,
    yes_to: str | None,
    **how: Any,
) -> int:
    """Show what the broker of one recording did otherwise than that of another.

    Both have the same clients of MQTT or JMS. A and B are captures, streams, folders of them, or
    lakes; with --to, B is what the MQTT clients do again with another broker. Deliveries are
    matched by client, destination and payload, never by time, ports or packet ids; connections by
    client and number. What a recording could not show is no difference. Each has a class, the side
    that breaks a rule if any does, and a frame of each side.

    With --to, the noise is shown too: what differs between two replays to this broker, or with
    --own between A and a replay to the broker of A.
    """
    from wireyard.replay.renaming import AS_IS, Renaming
    from wireyard.shadow import differences

    renaming = Renaming(rename)
    if len(inputs) != (1 if to else 2) or (own and not to):
        raise UsageError("shadow: name two recordings, A and B, or A and --to BROKER")
    with ExitStack() as stack:
        status, names, titles, noise = exits.DONE, inputs, inputs, None
        if to is not None:
            folder = record or stack.enter_context(TemporaryDirectory(prefix="wireyard-"))
            play = partial(send, speed=speed, logins=logins, yes_to=yes_to, say=exits.note)
            script = read(inputs[0], to, how["decode_as"], how["keylog"], renaming)
            status, names = _replayed(script, to, own, folder, play)
            names, titles = (*inputs, *names), (*inputs, f"a replay to {to}")
        tables = [stack.enter_context(opened_tables([name], **how)) for name in names]
        found = differences(tables[0], tables[1], renaming)
        clients = [{*map(itemgetter("consumer"), each.rows(_CLIENTS))} for each in tables[:2]]
        if clients[0].isdisjoint(clients[1]):
            raise UsageError(f"{titles[0]} and {titles[1]} have no client in common")
        if to is not None:
            again = differences(tables[0 if own else 1], tables[2], renaming if own else AS_IS)
            noise = Counter(each.difference for each in again)
        if write is not None:
            _write_page(write, found, noise, titles, tables)
        if out == "text":
            alone = clients[0] - clients[1], clients[1] - clients[0]
            for line in _text(found, noise, limit, titles, tables, alone):
                exits.say(line)
        else:
            with open_output(None, binary=False) as file:
                WRITERS[out](_table(found, noise), file)
        return max(status, *map(status_of, tables))


def _write_page(
    path: str,
    found: Sequence[Difference],
    noise: Counter[str] | None,
    titles: Sequence[str],
    tables: Sequence[Tables],
) -> None:
    from wireyard.report.comparison import Compared, build_comparison
    from wireyard.shadow import CLASSES

    rows = [each._asdict() for each in found]
    page = build_comparison(Compared(titles, tables, rows, noise, CLASSES)).encode()
    with open_output(path, binary=False) as file:
        file.write(page)
    exits.note_written(path, bytes_text(len(page)))


def _replayed(
    script: Script, to: str, own: str | None, folder: str, play: Callable[..., Played]
) -> tuple[int, tuple[str, str]]:
    """Replay a script twice, the second time for the noise; return the status and the folders."""
    from wireyard.replay.brokers import is_started
    from wireyard.replay.script import clearing

    folders = f"{folder}/replay", f"{folder}/{'own' if own else 'again'}"
    played = play(script, to, record=folders[0])
    if not own and not is_started(to):
        if script.talks is not None:
            raise UsageError("the noise of JMQ clients needs a broker that a command starts")
        play(clearing(script), to, record=None)
    play(script, own or to, record=folders[1])
    return exits.DATA_LOST if played.unsent or script.notes else exits.DONE, folders


def _table(found: Sequence[Difference], noise: Counter[str] | None) -> Any:
    """Return the table of differences."""
    import pyarrow as pa

    from wireyard.shadow import Difference

    kinds = {name: pa.int64() if name.endswith("_frame") else pa.string()
             for name in Difference._fields} | {"noise": pa.int64()}  # fmt: skip
    rows = [
        each._asdict() | {"noise": None if noise is None else noise[each.difference]}
        for each in found
    ]
    return pa.Table.from_pylist(rows, pa.schema(kinds.items()))


def _text(
    found: Sequence[Difference],
    noise: Counter[str] | None,
    limit: int,
    titles: Sequence[str],
    sides: Sequence[Tables],
    alone: Sequence[Set[str]],
) -> Iterator[str]:
    for side, title, tables, clients in zip("AB", titles, sides, alone, strict=False):
        yield f"{side}  {title}"
        yield from head_of(tables)
        if clients:
            some = [shown(each) for each in sorted(clients)[:_MOST_NAMED]]
            if more := len(clients) - len(some):
                some.append(f"and {more:,} other{'s' * (more > 1)}")
            yield from wrapped(f"has alone, so they are not compared: {', '.join(some)}", 3)
    yield ""
    yield from _summary(found, noise)
    for each in found[:limit]:
        yield ""
        yield from _one(each, sides)
    if len(found) > limit:
        yield ""
        yield f"and {len(found) - limit:,} others"


def _summary(found: Sequence[Difference], noise: Counter[str] | None) -> Iterator[str]:
    """Yield a row for each class that there is, also for those that are noise alone."""
    counts = Counter((each.difference, each.breaks) for each in found)
    kinds = dict.fromkeys([*(each.difference for each in found), *(noise or ())])
    if not kinds:
        yield "no difference" + ("" if noise is None else ", and no noise")
        return
    titles = "class", "rows", "A", "B", "both", "neither breaks a rule"
    widths = (*_CLASSES, *(() if noise is None else (-8,)))
    yield columns(widths, *titles, *(() if noise is None else ("noise",)))
    for kind in kinds:
        numbers = [counts[kind, breaks] for breaks in ("A", "B", "both", "neither")]
        numbers = [sum(numbers), *numbers, *(() if noise is None else (noise[kind],))]
        yield columns(widths, kind, *(f"{number:,}" if number else "-" for number in numbers))


def _one(each: Difference, sides: Sequence[Tables]) -> Iterator[str]:
    where = f" on {shown(each.destination)}" if each.destination else ""
    yield f"{each.difference}: {shown(each.client)}{where}"
    for side, tables, text, frame, source in (
        ("A", sides[0], each.a, each.a_frame, each.a_source),
        ("B", sides[1], each.b, each.b_frame, each.b_source),
    ):
        place = ""
        if frame is not None and source is not None:
            file, number = tables.frame_files.find(source, frame)
            place = f", frame {number} of {PurePath(file).name}"
        yield from wrapped(f"{side}  {shown(text)}{place}", 2)
    if each.text is not None:
        rule = f" [{each.rule}]" if each.rule else ""
        yield from wrapped(f"{each.breaks} breaks it: {each.text}{rule}", 2)
