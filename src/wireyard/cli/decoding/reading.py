"""Reading the streams of an input: selected rows, their faults, and progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.arrays import Grid
from wireyard.cli.decoding.selection import Selection
from wireyard.cli.progress import Progress
from wireyard.java import storable
from wireyard.schema import as_array, as_numbers, empty_batch, scalar_of
from wireyard.streams.batches import DecodedParts, Part
from wireyard.streams.blocks import Block, DirectedStream, Grown, StreamBundle, each_stream
from wireyard.streams.framer import GAP, GARBAGE, MALFORMED, OK, TAIL, Framer
from wireyard.streams.plan import Plan
from wireyard.streams.scan import load_fast_path, scan_grown, scan_parts

UNOPENED = "unopened"
"""A well-formed packet whose body cannot be decoded as the packet declares."""

UNCONVERTED = "unconverted"
"""A well-formed packet that is not a converted packet of the other format."""

_MOST_STREAMS: Final = 256
"""Streams whose faults are listed; those of further ones are added up."""
_TEXTS = {
    MALFORMED: "{count} malformed packet{s}, {bytes} byte{bs}",
    GARBAGE: "{count} run{s} of bytes that belong to no packet, {bytes} byte{bs}",
    TAIL: "cut short inside a packet, {bytes} byte{bs} of it",
    GAP: "{count} gap{s} in the capture, {bytes} byte{bs}",
    UNCONVERTED: "{count} packet{s} that cannot be converted, {bytes} byte{bs}",
    UNOPENED: "{count} packet{s} whose body cannot be opened, {bytes} byte{bs}",
}


class Faults:
    """Counts of the rows of one stream that are no well-formed packets."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(
        self, status: str, offset: int, length: int, error: dict[str, Any] | None, count: int = 1
    ) -> None:
        """Count rows of `length` bytes, the first at `offset`, unless they are well-formed."""
        if status == OK:
            return
        self._counts[status] = self._counts.get(status, 0) + count
        self._bytes[status] = self._bytes.get(status, 0) + length
        why = f": {error['message']}" if error else ""
        self._first.setdefault(status, f"at offset {offset}{why}")

    def text(self) -> str:
        """Return one line with the counts, and the first offset of each kind."""
        known = [status for status in _TEXTS if status in self._counts]
        others = [status for status in self._counts if status not in _TEXTS]
        return "; ".join(self._one(status) for status in (*known, *others))

    def _one(self, status: str) -> str:
        count, size = self._counts[status], self._bytes[status]
        text = _TEXTS.get(status, f"{{count}} {status}{{s}}, {{bytes}} byte{{bs}}")
        shown = text.format(count=count, bytes=size, s="s" * (count != 1), bs="s" * (size != 1))
        return f"{shown}, {'first ' if count > 1 else ''}{self._first[status]}"


class StreamFaults:
    """Faults by stream: a line for each of the first streams with any, and one for all others."""

    def __init__(self) -> None:
        self._streams: dict[str, Faults] = {}
        self._others = Faults()
        self._more, self._last = 0, ""

    def __getitem__(self, stream: str) -> Faults:
        """Return the faults of a stream; the rows of a stream follow each other."""
        if stream in self._streams:
            return self._streams[stream]
        if len(self._streams) < _MOST_STREAMS:
            return self._streams.setdefault(stream, Faults())
        self._more += stream != self._last
        self._last = stream
        return self._others

    def lines(self, source: str, *, captured: bool) -> Iterator[str]:
        """Yield the notes on the streams of a source, with their names if it is a capture."""
        for stream, faults in self._streams.items():
            if faults:
                yield f"{source}{f' {stream}' if captured else ''}: {faults.text()}"
        if self._more:
            several = "s" if self._more > 1 else ""
            yield f"{source}: {self._more} more stream{several}: {self._others.text()}"


_FEW_BYTES: Final = 1 << 14
"""Size of growing streams up to which writing row by row is faster than by columns."""

_Fault = tuple[tuple[int, int], dict[str, Any]]
"""The numbers of a part and of a stream in it, and the arguments of `Faults.add`."""


class Budget:
    """The number of rows that may still be output: unlimited if `limit` is None."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.limited = limit is not None
        self.taken = 0
        """The number of rows so far."""
        self._left = sys.maxsize if limit is None else limit

    @property
    def spent(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def take(self, count: int) -> int:
        """Return how many of `count` rows are within the limit, and count them."""
        taken = min(count, self._left)
        self._left -= taken
        self.taken += taken
        return taken


@dataclass(frozen=True)
class OpenInput:
    """Streams of one input and one format, with the selection, and the faults found while reading.

    `faults` are by stream. `framers` are the framers of growing streams, by the identity of the
    stream; None if all streams are read from their beginning.
    """

    streams: Sequence[DirectedStream]
    selection: Selection
    budget: Budget
    progress: Progress
    faults: StreamFaults = field(default_factory=StreamFaults)
    framers: Mapping[int, Framer] | None = None

    @property
    def live(self) -> bool:
        """Whether the streams grow."""
        return self.framers is not None

    @property
    def has_compiled_columns(self) -> bool:
        """Whether compiled columns pay for the size, and contain everything that is shown."""
        ahead = [stream.bytes_ahead for stream in self.streams]
        if self.live and sum(ahead) < _FEW_BYTES:
            return False
        format, request = self.selection.format, self.selection.request
        name = self.streams[0].name
        return (
            not request.nested
            and self.selection.shown_body is None
            and self.selection.opener is None
            and storable(name) == name
            and load_fast_path(format, (sum if self.live else max)(ahead)) is not None
        )

    def wanted_streams(self) -> Iterator[DirectedStream]:
        """Yield the streams one by one, until the limit is reached."""
        return takewhile(lambda _: not self.budget.spent, each_stream(self.streams))


def read_stream(
    reading: OpenInput, opened: DirectedStream, plan: Plan, **how: bool
) -> Iterator[tuple[DecodedParts, pa.RecordBatch]]:
    """Yield the selected rows of one stream, block by block, until the limit is reached.

    Each batch comes with the blocks that it is of; `how` are parameters of `BlockReader`. In mode
    ``failfast``, the first bad row raises a `DecodeError`.
    """
    for decoded in _scan(reading, [opened], plan, **how):
        yield decoded, _wanted(reading, plan, decoded)
        if reading.budget.spent:
            return


def read_parts(
    reading: OpenInput, plan: Plan, **how: bool
) -> Iterator[tuple[DecodedParts, pa.RecordBatch]]:
    """Yield the selected rows of all streams, as `read_stream` does; small ones are read together.

    One thread reads: that is faster than any writer, and each further thread would hold 100 MB.
    """
    if reading.budget.limited:  # faults are counted up to the last row, so read block by block
        for opened in reading.wanted_streams():
            yield from read_stream(reading, opened, plan, **how)
        return
    for decoded in _scan(reading, reading.streams, plan, **how):
        yield decoded, _wanted(reading, plan, decoded)


def _scan(
    reading: OpenInput, streams: Sequence[DirectedStream], plan: Plan, **how: bool
) -> Iterator[DecodedParts]:
    if reading.framers is None:
        return scan_parts(((opened, plan) for opened in streams), **how)
    framers = reading.framers
    grown = [Grown(plan.format, opened, framers[id(opened)]) for opened in streams]
    return scan_grown(grown, plan, **how)


def _wanted(reading: OpenInput, plan: Plan, decoded: DecodedParts) -> pa.RecordBatch:
    """Return the selected rows of blocks, and count their faults."""
    budget, parts = reading.budget, decoded.read
    batches = decoded.batches or [empty_batch(plan.schema)]
    # `concat_batches` would copy a single batch.
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    batch = batch.slice(0, budget.take(batch.num_rows))
    if plan.mode == "permissive":
        last = batch["offset"][-1].as_py() if budget.spent else sys.maxsize
        found = _odd(parts, last)
        if decoded.found_bad:
            found += _malformed(batch, decoded.parts)
        # By stream, so that the order of notes does not depend on which streams are read together.
        names = {number: _names(parts[number][0]) for number in {place[0] for place, _ in found}}
        for (number, owner), fault in sorted(found, key=itemgetter(0)):
            reading.faults[names[number][owner]].add(**fault)
    reading.progress.add(sum(int(block.lengths.sum()) for _, block in parts))
    return batch


def _odd(parts: Sequence[Part], last: int) -> list[_Fault]:
    """Return the bytes up to the row at `last` that are no packet.

    They count even if conditions exclude them, because they may have been packets that match.
    """
    found: list[_Fault] = []
    for number, (_, block) in enumerate(parts):
        for row, frame in block.odd.items():
            if frame.start <= last and (frame.error or frame.status != GAP):
                fault = {
                    "status": frame.status,
                    "offset": frame.start,
                    "length": frame.stop - frame.start,
                    "error": frame.error.row() if frame.error else None,
                }
                found.append(((number, _owner(block, row)), fault))
    return found


def _malformed(batch: pa.RecordBatch, parts: Sequence[Part]) -> list[_Fault]:
    """Return the malformed packets of each stream; the rows of a batch are those of the parts."""
    from pyarrow import compute as pc  # takes longer to load than a small capture to read

    malformed = as_numbers(
        pc.indices_nonzero(pc.equal(batch["status"], scalar_of(MALFORMED, pa.string())))
    )
    if not len(malformed):
        return []
    streams = np.concatenate([_streams(number, block) for number, (_, block) in enumerate(parts)])
    streams = streams[malformed]
    firsts = np.flatnonzero((np.diff(streams, axis=0, prepend=-1) != 0).any(axis=1))
    lengths = np.add.reduceat(as_numbers(batch["length"])[malformed], firsts)
    rows = batch.select(["status", "offset", "error"]).take(as_array(malformed[firsts])).to_pylist()
    counts = np.diff(firsts, append=len(malformed))
    return [
        ((number, owner), {**row, "length": length, "count": count})
        for (number, owner), row, length, count in zip(
            streams[firsts].tolist(), rows, lengths.tolist(), counts.tolist(), strict=True
        )
    ]


def _streams(number: int, block: Block) -> Grid:
    """Return for each row of a part the number of the part, and of the stream in it."""
    streams = np.zeros((len(block.offsets), 2), np.int64)
    streams[:, 0] = number
    if block.owners is not None:
        streams[:, 1] = block.owners
    return streams


def _owner(block: Block, row: int) -> int:
    """Return the number of the stream of a row among those of its block."""
    return 0 if block.owners is None else int(block.owners[row])


def _names(opened: DirectedStream) -> Sequence[str]:
    """Return the name of a stream, or the names of the streams of a bundle."""
    return opened.names() if isinstance(opened, StreamBundle) else [opened.stream]
