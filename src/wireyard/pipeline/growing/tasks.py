"""The tasks that read parts of growing inputs: they restore states, and stage rows.

The parts of a task share its files, and the facts of their newest packets are derived together:
most of the cost of a small part does not depend on its size.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from heapq import heapreplace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.live.state import StateError
from wireyard.captures.read import FrameSpan
from wireyard.captures.stream_table import FILES, file_rows
from wireyard.formats import load_columns
from wireyard.formats import names as format_names
from wireyard.formats.base import Row
from wireyard.lake.ledgers import LEDGER_FILES, ledger_table, streams_table
from wireyard.lake.parts import write_table
from wireyard.lake.records import is_shown
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Lake
from wireyard.layers.tables import all_tables, with_times
from wireyard.pipeline.decoding.results import (
    FAILURES,
    FailureResult,
    GoneResult,
    without_failures,
)
from wireyard.pipeline.decoding.task import (
    FILES_TABLE,
    PAYLOADS_TABLE,
    QUARANTINE_TABLE,
    STORE_RECORDS_TABLE,
    BronzeSettings,
    BronzeTask,
    packets_table,
)
from wireyard.pipeline.growing.input import (
    FACTS,
    OPEN_STATE,
    GrowingInput,
    State,
    StateRow,
    make_state,
    read_state,
    read_states,
    state_of,
)
from wireyard.pipeline.growing.newest import NewestFacts, by_protocol
from wireyard.pipeline.growing.readers import GrowthSettings
from wireyard.pipeline.growing.sessions import SESSIONS, read_sessions
from wireyard.pipeline.growing.states import (
    NONE_MADE,
    FactsMade,
    Part,
    StagedPart,
    provisional_facts,
)
from wireyard.pipeline.inputs.listing import is_missing
from wireyard.pipeline.replacing import OPEN_PREFIX, OPEN_STATES
from wireyard.pipeline.running import Runner

_PART_BYTES: Final = 1 << 20
"""A small part costs as much as to read so many bytes."""
_MOST_PARTS: Final = 64
"""The most parts of a task, which has all of their files open."""
_Result = StagedPart | FailureResult | GoneResult
_Task = tuple[int, tuple[Part, ...]]
"""The number of a task, which no other task of the run has, and its parts."""


def read_parts(
    runner: Runner,
    lake: Lake,
    parts: Sequence[Part],
    settings: BronzeSettings,
    growth: GrowthSettings,
    first: int = 0,
) -> tuple[list[StagedPart], list[str]]:
    """Read and stage parts, by as many tasks as run at once; return them, and the inputs gone.

    Tasks are numbered from `first` on. The errors are those of `fill_lake`: `SourceError`,
    `LakeError` and `LedgerError`.
    """
    if not parts:
        return [], []
    tables = [packets_table(name) for name in format_names()]
    staged = [*tables, QUARANTINE_TABLE, STORE_RECORDS_TABLE, *all_tables()]
    lake.make_staging([*staged, *LEDGER_FILES, FILES_TABLE, PAYLOADS_TABLE, OPEN_STATES])
    tasks = [*enumerate(_divided(parts, runner.at_once), first)]
    found = runner.run(tasks, partial(_read_task, settings=settings, growth=growth), _Result)
    results = [*without_failures(found)]
    order = {part.path: number for number, part in enumerate(parts)}
    return (
        sorted(
            (result for result in results if isinstance(result, StagedPart)),
            key=lambda staged: order[staged.source],
        ),
        [result.source for result in results if isinstance(result, GoneResult)],
    )


def _divided(parts: Iterable[Part], count: int) -> list[tuple[Part, ...]]:
    """Divide parts among tasks, so that the tasks take about as long.

    Parts whose facts of all packets are made in the background share no files with others: these
    files stay until the facts are ready.
    """
    kinds: defaultdict[bool, list[Part]] = defaultdict(list)
    for part in parts:
        kinds[part.facts_come].append(part)
    tasks = list[tuple[Part, ...]]()
    for same in kinds.values():
        of_kind = min(max(count, -(-len(same) // _MOST_PARTS)), len(same))
        shares: list[list[Part]] = [[] for _ in range(of_kind)]
        costs = [(0, number) for number in range(len(shares))]
        for part in sorted(same, key=lambda part: -part.unread_bytes):
            cost, number = costs[0]
            shares[number].append(part)
            heapreplace(costs, (cost + part.unread_bytes + _PART_BYTES, number))
        tasks += map(tuple, shares)
    return tasks


# --- the task -------------------------------------------------------------------------------


class _PartError(Exception):
    """A part cannot be read; the cause is one of `FAILURES`."""

    def __init__(self, part: Part) -> None:
        self.part = part


def _read_task(task: _Task, settings: BronzeSettings, growth: GrowthSettings) -> list[_Result]:
    """Read and stage the parts of a task; return a result for each."""
    number, parts = task
    load_columns()
    results: list[_Result] = []
    while parts:
        try:
            results += _PartsTask(number, parts, settings, growth).run()
            break
        except _PartError as failed:
            part, files = failed.part, failed.part.files or (failed.part.path,)
            if not settings.skip_missing or not any(map(is_missing, files)):
                results = [FailureResult.of(failed.__cause__)]
                break
            # Its rows cannot be distinguished from those of the others in files of the task.
            results.append(GoneResult(part.path))
            parts = tuple(each for each in parts if each is not part)
        except tuple(FAILURES.values()) as error:
            results = [FailureResult.of(error)]
            break
    return results


def restored(
    part: Part,
    growth: GrowthSettings,
    newest: NewestFacts | None = None,
    states: Callable[[str, str], State] = read_state,
) -> GrowingInput:
    """Open an input at its state, or from its beginning if there is none that is of this file.

    `newest` gets the input with its newest packets, and `states` reads a state, with the arguments
    of `read_state`. A `SourceError` is raised if the input cannot be read.
    """
    for path in part.states:
        growing = GrowingInput(part.path, part.format, part.files, growth)
        growing.open()
        try:
            state = states(path, part.path)
            growing.restore(state.tree)
            if newest is not None:
                newest.open(part.path, part.facts.until_ns, state.others)
        except StateError:
            growing.close()
        else:
            return growing
    growing = GrowingInput(part.path, part.format, part.files, growth)
    growing.open()
    growing.refresh(part.files)
    if newest is not None:
        newest.open(part.path, {})
    return growing


class _Reading:
    """A part while it is read."""

    def __init__(self, part: Part, growing: GrowingInput) -> None:
        self.part, self.growing = part, growing
        self.state: list[StateRow] | None = None
        self.facts = NONE_MADE if growing.replaces else part.facts
        self.ends, self.makes_rows = False, False
        self.notes = list[str]()
        self.files: defaultdict[str, list[str]] = defaultdict(list)
        """The files with rows of it, by table."""

    @property
    def source(self) -> str:
        """The input."""
        return self.part.path

    def list_files(self, files: Mapping[str, Sequence[str]], tables: Iterable[str]) -> None:
        """Add files of tables that have rows of it."""
        for table in tables:
            self.files[table] += files.get(table, ())


class _PartsTask:
    """The task that reads parts: their inputs, and the files that it writes."""

    def __init__(
        self,
        number: int,
        parts: Sequence[Part],
        settings: BronzeSettings,
        growth: GrowthSettings,
    ) -> None:
        self._number, self._parts = number, parts
        self._settings, self._growth = settings, growth
        self._staging = Staging(settings.staging)
        self._newest = NewestFacts(max(part.most_newest for part in parts))

    def run(self) -> list[StagedPart]:
        """Read and stage the parts; raise `_PartError` if one cannot be read."""
        with ExitStack() as opened:
            readings = self._restore(opened)
            packets = self._read(readings)
            streams = self._write_ledgers(readings)
            self._write_spans(readings)
            producers = self._make_facts(readings, packets, streams)
            self._write_states(readings)
            return [_staged(each, producers.get(each.source, ())) for each in readings]

    def _restore(self, opened: ExitStack) -> list[_Reading]:
        """Open the inputs of the parts, with their newest packets."""
        states, readings = cache(read_states), list[_Reading]()
        for part in self._parts:
            with _failing(part):
                growing = restored(
                    part,
                    self._growth,
                    self._newest if part.files else None,
                    lambda path, source: state_of(states(path), source),
                )
            opened.callback(growing.close)
            readings.append(_Reading(part, growing))
        closed = {
            each.source: each.part.closed_sessions
            for each in readings
            if each.part.closed_sessions and not each.growing.replaces
        }
        self._newest.set_closed(closed, read_sessions(closed))
        return readings

    def _read(self, readings: Sequence[_Reading]) -> Mapping[str, Sequence[str]]:
        """Read the parts, and write their packets; return the files of final rows, by table."""
        final = BronzeTask(self._number, self._settings, "part-")
        provisional = BronzeTask(self._number, self._settings, OPEN_PREFIX)
        tables, open_tables = list[set[str]](), list[set[str]]()
        for each in readings:
            growing, part = each.growing, each.part
            with _failing(part):
                growing.read(part.stop, final)
                tables.append(growing.take_tables())
                each.state = growing.state()
                each.ends = part.ends and not growing.unread_bytes
                if each.ends:
                    each.notes += growing.end(provisional)
                open_tables.append(growing.take_tables())
        for task, written in ((final, tables), (provisional, open_tables)):
            task.close()
            for each, names in zip(readings, written, strict=True):
                each.list_files(task.files, names)
        return self._paths(final.files)

    def _paths(self, files: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        return {
            table: [self._staging.staged(table, name) for name in names]
            for table, names in files.items()
        }

    def _write_ledgers(self, readings: Sequence[_Reading]) -> pa.Table:
        """Write the ledgers and descriptions of streams; return the latter."""
        described = list[pa.Table]()
        for prefix, ledgers in (
            ("part-", [one for each in readings for one in each.growing.new_ledgers]),
            (OPEN_PREFIX, [one for each in readings for one in each.growing.open_ledgers()]),
        ):
            described.append(streams_table(ledgers))
            self._write("streams", described[-1], prefix, readings)
            self._write("ledger", ledger_table(ledgers), prefix, readings)
        return pa.concat_tables(described)

    def _write_spans(self, readings: Sequence[_Reading]) -> None:
        """Write the rows of the table `files`; a growing file has no hash yet."""
        ended, still_open = list[Row](), list[Row]()
        for each in readings:
            source, spans = each.source, each.growing.open_spans()
            with _failing(each.part):
                ended += file_rows(source, each.growing.new_spans) if each.growing.new_spans else ()
                rows = file_rows(source, spans) if each.ends else _span_rows(source, spans)
            still_open += rows if rows or each.ends else [{"source": source, "file": source}]
        for rows, prefix in ((ended, "part-"), (still_open, OPEN_PREFIX)):
            self._write(FILES_TABLE, pa.Table.from_pylist(rows, FILES), prefix, readings)

    def _write(self, table: str, rows: pa.Table, prefix: str, readings: Iterable[_Reading]) -> None:
        """Write a file with rows of inputs, if there are any."""
        # The provisional sessions show that there are facts of the newest packets.
        is_mark = table == SESSIONS and prefix == OPEN_PREFIX
        listed = {*pc.unique(rows["source"].cast(pa.string())).to_pylist()}
        by = [each for each in readings if is_mark or each.source in listed]
        if by:
            prefix, private = f"{prefix}{self._number:05d}-", not is_shown(table)
            name = write_table(self._staging.staged(table), rows, prefix, private=private)
            for each in by:
                each.files[table].append(name)

    # --- facts of the newest packets ----------------------------------------------------------

    def _make_facts(
        self,
        readings: Sequence[_Reading],
        packets: Mapping[str, Sequence[str]],
        streams: pa.Table,
    ) -> Mapping[str, Collection[str]]:
        """Make the facts of the newest packets; return the producers of their JMS messages."""
        newest, making, whole = self._newest, dict[str, _Reading](), set[str]()
        for each in readings:
            if each.source not in newest.sources:
                continue
            newest.add_spans(_span_rows(each.source, each.growing.new_spans))
            if each.part.makes_facts and each.part.facts_come:
                whole.add(each.source)
                newest.advance(each.source, by_protocol(each.growing.now_ns))
            elif each.facts.until_ns:
                making[each.source] = each
        newest.add_parts(packets, streams, whole)
        made = newest.rows(
            {name: each.part.open_sessions for name, each in making.items()},
            [
                row
                for name, each in making.items()
                for row in _span_rows(name, each.growing.open_spans())
            ],
        )
        for table, final, provisional in made.tables:
            self._write(table, with_times(table, final), "part-", making.values())
            self._write(table, with_times(table, provisional), OPEN_PREFIX, making.values())
        newest.evict()
        for each in readings:
            if each.source in making:
                each.makes_rows = True
                each.facts = each.facts._replace(until_ns=newest.until_ns(each.source))
            if each.part.makes_facts:
                now_ns = by_protocol(each.growing.now_ns)
                each.facts = FactsMade(each.growing.position, each.facts.seconds, now_ns)
                if each.source in newest.sources:
                    newest.advance(each.source, now_ns)
        return made.producers

    # --- states -------------------------------------------------------------------------------

    def _write_states(self, readings: Sequence[_Reading]) -> None:
        """Write the states from which the next parts are read."""
        states, newest = [OPEN_STATE.empty_table()], self._newest.states()
        for each in readings:
            if each.state is not None:
                of_facts = {
                    "read": each.growing.position,
                    **each.facts._asdict(),
                    "has_open": bool(provisional_facts(each.files)),
                    "are_made": each.part.facts_come,
                }
                rows = [*each.state, (FACTS, [1], json.dumps(of_facts).encode())]
                rows += newest.get(each.source, ())
                states.append(make_state(each.source, rows))
        self._write(OPEN_STATES, pa.concat_tables(states), OPEN_PREFIX, readings)


@contextmanager
def _failing(part: Part) -> Iterator[None]:
    """Raise a `_PartError` if a part cannot be read."""
    try:
        yield
    except tuple(FAILURES.values()) as error:
        raise _PartError(part) from error


def _span_rows(source: str, spans: Iterable[FrameSpan]) -> list[Row]:
    return [{"source": source, **span._asdict()} for span in spans]


def _staged(each: _Reading, producers: Collection[str]) -> StagedPart:
    """Return a part for the commit."""
    part, growing = each.part, each.growing
    stamp = growing.stamp() if each.ends else {"growing": growing.position}
    return StagedPart(
        *(part.path, part.format, growing.replaces, json.dumps(stamp), growing.ledger()),
        *(dict(each.files), growing.position, growing.unread_bytes, each.ends),
        *(growing.now_ns, each.facts, each.makes_rows, tuple(sorted(producers))),
        tuple(f"{part.path}: {note}" for note in each.notes),
    )
