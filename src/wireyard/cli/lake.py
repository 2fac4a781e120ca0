"""``wireyard lake``: maintenance of a lake."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from typing import Final

import click

from wireyard.cli import exits
from wireyard.cli.engine import Engine, engine_options
from wireyard.cli.options import FOLDER, examples
from wireyard.errors import LakeDamaged, UsageError
from wireyard.lake.snapshot import DamagedFile, LakeSnapshot, read_lake

_MOST_HOURS: Final = 1_000_000
"""A century, which every time of a commit can be compared with."""


@click.group(
    "lake",
    epilog=examples(
        "wireyard lake check lake",
        "wireyard lake repair lake && wireyard run traffic/ --lake lake",
        "wireyard lake drop lake traffic/old.pcap",
        "wireyard lake commits lake",
        "wireyard lake expire lake --keep-hours 0",
    ),
)
def command() -> None:
    """Check or repair a lake that run has filled, drop inputs, list or expire its commits."""


@command.command("check")
@click.argument("lake", type=FOLDER)
def check(lake: str) -> int:
    """Compare the size and checksum of every file with what was committed.

    Names every file that is missing or not what was written, and the inputs whose rows are in it;
    the exit status is then 1.
    """
    snapshot = read_lake(lake, check=False)
    _print_commit(snapshot)
    damaged = snapshot.damage(checksums=True)
    _print_damage(snapshot, damaged)
    if not damaged:
        exits.say("every file is as it was written")
    return exits.DATA_LOST if damaged else exits.DONE


@command.command("repair")
@click.argument("lake", type=FOLDER)
def repair(lake: str) -> int:
    """Take damaged files out of a lake, and the inputs that had rows in them.

    Names the inputs: the next run that is given them reads them again. Facts of other inputs that
    show the same JMS messages are made anew.
    If the newest commit cannot be read, the lake goes back to the newest one that can.
    """
    from wireyard.lake.writer import Lake
    from wireyard.pipeline.job import repair_lake

    with Lake.open(lake, damaged=True) as opened:
        again = set[str]()
        for number in opened.damaged_commits:
            exits.say(f"the record of commit {number} is damaged")
            again |= opened.sources_in(number) - opened.inputs.keys()
        if opened.damaged_commits:
            exits.say(f"back to the lake of {_time_text(opened)}: later changes are lost")
        damaged = opened.damage(checksums=True)
        _print_damage(opened, damaged)
        if not damaged and not opened.damaged_commits:
            exits.say("every file is as it was written")
            return exits.DONE
        again |= {*repair_lake(opened, damaged)}
    for source in sorted(again):
        exits.say(f"to be read again: {source}")
    exits.say(f"'wireyard run INPUT... --lake {lake}' reads them")
    return exits.DONE


@command.command("drop")
@click.argument("lake", type=FOLDER)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=FOLDER)
@engine_options
def drop(
    lake: str, inputs: tuple[str, ...], engine: str, master: str | None, conf: tuple[str, ...]
) -> int:
    """Take inputs out of a lake, as if they had never been read.

    INPUT is an input of the lake, or a folder for all that were in it; they need not exist any
    more. Their rows leave all tables. Messages that other inputs show too keep rows, of those.
    """
    from wireyard.cli.spark_log import SparkLog
    from wireyard.lake.writer import Lake
    from wireyard.pipeline.inputs.listing import absolute
    from wireyard.pipeline.job import drop_from_lake

    chosen = Engine.of("lake drop", engine, master, conf)
    with SparkLog() as log, Lake.open(lake) as opened:
        dropped = set[str]()
        for path in map(absolute, inputs):
            below = f"{path.rstrip('/')}/"
            found = {one for one in opened.inputs if one == path or one.startswith(below)}
            if not found:
                raise UsageError(f"{path}: is no input of {lake}")
            dropped |= found
        notes = drop_from_lake(opened, dropped, chosen.start(log, nullcontext))
    for text in notes:
        exits.note(text)
    for source in sorted(dropped):
        exits.say(f"dropped: {source}")
    return exits.DONE


@command.command("commits")
@click.argument("lake", type=FOLDER)
def commits(lake: str) -> int:
    """List the commits that can still be read, the newest last."""
    for number in read_lake(lake, check=False).numbers():
        try:
            _print_commit(read_lake(lake, number, check=False))
        except LakeDamaged:
            exits.say(f"commit {number}, whose record is damaged")
    return exits.DONE


@command.command("expire")
@click.argument("lake", type=FOLDER)
@click.option(
    "--keep-hours",
    type=click.FloatRange(0, _MOST_HOURS),
    default=1.0,
    show_default=True,
    metavar="H",
    help="How long an older commit stays after the next one.",
)
def expire(lake: str, keep_hours: float) -> int:
    """Delete older commits, and the files that only they have.

    A run does it too, with what is older than an hour. Readers of a commit that is deleted fail.
    """
    from wireyard.lake.writer import Lake

    with Lake.open(lake) as opened:
        opened.expire(timedelta(hours=keep_hours))
    return exits.DONE


def _print_commit(lake: LakeSnapshot) -> None:
    from wireyard.text import bytes_text, count_text

    record = lake.record
    files = [file for each in record.tables.values() for file in each]
    size = bytes_text(sum(file.bytes for file in files))
    exits.say(
        f"commit {record.number}, {_time_text(lake)}:"
        f" {count_text(len(record.inputs), 'input')}, {count_text(len(record.tables), 'table')},"
        f" {count_text(len(files), 'file')}, {size}"
    )


def _time_text(lake: LakeSnapshot) -> str:
    return f"{lake.record.committed_at:%Y-%m-%dT%H:%M:%SZ}"


def _print_damage(lake: LakeSnapshot, damaged: Iterable[DamagedFile]) -> None:
    for table, file, problem in damaged:
        sources = [
            source
            for source, each in lake.record.inputs.items()
            if file.name in each.files.get(table, ())
        ]
        more = f" and {len(sources) - 1} more" if sources[1:] else ""
        whose = f"; rows of {sources[0]}{more}" if sources else ""
        exits.say(f"{lake.path_of(table, file)} {problem}{whose}")
