"""A capture while it is made: packets as they arrive, to streams that grow.

What a packet and a segment mean is decided by the code that reads whole captures, over the records
that arrived together: headers, fragments, connections (`Placer`), which segment brings which byte
(`merge_rows`), formats (`CapturedConnection`). The connections are in `live_connections`, what of
their streams waits in `live_stream`, and `live_reading` decides what can be read already. This file
decides what is read when, and what is forgotten.

Rules of this file:

1. Time is that of the latest record, and goes on by the clock while none arrives.
2. What is held is bounded: see the limits of `LiveCapture`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import (
    Assigned,
    DecodeAs,
)
from wireyard.captures.flows import Endpoint
from wireyard.captures.headers import PacketReader
from wireyard.captures.layout import Protocol, Unit
from wireyard.captures.live_connections import (
    LINGER_NS,
    LiveConnections,
    OpenConnection,
    Stage,
)
from wireyard.captures.live_reading import LiveReader
from wireyard.captures.live_stream import Held, LiveStream, merge_held, stream_of
from wireyard.captures.places import Places
from wireyard.captures.records import NO_TIME, Records
from wireyard.captures.stream import Content, Runs
from wireyard.captures.stream_table import describe_stream
from wireyard.captures.tcp_kernels import (
    SILENCE_NS,
    Connection,
    Verdict,
)
from wireyard.captures.tls_keys import KeyLog
from wireyard.captures.units import Units
from wireyard.formats import Format
from wireyard.streams.growth import Grown

__all__ = ["LiveCapture"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_SWEEP_NS: Final = 1_000_000_000
MAX_HELD_BYTES: Final = 128 << 20
"""Held of all streams together. Over it the stream with the most bytes gives up its own."""
MAX_OPEN: Final = 1 << 16
"""Connections with bytes that are followed at a time, at about 4 KB each: 256 MB."""
_MOST_UNKNOWN: Final = 256
"""Streams without a format that are kept to be named at the end; the others are counted."""
_TOGETHER: Final = 256
"""Connections whose last bytes are read together."""
_ENDED: Final = ("ended", "ended_frame", "ended_ns")
_FORGET_FROM: Final = 1 << 12
"""Connections without bytes are forgotten when they are so many, and half of all."""


StreamFacts = tuple[str, dict[str, Any]]
"""The name of a stream, and what a capture shows of it: see `describe_stream`."""


class LiveCapture:
    """Connections of a capture whose records arrive.

    Parameters
    ----------
    name
        The source, as rows name it.
    named, rules, keys
        Those of `assign_formats`.
    max_packet_bytes
        Larger packets are not believed; the format's own bound if None.
    describes
        Whether what is known of streams that have ended is kept for `take_ended`.

    Limits
    ------
    `MAX_HELD_BYTES` of streams, `MAX_OPEN` connections with bytes, what arrives at once with its
    columns, and 250 bytes for each connection until it has ended for `LINGER_NS` or was silent for
    `SILENCE_NS`.
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
        """The first streams without a format that ended, without those of a port mapper."""
        self.unnamed = Counter[str]()
        """How many others there were, as ``streams``, and their ``bytes``."""
        self.dropped_bytes = 0
        """How many bytes were given up, and are in gaps, because too many were held."""
        self.late_bytes = 0
        """How many arrived before the first byte of their stream, when that was read already."""
        self.connections = LiveConnections()
        self._packets = PacketReader()
        wanted = named, rules, KeyLog() if keys is None else keys, max_packet_bytes
        self._reader = LiveReader(name, *wanted, self._packets, self.connections)
        self._describes = describes
        self._ended: list[StreamFacts] = []
        self._touched: dict[int, LiveStream] = {}
        self._due: list[tuple[int, int, OpenConnection]] = []
        self._pushed = 0
        self._now_ns = NO_TIME
        self._swept_ns = NO_TIME
        self._held_bytes = 0

    @property
    def has_keys(self) -> bool:
        """Whether there are secrets of TLS connections."""
        return len(self._reader.keys) > 0

    @property
    def problems(self) -> dict[str, None]:
        """Why some bytes that were carried are in no row."""
        return self._reader.problems

    @property
    def proxies(self) -> Counter[tuple[str, int]]:
        """Names and sizes of headers of proxies."""
        return self._reader.proxies

    @property
    def frames(self) -> int:
        """How many records have arrived."""
        return self._packets.count

    @property
    def tally_endings(self) -> Counter[int]:
        """The packets that are neither TCP nor UDP; see `Tally`."""
        return self._packets.tally.endings

    # --- what is known of streams -----------------------------------------------------------

    def describe(self) -> Iterator[StreamFacts]:
        """Yield what is known of the streams that are read and have not ended, by their names."""
        for one in (*self.connections.open.values(), *self.connections.datagrams.values()):
            yield from self._described(one)

    def take_ended(self) -> list[StreamFacts]:
        """Return what is known of the streams that have ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def _described(self, one: OpenConnection) -> Iterator[StreamFacts]:
        """Yield the columns that `describe_stream` has of the streams of a connection."""
        if one.stage == Stage.CARRIED:
            for each in one.assigned:
                if each.format is not None and not each.closed:
                    inner = describe_stream(each.stream)
                    outer = self.connections.facts(one, one.side(each.captured.name))
                    ended = {name: outer[name] for name in _ENDED}
                    yield each.stream.name, inner | ended
        elif one.stage == Stage.READ:
            for side in one.sides:
                yield side.name, self.connections.facts(one, side)

    # --- what another process goes on with --------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what another capture goes on with once all streams were read that can be.

        Values of JSON and arrays. Of connections that nobody can or wants to read it only has
        that they are passed over.
        """
        self._keep()
        return {
            "packets": self._packets.state(),
            **self.connections.state(),
            "services": [
                [one.address, one.port, name] for one, name in self._reader.services.items()
            ],
            "now_ns": self._now_ns,
            "swept_ns": self._swept_ns,
            "unnamed": dict(self.unnamed),
            "proxies": [[name, size, count] for (name, size), count in self.proxies.items()],
            "problems": [*self.problems],
            "dropped_bytes": self.dropped_bytes,
            "late_bytes": self.late_bytes,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another capture of the same settings stood.

        Raises
        ------
        KeyError, TypeError, ValueError, IndexError, AttributeError
            It is no such state.
        """
        self._packets.restore(state["packets"])
        self.connections.restore(state)
        self._reader.services = {
            Endpoint(address, port): name for address, port, name in state["services"]
        }
        self._now_ns, self._swept_ns = int(state["now_ns"]), int(state["swept_ns"])
        for kind in ("open", "datagrams"):
            for each in state[kind]:
                one = self.connections.restored(each, kind)
                one.restore(each, self._reader.framer_of)
                if each["due_ns"] is not None:
                    self._schedule(one, int(each["due_ns"]))
                self._held_bytes += sum(stream.held_bytes for stream in one.sides)
        self.unnamed = Counter(state["unnamed"])
        self._reader.proxies = Counter(
            {(name, size): many for name, size, many in state["proxies"]}
        )
        self._reader.problems = dict.fromkeys(state["problems"])
        self.dropped_bytes, self.late_bytes = state["dropped_bytes"], state["late_bytes"]

    # --- what arrives -----------------------------------------------------------------------

    def receive(self, data: Bytes, records: Records) -> list[Grown]:
        """Take records that lie in `data`; return the streams that can be read on.

        What was returned before has to be read by then.
        """
        self._keep()
        self._packets.begin(data)
        grid, times_ns = self._packets.read(records)
        if len(records) and records.times_ns[-1] != NO_TIME:
            self._now_ns = int(records.times_ns[-1])
        if not grid.shape[1]:
            return self._wake()
        grid = np.ascontiguousarray(grid)
        flows = self.connections.flows.number(grid, grid.shape[1])
        is_tcp = grid[Unit.PROTOCOL] == Protocol.TCP
        rows = np.flatnonzero(is_tcp)
        segments = _segments(grid[:, rows], flows[rows])
        known = self.connections
        before = len(known.placer)
        sides, positions, verdicts = known.placer.place(segments, times_ns[rows], len(known.flows))
        datagrams = np.flatnonzero(~is_tcp)
        for one in known.name_new(before, segments, grid[:, datagrams], flows[datagrams]):
            self._schedule(one, self._now_ns + LINGER_NS)
        known.note_closings(segments, times_ns[rows], sides)
        one_by_one = self._take_segments(segments, times_ns[rows], sides, positions, verdicts)
        found: list[Grown] = []
        for one in one_by_one:
            found += self._advance(one)
        found += self._take_datagrams(grid[:, datagrams], flows[datagrams], times_ns[datagrams])
        found += self._wake()
        if len(self.connections.open) > MAX_OPEN or self._now_ns - self._swept_ns >= _SWEEP_NS:
            found += self._sweep()
        return found

    @property
    def now_ns(self) -> int | None:
        """The time of the last frame; None if there was none."""
        return None if self._now_ns == NO_TIME else self._now_ns

    def wait(self, idle_ns: int) -> list[Grown]:
        """Take note that nothing arrived for so long; return what can be read now."""
        self._keep()
        now_ns = self._now_ns
        if now_ns == NO_TIME:
            return []
        self._now_ns += idle_ns
        found = self._wake()
        self._now_ns = now_ns
        return found

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left of all streams, of some together; these have to be read by the next.

        UDP has nothing left.
        """
        self._keep()
        self.connections.open_silent(np.ones(len(self.connections.stages), np.bool_))
        for some in _few(sorted(self.connections.open.values(), key=lambda one: one.number)):
            yield [grown for one in some for grown in self._advance(one, final=True)]
            self._keep()
        for one in [*self.connections.datagrams.values()]:
            self._close(one)

    # --- segments ---------------------------------------------------------------------------

    def _take_segments(
        self,
        segments: Units,
        times_ns: Ints,
        sides: npt.NDArray[np.int32],
        positions: Ints,
        verdicts: npt.NDArray[np.uint8],
    ) -> list[OpenConnection]:
        """Hold the bytes of segments; return the connections that something is new of."""
        wanted = self.connections.stages[sides >> 1] != 2
        taken = wanted & (verdicts == Verdict.TAKEN) & (segments.captured > 0)
        short = np.flatnonzero(wanted & (segments.captured < segments.lengths))
        rows = np.flatnonzero(taken)
        active, group = np.unique(sides[rows], return_inverse=True)
        streams = [self.connections.opened(side >> 1).sides[side & 1] for side in active.tolist()]
        for row in short.tolist():
            if verdicts[row] == Verdict.TAKEN:
                side, stop = int(sides[row]), int(positions[row] + segments.lengths[row])
                stream = self.connections.opened(side >> 1).sides[side & 1]
                stream.cut(int(positions[row] + segments.captured[row]), stop)
        if len(rows):
            new = Held(
                positions[rows],
                segments.captured[rows].astype(np.int64),
                segments.starts[rows],
                segments.records[rows].astype(np.int64),
                times_ns[rows],
            )
            self._touched |= {id(one): one for one in streams}
            places = self._packets.places
            self.late_bytes += merge_held(streams, group.reshape(-1), new, places)
        # A connection that ended, or was acknowledged, may be read on without new bytes.
        touched = np.unique(sides[wanted] >> 1).tolist()
        return [
            self.connections.open[number] for number in touched if number in self.connections.open
        ]

    # --- datagrams --------------------------------------------------------------------------

    def _take_datagrams(self, grid: Grid, flows: Ints, times_ns: Ints) -> list[Grown]:
        """Return the streams of datagrams; each datagram can be read at once."""
        found: list[Grown] = []
        for flow in np.unique(flows).tolist():
            rows = np.flatnonzero(flows == flow)
            one = self.connections.datagrams[flow >> 1]
            stream = one.sides[flow & 1]
            one.latest_ns = int(times_ns[rows[-1]])
            lengths, captured = grid[Unit.LENGTH, rows], grid[Unit.CAPTURED, rows]
            if stream.begin is None:
                stream.begin = stream.floor = 0
            assert stream.floor is not None
            stops = stream.floor + np.cumsum(lengths)
            there = captured > 0
            held = Held(
                (stops - lengths)[there],
                captured[there],
                grid[Unit.START, rows][there],
                grid[Unit.RECORD, rows][there],
                times_ns[rows][there],
            )
            stream.floor = int(stops[-1])
            stream.span(held.times_ns)
            if not stream.floor:
                continue
            live = stream_of(stream, held, stream.floor, self._packets.places)
            found += self._reader.read_datagrams(one, stream, live)
        return found

    # --- what can be read -------------------------------------------------------------------

    def _advance(self, one: OpenConnection, *, final: bool = False) -> list[Grown]:
        """Return what can be read of a connection now, and see to it when more can."""
        places = self._packets.places
        due_ns: list[int] = []
        ready = {}
        ended_ns = self.connections.ended_ns(one)
        final = final or (ended_ns is not None and self._now_ns >= ended_ns)
        for way, stream in enumerate(one.sides):
            if one.stage == Stage.PASSED or not self._reader.settle(
                one, way, self._now_ns, due_ns, final=final
            ):
                continue
            held = stream.attach(places)
            self._touched[id(stream)] = stream
            count, later_ns = stream.ready(self._now_ns, self.connections.acknowledged(one, way))
            ready[stream.name] = len(held.positions) if final else count
            if later_ns is not None:
                due_ns.append(later_ns)
        if one.stage == Stage.UNKNOWN:
            self._reader.decide(one, ready, self._now_ns, final=final)
        if ended_ns is not None:
            final = final or self.connections.is_complete(one, ready)
            due_ns.append(ended_ns)
        found = self._reader.read(one, ready, final=final)
        if one.stage == Stage.PASSED:
            self._pass_over(one)
        if final:
            self._close(one)
        elif due_ns:
            self._schedule(one, min(due_ns))
        return found

    # --- what is held, and for how long -----------------------------------------------------

    def _schedule(self, one: OpenConnection, due_ns: int) -> None:
        """See to it that a connection is looked at again at some time."""
        if one.due_ns is None or due_ns < one.due_ns:
            one.due_ns = due_ns
            self._pushed += 1
            heappush(self._due, (due_ns, self._pushed, one))

    def _wake(self) -> list[Grown]:
        """Return what can be read of connections whose time has come."""
        found: list[Grown] = []
        while self._due and self._due[0][0] <= self._now_ns:
            due_ns, _, one = heappop(self._due)
            if one.due_ns == due_ns:
                one.due_ns = None
                if self.connections.open.get(one.number) is one:
                    found += self._advance(one)
        return found

    def _keep(self) -> None:
        """Let go of what was read, and of the bytes that arrived with it."""
        places = self._packets.places
        for stream in self._touched.values():
            self._held_bytes -= stream.held_bytes
            stream.keep(places)
            self._held_bytes += stream.held_bytes
        self._touched.clear()
        self._packets.release()
        if self._held_bytes > MAX_HELD_BYTES:
            self._shed()

    def _shed(self) -> None:
        """Let the connections that hold the most give up what they hold."""
        most = sorted(
            self.connections.open.values(), key=lambda one: -sum(s.held_bytes for s in one.sides)
        )
        for one in most:
            if self._held_bytes <= MAX_HELD_BYTES // 2:
                return
            if one.stage != Stage.READ:
                if one.framers:
                    self._reader.note(f"{one.sides[0].name}: not read on, for too much was held")
                self._pass_over(one)
                continue
            for stream in one.sides:
                if stream.held_bytes:
                    self.dropped_bytes += stream.held_bytes
                    self._held_bytes -= stream.held_bytes
                    stream.shed()

    def _pass_over(self, one: OpenConnection) -> None:
        """Hold nothing of a connection any more, and pass over what is still to come."""
        one.stage = Stage.PASSED
        if one.sides[0].protocol == "tcp":
            self.connections.stages[one.number] = 2
        for stream in one.sides:
            self._touched.pop(id(stream), None)
            self._held_bytes -= stream.held_bytes
            stream.drop()

    def _close(self, one: OpenConnection) -> None:
        """Forget a connection whose last bytes are being read, and note what it was."""
        unread = [each for each in one.assigned if each.format is None and not each.port_mapper]
        if one.stage in (Stage.UNKNOWN, Stage.PASSED) and unread:
            self._note_unknown(one, unread)
        elif one.stage == Stage.CARRIED:
            for each in one.assigned:
                for carrier in each.carriers if each.format is not None else ():
                    if carrier.problem:
                        self._reader.note(carrier.problem)
            self._note_unknown(one, unread)
        if self._describes:
            self._ended += self._described(one)
        self._pass_over(one)
        if one.sides[0].protocol == "udp":
            del self.connections.datagrams[one.number]
        else:
            del self.connections.open[one.number]

    def _note_unknown(self, one: OpenConnection, unread: Sequence[Assigned]) -> None:
        """Note streams of a connection that had no format to the end."""
        for each in unread:
            sized = self.connections.sized(one, each.captured)
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
        """Return what is left of connections that are silent, or too many, and forget those."""
        self._swept_ns = self._now_ns
        known = self.connections.placer.connections
        latest_ns = known[:, Connection.LATEST_NS]
        timed = latest_ns != NO_TIME
        silent = timed & (latest_ns < self._now_ns - SILENCE_NS)
        over = silent | (
            timed & (known[:, Connection.ENDED] != 0) & (latest_ns < self._now_ns - LINGER_NS)
        )
        self.connections.open_silent(over)
        done = {number for number in np.flatnonzero(over & (self.connections.stages > 0)).tolist()}
        done &= self.connections.open.keys()
        if (excess := len(self.connections.open) - len(done) - MAX_OPEN) > 0:
            others = np.array([*(self.connections.open.keys() - done)])
            more = np.argsort(latest_ns[others], kind="stable")[: excess + MAX_OPEN // 8]
            done.update(others[more].tolist())
        found = []
        for number in sorted(done):
            found += self._advance(self.connections.open[number], final=True)
        for one in [*self.connections.datagrams.values()]:
            if one.latest_ns < self._now_ns - SILENCE_NS:
                self._close(one)
        over |= (self.connections.stages == 2) & silent
        forgotten = over & (self.connections.stages != 1)
        if np.count_nonzero(forgotten) > max(_FORGET_FROM, len(forgotten) // 2):
            self.connections.forget(np.flatnonzero(~forgotten))
        return found


def _segments(grid: Grid, flows: Ints) -> Units:
    """Return TCP segments as the columns that kernels take."""
    return Units(
        records=grid[Unit.RECORD].astype(np.int32),
        flows=flows.astype(np.int32),
        sequences=grid[Unit.SEQUENCE].astype(np.uint32),
        acknowledgments=grid[Unit.ACKNOWLEDGMENT].astype(np.uint32),
        flags=grid[Unit.FLAGS].astype(np.uint8),
        starts=np.ascontiguousarray(grid[Unit.START]),
        captured=grid[Unit.CAPTURED].astype(np.int32),
        lengths=grid[Unit.LENGTH].astype(np.int32),
    )


def _few(opened: Sequence[OpenConnection]) -> Iterator[Sequence[OpenConnection]]:
    """Yield connections a few at a time."""
    for first in range(0, len(opened), _TOGETHER):
        yield opened[first : first + _TOGETHER]
