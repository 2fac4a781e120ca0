"""Live capture: the streams of a capture whose records are still arriving.

Each batch of new records goes through the code that reads whole captures: headers, fragments,
connections (`Placer`), overlapping segments (`merge_rows`), formats (`CapturedConnection`).
`connections` has the connections, `stream` the bytes of a stream that are not read yet, and
`readable` the rules for which of them can be read. This file schedules the reading and evicts
connections.

Rules of this file:

1. The current time is that of the latest record; while none arrives, the clock advances it.
2. All state is bounded: see the limits of `LiveCapture`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from heapq import heappop, heappush
from operator import attrgetter, index
from typing import Any, Final

import numpy as np

from wireyard.arrays import Bytes, Grid, Int32s, Ints
from wireyard.captures.carriers.tls_keys import KeyLog
from wireyard.captures.connections.copies import Copy, name_copy
from wireyard.captures.connections.flows import stream_name
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.tcp_kernels import SILENCE_NS, Connection, Verdict
from wireyard.captures.connections.times import Clock
from wireyard.captures.detection.assignment import Assigned, DecodeAs
from wireyard.captures.files.places import Places
from wireyard.captures.layout import Protocol, Unit
from wireyard.captures.live.connections import (
    LINGER_NS,
    Holding,
    LiveConnections,
    OpenConnection,
    Stage,
)
from wireyard.captures.live.copies import NEVER
from wireyard.captures.live.held import RECENT_NS, Held
from wireyard.captures.live.readable import LiveReader
from wireyard.captures.live.stream import LiveStream, stream_of
from wireyard.captures.packets.headers import PacketReader, Tally
from wireyard.captures.packets.units import Units
from wireyard.captures.records import NO_TIME, Records
from wireyard.captures.repairs import NO_REPAIRS, Repairs, differing_segment
from wireyard.captures.stream_table import describe_stream
from wireyard.formats import Format
from wireyard.streams.blocks import Grown

_SWEEP_NS: Final = 1_000_000_000
"""Capture time between two searches for connections that have ended or are silent."""
MAX_HELD_BYTES: Final = 128 << 20
"""Unread bytes of all streams together. Above it, those of the largest connections are dropped."""
MAX_OPEN: Final = 1 << 16
"""Connections with bytes that are tracked at a time, at about 4 KB each: 256 MB."""
_MOST_UNKNOWN: Final = 256
"""Streams of unknown format that are listed at the end; further ones are only counted."""
_CONNECTIONS_PER_TURN: Final = 256
"""Connections whose last bytes are read together when the capture ends."""
_OUTER: Final = ("paired", "ended", "ended_frame", "ended_ns")
"""Columns of a stream inside others that are those of the stream which carries it."""
_EVICT_FROM: Final = 1 << 12
"""Connections that are over are evicted once they are more than this, and more than half of all."""


StreamFacts = tuple[str, dict[str, Any]]
"""The name of a stream, and its columns from the capture: see `describe_stream`."""


class LiveCapture:
    """A capture whose records are still arriving, and its connections.

    `name` is the source, as in the column `source`. `named`, `rules` and `keys` are as for
    `find_formats`. Packets of up to `max_packet_bytes` are accepted as one; None for the format's
    own bound. With `describes`, the columns of streams that have ended are kept for `take_ended`.
    Memory is needed for `MAX_HELD_BYTES` of streams, for `MAX_OPEN` connections with bytes, as many
    UDP conversations, for one batch of records and its columns, and 250 bytes for each connection
    until `LINGER_NS` after its end, or until it was silent for `SILENCE_NS`.
    """

    def __init__(
        self,
        name: str,
        named: Format | None = None,
        rules: Sequence[DecodeAs] = (),
        keys: KeyLog | None = None,
        max_packet_bytes: int | None = None,
        *,
        describes: bool = False,
    ) -> None:
        self.name = name
        self.unknown: list[Assigned] = []
        """The first ended streams of unknown format, except those of a port mapper."""
        self.unnamed = Counter[str]()
        """The number of further ones, as ``streams``, and their ``bytes``."""
        self.dropped_bytes = 0
        """Bytes that were dropped because of `MAX_HELD_BYTES`, and are gaps now."""
        self.late_bytes = 0
        """Bytes before the first byte of their stream that arrived after that was read."""
        self._packets = PacketReader()
        self.connections = LiveConnections(self._packets.places)
        self._clock = Clock()
        self._repairs = NO_REPAIRS
        settings = named, rules, KeyLog() if keys is None else keys, max_packet_bytes
        self.reader = LiveReader(name, *settings, self._packets, self.connections)
        self._describes = describes
        self._ended: list[StreamFacts] = []
        self._touched: set[LiveStream] = set()
        self._due: list[tuple[int, int, OpenConnection]] = []
        self._pushed = 0
        self._now_ns = NO_TIME
        self._swept_ns = NO_TIME

    @property
    def repairs(self) -> Repairs:
        """What was repaired so far."""
        return self._repaired(moved_ns=self._clock.moved_ns)

    @property
    def frames(self) -> int:
        """Number of records so far."""
        return self._packets.count

    @property
    def last_ns(self) -> int | None:
        """Time of the last record so far, as of `Clock`; None after copies, which have another."""
        return None if self._repairs.copies else self._clock.now_ns

    @property
    def tally(self) -> Tally:
        """Counts of its packets."""
        return self._packets.tally

    # --- columns of streams -----------------------------------------------------------------

    def describe(self) -> Iterator[StreamFacts]:
        """Yield the columns of the streams that are being read and have not ended."""
        for connection in (*self.connections.open.values(), *self.connections.datagrams.values()):
            yield from self._described(connection)

    def take_ended(self) -> list[StreamFacts]:
        """Return the columns of the streams that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _described(self, connection: OpenConnection) -> Iterator[StreamFacts]:
        """Yield the columns of `describe_stream` for the streams of a connection."""
        if connection.stage not in (Stage.CARRIED, Stage.READ):
            return
        facts = self.connections.facts(connection)
        if connection.stage == Stage.READ:
            yield from facts.items()
        for each in connection.assigned if connection.stage == Stage.CARRIED else ():
            if each.format is not None and not each.closed:
                outer = facts[each.captured.name]
                inner = describe_stream(each.stream)
                yield each.stream.name, inner | {name: outer[name] for name in _OUTER}

    # --- state for another process ----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state from which another `LiveCapture` continues: JSON values and arrays.

        Everything that `receive` returned has to be read before. Ignored connections are stored
        as ignored, without their bytes.
        """
        self._release_read()
        return {
            "packets": self._packets.state(),
            **self.connections.state(),
            **self.reader.state(),
            "now_ns": self._now_ns,
            "swept_ns": self._swept_ns,
            "unnamed": dict(self.unnamed),
            "clock": [self._clock.moved_ns, self._clock.latest_ns],
            "last_ns": self._clock.last_ns,
            "repairs": asdict(self.repairs),
            "dropped_bytes": self.dropped_bytes,
            "late_bytes": self.late_bytes,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of another capture with the same settings.

        `KeyError`, `TypeError`, `ValueError`, `IndexError` or `AttributeError` is raised if `state`
        is not such a state.
        """
        self._packets.restore(state["packets"])
        self.connections.restore(state)
        self.reader.restore(state)
        self._now_ns, self._swept_ns = int(state["now_ns"]), int(state["swept_ns"])
        for kind in ("open", "ended", "datagrams"):
            for each in state[kind]:
                connection = self.connections.restore_connection(each, kind)
                connection.restore(each, self.reader.framer_of)
                if each["due_ns"] is not None:
                    self._schedule(connection, int(each["due_ns"]))
        held = (*self.connections.open.values(), *self.connections.ended.values())
        sides = [stream.side for connection in held for stream in connection.sides]
        self.connections.held.restore(state, self._now_ns, sides)
        self.connections.copies.restore(state)
        self._clock.moved_ns, self._clock.latest_ns = map(int, state["clock"])
        self._clock.see(state["last_ns"].astype(np.int64))
        self._repairs = Repairs.load(state["repairs"])
        self.unnamed = Counter(state["unnamed"])
        self.dropped_bytes = index(state["dropped_bytes"])
        self.late_bytes = index(state["late_bytes"])

    # --- input ------------------------------------------------------------------------------

    def receive(self, data: Bytes, records: Records) -> list[Grown]:
        """Add `records`, whose bytes are in `data`; return the streams with bytes to read.

        The streams returned by the previous call have to be read before this call.
        """
        self._release_read()
        self._packets.begin(data)
        grid, times_ns = self._packets.read(records)
        self._clock.see(records.times_ns)
        if len(records) and records.times_ns[-1] != NO_TIME:
            self._now_ns = int(records.times_ns[-1])
        if not grid.shape[1]:
            return self._advance_due()
        grid = np.ascontiguousarray(grid)
        times_ns = self._clock.steady(times_ns, grid[Unit.CAPTURED] > 0)
        flows = self.connections.flows.number(grid, grid.shape[1])
        is_tcp = grid[Unit.PROTOCOL] == Protocol.TCP
        rows = np.flatnonzero(is_tcp)
        segments = Units.of(grid[:, rows], flows[rows])
        connections, placer = self.connections, self.connections.placer
        before = len(placer)
        placed = placer.place(segments, times_ns[rows], len(connections.flows))
        sides, positions, verdicts, late = placed
        others = np.flatnonzero(~is_tcp)
        datagrams = grid[:, others], flows[others]
        replaced = connections.add_new(before, segments, times_ns[rows], *datagrams)
        connections.copies.follow(sides, positions)
        for connection in replaced:
            self._schedule(connection, self._now_ns + LINGER_NS)
        changed = self._receive_segments(segments, times_ns[rows], sides, positions, verdicts)
        out_of_order = set((sides[late != 0] >> 1).tolist())
        readable: list[Grown] = []
        for connection in changed:
            connection.out_of_order |= connection.number in out_of_order
        connections.held.recall(
            [one for each in changed if each.out_of_order for one in each.sides]
        )
        for connection in sorted(changed, key=lambda each: not each.suspects):
            if connection.number not in self.connections.open:
                continue
            if connection.out_of_order:
                self._repairs = self._repaired(moved_ns=self.connections.order(connection))
                self._touched.update(connection.sides)
            readable += self._advance(connection)
        paired = connections.copies.pair_flows(flows[others])
        readable += self._receive_datagrams(grid[:, others], paired, times_ns[others])
        readable += self._advance_due()
        most = max(len(self.connections.open), len(self.connections.datagrams))
        if most > MAX_OPEN or self._now_ns - self._swept_ns >= _SWEEP_NS:
            readable += self._sweep()
        return readable

    @property
    def now_ns(self) -> int | None:
        """Time of the latest frame; None before the first."""
        return None if self._now_ns == NO_TIME else self._now_ns

    def wait(self, idle_ns: int) -> list[Grown]:
        """Return the streams that can be read because nothing has arrived for `idle_ns`."""
        self._release_read()
        now_ns = self._now_ns
        if now_ns == NO_TIME:
            return []
        self._now_ns += idle_ns
        readable = self._advance_due()
        self._now_ns = now_ns
        return readable

    def end(self) -> Iterator[list[Grown]]:
        """Yield the rest of all TCP streams, in batches; each has to be read before the next.

        UDP streams have no rest: datagrams are read at once.
        """
        self._release_read()
        for connection in [*self.connections.open.values()]:
            if connection.suspects:
                self._is_another(connection, None, final=True)
        self.connections.open_all_lost(np.ones(len(self.connections.holdings), np.bool_))
        last = sorted(self.connections.open.values(), key=attrgetter("number"))
        for first in range(0, len(last), _CONNECTIONS_PER_TURN):
            batch = last[first : first + _CONNECTIONS_PER_TURN]
            yield [grown for each in batch for grown in self._advance(each, final=True)]
            self._release_read()
        for connection in [*self.connections.datagrams.values()]:
            self._close(connection)

    # --- segments ---------------------------------------------------------------------------

    def _receive_segments(
        self,
        segments: Units,
        times_ns: Ints,
        sides: Int32s,
        positions: Ints,
        verdicts: Bytes,
    ) -> list[OpenConnection]:
        """Add the bytes of segments to their streams; return the connections that changed."""
        wanted = self.connections.holdings[sides >> 1] < Holding.IGNORED
        taken = wanted & (verdicts == Verdict.TAKEN) & (segments.captured > 0)
        truncated = np.flatnonzero(wanted & (segments.captured < segments.lengths))
        rows = np.flatnonzero(taken)
        streams = [
            self.connections.get_or_open(side >> 1).sides[side & 1]
            for side in np.unique(sides[rows]).tolist()
        ]
        for row in truncated.tolist():
            if verdicts[row] == Verdict.TAKEN:
                side, stop = int(sides[row]), int(positions[row] + segments.lengths[row])
                stream = self.connections.get_or_open(side >> 1).sides[side & 1]
                stream.mark_lost(int(positions[row] + segments.captured[row]), stop)
        if len(rows):
            at = segments.captured, segments.starts, segments.records
            columns = sides, positions, *at, times_ns, segments.acknowledgments, times_ns
            new = np.array([column[rows] for column in columns], np.int64)
            self._merge(streams, new)
        # An end or an acknowledgment can make bytes readable that were held before.
        touched = np.unique(sides[wanted] >> 1).tolist()
        return [
            self.connections.open[number] for number in touched if number in self.connections.open
        ]

    def _merge(self, streams: Sequence[LiveStream], new: Grid) -> None:
        """Add runs to streams; see `HeldRuns.merge`."""
        self._touched.update(streams)
        late_bytes, differing = self.connections.held.merge(streams, new)
        self.late_bytes += late_bytes
        if differing:
            placed = [
                differing_segment(record, stream_name(stream.src, stream.dst, 1))
                for stream, record in differing
            ]
            self._repairs = self._repaired(differing=len(placed), different=placed)

    def _repaired(self, **more: Any) -> Repairs:
        """Return what was repaired so far, and more."""
        return Repairs.total([self._repairs, Repairs(**more)])

    # --- datagrams --------------------------------------------------------------------------

    def _receive_datagrams(self, grid: Grid, flows: Ints, times_ns: Ints) -> list[Grown]:
        """Return the streams of these datagrams, which can be read at once."""
        readable: list[Grown] = []
        for flow in np.unique(flows).tolist():
            rows = np.flatnonzero(flows == flow)
            connection = self.connections.datagrams[flow >> 1]
            stream = connection.sides[flow & 1]
            connection.latest_ns = int(times_ns[rows[-1]])
            lengths, captured = grid[Unit.LENGTH, rows], grid[Unit.CAPTURED, rows]
            if stream.begin is None:
                stream.begin = stream.floor = 0
            assert stream.floor is not None
            stops = stream.floor + np.cumsum(lengths)
            held = np.zeros((len(Held), len(rows)), np.int64)
            held[Held.POSITION], held[Held.LENGTH] = stops - lengths, captured
            held[[Held.START, Held.RECORD]] = grid[[[Unit.START], [Unit.RECORD]], rows]
            held[Held.TIME] = times_ns[rows]
            held = held.compress(captured > 0, axis=1)
            stream.floor = int(stops[-1])
            stream.note_times(held[Held.TIME])
            if not stream.floor:
                continue
            live = stream_of(stream, held, stream.floor, self._packets.places)
            readable += self.reader.read_datagrams(connection, stream, live)
        return readable

    # --- reading ----------------------------------------------------------------------------

    def _advance(self, connection: OpenConnection, *, final: bool = False) -> list[Grown]:
        """Return the streams of a connection that can be read now; schedule the next look at it.

        With `final`, this is the last time: its holes become gaps, and the connection is closed.
        """
        due_ns: list[int] = []
        ready = {}
        ended_ns = self.connections.ended_ns(connection)
        final = final or (ended_ns is not None and self._now_ns >= ended_ns)
        if connection.suspects and not self._is_another(connection, ended_ns, final=final):
            return []
        if self._now_ns < connection.waits_ns and not final:
            self._schedule(connection, connection.waits_ns)
            return []
        for direction, stream in enumerate(connection.sides):
            if connection.stage == Stage.IGNORED or not self.reader.find_beginning(
                connection, direction, self._now_ns, due_ns, final=final
            ):
                continue
            acknowledged = self.connections.acknowledged(connection, direction)
            count, later_ns = stream.ready(self._now_ns, acknowledged)
            ready[stream.name] = stream.held.shape[1] if final else count
            self._touched.add(stream)
            if later_ns is not None:
                due_ns.append(later_ns)
        if not final:
            due_ns += self._hold_answers(connection, ready)
        if connection.stage == Stage.UNKNOWN:
            self.reader.detect_format(connection, ready, self._now_ns, final=final)
        if ended_ns is not None:
            final = final or self.connections.is_complete(connection, ready)
            due_ns.append(ended_ns)
        readable = self.reader.read(connection, ready, final=final)
        if connection.stage == Stage.IGNORED:
            self._ignore(connection)
        if final:
            self._close(connection)
        elif due_ns:
            self._schedule(connection, min(due_ns))
        return readable

    def _hold_answers(self, connection: OpenConnection, ready: dict[str, int]) -> Iterator[int]:
        """Leave out runs that acknowledge bytes which were not captured; yield until when."""
        reached = [ready.get(stream.name, 0) for stream in connection.sides]
        for direction, stream in enumerate(connection.sides):
            if reached[direction]:
                captured = self.connections.acknowledged_ahead(
                    connection, direction ^ 1, reached[direction ^ 1]
                )
                if captured is not None:
                    count, until_ns = stream.before_answers(
                        reached[direction], self._now_ns, captured
                    )
                    ready[stream.name] = count
                    if until_ns is not None:
                        yield until_ns

    def _is_another(self, connection: OpenConnection, ended_ns: int | None, *, final: bool) -> bool:
        """Return whether a connection is certain to be no copy; join it if it is one."""
        while connection.suspects:
            for each in (connection, *self.connections.suspected(connection)):
                self._touched.update(each.sides)
            copy = self.connections.copies.conclude(connection, self._now_ns, final=final)
            if isinstance(copy, Copy):
                self._join(connection, copy)
                return False
            if copy is not None:
                for each in self.connections.suspected(connection) if copy < NEVER else ():
                    each.waits_ns = max(each.waits_ns, copy)
                self._schedule(connection, copy if ended_ns is None else min(copy, ended_ns))
                return False
            self.connections.distinguish(connection)
        return True

    def _join(self, connection: OpenConnection, copy: Copy) -> None:
        """Give the bytes of a copy to the connection that it is a copy of."""
        placer, copies = self.connections.placer, self.connections.copies
        earlier = self.connections.join(connection, copy)
        if copy.common_bytes:
            placed = name_copy(copy, placer.connections, self.connections.flows)
            self._repairs = self._repaired(copies=1, copied=[placed])
        for way, stream in enumerate(connection.sides):
            side, shift = copies.target(2 * copy.number + way)
            held = stream.held
            if earlier is not None and not earlier.is_ignored and held.shape[1]:
                moved = held.copy()
                moved[Held.SIDE] = side
                moved[Held.POSITION] += shift
                self._merge([earlier.sides[side & 1]], moved)
        self._drop(connection)
        if earlier is None:
            return
        if copy.common_bytes and not earlier.is_ignored:  # by another clock, perhaps
            earlier.out_of_order = True
            self.connections.held.recall(earlier.sides)
            self._repairs = self._repaired(moved_ns=self.connections.order(earlier))
            self._touched.update(earlier.sides)
        self._schedule(earlier, self._now_ns)

    # --- timers and limits ------------------------------------------------------------------

    def _schedule(self, connection: OpenConnection, due_ns: int) -> None:
        """Advance a connection at `due_ns` at the latest."""
        if connection.due_ns is None or due_ns < connection.due_ns:
            connection.due_ns = due_ns
            self._pushed += 1
            heappush(self._due, (due_ns, self._pushed, connection))

    def _advance_due(self) -> list[Grown]:
        """Return the streams that can be read of connections that are due."""
        readable: list[Grown] = []
        while self._due and self._due[0][0] <= self._now_ns:
            due_ns, _, connection = heappop(self._due)
            if connection.due_ns == due_ns:
                connection.due_ns = None
                if self.connections.open.get(connection.number) is connection:
                    readable += self._advance(connection)
        return readable

    def _release_read(self) -> None:
        """Release the bytes that were read, and the buffers that they arrived in."""
        held = self.connections.held
        held.settle(self._touched, self._now_ns)
        self._touched.clear()
        if held.size > MAX_HELD_BYTES:
            self._shed()
        self._packets.release()
        held.go_on(self._packets.places)

    def _shed(self) -> None:
        """Drop what the largest connections hold until half of `MAX_HELD_BYTES` is free."""
        held = self.connections.held
        sizes, left = held.sizes(), held.size

        def size_of(connection: OpenConnection) -> int:
            return sum(sizes.get(stream.side, 0) for stream in connection.sides)

        for connection in sorted(self.connections.open.values(), key=size_of, reverse=True):
            if left <= MAX_HELD_BYTES // 2:
                return
            left -= size_of(connection)
            if connection.stage != Stage.READ:
                if connection.framers:
                    name = connection.sides[0].name
                    self.reader.add_problem(
                        f"{name}: not read further, because too many bytes were held"
                    )
                self._ignore(connection)
                continue
            for stream in connection.sides:
                self.dropped_bytes += int(stream.held[Held.LENGTH].sum())
                stream.shed()

    def _ignore(self, connection: OpenConnection) -> None:
        """Drop what is held of a connection, and ignore its further bytes."""
        connection.stage = Stage.IGNORED
        if connection.sides[0].protocol == "tcp":
            self.connections.holdings[connection.number] = Holding.IGNORED
        self._drop(connection)

    def _drop(self, connection: OpenConnection) -> None:
        """Drop what is held of a connection."""
        for stream in connection.sides:
            self._touched.discard(stream)
            self.connections.held.drop(stream.side)

    def _close(self, connection: OpenConnection) -> None:
        """Remove a connection whose last bytes are being read; record its unknown streams."""
        unread = [
            each for each in connection.assigned if each.format is None and not each.port_mapper
        ]
        if connection.stage in (Stage.UNKNOWN, Stage.IGNORED) and unread:
            self._record_unknown(connection, unread)
        elif connection.stage == Stage.CARRIED:
            for each in connection.assigned:
                for carrier in each.carriers if each.format is not None else ():
                    if carrier.problem:
                        self.reader.add_problem(carrier.problem)
            self._record_unknown(connection, unread)
        if self._describes:
            self._ended += self._described(connection)
        if connection.sides[0].protocol == "udp":
            del self.connections.datagrams[connection.number]
            return
        *_, moved_ns = self.connections.at_end(connection)
        self._repairs = self._repaired(moved_ns=moved_ns)
        del self.connections.open[connection.number]
        if connection.stage == Stage.READ:
            self.connections.ended[connection.number] = connection
            self.connections.holdings[connection.number] = Holding.IGNORED
        else:
            self._ignore(connection)

    def _record_unknown(self, connection: OpenConnection, unread: Sequence[Assigned]) -> None:
        """Record streams that had no known format to the end, without their bytes."""
        for each in unread:
            sized = self.connections.with_final_size(connection, each.captured)
            size = sized.size - (each.captured.proxy[1] if each.captured.proxy else 0)
            empty = replace(
                sized,
                size=size,
                runs=Runs(*(column[:0] for column in sized.runs)),
                times_ns=sized.times_ns[:0],
                content=Content(Places(), sized.times_ns[:0], sized.times_ns[:0], {}),
            )
            if len(self.unknown) < _MOST_UNKNOWN:
                stream = (
                    empty if each.stream is each.captured else replace(empty, size=each.stream.size)
                )
                self.unknown.append(each._replace(stream=stream, captured=empty))
            elif size and not each.closed:
                self.unnamed["streams"] += 1
                self.unnamed["bytes"] += size

    def _sweep(self) -> list[Grown]:
        """Close connections that have ended or are silent, and the oldest over `MAX_OPEN`.

        Return the rest of their streams.
        """
        self._swept_ns = self._now_ns
        table = self.connections.placer.connections
        latest_ns = table[:, Connection.LATEST_NS]
        timed = latest_ns != NO_TIME
        silent = timed & (latest_ns < self._now_ns - SILENCE_NS)
        over = silent | (
            timed & (table[:, Connection.ENDED] != 0) & (latest_ns < self._now_ns - LINGER_NS)
        )
        self.connections.open_all_lost(over)
        done = set(np.flatnonzero(over & (self.connections.holdings != Holding.NONE)).tolist())
        done &= self.connections.open.keys()
        if (excess := len(self.connections.open) - len(done) - MAX_OPEN) > 0:
            others = np.array([*(self.connections.open.keys() - done)])
            oldest = np.argsort(latest_ns[others], kind="stable")[: excess + MAX_OPEN // 8]
            done.update(others[oldest].tolist())
        readable = []
        for number in sorted(done, key=lambda one: not self.connections.open[one].suspects):
            if (connection := self.connections.open.get(number)) is not None:
                readable += self._advance(connection, final=True)
        for number in [*self.connections.ended]:
            if latest_ns[number] < self._now_ns - RECENT_NS:
                self._drop(self.connections.ended.pop(number))
        self._close_datagrams()
        evicted = over & (self.connections.holdings != Holding.OPEN)
        too_many = np.count_nonzero(evicted) > max(_EVICT_FROM, len(evicted) // 2)
        flows = len(self.connections.flows)
        if too_many or self.connections.unused(evicted) > max(_EVICT_FROM, flows // 2):
            self.connections.keep_only(np.flatnonzero(~evicted))
        return readable

    def _close_datagrams(self) -> None:
        """Close UDP conversations that are silent, and the oldest over `MAX_OPEN`."""
        oldest = sorted(self.connections.datagrams.values(), key=attrgetter("latest_ns"))
        excess = len(oldest) - MAX_OPEN
        most = excess + MAX_OPEN // 8 if excess > 0 else 0
        for place, connection in enumerate(oldest):
            if place < most or connection.latest_ns < self._now_ns - SILENCE_NS:
                self._close(connection)
