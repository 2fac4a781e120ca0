"""What is new of inputs that have grown: opened where they were left, staged, part of a change."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.captures.live_state import StateError
from wireyard.captures.read import FrameSpan
from wireyard.captures.stream_table import FILES, file_rows
from wireyard.formats import names as format_names
from wireyard.lake.ledgers import LEDGER_FILES, StreamLedger, ledger_table, streams_table
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.latencies import delayed, with_latencies
from wireyard.layers.newest import NewestRows
from wireyard.layers.tables import (
    FACTS,
    TABLES,
    fact_table,
    join_tables,
    packet_keys,
    with_times,
)
from wireyard.spark.bronze import (
    DONE_MARKS,
    FILES_TABLE,
    PAYLOADS_TABLE,
    QUARANTINE_TABLE,
    STORE_RECORDS_TABLE,
    BronzeTask,
    Settings,
    packets_table,
)
from wireyard.spark.exchange import EXCHANGE
from wireyard.spark.facts import Facts
from wireyard.spark.growing import GrowingInput, read_state
from wireyard.spark.growing_readers import GrowthSettings
from wireyard.spark.inputs import FoundInput
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.parts import read_batches, write_table
from wireyard.spark.replacing import OPEN_PREFIX, OPEN_STATES, is_of_open
from wireyard.streams.source import filesystem

__all__ = [
    "SESSIONS",
    "GrownPart",
    "can_grow",
    "divide_sessions",
    "has_grown",
    "make_part_staging",
    "merge_open_sessions",
    "open_facts",
    "open_growing",
    "read_open_sessions",
    "read_sessions",
    "session_keys",
    "with_parts",
    "without_old_states",
    "without_sessions",
]

SESSIONS: Final = "sessions"
_OF_ALL: Final = f"{OPEN_PREFIX}all-"
"""What the names of files begin with that have the sessions that were open when facts of all
packets were made."""
_OLD_NS: Final = 24 * 60 * 60 * 1_000_000_000
"""An input that was not changed for so long is not read on: if it grows, it is read again."""


def can_grow(found: FoundInput) -> bool:
    """Return whether an input can be read part by part."""
    whole = found.compressed or found.stored or (not found.files and found.format is None)
    return not whole and "://" not in found.path


def has_grown(lake: Lake, found: FoundInput) -> bool:
    """Return whether an input of a lake is larger than before, and can be read part by part."""
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
    """Return the sizes of an input's files; None if copies of them are known by their content."""
    files = stamp.get("files", [stamp])
    if not all("file" in each and "content_sha256" not in each for each in files):
        return None
    return {tuple(each["file"]): each["size"] for each in files}


def open_growing(
    lake: Lake, found: FoundInput, settings: GrowthSettings, *, being_made: bool = False
) -> GrowingInput:
    """Open an input where the lake has left it, or from its beginning if it is another file.

    Parameters
    ----------
    being_made
        Whether this process makes its facts beside.

    Raises
    ------
    SourceError
        It cannot be read.
    """
    held = lake.inputs.get(found.path)
    files = held.files if held else {}
    for name in files.get(OPEN_STATES, ()):
        one = _opened(found, settings)
        try:
            state = read_state(lake.path(OPEN_STATES, name), found.path)
            one.restore(state)
            for made in state["made"]:
                has_open = bool(open_facts(files))
                one.restore_facts(made, has_open=has_open, being_made=being_made)
        except StateError:
            one.close()
        else:
            return one
    one = _opened(found, settings)
    one.look(found.files)
    return one


def open_facts(files: Mapping[str, Iterable[str]]) -> set[str]:
    """Return which of an input's files, by table, have facts of its newest packets, and go next.

    There is one at least where its last part has such facts.
    """
    facts = {name for table in FACTS for name in files.get(table, ()) if is_of_open(name)}
    return {name for name in facts if not name.rpartition("/")[2].startswith(_OF_ALL)}


def read_open_sessions(lake: Lake, source: str) -> pa.Table:
    """Return the rows of sessions of an input of a lake that its next part takes out."""
    names = filter(is_of_open, lake.inputs[source].files.get(SESSIONS, ()))
    return read_sessions([lake.path(SESSIONS, name) for name in names], source)


def read_sessions(paths: Iterable[str], source: str) -> pa.Table:
    """Return the rows that files have of the sessions of an input."""
    columns = [column.name for column in TABLES[SESSIONS]]
    batches = [rows for path in paths for rows in read_batches(path, columns)]
    of_source = [
        rows.filter(pc.equal(rows["source"].cast(pa.string()), source)) for rows in batches
    ]
    return join_tables([fact_table(SESSIONS, ()), *of_source])


def divide_sessions(lake: Lake, facts: Facts, inputs: Iterable[Input]) -> Facts:
    """Put the open sessions of inputs that are read on in files of their own.

    Their next part takes these out.

    Parameters
    ----------
    facts
        Staged, of all packets of the inputs.
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
            files[write_table(lake.staged(SESSIONS), of_source, _OF_ALL)] = [source]
    return replace(facts, files={**facts.files, SESSIONS: files})


def merge_open_sessions(lake: Lake, source: str, made: Iterable[str], since: Iterable[str]) -> str:
    """Stage which sessions of an input are open, where rows came while facts were made.

    Parameters
    ----------
    made
        Files with the sessions that follow from all packets of before.
    since
        Files with those of the parts that came since, which have some of before again.

    Returns
    -------
    name
        Of the file, which the next part takes out.
    """
    made_closed, made_open = _divided(source, made)
    since_closed, since_open = _divided(source, since)
    kept = without_sessions(since_open, session_keys(made_closed))
    left = without_sessions(made_open, session_keys(join_tables([since_closed, since_open])))
    rows = with_times(SESSIONS, join_tables([kept, left]))
    return write_table(lake.staged(SESSIONS), rows, _OF_ALL)


def _divided(source: str, paths: Iterable[str]) -> tuple[pa.Table, pa.Table]:
    """Return the sessions of an input that stay as they are, and those that go with a part."""
    divided: tuple[list[str], list[str]] = [], []
    for path in paths:
        divided[is_of_open(path)].append(path)
    closed, still_open = (read_sessions(some, source) for some in divided)
    return closed, still_open


def session_keys(rows: pa.Table) -> pa.Array:
    """Return the packets that prove sessions, as keys."""
    return packet_keys(rows["stream"], rows["offset"]).combine_chunks()


def without_sessions(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return rows of sessions without those that packets prove whose keys are given."""
    return rows.filter(pc.invert(pc.is_in(session_keys(rows), keys)))


def _opened(found: FoundInput, settings: GrowthSettings) -> GrowingInput:
    one = GrowingInput(found.path, found.format, found.files, settings)
    one.open()
    return one


def make_part_staging(lake: Lake) -> None:
    """Make the folders that parts are written to."""
    tables = [packets_table(name) for name in format_names()]
    staged = [*tables, QUARANTINE_TABLE, STORE_RECORDS_TABLE, DONE_MARKS, EXCHANGE, *FACTS]
    lake.make_staging([*staged, *LEDGER_FILES, FILES_TABLE, PAYLOADS_TABLE, OPEN_STATES])


class GrownPart:
    """What is new of an input, staged."""

    def __init__(self, lake: Lake, one: GrowingInput, settings: Settings, number: int) -> None:
        self.input = one
        self.source = one.source
        self._lake = lake
        self._settings = settings
        self._number = number
        self.files: defaultdict[str, list[str]] = defaultdict(list)
        """What was staged, by table."""
        self.ledgers: list[StreamLedger] = []
        """Those of the streams that it has rows of, or that may have more."""
        self.closed_spans: list[FrameSpan] = []
        """The files of a capture that end in it."""
        self.open_spans: list[FrameSpan] = []
        """Those that go on."""
        self.has_newest = False
        """Whether it has facts of the newest packets, which replace those of the part before."""
        self.kept: Collection[str] = ()
        """Files of facts that it does not take out: what takes their place is made beside it."""
        self._stamp: Mapping[str, Any] = {}
        self._state: pa.Table | None = None

    def read(self, most_bytes: int, *, ends: bool) -> list[str]:
        """Stage what is new of the input, of so many bytes at most; return notes.

        The state that it is read on from is staged by `write_state`.
        """
        one = self.input
        self._stage(one, lambda task: one.read(most_bytes, task), "part-")
        state = one.state()
        notes: list[str] = []
        closed = [*one.fresh]
        if ends:
            self._stage(one, lambda task: notes.extend(one.end(task)), OPEN_PREFIX)
            notes = [f"{self.source}: {note}" for note in notes]
        still_open = one.open_ledgers()
        self.ledgers = [*closed, *still_open]
        for streams, prefix in ((closed, "part-"), (still_open, OPEN_PREFIX)):
            tables = streams_table(streams), ledger_table(streams)
            for table, rows in zip(LEDGER_FILES, tables, strict=True):
                if streams:
                    self._write(table, rows, prefix)
        self.closed_spans, self.open_spans = [*one.fresh_spans], one.open_spans()
        if self.closed_spans:
            self._write_files(file_rows(self.source, self.closed_spans), "part-")
        open_files = [span._asdict() for span in self.open_spans] or [{"file": self.source}]
        rows = [{"source": self.source, **row} for row in open_files]
        # A file that still grows has no hash yet.
        self._write_files(file_rows(self.source, self.open_spans) if ends else rows, OPEN_PREFIX)
        self._state = state
        self._stamp = one.stamp() if ends else {"growing": one.position}
        return notes

    def _stage(self, one: GrowingInput, work: Callable[[BronzeTask], object], prefix: str) -> None:
        task = BronzeTask(self._number, self._settings, prefix)
        work(task)
        task.close()
        for table, names in task.files.items():
            self.files[table] += names

    def _write_files(self, rows: Sequence[Mapping[str, Any]], prefix: str) -> None:
        self._write(FILES_TABLE, pa.Table.from_pylist(list(rows), FILES), prefix)

    def _write(self, table: str, rows: pa.Table, prefix: str) -> None:
        name = write_table(self._lake.staged(table), rows, f"{prefix}{self._number:05d}-")
        self.files[table].append(name)

    def write_newest(self, rows: Sequence[NewestRows], frames: FrameFiles) -> None:
        """Stage facts of the newest packets, and beside deliveries how long they took."""
        self.has_newest = True
        tables: defaultdict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        delays = _delays(rows)
        for name, *both in rows:
            for prefix, part in zip(("part-", OPEN_PREFIX), both, strict=True):
                located = frames.locate(part) if name == "messages" else part
                for fact, found in with_latencies((name, located), delays):
                    if found.num_rows or (fact, prefix) == (SESSIONS, OPEN_PREFIX):
                        tables[fact, prefix].append(with_times(fact, found))
        for (fact, prefix), parts in tables.items():
            self._write(fact, join_tables(parts), prefix)

    def write_state(self, *, are_made: bool = True) -> None:
        """Stage what the next part is read on from, and up to where facts are made with this.

        Parameters
        ----------
        are_made
            Whether they are in the lake with this part, and not made beside it.
        """
        if self._state is not None:
            has_open = bool(open_facts(self.files))
            made = self.input.facts_state(has_open=has_open, are_made=are_made)
            self._write(OPEN_STATES, pa.concat_tables([self._state, made]), OPEN_PREFIX)

    def wait_for_facts(self) -> Mapping[str, Any]:
        """Have the stamp of an input that grows until facts of all packets are made.

        Who goes on with the lake before that makes them.

        Returns
        -------
        stamp
            That of the input as it is.
        """
        stamp, self._stamp = self._stamp, {"growing": self.input.position}
        return stamp

    def leave_out_newest(self) -> None:
        """Leave them out again: facts of all packets are made."""
        self.has_newest = False
        for table in FACTS:
            self.files.pop(table, None)

    def takes_out(self, table: str, name: str) -> bool:
        """Return whether a file that the lake has of the input goes with this part."""
        has_newer = table not in FACTS or self.has_newest
        return is_of_open(name) and has_newer and name not in self.kept

    def after(self, before: Input | None) -> Input:
        """Return the input as the lake will have it.

        Parameters
        ----------
        before
            With the files of it that stay; None if none do.
        """
        files: defaultdict[str, list[str]] = defaultdict(list)
        for table, names in before.files.items() if before is not None else ():
            files[table] += (name for name in names if not self.takes_out(table, name))
        for table, names in self.files.items():
            files[table] += names
        held = {table: names for table, names in files.items() if names}
        return Input(self.source, self.input.format, self._stamp, self.input.ledger(), held)


def _delays(rows: Sequence[NewestRows]) -> pa.Table:
    """Return the delivery delays of messages."""
    messages = [part for name, *both in rows if name == "messages" for part in both]
    none = fact_table("messages", ())
    return join_tables(map(delayed, [none, *messages]))


def with_parts(lake: Lake, change: Change, parts: Sequence[GrownPart]) -> Change:
    """Return a change with what is new of inputs, and without what their parts take out."""
    inputs = {each.source: each for each in change.inputs}
    remove = defaultdict(list, {table: list(names) for table, names in change.remove.items()})
    append = defaultdict(list, {table: list(names) for table, names in change.append.items()})
    for part in parts:
        held = None
        if not part.input.replaces:
            held = inputs.get(part.source, lake.inputs.get(part.source))
        if held is not None:
            for table, names in held.files.items():
                remove[table] += (name for name in names if part.takes_out(table, name))
        inputs[part.source] = part.after(held)
        for table, names in part.files.items():
            append[table] += names
    return replace(change, inputs=tuple(inputs.values()), remove=remove, append=append)


def without_old_states(lake: Lake, change: Change) -> Change:
    """Return a change that forgets the states of inputs that were not changed for a day."""
    now_ns = time.time_ns()
    inputs = {each.source: each for each in change.inputs}
    remove = {table: list(names) for table, names in change.remove.items()}
    for source, held in lake.inputs.items():
        names = held.files.get(OPEN_STATES)
        changed_ns = held.stamp.get("modified_ns", now_ns)
        if names and source not in inputs and changed_ns < now_ns - _OLD_NS:
            inputs[source] = replace(held, files={**held.files, OPEN_STATES: []})
            remove.setdefault(OPEN_STATES, []).extend(names)
    return replace(change, inputs=tuple(inputs.values()), remove=remove)
