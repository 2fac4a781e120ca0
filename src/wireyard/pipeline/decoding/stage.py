"""The driver of the bronze stage: divide inputs into tasks, and join the results.

Tasks decode the inputs and write their rows (``wireyard.pipeline.decoding.task``). The driver
splits the inputs, runs the tasks, stitches their pieces and, where a guess was wrong, runs a task
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from wireyard.captures.left_out import LeftOut
from wireyard.errors import SourceError
from wireyard.formats import load_columns
from wireyard.formats import names as format_names
from wireyard.lake.ledgers import (
    LEDGER_FILES,
    LedgerSum,
    StreamLedger,
    ledger_table,
    streams_table,
)
from wireyard.lake.parts import write_table
from wireyard.lake.records import Input
from wireyard.lake.staging import Staging
from wireyard.pipeline.decoding import task as bronze
from wireyard.pipeline.decoding.balance import make_ledger
from wireyard.pipeline.decoding.indexing import (
    HeaderPiece,
    IndexedCapture,
    cut_headers,
    index_of,
    join_headers,
)
from wireyard.pipeline.decoding.results import (
    EndpointsResult,
    FilesResult,
    FormatResult,
    GoneResult,
    HeadersResult,
    LeftOutResult,
    NoteResult,
    PartResult,
    PieceResult,
    Result,
    of_kind,
    without_failures,
)
from wireyard.pipeline.decoding.stitching import cut_inputs, stitch_input
from wireyard.pipeline.decoding.task import AnyPiece, BronzeSettings, Piece, packets_table
from wireyard.pipeline.inputs.captures import CapturePart, parts_misled
from wireyard.pipeline.inputs.finding import MISSING, FoundInput
from wireyard.pipeline.inputs.listing import is_missing
from wireyard.pipeline.inputs.tasks import group_into_tasks
from wireyard.pipeline.report import Watch
from wireyard.pipeline.running import Runner

_WARM_BYTES: Final = 1 << 20
"""Size of all inputs from which on even small ones are decoded with kernels: loading these takes
less time than the scalar reader would need."""


_MANY_ENDPOINTS: Final = (
    "clients opened connections to more endpoints than its parts report; streams of a part whose "
    "own bytes show no format may have been taken for another one than in the whole capture"
)


class BronzeStage:
    """The stage in which tasks decode the inputs and write the bronze tables."""

    def __init__(
        self,
        runner: Runner,
        lake: Staging,
        settings: BronzeSettings,
        watch: Watch,
        decode_as: tuple[str, ...] = (),
        keylog: tuple[str, ...] = (),
    ) -> None:
        self._runner = runner
        self._lake = lake
        self._settings = settings
        self._watch = watch
        self._decode_as, self._keylog = decode_as, keylog
        self.tasks = 0
        """Number of tasks that were run."""
        self._gone: set[str] = set()
        self.repaired = 0
        self.notes: list[str] = []
        self.lost = False
        """Whether bytes of the inputs are in no row because files are damaged, or were cut off when
        they were captured; or because nothing of them could be read."""
        self.has_unknown = False
        """Whether bytes of captures are of unknown format, and in no row."""
        self._has_closed = False
        """Whether bytes of captures are in TLS or WebSocket that was not opened."""

    def read(self, found: Sequence[FoundInput], split_bytes: int) -> list[Input]:
        """Stage the rows of inputs; return the inputs as they will be in the lake."""
        named = {packets_table(each.format) for each in found if each.format}
        held = set(map(packets_table, format_names())) if any(f.files for f in found) else set()
        staged = [*sorted(named | held), bronze.QUARANTINE_TABLE, bronze.STORE_RECORDS_TABLE]
        staged += [*LEDGER_FILES, bronze.FILES_TABLE, bronze.PAYLOADS_TABLE]
        self._lake.make_staging([*staged, bronze.HEADERS])
        if self._runner.in_process and sum(each.size for each in found) >= _WARM_BYTES:
            load_columns()
        indexed = self._index(found, split_bytes)
        self._watch.stage("reading")
        tasks = cut_inputs(found, split_bytes, self._decode_as, indexed, self._keylog)
        results = self._run(tasks)
        self._read_misled(tasks, results)
        found = [each for each in found if each.path not in self._gone]
        pieces = defaultdict(list)
        for piece in chain.from_iterable(tasks):
            if isinstance(piece, Piece) and piece.source not in self._gone:
                pieces[piece.source].append(piece)
        limit = self._settings.max_packet_bytes
        stitched = {
            source: stitch_input(
                each, {one.start: one for one in of_kind(PieceResult, results[source])}, limit
            )
            for source, each in pieces.items()
        }
        kept = {source: each.kept for source, each in stitched.items()}
        again = [[piece] for each in stitched.values() for piece in each.again]
        self.repaired += len(again)
        if again:
            self._watch.stage("reading again where a packet lay in another")
            for source, more in self._run(again).items():
                if source not in self._gone:
                    all_kept = *kept[source], *of_kind(PieceResult, more)
                    kept[source] = sorted(all_kept, key=lambda each: each.end)
        self.notes += [f"left out: {path}: {MISSING}" for path in sorted(self._gone)]
        bare = [each for each in found if not each.files]
        streams = [_ledger_of(each, kept.get(each.path, [])) for each in bare]
        ledgers = {each.source: each for each in streams}
        files = self._write_ledgers(streams)
        for each in found:
            self._note(each.path, results[each.path])
        inputs = [
            _captured_input(each, results[each.path])
            if each.files
            else _bare_input(each, kept.get(each.path, []), ledgers[each.path], files)
            for each in found
        ]
        is_unread = self.has_unknown or self._has_closed
        self.lost = self.lost or (is_unread and not any(each.ledger for each in inputs))
        return inputs

    def _note(self, path: str, results: Sequence[Result]) -> None:
        """Add the notes on an input; they do not depend on the number of its parts."""
        notes = dict.fromkeys(each.message for each in of_kind(NoteResult, results))
        left_out = LeftOut.total([each.counts for each in of_kind(LeftOutResult, results)])
        self.notes += [f"{path}: {note}" for note in (*notes, *left_out.lines())]
        self.has_unknown = self.has_unknown or left_out.unread is not None
        self._has_closed = self._has_closed or left_out.has_closed

    def _read_misled(
        self, tasks: Sequence[Sequence[AnyPiece]], results: dict[str, list[Result]]
    ) -> None:
        """Read parts of captures again if other parts show the formats of their streams.

        Their new results replace the old ones.
        """
        parts, misled = defaultdict(list), list[CapturePart]()
        for piece in chain.from_iterable(tasks):
            if isinstance(piece, CapturePart) and piece.of > 1:
                parts[piece.source].append(piece)
        for source, each in parts.items():
            if source in self._gone:
                continue
            endpoints = of_kind(EndpointsResult, results[source])
            misled += parts_misled(each, endpoints)
            # Endpoints beyond the limit are unknown to the other parts.
            if any(one.opened is None for one in endpoints):
                self.notes.append(f"{source}: {_MANY_ENDPOINTS}")
        self.repaired += len(misled)
        if not misled:
            return
        self._watch.stage("reading again where others show the format of a stream")
        more = self._run([[part] for part in misled])
        for source in more:
            again = {part.part for part in misled if part.source == source}
            results[source] = [
                one
                for one in results[source]
                if not (isinstance(one, PartResult) and one.part in again)
            ]
            results[source] += more[source]

    def _index(self, found: Sequence[FoundInput], split_bytes: int) -> dict[str, IndexedCapture]:
        """Write the headers of large captures to files; return the indexed captures by path."""
        pieces = {each.path: cut for each in found if (cut := self._cut(each, split_bytes))}
        if not pieces:
            return {}
        self._watch.stage("reading headers of captures")
        written = self._headers(group_into_tasks(chain.from_iterable(pieces.values()), split_bytes))
        joined = {
            path: join_headers(cut, written)
            for path, cut in pieces.items()
            if self._gone.isdisjoint({path, *(piece.source for piece in cut)})
        }
        again = [[piece] for each in joined.values() for piece in each.again]
        self.repaired += len(again)
        if again:
            written += self._headers(again)
        indexed = {path: index_of(each, written) for path, each in joined.items()}
        damaged = [f"{path}: {each.damage}" for path, each in indexed.items() if each.damage]
        self.notes += damaged
        self.lost = self.lost or bool(damaged)
        return indexed

    def _headers(self, tasks: Sequence[Sequence[HeaderPiece]]) -> list[HeadersResult]:
        """Run tasks that write the headers of pieces; return their results."""
        results = self._run(tasks)
        return [each for found in results.values() for each in of_kind(HeadersResult, found)]

    def _cut(self, found: FoundInput, split_bytes: int) -> list[HeaderPiece]:
        try:
            return cut_headers(found, split_bytes)
        except SourceError:
            if not self._settings.skip_missing or not any(map(is_missing, found.files)):
                raise
            return []  # its task reports that it is gone

    def _write_ledgers(self, ledgers: Sequence[StreamLedger]) -> dict[str, list[str]]:
        """Stage the ledgers of bare streams, whose pieces the driver joins; return the files."""
        tables = zip(LEDGER_FILES, (streams_table(ledgers), ledger_table(ledgers)), strict=True)
        if not ledgers:
            return {}
        return {name: [write_table(self._lake.staged(name), rows)] for name, rows in tables}

    def _run(self, tasks: Sequence[Sequence[AnyPiece]]) -> dict[str, list[Result]]:
        """Run tasks; return the results of each source."""
        results: defaultdict[str, list[Result]] = defaultdict(list)
        numbered = list(enumerate(tasks, self.tasks))
        self.tasks += len(tasks)
        work = partial(bronze.write_task, settings=self._settings)
        total = sum(piece.bytes for task in tasks for piece in task)

        def show(done: int) -> None:
            self._watch.at(total * done // len(tasks), total)

        found = self._runner.run(numbered, work, Result, show=show)
        self._watch.at(total, total)
        for result in without_failures(found):
            if isinstance(result, GoneResult):
                self._gone.add(result.source)
            self.lost = self.lost or (isinstance(result, NoteResult) and result.lost)
            results[result.source].append(result)
        return results


def _ledger_of(found: FoundInput, kept: Sequence[PieceResult]) -> StreamLedger:
    """Return the ledger of a bare stream from its pieces."""
    reached = max((each.reached for each in kept), default=0)
    read = reached if found.compressed else found.size
    return make_ledger(found.path, found.path, kept, read, format=found.format)


def _bare_input(
    found: FoundInput,
    kept: Sequence[PieceResult],
    ledger: StreamLedger,
    ledger_files: Mapping[str, list[str]],
) -> Input:
    sums = {ledger.format or "": LedgerSum.of(ledger)}
    files = {**_files_of(kept), **ledger_files}
    return Input(found.path, found.format, found.stamp, sums, files)


def _captured_input(found: FoundInput, results: Sequence[Result]) -> Input:
    parts: defaultdict[str, list[LedgerSum]] = defaultdict(list)
    for each in of_kind(FormatResult, results):
        parts[each.format].append(each.ledger)
    ledger = {format: LedgerSum.total(sums) for format, sums in parts.items()}
    files = _files_of(of_kind(FilesResult, results))
    return Input(found.path, found.format, found.stamp, ledger, files)


def _files_of(results: Iterable[PieceResult | FilesResult]) -> dict[str, list[str]]:
    """Return the files with rows of an input, by table."""
    files: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for each in results:
        for table in each.tables:
            files[table][each.file] = None
    return {table: list(names) for table, names in files.items()}
