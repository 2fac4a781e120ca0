"""A capture while it is made: packets as they arrive, to streams that grow.

What a packet and a segment mean is decided by the code that reads whole captures, over the records
that arrived together: headers, fragments, connections (`Placer`), which segment brings which byte
(`merge_rows`), formats (`CapturedConnection`). This file decides what can be read already, and
what is forgotten.

Rules of this file:

1. A connection is read as soon as its format is certain: a client's CONNECT, or enough of what
   begins another format. What only a port, or the first of several segments, tells waits for
   `SETTLE_NS`.
2. Time is that of the latest record, and goes on by the clock while none arrives.
3. What is held is bounded: see the limits of `LiveCapture`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import (
    Assigned,
    CapturedConnection,
    DecodeAs,
    captured_connections,
)
from wireyard.captures.carriers import Carriers
from wireyard.captures.directed import CapturedStream
from wireyard.captures.flows import Endpoint, FlowTable
from wireyard.captures.headers import PacketReader
from wireyard.captures.layout import Flag, Protocol, Unit
from wireyard.captures.live_stream import Held, LiveStream, stream_of
from wireyard.captures.merge_kernels import Run, merge_rows
from wireyard.captures.places import Places
from wireyard.captures.records import NO_TIME, Records
from wireyard.captures.stream import Content, Runs, Stream
from wireyard.captures.stream_table import describe_beginning, describe_stream
from wireyard.captures.tcp import Placer
from wireyard.captures.tcp_kernels import (
    NONE,
    SILENCE_NS,
    Connection,
    Side,
    State,
    Verdict,
    distance,
)
from wireyard.captures.tls_keys import KeyLog
from wireyard.captures.tray import Tray
from wireyard.captures.units import Units
from wireyard.formats import Format, get_format
from wireyard.streams.framer import Framer
from wireyard.streams.growth import Grown

__all__ = ["LiveCapture"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_MS: Final = 1_000_000
SETTLE_NS: Final = 200 * _MS
"""How long a connection waits for what may tell its format, or where its streams begin, better."""
LINGER_NS: Final = 10_000 * _MS
"""How long a connection that has ended waits for segments that were captured late."""
_SWEEP_NS: Final = 1_000 * _MS
MAX_HEAD_BYTES: Final = 1 << 16
"""Held of a direction while no format is known: as much as formats are told by."""
MAX_CARRIED_BYTES: Final = 4 << 20
"""Held of a connection of TLS or WebSocket, which is opened from its beginning as it grows."""
MAX_HELD_BYTES: Final = 128 << 20
"""Held of all streams together. Over it the stream with the most bytes gives up its own."""
MAX_OPEN: Final = 1 << 16
"""Connections with bytes that are followed at a time, at about 4 KB each: 256 MB."""
_MOST_PAIRS: Final = 1 << 17
"""Pairs of endpoints whose connections are counted, for their names, at about 150 bytes each."""
_MOST_UNKNOWN: Final = 256
"""Streams without a format that are kept to be named at the end; the others are counted."""
_HEAD_BYTES: Final = 72
"""First bytes that show a format for certain: the longest header, that of JMQ packets."""
_ANSWERED_BYTES: Final = 1 << 10
"""First bytes of a direction that decide the context of the other."""
_TOGETHER: Final = 256
"""Connections whose last bytes are read together."""
_ENDED: Final = ("ended", "ended_frame", "ended_ns")
_FORGET_FROM: Final = 1 << 12
"""Connections without bytes are forgotten when they are so many, and half of all."""


StreamFacts = tuple[str, dict[str, Any]]
"""The name of a stream, and what a capture shows of it: see `describe_stream`."""


class _Stage(IntEnum):
    """How far reading a connection has come."""

    UNKNOWN = 0
    """Its format is not certain."""
    READ = 1
    CARRIED = 2
    """It is carried by TLS or WebSocket, and is opened again when it has grown."""
    PASSED = 3
    """Nobody wants its bytes, or nobody can read them."""


@dataclass(eq=False, slots=True)
class _Open:
    """A connection with bytes; the side that sent its first packet comes first."""

    number: int
    """Of the connection, or of UDP of the conversation."""
    first_way: int
    sides: tuple[LiveStream, LiveStream]
    """By their way."""
    stage: _Stage = _Stage.UNKNOWN
    due_ns: int | None = None
    assigned: Sequence[Assigned] = ()
    """What it is, where that is told at its end."""
    format: Format | None = None
    heads: dict[str, bytes] = field(default_factory=dict)
    framers: dict[str, Framer] = field(default_factory=dict)
    """Of streams inside others."""
    opened_bytes: int = 0
    """How many there were when what carries it was opened last."""
    latest_ns: int = NO_TIME
    """Of UDP: when its latest datagram was captured."""

    @property
    def ordered(self) -> tuple[LiveStream, LiveStream]:
        one, other = self.sides
        return (other, one) if self.first_way else (one, other)


class _GrowingStream(CapturedStream):
    """One direction of a conversation, as far as it can be read now."""

    @property
    def size(self) -> int:
        """The bytes that there are to read: those before were read, and are not there any more."""
        return self.bytes_ahead


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
        self.problems: dict[str, None] = {}
        """Why some bytes that were carried are in no row."""
        self.proxies = Counter[tuple[str, int]]()
        """Names and sizes of headers of proxies."""
        self.dropped_bytes = 0
        """How many bytes were given up, and are in gaps, because too many were held."""
        self.late_bytes = 0
        """How many arrived before the first byte of their stream, when that was read already."""
        self._named, self._rules, self._max_packet_bytes = named, rules, max_packet_bytes
        self._keys = KeyLog() if keys is None else keys
        self._packets = PacketReader()
        self._flows = FlowTable()
        self._placer = Placer()
        self._stages: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        """Of each connection: 0 without bytes, 1 if it is open, 2 if its bytes are passed over."""
        self._ordinals: Ints = np.zeros(0, np.int64)
        self._first_ways: Ints = np.zeros(0, np.int64)
        self._closings: Grid = np.zeros((0, 2), np.int64)
        """Of each side the number and the time of its first packet with a FIN or RST."""
        self._describes = describes
        self._ended: list[StreamFacts] = []
        self._pairs: OrderedDict[bytes, int] = OrderedDict()
        self._open: dict[int, _Open] = {}
        self._datagrams: dict[int, _Open] = {}
        self._touched: dict[int, LiveStream] = {}
        self._services: dict[Endpoint, str | None] = {}
        self._due: list[tuple[int, int, _Open]] = []
        self._pushed = 0
        self._now_ns = NO_TIME
        self._swept_ns = NO_TIME
        self._held_bytes = 0
        self._tray = Tray()

    @property
    def has_keys(self) -> bool:
        """Whether there are secrets of TLS connections."""
        return len(self._keys) > 0

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
        for one in (*self._open.values(), *self._datagrams.values()):
            yield from self._described(one)

    def take_ended(self) -> list[StreamFacts]:
        """Return what is known of the streams that have ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def _described(self, one: _Open) -> Iterator[StreamFacts]:
        """Yield the columns that `describe_stream` has of the streams of a connection."""
        if one.stage == _Stage.CARRIED:
            for each in one.assigned:
                if each.format is not None and not each.closed:
                    inner = describe_stream(each.stream)
                    outer = self._facts(one, self._side(one, each.captured.name))
                    ended = {name: outer[name] for name in _ENDED}
                    yield each.stream.name, inner | ended
        elif one.stage == _Stage.READ:
            for side in one.sides:
                yield side.name, self._facts(one, side)

    def _facts(self, one: _Open, stream: LiveStream) -> dict[str, Any]:
        closing, is_reset, is_finished = NONE, False, False
        closed_ns = NO_TIME
        if stream.protocol == "tcp":
            number = 2 * one.number + (stream is one.sides[1])
            sides, closings = self._placer.sides, self._closings
            state, other = (int(sides[side, Side.STATE]) for side in (number, number ^ 1))
            is_reset, is_finished = bool(state & State.RST), bool(state & State.FIN)
            closing, closed_ns = closings[number].tolist()
            if other & State.RST and not self._has_bytes(number ^ 1):
                theirs, theirs_ns = closings[number ^ 1].tolist()
                is_reset = True
                if closing == NONE or theirs < closing:
                    closing, closed_ns = theirs, theirs_ns
        return {
            **describe_beginning(stream),
            "ended": "rst" if is_reset else "fin" if is_finished else None,
            "first_ns": None if stream.first_ns == NO_TIME else stream.first_ns,
            "last_ns": None if stream.last_ns == NO_TIME else stream.last_ns,
            "ended_frame": None if closing == NONE else closing + 1,
            "ended_ns": None if closing == NONE else closed_ns,
        }

    def _has_bytes(self, number: int) -> bool:
        """Return whether a side is a stream."""
        side = self._placer.sides[number]
        if not side[Side.STATE] & (State.BEGUN | State.DATA):
            return False
        begin = side[Side.BEGIN] if side[Side.STATE] & State.BEGUN else side[Side.LOW]
        return bool(side[Side.END] > begin)

    # --- what another process goes on with --------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what another capture goes on with once all streams were read that can be.

        Values of JSON and arrays. Of connections that nobody can or wants to read it only has
        that they are passed over.
        """
        self._keep()
        return {
            "packets": self._packets.state(),
            "flows": self._flows.state(),
            "placer": self._placer.state(),
            "stages": self._stages,
            "ordinals": self._ordinals,
            "first_ways": self._first_ways,
            "closings": self._closings,
            "pairs": np.frombuffer(b"".join(self._pairs), np.uint8),
            "pair_counts": np.array([*self._pairs.values()], np.int64),
            "open": [_state_of(one) for one in self._open.values()],
            "datagrams": [_state_of(one) for one in self._datagrams.values()],
            "services": [[one.address, one.port, name] for one, name in self._services.items()],
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
        self._flows.restore(state["flows"])
        self._placer.restore(state["placer"])
        count = len(self._placer)
        self._stages, self._closings = state["stages"].copy(), state["closings"].copy()
        self._ordinals, self._first_ways = state["ordinals"].copy(), state["first_ways"].copy()
        if not len(self._stages) == len(self._ordinals) == len(self._first_ways) == count:
            raise ValueError("no state of a capture")
        if self._closings.shape != (2 * count, 2) or len(self._placer.latest) > len(self._flows):
            raise ValueError("no state of a capture")
        counts = state["pair_counts"].tolist()
        keys = state["pairs"].reshape(len(counts), -1) if counts else ()
        self._pairs = OrderedDict(
            (key.tobytes(), ordinal) for key, ordinal in zip(keys, counts, strict=True)
        )
        self._services = {
            Endpoint(address, port): name for address, port, name in state["services"]
        }
        self._now_ns, self._swept_ns = int(state["now_ns"]), int(state["swept_ns"])
        for table, name in ((self._open, "open"), (self._datagrams, "datagrams")):
            for each in state[name]:
                one = self._restored(each, name)
                table[one.number] = one
                self._held_bytes += sum(stream.held_bytes for stream in one.sides)
        self.unnamed = Counter(state["unnamed"])
        self.proxies = Counter({(name, size): many for name, size, many in state["proxies"]})
        self.problems = dict.fromkeys(state["problems"])
        self.dropped_bytes, self.late_bytes = state["dropped_bytes"], state["late_bytes"]

    def _restored(self, state: Mapping[str, Any], kind: str) -> _Open:
        """Return a connection that another capture had open."""
        number, ordinal = int(state["number"]), int(state["ordinal"])
        if kind == "open":
            conversation = int(self._placer.connections[number, Connection.CONVERSATION])
        else:
            conversation = number
        if not 0 <= conversation < len(self._flows):
            raise ValueError("no state of a connection")
        protocol = "tcp" if kind == "open" else "udp"
        one = self._made(number, conversation, int(state["first_way"]), ordinal, protocol)
        one.stage = _Stage(state["stage"])
        one.format = None if state["format"] is None else get_format(state["format"])
        one.heads = {name: bytes.fromhex(head) for name, head in state["heads"].items()}
        one.opened_bytes, one.latest_ns = int(state["opened_bytes"]), int(state["latest_ns"])
        for stream, each in zip(one.sides, state["sides"], strict=True):
            stream.restore(each, self._framer_of)
        for name, (label, framed) in state["framers"].items():
            one.framers[name] = self._framer_of(label)
            one.framers[name].restore(framed)
        if state["due_ns"] is not None:
            self._schedule(one, int(state["due_ns"]))
        return one

    def _framer_of(self, label: str) -> Framer:
        return Framer(get_format(label), self._max_packet_bytes)

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
        flows = self._flows.number(grid, grid.shape[1])
        is_tcp = grid[Unit.PROTOCOL] == Protocol.TCP
        rows = np.flatnonzero(is_tcp)
        segments = _segments(grid[:, rows], flows[rows])
        before = len(self._placer)
        sides, positions, verdicts = self._placer.place(segments, times_ns[rows], len(self._flows))
        datagrams = np.flatnonzero(~is_tcp)
        self._name_new(before, segments, grid[:, datagrams], flows[datagrams])
        self._note_closings(segments, times_ns[rows], sides)
        one_by_one = self._take_segments(segments, times_ns[rows], sides, positions, verdicts)
        found: list[Grown] = []
        for one in one_by_one:
            found += self._advance(one)
        found += self._take_datagrams(grid[:, datagrams], flows[datagrams], times_ns[datagrams])
        found += self._wake()
        if len(self._open) > MAX_OPEN or self._now_ns - self._swept_ns >= _SWEEP_NS:
            found += self._sweep()
        return found

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
        self._open_silent(np.ones(len(self._stages), np.bool_))
        for some in _few(sorted(self._open.values(), key=lambda one: one.number)):
            yield [grown for one in some for grown in self._advance(one, final=True)]
            self._keep()
        for one in [*self._datagrams.values()]:
            self._close(one)

    def _name_new(self, before: int, segments: Units, datagrams: Grid, flows: Ints) -> None:
        """Count new connections by their endpoints, in the order of their first packets."""
        new = []
        table = self._placer.connections[before:]
        first_rows = table[:, Connection.FIRST_ROW]
        records = segments.records[first_rows].tolist()
        for number, record, conversation in zip(
            range(before, len(self._placer)),
            records,
            table[:, Connection.CONVERSATION].tolist(),
            strict=True,
        ):
            new.append((record, conversation, number))
        known = self._datagrams
        numbers, first = np.unique(flows >> 1, return_index=True)
        for conversation, row in zip(numbers.tolist(), first.tolist(), strict=True):
            if conversation not in known:
                record = int(datagrams[Unit.RECORD, row])
                new.append((record, conversation, -1 - int(flows[row] & 1)))
        more = len(self._placer) - len(self._stages)
        if more > 0:
            self._stages = np.r_[self._stages, np.zeros(more, np.int8)]
            self._ordinals, self._first_ways = (
                np.r_[old, np.zeros(more, np.int64)] for old in (self._ordinals, self._first_ways)
            )
            self._closings = np.concatenate([self._closings, np.full((2 * more, 2), NONE)])
        self._first_ways[before:] = segments.flows[first_rows] & 1
        for _, conversation, number in sorted(new):
            pair = self._flows.pair(conversation)
            ordinal = self._pairs[pair] = self._pairs.pop(pair, 0) + 1
            if len(self._pairs) > _MOST_PAIRS:
                self._pairs.popitem(last=False)
            if number >= 0:
                self._ordinals[number] = ordinal
                older = int(self._placer.connections[number, Connection.BEFORE])
                if older != NONE and (superseded := self._open.get(older)) is not None:
                    self._schedule(superseded, self._now_ns + LINGER_NS)
            else:
                way = -1 - number
                one = self._made(conversation, conversation, way, ordinal, "udp")
                self._datagrams[conversation] = one

    def _note_closings(self, segments: Units, times_ns: Ints, sides: npt.NDArray[np.int32]) -> None:
        """Take note of the packets that show the end of a stream first."""
        closing = np.unique(sides[segments.flags & (Flag.FIN | Flag.RST) != 0])
        rows = self._placer.sides[closing, Side.CLOSED]
        new = (self._closings[closing, 0] == NONE) & (rows != NONE)
        rows = rows[new]
        self._closings[closing[new], 0] = segments.records[rows]
        self._closings[closing[new], 1] = times_ns[rows]

    def _made(
        self, number: int, conversation: int, first_way: int, ordinal: int, protocol: str
    ) -> _Open:
        ends = self._flows.endpoints(conversation)
        suffix = "" if ordinal == 1 else f"#{ordinal}"
        sides = [
            LiveStream(f"{src}>{dst}{suffix}", protocol, src, dst)
            for src, dst in (ends, ends[::-1])
        ]
        return _Open(number, first_way, (sides[0], sides[1]))

    def _opened(self, connection: int) -> _Open:
        """Return a connection that has bytes, or had some that are missing."""
        one = self._open.get(connection)
        if one is None:
            conversation = int(self._placer.connections[connection, Connection.CONVERSATION])
            first_way = int(self._first_ways[connection])
            ordinal = int(self._ordinals[connection])
            one = self._made(connection, conversation, first_way, ordinal, "tcp")
            self._open[connection] = one
            self._stages[connection] = 1
        return one

    # --- segments ---------------------------------------------------------------------------

    def _take_segments(
        self,
        segments: Units,
        times_ns: Ints,
        sides: npt.NDArray[np.int32],
        positions: Ints,
        verdicts: npt.NDArray[np.uint8],
    ) -> list[_Open]:
        """Hold the bytes of segments; return the connections that something is new of."""
        wanted = self._stages[sides >> 1] != 2
        taken = wanted & (verdicts == Verdict.TAKEN) & (segments.captured > 0)
        short = np.flatnonzero(wanted & (segments.captured < segments.lengths))
        rows = np.flatnonzero(taken)
        active, group = np.unique(sides[rows], return_inverse=True)
        streams = [self._opened(side >> 1).sides[side & 1] for side in active.tolist()]
        for row in short.tolist():
            if verdicts[row] == Verdict.TAKEN:
                side, stop = int(sides[row]), int(positions[row] + segments.lengths[row])
                stream = self._opened(side >> 1).sides[side & 1]
                stream.cut(int(positions[row] + segments.captured[row]), stop)
        if len(rows):
            new = Held(
                positions[rows],
                segments.captured[rows].astype(np.int64),
                segments.starts[rows],
                segments.records[rows].astype(np.int64),
                times_ns[rows],
            )
            self._merge(streams, group.reshape(-1), new)
        # A connection that ended, or was acknowledged, may be read on without new bytes.
        touched = np.unique(sides[wanted] >> 1).tolist()
        return [self._open[number] for number in touched if number in self._open]

    def _merge(self, streams: Sequence[LiveStream], group: Ints, new: Held) -> None:
        """Hold new rows of streams besides what they hold; each byte from the first that has it."""
        floors = np.array(
            [-(1 << 62) if one.floor is None else one.floor for one in streams], np.int64
        )[group]
        below = np.clip(floors - new.positions, 0, new.lengths)
        if below.any():
            for at in np.flatnonzero(below).tolist():
                one = streams[int(group[at])]
                if one.begin is not None and new.positions[at] < one.begin:
                    self.late_bytes += int(min(below[at], one.begin - new.positions[at]))
            new = new._replace(
                positions=new.positions + below,
                lengths=new.lengths - below,
                starts=new.starts + below,
            )
            left = np.flatnonzero(new.lengths)
            new, group = Held(*(column[left] for column in new)), group[left]
        places = self._packets.places
        held, groups = [], []
        for number, one in enumerate(streams):
            self._touched[id(one)] = one
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
        # The rank tells the time as well; the record follows from it.
        pieces[Run.START], pieces[Run.RECORD] = rows.starts[order], order
        runs = np.empty((len(Run), 2 * len(order)), np.int64)
        run_bounds = np.empty(len(streams) + 1, np.int64)
        heap, begins = np.empty(len(order), np.int64), np.zeros(len(streams), np.int64)
        count = merge_rows(pieces, order, bounds, begins, 0, heap, runs, run_bounds)
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

    # --- datagrams --------------------------------------------------------------------------

    def _take_datagrams(self, grid: Grid, flows: Ints, times_ns: Ints) -> list[Grown]:
        """Return the streams of datagrams; each datagram can be read at once."""
        found: list[Grown] = []
        for flow in np.unique(flows).tolist():
            rows = np.flatnonzero(flows == flow)
            one = self._datagrams[flow >> 1]
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
            if one.stage == _Stage.UNKNOWN:
                connection = next(captured_connections([live], Carriers(self._keys)))
                one.assigned = connection.assigned(self._rules, self._services, self._named)
                one.format = format = one.assigned[0].format
                one.stage = _Stage.READ if self._is_wanted(format) else _Stage.PASSED
            if one.stage == _Stage.READ and one.format is not None:
                if stream.framer is None:
                    stream.framer = self._framer(one.format, one.format.context)
                found.append(self._grown(one.format, stream.framer, live, growing=False))
        return found

    # --- what can be read -------------------------------------------------------------------

    def _advance(self, one: _Open, *, final: bool = False) -> list[Grown]:
        """Return what can be read of a connection now, and see to it when more can."""
        places = self._packets.places
        due_ns: list[int] = []
        ready = {}
        ended_ns = self._ended_ns(one)
        final = final or (ended_ns is not None and self._now_ns >= ended_ns)
        for way, stream in enumerate(one.sides):
            if one.stage == _Stage.PASSED or not self._settle(one, way, due_ns, final=final):
                continue
            held = stream.attach(places)
            self._touched[id(stream)] = stream
            count, later_ns = stream.ready(self._now_ns, self._acknowledged(one, way))
            ready[stream.name] = len(held.positions) if final else count
            if later_ns is not None:
                due_ns.append(later_ns)
        if one.stage == _Stage.UNKNOWN:
            self._decide(one, ready, final=final)
        if ended_ns is not None:
            final = final or self._is_complete(one, ready)
            due_ns.append(ended_ns)
        found = self._read(one, ready, final=final)
        if final:
            self._close(one)
        elif due_ns:
            self._schedule(one, min(due_ns))
        return found

    def _ended_ns(self, one: _Open) -> int | None:
        """Return when a connection that ended, or that another took the place of, is closed."""
        known = self._placer.connections[one.number]
        latest = self._placer.latest[known[Connection.CONVERSATION]]
        if not known[Connection.ENDED] and latest == one.number:
            return None
        latest_ns = int(known[Connection.LATEST_NS])
        return None if latest_ns == NO_TIME else latest_ns + LINGER_NS

    def _is_complete(self, one: _Open, ready: dict[str, int]) -> bool:
        """Return whether all bytes up to both FINs can be read."""
        if one.stage not in (_Stage.READ, _Stage.CARRIED):
            return False
        for way, stream in enumerate(one.sides):
            side = self._placer.sides[2 * one.number + way]
            if not side[Side.STATE] & State.FIN:
                return False
            count = ready.get(stream.name)
            if count is None:
                if side[Side.STATE] & State.DATA or side[Side.END] != side[Side.BEGIN]:
                    return False
                continue
            held = stream.held
            if count < len(held.positions):
                return False
            stop = int(held.positions[-1] + held.lengths[-1]) if count else stream.reached
            if stop < side[Side.END]:
                return False
        return True

    def _settle(self, one: _Open, way: int, due_ns: list[int], *, final: bool) -> bool:
        """Return whether it is known where a stream of a connection begins."""
        stream, side = one.sides[way], self._placer.sides[2 * one.number + way]
        if stream.begin is not None and stream.framer is not None:
            return True
        if not len(stream.held.positions) and not final:
            return False
        stream.opened = bool(side[Side.STATE] & State.OPENED)
        stream.begun = bool(side[Side.STATE] & State.BEGUN)
        if not stream.begun and not side[Side.STATE] & State.DATA:
            return False
        stream.begin = int(side[Side.BEGIN] if stream.begun else side[Side.LOW])
        wait_ns = stream.first_ns + SETTLE_NS
        if not (stream.begun or final) and self._now_ns < wait_ns and one.stage == _Stage.READ:
            due_ns.append(wait_ns)
            return False
        if one.stage == _Stage.UNKNOWN and self._now_ns < wait_ns:
            due_ns.append(wait_ns)
        return True

    def _decide(self, one: _Open, ready: dict[str, int], *, final: bool) -> None:
        """Find out what a connection is, as far as its bytes tell."""
        places = self._packets.places
        seen = [stream.seen(places) for stream in one.ordered if ready.get(stream.name, -1) >= 0]
        seen = [stream if not final else self._sized(one, stream) for stream in seen]
        seen = [stream for stream in seen if stream.size]
        if not seen:
            return
        connection = next(captured_connections(seen, Carriers(self._keys)))
        self._services.update({**connection.services(), **connection.opened()})
        assigned = connection.assigned(self._rules, self._services, self._named)
        if not final and not any(each.stream.size for each in assigned):
            return  # so far there is the header of a proxy alone
        one.assigned = assigned
        format = assigned[0].format
        held = max(stream.size for stream in seen)
        if assigned[0].carriers:
            closed = assigned[0].closed and not (self._may_open(assigned[0]))
            if final or not closed or held > MAX_HEAD_BYTES:
                one.stage = _Stage.PASSED if closed else _Stage.CARRIED
        elif format is None:
            if held > MAX_HEAD_BYTES:
                one.stage = _Stage.PASSED
        elif final or self._is_certain(one, connection, seen):
            one.format = format
            one.stage = _Stage.READ if self._is_wanted(format) else _Stage.PASSED
            for each in assigned:
                stream = self._side(one, each.stream.name)
                if each.captured.proxy is not None and one.stage == _Stage.READ:
                    self.proxies[each.captured.proxy] += 1
                    stream.skip(each.captured.proxy[1])
                    ready[stream.name] = (
                        len(stream.held.positions)
                        if final
                        else min(ready[stream.name], len(stream.held.positions))
                    )
                stream.framer = self._framer(format, each.context)
            one.heads = {
                each.stream.name: head[:_ANSWERED_BYTES]
                for each, head in zip(assigned, connection.heads, strict=False)
            }
        if one.stage == _Stage.PASSED:
            self._pass_over(one)

    def _is_certain(
        self, one: _Open, connection: CapturedConnection, seen: Sequence[Stream]
    ) -> bool:
        if connection.opened():
            return True
        first_ns = [stream.first_ns for stream in one.sides if stream.first_ns != NO_TIME]
        if not first_ns or self._now_ns >= min(first_ns) + SETTLE_NS:
            return True
        shown = connection.sniffed is not None or bool(self._rules)
        return (
            shown
            and all(stream.begun for stream in seen)
            and max(map(len, connection.heads)) >= _HEAD_BYTES
        )

    def _read(self, one: _Open, ready: dict[str, int], *, final: bool) -> list[Grown]:
        if one.stage == _Stage.CARRIED:
            return self._read_carried(one, ready, final=final)
        if one.stage != _Stage.READ:
            return []
        assert one.format is not None
        found = []
        for stream in one.ordered:
            if stream.name not in ready:
                continue
            if stream.framer is None:
                other = one.sides[0] if one.sides[1] is stream else one.sides[1]
                head, context = one.heads.get(other.name, b""), one.format.context
                if head:
                    context = one.format.answer_context(head, context)
                stream.framer = self._framer(one.format, context)
            count = ready[stream.name]
            live = stream.seen(self._packets.places, count)
            if final:
                live = self._sized(one, live)
            if count or (final and live.size):
                found.append(self._grown(one.format, stream.framer, live, growing=not final))
        return found

    def _read_carried(self, one: _Open, ready: dict[str, int], *, final: bool) -> list[Grown]:
        """Open what carries a connection again, all of which is held, and read what is new."""
        places = self._packets.places
        seen = [
            stream.seen(places, ready[stream.name])
            for stream in one.ordered
            if stream.name in ready
        ]
        if final:
            seen = [self._sized(one, stream) for stream in seen]
        seen = [stream for stream in seen if stream.size]
        size = sum(int(stream.runs.lengths.sum()) for stream in seen)
        if not seen or (size == one.opened_bytes and not final):
            return []
        one.opened_bytes = size
        connection = next(captured_connections(seen, Carriers(self._keys)))
        one.assigned = connection.assigned(self._rules, self._services, self._named)
        self._services |= connection.opened()
        found = []
        for each in one.assigned:
            if each.closed or not each.stream.size or not self._is_wanted(each.format):
                continue
            assert each.format is not None
            framer = one.framers.get(each.stream.name)
            if framer is None or framer.position == 0:
                framer = self._framer(each.format, each.context)
                one.framers[each.stream.name] = framer
            found.append(self._grown(each.format, framer, each.stream, growing=not final))
        if size > MAX_CARRIED_BYTES and not final:
            if found:
                shown = f"{one.sides[0].name}: only {MAX_CARRIED_BYTES >> 20} MiB of a connection"
                self._note(f"{shown} in TLS or WebSocket are read while it grows")
            self._pass_over(one)
        return found

    def _may_open(self, assigned: Assigned) -> bool:
        """Return whether the key logs may open a connection that is closed so far."""
        return assigned.carriers[-1].name == "tls" and len(self._keys) > 0

    def _grown(self, format: Format, framer: Framer, live: Stream, *, growing: bool) -> Grown:
        context = framer.context
        ahead = live.size - framer.position
        opened = _GrowingStream(self.name, live, context, ahead, self._tray, growing)
        return Grown(format, opened, framer)

    def _framer(self, format: Format, context: int) -> Framer:
        return Framer(format, self._max_packet_bytes, context=context)

    def _is_wanted(self, format: Format | None) -> bool:
        return format is not None and (self._named is None or format.name == self._named.name)

    def _side(self, one: _Open, name: str) -> LiveStream:
        return one.sides[0] if one.sides[0].name == name else one.sides[1]

    def _sized(self, one: _Open, stream: Stream) -> Stream:
        """Return a stream with the size that it has at its end."""
        live = self._side(one, stream.name)
        if live.protocol == "udp":
            return replace(stream, size=live.floor or 0)
        side = self._placer.sides[2 * one.number + (live is one.sides[1])]
        if not side[Side.STATE] & (State.BEGUN | State.DATA) or live.begin is None:
            return stream
        return replace(stream, size=max(stream.size, int(side[Side.END]) - live.begin))

    def _acknowledged(self, one: _Open, way: int) -> int | None:
        """Return the position in a stream that its receiver acknowledged last."""
        number = 2 * one.number + way
        acknowledgment = int(self._placer.sides[number ^ 1, Side.ACKNOWLEDGED])
        if acknowledgment == NONE:
            return None
        side = self._placer.sides[number]
        high = int(side[Side.HIGH])
        return high + distance(acknowledgment, int(side[Side.BASE]) + high)

    # --- what is held, and for how long -----------------------------------------------------

    def _schedule(self, one: _Open, due_ns: int) -> None:
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
                if self._open.get(one.number) is one:
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
        most = sorted(self._open.values(), key=lambda one: -sum(s.held_bytes for s in one.sides))
        for one in most:
            if self._held_bytes <= MAX_HELD_BYTES // 2:
                return
            if one.stage != _Stage.READ:
                if one.framers:
                    self._note(f"{one.sides[0].name}: not read on, for too much was held")
                self._pass_over(one)
                continue
            for stream in one.sides:
                if stream.held_bytes:
                    self.dropped_bytes += stream.held_bytes
                    self._held_bytes -= stream.held_bytes
                    stream.shed()

    def _pass_over(self, one: _Open) -> None:
        """Hold nothing of a connection any more, and pass over what is still to come."""
        one.stage = _Stage.PASSED
        if one.sides[0].protocol == "tcp":
            self._stages[one.number] = 2
        for stream in one.sides:
            self._touched.pop(id(stream), None)
            self._held_bytes -= stream.held_bytes
            stream.drop()

    def _note(self, text: str) -> None:
        if len(self.problems) < _MOST_UNKNOWN:
            self.problems[text] = None

    def _close(self, one: _Open) -> None:
        """Forget a connection whose last bytes are being read, and note what it was."""
        unread = [each for each in one.assigned if each.format is None and not each.port_mapper]
        if one.stage in (_Stage.UNKNOWN, _Stage.PASSED) and unread:
            self._note_unknown(one, unread)
        elif one.stage == _Stage.CARRIED:
            for each in one.assigned:
                for carrier in each.carriers if each.format is not None else ():
                    if carrier.problem:
                        self._note(carrier.problem)
            self._note_unknown(one, unread)
        if self._describes:
            self._ended += self._described(one)
        self._pass_over(one)
        if one.sides[0].protocol == "udp":
            del self._datagrams[one.number]
        else:
            del self._open[one.number]

    def _note_unknown(self, one: _Open, unread: Sequence[Assigned]) -> None:
        """Note streams of a connection that had no format to the end."""
        for each in unread:
            sized = self._sized(one, each.captured)
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

    def _open_silent(self, over: npt.NDArray[np.bool_]) -> None:
        """Open those of some connections that have no byte, but lack some."""
        sides = self._placer.sides.reshape(-1, 2, len(Side))
        states = sides[:, :, Side.STATE]
        there = states & State.BEGUN != 0
        lost = (there & (sides[:, :, Side.END] > sides[:, :, Side.BEGIN])).any(axis=1)
        for number in np.flatnonzero(over & lost & (self._stages == 0)).tolist():
            self._opened(number)

    def _sweep(self) -> list[Grown]:
        """Return what is left of connections that are silent, or too many, and forget those."""
        self._swept_ns = self._now_ns
        known = self._placer.connections
        latest_ns = known[:, Connection.LATEST_NS]
        timed = latest_ns != NO_TIME
        silent = timed & (latest_ns < self._now_ns - SILENCE_NS)
        over = silent | (
            timed & (known[:, Connection.ENDED] != 0) & (latest_ns < self._now_ns - LINGER_NS)
        )
        self._open_silent(over)
        done = {number for number in np.flatnonzero(over & (self._stages > 0)).tolist()}
        done &= self._open.keys()
        if (excess := len(self._open) - len(done) - MAX_OPEN) > 0:
            others = np.array([*(self._open.keys() - done)])
            more = np.argsort(latest_ns[others], kind="stable")[: excess + MAX_OPEN // 8]
            done.update(others[more].tolist())
        found = []
        for number in sorted(done):
            found += self._advance(self._open[number], final=True)
        for one in [*self._datagrams.values()]:
            if one.latest_ns < self._now_ns - SILENCE_NS:
                self._close(one)
        over |= (self._stages == 2) & silent
        forgotten = over & (self._stages != 1)
        if np.count_nonzero(forgotten) > max(_FORGET_FROM, len(forgotten) // 2):
            self._forget(np.flatnonzero(~forgotten))
        return found

    def _forget(self, kept: Ints) -> None:
        """Forget all connections but some."""
        conversations = self._placer.connections[kept, Connection.CONVERSATION]
        datagrams = np.array([*self._datagrams], np.int64)
        left, numbers = np.unique(np.r_[conversations, datagrams], return_inverse=True)
        numbers = numbers.reshape(-1)
        self._flows.keep(left)
        self._placer.keep(kept, numbers[: len(kept)], len(left))
        self._stages = self._stages[kept]
        self._ordinals, self._first_ways = self._ordinals[kept], self._first_ways[kept]
        self._closings = self._closings.reshape(-1, 4)[kept].reshape(-1, 2)
        for table, old, new in (
            (self._open, kept, np.arange(len(kept))),
            (self._datagrams, datagrams, numbers[len(kept) :]),
        ):
            moved = {}
            for before, after in zip(old.tolist(), new.tolist(), strict=True):
                if (one := table.get(before)) is not None:
                    one.number = after
                    moved[after] = one
            table.clear()
            table.update(moved)


def _state_of(one: _Open) -> dict[str, Any]:
    """Return what a connection is gone on with."""
    suffix = one.sides[0].name.partition("#")[2]
    return {
        "number": one.number,
        "ordinal": int(suffix or 1),
        "first_way": one.first_way,
        "stage": int(one.stage),
        "due_ns": one.due_ns,
        "format": one.format and one.format.label,
        "heads": {name: head.hex() for name, head in one.heads.items()},
        "framers": {
            name: [framer.format.label, framer.state()] for name, framer in one.framers.items()
        },
        "opened_bytes": one.opened_bytes,
        "latest_ns": one.latest_ns,
        "sides": [stream.state() for stream in one.sides],
    }


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


def _few(opened: Sequence[_Open]) -> Iterator[Sequence[_Open]]:
    """Yield connections a few at a time."""
    for first in range(0, len(opened), _TOGETHER):
        yield opened[first : first + _TOGETHER]
