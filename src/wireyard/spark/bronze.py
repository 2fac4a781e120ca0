"""The tasks of the bronze stage: pieces of streams in, Parquet files and a manifest out.

No row crosses into the JVM. A task decodes its pieces and writes the rows to files whose names no
other attempt uses; it returns only a few results (`results`). Only files that the driver commits
count, so an attempt that was killed, repeated or run twice leaves nothing in a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import IO, Any, Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.bundled import BundledStreams
from wireyard.captures.directed import CapturedStream
from wireyard.captures.inputs import open_captures
from wireyard.captures.quarantine import (
    QUARANTINE,
    BadBytes,
    BytesOfRows,
    PieceBytes,
    quarantined,
)
from wireyard.captures.read import FrameSpan
from wireyard.captures.stores.read import read_store
from wireyard.captures.stores.rows import SCHEMA as STORE_RECORDS
from wireyard.captures.stores.rows import record_rows
from wireyard.captures.stores.stream import StoreStream
from wireyard.captures.stream import Stream
from wireyard.captures.stream_table import FILES, LEDGER, describe_stream, file_rows
from wireyard.errors import LedgerError, SourceError, WireError
from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.lake.ledgers import (
    LEDGER_FILES,
    LedgerSum,
    StreamLedger,
    ledger_table,
    streams_table,
)
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.packets import Ints
from wireyard.layers.mqtt.packets import Part as TrackedPart
from wireyard.payloads import parse_rules
from wireyard.payloads.columns import PAYLOADS, PayloadTable
from wireyard.spark.captures import CapturePart, describe_endpoints
from wireyard.spark.files import is_missing
from wireyard.spark.indexing import HeaderPiece, write_headers
from wireyard.spark.lake import LakeError, writing
from wireyard.spark.packet_files import PacketFile, packet_file_path
from wireyard.spark.parts import PartFile
from wireyard.spark.results import (
    FailureResult,
    FilesResult,
    FormatResult,
    GoneResult,
    LeftOutResult,
    NoteResult,
    PieceResult,
    Result,
    StreamRows,
    make_manifest,
)
from wireyard.spark.snapshot import open_snapshot
from wireyard.streams.batches import Part
from wireyard.streams.blocks import DirectedStream
from wireyard.streams.framer import MALFORMED, OK, Framer
from wireyard.streams.mapped import map_windows
from wireyard.streams.plan import Plan, make_plan
from wireyard.streams.redaction import Redactor
from wireyard.streams.scan import scan_parts, scan_source, scan_stream
from wireyard.streams.source import Reading, filesystem
from wireyard.streams.split import guess_start
from wireyard.streams.window import windows_of_file

__all__ = [
    "DONE_MARKS",
    "EVIDENCE",
    "FAILURES",
    "FILES_TABLE",
    "HEADERS",
    "PAYLOADS_TABLE",
    "QUARANTINE_TABLE",
    "STORE_RECORDS_TABLE",
    "AnyPiece",
    "BronzeTask",
    "Piece",
    "Settings",
    "make_ledger",
    "packets_table",
    "write_task",
]

HEADERS = "headers"
"""Staged folder of the headers of captures."""
DONE_MARKS = "done"
"""Staged folder with an empty file for each task that is done, named by its number."""
FAILURES: Mapping[str, type[WireError]] = {
    "read": SourceError,
    "write": LakeError,
    "balance": LedgerError,
}
"""Errors that a task returns as a result instead of failing, so that Spark does not retry a missing
file or a full disk four times, and does not bury the message in a traceback."""
QUARANTINE_TABLE, STORE_RECORDS_TABLE = "quarantine", "store_records"
FILES_TABLE, PAYLOADS_TABLE = "files", "payloads"
MQTT: Final = "mqtt"
EVIDENCE: Final = "evidence"
"""Name of the table in the footers of MQTT packets: evidence for the directions of streams."""
_HELD_STREAMS: Final = 1 << 12
"""Ledgers that a task buffers before they are written."""
_GUESS_BYTES = 64 << 10
"""Bytes that are read to guess where a piece begins; more only if they contain no header."""


@dataclass(frozen=True, slots=True)
class Settings:
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
    secret: tuple[int, int] | None = None
    """Secret points of the hashes of MQTT payloads, if tasks write packet files for large inputs
    (`packet_files`)."""


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

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return min(self.stop, self.size) - self.start


AnyPiece = Piece | CapturePart | HeaderPiece


def packets_table(format: str) -> str:
    """Return the name of the bronze table of a format, whatever its dialect."""
    return f"packets_{get_format(format).name}"


def write_task(
    task: tuple[int, Sequence[AnyPiece]], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Decode the pieces of a task and write them; yield the results as rows of `MANIFEST`.

    Parameters
    ----------
    task
        The task's number in the run, and its pieces.
    """
    yield make_manifest(_write_task(*task, settings))


def _write_task(number: int, pieces: Sequence[AnyPiece], settings: Settings) -> list[Result]:
    task = BronzeTask(number, settings, writes_packets=any(map(_is_cut, pieces)))
    try:
        results = [result for piece in pieces for result in task.write_or_skip(piece)]
        task.close()
    except tuple(FAILURES.values()) as error:
        failed = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        return [FailureResult(failed, str(error))]
    return results


def _is_cut(piece: AnyPiece) -> bool:
    """Return whether other tasks read other parts of the same input."""
    if isinstance(piece, CapturePart):
        return piece.of > 1
    return isinstance(piece, Piece) and not (piece.start == 0 and piece.stop >= piece.size)


class BronzeTask:
    """One attempt of a task: its output files, one for each table.

    Parameters
    ----------
    number
        The task's number in the run.
    prefix
        Prefix of the names of its files.
    writes_packets
        Whether to write a packet file for the tasks that track clients.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        prefix: str = "part-",
        *,
        writes_packets: bool = False,
    ) -> None:
        self._number = number
        self._settings = settings
        self._name = f"{prefix}{number:05d}-{uuid4().hex}.parquet"
        self._files: dict[str, PartFile] = {}
        self._redactors: dict[str, Redactor] = {}
        self._rules = parse_rules(settings.payload)
        self._openers: dict[str, PayloadTable] = {}
        self._ledgers: list[StreamLedger] = []
        self._evidence = StreamEvidence()
        self._writes_packets = writes_packets
        self._packets: PacketFile | None = None
        self._writes = 0

    def write_or_skip(self, piece: AnyPiece) -> list[Result]:
        """Write a piece; if its source was deleted and may be, return a `GoneResult`."""
        before = self._writes
        try:
            return list(self.write(piece))
        except SourceError:
            files = piece.files if isinstance(piece, CapturePart) else (piece.source,)
            # Rows of it that are written could not be told from the rows of other pieces.
            if not self._settings.skip_missing or self._writes > before:
                raise
            if not any(map(is_missing, files)):
                raise
            return [GoneResult(piece.source)]

    def write(self, piece: AnyPiece) -> Iterator[Result]:
        """Decode a piece and write its rows; yield the results."""
        if isinstance(piece, Piece):
            yield self._write_piece(piece)
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
            part.index,
            part.keylog,
            part.opened,
        )
        if part.part == 0:  # common to all parts
            for note in filter(None, (found.damage, found.frames_unread)):
                yield NoteResult(part.source, note)
        if found.left_out is not None and found.left_out.lines():
            yield LeftOutResult(part.source, part.part, found.left_out.dump())
        if part.of > 1 and found.endpoints is not None and any(found.endpoints):
            yield describe_endpoints(part, found.endpoints)
        tables = self._write_files(part.source, found.spans) if part.part == 0 else set()
        sums: dict[str, LedgerSum] = {}
        for _, same_format in groupby(found.readables, key=lambda one: one.format.label):
            readables = list(same_format)
            streams = [one.opened for one in readables]
            for content, rows in self._write_captured(readables[0].format, streams, tables):
                facts = describe_stream(content)
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
    ) -> Iterator[tuple[Stream, StreamRows]]:
        """Write the rows of a capture's streams of one format; yield each stream with its counts.

        Parameters
        ----------
        tables
            The tables that have rows of the capture; extended in place.
        """
        plan = self.plan_of(format)
        last: tuple[Stream, StreamRows] | None = None
        for parts, batches in scan_parts((opened, plan) for opened in streams):
            written: list[tuple[Stream, StreamRows]] = []
            bounds = [0]
            for content, rows in _rows_by_stream(parts):
                if last is None or last[0].name != content.name:
                    if last is not None and not written:
                        yield last
                    last = content, StreamRows(format.label, first=0)
                if written and written[-1] is last:  # a stream may have several blocks
                    bounds[-1] += rows
                    continue
                written.append(last)
                bounds.append(bounds[-1] + rows)
            counts = [stream_rows for _, stream_rows in written]
            bad_bytes = [PieceBytes(content) for content, _ in written]
            batch = pa.concat_batches(batches)
            tables |= self.write_streams(format, batch, counts, bounds, bad_bytes)
            yield from written[:-1]
        if last is not None:
            yield last

    def _write_stored(self, part: CapturePart) -> Iterator[Result]:
        tables = self._write_files(part.source)
        sums: dict[str, LedgerSum] = {}
        for file in read_store(part.source):
            if file.failure is not None:
                yield NoteResult(part.source, str(file.failure))
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
        tables = streams_table(self._ledgers), ledger_table(self._ledgers)
        for name, table in zip(LEDGER_FILES, tables, strict=True):
            for batch in table.to_batches():
                self._file(name, table.schema).write(batch)
        self._ledgers.clear()

    def plan_of(self, format: Format) -> Plan:
        """Return the plan for reading streams of a format."""
        limit = self._settings.max_packet_bytes
        return make_plan(format, max_packet_bytes=limit, captured=True)

    def _write_piece(self, piece: Piece) -> PieceResult:
        format = get_format(piece.format)
        plan = self.plan_of(format)
        result = PieceResult(piece.format, source=piece.source, start=piece.start, file=self._name)
        result.first = piece.start if piece.exact else _guess(piece, plan)
        if result.first is None:
            return result
        result.end = result.first
        framer = plan.framer(result.first, piece.context)
        tables: set[str] = set()
        with closing(BadBytes(piece.source)) as bad_bytes:
            for batch in _batches(piece, plan, framer, result):
                tables |= self.write_batch(format, batch, result, bad_bytes)
        result.next_context = framer.context
        if piece.start == 0:
            tables |= self._write_files(piece.source)
        result.tables = sorted(tables)
        return result

    @property
    def files(self) -> dict[str, list[str]]:
        """The written files, by table."""
        return {table: [self._name] for table in self._files}

    def close(self) -> None:
        """Finish the files, and mark the task as done."""
        self._write_ledgers()
        if packets := self._files.get(packets_table(MQTT)):
            packets.put_in_footer(EVIDENCE, self._evidence.table())
        if self._packets is not None:
            self._packets.close()
        for file in self._files.values():
            file.close()
        mark = f"{self._settings.staging}/{DONE_MARKS}/{self._number}"
        with writing(mark):
            system, inner = filesystem(mark)
            system.open_output_stream(inner).close()

    def write_batch(
        self, format: Format, batch: pa.RecordBatch, rows: StreamRows, bad_bytes: BytesOfRows
    ) -> set[str]:
        """Write and count rows of one stream; return the tables that got rows."""
        return self.write_streams(format, batch, [rows], [0, batch.num_rows], [bad_bytes])

    def write_streams(
        self,
        format: Format,
        batch: pa.RecordBatch,
        streams: Sequence[StreamRows],
        bounds: Sequence[int],
        bad_bytes: Sequence[BytesOfRows],
    ) -> set[str]:
        """Write rows of several streams, and add them to the counts in `streams`.

        Rows of stream k begin at ``bounds[k]``.

        Returns
        -------
        tables
            The tables that got rows.
        """
        bad = _count(batch, streams, bounds)
        touched: Any = ()
        if not self._settings.secrets:
            redactor = self._redactors.setdefault(format.name, Redactor(format))
            batch, touched = redactor.redact(batch)
        tables = {packets_table(format.name)}
        self._file(packets_table(format.name), batch.schema).write(batch)
        if format.name == MQTT:
            self._write_packets(batch, self._evidence.add_batch(batch))
        if self._rules:
            opener = self._openers.get(format.name)
            if opener is None:
                opener = self._openers[format.name] = PayloadTable(format, self._rules)
            opened = opener.rows(batch)
            if opened.num_rows:
                self._file(PAYLOADS_TABLE, PAYLOADS).write(opened)
                tables.add(PAYLOADS_TABLE)
        # Bytes between the packets of a store have no error, and are not quarantined.
        bad = bad[batch["error"].take(bad).is_valid().to_numpy(zero_copy_only=False)]
        owners = np.searchsorted(bounds, bad, "right") - 1
        for owner in np.unique(owners).tolist():
            rows = quarantined(batch, bad[owners == owner], set(touched), bad_bytes[owner])
            self._file(QUARANTINE_TABLE, QUARANTINE).write(rows)
            tables.add(QUARANTINE_TABLE)
        return tables

    def _write_packets(self, batch: pa.RecordBatch, stream: Ints) -> None:
        """Write packets to the packet file; `stream` is the stream number of each."""
        secret = self._settings.secret
        if secret is None or not self._writes_packets:
            return
        if self._packets is None:
            path = packet_file_path(self._settings.staging, self._name)
            self._packets = PacketFile(path, secret)
        table = pa.Table.from_batches([batch])
        self._packets.add(TrackedPart.of(table, stream, secret, first=self._packets.rows))

    def _file(self, table: str, schema: pa.Schema) -> PartFile:
        self._writes += 1
        if table not in self._files:
            path = f"{self._settings.staging}/{table}/{self._name}"
            self._files[table] = PartFile(path, schema)
        return self._files[table]


def make_ledger(
    source: str,
    stream: str,
    written: Sequence[StreamRows],
    read: int,
    facts: Mapping[str, Any] = MappingProxyType({}),
    format: str | None = None,
) -> StreamLedger:
    """Return the ledger of a stream from the counts of all its rows, in stream order.

    Parameters
    ----------
    read
        Number of bytes of the stream, gaps included.
    facts
        Further columns of the table `streams`, for a stream of a capture.
    format
        The format of a stream without rows.

    Raises
    ------
    LedgerError
        A byte is in no row, or in two.
    """
    total = {count: sum(getattr(each, count) for each in written) for count in LEDGER[1:]}
    gaps = sum(each.bytes_gap for each in written)
    name = source if stream == source else f"{source}, {stream}"
    position = 0
    for each in written:
        if each.first != position or each.broken_at is not None:
            at = position if each.first != position else each.broken_at
            raise LedgerError(f"{name}: rows do not follow each other at offset {at}")
        position = each.end
    counted = gaps + sum(total[count] for count in total if count.startswith("bytes_"))
    if not counted == position == read:
        raise LedgerError(f"{name}: out of balance, {read} bytes were read, {counted} are in rows")
    format = next((each.format for each in written if each.format), format)
    counts = {"bytes_read": read - gaps, **total}
    return StreamLedger(source, stream, format, counts, {**facts, "bytes_gap": gaps})


def _batches(
    piece: Piece, plan: Plan, framer: Framer, result: PieceResult
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece from the framer's position on."""
    mapped = map_windows(piece.source, framer.position, piece.size)
    if mapped is not None:
        yield from scan_stream(mapped, plan, framer, piece.stop)
        result.reached = piece.size
        return
    with open_snapshot(piece.source, piece.size) as file:
        yield from scan_source(cast(IO[bytes], file), plan, framer=framer, limit=piece.stop)
        result.reached = file.reached


def _guess(piece: Piece, plan: Plan) -> int | None:
    with open_snapshot(piece.source, piece.size) as file:
        file.seek(piece.start)
        opened = Reading(file, ours=False)
        windows = windows_of_file(opened, file.name, piece.start, _GUESS_BYTES)
        return guess_start(windows, plan.format, piece.stop, plan.max_packet_bytes)


def _rows_by_stream(parts: Sequence[Part]) -> Iterator[tuple[Stream, int]]:
    """Yield the streams in some blocks of a capture, each with its number of rows."""
    for opened, block in parts:
        if isinstance(opened, BundledStreams):
            assert block.owners is not None
            yield from opened.rows_by_stream(block.owners)
        else:
            assert isinstance(opened, CapturedStream)
            yield opened.captured, len(block.offsets)


def _count(batch: pa.RecordBatch, streams: Sequence[StreamRows], bounds: Sequence[int]) -> Any:
    """Add a batch to the counts of its streams; return the numbers of rows that are no packets."""
    starts, lengths = batch["offset"].to_numpy(), batch["length"].to_numpy()
    begins = np.array(bounds[:-1])
    stops = starts + lengths
    expected = np.concatenate([[0], stops[:-1]])
    expected[begins] = [each.end for each in streams]
    bad = np.flatnonzero(pc.not_equal(batch["status"], OK).to_numpy(zero_copy_only=False))
    good = np.ones(len(starts), np.int64)
    good[bad] = 0
    packets, sizes = np.add.reduceat(good, begins), np.add.reduceat(lengths * good, begins)
    ends = stops[np.array(bounds[1:]) - 1]
    counts = zip(packets.tolist(), sizes.tolist(), ends.tolist(), pairwise(bounds), strict=True)
    for each, (count, size, end, (first, last)) in zip(streams, counts, strict=True):
        each.end = end
        each.rows += last - first
        each.packets_ok += count
        each.bytes_ok += size
    for row in np.flatnonzero(starts != expected).tolist():
        owner = streams[bisect_right(bounds, row) - 1]
        if owner.broken_at is None:
            owner.broken_at = int(starts[row])
    for row in bad.tolist():
        owner = streams[bisect_right(bounds, row) - 1]
        status = batch["status"][row].as_py()
        owner.packets_malformed += status == MALFORMED
        bucket = f"bytes_{status}"
        setattr(owner, bucket, getattr(owner, bucket) + int(lengths[row]))
    return bad
