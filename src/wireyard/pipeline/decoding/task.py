"""The tasks of the bronze stage: pieces of streams in, Parquet files and a few results out.

No row crosses into the JVM. A task decodes its pieces and writes the rows to files whose names no
other attempt uses; it returns only a few results (`results`). Only files that the driver commits
count, so an attempt that was killed, repeated or run twice leaves nothing in a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa

from wireyard.arrays import Ints
from wireyard.captures.bundled import BundledStreams
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.directed import CapturedStream
from wireyard.captures.index import IndexedExtent
from wireyard.captures.inputs import open_captures
from wireyard.captures.quarantine import (
    QUARANTINE,
    BadBytes,
    BytesOfRows,
    PartBytes,
    PieceBytes,
    bad_rows,
    quarantined,
)
from wireyard.captures.read import FrameSpan
from wireyard.captures.records import describe_damage
from wireyard.captures.stores.read import read_store
from wireyard.captures.stores.rows import SCHEMA as STORE_RECORDS
from wireyard.captures.stores.rows import record_rows
from wireyard.captures.stores.stream import StoreStream
from wireyard.captures.stream_table import FILES, describe_stream, file_rows
from wireyard.errors import SourceError
from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.lake.ledgers import (
    LEDGER_FILES,
    LedgerSum,
    StreamLedger,
    ledger_table,
    streams_table,
)
from wireyard.lake.parts import PartFile
from wireyard.layers.mqtt.facts import EVIDENCE
from wireyard.payloads import parse_rules
from wireyard.payloads.columns import PAYLOADS, PayloadTable
from wireyard.pipeline.decoding.balance import RowCounts, count_rows, make_ledger, make_ledgers
from wireyard.pipeline.decoding.indexing import HeaderPiece, write_headers
from wireyard.pipeline.decoding.results import (
    FAILURES,
    FailureResult,
    FilesResult,
    FormatResult,
    GoneResult,
    LeftOutResult,
    NoteResult,
    PieceResult,
    Result,
    StreamRows,
)
from wireyard.pipeline.inputs.captures import CapturePart, describe_endpoints
from wireyard.pipeline.inputs.listing import is_missing
from wireyard.pipeline.inputs.snapshot import open_snapshot
from wireyard.streams.blocks import Block, DirectedStream
from wireyard.streams.mapped import map_windows
from wireyard.streams.plan import Plan, make_plan
from wireyard.streams.redaction import Redactor
from wireyard.streams.scan import (
    OpenedStream,
    open_windows,
    scan_parts,
    scan_stream,
    thread_count,
)
from wireyard.streams.source import Reading
from wireyard.streams.split import guess_start
from wireyard.streams.window import windows_of_file

if TYPE_CHECKING:
    from wireyard.layers.mqtt.evidence import StreamEvidence

HEADERS = "headers"
"""Staged folder of the headers of captures."""
QUARANTINE_TABLE, STORE_RECORDS_TABLE = "quarantine", "store_records"
FILES_TABLE, PAYLOADS_TABLE = "files", "payloads"
MQTT: Final = "mqtt"
_HELD_STREAMS: Final = 1 << 12
"""Ledgers that a task buffers before they are written."""
_GUESS_BYTES = 64 << 10
"""Bytes that are read to guess where a piece begins; more only if they contain no header."""


@dataclass(frozen=True, slots=True)
class BronzeSettings:
    """Settings common to all tasks of a run."""

    staging: str
    """Folder of the run's staged tables: a path or URL that every task can write to."""
    secrets: bool = False
    """Whether passwords stay in the rows."""
    max_packet_bytes: int | None = None
    skip_missing: bool = False
    """Whether to leave out an input that was deleted."""
    payload: tuple[str, ...] = ()
    """Rules by which payloads are decoded."""
    has_all_cores: bool = False
    """Whether a task runs alone, so that it decodes with several threads."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a stream that begin in ``[start, stop)``."""

    source: str
    format: str
    start: int
    stop: int
    size: int
    """Size of the source when it was found; later bytes are not read."""
    exact: bool
    """Whether a frame is known to begin at `start`; else the task guesses where one does."""
    context: int
    """Context of a frame that begins at `start`."""
    location: str | None = None
    """Path or URL by which the stream is opened, if that is not `source`."""

    @property
    def path(self) -> str:
        """Path or URL by which the stream is opened."""
        return self.location or self.source

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return min(self.stop, self.size) - self.start


AnyPiece = Piece | CapturePart | HeaderPiece


def packets_table(format: str) -> str:
    """Return the name of the bronze table of a format, whatever its dialect."""
    return f"packets_{get_format(format).name}"


def write_task(task: tuple[int, Sequence[AnyPiece]], settings: BronzeSettings) -> list[Result]:
    """Decode the pieces of a task, which comes with its number in the run; return the results."""
    number, pieces = task
    opened = BronzeTask(number, settings)
    try:
        results = [result for piece in pieces for result in opened.write_or_skip(piece)]
        opened.close()
    except tuple(FAILURES.values()) as error:
        return [FailureResult.of(error)]
    return results


def _path(piece: Piece | HeaderPiece) -> str:
    return piece.path if isinstance(piece, Piece) else piece.source


class BronzeTask:
    """One attempt of a task: its output files, one for each table.

    `number` is the task's number in the run; the names of its files begin with `prefix`.
    """

    def __init__(self, number: int, settings: BronzeSettings, prefix: str = "part-") -> None:
        self._number = number
        self._settings = settings
        self._name = f"{prefix}{number:05d}-{uuid4().hex}.parquet"
        self._files: dict[str, PartFile] = {}
        self._rules = parse_rules(settings.payload)
        self._openers: dict[str, PayloadTable] = {}
        self._ledgers: list[StreamLedger] = []
        self._writes = 0

    @cached_property
    def _evidence(self) -> StreamEvidence:
        """The evidence in MQTT packets, whose code is loaded when the first occur."""
        from wireyard.layers.mqtt.evidence import StreamEvidence

        return StreamEvidence()

    def write_or_skip(self, piece: AnyPiece) -> list[Result]:
        """Write a piece; if its source was deleted and may be, return a `GoneResult`."""
        before = self._writes
        try:
            return list(self.write(piece))
        except SourceError:
            files = piece.files if isinstance(piece, CapturePart) else (_path(piece),)
            # Rows of it that are written could not be distinguished from those of other pieces.
            if not self._settings.skip_missing or self._writes > before:
                raise
            if not any(map(is_missing, files)):
                raise
            return [GoneResult(piece.source)]

    def write(self, piece: AnyPiece) -> Iterator[Result]:
        """Decode a piece and write its rows; yield the results."""
        if isinstance(piece, Piece):
            yield from self._write_piece(piece)
        elif isinstance(piece, HeaderPiece):
            path = f"{self._settings.staging}/{HEADERS}/{uuid4().hex}.arrow"
            headers = write_headers(piece, path)
            if headers is not None:
                yield headers
        elif piece.stored:
            yield from self._write_stored(piece)
        else:
            yield from self._write_capture(piece)

    def _write_capture(self, part: CapturePart) -> Iterator[Result]:
        named = get_format(part.format) if part.format else None
        share = part.part, part.of
        found = open_captures(
            part.files,
            named,
            part.decode_as,
            share,
            part.source,
            [IndexedExtent(*each) for each in part.index],
            part.keylog,
            [(Endpoint(address, port), format) for address, port, format in part.opened],
        )
        if part.part == 0:  # common to all parts
            if found.damage:
                yield NoteResult(part.source, found.damage, lost=True)
            if found.frames_unread:
                yield NoteResult(part.source, found.frames_unread, lost=found.is_cut)
        if found.left_out is not None:
            yield LeftOutResult(part.source, part.part, found.left_out)
        if part.of > 1 and found.endpoints is not None and any(found.endpoints):
            yield describe_endpoints(part, found.endpoints)
        tables = self._write_files(part.source, found.spans) if part.part == 0 else set()
        sums: dict[str, LedgerSum] = {}
        for _, same_format in groupby(found.readables, key=lambda one: one.format.label):
            readables = list(same_format)
            format, streams = readables[0].format, [one.opened for one in readables]
            written = self._write_captured(format, streams, tables)
            for _, blocks in groupby(written, key=lambda each: id(each[0])):
                rows = StreamRows(format.label, first=0)
                for opened, block, counts in blocks:
                    if isinstance(opened, BundledStreams):
                        ours = part.source, found.stated, format, opened, block
                        self._close_bundled(*ours, counts, sums)
                    else:  # it may have several blocks
                        rows.add(counts.of_stream(0))
                if isinstance(opened, CapturedStream):
                    content = opened.captured
                    facts = {**describe_stream(content), **found.stated}
                    ledger = make_ledger(part.source, content.name, [rows], content.size, facts)
                    self._close_stream(ledger, sums)
        yield from self._results_of(part, sums, tables)

    def _write_files(self, source: str, spans: Sequence[FrameSpan] = ()) -> set[str]:
        """Write the rows of a source in the table `files`; return the table's name, as a set."""
        rows = pa.RecordBatch.from_pylist(file_rows(source, spans), FILES)
        self._file(FILES_TABLE, FILES).write(rows)
        return {FILES_TABLE}

    def _write_captured(
        self, format: Format, streams: Sequence[DirectedStream], tables: set[str]
    ) -> Iterator[tuple[DirectedStream, Block, RowCounts]]:
        """Write the rows of a capture's streams of one format; yield each block with its counts.

        `tables` is extended in place by the tables that get rows.
        """
        plan, threads = self.plan_of(format), self._threads(format, captured=True)
        for decoded in scan_parts(((opened, plan) for opened in streams), threads):
            rows = [block.stream_rows for _, block in decoded.parts]
            bounds = np.concatenate([[0], np.cumsum(np.concatenate(rows))])
            bad_bytes, batch = PartBytes(decoded.parts), pa.concat_batches(decoded.batches)
            counts, written = self.write_streams(format, batch, bounds, bad_bytes.of_row)
            tables |= written
            first = 0
            for (opened, block), of_block in zip(decoded.parts, rows, strict=True):
                last = first + len(of_block)
                yield opened, block, counts.of_streams(first, last)
                first = last

    def _write_stored(self, part: CapturePart) -> Iterator[Result]:
        tables = self._write_files(part.source)
        sums: dict[str, LedgerSum] = {}
        for file in read_store(part.source):
            if file.failure is not None:
                yield NoteResult(part.source, str(file.failure), lost=True)
            opened = file.stream
            if opened is not None:
                rows = self._write_stream(opened.format, opened, tables)
                ledger = make_ledger(part.source, opened.stream, [rows], opened.size)
            else:
                size = len(file.data)
                rows = StreamRows(first=0, end=size, bytes_gap=size)
                ledger = make_ledger(part.source, file.name, [rows], size)
            records = pa.RecordBatch.from_pylist(list(record_rows(file)), STORE_RECORDS)
            if records.num_rows:
                self._file(STORE_RECORDS_TABLE, STORE_RECORDS).write(records)
                tables.add(STORE_RECORDS_TABLE)
            self._close_stream(ledger, sums)
        yield from self._results_of(part, sums, tables)

    def _write_stream(self, format: Format, opened: StoreStream, tables: set[str]) -> StreamRows:
        rows = StreamRows(format.label, first=0)
        bad_bytes = PieceBytes(opened)
        for batch in scan_stream(opened, self.plan_of(format)):
            tables |= self.write_batch(format, batch, rows, bad_bytes)
        return rows

    def _close_bundled(
        self,
        source: str,
        stated: Mapping[str, Any],
        format: Format,
        bundle: BundledStreams,
        block: Block,
        counts: RowCounts,
        sums: dict[str, LedgerSum],
    ) -> None:
        """Write the ledgers of the streams in a block of a bundle, as `_close_stream` does."""
        self._write_ledgers()
        described, sizes = bundle.describe(block), bundle.sizes_in(block)
        made = make_ledgers(source, format.label, described, stated, counts, sizes)
        self._write_tables(made.streams, made.ledger)
        sums[format.label] = LedgerSum.total([sums.get(format.label, LedgerSum()), made.total])

    def _close_stream(self, ledger: StreamLedger, sums: dict[str, LedgerSum]) -> None:
        """Write the ledger of a complete stream; add it to the sum of its format."""
        self._ledgers.append(ledger)
        if len(self._ledgers) == _HELD_STREAMS:
            self._write_ledgers()
        format = ledger.format or ""
        sums[format] = LedgerSum.total([sums.get(format, LedgerSum()), LedgerSum.of(ledger)])

    def _results_of(
        self, part: CapturePart, sums: Mapping[str, LedgerSum], tables: set[str]
    ) -> Iterator[Result]:
        """Yield the results of a capture: its ledgers by format, and the tables that have rows."""
        for format, total in sums.items():
            yield FormatResult(part.source, format, total, part.part)
        if sums:
            tables = tables.union(LEDGER_FILES)
        if tables:
            yield FilesResult(part.source, self._name, sorted(tables), part.part)

    def _write_ledgers(self) -> None:
        self._write_tables(streams_table(self._ledgers), ledger_table(self._ledgers))
        self._ledgers.clear()

    def _write_tables(self, *tables: pa.Table) -> None:
        """Write rows of the tables `LEDGER_FILES`."""
        for name, table in zip(LEDGER_FILES, tables, strict=True):
            for batch in table.to_batches():
                self._file(name, table.schema).write(batch)

    def plan_of(self, format: Format) -> Plan:
        """Return the plan for reading streams of a format."""
        limit = self._settings.max_packet_bytes
        return make_plan(format, max_packet_bytes=limit, captured=True)

    def _threads(self, format: Format, *, captured: bool) -> int:
        return thread_count(format, captured=captured) if self._settings.has_all_cores else 1

    def _write_piece(self, piece: Piece) -> Iterator[Result]:
        format = get_format(piece.format)
        plan = self.plan_of(format)
        result = PieceResult(piece.format, source=piece.source, start=piece.start, file=self._name)
        result.first = piece.start if piece.exact else _guess(piece, plan)
        if result.first is None:
            yield result
            return
        result.end = result.first
        framer = plan.framer(result.first, piece.context)
        threads = self._threads(format, captured=False)
        tables: set[str] = set()
        with (
            closing(BadBytes(piece.path)) as bad_bytes,
            _opened(piece, framer.position, result) as opened,
        ):
            for batch in scan_stream(opened, plan, framer, piece.stop, threads):
                tables |= self.write_batch(format, batch, result, bad_bytes)
        result.next_context = framer.context
        if piece.start == 0:
            tables |= self._write_files(piece.source)
        result.tables = sorted(tables)
        yield result
        if (damage := opened.damage) is not None:
            note = describe_damage(damage, damage.unread_bytes)
            yield NoteResult(piece.source, note, lost=True)

    @property
    def files(self) -> dict[str, list[str]]:
        """The written files, by table."""
        return {table: [self._name] for table in self._files}

    def close(self) -> None:
        """Finish the files."""
        self._write_ledgers()
        if packets := self._files.get(packets_table(MQTT)):
            packets.put_in_footer(EVIDENCE, self._evidence.table())
        for file in self._files.values():
            file.close()

    def write_batch(
        self, format: Format, batch: pa.RecordBatch, rows: StreamRows, bad_bytes: BytesOfRows
    ) -> set[str]:
        """Write and count rows of one stream; return the tables that got rows."""
        bounds = np.array([0, batch.num_rows])
        counts, tables = self.write_streams(format, batch, bounds, lambda _: bad_bytes)
        rows.add(counts.of_stream(0))
        return tables

    def write_streams(
        self,
        format: Format,
        batch: pa.RecordBatch,
        bounds: Ints,
        bad_bytes: Callable[[int], BytesOfRows],
    ) -> tuple[RowCounts, set[str]]:
        """Write rows of several streams; those of stream k begin at row ``bounds[k]``.

        Return the counts of each stream, and the tables that got rows. `bad_bytes` returns the
        bytes of the stream of a row.
        """
        counts = count_rows(batch, bounds)
        secrets = self._settings.secrets
        if not secrets:
            batch = Redactor(format).redact(batch)
        tables = {packets_table(format.name)}
        self._file(packets_table(format.name), batch.schema).write(batch)
        if format.name == MQTT:
            self._evidence.add_batch(batch)
        if self._rules:
            opener = self._openers.get(format.name)
            if opener is None:
                opener = self._openers[format.name] = PayloadTable(format, self._rules)
            opened = opener.rows(batch)
            if opened.num_rows:
                self._file(PAYLOADS_TABLE, PAYLOADS).write(opened)
                tables.add(PAYLOADS_TABLE)
        bad = bad_rows(batch)
        if len(bad):
            rows = quarantined(format, batch, bad, bad_bytes, secrets=secrets)
            self._file(QUARANTINE_TABLE, QUARANTINE).write(rows)
            tables.add(QUARANTINE_TABLE)
        return counts, tables

    def _file(self, table: str, schema: pa.Schema) -> PartFile:
        self._writes += 1
        if table not in self._files:
            path = f"{self._settings.staging}/{table}/{self._name}"
            self._files[table] = PartFile(path, schema)
        return self._files[table]


@contextmanager
def _opened(piece: Piece, start: int, result: PieceResult) -> Iterator[OpenedStream]:
    """Open the stream of a piece from an offset on; at the end set how far it was read."""
    mapped = map_windows(piece.path, start, piece.size)
    if mapped is not None:
        yield replace(mapped, name=piece.source)
        result.reached = piece.size
        return
    with open_snapshot(piece.path, piece.size) as file:
        opened = open_windows(cast(IO[bytes], file), start, accepts_damage=True)
        yield replace(opened, name=piece.source)
        result.reached = file.reached


def _guess(piece: Piece, plan: Plan) -> int | None:
    with open_snapshot(piece.path, piece.size) as file:
        file.seek(piece.start)
        opened = Reading(file, ours=False)
        windows = windows_of_file(opened, file.name, piece.start, _GUESS_BYTES)
        return guess_start(windows, plan.format, piece.stop, plan.max_packet_bytes)
