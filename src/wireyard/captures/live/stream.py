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
   captured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final

import numpy as np

from wireyard.arrays import Grid, Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.connections.times import SKEW_NS
from wireyard.captures.files.places import Places
from wireyard.captures.live.held import NO_RUNS, Held, HeldRuns, beside, stops_of
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
_NUMBERS: Final = (1 << 32) - 1
_AHEAD: Final = 1 << 31
"""Sequence numbers less than this behind another one are ahead of it."""
_NO_ROWS: Final = np.empty(0, np.int64)


def stream_of(live: LiveStream, held: Grid, size: int, places: Places) -> Stream:
    """Return runs of a live stream as a `Stream`, with offsets counted from its `begin`."""
    assert live.begin is not None
    runs = Runs(held[Held.POSITION] - live.begin, *held[Held.LENGTH : Held.TIME])
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
        times_ns=held[Held.TIME],
        content=Content(places, _NO_ROWS, _NO_ROWS, {}),
    )


@dataclass(eq=False, slots=True)
class LiveStream:
    """One direction of a connection: its unread bytes, and the position up to which it was read."""

    name: str
    protocol: str
    src: Endpoint
    dst: Endpoint
    side: int
    """Number of its side; `NONE` for UDP."""
    table: HeldRuns
    """The runs of all streams."""
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
    first_ns: int = NO_TIME
    last_ns: int = NO_TIME
    """Times of the first and the last packet with bytes of this stream."""
    tail: tuple[int, int] | None = None
    """Record and time of its last run."""
    tail_stop: int = 0
    """Position where that run ends."""
    _lost_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Ranges whose bytes will not arrive, because they were truncated or dropped; ascending."""
    _prefix: Grid = field(default_factory=lambda: NO_RUNS)
    """One run that stands for released bytes of unfinished garbage, to keep their packet."""

    @property
    def position(self) -> int:
        """Position up to which it was read; that of its first byte before."""
        assert self.begin is not None
        return self.begin + (self.framer.position if self.framer else 0)

    @property
    def held(self) -> Grid:
        """Runs that were not read to their end, and before them those that were recalled."""
        return self.table.of(self.side)

    def note(self, held: Grid) -> None:
        """Take the times of the runs that are held, some of which are new."""
        if self.floor is None:  # all of its runs are held, and some may have replaced later ones
            self.first_ns = self.last_ns = NO_TIME
        self.note_times(held[Held.TIME])
        self._note_tail(held)

    def _note_tail(self, held: Grid) -> None:
        """Set `tail` if the last held run is that of the stream."""
        if held.shape[1]:
            _, position, length, _, record, time_ns, *_ = held[:, -1].tolist()
            if self.tail is None or position + length >= self.tail_stop:
                self.tail, self.tail_stop = (record, time_ns), position + length

    def note_times(self, times_ns: Ints) -> None:
        """Extend `first_ns` and `last_ns` by the times of packets with new bytes."""
        times_ns = times_ns[times_ns != NO_TIME]
        if len(times_ns):
            first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
            self.first_ns = first_ns if self.first_ns == NO_TIME else min(self.first_ns, first_ns)
            self.last_ns = max(self.last_ns, last_ns)

    def move_times(self, times_ns: Ints) -> None:
        """Replace the times of the held runs."""
        held = self.held
        before_ns = held[Held.TIME]
        first_ns, last_ns = int(before_ns.min()), int(before_ns.max())
        before_ns[:] = times_ns
        if self.first_ns == first_ns:
            self.first_ns = int(times_ns.min())
        if self.last_ns == last_ns:
            self.last_ns = int(times_ns.max())
        self._note_tail(held)

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
        held = self.held
        held = held[:, int(stops_of(held).searchsorted(self.begin, "right")) :]
        if held.shape[1] and (inside := max(self.begin - int(held[Held.POSITION, 0]), 0)):
            held[[Held.POSITION, Held.START], 0] += inside
            held[Held.LENGTH, 0] -= inside
        self.first_ns = self.last_ns = NO_TIME
        self.note_times(held[Held.TIME])

    def first_unread(self, held: Grid) -> int:
        """Return the index of the first held run that was not read to its end."""
        expected = self.position if self.floor is None else max(self.position, self.floor)
        return int(stops_of(held).searchsorted(expected, "right"))

    def stop_of(self, count: int) -> int:
        """Return the position where the first `count` held runs end."""
        if not count:
            return self.position
        held = self.held
        return int(held[Held.POSITION, count - 1] + held[Held.LENGTH, count - 1])

    def ready(self, now_ns: int, acknowledged: int | None) -> tuple[int, int | None]:
        """Return how many held runs can be read, and when a hole will become a gap, if any.

        `acknowledged` is the position up to which the receiver acknowledged the stream.
        """
        held = self.held
        first = self.first_unread(held)
        if first == held.shape[1]:
            return first, None
        count, due_ns = self._before_hole(held[:, first:], now_ns, acknowledged)
        return first + count, due_ns

    def before_answers(self, count: int, now_ns: int, captured: int) -> tuple[int, int | None]:
        """Return how many of the runs that can be read need not wait for others; until when.

        `captured` is the number up to which the other stream was captured.
        """
        held = self.held
        first = self.first_unread(held)
        times_ns = held[Held.TIME, first:count]
        ahead = held[Held.ACKNOWLEDGES, first:count] - (captured & _NUMBERS) & _NUMBERS
        waits = (ahead > 0) & (ahead < _AHEAD) & (times_ns > now_ns - SKEW_NS)
        if not waits.any():
            return count, None
        at = int(waits.argmax())
        return first + at, int(times_ns[at]) + SKEW_NS

    def _before_hole(
        self, unread: Grid, now_ns: int, acknowledged: int | None
    ) -> tuple[int, int | None]:
        """Return the number of runs before a hole, and when the hole will become a gap."""
        positions, lengths, stops = unread[Held.POSITION], unread[Held.LENGTH], stops_of(unread)
        expected = max(self.position, self.floor or self.position)
        if positions[0] <= expected and stops[-1] - positions[0] == lengths.sum():
            return len(positions), None
        previous_stops = np.r_[expected, stops[:-1]]
        for at in np.flatnonzero(positions > previous_stops).tolist():
            hole = int(previous_stops[at]), int(positions[at])
            if lengths[at:].sum() > MAX_BEHIND_BYTES:
                continue
            times_ns = unread[Held.TIME, at:]
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
        held = self.held
        held = held[:, self.first_unread(held) if self.framer else 0 : count]
        size = 0
        if held.shape[1]:
            assert self.begin is not None
            size = int(stops_of(held)[-1]) - self.begin
        if self._prefix.shape[1]:
            held = beside([self._prefix, held])
        return stream_of(self, held, size, places)

    def release(self, held: Grid) -> int:
        """Return how many of the runs that are held were read, and discard further bytes of them.

        They are not needed any more, except to be compared with bytes that come again.
        """
        position, first = self.position, self.first_unread(held)
        self._update_prefix(held[:, :first], position)
        self.floor = max(position, self.floor or position)
        if first < held.shape[1]:
            self.floor = min(self.floor, int(held[Held.POSITION, first]))
        self._lost_ranges = [each for each in self._lost_ranges if each[1] > position]
        return first

    def _update_prefix(self, read: Grid, position: int) -> None:
        """Keep the newest packet of released runs that unfinished garbage began in."""
        assert self.framer is not None and self.begin is not None
        begun = self.begin + self.framer.frame_start
        if begun == position:
            self._prefix = NO_RUNS
            return
        runs = beside([self._prefix, read])
        runs = runs[:, int(stops_of(runs).searchsorted(begun, "right")) :]
        if runs.shape[1]:
            newest = int(runs[Held.RECORD].argmax())
            first, stop = int(runs[Held.POSITION, 0]), int(stops_of(runs)[-1])
            self._prefix = runs[:, newest : newest + 1].copy()
            self._prefix[Held.POSITION : Held.RECORD, 0] = first, stop - first, 0

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues, as JSON values."""
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
            "prefix": self._prefix[:, 0].tolist() if self._prefix.shape[1] else None,
        }

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Continue from the `state` of a stream.

        `framer_of` returns a new framer for the label of a format. `KeyError`, `TypeError` or
        `ValueError` is raised if `state` is not such a state.
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
        if state["prefix"] is not None:
            prefix = [[index(value)] for value in state["prefix"]]
            self._prefix = np.array(prefix, np.int64).reshape(len(Held), 1)
        if max(abs(self.begin or 0), abs(self.floor or 0)) > MOST_BYTES or (
            self.begin is None and self.framer is not None
        ):
            raise ValueError("no state of a stream")

    def shed(self) -> None:
        """Drop everything that is held; it becomes a gap."""
        held = self.held
        if held.shape[1]:
            self.floor = int(stops_of(held)[-1])
            self.mark_lost(self.position, self.floor)
        self.table.drop(self.side)
