"""One direction of a live connection: its bytes that are not read yet, and its holes.

Rules of this file:

1. If several segments bring a byte, the one captured first counts, as in whole captures. So bytes
   that were read stay right, whatever is captured later.
2. Bytes behind a hole are held until the hole is filled or becomes a gap. It becomes a gap some
   time after the first packet behind it: `TRUNCATED_HOLE_NS` if the snapshot length cut its bytes
   off, `ACKED_HOLE_NS` if the receiver acknowledged them, so that only the capture lacks them, else
   `HOLE_NS`. It does so at once if more than `MAX_BEHIND_BYTES` are behind it.
3. A run is held whole until the frame with its last byte is complete.
4. A run that acknowledges bytes which were not captured yet is held for `SKEW_NS`: they may have
   been captured out of order, and its time is then behind theirs.
5. Runs that were read can be held again for `RECENT_NS`, to be compared with bytes that are
   captured again. Until then, they are where they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.captures.connections.copies import APART_NS
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.connections.times import SKEW_NS
from wireyard.captures.files.places import Places
from wireyard.captures.live.held import NO_RUNS, HeldRuns
from wireyard.captures.records import NO_TIME
from wireyard.streams.framer import MOST_BYTES, Framer

_SECOND_NS: Final = 1_000_000_000
TRUNCATED_HOLE_NS: Final = _SECOND_NS // 5
"""Short, because a retransmission is mostly truncated at the same byte."""
ACKED_HOLE_NS: Final = _SECOND_NS
"""Longer than the disorder of packets from several capture queues."""
HOLE_NS: Final = 10 * _SECOND_NS
"""A lost segment is sent again after 1, 3 and 7 s (RFC 6298, 2)."""
MAX_BEHIND_BYTES: Final = 8 << 20
"""More than the largest receive window that systems have by default: 6 MiB."""
RECENT_NS: Final = APART_NS + _SECOND_NS
"""Another capture of a packet comes up to `APART_NS` later, and is compared a little later."""


_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)
_NUMBERS: Final = (1 << 32) - 1
_AHEAD: Final = 1 << 31
"""Sequence numbers less than this behind another one are ahead of it."""
_STORED_COLUMNS: Final = (0, 1, 3, 4, 5, 6)
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
    """Runs that were not read to their end, and before them those that were recalled."""
    held_bytes: int = 0
    """Size of `_data`."""
    first_ns: int = NO_TIME
    last_ns: int = NO_TIME
    """Times of the first and the last packet with bytes of this stream."""
    tail: tuple[int, int] | None = None
    """Record and time of its last run."""
    tail_stop: int = 0
    """Position where that run ends."""
    _lost_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Ranges whose bytes will not arrive, because they were truncated or dropped; ascending."""
    _data: Bytes = field(default_factory=lambda: _NO_BYTES)
    """The bytes of `held` between turns."""
    _recent: list[tuple[HeldRuns, Places]] = field(default_factory=list)
    """The runs that were read in the last turns, and where their bytes are."""
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

    def recall(self, places: Places) -> None:
        """Hold the runs that were read in the last turns until the end of this one."""
        if not self._recent:
            return
        recalled = [
            runs._replace(starts=runs.starts + places.append(data))
            for runs, data in (recent.copied(source) for recent, source in self._recent)
        ]
        self.held = HeldRuns.joined([*recalled, self.attach(places)])
        if self.floor is not None:
            self.floor = min(self.floor, int(self.held.positions[0]))
        self._recent = []

    def expire(self, places: Places) -> None:
        """Release the runs that were read in the oldest turn, whose places these are."""
        if self._recent and self._recent[0][1] is places:
            self._recent.pop(0)

    def replace_held(self, held: HeldRuns) -> None:
        """Replace the held runs by `held`, which contains them and new ones."""
        self.note_times(held.times_ns)
        self.held, self._attached = held, True
        self._note_tail()

    def _note_tail(self) -> None:
        """Set `tail` if the last held run is that of the stream."""
        if len(self.held.positions):
            stop = self.stop_of(len(self.held.positions))
            if self.tail is None or stop >= self.tail_stop:
                self.tail = int(self.held.records[-1]), int(self.held.times_ns[-1])
                self.tail_stop = stop

    def note_times(self, times_ns: Ints) -> None:
        """Extend `first_ns` and `last_ns` by the times of packets with new bytes."""
        times_ns = times_ns[times_ns != NO_TIME]
        if len(times_ns):
            first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
            self.first_ns = first_ns if self.first_ns == NO_TIME else min(self.first_ns, first_ns)
            self.last_ns = max(self.last_ns, last_ns)

    def move_times(self, times_ns: Ints) -> None:
        """Replace the times of the held runs."""
        before, self.held = self.held, self.held._replace(times_ns=times_ns)
        if self.first_ns == before.times_ns.min():
            self.first_ns = int(times_ns.min())
        if self.last_ns == before.times_ns.max():
            self.last_ns = int(times_ns.max())
        self._note_tail()

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

    @property
    def first_unread(self) -> int:
        """Index of the first held run that was not read to its end."""
        stops = self.held.positions + self.held.lengths
        expected = self.position if self.floor is None else max(self.position, self.floor)
        return int(stops.searchsorted(expected, "right"))

    def stop_of(self, count: int) -> int:
        """Return the position where the first `count` held runs end."""
        if not count:
            return self.position
        return int(self.held.positions[count - 1] + self.held.lengths[count - 1])

    def ready(self, now_ns: int, acknowledged: int | None) -> tuple[int, int | None]:
        """Return how many held runs can be read, and when a hole will become a gap, if any.

        Parameters
        ----------
        acknowledged
            Position up to which the receiver acknowledged the stream.
        """
        first = self.first_unread
        if first == len(self.held.positions):
            return first, None
        count, due_ns = self._before_hole(self.held.rows(slice(first, None)), now_ns, acknowledged)
        return first + count, due_ns

    def before_answers(self, count: int, now_ns: int, captured: int) -> tuple[int, int | None]:
        """Return how many of the runs that can be read need not wait for others; until when.

        Parameters
        ----------
        captured
            The number up to which the other stream was captured.
        """
        first = self.first_unread
        runs = self.held.rows(slice(first, count))
        ahead = runs.acknowledgments - captured & _NUMBERS
        waits = (ahead > 0) & (ahead < _AHEAD) & (runs.times_ns > now_ns - SKEW_NS)
        if not waits.any():
            return count, None
        at = int(waits.argmax())
        return first + at, int(runs.times_ns[at]) + SKEW_NS

    def _before_hole(
        self, unread: HeldRuns, now_ns: int, acknowledged: int | None
    ) -> tuple[int, int | None]:
        """Return the number of runs before a hole, and when the hole will become a gap."""
        positions, lengths = unread.positions, unread.lengths
        stops = positions + lengths
        expected = max(self.position, self.floor or self.position)
        if positions[0] <= expected and stops[-1] - positions[0] == lengths.sum():
            return len(positions), None
        previous_stops = np.r_[expected, stops[:-1]]
        for at in np.flatnonzero(positions > previous_stops).tolist():
            hole = int(previous_stops[at]), int(positions[at])
            if lengths[at:].sum() > MAX_BEHIND_BYTES:
                continue
            times_ns = unread.times_ns[at:]
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
        """Return the unread ones of the first `count` held runs as a `Stream`; of all if None."""
        held = self.attach(places).rows(slice(self.first_unread if self.framer else 0, count))
        size = 0
        if len(held.positions):
            assert self.begin is not None
            size = int(held.positions[-1] + held.lengths[-1]) - self.begin
        if len(self._prefix.positions):
            held = HeldRuns.joined([self._prefix, held])
        return stream_of(self, held, size, places)

    def compact(self, places: Places) -> bool:
        """Release the runs that were read, and copy the rest out of the places of this turn.

        Return whether any were read.
        """
        is_attached, self._attached = self._attached, False
        held = self.held
        if not is_attached or not len(held.positions):
            return False
        first = 0
        if self.framer is not None:
            position = self.position
            first = self.first_unread
            self._update_prefix(held.rows(slice(first)), position)
            self.floor = max(position, self.floor or position)
            if first < len(held.positions):
                self.floor = min(self.floor, int(held.positions[first]))
            self._lost_ranges = [each for each in self._lost_ranges if each[1] > position]
        if first:
            self._recent.append((held.rows(slice(first)), places))
        self.held, self._data = held.rows(slice(first, None)).copied(places)
        self.held_bytes = len(self._data)
        return first > 0

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
        runs = HeldRuns.joined(parts)
        runs = runs.rows(
            slice(int((runs.positions + runs.lengths).searchsorted(begun, "right")), None)
        )
        if len(runs.positions):
            newest = int(runs.records.argmax())
            stop = runs.positions[-1] + runs.lengths[-1]
            self._prefix = runs.rows(slice(newest, newest + 1))._replace(
                positions=runs.positions[:1],
                lengths=stop - runs.positions[:1],
                starts=np.zeros(1, np.int64),
            )

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues: JSON values and arrays.

        `compact` has to be called before.
        """
        assert not self._attached
        copied = [runs.copied(places) for runs, places in self._recent]
        recent, data = [runs for runs, _ in copied], [data for _, data in copied]
        return {
            "begin": self.begin,
            "opened": self.opened,
            "begun": self.begun,
            "framer": self.framer and [self.framer.format.label, self.framer.state()],
            "floor": self.floor,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "tail": self.tail and [*self.tail],
            "tail_stop": self.tail_stop,
            "cuts": [list(each) for each in self._lost_ranges],
            "held": _stored(self.held) if len(self._data) else None,
            "data": self._data,
            "recent": _stored(HeldRuns.joined(recent)) if recent else None,
            "recent_data": np.concatenate([_NO_BYTES, *data]),
            "prefix": [column.tolist() for column in self._prefix] if self._has_prefix else None,
        }

    def restore(
        self, state: Mapping[str, Any], framer_of: Callable[[str], Framer], places: Places
    ) -> None:
        """Continue from the `state` of a stream.

        Parameters
        ----------
        framer_of
            Returns a new framer for the label of a format.
        places
            Gets the bytes of the runs that were read in the last turns.

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
        self.tail_stop = int(state["tail_stop"])
        if state["tail"] is not None:
            record, time_ns = map(int, state["tail"])
            self.tail = record, time_ns
        self._lost_ranges = [(int(start), int(stop)) for start, stop in state["cuts"]]
        if state["framer"] is not None:
            label, framed = state["framer"]
            self.framer = framer_of(label)
            self.framer.restore(framed)
        self._data = state["data"].view(np.uint8)
        self.held = NO_RUNS if state["held"] is None else _restored(state["held"])
        stored = [(self.held, self._data)]
        if state["recent"] is not None:
            recent, data = _restored(state["recent"]), state["recent_data"].view(np.uint8)
            stored.append((recent, data))
            starts = recent.starts + places.append(data)
            self._recent = [(recent._replace(starts=starts), places)]
        if state["prefix"] is not None:
            prefix = [[index(value)] for (value,) in state["prefix"]]
            self._prefix = HeldRuns(*np.array(prefix, np.int64))
        self.held_bytes = len(self._data)
        if (
            not all(runs.are_of(data) for runs, data in stored)
            or max(abs(self.begin or 0), abs(self.floor or 0)) > MOST_BYTES
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
        self._recent, self._attached = [], False


def _stored(runs: HeldRuns) -> list[Ints]:
    """Return the columns of runs that are stored."""
    return [runs[place] for place in _STORED_COLUMNS]


def _restored(columns: Sequence[Ints]) -> HeldRuns:
    """Return the runs with these stored columns."""
    positions, lengths, *others = (column.astype(np.int64, casting="safe") for column in columns)
    return HeldRuns(positions, lengths, np.cumsum(lengths) - lengths, *others)
