"""The main job: read new inputs into a lake.

A run is one commit. Tasks write bronze, and the driver stitches their pieces. The facts of the new
inputs are added to those of the others, or replace them where both show the same JMS messages. Then
everything becomes visible at once; a run that ends before that has changed nothing.

An input is identified by its absolute path or URL. It is unchanged if its size, modification time
and the checksum of both ends are. A changed input is read again as a whole, and its new rows
replace the old ones in the same commit. An input that has grown is read part by part from then on,
like one that is followed: as a whole this time, and later from its state in the lake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from wireyard.captures.quarantine import QUARANTINE
from wireyard.captures.stream_table import FILES, LEDGER_TABLE, STREAMS
from wireyard.formats import names as format_names
from wireyard.lake.snapshot import name_of
from wireyard.layers.mqtt.packets import new_secret
from wireyard.layers.tables import FACTS
from wireyard.spark.bronze import FILES_TABLE, QUARANTINE_TABLE, BronzeSettings, packets_table
from wireyard.spark.bronze_stage import BronzeStage
from wireyard.spark.executors import explaining_access
from wireyard.spark.facts import (
    Facts,
    producers_made,
    producers_shown,
    related_to,
    write_empty,
    write_facts,
)
from wireyard.spark.growing import GrowingInput
from wireyard.spark.growing_readers import GrowthSettings
from wireyard.spark.grown import (
    GrownPart,
    divide_sessions,
    has_grown,
    make_part_staging,
    open_growing,
    with_parts,
    without_old_states,
)
from wireyard.spark.inputs import FoundInput
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.newest import by_protocol
from wireyard.spark.parts import write_table
from wireyard.spark.replacing import compact, drop_inputs, split_by_day
from wireyard.spark.report import Report, Watch, new_inputs
from wireyard.spark.running import Runner
from wireyard.spark.workers import load_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FEW_BYTES",
    "SPLIT_BYTES",
    "add_facts",
    "commit_change",
    "drop_from_lake",
    "fill_lake",
    "with_all_tables",
]

SPLIT_BYTES = 64 << 20
"""Input of a task; to start one costs as much as to decode 8 MB."""
FEW_BYTES = 4 * SPLIT_BYTES
"""Input up to which this process reads it itself, in less time than Spark takes to start."""
_NEVER_EMPTY = {
    QUARANTINE_TABLE: QUARANTINE,
    "ledger": LEDGER_TABLE,
    "streams": STREAMS,
    FILES_TABLE: FILES,
}
"""Tables that have a file even if they have no rows, with their schemas."""


def fill_lake(
    lake: Lake,
    found: Sequence[FoundInput],
    get_session: Callable[[], SparkSession],
    watch: Watch,
    *,
    secrets: bool = False,
    max_packet_bytes: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    decode_as: tuple[str, ...] = (),
    keylog: tuple[str, ...] = (),
    few_bytes: int = FEW_BYTES,
    skip_missing: bool = False,
    payload: tuple[str, ...] = (),
) -> Report:
    """Read the inputs that are new to the lake, and commit them.

    Parameters
    ----------
    found
        The inputs as they are now.
    get_session
        Returns a Spark session; called if there is too much to do for this process.
    secrets
        Whether passwords stay in the rows.
    split_bytes
        Input of a task.
    decode_as
        Formats by port, as in ``tcp.port==1884,mqtt``.
    keylog
        Key logs with the secrets of TLS connections, at paths that every task can read.
    few_bytes
        Input up to which this process reads it itself.
    skip_missing
        Whether to leave out inputs that are deleted before they are read.
    payload
        Rules by which payloads are decoded for the table ``payloads``.

    Raises
    ------
    SourceError
        An input cannot be read.
    LakeError
        The lake cannot be written.
    LedgerError
        The rows of a stream do not account for its bytes.
    """
    new, again = new_inputs(lake, found)
    report = Report(unchanged=len(found) - len(new) - len(again), notes=again)
    if not new:
        return report
    runner = Runner(get_session, lake)
    # Packet files are only for local lakes: on a store they would be read in ranges of a few rows.
    secret = new_secret() if isinstance(lake.system, fs.LocalFileSystem) else None
    settings = BronzeSettings(
        lake.staged(""), secrets, max_packet_bytes, skip_missing, payload, secret
    )
    growth = GrowthSettings(decode_as, keylog, max_packet_bytes)
    grown = _open_grown(lake, new, growth, reads_again=few_bytes >= 0)
    try:
        whole = [each for each in new if each.path not in grown]
        stage = BronzeStage(runner, lake, settings, watch, decode_as, keylog, few_bytes)
        if whole:
            report.added = stage.read(whole, split_bytes)
        report.repaired = stage.repaired
        report.notes += stage.notes
        report.lost = stage.lost
        changed = [each.path for each in whole if each.path in lake.inputs]
        report.replaced = len(changed)
        parts, notes = _read_grown(lake, grown, new, settings, stage.tasks, watch)
    finally:
        for growing in grown.values():
            growing.close()
    report.notes += notes
    watch.stage("writing tables")
    replaced = [*changed, *(part.source for part in parts if part.input.replaces)]
    continued = {part.source for part in parts if not part.input.replaces}
    added = list(report.added)

    def change_without(related: Collection[str]) -> Change:
        change = _with_added(drop_inputs(lake, replaced, {*continued, *related}), added)
        return with_parts(lake, change, parts)

    sources = {part.source for part in parts}
    of_parts = [each for each in change_without(()).inputs if each.source in sources]
    report.added += of_parts
    report.grown = len(parts)
    report.held_bytes = sum(
        ledger.bytes_read for source in continued for ledger in lake.inputs[source].ledger.values()
    )
    gone = {*replaced, *continued}
    change, of_facts, _ = add_facts(runner, lake, change_without, report.added, gone)
    report.notes += of_facts
    commit_change(runner, lake, without_old_states(lake, change))
    return report


def drop_from_lake(
    lake: Lake, sources: Collection[str], get_session: Callable[[], SparkSession]
) -> Sequence[str]:
    """Commit a lake without some of its inputs, as if they had never been read; return notes.

    Facts of inputs that have JMS messages in common with them are made anew.

    Raises
    ------
    LakeError
        The lake cannot be written.
    """
    runner = Runner(get_session, lake)

    def change_without(related: Collection[str]) -> Change:
        return replace(drop_inputs(lake, sources, related), forget=frozenset(sources))

    change, notes, _ = add_facts(runner, lake, change_without, (), sources)
    commit_change(runner, lake, change)
    return notes


def _open_grown(
    lake: Lake, new: Sequence[FoundInput], settings: GrowthSettings, *, reads_again: bool
) -> dict[str, GrowingInput]:
    """Open the inputs that have grown, at their states in the lake.

    Parameters
    ----------
    reads_again
        Whether to open inputs without a state too, at their beginning.
    """
    opened = {}
    for each in new:
        if has_grown(lake, each):
            growing = open_growing(lake, each, settings)
            if not growing.has_begun or (growing.replaces and not reads_again):
                growing.close()
            else:
                opened[each.path] = growing
    return opened


def _read_grown(
    lake: Lake,
    grown: Mapping[str, GrowingInput],
    found: Sequence[FoundInput],
    settings: BronzeSettings,
    first: int,
    watch: Watch,
) -> tuple[list[GrownPart], list[str]]:
    """Stage the new parts of inputs that have grown; return them, and notes."""
    parts, notes = list[GrownPart](), list[str]()
    if grown:
        watch.stage("reading")
        make_part_staging(lake)
        load_columns()
    for number, each in enumerate((one for one in found if one.path in grown), first):
        growing = grown[each.path]
        part = GrownPart(lake, growing, settings, number)
        notes += part.read(growing.unread_bytes, ends=True)
        growing.mark_facts_made(by_protocol(growing.now_ns))
        part.write_state()
        parts.append(part)
    return parts, notes


def add_facts(
    runner: Runner,
    lake: Lake,
    change_without: Callable[[Collection[str]], Change],
    added: Sequence[Input],
    changed: Collection[str],
) -> tuple[Change, Sequence[str], set[str]]:
    """Stage the facts of inputs, and of the inputs related to them.

    Parameters
    ----------
    change_without
        Returns the change that also removes the facts of the given related inputs.
    added
        The inputs; their packets are in the lake or staged.
    changed
        Sources whose facts in the lake are replaced.

    Returns
    -------
    change
        The change with the facts.
    notes
        Notes for the user.
    related
        The related inputs of the lake.
    """
    change, related = change_without(()), set[str]()
    with explaining_access(lake):
        sources = [each.source for each in added]
        if lake.inputs:
            packets = _paths(lake, change, added, packets_table("jmq"))
            related = related_to(lake, producers_shown(packets, sources), changed)
        while True:
            if related:
                change = change_without(related)
            inputs = _inputs_after(lake, change)
            both = [*added, *(inputs[source] for source in sorted(related))]
            facts = divide_sessions(lake, _write_facts(runner, lake, change, both), both)
            # Messages inside GPackets may relate to further inputs.
            more = related_to(lake, producers_made(lake, facts), {*changed, *related})
            if not more:
                return _with_facts(change, facts), facts.notes, related
            related |= more


def _paths(lake: Lake, change: Change, inputs: Sequence[Input], table: str) -> list[str]:
    """Return the paths of a table's files with rows of some inputs, in the lake or staged."""
    staged = {*change.append.get(table, ())}
    wanted = dict.fromkeys(file for each in inputs for file in each.files.get(table, ()))
    return [
        lake.staged(table, file) if file in staged else lake.path(table, file) for file in wanted
    ]


def _write_facts(runner: Runner, lake: Lake, change: Change, inputs: Sequence[Input]) -> Facts:
    """Stage the facts of some inputs, whose packets are in the lake or staged."""
    paths = partial(_paths, lake, change, inputs)
    files = {name: paths(packets_table(name)) for name in format_names()}
    return write_facts(runner, lake, files, paths("streams"), paths("files"), inputs, change.append)


def _with_facts(change: Change, facts: Facts) -> Change:
    """Return the change with facts, each file listed under the inputs whose rows it has."""
    append = {table: list(names) for table, names in change.append.items()}
    of_input: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for table, files in facts.files.items():
        append[table] = [*append.get(table, ()), *files]
        for file, sources in files.items():
            for source in sources:
                of_input[source].setdefault(table, []).append(file)
    inputs = [
        replace(each, files={**each.files, **of_input.get(each.source, {})})
        for each in change.inputs
    ]
    return replace(change, inputs=tuple(inputs), append=append)


# --- the commit -----------------------------------------------------------------------------


def _with_added(change: Change, added: Sequence[Input]) -> Change:
    """Return the change with inputs that were read."""
    append = {table: list(names) for table, names in change.append.items()}
    for each in added:
        for table, names in each.files.items():
            there = append.setdefault(table, [])
            there.extend(name for name in names if name not in there)
    return replace(change, inputs=(*change.inputs, *added), append=append)


def _files_after(lake: Lake, change: Change, table: str) -> list[str]:
    """Return the present paths of the files that a table will have."""
    removed = set(change.remove.get(table, ()))
    held = [path for path in lake.paths(table) if name_of(path) not in removed]
    return [*held, *(lake.staged(table, name) for name in change.append.get(table, ()))]


def _inputs_after(lake: Lake, change: Change) -> dict[str, Input]:
    return {**lake.inputs, **{each.source: each for each in change.inputs}}


def commit_change(runner: Runner, lake: Lake, change: Change) -> None:
    """Commit a change: with a file for every table, files split by day, and small ones merged."""
    lake.commit(compact(lake, split_by_day(runner, lake, with_all_tables(lake, change))))


def with_all_tables(lake: Lake, change: Change) -> Change:
    """Return the change with an empty file for each table that would have none."""
    append = dict(change.append)
    for table, schema in _NEVER_EMPTY.items():
        if not _files_after(lake, change, table):
            append[table] = [_write_table(lake, table, schema.empty_table())]
    for table in FACTS:
        if not _files_after(lake, change, table):
            lake.make_staging([table])
            append[table] = [write_empty(lake, table)]
    return replace(change, append=append)


def _write_table(lake: Lake, table: str, rows: pa.Table) -> str:
    """Stage a table as one file; return its name."""
    lake.make_staging([table])
    return write_table(lake.staged(table), rows)
