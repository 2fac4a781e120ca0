"""The connections of a live capture: their numbers, names and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np

from wireyard.arrays import Bools, Grid, Int8s, Ints
from wireyard.captures.connections.copies import Copy
from wireyard.captures.connections.flows import FlowTable, stream_name
from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.connections.table import ENDINGS, Connections
from wireyard.captures.connections.tcp import (
    Placer,
    connections_of,
    has_stream,
    stream_begins,
    stream_ends,
)
from wireyard.captures.connections.tcp_kernels import (
    NONE,
    Connection,
    Side,
    State,
    distance,
)
from wireyard.captures.connections.times import close_behind_bytes
from wireyard.captures.detection.assignment import Assigned
from wireyard.captures.files.places import Places
from wireyard.captures.layout import Unit
from wireyard.captures.live.copies import LiveCopies
from wireyard.captures.live.held import HeldRuns, order_held
from wireyard.captures.live.stream import LiveStream
from wireyard.captures.packets.units import Units
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream_table import describe_beginning
from wireyard.formats import Format, get_format
from wireyard.streams.framer import Framer

LINGER_NS: Final = 10_000_000_000
"""How long a connection stays open after its end, for segments that were captured late."""
_REACHED: Final = [Side.BASE, Side.HIGH, Side.STATE]


class Holding(IntEnum):
    """Whether the bytes of a TCP connection are held."""

    NONE = 0
    """It has no bytes."""
    OPEN = 1
    """It is in `LiveConnections.open`."""
    IGNORED = 2
    """Its bytes are ignored."""
    COPY = 3
    """It is another connection: its bytes are those of that one."""


class Stage(IntEnum):
    """How a connection with bytes is being read."""

    UNKNOWN = 0
    """Its format is not certain yet."""
    READ = 1
    """Its bytes are packets of a format."""
    CARRIED = 2
    """It is inside TLS or WebSocket, which is opened from the beginning again as it grows."""
    IGNORED = 3
    """Its bytes cannot be read, or its format was not asked for."""


@dataclass(eq=False, slots=True)
class OpenConnection:
    """A TCP connection with bytes, or a UDP conversation."""

    number: int
    """Number of the connection; of the conversation for UDP."""
    first_direction: int
    """The direction, 0 or 1, of its first packet."""
    sides: tuple[LiveStream, LiveStream]
    """Its streams by direction."""
    stage: Stage = Stage.UNKNOWN
    due_ns: int | None = None
    """Time at which it is advanced next, even if nothing arrives."""
    assigned: Sequence[Assigned] = ()
    """Its streams and their formats, as decided last."""
    format: Format | None = None
    heads: dict[str, bytes] = field(default_factory=dict)
    """First bytes of its streams, by name."""
    framers: dict[str, Framer] = field(default_factory=dict)
    """Framers of the streams inside TLS or WebSocket, by name."""
    opened_bytes: int = 0
    """Its size when TLS or WebSocket was opened last."""
    latest_ns: int = NO_TIME
    """Time of its latest datagram; for UDP only."""
    out_of_order: bool = False
    """Whether bytes of it were captured behind their acknowledgment."""
    suspects: Sequence[int] = ()
    """Earlier connections of which it may be a copy; it waits until that is certain."""
    waits_ns: int = NO_TIME
    """Time until which it is not read, because later ones may be copies of it."""

    @property
    def is_ignored(self) -> bool:
        """Whether its bytes are ignored."""
        return self.stage == Stage.IGNORED

    @property
    def ordered(self) -> tuple[LiveStream, LiveStream]:
        """Its streams, beginning with that of the first packet."""
        first, second = self.sides
        return (second, first) if self.first_direction else (first, second)

    def side(self, name: str) -> LiveStream:
        """Return the stream with this name."""
        return self.sides[0] if self.sides[0].name == name else self.sides[1]

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Continue from the `state` of a connection; parameters as for its streams.

        `KeyError`, `TypeError`, `ValueError`, `IndexError` or `AttributeError` is raised if `state`
        is not such a state.
        """
        self.stage = Stage(state["stage"])
        self.format = None if state["format"] is None else get_format(state["format"])
        if self.stage == Stage.READ and self.format is None:
            raise ValueError("no state of a connection")
        self.heads = {name: bytes.fromhex(head) for name, head in state["heads"].items()}
        self.opened_bytes, self.latest_ns = int(state["opened_bytes"]), int(state["latest_ns"])
        self.out_of_order = bool(state["out_of_order"])
        self.suspects = [int(number) for number in state["suspects"]]
        self.waits_ns = int(state["waits_ns"])
        for stream, each in zip(self.sides, state["sides"], strict=True):
            stream.restore(each, framer_of)
        for name, (label, framed) in state["framers"].items():
            self.framers[name] = framer_of(label)
            self.framers[name].restore(framed)

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues."""
        suffix = self.sides[0].name.partition("#")[2]
        return {
            "number": self.number,
            "ordinal": int(suffix or 1),
            "first_way": self.first_direction,
            "stage": int(self.stage),
            "due_ns": self.due_ns,
            "format": self.format and self.format.label,
            "heads": {name: head.hex() for name, head in self.heads.items()},
            "framers": {
                name: [framer.format.label, framer.state()] for name, framer in self.framers.items()
            },
            "opened_bytes": self.opened_bytes,
            "latest_ns": self.latest_ns,
            "out_of_order": self.out_of_order,
            "suspects": [*self.suspects],
            "waits_ns": self.waits_ns,
            "sides": [stream.state() for stream in self.sides],
        }


class LiveConnections:
    """The TCP connections and UDP conversations of a live capture.

    `places` are those of the first packets. Each connection that is not evicted takes 250 bytes.
    """

    def __init__(self, places: Places) -> None:
        self.flows = FlowTable()
        self.placer = Placer()
        self.held = HeldRuns(places)
        self.open: dict[int, OpenConnection] = {}
        """TCP connections with bytes, by number."""
        self.datagrams: dict[int, OpenConnection] = {}
        """UDP conversations, by number."""
        self.holdings: Int8s = np.zeros(0, np.int8)
        """A `Holding` for each TCP connection."""
        self._ordinals: Ints = np.zeros(0, np.int64)
        """For each connection the n of the suffix ``#n`` of its name."""
        self.ended: dict[int, OpenConnection] = {}
        """TCP connections that were read to their end lately, with the bytes read last."""
        tables = self.open, self.ended, self.datagrams
        self.copies = LiveCopies(self.flows, self.placer, *tables, self.held)

    # --- state for another process ----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues: JSON values and arrays."""
        return {
            "flows": self.flows.state(),
            "placer": self.placer.state(),
            "stages": self.holdings,
            "ordinals": self._ordinals,
            **self.copies.state(),
            **self.held.state(),
            "open": [connection.state() for connection in self.open.values()],
            "ended": [connection.state() for connection in self.ended.values()],
            "datagrams": [connection.state() for connection in self.datagrams.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; the open connections are left to `restore_connection`.

        `KeyError`, `TypeError`, `ValueError`, `IndexError` or `AttributeError` is raised if `state`
        is not such a state.
        """
        self.flows.restore(state["flows"])
        self.placer.restore(state["placer"])
        count = len(self.placer)
        self.holdings = state["stages"].astype(np.int8)
        self._ordinals = state["ordinals"].astype(np.int64)
        if not len(self.holdings) == len(self._ordinals) == count:
            raise ValueError("no state of a capture")
        if len(self.placer.latest) > len(self.flows):
            raise ValueError("no state of a capture")

    def restore_connection(self, state: Mapping[str, Any], kind: str) -> OpenConnection:
        """Add an open connection of a stored state, with empty streams.

        `kind` is the list of the state that it is in: ``open``, ``ended`` or ``datagrams``.
        """
        number, ordinal = int(state["number"]), int(state["ordinal"])
        is_tcp = kind != "datagrams"
        conversation = number
        if is_tcp:
            conversation = int(self.placer.connections[number, Connection.CONVERSATION])
        if not 0 <= conversation < len(self.flows):
            raise ValueError("no state of a connection")
        protocol = "tcp" if is_tcp else "udp"
        connection = self._create(number, conversation, int(state["first_way"]), ordinal, protocol)
        {"open": self.open, "ended": self.ended, "datagrams": self.datagrams}[kind][number] = (
            connection
        )
        return connection

    # --- input ------------------------------------------------------------------------------

    def add_new(
        self, before: int, segments: Units, times_ns: Ints, datagrams: Grid, flows: Ints
    ) -> list[OpenConnection]:
        """Add new connections; count those of each pair of endpoints by their first packets.

        `before` is the number of TCP connections before the new ones. `times_ns` has the time of
        each TCP segment, and `flows` the flow of each UDP datagram. Return the open connections
        that new ones replace.
        """
        more = len(self.placer) - len(self.holdings)
        if more > 0:
            self.holdings = np.r_[self.holdings, np.zeros(more, np.int8)]
            self._ordinals = np.r_[self._ordinals, np.zeros(more, np.int64)]
        firsts = self.placer.connections[before:, Connection.FIRST_RECORD]
        first_ns = times_ns[segments.records.searchsorted(firsts)].tolist()
        new = [(record, before + at, True) for at, record in enumerate(firsts.tolist())]
        used, rows = np.unique(flows, return_index=True)
        for record, flow in zip(datagrams[Unit.RECORD, rows].tolist(), used.tolist(), strict=True):
            if flow >> 1 not in self.datagrams and not self.copies.is_paired(flow):
                new.append((record, flow, False))
        superseded = []
        for _, number, is_tcp in sorted(new):
            if is_tcp:
                self._add(number, first_ns[number - before])
                older = int(self.placer.connections[number, Connection.BEFORE])
                if older != NONE and (connection := self.open.get(older)) is not None:
                    superseded.append(connection)
            elif number >> 1 not in self.datagrams:
                ordinal = self.copies.add_datagrams(number, {*used.tolist()})
                if ordinal is not None:
                    conversation, way = number >> 1, number & 1
                    created = self._create(conversation, conversation, way, ordinal, "udp")
                    self.datagrams[conversation] = created
        return superseded

    def _add(self, number: int, first_ns: int) -> None:
        """Add a TCP connection; open it if it may be a copy."""
        ordinal, suspects = self.copies.add(number, self._conversation(number), first_ns)
        self._ordinals[number] = ordinal
        if suspects:
            self.get_or_open(number).suspects = suspects

    def distinguish(self, connection: OpenConnection) -> None:
        """Treat a connection as another one than those of which it might have been a copy."""
        number, connection.suspects = connection.number, ()
        if self._ordinals[number]:
            return
        ordinal = self.copies.count(self._conversation(number))
        self._ordinals[number] = ordinal
        for stream in connection.sides:
            stream.name = stream_name(stream.src, stream.dst, ordinal)
        connection.suspects = self.copies.with_numbers(number)

    def suspected(self, connection: OpenConnection) -> list[OpenConnection]:
        """Return those of the connections of which one may be a copy that have bytes."""
        found = (self.open.get(one) or self.ended.get(one) for one in connection.suspects)
        return [each for each in found if each is not None]

    def join(self, connection: OpenConnection, copy: Copy) -> OpenConnection | None:
        """Treat a connection as a copy; return the one that it is a copy of, if that is open."""
        number = connection.number
        if self._ordinals[number]:
            self.copies.uncount(self._conversation(number), int(self._ordinals[number]))
        earlier = None if copy.of in self.ended else self.get_or_open(copy.of)
        self.copies.join(copy)
        self.holdings[number] = Holding.COPY
        del self.open[number]
        return earlier

    def _conversation(self, number: int) -> int:
        return int(self.placer.connections[number, Connection.CONVERSATION])

    def _create(
        self, number: int, conversation: int, first_direction: int, ordinal: int, protocol: str
    ) -> OpenConnection:
        """Return a new connection without bytes between two endpoints."""
        ends = self.flows.endpoints(conversation)
        numbers = (2 * number, 2 * number + 1) if protocol == "tcp" else (NONE, NONE)
        sides = [
            LiveStream(stream_name(src, dst, ordinal), protocol, src, dst, side, self.held)
            for (src, dst), side in zip((ends, ends[::-1]), numbers, strict=True)
        ]
        return OpenConnection(number, first_direction, (sides[0], sides[1]))

    def get_or_open(self, number: int) -> OpenConnection:
        """Return the open connection with this number; open it if it is not open yet."""
        connection = self.open.get(number)
        if connection is None:
            row = self.placer.connections[number]
            conversation = int(row[Connection.CONVERSATION])
            first_direction = int(row[Connection.FIRST_WAY])
            ordinal = int(self._ordinals[number])
            connection = self._create(number, conversation, first_direction, ordinal, "tcp")
            self.open[number] = connection
            self.holdings[number] = Holding.OPEN
            if ordinal:
                connection.suspects = self.copies.with_numbers(number)
        return connection

    # --- state of TCP connections ------------------------------------------------------------

    def ended_ns(self, connection: OpenConnection) -> int | None:
        """Return when to close a connection; None if it has neither ended nor been replaced."""
        row = self.placer.connections[connection.number]
        latest = self.placer.latest[row[Connection.CONVERSATION]]
        if not row[Connection.ENDED] and latest == connection.number:
            return None
        latest_ns = int(row[Connection.LATEST_NS])
        return None if latest_ns == NO_TIME else latest_ns + LINGER_NS

    def is_complete(self, connection: OpenConnection, ready: dict[str, int]) -> bool:
        """Return whether all bytes up to both FINs can be read.

        `ready` has the number of held runs that can be read, by the name of the stream.
        """
        if connection.stage not in (Stage.READ, Stage.CARRIED):
            return False
        for direction, stream in enumerate(connection.sides):
            side = self.placer.sides[2 * connection.number + direction]
            if not side[Side.STATE] & State.FIN:
                return False
            count = ready.get(stream.name)
            if count is None:
                if side[Side.STATE] & State.DATA or side[Side.END] != side[Side.BEGIN]:
                    return False
                continue
            if count < stream.held.shape[1] or stream.stop_of(count) < side[Side.END]:
                return False
        return True

    def acknowledged(self, connection: OpenConnection, direction: int) -> int | None:
        """Return the position in a stream that its receiver acknowledged last; None if none."""
        number = 2 * connection.number + direction
        acknowledgment = int(self.placer.sides[number ^ 1, Side.ACKNOWLEDGED])
        if acknowledgment == NONE:
            return None
        side = self.placer.sides[number]
        high = int(side[Side.HIGH])
        return high + distance(acknowledgment, int(side[Side.BASE]) + high)

    def acknowledged_ahead(
        self, connection: OpenConnection, direction: int, count: int
    ) -> int | None:
        """Return the number up to which a stream was captured, if its receiver acknowledged more.

        None if it did not, or if the capture has no segment of this direction. `count` is the
        number of the stream's held runs before its first hole.
        """
        first, stream = 2 * connection.number, connection.sides[direction]
        base, high, state = self.placer.sides[first + direction, _REACHED].tolist()
        acknowledgment = int(self.placer.sides[first + 1 - direction, Side.ACKNOWLEDGED])
        if not state & State.SEEN or acknowledgment == NONE:
            return None
        if stream.begin is not None and count < stream.held.shape[1]:
            return int(base + stream.stop_of(count))
        return int(base + high) if distance(acknowledgment, base + high) > 0 else None

    def order(self, connection: OpenConnection) -> int:
        """Order the packets of a connection, recalled ones too; see `order_held`."""
        sides = self.placer.sides[2 * connection.number : 2 * connection.number + 2]
        return order_held(sides, stream_begins(sides), connection.sides)

    def with_final_size(self, connection: OpenConnection, stream: Stream) -> Stream:
        """Return a stream with its size at the end, including bytes that are missing there."""
        live = connection.side(stream.name)
        if live.protocol == "udp":
            return replace(stream, size=live.floor or 0)
        number = 2 * connection.number + (live is connection.sides[1])
        if live.begin is None:
            return stream
        return replace(stream, size=max(stream.size, self._end(number) - live.begin))

    def facts(self, connection: OpenConnection) -> dict[str, dict[str, Any]]:
        """Return the columns of its streams from the capture, by name: see `describe_stream`."""
        found = {stream.name: describe_beginning(stream) for stream in connection.sides}
        for stream, each in zip(connection.sides, found.values(), strict=True):
            each |= dict.fromkeys(("ended", "ended_frame", "ended_ns"), None) | {"paired": False}
            each["first_ns"] = None if stream.first_ns == NO_TIME else stream.first_ns
            each["last_ns"] = None if stream.last_ns == NO_TIME else stream.last_ns
        if connection.sides[0].protocol == "tcp":
            table, content, _ = self.at_end(connection)
            endings, both = table.endings(np.arange(2)), found.values()
            records = endings.records.tolist()
            for each, kind, record, way in zip(both, endings.kinds, records, (0, 1), strict=True):
                each |= {"ended": ENDINGS[kind], "paired": bool(table.captured[1 - way])}
                if record != NONE:
                    each["ended_frame"] = record + 1
                    each["ended_ns"] = int(content.times_of(np.array([record]))[0])
        return found

    def at_end(self, connection: OpenConnection) -> tuple[Connections, Content, int]:
        """Return a TCP connection as columns, with the last run of each side, and its content.

        The content has the times of these runs, and of what closed the sides. The number is the
        largest change of one: see `times`, rule 4.
        """
        number, tails = connection.number, [stream.tail for stream in connection.sides]
        sides = self.placer.sides[2 * number : 2 * number + 2]
        closing = sides[:, [Side.CLOSING_RECORD, Side.CLOSED_NS]].tolist()
        times_ns = {record: time_ns for record, time_ns in closing if record != NONE}
        times_ns.update(filter(None, tails))
        records, known_ns = np.array(sorted(times_ns.items()), np.int64).reshape(-1, 2).T.copy()
        content = Content(Places(), records, known_ns, {})
        last = np.array([tail[0] for tail in tails if tail is not None], np.int64)
        runs, bounds = Runs(*[last] * 4), np.cumsum([0, *(tail is not None for tail in tails)])
        moved_ns = close_behind_bytes(sides, stream_ends(sides), bounds, runs, content)
        row = self.placer.connections[number : number + 1]
        return connections_of(row, sides, bounds, runs), content, moved_ns

    def _end(self, number: int) -> int:
        """Return the position where a side's stream ends, as far as the capture shows."""
        first = number & ~1
        return int(stream_ends(self.placer.sides[first : first + 2])[number & 1])

    def open_all_lost(self, over: Bools) -> None:
        """Open the connections among `over` whose bytes are all missing, to report the gaps."""
        sides = self.placer.sides
        is_lost = has_stream(sides) & (stream_ends(sides) > stream_begins(sides))
        lost = is_lost.reshape(-1, 2).any(axis=1)
        for number in np.flatnonzero(over & lost & (self.holdings == Holding.NONE)).tolist():
            self.get_or_open(number)

    def unused(self, evicted: Bools) -> int:
        """Return how many conversations no connection has any more, at least, without `evicted`."""
        used = np.count_nonzero(~evicted) + len(self.datagrams) + len(self.copies.conversations)
        return len(self.flows) - int(used)

    def keep_only(self, kept: Ints) -> None:
        """Evict all TCP connections except `kept`, and number those from 0 on."""
        conversations = self.placer.connections[kept, Connection.CONVERSATION]
        datagrams = np.array([*self.datagrams], np.int64)
        paired = self.copies.conversations
        left, numbers = np.unique(np.r_[conversations, datagrams, paired], return_inverse=True)
        numbers = numbers.reshape(-1)
        self.flows.keep(left)
        self.placer.keep(kept, numbers[: len(kept)], len(left))
        self.held.keep_only(kept)
        self.holdings = self.holdings[kept]
        self._ordinals = self._ordinals[kept]
        of_conversations = zip(left.tolist(), range(len(left)), strict=True)
        self.holdings[self.copies.keep_only(kept, dict(of_conversations))] = Holding.IGNORED
        renumbered = dict(zip(kept.tolist(), range(len(kept)), strict=True))
        for connection in self.open.values():
            connection.suspects = [
                renumbered[number] for number in connection.suspects if number in renumbered
            ]
        for table, old, new in (
            (self.open, kept, np.arange(len(kept))),
            (self.ended, kept, np.arange(len(kept))),
            (self.datagrams, datagrams, numbers[len(kept) : len(kept) + len(datagrams)]),
        ):
            moved = {}
            for before, after in zip(old.tolist(), new.tolist(), strict=True):
                if (found := table.get(before)) is not None:
                    found.number = after
                    for way, stream in enumerate(found.sides):
                        stream.side = 2 * after + way if stream.protocol == "tcp" else NONE
                    moved[after] = found
            table.clear()
            table.update(moved)
