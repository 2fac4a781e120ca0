"""Growing inputs: the rows of each new part, and the state from which the next part is read.

Rules of this file:

1. Final rows are in files of their own. Rows that may still change are in provisional files, which
   the next part replaces (`OPEN_PREFIX`): ledgers of open streams, and rows that are written as if
   the input had ended, such as an unfinished packet.
2. The next part starts from a state that is committed with the rows (`OPEN_STATES`): JSON and
   arrays, checked when they are read. It holds open connections, unfinished packets and bytes that
   wait for others.
3. Time is the time of the packets. Bytes behind lost ones wait by the capture's clock, never by the
   wall clock, so the same state and the same bytes always give the same rows.
4. A file is continued if its identity and the bytes that were read are unchanged. Otherwise, or if
   the state is damaged, the input counts as changed and is read again as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.captures.directed import CapturedStream
from wireyard.captures.live.following import BareStream
from wireyard.captures.live.state import KINDS, StateError, pack_state, unpack_state
from wireyard.captures.quarantine import SHOWN_BYTES, PieceBytes
from wireyard.captures.read import FrameSpan
from wireyard.formats import get_format
from wireyard.lake.ledgers import LedgerSum, StreamLedger
from wireyard.pipeline.decoding.balance import make_ledger
from wireyard.pipeline.decoding.results import StreamRows
from wireyard.pipeline.decoding.task import BronzeTask
from wireyard.pipeline.growing.readers import CaptureReader, GrowthSettings, StreamReader
from wireyard.pipeline.growing.sources import GrowingFiles, is_rotated
from wireyard.streams.blocks import by_format
from wireyard.streams.scan import scan_grown
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from wireyard.formats.base import Format
    from wireyard.streams.batches import DecodedParts
    from wireyard.streams.blocks import Grown
    from wireyard.streams.framer import Framer

_READ_BYTES: Final = 16 << 20
OPEN_STATE: Final = pa.schema(
    [
        ("source", pa.string()),
        ("kind", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("data", pa.binary()),
    ]
)
"""The table of states: for each source a row of JSON, a row for each array in it, and others."""
StateRow = tuple[str, list[int], bytes]
"""The kind, the shape and the data of a row."""
_JSON: Final = "json"
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
FACTS: Final = "facts"
"""The kind of the row, JSON too, that records how far facts are made."""

_ReadBuffered = Callable[[int, int], bytes]
"""Return the bytes ``[start, stop)`` of a stream, or as many of the first as are buffered."""


@dataclass(slots=True)
class _OpenStream:
    """An open stream, and the counts of its rows so far."""

    rows: StreamRows
    garbage_at: int = -1
    """Offset of the garbage that is unfinished when a turn ends."""
    garbage_head: bytes = b""
    """The first bytes of that garbage, which are no longer buffered."""

    def keep_garbage_head(self, framer: Framer, read: _ReadBuffered) -> None:
        """Keep the first bytes of unfinished garbage, before the buffer drops them."""
        if framer.is_aligned:
            return
        if self.garbage_at != framer.frame_start:
            self.garbage_at, self.garbage_head = framer.frame_start, b""
        if len(self.garbage_head) < SHOWN_BYTES:
            start = self.garbage_at + len(self.garbage_head)
            self.garbage_head += read(start, self.garbage_at + SHOWN_BYTES)


class _GrowingBadBytes:
    """The first bytes of bad rows: buffered ones, and those kept of unfinished garbage."""

    def __init__(self, stream: _OpenStream, opened: Any, read: _ReadBuffered) -> None:
        self._stream, self._opened, self._read = stream, opened, read

    def read(self, start: int, length: int) -> bytes:
        """Return the first bytes of the row at offset `start` of its stream."""
        stream = self._stream
        head = stream.garbage_head if start == stream.garbage_at else b""
        stop = start + length
        if start + len(head) >= stop:
            return head[: stop - start]
        if isinstance(self._opened, CapturedStream) and not head:
            return PieceBytes(self._opened.captured).read(start, length)
        return head + self._read(start + len(head), stop)


def _buffer_reader(opened: Any) -> _ReadBuffered:
    """Return the function that reads the buffered bytes of a stream."""
    if isinstance(opened, BareStream):
        return opened.held()
    return partial(_captured_bytes, opened)


def _captured_bytes(opened: CapturedStream, start: int, stop: int) -> bytes:
    pieces = opened.captured.pieces
    number = int(np.searchsorted(pieces[:, 0], start, "right")) - 1
    if number < 0 or start >= pieces[number, 1]:
        return b""
    return opened.captured.read(start, min(stop, int(pieces[number, 1]))).tobytes()


@dataclass(slots=True)
class GrowingInput:
    """A growing input of local files, read part by part.

    `source` is its name in the lake: its path, or the folder of a rotated capture. `format` is the
    label of its format; None for a capture of any formats. `paths` are the files of a capture;
    empty for a bare stream.
    """

    source: str
    format: str | None
    paths: tuple[str, ...]
    settings: GrowthSettings
    replaces: bool = True
    """Whether its rows replace those that the lake has: they are of another file, or read again."""
    new_ledgers: list[StreamLedger] = field(default_factory=list)
    """Ledgers of the streams that have ended in this part."""
    new_spans: list[FrameSpan] = field(default_factory=list)
    """Files of a rotated capture that were read to their ends in this part."""
    _tables: set[str] = field(default_factory=set)
    """The tables that have got rows since `take_tables`."""
    _ended: dict[str, LedgerSum] = field(default_factory=dict)
    """Sums of the ledgers of ended streams, by format."""
    _open: dict[str, _OpenStream] = field(default_factory=dict)
    _descriptions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By stream: the columns of the table `streams` that a capture shows."""
    _files: Any = None
    _frames_before: int = 0
    """Frames of a capture in files that were read to their ends."""
    _reader: Any = None

    def open(self) -> None:
        """Prepare to read from the beginning, or to restore a state.

        A `SourceError` is raised if the input cannot be read.
        """
        self._files = GrowingFiles(self.source, rotated=is_rotated(self.source, self.paths))
        named = get_format(self.format) if self.format else None
        if self.paths:
            self._reader = CaptureReader(self._files, named, self.settings)
        else:
            assert named is not None
            self._reader = StreamReader(self.source, named, self.settings)

    def close(self) -> None:
        """Close it."""
        self._files.close()

    @property
    def position(self) -> int:
        """Number of bytes that were read."""
        return int(self._files.position)

    @property
    def now_ns(self) -> int | None:
        """Time of the last frame that was read; None for a bare stream."""
        time_ns: int | None = self._reader.now_ns
        return time_ns

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that were not read yet, at the last `refresh`."""
        return int(self._files.unread_bytes)

    def refresh(self, paths: Iterable[str]) -> None:
        """Update the list of files and their sizes.

        A `StateError` is raised if the bytes that were read have changed, a `SourceError` if a file
        cannot be read.
        """
        self._files.refresh(paths)

    def read(self, stop: int, task: BronzeTask) -> None:
        """Read up to byte `stop`, and write the rows that are complete now.

        A `SourceError` is raised if the input cannot be read, a `LedgerError` if the rows of a
        stream do not follow each other.
        """
        while (left := stop - self.position) > 0:
            data = self._files.read(min(left, _READ_BYTES))
            if data:
                for turn in self._reader.receive(data):
                    self._write(turn, task)
            elif not self._next_file(task):
                break
        self._close_ended_streams()

    def _next_file(self, task: BronzeTask) -> bool:
        """Continue with the next file of a rotated capture; return whether there is one."""
        path = self._files.path
        if not self._files.next_file():
            return False
        for turn in self._reader.next_file():
            self._write(turn, task)
        self.new_spans.append(self._span(path))
        self._frames_before = self._reader.frames
        return True

    def _span(self, path: str) -> FrameSpan:
        before = self._frames_before
        frames = self._reader.frames - before
        return FrameSpan(path, before + 1, frames, self._reader.last_ns if frames else None)

    def end(self, task: BronzeTask) -> list[str]:
        """Write the rest as if the input had ended; return notes for the user.

        The input cannot be continued after that; take its state before.
        """
        for turn in self._reader.end():
            self._write(turn, task)
        descriptions, _ = self._reader.describe_streams()
        self._descriptions |= descriptions
        notes: list[str] = self._reader.notes()
        return notes

    def take_tables(self) -> set[str]:
        """Return the tables that have got rows of it since the last call."""
        tables, self._tables = self._tables, set()
        return tables

    def stamp(self) -> dict[str, Any]:
        """Return the stamp of the input as far as it was read: see `FoundInput`."""
        stamp: dict[str, Any] = self._files.stamp()
        return stamp

    def ledger(self) -> dict[str, LedgerSum]:
        """Return the sums of the ledgers of all streams so far, by format."""
        sums = dict(self._ended)
        for ledger in self.open_ledgers():
            _add(sums, ledger)
        return sums

    def open_spans(self) -> list[FrameSpan]:
        """Return the file of a capture that is being read, and files without a packet."""
        if not self.paths:
            return []
        empty = [FrameSpan(path, 1, 0) for path in sorted(self._files.without_packets)]
        return [*empty, self._span(self._files.path)]

    def open_ledgers(self) -> list[StreamLedger]:
        """Return the ledgers of streams that may still grow."""
        return [self._ledger(stream) for stream in self._open]

    def _write(self, turn: list[Grown], task: BronzeTask) -> None:
        """Write the rows of the streams that have new bytes."""
        for format, streams in by_format(turn):
            # Before `blocks`, which empties the buffers.
            buffered = {one.opened.stream: _buffer_reader(one.opened) for one in streams}
            for decoded in scan_grown(streams, task.plan_of(format)):
                self._write_rows(format, decoded, buffered, task)
            for one in streams:
                stream = self._open_stream(format, one.opened)
                stream.keep_garbage_head(one.framer, buffered[one.opened.stream])

    def _write_rows(
        self,
        format: Format,
        decoded: DecodedParts,
        buffered: Mapping[str, _ReadBuffered],
        task: BronzeTask,
    ) -> None:
        """Write the rows of blocks; the blocks of a stream are adjacent."""
        opened: list[Any] = []
        bounds = [0]
        for stream, block in decoded.parts:
            if opened and opened[-1] is stream:
                bounds[-1] += len(block.offsets)
            elif len(block.offsets):
                opened.append(stream)
                bounds.append(bounds[-1] + len(block.offsets))
        if opened:
            streams = [self._open_stream(format, each) for each in opened]
            bad_bytes = [
                _GrowingBadBytes(stream, each, buffered[each.stream])
                for stream, each in zip(streams, opened, strict=True)
            ]
            batch = pa.concat_batches(decoded.batches)
            counts, tables = task.write_streams(
                format,
                batch,
                np.array(bounds),
                lambda row: bad_bytes[bisect_right(bounds, row) - 1],
            )
            self._tables |= tables
            for number, each in enumerate(streams):
                each.rows.add(counts.of_stream(number))

    def _open_stream(self, format: Format, opened: Any) -> _OpenStream:
        stream = self._open.get(opened.stream)
        if stream is None:
            stream = _OpenStream(StreamRows(format.label, first=0))
            self._open[opened.stream] = stream
        return stream

    def _close_ended_streams(self) -> None:
        """Write the final ledgers of streams that have ended."""
        descriptions, ended = self._reader.describe_streams()
        self._descriptions |= descriptions
        for stream in ended & self._open.keys():
            ledger = self._ledger(stream)
            self.new_ledgers.append(ledger)
            _add(self._ended, ledger)
            del self._open[stream]
        for stream in ended:
            self._descriptions.pop(stream, None)

    def _ledger(self, stream: str) -> StreamLedger:
        rows = self._open[stream].rows
        description = self._descriptions.get(stream, {})
        return make_ledger(self.source, stream, [rows], rows.end, description)

    # --- the state that the next part starts from ---------------------------------------------

    def state(self) -> list[StateRow] | None:
        """Return the rows of the state from which a task continues; None if it must start over."""
        reader = self._reader.state()
        if reader is None:
            return None
        counts = fields(StreamRows)
        whole = {
            "files": self._files.state(self._reader.offset),
            "frames_before": self._frames_before,
            "reader": reader,
            "ended": {format: list(one) for format, one in self._ended.items()},
            "facts": {name: dict(columns) for name, columns in self._descriptions.items()},
            "open": {
                stream: [
                    {one.name: getattr(each.rows, one.name) for one in counts},
                    each.garbage_at,
                    each.garbage_head.hex(),
                ]
                for stream, each in self._open.items()
            },
        }
        text, arrays = pack_state(whole)
        rows: list[StateRow] = [(_JSON, [len(text)], text.encode())]
        return rows + [(_NAMES[each.dtype], list(each.shape), each.tobytes()) for each in arrays]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; call `open` before.

        A `StateError` is raised if the state is damaged, or the file is another one.
        """
        try:
            self._files.restore(state["files"], self.paths)
            self._frames_before = int(state["frames_before"])
            self._reader.restore(state["reader"])
            for stream, (rows, head_at, head) in state["open"].items():
                counts = {each.name: rows[each.name] for each in fields(StreamRows)}
                stream_rows = StreamRows(**counts)
                self._open[stream] = _OpenStream(stream_rows, head_at, bytes.fromhex(head))
            self._descriptions = dict(state["facts"])
            self._ended = {format: LedgerSum(*one) for format, one in state["ended"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        self.replaces = False


class State(NamedTuple):
    """The state of an input."""

    tree: dict[str, Any]
    """The state of `GrowingInput`."""
    others: dict[str, bytes]
    """The data of the other rows, by kind."""


def make_state(source: str, rows: Sequence[StateRow]) -> pa.Table:
    """Return the table of the state of a source."""
    kinds, shapes, data = zip(*rows, strict=True)
    columns = [[source] * len(rows), kinds, shapes, data]
    return pa.table(
        [pa.array(one, kind.type) for one, kind in zip(columns, OPEN_STATE, strict=True)],
        schema=OPEN_STATE,
    )


def read_states(path: str) -> dict[str, list[dict[str, Any]]]:
    """Read a file of the table of states; return its rows by source.

    A `StateError` is raised if it is damaged.
    """
    system, inner = filesystem(path)
    try:
        with system.open_input_file(inner) as file:
            rows = pq.ParquetFile(file).read().to_pylist()
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["source"], []).append(row)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"its state is damaged ({error})") from None


def state_of(states: Mapping[str, Sequence[Mapping[str, Any]]], source: str) -> State:
    """Return the state of a source that `read_states` has read; raise `StateError` if damaged."""
    try:
        of_source = states[source]
        (text,) = (row["data"] for row in of_source if row["kind"] == _JSON)
        arrays = [
            np.frombuffer(row["data"], KINDS[row["kind"]]).reshape(row["shape"])
            for row in of_source
            if row["kind"] in KINDS
        ]
        kinds = {_JSON, *KINDS}
        others = {row["kind"]: row["data"] for row in of_source if row["kind"] not in kinds}
        return State(unpack_state(text.decode(), arrays), others)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"its state is damaged ({error})") from None


def read_state(path: str, source: str) -> State:
    """Read the state of a source from a file of the table of states.

    A `StateError` is raised if it is damaged.
    """
    return state_of(read_states(path), source)


def _add(sums: dict[str, LedgerSum], ledger: StreamLedger) -> None:
    key = ledger.format or ""
    sums[key] = LedgerSum.total([sums.get(key, LedgerSum()), LedgerSum.of(ledger)])
