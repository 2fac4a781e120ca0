"""The main job: inputs in, a lake with what is new in them.

One run is one commit. Bronze is written by tasks of ours and stitched on the driver; the facts
that follow from what is new are added to those of the inputs that stay, or take their place where
both show the same JMS messages; then all of it becomes visible. A run that ends before has changed
nothing.

An input is known by its absolute path or URL, and unchanged if its size, time and the checksum of
both ends are. One that has changed, or has grown, is read again as a whole, and its new rows take
the place of the old ones in the same commit: the unfinished packet at the end of a file that still
grows would otherwise be there twice, once as a tail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import pyarrow as pa

from wireyard.formats import names as format_names
from wireyard.layers.tables import FACTS
from wireyard.spark import bronze
from wireyard.spark.bronze import AnyPiece, Outcome, Piece, Settings, packets_table
from wireyard.spark.dealing import deal
from wireyard.spark.facts import Facts, related_to, write_empty, write_facts
from wireyard.spark.indexing import (
    IndexedCapture,
    Walked,
    cut_headers,
    index_of,
    join_headers,
)
from wireyard.spark.inputs import FoundInput
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.parts import PartFile
from wireyard.spark.reach import check_reach, reaching
from wireyard.spark.replacing import drop_inputs
from wireyard.spark.stitching import LEDGER, cut_inputs, make_ledger, stitch_input
from wireyard.spark.streams import streams_table
from wireyard.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPLIT_BYTES", "BronzeStage", "Report", "Watch", "fill_lake"]

SPLIT_BYTES = 64 << 20
"""What one task reads: starting one costs as much as decoding 8 MB."""
_LEDGER_SCHEMA = pa.schema(
    [("source", pa.string()), ("stream", pa.string()), *((name, pa.int64()) for name in LEDGER)]
)
_QUARANTINE = "quarantine"
_STORE_RECORDS = "store_records"
_POLL_S = 0.2
_WAVE_PIECES = 4096


class Watch(Protocol):
    """Who is told how far a run is."""

    def stage(self, name: str) -> None:
        """Hear what is done next."""

    def at(self, done_bytes: int, total_bytes: int) -> None:
        """Hear how many of the bytes to be read are in rows."""


@dataclass(slots=True)
class Report:
    """What a run did."""

    added: list[Input] = field(default_factory=list)
    """The inputs that were read, with their ledgers."""
    replaced: int = 0
    """How many of them were in the lake before, as they were then."""
    unchanged: int = 0
    repaired: int = 0
    """How many pieces were decoded twice, because a packet lay in another at a cut."""
    notes: list[str] = field(default_factory=list)
    """What is to be said about inputs: damage, streams that nothing tells the format of."""


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
) -> Report:
    """Read what the lake does not hold yet, and commit it.

    Parameters
    ----------
    found
        The inputs as they are now.
    get_session
        Called when there is something to do.
    secrets
        Whether passwords stay in the rows.
    split_bytes
        What one task reads.
    decode_as
        What ports of captures are for, as in ``tcp.port==1884,mqtt``.
    keylog
        Key logs with the secrets of TLS connections, where every task can read them.

    Raises
    ------
    SourceError
        An input cannot be read.
    LakeError
        The lake cannot be written.
    LedgerError
        The rows of a stream do not account for its bytes.
    """
    new = [each for each in found if not _is_held(lake, each)]
    report = Report(unchanged=len(found) - len(new))
    if not new:
        return report
    watch.stage("starting Spark")
    spark = get_session()
    check_reach(spark, lake)
    settings = Settings(lake.staged(""), secrets, max_packet_bytes)
    stage = BronzeStage(spark, lake, settings, watch, decode_as, keylog)
    report.added = stage.read(new, split_bytes)
    report.repaired, report.notes = stage.repaired, stage.notes
    changed = [each.path for each in new if each.path in lake.inputs]
    report.replaced = len(changed)
    watch.stage("writing tables")
    change = _with_added(drop_inputs(lake, changed, ()), report.added)
    with reaching(lake):
        facts = _write_facts(spark, lake, change, report.added)
        if related := related_to(lake, facts, changed):
            change = _with_added(drop_inputs(lake, changed, related), report.added)
            inputs = _inputs_after(lake, change)
            both = [*report.added, *(inputs[source] for source in sorted(related))]
            facts = _write_facts(spark, lake, change, both)
    report.notes += facts.notes
    lake.commit(_with_rest(lake, _with_facts(change, facts)))
    return report


def _write_facts(spark: SparkSession, lake: Lake, change: Change, inputs: Sequence[Input]) -> Facts:
    """Stage the facts of some inputs, whose packets are in the lake or staged."""
    files = {}
    for name in format_names():
        table = packets_table(name)
        staged = {*change.append.get(table, ())}
        wanted = dict.fromkeys(file for each in inputs for file in each.files.get(table, ()))
        files[name] = [
            lake.staged(table, file) if file in staged else f"{lake.root}/{table}/{file}"
            for file in wanted
        ]
    return write_facts(spark, lake, files, inputs, change.append)


def _with_facts(change: Change, facts: Facts) -> Change:
    """Return the change with facts, each file known to the inputs whose rows it has."""
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


def _is_held(lake: Lake, found: FoundInput) -> bool:
    held = lake.inputs.get(found.path)
    return held is not None and held.stamp == found.stamp and held.format == found.format


# --- bronze ---------------------------------------------------------------------------------


class BronzeStage:
    """The stage in which tasks read the inputs and write what is in them."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: Settings,
        watch: Watch,
        decode_as: tuple[str, ...] = (),
        keylog: tuple[str, ...] = (),
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._watch = watch
        self._decode_as, self._keylog = decode_as, keylog
        self._tasks = 0
        self.repaired = 0
        self.notes: list[str] = []

    def read(self, found: Sequence[FoundInput], split_bytes: int) -> list[Input]:
        """Stage the rows of inputs; return the inputs as the lake will know them."""
        named = {packets_table(each.format) for each in found if each.format}
        held = set(map(packets_table, format_names())) if any(f.files for f in found) else set()
        staged = [*sorted(named | held), _QUARANTINE, _STORE_RECORDS]
        self._lake.make_staging([*staged, bronze.HEADERS, bronze.DONE_MARKS])
        indexed = self._index(found, split_bytes)
        self._watch.stage("reading")
        tasks = cut_inputs(found, split_bytes, self._decode_as, indexed, self._keylog)
        outcomes = self._run(tasks)
        pieces = defaultdict(list)
        for piece in chain.from_iterable(tasks):
            if isinstance(piece, Piece):
                pieces[piece.source].append(piece)
        limit = self._settings.max_packet_bytes
        stitched = {
            source: stitch_input(each, {o.start: o for o in outcomes[source]}, limit)
            for source, each in pieces.items()
        }
        kept = {source: each.kept for source, each in stitched.items()}
        again = [[piece] for each in stitched.values() for piece in each.again]
        self.repaired += len(again)
        if again:
            self._watch.stage("reading again where a packet lay in another")
            for source, more in self._run(again).items():
                kept[source] = sorted((*kept[source], *more), key=lambda each: each.end)
        return [
            self._of_capture(each, outcomes[each.path])
            if each.files
            else _as_input(each, [kept.get(each.path, [])])
            for each in found
        ]

    def _index(self, found: Sequence[FoundInput], split_bytes: int) -> dict[str, IndexedCapture]:
        """Have the headers of large captures read; return where they are."""
        pieces = {each.path: cut for each in found if (cut := cut_headers(each, split_bytes))}
        if not pieces:
            return {}
        self._watch.stage("reading headers of captures")
        walked = _walked(self._run(deal(chain.from_iterable(pieces.values()), split_bytes)))
        joined = {path: join_headers(cut, walked) for path, cut in pieces.items()}
        again = [[piece] for each in joined.values() for piece in each.again]
        self.repaired += len(again)
        written = _walked(self._run(again)) if again else {}
        indexed = {path: index_of(each, walked, written) for path, each in joined.items()}
        self.notes += [f"{path}: {each.damage}" for path, each in indexed.items() if each.damage]
        return indexed

    def _of_capture(self, found: FoundInput, outcomes: Sequence[Outcome]) -> Input:
        notes = dict.fromkeys(each.message for each in outcomes if each.message)
        self.notes += [f"{found.path}: {note}" for note in notes]
        return _as_input(found, [[each] for each in outcomes if each.stream])

    def _run(self, tasks: Sequence[Sequence[AnyPiece]]) -> dict[str, list[Outcome]]:
        """Have Spark run tasks; return what became of each source."""
        outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
        first = self._tasks
        self._tasks += len(tasks)
        with _marks_watched(self._lake, tasks, first, self._watch):
            for place, wave in _waves(tasks):
                work = partial(
                    bronze.write_pieces, tasks=wave, first=first + place, settings=self._settings
                )
                # One row and one partition a task, without the shuffle that a table would need.
                numbers = self._spark.range(0, len(wave), 1, len(wave))
                manifest = numbers.mapInArrow(work, spark_schema(bronze.MANIFEST)).toArrow()
                for outcome in (Outcome(**row) for row in manifest.to_pylist()):
                    if outcome.failed is not None:
                        raise bronze.FAILURES[outcome.failed](outcome.message)
                    outcomes[outcome.source].append(outcome)
        return outcomes


def _waves(
    tasks: Sequence[Sequence[AnyPiece]],
) -> Iterator[tuple[int, Sequence[Sequence[AnyPiece]]]]:
    """Cut the list of tasks, which every one of them gets, to what is quickly sent and read."""
    start = held = 0
    for place, task in enumerate(tasks):
        if held and held + len(task) > _WAVE_PIECES:
            yield start, tasks[start:place]
            start, held = place, 0
        held += len(task)
    if held:
        yield start, tasks[start:]


@contextmanager
def _marks_watched(
    lake: Lake, tasks: Sequence[Sequence[AnyPiece]], first: int, watch: Watch
) -> Iterator[None]:
    """Tell how many bytes are done, by the marks that tasks leave, while the caller waits."""
    weights = {
        str(number): sum(piece.bytes for piece in task) for number, task in enumerate(tasks, first)
    }
    total = sum(weights.values())
    over = Event()

    def look() -> None:
        while not over.wait(_POLL_S):
            marks = lake.list_staged(bronze.DONE_MARKS)
            watch.at(sum(weights.get(mark, 0) for mark in marks), total)

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    watch.at(total, total)


def _walked(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[tuple[str, int], Walked]:
    """Return what became of pieces of captures, by file and the start of the piece."""
    return {
        (source, each.start): Walked(
            each.first, each.end, each.rows, each.index_context, each.index_file
        )
        for source, found in outcomes.items()
        for each in found
        if each.first is not None and each.index_context and each.index_file
    }


def _as_input(found: FoundInput, streams: Sequence[Sequence[Outcome]]) -> Input:
    """Return an input of which there is, stream by stream, what became of its pieces."""
    files: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for each in chain.from_iterable(streams):
        if each.packets_file and each.format:
            files[packets_table(each.format)][each.packets_file] = None
        if each.quarantine_file:
            files[_QUARANTINE][each.quarantine_file] = None
        if each.records_file:
            files[_STORE_RECORDS][each.records_file] = None
    ledgers = [make_ledger(found, outcomes) for outcomes in streams]
    held = {table: list(names) for table, names in files.items()}
    return Input(found.path, found.format, found.stamp, ledgers, held)


# --- the commit -----------------------------------------------------------------------------


def _with_added(change: Change, added: Sequence[Input]) -> Change:
    """Return the change with what was read."""
    append = {table: list(names) for table, names in change.append.items()}
    for each in added:
        for table, names in each.files.items():
            there = append.setdefault(table, [])
            there.extend(name for name in names if name not in there)
    return replace(change, inputs=(*change.inputs, *added), append=append)


def _files_after(lake: Lake, change: Change, table: str) -> list[str]:
    """Return the files of a table as they will be, where they stand now."""
    removed = set(change.remove.get(table, ()))
    held = [path for path in lake.paths(table) if path.rpartition("/")[2] not in removed]
    return [*held, *(lake.staged(table, name) for name in change.append.get(table, ()))]


def _inputs_after(lake: Lake, change: Change) -> dict[str, Input]:
    return lake.inputs | {each.source: each for each in change.inputs}


def _with_rest(lake: Lake, change: Change) -> Change:
    """Return the change with the tables that are made anew, and with no table left out."""
    append = dict(change.append)
    if not _files_after(lake, change, _QUARANTINE):
        append[_QUARANTINE] = [_write_table(lake, _QUARANTINE, bronze.QUARANTINE.empty_table())]
    for table in FACTS:
        if not _files_after(lake, change, table):
            append[table] = [write_empty(lake, table)]
    inputs = _inputs_after(lake, change)
    rows = [
        {"source": each.source, "stream": one.stream, **one.counts}
        for each in sorted(inputs.values(), key=lambda each: each.source)
        for one in each.streams
    ]
    ledger = pa.Table.from_pylist(rows, _LEDGER_SCHEMA)
    swapped = {"ledger": [_write_table(lake, "ledger", ledger)]}
    swapped["streams"] = [_write_table(lake, "streams", streams_table(inputs.values()))]
    return replace(change, append=append, replace=swapped)


def _write_table(lake: Lake, table: str, rows: pa.Table) -> str:
    """Stage a table of the driver's as one file; return its name."""
    name = f"part-{uuid4().hex}.parquet"
    lake.make_staging([table])
    file = PartFile(lake.staged(table, name), rows.schema)
    for batch in rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]:
        file.write(batch)
    file.close()
    return name
