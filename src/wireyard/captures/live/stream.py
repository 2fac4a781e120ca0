"""One direction of a live connection: its bytes that are not read yet, and its holes.

Rules of this file:

1. If several segments bring a byte, the one captured first counts, as in whole captures. So bytes
   that were read stay right, whatever is captured later.
2. Bytes behind a hole are held until the hole is filled or becomes a gap. It becomes a gap some
   time after the first packet behind it: `TRUNCATED_HOLE_NS` if the snapshot length cut its bytes
   off, `ACKED_HOLE_NS` if the receiver acknowledged them, so that only the capture lacks them, else
   `HOLE_NS`. It does so at once if more than `MAX_BEHIND_BYTES` are behind it.
3. A run is held whole until the frame with its last byte is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.merge_kernels import Run, merge_rows
from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.files.places import Places
from wireyard.captures.records import NO_TIME
from wireyard.streams.framer import MOST_BYTES, Framer

__all__ = ["HeldRuns", "LiveStream", "merge_held", "stream_of"]

_SECOND_NS: Final = 1_000_000_000
TRUNCATED_HOLE_NS: Final = _SECOND_NS // 5
"""Short, because a retransmission is mostly truncated at the same byte."""
ACKED_HOLE_NS: Final = _SECOND_NS
"""Longer than the disorder of packets from several capture queues."""
HOLE_NS: Final = 10 * _SECOND_NS
"""A lost segment is sent again after 1, 3 and 7 s (RFC 6298, 2)."""
MAX_BEHIND_BYTES: Final = 8 << 20
"""More than the largest receive window that systems have by default: 6 MiB."""


class HeldRuns(NamedTuple):
    """Runs of bytes of a stream, ascending by position, without overlaps.

    Shapes: all columns (u). `starts` are addresses in the `Places` of a turn, or in the stream's
    own buffer between turns.
    """

    positions: Ints
    lengths: Ints
    starts: Ints
    records: Ints
    times_ns: Ints

    def rows(self, rows: slice) -> HeldRuns:
        """Return a range of the runs."""
        return HeldRuns(*(column[rows] for column in self))


NO_RUNS: Final = HeldRuns(*np.empty((5, 0), np.int64))
_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)
_STORED_COLUMNS: Final = (0, 1, 3, 4)
"""Columns of `HeldRuns` in a stored state; `starts` follow from the lengths."""
_NO_ROWS: Final = np.empty(0, np.int64)


def stream_of(live: LiveStream, held: HeldRuns, size: int, places: Places) -> Stream:
    """Return runs of a live stream as a `Stream`, with offsets counted from its `begin`."""
    assert live.begin is not None
    runs = Runs(held.positions - live.begin, held.lengths, held.starts, held.records)
    return Stream(
        name=live.name,
        protocol=live.protocol,
        src=live.src,
        dst=live.dst,
        size=size,
        opened=live.opened,
        begun=live.begun,
        paired=False,
        ended=None,
        closing_record=None,
        runs=runs,
        times_ns=held.times_ns,
        content=Content(places, _NO_ROWS, _NO_ROWS, {}),
    )


@dataclass(eq=False, slots=True)
class LiveStream:
    """One direction of a connection: its unread bytes, and the position up to which it was read."""

    name: str
    protocol: str
    src: Endpoint
    dst: Endpoint
    begin: int | None = None
    """Position of its first byte; None until that is known."""
    opened: bool = False
    """Whether the capture shows that its sender opened the connection."""
    begun: bool = False
    """Whether the capture shows that it begins there."""
    framer: Framer | None = None
    """Its framer, whose position is how far it was read; None before its format is known."""
    floor: int | None = None
    """Position below which bytes are discarded; None if none are."""
    held: HeldRuns = NO_RUNS
    """Runs that were not read to their end."""
    held_bytes: int = 0
    """Size of `_data`."""
    first_ns: int = NO_TIME
    last_ns: int = NO_TIME
    """Times of the first and the last packet with bytes of this stream."""
    _lost_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Ranges whose bytes will not arrive, because they were truncated or dropped; ascending."""
    _data: Bytes = field(default_factory=lambda: _NO_BYTES)
    """The bytes of `held` between turns."""
    _attached: bool = False
    """Whether `held.starts` are in the places of this turn, not in `_data`."""
    _prefix: HeldRuns = NO_RUNS
    """One run that stands for released bytes of unfinished garbage, to keep their packet."""

    @property
    def position(self) -> int:
        """Position up to which it was read; that of its first byte before."""
        assert self.begin is not None
        return self.begin + (self.framer.position if self.framer else 0)

    def attach(self, places: Places) -> HeldRuns:
        """Return the held runs, after adding their bytes to the places of a turn."""
        if not self._attached:
            self._attached = True
            if len(self._data):
                self.held = self.held._replace(starts=self.held.starts + places.append(self._data))
        return self.held

    def replace_held(self, held: HeldRuns) -> None:
        """Replace the held runs by `held`, which contains them and new ones."""
        self.note_times(held.times_ns)
        self.held, self._attached = held, True

    def note_times(self, times_ns: Ints) -> None:
        """Extend `first_ns` and `last_ns` by the times of packets with new bytes."""
        times_ns = times_ns[times_ns != NO_TIME]
        if len(times_ns):
            first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
            self.first_ns = first_ns if self.first_ns == NO_TIME else min(self.first_ns, first_ns)
            self.last_ns = max(self.last_ns, last_ns)

    def mark_lost(self, start: int, stop: int) -> None:
        """Record that the bytes at ``[start, stop)`` will not arrive."""
        if self._lost_ranges and self._lost_ranges[-1][0] <= start <= self._lost_ranges[-1][1]:
            start, stop = self._lost_ranges[-1][0], max(stop, self._lost_ranges[-1][1])
            self._lost_ranges.pop()
        self._lost_ranges.append((start, stop))

    def skip(self, size: int) -> None:
        """Remove the first `size` bytes, which are not part of the stream."""
        assert self.begin is not None
        self.begin += size
        self.floor = self.begin
        first = int((self.held.positions + self.held.lengths).searchsorted(self.begin, "right"))
        held = HeldRuns(*(column.copy() for column in self.held.rows(slice(first, None))))
        if len(held.positions) and (inside := max(self.begin - int(held.positions[0]), 0)):
            held.positions[0] += inside
            held.starts[0] += inside
            held.lengths[0] -= inside
        self.held = held
        self.first_ns = self.last_ns = NO_TIME
        self.note_times(held.times_ns)

    def ready(self, now_ns: int, acknowledged: int | None) -> tuple[int, int | None]:
        """Return how many held runs can be read, and when a hole will become a gap, if any.

        Parameters
        ----------
        acknowledged
            Position up to which the receiver acknowledged the stream.
        """
        positions, lengths = self.held.positions, self.held.lengths
        if not len(positions):
            return 0, None
        stops = positions + lengths
        expected = max(self.position, self.floor or self.position)
        if positions[0] <= expected and stops[-1] - positions[0] == lengths.sum():
            return len(positions), None
        previous_stops = np.r_[expected, stops[:-1]]
        for at in np.flatnonzero(positions > previous_stops).tolist():
            hole = int(previous_stops[at]), int(positions[at])
            if lengths[at:].sum() > MAX_BEHIND_BYTES:
                continue
            times_ns = self.held.times_ns[at:]
            times_ns = times_ns[times_ns != NO_TIME]
            if not len(times_ns):
                return at, None
            acked = acknowledged is not None and acknowledged >= hole[1]
            wait_ns = ACKED_HOLE_NS if acked else HOLE_NS
            if self._is_lost(*hole):
                wait_ns = TRUNCATED_HOLE_NS
            due_ns = int(times_ns.min()) + wait_ns
            if now_ns < due_ns:
                return at, due_ns
        return len(positions), None

    def _is_lost(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self._lost_ranges)

    def as_stream(self, places: Places, count: int | None = None) -> Stream:
        """Return the first `count` held runs as a `Stream`; all if None."""
        held = self.attach(places).rows(slice(count))
        size = 0
        if len(held.positions):
            assert self.begin is not None
            size = int(held.positions[-1] + held.lengths[-1]) - self.begin
        if len(self._prefix.positions):
            held = HeldRuns(*map(np.concatenate, zip(self._prefix, held, strict=True)))
        return stream_of(self, held, size, places)

    def compact(self, places: Places) -> None:
        """Release the runs that were read, and copy the rest out of the places of this turn."""
        if not self._attached:
            return
        held = self.held
        first = 0
        if self.framer is not None:
            position = self.position
            first = int((held.positions + held.lengths).searchsorted(position, "right"))
            self._update_prefix(held.rows(slice(first)), position)
            self.floor = max(position, self.floor or position)
            if first < len(held.positions):
                self.floor = min(self.floor, int(held.positions[first]))
            self._lost_ranges = [each for each in self._lost_ranges if each[1] > position]
        held = held.rows(slice(first, None))
        size = int(held.lengths.sum())
        self._data, self._attached = _NO_BYTES, False
        if size:
            self._data = np.empty(size, np.uint8)
            places.copy(held.starts, held.lengths, self._data)
            columns = [column.copy() for column in held]
            self.held = HeldRuns(*columns)._replace(starts=np.cumsum(held.lengths) - held.lengths)
        else:
            self.held = NO_RUNS
        self.held_bytes = size

    def _update_prefix(self, read: HeldRuns, position: int) -> None:
        """Keep the newest packet of released runs that unfinished garbage began in."""
        assert self.framer is not None and self.begin is not None
        begun = self.begin + self.framer.frame_start
        if begun == position:
            self._prefix = NO_RUNS
            return
        parts = [part for part in (self._prefix, read) if len(part.positions)]
        if not parts:
            return
        runs = HeldRuns(*map(np.concatenate, zip(*parts, strict=True)))
        runs = runs.rows(
            slice(int((runs.positions + runs.lengths).searchsorted(begun, "right")), None)
        )
        if len(runs.positions):
            newest = int(runs.records.argmax())
            stop = runs.positions[-1] + runs.lengths[-1]
            self._prefix = HeldRuns(
                runs.positions[:1],
                stop - runs.positions[:1],
                np.zeros(1, np.int64),
                runs.records[newest : newest + 1],
                runs.times_ns[newest : newest + 1],
            )

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues: JSON values and arrays.

        `compact` has to be called before.
        """
        assert not self._attached
        return {
            "begin": self.begin,
            "opened": self.opened,
            "begun": self.begun,
            "framer": self.framer and [self.framer.format.label, self.framer.state()],
            "floor": self.floor,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "cuts": [list(each) for each in self._lost_ranges],
            "held": [self.held[place] for place in _STORED_COLUMNS] if len(self._data) else None,
            "data": self._data,
            "prefix": [column.tolist() for column in self._prefix] if self._has_prefix else None,
        }

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Continue from the `state` of a stream.

        Parameters
        ----------
        framer_of
            Returns a new framer for the label of a format.

        Raises
        ------
        KeyError, TypeError, ValueError
            `state` is not such a state.
        """
        self.begin, self.floor = (
            None if state[name] is None else index(state[name]) for name in ("begin", "floor")
        )
        self.opened, self.begun = bool(state["opened"]), bool(state["begun"])
        self.first_ns, self.last_ns = int(state["first_ns"]), int(state["last_ns"])
        self._lost_ranges = [(int(start), int(stop)) for start, stop in state["cuts"]]
        if state["framer"] is not None:
            label, framed = state["framer"]
            self.framer = framer_of(label)
            self.framer.restore(framed)
        if state["held"] is not None:
            positions, lengths, records, times_ns = (
                column.astype(np.int64, casting="safe") for column in state["held"]
            )
            starts = np.cumsum(lengths) - lengths
            self.held = HeldRuns(positions, lengths, starts, records, times_ns)
            self._data = state["data"].view(np.uint8)
        if state["prefix"] is not None:
            prefix = [[index(value)] for (value,) in state["prefix"]]
            self._prefix = HeldRuns(*np.array(prefix, np.int64))
        self.held_bytes = len(self._data)
        stops = self.held.positions + self.held.lengths
        if (
            len({len(column) for column in self.held}) != 1
            or (self.held.lengths <= 0).any()
            or (self.held.lengths > len(self._data)).any()
            or (self.held.positions < -MOST_BYTES).any()
            or (stops > MOST_BYTES).any()
            or max(abs(self.begin or 0), abs(self.floor or 0)) > MOST_BYTES
            or (self.held.positions[1:] < stops[:-1]).any()
            or self.held.lengths.sum() != len(self._data)
            or (self.begin is None and self.framer is not None)
        ):
            raise ValueError("no state of a stream")

    @property
    def _has_prefix(self) -> bool:
        return len(self._prefix.positions) > 0

    def shed(self) -> None:
        """Drop everything that is held; it becomes a gap."""
        assert self.begin is not None
        if len(self.held.positions):
            stop = int(self.held.positions[-1] + self.held.lengths[-1])
            self.mark_lost(self.position, stop)
            self.floor = stop
        self.drop()

    def drop(self) -> None:
        """Drop everything that is held."""
        self.held, self.held_bytes, self._data = NO_RUNS, 0, _NO_BYTES
        self._attached = False


def merge_held(streams: Sequence[LiveStream], group: Ints, new: HeldRuns, places: Places) -> int:
    """Merge new runs with those that streams hold; each byte comes from the run captured first.

    Return the number of new bytes before the beginning of a stream that was read already.

    Parameters
    ----------
    group
        For each new run the index of its stream in `streams`.
    places
        The bytes of the new runs.
    """
    late = 0
    floors = np.array(
        [-(1 << 62) if stream.floor is None else stream.floor for stream in streams], np.int64
    )[group]
    below = np.clip(floors - new.positions, 0, new.lengths)
    if below.any():
        for at in np.flatnonzero(below).tolist():
            stream = streams[int(group[at])]
            if stream.begin is not None and new.positions[at] < stream.begin:
                late += int(min(below[at], stream.begin - new.positions[at]))
        new = new._replace(
            positions=new.positions + below,
            lengths=new.lengths - below,
            starts=new.starts + below,
        )
        filled = np.flatnonzero(new.lengths)
        new, group = HeldRuns(*(column[filled] for column in new)), group[filled]
    held, groups = [], []
    for number, stream in enumerate(streams):
        if len(stream.held.positions):
            held.append(stream.attach(places))
            groups.append(np.full(len(stream.held.positions), number, np.int64))
    rows = HeldRuns(*map(np.concatenate, zip(*held, new, strict=True)))
    group = np.concatenate([*groups, group])
    rank = np.arange(len(group))
    order = np.lexsort((rank, rows.positions, group))
    bounds = np.searchsorted(group[order], np.arange(len(streams) + 1))
    pieces = np.empty((len(Run), len(order)), np.int64)
    pieces[Run.OFFSET], pieces[Run.LENGTH] = rows.positions[order], rows.lengths[order]
    # Ranks are in the order of capture; records and times are looked up by rank afterwards.
    pieces[Run.START], pieces[Run.RECORD] = rows.starts[order], order
    runs = np.empty((len(Run), 2 * len(order)), np.int64)
    run_bounds = np.empty(len(streams) + 1, np.int64)
    heap, begins = np.empty(len(order), np.int64), np.zeros(len(streams), np.int64)
    count = merge_rows(pieces, order, bounds, begins, 0, heap, runs, 0, run_bounds)
    ranks = runs[Run.RECORD, :count]
    merged = HeldRuns(
        runs[Run.OFFSET, :count],
        runs[Run.LENGTH, :count],
        runs[Run.START, :count],
        rows.records[ranks],
        rows.times_ns[ranks],
    )
    for stream, start, stop in zip(streams, run_bounds[:-1], run_bounds[1:], strict=True):
        stream.replace_held(merged.rows(slice(int(start), int(stop))))
    return late
