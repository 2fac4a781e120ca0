"""One direction of a connection while it is captured: the bytes that wait, and for what.

Rules of this file:

1. Of a byte that several segments bring, the one captured first counts, as where whole captures
   are read; so what was passed on stays right whatever comes later.
2. Bytes behind a hole wait until it is filled or given up: `CUT_HOLE_NS` after the first of them if
   its bytes were cut off by the snapshot length, `ACKED_HOLE_NS` if the receiver acknowledged them,
   so that the capture has lost them, else `HOLE_NS`; and with over `MAX_BEHIND_BYTES` behind it.
   Then it is a gap.
3. Runs are held whole until the frame has ended that has their last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.captures.flows import Endpoint
from wireyard.captures.merge_kernels import Run, merge_rows
from wireyard.captures.places import Places
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream import Content, Runs, Stream
from wireyard.streams.framer import Framer

__all__ = ["Held", "LiveStream", "merge_held", "stream_of"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_SECOND_NS: Final = 1_000_000_000
CUT_HOLE_NS: Final = _SECOND_NS // 5
"""What is sent again is mostly cut off at the same place."""
ACKED_HOLE_NS: Final = _SECOND_NS
"""Packets are captured out of order by less, where a capture has several queues."""
HOLE_NS: Final = 10 * _SECOND_NS
"""A lost segment is sent again after 1, 3 and 7 s (RFC 6298, 2)."""
MAX_BEHIND_BYTES: Final = 8 << 20
"""Over the largest window that systems give a connection by default: 6 MiB."""


class Held(NamedTuple):
    """Runs of bytes at positions of their stream, ascending, that do not overlap.

    Shapes: all columns (u). `starts` are those in the places of a turn.
    """

    positions: Ints
    lengths: Ints
    starts: Ints
    records: Ints
    times_ns: Ints

    def rows(self, rows: slice) -> Held:
        """Return some of them."""
        return Held(*(column[rows] for column in self))


NOTHING: Final = Held(*np.empty((5, 0), np.int64))
_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)
_KEPT: Final = (0, 1, 3, 4)
"""Columns of `Held` that a state has; `starts` follow from the lengths."""
_NO_ROWS: Final = np.empty(0, np.int64)


def stream_of(live: LiveStream, held: Held, size: int, places: Places) -> Stream:
    """Return runs of a stream, whose first byte is at its position `begin`, as a stream."""
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
        ended=None,
        closing_record=None,
        runs=runs,
        times_ns=held.times_ns,
        content=Content(places, _NO_ROWS, _NO_ROWS, {}),
    )


@dataclass(eq=False, slots=True)
class LiveStream:
    """What is held of a stream, and how far it was read."""

    name: str
    protocol: str
    src: Endpoint
    dst: Endpoint
    begin: int | None = None
    """The position of its first byte; None until it is settled."""
    opened: bool = False
    """Whether the capture shows that its sender opened the connection."""
    begun: bool = False
    """Whether the capture shows that it begins there."""
    framer: Framer | None = None
    """How far it was read; None before its format is known."""
    floor: int | None = None
    """Position below which no byte is taken any more; None while all are."""
    held: Held = NOTHING
    held_bytes: int = 0
    """How much of memory it has for itself."""
    first_ns: int = NO_TIME
    last_ns: int = NO_TIME
    """When the first and the last packet was captured that brought some of its bytes."""
    _cuts: list[tuple[int, int]] = field(default_factory=list)
    """Positions that hold no byte that will come: cut off, or not held any more; ascending."""
    _data: Bytes = field(default_factory=lambda: _NO_BYTES)
    _attached: bool = False
    """Whether `starts` of what is held are in the places of this turn, not in `_data`."""
    _prefix: Held = NOTHING
    """A run for the garbage that was read of the frame under way, which has no bytes any more."""

    @property
    def reached(self) -> int:
        """The position that it was read up to; that of its first byte if it was not."""
        assert self.begin is not None
        return self.begin + (self.framer.position if self.framer else 0)

    def attach(self, places: Places) -> Held:
        """Return what is held, with its bytes in the places of a turn."""
        if not self._attached:
            self._attached = True
            if len(self._data):
                self.held = self.held._replace(starts=self.held.starts + places.append(self._data))
        return self.held

    def take(self, held: Held) -> None:
        """Hold these runs from now on, which have those that were held before."""
        self.span(held.times_ns)
        self.held, self._attached = held, True

    def span(self, times_ns: Ints) -> None:
        """Take note of when packets were captured that brought something new."""
        times_ns = times_ns[times_ns != NO_TIME]
        if len(times_ns):
            first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
            self.first_ns = first_ns if self.first_ns == NO_TIME else min(self.first_ns, first_ns)
            self.last_ns = max(self.last_ns, last_ns)

    def cut(self, start: int, stop: int) -> None:
        """Take note that the bytes at ``[start, stop)`` will not come."""
        if self._cuts and self._cuts[-1][0] <= start <= self._cuts[-1][1]:
            start, stop = self._cuts[-1][0], max(stop, self._cuts[-1][1])
            self._cuts.pop()
        self._cuts.append((start, stop))

    def skip(self, size: int) -> None:
        """Begin behind the first `size` bytes, which are no part of the stream."""
        assert self.begin is not None
        self.begin += size
        self.floor = self.begin
        first = int((self.held.positions + self.held.lengths).searchsorted(self.begin, "right"))
        held = Held(*(column.copy() for column in self.held.rows(slice(first, None))))
        if len(held.positions) and (inside := max(self.begin - int(held.positions[0]), 0)):
            held.positions[0] += inside
            held.starts[0] += inside
            held.lengths[0] -= inside
        self.held = held
        self.first_ns = self.last_ns = NO_TIME
        self.span(held.times_ns)

    def ready(self, now_ns: int, acknowledged: int | None) -> tuple[int, int | None]:
        """Return how many of the held runs can be read, and when more can though none arrive.

        Parameters
        ----------
        acknowledged
            The position that the receiver's last acknowledgment stands for.
        """
        positions, lengths = self.held.positions, self.held.lengths
        if not len(positions):
            return 0, None
        stops = positions + lengths
        expected = max(self.reached, self.floor or self.reached)
        if positions[0] <= expected and stops[-1] - positions[0] == lengths.sum():
            return len(positions), None
        before = np.r_[expected, stops[:-1]]
        for at in np.flatnonzero(positions > before).tolist():
            hole = int(before[at]), int(positions[at])
            if lengths[at:].sum() > MAX_BEHIND_BYTES:
                continue
            times_ns = self.held.times_ns[at:]
            times_ns = times_ns[times_ns != NO_TIME]
            if not len(times_ns):
                return at, None
            acked = acknowledged is not None and acknowledged >= hole[1]
            wait_ns = ACKED_HOLE_NS if acked else HOLE_NS
            due_ns = int(times_ns.min()) + (CUT_HOLE_NS if self._is_cut(*hole) else wait_ns)
            if now_ns < due_ns:
                return at, due_ns
        return len(positions), None

    def _is_cut(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self._cuts)

    def seen(self, places: Places, count: int | None = None) -> Stream:
        """Return the first `count` of the held runs as a stream, all if None."""
        held = self.attach(places).rows(slice(count))
        size = 0
        if len(held.positions):
            assert self.begin is not None
            size = int(held.positions[-1] + held.lengths[-1]) - self.begin
        if len(self._prefix.positions):
            held = Held(*map(np.concatenate, zip(self._prefix, held, strict=True)))
        return stream_of(self, held, size, places)

    def keep(self, places: Places) -> None:
        """Let go of what was read, and hold the rest without the places of this turn."""
        if not self._attached:
            return
        held = self.held
        first = 0
        if self.framer is not None:
            reached = self.reached
            first = int((held.positions + held.lengths).searchsorted(reached, "right"))
            self._keep_prefix(held.rows(slice(first)), reached)
            self.floor = max(reached, self.floor or reached)
            if first < len(held.positions):
                self.floor = min(self.floor, int(held.positions[first]))
            self._cuts = [each for each in self._cuts if each[1] > reached]
        held = held.rows(slice(first, None))
        size = int(held.lengths.sum())
        self._data, self._attached = _NO_BYTES, False
        if size:
            self._data = np.empty(size, np.uint8)
            places.copy(held.starts, held.lengths, self._data)
            columns = [column.copy() for column in held]
            self.held = Held(*columns)._replace(starts=np.cumsum(held.lengths) - held.lengths)
        else:
            self.held = NOTHING
        self.held_bytes = size

    def _keep_prefix(self, read: Held, reached: int) -> None:
        """Keep of runs that were read when the newest of those came that garbage began in."""
        assert self.framer is not None and self.begin is not None
        begun = self.begin + self.framer.begun_at
        if begun == reached:
            self._prefix = NOTHING
            return
        parts = [part for part in (self._prefix, read) if len(part.positions)]
        if not parts:
            return
        runs = Held(*map(np.concatenate, zip(*parts, strict=True)))
        runs = runs.rows(
            slice(int((runs.positions + runs.lengths).searchsorted(begun, "right")), None)
        )
        if len(runs.positions):
            newest = int(runs.records.argmax())
            stop = runs.positions[-1] + runs.lengths[-1]
            self._prefix = Held(
                runs.positions[:1],
                stop - runs.positions[:1],
                np.zeros(1, np.int64),
                runs.records[newest : newest + 1],
                runs.times_ns[newest : newest + 1],
            )

    def state(self) -> dict[str, Any]:
        """Return what another goes on with: values of JSON, arrays of integers, and bytes.

        Nothing is to be attached.
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
            "cuts": [list(each) for each in self._cuts],
            "held": [self.held[place] for place in _KEPT] if len(self._data) else None,
            "data": self._data,
            "prefix": [column.tolist() for column in self._prefix] if self._has_prefix else None,
        }

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Go on where another stood.

        Parameters
        ----------
        framer_of
            Makes a framer of a format.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is no such state.
        """
        self.begin, self.floor = state["begin"], state["floor"]
        self.opened, self.begun = bool(state["opened"]), bool(state["begun"])
        self.first_ns, self.last_ns = int(state["first_ns"]), int(state["last_ns"])
        self._cuts = [(int(start), int(stop)) for start, stop in state["cuts"]]
        if state["framer"] is not None:
            label, framed = state["framer"]
            self.framer = framer_of(label)
            self.framer.restore(framed)
        if state["held"] is not None:
            positions, lengths, records, times_ns = state["held"]
            starts = np.cumsum(lengths) - lengths
            self.held = Held(positions, lengths, starts, records, times_ns)
            self._data = state["data"].view(np.uint8)
        if state["prefix"] is not None:
            self._prefix = Held(*(np.array(column, np.int64) for column in state["prefix"]))
        self.held_bytes = len(self._data)
        stops = self.held.positions + self.held.lengths
        if (
            len({len(column) for column in self.held}) != 1
            or (self.held.lengths <= 0).any()
            or (self.held.positions[1:] < stops[:-1]).any()
            or self.held.lengths.sum() != len(self._data)
        ):
            raise ValueError("no state of a stream")

    @property
    def _has_prefix(self) -> bool:
        return len(self._prefix.positions) > 0

    def shed(self) -> None:
        """Let go of all that is held; it becomes a gap."""
        assert self.begin is not None
        if len(self.held.positions):
            stop = int(self.held.positions[-1] + self.held.lengths[-1])
            self.cut(self.reached, stop)
            self.floor = stop
        self.drop()

    def drop(self) -> None:
        """Hold nothing any more."""
        self.held, self.held_bytes, self._data = NOTHING, 0, _NO_BYTES
        self._attached = False


def merge_held(streams: Sequence[LiveStream], group: Ints, new: Held, places: Places) -> int:
    """Have streams hold new rows besides what they hold; each byte from the first that has it.

    Return how many bytes came before the first byte of their stream, which was read already.

    Parameters
    ----------
    group
        The place among the streams of each row.
    places
        Where the bytes of new rows are.
    """
    late = 0
    floors = np.array(
        [-(1 << 62) if one.floor is None else one.floor for one in streams], np.int64
    )[group]
    below = np.clip(floors - new.positions, 0, new.lengths)
    if below.any():
        for at in np.flatnonzero(below).tolist():
            one = streams[int(group[at])]
            if one.begin is not None and new.positions[at] < one.begin:
                late += int(min(below[at], one.begin - new.positions[at]))
        new = new._replace(
            positions=new.positions + below,
            lengths=new.lengths - below,
            starts=new.starts + below,
        )
        left = np.flatnonzero(new.lengths)
        new, group = Held(*(column[left] for column in new)), group[left]
    held, groups = [], []
    for number, one in enumerate(streams):
        if len(one.held.positions):
            held.append(one.attach(places))
            groups.append(np.full(len(one.held.positions), number, np.int64))
    rows = Held(*map(np.concatenate, zip(*held, new, strict=True)))
    group = np.concatenate([*groups, group])
    rank = np.arange(len(group))
    order = np.lexsort((rank, rows.positions, group))
    bounds = np.searchsorted(group[order], np.arange(len(streams) + 1))
    pieces = np.empty((len(Run), len(order)), np.int64)
    pieces[Run.OFFSET], pieces[Run.LENGTH] = rows.positions[order], rows.lengths[order]
    # The rank contains the time; the record follows from it.
    pieces[Run.START], pieces[Run.RECORD] = rows.starts[order], order
    runs = np.empty((len(Run), 2 * len(order)), np.int64)
    run_bounds = np.empty(len(streams) + 1, np.int64)
    heap, begins = np.empty(len(order), np.int64), np.zeros(len(streams), np.int64)
    count = merge_rows(pieces, order, bounds, begins, 0, heap, runs, 0, run_bounds)
    ranks = runs[Run.RECORD, :count]
    merged = Held(
        runs[Run.OFFSET, :count],
        runs[Run.LENGTH, :count],
        runs[Run.START, :count],
        rows.records[ranks],
        rows.times_ns[ranks],
    )
    for one, start, stop in zip(streams, run_bounds[:-1], run_bounds[1:], strict=True):
        one.take(merged.rows(slice(int(start), int(stop))))
    return late
