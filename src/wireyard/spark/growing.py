"""Inputs that grow: the rows of what is new, and what the next part is read on from.

Rules of this file:

1. Rows that nothing can change any more are in files of their own for good. What may change is in
   files that the next part takes out again (`OPEN_PREFIX`): ledgers of open streams, and all that
   stands in a table because its input seems to have ended, such as an unfinished packet.
2. What the next part needs is a state, committed with the rows (`OPEN_STATES`): JSON and arrays of
   ours, read with checks. It has what is open: connections, unfinished packets, bytes that wait.
3. Time is that of the packets alone. Bytes behind lost ones wait for the capture's clock, not for
   ours, so a state and the bytes behind it always give the same rows.
4. A file is read on if its identity and the bytes before are what they were. Else, or where a
   state is damaged, the input is one that has changed: it is read again as a whole.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.captures.directed import CapturedStream
from wireyard.captures.following import BareStream
from wireyard.captures.live_state import StateError, pack_state, unpack_state
from wireyard.captures.quarantine import SHOWN_BYTES, PieceBytes
from wireyard.captures.read import FrameSpan
from wireyard.formats import get_format
from wireyard.lake.ledgers import LedgerSum, StreamLedger
from wireyard.spark.bronze import BronzeTask, make_ledger
from wireyard.spark.growing_files import GrowingFiles
from wireyard.spark.growing_readers import CaptureReader, GrowthSettings, StreamReader
from wireyard.spark.results import StreamRows
from wireyard.streams.batches import BlockReader, Part
from wireyard.streams.scan import load_fast_path
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from wireyard.formats.base import Format
    from wireyard.streams.framer import Framer
    from wireyard.streams.growth import Grown

__all__ = ["OPEN_STATE", "GrowingInput", "StateError", "read_state"]

_READ_BYTES: Final = 16 << 20
OPEN_STATE: Final = pa.schema(
    [
        ("source", pa.string()),
        ("kind", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("data", pa.binary()),
    ]
)
"""The table of states: of each source a row of JSON, and the arrays that it stands for."""
_JSON: Final = "json"
_FACTS: Final = "facts"
"""JSON too: up to where facts are made."""


_Held = Callable[[int, int], bytes]
"""Returns those of some bytes of a stream that are held in a turn, from the first on."""


@dataclass(slots=True)
class _Tracked:
    """A stream that is open, and what its rows come to so far."""

    rows: StreamRows
    head_at: int = -1
    """Where the garbage begins that is under way when a turn ends."""
    head: bytes = b""
    """Its first bytes, which are not held any more."""

    def remember(self, framer: Framer, held: _Held) -> None:
        """Remember the first bytes of garbage under way, which will not be held."""
        if framer.in_step:
            return
        if self.head_at != framer.begun_at:
            self.head_at, self.head = framer.begun_at, b""
        if len(self.head) < SHOWN_BYTES:
            start = self.head_at + len(self.head)
            self.head += held(start, self.head_at + SHOWN_BYTES)


class _SeenBytes:
    """The first bytes of bad rows, of those that are held and of garbage that began before."""

    def __init__(self, tracked: _Tracked, opened: Any, held: _Held) -> None:
        self._tracked, self._opened, self._held = tracked, opened, held

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the row at offset `start` of its stream, its first ones."""
        known = self._tracked.head if start == self._tracked.head_at else b""
        stop = start + min(length, SHOWN_BYTES)
        if start + len(known) >= stop:
            return known[: stop - start]
        if isinstance(self._opened, CapturedStream) and not known:
            return PieceBytes(self._opened.captured).read(start, length)
        return known + self._held(start + len(known), stop)


def _held_of(opened: Any) -> _Held:
    """Return what reads the bytes of a stream that are held in this turn."""
    if isinstance(opened, BareStream):
        return opened.held()
    return partial(_captured_bytes, opened)


def _captured_bytes(opened: CapturedStream, start: int, stop: int) -> bytes:
    pieces = opened.captured.pieces
    at = int(np.searchsorted(pieces[:, 0], start, "right")) - 1
    if at < 0 or start >= pieces[at, 1]:
        return b""
    return opened.captured.read(start, min(stop, int(pieces[at, 1]))).tobytes()


@dataclass(slots=True)
class GrowingInput:
    """An input of local files that grows, read part by part.

    Parameters
    ----------
    source
        Its name in the lake: its path, or the folder of a rotated capture.
    format
        Label of its format; None of a capture of any.
    paths
        The files of a capture; none of a bare stream.
    """

    source: str
    format: str | None
    paths: tuple[str, ...]
    settings: GrowthSettings
    replaces: bool = True
    """Whether rows of the source that the lake holds are those of another file, or read again."""
    fresh: list[StreamLedger] = field(default_factory=list)
    """The ledgers of streams that have ended, and are in no commit."""
    fresh_spans: list[FrameSpan] = field(default_factory=list)
    """The files of a rotated capture that were read to their ends, and are in no commit."""
    facts_s: float = 0.0
    """How long it took to make its facts last."""
    facts_at_s: float = 0.0
    """When they were made."""
    facts_position: int = -1
    """Up to which of its bytes they go."""
    facts_until_ns: dict[str, int] = field(default_factory=dict)
    """By protocol: messages that were sent up to this time have the rows that they keep until all
    facts are made anew; none of a bare stream."""
    rows: Counter[str] = field(default_factory=Counter)
    """How many rows its packets have, by the name of their format."""
    _ended: dict[str, LedgerSum] = field(default_factory=dict)
    """The sums of those that have ended, by format."""
    _open: dict[str, _Tracked] = field(default_factory=dict)
    _facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _files: Any = None
    _frames_before: int = 0
    """How many frames of a capture are in files that were read to their ends."""
    _reader: Any = None
    _blocks: dict[str, BlockReader] = field(default_factory=dict)

    def open(self) -> None:
        """Get ready to read it from its beginning, or to be restored.

        Raises
        ------
        SourceError
            It cannot be read.
        """
        self._files = GrowingFiles(self.source, rotated=self.is_rotated)
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
    def is_rotated(self) -> bool:
        """Whether it is a capture that goes on in new files of a folder."""
        return bool(self.paths) and self.paths != (self.source,)

    @property
    def has_begun(self) -> bool:
        """Whether there is something to read: of a rotated capture, a packet."""
        return bool(self._files.have_begun)

    @property
    def is_same(self) -> bool:
        """Whether no byte that was read is gone."""
        return bool(self._files.are_same)

    @property
    def position(self) -> int:
        """How many of its bytes were read."""
        return int(self._files.position)

    @property
    def now_ns(self) -> int | None:
        """The time of the last frame that was read; None of a bare stream."""
        found: int | None = self._reader.now_ns
        return found

    @property
    def unread_bytes(self) -> int:
        """How many bytes it had that were not read yet, when its files were looked at."""
        return int(self._files.unread_bytes)

    def look(self, paths: Iterable[str]) -> None:
        """Look how large its files are, and which there are.

        Raises
        ------
        StateError
            What was read is not what is there now.
        SourceError
            A file cannot be read.
        """
        self._files.take(paths)

    def read(self, most_bytes: int, task: BronzeTask) -> None:
        """Read some more of it, and write the rows that it can have now.

        Raises
        ------
        SourceError
            It cannot be read.
        LedgerError
            The rows of a stream do not follow each other.
        """
        stop = self.position + most_bytes
        while (left := stop - self.position) > 0:
            data = self._files.read(min(left, _READ_BYTES))
            if data:
                for turn in self._reader.receive(data):
                    self._write(turn, task)
            elif not self._next_file(task):
                break
        self._settle()

    def _next_file(self, task: BronzeTask) -> bool:
        """Go on with the next file of a rotated capture; return whether there is one."""
        path = self._files.path
        if not self._files.next_file():
            return False
        for turn in self._reader.next_file():
            self._write(turn, task)
        self.fresh_spans.append(self._span(path))
        self._frames_before = self._reader.frames
        return True

    def _span(self, path: str) -> FrameSpan:
        before = self._frames_before
        return FrameSpan(path, before + 1, self._reader.frames - before)

    def end(self, task: BronzeTask) -> list[str]:
        """Write what is left, as if nothing followed; return what is to be said about it.

        It cannot be read on then; its state has to be taken before.
        """
        for turn in self._reader.end():
            self._write(turn, task)
        facts, _ = self._reader.facts()
        self._facts |= facts
        notes: list[str] = self._reader.notes()
        return notes

    def committed(self) -> None:
        """Take note that what was read is in a commit."""
        self.replaces = False
        self.fresh.clear()
        self.fresh_spans.clear()

    def stamp(self) -> dict[str, Any]:
        """Return the stamp of the input as far as it was read: see `FoundInput`."""
        stamp: dict[str, Any] = self._files.stamp()
        return stamp

    def ledger(self) -> dict[str, LedgerSum]:
        """Return the sums of the ledgers of all of its streams so far, by format."""
        sums = dict(self._ended)
        for ledger in self.open_ledgers():
            _add(sums, ledger)
        return sums

    def open_spans(self) -> list[FrameSpan]:
        """Return the file of a capture that is read now, and those without a packet."""
        if not self.paths:
            return []
        empty = [FrameSpan(path, 1, 0) for path in sorted(self._files.without_packets)]
        return [*empty, self._span(self._files.path)]

    def open_ledgers(self) -> list[StreamLedger]:
        """Return the ledgers of the streams that may still go on."""
        return [self._ledger(stream) for stream in self._open]

    def _write(self, turn: list[Grown], task: BronzeTask) -> None:
        """Write the rows of streams that can be read on."""
        by_format: dict[str, list[Grown]] = {}
        for one in turn:
            by_format.setdefault(one.format.label, []).append(one)
        for some in by_format.values():
            self._write_streams(some, task)

    def _write_streams(self, some: Sequence[Grown], task: BronzeTask) -> None:
        """Write the rows of streams of one format, which are read together: each has few."""
        format = some[0].format
        plan = task.plan_of(format)
        fast = load_fast_path(format, sum(max(one.opened.bytes_ahead, 0) for one in some))
        reader = self._blocks.get(format.label)
        if reader is None or not reader.fits(plan, fast):
            reader = self._blocks[format.label] = BlockReader(plan, fast)
        # Blocks take along what is held.
        held = {one.opened.stream: _held_of(one.opened) for one in some}
        parts = [
            (one.opened, block)
            for one in some
            for block in one.opened.blocks(one.framer, fast and fast.scan_frames)
        ]
        for _, same in groupby(parts, key=lambda part: id(part[1].data)):
            read = list(same)
            self._write_rows(format, reader.read(read), read, held, task)
        reader.clear()
        for one in some:
            self._tracked(format, one.opened).remember(one.framer, held[one.opened.stream])

    def _write_rows(
        self,
        format: Format,
        batches: Sequence[pa.RecordBatch],
        parts: Sequence[Part],
        held: Mapping[str, _Held],
        task: BronzeTask,
    ) -> None:
        """Write the rows of blocks, of which those of a stream follow each other."""
        opened: list[Any] = []
        bounds = [0]
        for one, block in parts:
            if opened and opened[-1] is one:
                bounds[-1] += len(block.offsets)
            elif len(block.offsets):
                opened.append(one)
                bounds.append(bounds[-1] + len(block.offsets))
        if opened:
            tracked = [self._tracked(format, one) for one in opened]
            seen = [
                _SeenBytes(each, one, held[one.stream])
                for each, one in zip(tracked, opened, strict=True)
            ]
            written = [each.rows for each in tracked]
            self.rows[format.name] += bounds[-1]
            task.write_streams(format, pa.concat_batches(batches), written, bounds, seen)

    def _tracked(self, format: Format, opened: Any) -> _Tracked:
        tracked = self._open.get(opened.stream)
        if tracked is None:
            tracked = _Tracked(StreamRows(format.label, first=0))
            self._open[opened.stream] = tracked
        return tracked

    def _settle(self) -> None:
        """Give the streams that have ended their last ledgers."""
        facts, ended = self._reader.facts()
        self._facts |= facts
        for stream in ended & self._open.keys():
            ledger = self._ledger(stream)
            self.fresh.append(ledger)
            _add(self._ended, ledger)
            del self._open[stream]
        for stream in ended:
            self._facts.pop(stream, None)

    def _ledger(self, stream: str) -> StreamLedger:
        rows = self._open[stream].rows
        facts = self._facts.get(stream, {})
        return make_ledger(self.source, stream, [rows], rows.end, facts)

    # --- what the next part is read on from ---------------------------------------------------

    def state(self) -> pa.Table | None:
        """Return what another process reads on from; None if it has to begin anew."""
        reader = self._reader.state()
        if reader is None:
            return None
        whole = {
            "files": self._files.state(self._reader.offset),
            "frames_before": self._frames_before,
            "reader": reader,
            "ended": {format: list(one) for format, one in self._ended.items()},
            "facts": {name: dict(facts) for name, facts in self._facts.items()},
            "open": {
                stream: [asdict(each.rows), each.head_at, each.head.hex()]
                for stream, each in self._open.items()
            },
        }
        text, arrays = pack_state(whole)
        rows = [(_JSON, [len(text)], text.encode())]
        rows += [(str(each.dtype), list(each.shape), each.tobytes()) for each in arrays]
        return self._states(rows)

    def take_note_of_facts(self, until_ns: dict[str, int]) -> None:
        """Take note that facts of all that was read are made now, up to these times."""
        self.facts_at_s, self.facts_position = time.monotonic(), self.position
        self.facts_until_ns = until_ns

    def facts_state(self, *, has_open: bool, are_made: bool) -> pa.Table:
        """Return up to where its facts are made.

        Parameters
        ----------
        has_open
            Whether there are files of facts that the next part takes out.
        are_made
            Whether they are in the lake with it, and not made beside it.
        """
        text = json.dumps(
            {
                "position": self.facts_position,
                "seconds": self.facts_s,
                "until_ns": self.facts_until_ns,
                "has_open": has_open,
                "are_made": are_made,
            }
        )
        return self._states([(_FACTS, [len(text)], text.encode())])

    def _states(self, rows: Sequence[tuple[str, list[int], bytes]]) -> pa.Table:
        kinds, shapes, data = zip(*rows, strict=True)
        columns = [[self.source] * len(rows), kinds, shapes, data]
        return pa.table(
            [pa.array(one, kind.type) for one, kind in zip(columns, OPEN_STATE, strict=True)],
            schema=OPEN_STATE,
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; it has to be open.

        Raises
        ------
        StateError
            The state is damaged, or the file is another one.
        """
        try:
            self._files.restore(state["files"], self.paths)
            self._frames_before = int(state["frames_before"])
            self._reader.restore(state["reader"])
            for stream, (rows, head_at, head) in state["open"].items():
                known = {each.name: rows[each.name] for each in fields(StreamRows)}
                self._open[stream] = _Tracked(StreamRows(**known), head_at, bytes.fromhex(head))
            self._facts = dict(state["facts"])
            self._ended = {format: LedgerSum(*one) for format, one in state["ended"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        self.rows = Counter()
        for label, one in self.ledger().items():
            self.rows[label.partition("/")[0]] += one.packets
        self.replaces = False

    def restore_facts(
        self, state: Mapping[str, Any], *, has_open: bool, being_made: bool = False
    ) -> None:
        """Go on with the facts that are made, if those in the lake are what the state is about.

        Parameters
        ----------
        has_open
            Whether there are files of facts that the next part takes out.
        being_made
            Whether this process makes those that were not made when the state was taken.

        Raises
        ------
        StateError
            The state is damaged.
        """
        try:
            position, seconds = int(state["position"]), float(state["seconds"])
            until_ns = {str(name): int(ns) for name, ns in state["until_ns"].items()}
            is_same = bool(state["has_open"]) == has_open
            is_same &= bool(state["are_made"]) or being_made
            if position < -1 or not 0 <= seconds < math.inf:
                raise ValueError(f"facts of {position} bytes in {seconds} s")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        if is_same:
            # They may have the beginning of a packet that is read again.
            self.facts_position = min(position, self.position)
            self.facts_s, self.facts_until_ns = seconds, until_ns
            self.facts_at_s = time.monotonic()


def read_state(path: str, source: str) -> dict[str, Any]:
    """Read the state of a source from a file of the table of states.

    Raises
    ------
    StateError
        It is damaged.
    """
    system, inner = filesystem(path)
    try:
        with system.open_input_file(inner) as file:
            rows = pq.ParquetFile(file).read()
        found = [row for row in rows.to_pylist() if row["source"] == source]
        facts = [json.loads(row["data"]) for row in found if row["kind"] == _FACTS]
        text, *rest = (row for row in found if row["kind"] != _FACTS)
        arrays = [
            np.frombuffer(row["data"], _KINDS[row["kind"]]).reshape(row["shape"]) for row in rest
        ]
        return {**unpack_state(text["data"].decode(), arrays), "made": facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"its state is damaged ({error})") from None


def _add(sums: dict[str, LedgerSum], ledger: StreamLedger) -> None:
    key = ledger.format or ""
    sums[key] = LedgerSum.total([sums.get(key, LedgerSum()), LedgerSum.of(ledger)])


_KINDS: Final = {name: np.dtype(name) for name in ("uint8", "int8", "int32", "int64")}
