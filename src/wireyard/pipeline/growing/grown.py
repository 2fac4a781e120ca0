"""New parts of growing inputs: continue them from their states, stage their rows and facts."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.captures.live.state import StateError
from wireyard.captures.read import FrameSpan
from wireyard.captures.stream_table import FILES, file_rows
from wireyard.errors import LakeDamaged
from wireyard.formats import names as format_names
from wireyard.lake.ledgers import (
    LEDGER_FILES,
    LedgerSum,
    StreamLedger,
    ledger_table,
    streams_table,
)
from wireyard.lake.parts import read_batches, write_table
from wireyard.lake.records import is_shown
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Input, Lake
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.latencies import delayed, with_latencies
from wireyard.layers.newest import NewestRows
from wireyard.layers.tables import (
    TABLES,
    all_tables,
    fact_table,
    join_tables,
    packet_keys,
    with_times,
)
from wireyard.pipeline.decoding.task import (
    DONE_MARKS,
    FILES_TABLE,
    PAYLOADS_TABLE,
    QUARANTINE_TABLE,
    STORE_RECORDS_TABLE,
    BronzeSettings,
    BronzeTask,
    packets_table,
)
from wireyard.pipeline.facts.stage import Facts
from wireyard.pipeline.growing.input import GrowingInput, read_state
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.replacing import OPEN_PREFIX, OPEN_STATES, Draft, is_provisional
from wireyard.streams.source import filesystem

__all__ = [
    "SESSIONS",
    "GrownPart",
    "StagedPart",
    "add_parts",
    "can_grow",
    "divide_sessions",
    "drop_old_states",
    "has_grown",
    "make_part_staging",
    "merge_open_sessions",
    "open_growing",
    "provisional_facts",
    "read_open_sessions",
    "read_sessions",
    "restored",
    "session_keys",
    "states_of",
    "without_sessions",
]

SESSIONS: Final = "sessions"
_ALL_PREFIX: Final = f"{OPEN_PREFIX}all-"
"""Prefix of files with the sessions that were open when facts of all packets were made."""
_OLD_NS: Final = 24 * 60 * 60 * 1_000_000_000
"""After this time without a change an input's state is dropped: if it grows, it is read again."""


def can_grow(found: FoundInput) -> bool:
    """Return whether an input can be read part by part."""
    whole = found.compressed or found.stored or (not found.files and found.format is None)
    return not whole and "://" not in found.path


def has_grown(lake: Lake, found: FoundInput) -> bool:
    """Return whether an input has grown since the lake read it, and can be read part by part."""
    held = lake.inputs.get(found.path)
    if held is None or not can_grow(found) or held.format != found.format:
        return False
    now, before = _sizes(found.stamp), _sizes(held.stamp)
    if now is None:
        return False
    if held.files.get(OPEN_STATES):
        return True
    if before is None or not all(now.get(file, -1) >= size for file, size in before.items()):
        return False
    return sum(now.values()) > sum(before.values())


def _sizes(stamp: Mapping[str, Any]) -> dict[Any, int] | None:
    """Return the sizes of an input's files; None if its files are identified by content."""
    files = stamp.get("files", [stamp])
    if not all("file" in each and "content_sha256" not in each for each in files):
        return None
    return {tuple(each["file"]): each["size"] for each in files}


def open_growing(
    lake: Lake, found: FoundInput, settings: GrowthSettings, *, in_progress: bool = False
) -> GrowingInput:
    """Open an input at its state in the lake, or from its beginning if it is another file.

    Parameters
    ----------
    in_progress
        Whether this process is making its facts in the background.

    Raises
    ------
    SourceError
        It cannot be read.
    """
    states, has_provisional = states_of(lake, found.path)
    return restored(found, settings, states, has_provisional, in_progress=in_progress)


def states_of(lake: Lake, source: str) -> tuple[list[str], bool]:
    """Return the files with an input's state, and whether it has provisional facts in the lake."""
    held, paths = lake.inputs.get(source), list[str]()
    files = held.files if held else {}
    for name in files.get(OPEN_STATES, ()):
        with suppress(LakeDamaged):
            lake.check_file(OPEN_STATES, name)
            paths.append(lake.path(OPEN_STATES, name))
    return paths, bool(provisional_facts(files))


def restored(
    found: InputFiles,
    settings: GrowthSettings,
    states: Iterable[str],
    has_provisional: bool,
    *,
    in_progress: bool = False,
) -> GrowingInput:
    """Open an input at its state, or from its beginning if there is none that is of this file.

    Raises
    ------
    SourceError
        It cannot be read.
    """
    for path in states:
        growing = _open_input(found, settings)
        try:
            state = read_state(path, found.path)
            growing.restore(state)
            for made in state["made"]:
                growing.restore_facts(
                    made, has_provisional=has_provisional, in_progress=in_progress
                )
        except StateError:
            growing.close()
        else:
            return growing
    growing = _open_input(found, settings)
    growing.refresh(found.files)
    return growing


def provisional_facts(files: Mapping[str, Iterable[str]]) -> set[str]:
    """Return an input's provisional files with facts of its newest packets.

    There is at least one if its last part has such facts.

    Parameters
    ----------
    files
        All files of the input, by table.
    """
    facts = {
        name for table in all_tables() for name in files.get(table, ()) if is_provisional(name)
    }
    return {name for name in facts if not name.rpartition("/")[2].startswith(_ALL_PREFIX)}


def read_open_sessions(lake: Lake, source: str) -> pa.Table:
    """Return the rows of an input's open sessions, which its next part replaces."""
    names = filter(is_provisional, lake.inputs[source].files.get(SESSIONS, ()))
    return read_sessions([lake.path(SESSIONS, name) for name in names], source)


def read_sessions(paths: Iterable[str], source: str) -> pa.Table:
    """Return the rows of an input's sessions in some files."""
    columns = [column.name for column in TABLES[SESSIONS]]
    batches = [rows for path in paths for rows in read_batches(path, columns)]
    of_source = [
        rows.filter(pc.equal(rows["source"].cast(pa.string()), source)) for rows in batches
    ]
    return join_tables([fact_table(SESSIONS, ()), *of_source])


def divide_sessions(lake: Lake, facts: Facts, inputs: Iterable[Input]) -> Facts:
    """Move the open sessions of growing inputs to provisional files of their own.

    Parameters
    ----------
    facts
        Staged facts of all packets of the inputs.
    """
    followed = {each.source for each in inputs if each.files.get(OPEN_STATES)}
    files: dict[str, Sequence[str]] = {}
    for name, sources in facts.files.get(SESSIONS, {}).items():
        mine = sorted(followed.intersection(sources))
        if not mine:
            files[name] = sources
            continue
        system, inner = filesystem(lake.staged(SESSIONS, name))
        rows = pq.read_table(inner, filesystem=system)
        is_mine = pc.is_in(rows["source"], pa.array(mine, pa.string()))
        is_open = pc.and_(is_mine, rows["closed_ns"].is_null())
        if (closed := rows.filter(pc.invert(is_open))).num_rows:
            files[write_table(lake.staged(SESSIONS), closed)] = sources
        for source in mine:
            of_source = rows.filter(pc.and_(is_open, pc.equal(rows["source"], source)))
            files[write_table(lake.staged(SESSIONS), of_source, _ALL_PREFIX)] = [source]
    return replace(facts, files={**facts.files, SESSIONS: files})


def merge_open_sessions(lake: Lake, source: str, made: Iterable[str], since: Iterable[str]) -> str:
    """Stage the open sessions of an input that has got parts while its facts were made.

    Parameters
    ----------
    made
        Files with the sessions of all packets, as of the commit that the facts were made from.
    since
        Files with the sessions of later parts, which repeat some of the earlier ones.

    Returns
    -------
    name
        Name of the provisional file.
    """
    made_closed, made_open = _closed_and_open(source, made)
    since_closed, since_open = _closed_and_open(source, since)
    kept = without_sessions(since_open, session_keys(made_closed))
    left = without_sessions(made_open, session_keys(join_tables([since_closed, since_open])))
    rows = with_times(SESSIONS, join_tables([kept, left]))
    return write_table(lake.staged(SESSIONS), rows, _ALL_PREFIX)


def _closed_and_open(source: str, paths: Iterable[str]) -> tuple[pa.Table, pa.Table]:
    """Return the sessions of an input in final files, and those in provisional files."""
    divided: tuple[list[str], list[str]] = [], []
    for path in paths:
        divided[is_provisional(path)].append(path)
    closed, still_open = (read_sessions(files, source) for files in divided)
    return closed, still_open


def session_keys(rows: pa.Table) -> pa.Array:
    """Return the keys of sessions: the packets that prove them."""
    return packet_keys(rows["stream"], rows["offset"]).combine_chunks()


def without_sessions(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return rows of sessions without those that have one of the keys."""
    return rows.filter(pc.invert(pc.is_in(session_keys(rows), keys)))


def _open_input(found: InputFiles, settings: GrowthSettings) -> GrowingInput:
    growing = GrowingInput(found.path, found.format, found.files, settings)
    growing.open()
    return growing


def make_part_staging(lake: Lake) -> None:
    """Make the folders that parts are written to."""
    tables = [packets_table(name) for name in format_names()]
    staged = [*tables, QUARANTINE_TABLE, STORE_RECORDS_TABLE, DONE_MARKS, *all_tables()]
    lake.make_staging([*staged, *LEDGER_FILES, FILES_TABLE, PAYLOADS_TABLE, OPEN_STATES])


class InputFiles(Protocol):
    """An input and its files, as far as growing inputs need it."""

    @property
    def path(self) -> str:
        """Its name in the lake."""

    @property
    def format(self) -> str | None:
        """Label of its format; None for a capture of any formats."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a capture; empty for a bare stream."""


class StagedPart(NamedTuple):
    """The staged part of a growing input, for the commit."""

    source: str
    format: str | None
    is_whole: bool
    """Whether it begins at the beginning, and replaces all that the lake has of the input."""
    stamp: str
    """The stamp of the input, in JSON."""
    ledger: dict[str, LedgerSum]
    """By format, that of the input as far as it was read."""
    files: dict[str, list[str]]
    """The staged files, by table."""
    has_newest: bool = False
    """Whether it has facts of the newest packets, which replace those of the part before."""
    kept: tuple[str, ...] = ()
    """Provisional files of facts that stay: their replacement is made in the background."""

    def replaces(self, table: str, name: str) -> bool:
        """Return whether this part replaces a file of the input in the lake."""
        has_newer = table not in all_tables() or self.has_newest
        return is_provisional(name) and has_newer and name not in self.kept

    def updated_input(self, files: Mapping[str, Sequence[str]]) -> Input:
        """Return the input as it will be in the lake, with the files of the parts before."""
        return Input(self.source, self.format, json.loads(self.stamp), self.ledger, files)


class GrownPart:
    """The staged part of a growing input: the rows and facts of its new bytes."""

    def __init__(
        self, lake: Staging, growing: GrowingInput, settings: BronzeSettings, number: int
    ) -> None:
        self.input = growing
        self.source = growing.source
        self._lake = lake
        self._settings = settings
        self._number = number
        self.files: defaultdict[str, list[str]] = defaultdict(list)
        """The staged files, by table."""
        self.ledgers: list[StreamLedger] = []
        """Ledgers of all streams that have ended in it or are still open."""
        self.closed_spans: list[FrameSpan] = []
        """Files of a capture that end in it."""
        self.open_spans: list[FrameSpan] = []
        """Files of a capture that may continue."""
        self.has_newest = False
        """Whether it has facts of the newest packets, which replace those of the part before."""
        self.kept: Collection[str] = ()
        """Provisional files of facts that stay: their replacement is made in the background."""
        self._stamp: Mapping[str, Any] = {}
        self._state: pa.Table | None = None

    def read(self, most_bytes: int, *, ends: bool) -> list[str]:
        """Stage the rows of up to `most_bytes` new bytes; return notes for the user.

        `write_state` stages the state for the next part.

        Parameters
        ----------
        ends
            Whether to write the rest as if the input had ended.
        """
        growing = self.input
        self._stage(lambda task: growing.read(most_bytes, task), "part-")
        state = growing.state()
        notes: list[str] = []
        closed = [*growing.new_ledgers]
        if ends:
            self._stage(lambda task: notes.extend(growing.end(task)), OPEN_PREFIX)
            notes = [f"{self.source}: {note}" for note in notes]
        still_open = growing.open_ledgers()
        self.ledgers = [*closed, *still_open]
        for streams, prefix in ((closed, "part-"), (still_open, OPEN_PREFIX)):
            tables = streams_table(streams), ledger_table(streams)
            for table, rows in zip(LEDGER_FILES, tables, strict=True):
                if streams:
                    self._write(table, rows, prefix)
        self.closed_spans, self.open_spans = [*growing.new_spans], growing.open_spans()
        if self.closed_spans:
            self._write_files(file_rows(self.source, self.closed_spans), "part-")
        open_files = [span._asdict() for span in self.open_spans] or [{"file": self.source}]
        rows = [{"source": self.source, **row} for row in open_files]
        # A growing file has no hash yet.
        self._write_files(file_rows(self.source, self.open_spans) if ends else rows, OPEN_PREFIX)
        self._state = state
        self._stamp = growing.stamp() if ends else {"growing": growing.position}
        return notes

    def _stage(self, work: Callable[[BronzeTask], object], prefix: str) -> None:
        task = BronzeTask(self._number, self._settings, prefix)
        work(task)
        task.close()
        for table, names in task.files.items():
            self.files[table] += names

    def _write_files(self, rows: Sequence[Mapping[str, Any]], prefix: str) -> None:
        self._write(FILES_TABLE, pa.Table.from_pylist(list(rows), FILES), prefix)

    def _write(self, table: str, rows: pa.Table, prefix: str) -> None:
        prefix, private = f"{prefix}{self._number:05d}-", not is_shown(table)
        name = write_table(self._lake.staged(table), rows, prefix, private=private)
        self.files[table].append(name)

    def write_newest(self, rows: Sequence[NewestRows], frames: FrameFiles) -> None:
        """Stage facts of the newest packets, and the latencies of their deliveries."""
        self.has_newest = True
        tables: defaultdict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        delays = _delays(rows)
        for name, *both in rows:
            for prefix, part in zip(("part-", OPEN_PREFIX), both, strict=True):
                located = frames.locate(part) if name == "messages" else part
                for fact, table in with_latencies((name, located), delays):
                    if table.num_rows or (fact, prefix) == (SESSIONS, OPEN_PREFIX):
                        tables[fact, prefix].append(with_times(fact, table))
        for (fact, prefix), parts in tables.items():
            self._write(fact, join_tables(parts), prefix)

    def write_state(self, *, are_made: bool = True) -> None:
        """Stage the state for the next part, and how far facts are made.

        Parameters
        ----------
        are_made
            Whether the facts are committed with this part, not made in the background.
        """
        if self._state is not None:
            made = self.input.facts_state(
                has_provisional=bool(provisional_facts(self.files)), are_made=are_made
            )
            self._write(OPEN_STATES, pa.concat_tables([self._state, made]), OPEN_PREFIX)

    def defer_stamp(self) -> Mapping[str, Any]:
        """Keep the stamp of a growing input until facts of all packets are made.

        If this process stops before that, the next one makes them.

        Returns
        -------
        stamp
            The input's current stamp, for the commit of the facts.
        """
        stamp, self._stamp = self._stamp, {"growing": self.input.position}
        return stamp

    def staged(self) -> StagedPart:
        """Return it for the commit."""
        growing = self.input
        stamp, kept = json.dumps(self._stamp), tuple(self.kept)
        files, ledger = dict(self.files), growing.ledger()
        own = self.source, growing.format, growing.replaces
        return StagedPart(*own, stamp, ledger, files, self.has_newest, kept)


def _delays(rows: Sequence[NewestRows]) -> pa.Table:
    """Return the delivery delays of messages."""
    messages = [part for name, *both in rows if name == "messages" for part in both]
    none = fact_table("messages", ())
    return join_tables(map(delayed, [none, *messages]))


def add_parts(draft: Draft, parts: Sequence[StagedPart]) -> None:
    """Add parts to the inputs that there are, without the files that the parts replace."""
    old: defaultdict[str, dict[str, Sequence[str]]] = defaultdict(dict)
    for part in parts:
        held = draft.inputs.get(part.source)
        for table, names in held.files.items() if held is not None else ():
            old[table].update((name, ()) for name in names if part.replaces(table, name))
    for table, become in old.items():
        draft.replace_files(table, become)
    for part in parts:
        held = draft.inputs.get(part.source)
        draft.put(part.updated_input(held.files if held is not None else {}), part.files)


def drop_old_states(draft: Draft) -> None:
    """Drop the states of inputs that have not changed for a day."""
    now_ns = time.time_ns()
    old: list[str] = []
    for source, held in draft.lake.inputs.items():
        changed_ns = held.stamp.get("modified_ns", now_ns)
        if draft.inputs.get(source) is held and changed_ns < now_ns - _OLD_NS:
            old += held.files.get(OPEN_STATES, ())
    if old:
        draft.replace_files(OPEN_STATES, dict.fromkeys(old, ()))
