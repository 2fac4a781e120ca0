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

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from wireyard.captures.quarantine import QUARANTINE
from wireyard.captures.stream_table import FILES, LEDGER_TABLE, STREAMS
from wireyard.formats import names as format_names
from wireyard.lake.snapshot import DamagedFile
from wireyard.lake.writer import Input, Lake
from wireyard.layers.tables import all_tables
from wireyard.pipeline.decoding.stage import BronzeStage
from wireyard.pipeline.decoding.task import (
    FILES_TABLE,
    QUARANTINE_TABLE,
    BronzeSettings,
    packets_table,
)
from wireyard.pipeline.facts.stage import (
    Facts,
    empty_facts,
    producers_shown,
    read_producers,
    related_to,
    write_facts,
)
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.growing.sessions import divide_sessions
from wireyard.pipeline.growing.states import add_parts, drop_old_states, grown_parts
from wireyard.pipeline.growing.tasks import read_parts
from wireyard.pipeline.inputs.finding import MISSING, FoundInput
from wireyard.pipeline.replacing import Draft, compact, drop_damaged, split_by_day
from wireyard.pipeline.report import Report, Watch, new_inputs
from wireyard.pipeline.running import Runner, StartCluster

SPLIT_BYTES = 64 << 20
"""Input of a task; to start one costs as much as to decode 8 MB."""
MOST_GROWN_BYTES = 4 * SPLIT_BYTES
"""Bytes of a grown input that one task of a cluster reads from the beginning."""
_PRODUCERS = "producers"
"""The table of which an input with JMS messages has rows."""
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
    start_cluster: StartCluster | None,
    watch: Watch,
    *,
    secrets: bool = False,
    max_packet_bytes: int | None = None,
    split_bytes: int = SPLIT_BYTES,
    decode_as: tuple[str, ...] = (),
    keylog: tuple[str, ...] = (),
    skip_missing: bool = False,
    payload: tuple[str, ...] = (),
) -> Report:
    """Read the inputs that are new to the lake, and commit them.

    `found` are the inputs as they are now. `start_cluster` starts the cluster that runs all tasks;
    None to run them in this process. Passwords stay in the rows only with `secrets`. A task reads
    `split_bytes`. `decode_as` are formats by port, as in ``tcp.port==1884,mqtt``. `keylog` are key
    logs with the secrets of TLS connections, at paths that every task can read. With
    `skip_missing`, inputs that are deleted before they are read are left out. `payload` are the
    rules by which payloads are decoded for the table ``payloads``.

    A `SourceError` is raised if an input cannot be read, a `LakeError` if the lake cannot be
    written, a `LedgerError` if the rows of a stream do not account for its bytes.
    """
    new, again = new_inputs(lake, found)
    report = Report(unchanged=len(found) - len(new) - len(again), notes=again)
    if not new:
        return report
    runner = Runner(start_cluster, lake)
    settings = BronzeSettings(lake.staged(""), secrets, max_packet_bytes, skip_missing, payload)
    growth = GrowthSettings(decode_as, keylog, max_packet_bytes)
    few = sys.maxsize if runner.in_process else MOST_GROWN_BYTES
    grown = grown_parts(lake, new, few)
    in_parts = {each.path for each in grown}
    stage = BronzeStage(runner, lake, settings, watch, decode_as, keylog)
    if whole := [each for each in new if each.path not in in_parts]:
        report.added = stage.read(whole, split_bytes)
    report.repaired = stage.repaired
    report.notes += stage.notes
    report.lost = stage.lost
    changed = [each.source for each in report.added if each.source in lake.inputs]
    report.replaced = len(changed)
    if grown:
        watch.stage("reading")
    parts, gone = read_parts(runner, lake, grown, settings, growth, stage.tasks)
    report.notes += [note for part in parts for note in part.notes]
    report.notes += [f"left out: {path}: {MISSING}" for path in gone]
    watch.stage("writing tables")
    draft = Draft(lake)
    draft.drop([*changed, *(part.source for part in parts if part.is_whole)])
    for each in report.added:
        draft.put(replace(each, files={}), each.files)
    add_parts(draft, parts)
    report.added += [draft.inputs[part.source] for part in parts]
    report.grown = len(parts)
    report.held_bytes = sum(
        ledger.bytes_read
        for part in parts
        if not part.is_whole
        for ledger in lake.inputs[part.source].ledger.values()
    )
    of_facts, _ = add_facts(runner, draft, [each.source for each in report.added])
    report.notes += of_facts
    drop_old_states(draft)
    commit_draft(runner, draft)
    return report


def drop_from_lake(
    lake: Lake, sources: Collection[str], start_cluster: StartCluster | None
) -> Sequence[str]:
    """Commit a lake without some of its inputs, as if they had never been read; return notes.

    Facts of inputs that have JMS messages in common with them are made anew. A `LakeError` is
    raised if the lake cannot be written.
    """
    runner, draft = Runner(start_cluster, lake), Draft(lake)
    draft.drop(sources)
    notes, _ = add_facts(runner, draft, ())
    commit_draft(runner, draft)
    return notes


def repair_lake(lake: Lake, damaged: Collection[DamagedFile]) -> Collection[str]:
    """Commit a lake without damaged files, and without the inputs that had rows in them.

    Return these inputs. The next run over such an input reads it as a new one. If they had JMS
    messages, facts of all others that have some are made anew in a second commit, from files that
    are whole. A `LakeError` is raised if the lake cannot be written.
    """
    draft, before = Draft(lake), lake.inputs
    drop_damaged(draft, damaged)
    add_missing_tables(draft)
    change = draft.change()
    lake.commit(change)
    if any(_PRODUCERS in before[source].files for source in change.forget):
        related = [source for source, each in lake.inputs.items() if _PRODUCERS in each.files]
        lake.begin_run()
        draft, runner = Draft(lake), Runner(None, lake)
        add_facts(runner, draft, related)
        commit_draft(runner, draft)
    return change.forget


def add_facts(
    runner: Runner, draft: Draft, sources: Collection[str]
) -> tuple[Sequence[str], set[str]]:
    """Stage the facts of inputs of a draft, and of the inputs of the lake related to them.

    Inputs are also related to those of the lake whose facts are gone from the draft. Return notes
    for the user, and the related inputs.
    """
    lake, related = draft.lake, set[str]()
    draft.drop_facts(sources)
    if lake.inputs:
        packets = _paths(draft, sources, packets_table("jmq"))
        related = related_to(lake, producers_shown(runner, packets, sources), draft.changed)
    while True:
        draft.drop_facts(related)
        inputs = [draft.inputs[source] for source in (*sources, *sorted(related))]
        facts = divide_sessions(lake, _write_facts(runner, draft, inputs), inputs)
        # Messages inside GPackets may relate to further inputs.
        made = facts.files.get(_PRODUCERS, ())
        producers = read_producers(lake.staged(_PRODUCERS, file) for file in made)
        more = related_to(lake, producers, draft.changed)
        if not more:
            _put_facts(draft, facts)
            return facts.notes, related
        related |= more


def _paths(draft: Draft, sources: Iterable[str], table: str) -> list[str]:
    """Return the paths of a table's files with rows of some inputs."""
    names = (name for source in sources for name in draft.inputs[source].files.get(table, ()))
    return [draft.path(table, name) for name in dict.fromkeys(names)]


def _write_facts(runner: Runner, draft: Draft, inputs: Sequence[Input]) -> Facts:
    """Stage the facts of some inputs."""
    paths = partial(_paths, draft, [each.source for each in inputs])
    files = {name: paths(packets_table(name)) for name in format_names()}
    captured = paths("streams"), paths("files")
    return write_facts(runner, draft.lake, files, *captured, inputs)


def _put_facts(draft: Draft, facts: Facts) -> None:
    """Add facts, each file listed under the inputs whose rows it has."""
    of_input: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for table, files in facts.files.items():
        draft.stage(table, files)
        for file, sources in files.items():
            for source in sources:
                of_input[source].setdefault(table, []).append(file)
    for source, made in of_input.items():
        draft.put(draft.inputs[source], made)


# --- the commit -----------------------------------------------------------------------------


def commit_draft(runner: Runner, draft: Draft) -> None:
    """Commit a draft: with a file for every table, files split by day, and small ones merged."""
    add_missing_tables(draft)
    split_by_day(runner, draft)
    compact(draft)
    draft.lake.commit(draft.change())


def add_missing_tables(draft: Draft) -> None:
    """Stage an empty file for each table that would have none."""
    for table, schema in _NEVER_EMPTY.items():
        if not draft.files(table):
            draft.stage(table, [draft.lake.write(table, schema.empty_table())])
    for table in all_tables():
        if not draft.files(table):
            draft.stage(table, [draft.lake.write(table, empty_facts(table))])
