"""Parts of growing inputs: a part is a task, from the state of its input to the next state.

A task restores the state, reads the new bytes, and stages final rows, provisional rows (as if the
input ended there), facts of the newest packets, and the state for the next part. So any process can
read any part, and those of all growing inputs are read as tasks of one stage.

A part replaces all provisional files of its input (`OPEN_PREFIX`), except for facts that it does
not make anew.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from wireyard.captures.live.state import StateError
from wireyard.captures.stream_table import FILES, file_rows
from wireyard.formats import load_columns
from wireyard.formats import names as format_names
from wireyard.lake.ledgers import (
    LEDGER_FILES,
    LedgerSum,
    ledger_table,
    streams_table,
)
from wireyard.lake.parts import write_table
from wireyard.lake.records import is_shown
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Lake
from wireyard.layers.tables import all_tables, with_times
from wireyard.pipeline.decoding.results import FailureResult, GoneResult
from wireyard.pipeline.decoding.task import (
    DONE_MARKS,
    FAILURES,
    FILES_TABLE,
    PAYLOADS_TABLE,
    QUARANTINE_TABLE,
    STORE_RECORDS_TABLE,
    BronzeSettings,
    BronzeTask,
    packets_table,
)
from wireyard.pipeline.growing.input import FACTS, GrowingInput, make_state, read_state
from wireyard.pipeline.growing.newest import MadeRows, NewestFacts, by_protocol
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.growing.sessions import ALL_PREFIX, SESSIONS
from wireyard.pipeline.inputs.listing import is_missing
from wireyard.pipeline.replacing import OPEN_PREFIX, OPEN_STATES, is_provisional
from wireyard.pipeline.running import Runner
from wireyard.pipeline.typed_json import from_json, to_json

__all__ = [
    "NONE_MADE",
    "FactsMade",
    "NewestTask",
    "Part",
    "StagedPart",
    "provisional_facts",
    "read_parts",
    "restored",
]

_TOGETHER: Final = 8
"""Parts that a task of a cluster reads: most take less time than it takes to start."""


class FactsMade(NamedTuple):
    """How far the facts of all packets of an input are made."""

    position: int
    """Bytes of the input that they follow from."""
    seconds: float
    """How long that took."""
    until_ns: Mapping[str, int]
    """By protocol: the rows of messages sent up to this time stay until they are made again; empty
    for a bare stream."""


NONE_MADE: Final = FactsMade(-1, 0.0, {})


class NewestTask(NamedTuple):
    """How a part makes facts of the newest packets."""

    most: int
    """The most packets of a protocol that are kept."""
    open_sessions: tuple[str, ...]
    """Files with the sessions that are open in the lake."""
    closed_sessions: tuple[str, ...] | None
    """Files with those that are closed; None if the state has them."""
    held: Mapping[str, tuple[str, ...]]
    """The other final files of the input, by table, if its state may lack the newest packets."""


class Part(NamedTuple):
    """The next part of an input: the task that reads it."""

    path: str
    format: str | None
    files: tuple[str, ...]
    states: tuple[str, ...]
    """Files with the state of the input; none to begin anew."""
    stop: int = sys.maxsize
    """Byte of the input up to which it is read."""
    ends: bool = True
    """Whether to write the rest as if the input had ended, if all of it was read."""
    facts: FactsMade = NONE_MADE
    makes_facts: bool = True
    """Whether facts of all packets are made as of this part."""
    facts_come: bool = True
    """Whether these are committed with it, and not made in the background."""
    newest: NewestTask | None = None


class StagedPart(NamedTuple):
    """A part that is read and staged, for the commit."""

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
    position: int
    """Bytes of the input that were read."""
    unread_bytes: int
    ended: bool
    """Whether its rows are written as if the input had ended."""
    now_ns: int | None
    """Time of its last packet; None for a bare stream."""
    facts: FactsMade
    has_newest: bool
    """Whether it has facts of the newest packets, which replace those of the part before."""
    producers: tuple[str, ...]
    """The producers of JMS messages among these."""
    notes: tuple[str, ...]

    def replaces(self, table: str, name: str) -> bool:
        """Return whether this part replaces a file of the input in the lake."""
        has_newer = table not in all_tables() or self.has_newest
        return is_provisional(name) and has_newer


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
    return {name for name in facts if not name.rpartition("/")[2].startswith(ALL_PREFIX)}


_Result = StagedPart | FailureResult | GoneResult
_RESULTS: Final = pa.schema([("result", pa.string())])
"""A `_Result` in JSON for each task."""


def read_parts(
    runner: Runner,
    lake: Lake,
    parts: Sequence[Part],
    settings: BronzeSettings,
    growth: GrowthSettings,
    first: int = 0,
) -> tuple[list[StagedPart], list[str]]:
    """Read and stage parts, each by a task; return them, and the inputs that are gone.

    Parameters
    ----------
    first
        Number of the first task, which no other task of the run has.

    Raises
    ------
    SourceError, LakeError, LedgerError
        As `fill_lake`.
    """
    if not parts:
        return [], []
    tables = [packets_table(name) for name in format_names()]
    staged = [*tables, QUARANTINE_TABLE, STORE_RECORDS_TABLE, DONE_MARKS, *all_tables()]
    lake.make_staging([*staged, *LEDGER_FILES, FILES_TABLE, PAYLOADS_TABLE, OPEN_STATES])
    work = partial(_read_part, settings=settings, growth=growth)
    rows = runner.run(list(enumerate(parts, first)), work, _RESULTS, together=_TOGETHER)
    results: list[_Result] = [from_json(text, _Result) for text in rows["result"].to_pylist()]
    for result in results:
        if isinstance(result, FailureResult):
            raise FAILURES[result.error](result.message)
    return (
        [result for result in results if isinstance(result, StagedPart)],
        [result.source for result in results if isinstance(result, GoneResult)],
    )


# --- the task -------------------------------------------------------------------------------


def _read_part(
    task: tuple[int, Part], settings: BronzeSettings, growth: GrowthSettings
) -> Iterator[pa.RecordBatch]:
    """Read and stage a part; yield a row of `_RESULTS`."""
    number, part = task
    load_columns()
    try:
        result: _Result = _PartTask(number, part, settings, growth).run()
    except tuple(FAILURES.values()) as error:
        failed = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        result = FailureResult(failed, str(error))
        if settings.skip_missing and any(map(is_missing, part.files or (part.path,))):
            result = GoneResult(part.path)
    yield pa.RecordBatch.from_pylist([{"result": to_json(result, _Result)}], _RESULTS)


def restored(part: Part, growth: GrowthSettings) -> tuple[GrowingInput, NewestFacts | None]:
    """Open an input at its state, or from its beginning if there is none that is of this file.

    Returns
    -------
    growing
        The open input.
    newest
        Its newest packets; None for a bare stream, or if the part makes no facts of them.

    Raises
    ------
    SourceError
        It cannot be read.
    """
    task = part.newest if part.files else None
    for path in part.states:
        growing = GrowingInput(part.path, part.format, part.files, growth)
        growing.open()
        try:
            state = read_state(path, part.path)
            growing.restore(state.tree)
            newest = task and _restored_newest(part, task, state.others)
        except StateError:
            growing.close()
        else:
            return growing, newest
    growing = GrowingInput(part.path, part.format, part.files, growth)
    growing.open()
    growing.refresh(part.files)
    return growing, task and NewestFacts(part.path, {}, task.most)


def _restored_newest(part: Part, task: NewestTask, others: Mapping[str, bytes]) -> NewestFacts:
    """Return the newest packets before a part: those of the state, or else those of the lake."""
    newest = NewestFacts(part.path, part.facts.until_ns, task.most)
    if not newest.restore(others):
        newest.read(task.held)
    if task.closed_sessions is not None:
        newest.read_closed(task.closed_sessions)
    return newest


class _PartTask:
    """The task that reads a part: its input, and the files that it writes."""

    def __init__(
        self, number: int, part: Part, settings: BronzeSettings, growth: GrowthSettings
    ) -> None:
        self._number, self._part, self._settings, self._growth = number, part, settings, growth
        self._staging = Staging(settings.staging)
        self._files: defaultdict[str, list[str]] = defaultdict(list)

    def run(self) -> StagedPart:
        """Read and stage the part."""
        growing, newest = restored(self._part, self._growth)
        try:
            return self._run(growing, newest)
        finally:
            growing.close()

    def _run(self, growing: GrowingInput, newest: NewestFacts | None) -> StagedPart:
        part, is_whole = self._part, growing.replaces
        self._stage(lambda task: growing.read(part.stop, task), "part-")
        state = growing.state()
        ends = part.ends and not growing.unread_bytes
        notes: list[str] = []
        closed = [*growing.new_ledgers]
        if ends:
            self._stage(lambda task: notes.extend(growing.end(task)), OPEN_PREFIX)
        still_open = growing.open_ledgers()
        for ledgers, prefix in ((closed, "part-"), (still_open, OPEN_PREFIX)):
            if ledgers:
                self._write("streams", streams_table(ledgers), prefix)
                self._write("ledger", ledger_table(ledgers), prefix)
        self._write_spans(growing, ends=ends)
        if newest is not None:
            newest.add(self._final_files(), [*closed, *still_open], growing.new_spans)
        facts, made = self._facts(growing, newest)
        if made is not None:
            self._write_newest(made)
        if state is not None:
            of_facts = {
                **facts._asdict(),
                "has_open": bool(provisional_facts(self._files)),
                "are_made": part.facts_come,
            }
            state += [(FACTS, [1], json.dumps(of_facts).encode())]
            state += newest.state() if newest is not None else []
            self._write(OPEN_STATES, make_state(part.path, state), OPEN_PREFIX)
        stamp = growing.stamp() if ends else {"growing": growing.position}
        return StagedPart(
            *(part.path, part.format, is_whole, json.dumps(stamp), growing.ledger()),
            *(dict(self._files), growing.position, growing.unread_bytes, ends),
            *(growing.now_ns, facts),
            made is not None,
            tuple(made.producers if made is not None else ()),
            tuple(f"{part.path}: {note}" for note in notes),
        )

    def _stage(self, work: Callable[[BronzeTask], object], prefix: str) -> None:
        task = BronzeTask(self._number, self._settings, prefix)
        work(task)
        task.close()
        for table, names in task.files.items():
            self._files[table] += names

    def _write_spans(self, growing: GrowingInput, *, ends: bool) -> None:
        """Write the rows of the table `files`; a growing file has no hash yet."""
        source, spans = growing.source, growing.open_spans()
        if growing.new_spans:
            self._write_files(file_rows(source, growing.new_spans), "part-")
        rows = [{"source": source, **span._asdict()} for span in spans]
        rows = rows or [{"source": source, "file": source}]
        self._write_files(file_rows(source, spans) if ends else rows, OPEN_PREFIX)

    def _write_files(self, rows: Sequence[Mapping[str, Any]], prefix: str) -> None:
        self._write(FILES_TABLE, pa.Table.from_pylist(list(rows), FILES), prefix)

    def _write(self, table: str, rows: pa.Table, prefix: str) -> None:
        prefix, private = f"{prefix}{self._number:05d}-", not is_shown(table)
        name = write_table(self._staging.staged(table), rows, prefix, private=private)
        self._files[table].append(name)

    def _final_files(self) -> dict[str, list[str]]:
        """Return the paths of the final files written so far, by table."""
        return {
            table: [self._staging.staged(table, name) for name in names if not is_provisional(name)]
            for table, names in self._files.items()
        }

    def _facts(
        self, growing: GrowingInput, newest: NewestFacts | None
    ) -> tuple[FactsMade, MadeRows | None]:
        """Return how far facts are made after this part, and those of the newest packets."""
        part, task = self._part, self._part.newest
        facts = NONE_MADE if growing.replaces else part.facts
        made: MadeRows | None = None
        if newest is not None and task is not None:
            if facts.until_ns and not (part.makes_facts and part.facts_come):
                made = newest.rows(task.open_sessions, growing.open_spans())
                facts = facts._replace(until_ns=newest.until_ns)
            if part.makes_facts:
                newest.advance(by_protocol(growing.now_ns))
            newest.evict()
        if part.makes_facts:
            facts = FactsMade(growing.position, facts.seconds, by_protocol(growing.now_ns))
        return facts, made

    def _write_newest(self, made: MadeRows) -> None:
        for table, final, provisional in made.tables:
            if final.num_rows:
                self._write(table, with_times(table, final), "part-")
            if provisional.num_rows or table == SESSIONS:
                self._write(table, with_times(table, provisional), OPEN_PREFIX)
