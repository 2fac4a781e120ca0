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

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.captures.assignment import parse_decode_as
from wireyard.captures.directed import CapturedStream
from wireyard.captures.following import BareStream
from wireyard.captures.growing import GrowingFile
from wireyard.captures.inputs import describe_unknown
from wireyard.captures.live import LiveCapture
from wireyard.captures.live_state import (
    StateError,
    capture_state,
    pack_state,
    restore_capture,
    unpack_state,
)
from wireyard.captures.quarantine import SHOWN_BYTES, PieceBytes
from wireyard.captures.read import FrameSpan
from wireyard.captures.stream_table import FILES
from wireyard.captures.tls_keys import embedded_secrets, read_key_logs
from wireyard.formats import get_format
from wireyard.lake.ledgers import LedgerSum, StreamLedger
from wireyard.spark.bronze import BronzeTask, Outcome, make_ledger
from wireyard.streams.batches import BlockReader
from wireyard.streams.framer import Framer
from wireyard.streams.growth import Grown
from wireyard.streams.mapped import map_bytes
from wireyard.streams.scan import load_fast_path
from wireyard.streams.source import filesystem, reading

if TYPE_CHECKING:
    from wireyard.formats.base import Format

__all__ = ["OPEN_STATE", "GrowingInput", "GrowthSettings", "StateError", "read_state"]

_READ_BYTES: Final = 4 << 20
_EDGE_BYTES: Final = 64 << 10
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


@dataclass(frozen=True, slots=True)
class GrowthSettings:
    """How growing inputs are read; the fields are those of `open_captures`."""

    decode_as: tuple[str, ...] = ()
    keylog: tuple[str, ...] = ()
    max_packet_bytes: int | None = None


class _Reader(Protocol):
    """What turns the bytes of an input to streams."""

    offset: int
    """Where the bytes begin that a reader of the state wants next."""

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return what is known of streams since this was asked last, and which have ended."""

    def state(self) -> dict[str, Any] | None:
        """Return what another reader goes on with, None if it has to begin anew."""

    def notes(self) -> list[str]:
        """Return what is to be said of the input at its end."""

    @property
    def frames(self) -> int | None:
        """How many frames of a capture were read."""


class _CaptureReader:
    """A capture that grows."""

    def __init__(self, path: str, named: Format | None, settings: GrowthSettings) -> None:
        self._path, self._before = path, 0
        # Secrets are in no state: those in the file are read again.
        keys = read_key_logs(settings.keylog, lambda: embedded_secrets(self._bytes_before()))
        rules = [parse_decode_as(text) for text in settings.decode_as]
        limit = settings.max_packet_bytes
        self._capture = LiveCapture(path, named, rules, keys, limit, describes=True)
        self._file = GrowingFile(keys.add)

    def _bytes_before(self) -> Iterator[Any]:
        """Yield the bytes before those that arrive."""
        data = map_bytes(self._path, 0, self._before) if self._before else None
        if data is not None:
            yield data[: self._before]

    @property
    def offset(self) -> int:
        """Where the record begins that is not read yet."""
        return self._file.offset

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader stood."""
        restore_capture(state, self._capture, self._file)
        self._before = self._file.offset

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""
        for part, records in self._file.receive(np.frombuffer(data, np.uint8), idle=True):
            yield self._capture.receive(part, records)

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""
        for part, records in self._file.end():
            yield self._capture.receive(part, records)
        yield from self._capture.end()

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return what is known of streams since this was asked last, and which have ended."""
        ended = dict(self._capture.take_ended())
        return {**ended, **dict(self._capture.describe())}, {*ended}

    def state(self) -> dict[str, Any] | None:
        """Return what another reader goes on with, None if it has to begin anew."""
        return capture_state(self._capture, self._file)

    def notes(self) -> list[str]:
        """Return what is to be said of the input at its end."""
        capture, damage = self._capture, self._file.damage
        found = describe_unknown(
            capture.name,
            capture.unknown,
            capture.tally_endings,
            capture.proxies,
            damage=f"{damage}; {self._file.unread_bytes} bytes are not read" if damage else None,
            problems=[*capture.problems],
            keyed=capture.has_keys,
        )
        return [*filter(None, (found.damage, *found.notes, *found.closed, found.unread))]

    @property
    def frames(self) -> int:
        """How many frames were read."""
        return self._capture.frames


class _StreamReader:
    """A bare stream that grows."""

    def __init__(self, path: str, format: Format, settings: GrowthSettings) -> None:
        self._path, self._format = path, format
        self._framer = Framer(format, settings.max_packet_bytes)
        self._stream = BareStream(path)

    @property
    def offset(self) -> int:
        """Where the frame begins that is not read yet, or in garbage the next byte."""
        return self._framer.position

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader stood."""
        self._framer.restore(state)
        self._stream = BareStream(self._path, self._framer.position)

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""
        self._stream.receive(data)
        yield [Grown(self._format, self._stream, self._framer)]

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""
        self._stream.at_end = True
        yield [Grown(self._format, self._stream, self._framer)]

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return nothing: a bare stream has no description, and may always go on."""
        return {}, set()

    def state(self) -> dict[str, Any]:
        """Return what another reader goes on with."""
        return self._framer.state()

    def notes(self) -> list[str]:
        """Return nothing."""
        return []

    @property
    def frames(self) -> None:
        """None: it has none."""


_Held = Callable[[int, int], bytes]
"""Returns those of some bytes of a stream that are held in a turn, from the first on."""


@dataclass(slots=True)
class _Tracked:
    """A stream that is open, and what its rows come to so far."""

    outcome: Outcome
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
    """A local file that grows, read part by part.

    Parameters
    ----------
    source
        Its path, by which the lake knows it.
    format
        Label of its format; None of a capture of any.
    captured
        Whether it is a capture.
    """

    source: str
    format: str | None
    captured: bool
    settings: GrowthSettings
    replaces: bool = True
    """Whether rows of the source that the lake holds are those of another file, or read again."""
    position: int = 0
    """How many of its bytes were read."""
    fresh: list[StreamLedger] = field(default_factory=list)
    """The ledgers of streams that have ended, and are in no commit."""
    facts_s: float = 0.0
    """How long it took to make its facts last."""
    facts_at_s: float = 0.0
    """When they were made."""
    facts_position: int = -1
    """Which of its bytes they know."""
    _ended: dict[str, LedgerSum] = field(default_factory=dict)
    """The sums of those that have ended, by format."""
    _open: dict[str, _Tracked] = field(default_factory=dict)
    _facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _descriptor: int = -1
    _reader: Any = None
    _blocks: dict[str, BlockReader] = field(default_factory=dict)

    def open(self) -> None:
        """Open it, from its beginning.

        Raises
        ------
        SourceError
            It cannot be read.
        """
        with reading(self.source):
            self._descriptor = os.open(self.source, os.O_RDONLY)
        named = get_format(self.format) if self.format else None
        if self.captured:
            self._reader = _CaptureReader(self.source, named, self.settings)
        else:
            assert named is not None
            self._reader = _StreamReader(self.source, named, self.settings)

    def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_same_file(self) -> bool:
        """Whether its path still leads to it, and no byte that was read is gone."""
        try:
            there, own = os.stat(self.source), os.fstat(self._descriptor)
        except OSError:
            return False
        same = (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
        return same and own.st_size >= self.position

    def read(self, stop: int, task: BronzeTask) -> None:
        """Read up to byte `stop` of it, and write the rows that it can have now.

        Raises
        ------
        SourceError
            It cannot be read.
        LedgerError
            The rows of a stream do not follow each other.
        """
        while self.position < stop:
            with reading(self.source):
                size = min(stop - self.position, _READ_BYTES)
                data = os.pread(self._descriptor, size, self.position)
            if not data:
                return
            self.position += len(data)
            for turn in self._reader.receive(data):
                self._write(turn, task)
        self._settle()

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

    def stamp(self) -> dict[str, Any]:
        """Return the stamp of the file as far as it was read: see `FoundInput`."""
        own = os.fstat(self._descriptor)
        return {
            "size": self.position,
            "modified_ns": own.st_mtime_ns,
            "edges_crc32": _edges(self._descriptor, self.position),
            "file": [own.st_dev, own.st_ino],
        }

    def ledger(self) -> dict[str, LedgerSum]:
        """Return the sums of the ledgers of all of its streams so far, by format."""
        sums = dict(self._ended)
        for ledger in self.open_ledgers():
            _add(sums, ledger)
        return sums

    def frame_rows(self) -> pa.Table | None:
        """Return its row in the table of the files of captures."""
        frames = self._reader.frames
        if frames is None:
            return None
        row = {"source": self.source, **FrameSpan(self.source, 1, frames)._asdict()}
        return pa.Table.from_pylist([row], FILES)

    def open_ledgers(self) -> list[StreamLedger]:
        """Return the ledgers of the streams that may still go on."""
        return [self._ledger(stream) for stream in self._open]

    def _write(self, turn: list[Grown], task: BronzeTask) -> None:
        """Write the rows of streams that can be read on."""
        for format, opened, framer in turn:
            tracked = self._open.get(opened.stream)
            if tracked is None:
                tracked = _Tracked(Outcome(self.source, 0, 0, format.label, first=0))
                self._open[opened.stream] = tracked
            plan = task.plan_of(format)
            fast = load_fast_path(format, max(opened.bytes_ahead, 0))
            reader = self._blocks.get(format.label)
            if reader is None or not reader.fits(plan, fast):
                reader = self._blocks[format.label] = BlockReader(plan, fast)
            held = _held_of(opened)
            seen = _SeenBytes(tracked, opened, held)
            for block in opened.blocks(framer, fast and fast.scan_frames):
                for batch in reader.read([(opened, block)]):
                    if batch.num_rows:
                        task.write_batch(format, batch, tracked.outcome, seen)
            reader.let_go()
            tracked.remember(framer, held)

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
        outcome = self._open[stream].outcome
        facts = self._facts.get(stream, {})
        return make_ledger(self.source, stream, [outcome], outcome.end, facts)

    # --- what the next part is read on from ---------------------------------------------------

    def state(self) -> pa.Table | None:
        """Return what another process reads on from; None if it has to begin anew."""
        reader = self._reader.state()
        if reader is None:
            return None
        own = os.fstat(self._descriptor)
        offset = self._reader.offset
        whole = {
            "format": self.format,
            "captured": self.captured,
            "file": [own.st_dev, own.st_ino],
            "offset": offset,
            "edges_crc32": _edges(self._descriptor, offset),
            "reader": reader,
            "ended": {format: list(one) for format, one in self._ended.items()},
            "facts": {name: dict(facts) for name, facts in self._facts.items()},
            "open": {
                stream: [asdict(each.outcome), each.head_at, each.head.hex()]
                for stream, each in self._open.items()
            },
        }
        text, arrays = pack_state(whole)
        rows = [(_JSON, [len(text)], text.encode())]
        rows += [(str(each.dtype), list(each.shape), each.tobytes()) for each in arrays]
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
            own = os.fstat(self._descriptor)
            offset = int(state["offset"])
            same = [own.st_dev, own.st_ino] == state["file"] and own.st_size >= offset
            if not same or _edges(self._descriptor, offset) != state["edges_crc32"]:
                raise StateError("is another file than before")
            self._reader.restore(state["reader"])
            for stream, (outcome, head_at, head) in state["open"].items():
                known = {each.name: outcome[each.name] for each in fields(Outcome)}
                self._open[stream] = _Tracked(Outcome(**known), head_at, bytes.fromhex(head))
            self._facts = dict(state["facts"])
            self._ended = {format: LedgerSum(*one) for format, one in state["ended"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"its state is damaged ({error})") from None
        self.position = self._reader.offset
        self.replaces = False


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
        text, *rest = found
        arrays = [
            np.frombuffer(row["data"], _KINDS[row["kind"]]).reshape(row["shape"]) for row in rest
        ]
        return unpack_state(text["data"].decode(), arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"its state is damaged ({error})") from None


def _add(sums: dict[str, LedgerSum], ledger: StreamLedger) -> None:
    key = ledger.format or ""
    sums[key] = LedgerSum.total([sums.get(key, LedgerSum()), LedgerSum.of(ledger)])


_KINDS: Final = {name: np.dtype(name) for name in ("uint8", "int8", "int32", "int64")}


def _edges(descriptor: int, offset: int) -> int:
    """Return the checksum of both ends of the first bytes of a file."""
    crc32 = zlib.crc32(os.pread(descriptor, min(_EDGE_BYTES, offset), 0))
    start = max(offset - _EDGE_BYTES, 0)
    return zlib.crc32(os.pread(descriptor, offset - start, start), crc32)
