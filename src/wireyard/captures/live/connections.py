"""The connections of a live capture: their numbers, names and ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np

from wireyard.arrays import Bools, Grid, Int8s, Ints
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.stream import Stream
from wireyard.captures.connections.tcp import Placer, stream_ends
from wireyard.captures.connections.tcp_kernels import NONE, Connection, Side, State, distance
from wireyard.captures.detection.assignment import Assigned
from wireyard.captures.layout import Unit
from wireyard.captures.live.stream import LiveStream
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream_table import describe_beginning
from wireyard.formats import Format, get_format
from wireyard.streams.framer import Framer

__all__ = ["LINGER_NS", "Holding", "LiveConnections", "OpenConnection", "Stage"]

LINGER_NS: Final = 10_000_000_000
"""How long a connection stays open after its end, for segments that were captured late."""
_CLOSING: Final = slice(Side.CLOSING_RECORD, Side.CLOSED_NS + 1)
"""Record and time of the first packet that closes a side."""
_MOST_PAIRS: Final = 1 << 17
"""Pairs of endpoints whose connections are counted, for their names, at about 150 bytes each."""


class Holding(IntEnum):
    """Whether the bytes of a TCP connection are held."""

    NONE = 0
    """It has no bytes."""
    OPEN = 1
    """It is in `LiveConnections.open`."""
    IGNORED = 2
    """Its bytes are ignored."""


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

    @property
    def ordered(self) -> tuple[LiveStream, LiveStream]:
        """Its streams, beginning with that of the first packet."""
        first, second = self.sides
        return (second, first) if self.first_direction else (first, second)

    def side(self, name: str) -> LiveStream:
        """Return the stream with this name."""
        return self.sides[0] if self.sides[0].name == name else self.sides[1]

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Continue from the `state` of a connection.

        Raises
        ------
        KeyError, TypeError, ValueError, IndexError, AttributeError
            `state` is not such a state.
        """
        self.stage = Stage(state["stage"])
        self.format = None if state["format"] is None else get_format(state["format"])
        if self.stage == Stage.READ and self.format is None:
            raise ValueError("no state of a connection")
        self.heads = {name: bytes.fromhex(head) for name, head in state["heads"].items()}
        self.opened_bytes, self.latest_ns = int(state["opened_bytes"]), int(state["latest_ns"])
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
            "sides": [stream.state() for stream in self.sides],
        }


class LiveConnections:
    """The TCP connections and UDP conversations of a live capture.

    Limits
    ------
    250 bytes for each connection that is not evicted.
    """

    def __init__(self) -> None:
        self.flows = FlowTable()
        self.placer = Placer()
        self.open: dict[int, OpenConnection] = {}
        """TCP connections with bytes, by number."""
        self.datagrams: dict[int, OpenConnection] = {}
        """UDP conversations, by number."""
        self.holdings: Int8s = np.zeros(0, np.int8)
        """A `Holding` for each TCP connection."""
        self._ordinals: Ints = np.zeros(0, np.int64)
        """For each connection the n of the suffix ``#n`` of its name."""
        self._pairs: OrderedDict[bytes, int] = OrderedDict()
        """Number of connections between two endpoints so far; the pair seen longest ago first."""

    # --- state for another process ----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues: JSON values and arrays."""
        return {
            "flows": self.flows.state(),
            "placer": self.placer.state(),
            "stages": self.holdings,
            "ordinals": self._ordinals,
            "pairs": np.frombuffer(b"".join(self._pairs), np.uint8),
            "pair_counts": np.array([*self._pairs.values()], np.int64),
            "open": [connection.state() for connection in self.open.values()],
            "datagrams": [connection.state() for connection in self.datagrams.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; the open connections are left to `restore_connection`.

        Raises
        ------
        KeyError, TypeError, ValueError, IndexError, AttributeError
            `state` is not such a state.
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
        counts = state["pair_counts"].tolist()
        keys = state["pairs"].reshape(len(counts), -1) if counts else ()
        self._pairs = OrderedDict(
            (key.tobytes(), ordinal) for key, ordinal in zip(keys, counts, strict=True)
        )

    def restore_connection(self, state: Mapping[str, Any], kind: str) -> OpenConnection:
        """Add an open connection of a stored state, with empty streams.

        Parameters
        ----------
        kind
            The list of the state that it is in: ``open`` or ``datagrams``.
        """
        number, ordinal = int(state["number"]), int(state["ordinal"])
        is_tcp = kind == "open"
        conversation = number
        if is_tcp:
            conversation = int(self.placer.connections[number, Connection.CONVERSATION])
        if not 0 <= conversation < len(self.flows):
            raise ValueError("no state of a connection")
        protocol = "tcp" if is_tcp else "udp"
        connection = self._create(number, conversation, int(state["first_way"]), ordinal, protocol)
        (self.open if is_tcp else self.datagrams)[number] = connection
        return connection

    # --- input ------------------------------------------------------------------------------

    def add_new(self, before: int, datagrams: Grid, flows: Ints) -> list[OpenConnection]:
        """Add new connections; count those of each pair of endpoints by their first packets.

        Return the open connections that new ones replace.

        Parameters
        ----------
        before
            Number of TCP connections before the new ones.
        datagrams, flows
            The UDP datagrams, and the flow of each.
        """
        new, superseded = [], []
        table = self.placer.connections[before:]
        for number, record, conversation in zip(
            range(before, len(self.placer)),
            table[:, Connection.FIRST_RECORD].tolist(),
            table[:, Connection.CONVERSATION].tolist(),
            strict=True,
        ):
            new.append((record, conversation, number))
        numbers, first = np.unique(flows >> 1, return_index=True)
        for conversation, row in zip(numbers.tolist(), first.tolist(), strict=True):
            if conversation not in self.datagrams:
                record = int(datagrams[Unit.RECORD, row])
                new.append((record, conversation, -1 - int(flows[row] & 1)))
        more = len(self.placer) - len(self.holdings)
        if more > 0:
            self.holdings = np.r_[self.holdings, np.zeros(more, np.int8)]
            self._ordinals = np.r_[self._ordinals, np.zeros(more, np.int64)]
        for _, conversation, number in sorted(new):
            pair = self.flows.pair(conversation)
            ordinal = self._pairs[pair] = self._pairs.pop(pair, 0) + 1
            if len(self._pairs) > _MOST_PAIRS:
                self._pairs.popitem(last=False)
            if number >= 0:
                self._ordinals[number] = ordinal
                older = int(self.placer.connections[number, Connection.BEFORE])
                if older != NONE and (connection := self.open.get(older)) is not None:
                    superseded.append(connection)
            else:
                direction = -1 - number
                connection = self._create(conversation, conversation, direction, ordinal, "udp")
                self.datagrams[conversation] = connection
        return superseded

    def _create(
        self, number: int, conversation: int, first_direction: int, ordinal: int, protocol: str
    ) -> OpenConnection:
        """Return a new connection without bytes between two endpoints."""
        ends = self.flows.endpoints(conversation)
        suffix = "" if ordinal == 1 else f"#{ordinal}"
        sides = [
            LiveStream(f"{src}>{dst}{suffix}", protocol, src, dst)
            for src, dst in (ends, ends[::-1])
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

        Parameters
        ----------
        ready
            Number of held runs that can be read, by the name of the stream.
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
            held = stream.held
            if count < len(held.positions):
                return False
            stop = int(held.positions[-1] + held.lengths[-1]) if count else stream.position
            if stop < side[Side.END]:
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

    def with_final_size(self, connection: OpenConnection, stream: Stream) -> Stream:
        """Return a stream with its size at the end, including bytes that are missing there."""
        live = connection.side(stream.name)
        if live.protocol == "udp":
            return replace(stream, size=live.floor or 0)
        number = 2 * connection.number + (live is connection.sides[1])
        has_end = self.placer.sides[number, Side.STATE] & (State.BEGUN | State.DATA) != 0
        if not has_end or live.begin is None:
            return stream
        return replace(stream, size=max(stream.size, self._end(number) - live.begin))

    def facts(self, connection: OpenConnection, stream: LiveStream) -> dict[str, Any]:
        """Return the columns of a stream from the capture: see `describe_stream`."""
        closing, is_reset, is_finished = NONE, False, False
        closed_ns = NO_TIME
        is_paired = False
        if stream.protocol == "tcp":
            number = 2 * connection.number + (stream is connection.sides[1])
            sides = self.placer.sides
            state, other = (int(sides[side, Side.STATE]) for side in (number, number ^ 1))
            is_reset, is_finished = bool(state & State.RST), bool(state & State.FIN)
            is_paired = bool(other & (State.SEEN | State.RST))
            closing, closed_ns = sides[number, _CLOSING].tolist()
            if other & State.RST and not self._has_bytes(number ^ 1):
                theirs, theirs_ns = sides[number ^ 1, _CLOSING].tolist()
                is_reset = True
                if closing == NONE or theirs < closing:
                    closing, closed_ns = theirs, theirs_ns
        return {
            **describe_beginning(stream),
            "paired": is_paired,
            "ended": "rst" if is_reset else "fin" if is_finished else None,
            "first_ns": None if stream.first_ns == NO_TIME else stream.first_ns,
            "last_ns": None if stream.last_ns == NO_TIME else stream.last_ns,
            "ended_frame": None if closing == NONE else closing + 1,
            "ended_ns": None if closing == NONE else closed_ns,
        }

    def _has_bytes(self, number: int) -> bool:
        """Return whether a side sent bytes, captured or not."""
        side = self.placer.sides[number]
        if not side[Side.STATE] & (State.BEGUN | State.DATA):
            return False
        begin = side[Side.BEGIN] if side[Side.STATE] & State.BEGUN else side[Side.LOW]
        return self._end(number) > int(begin)

    def _end(self, number: int) -> int:
        """Return the position where a side's stream ends, as far as the capture shows."""
        first = number & ~1
        return int(stream_ends(self.placer.sides[first : first + 2])[number & 1])

    def open_all_lost(self, over: Bools) -> None:
        """Open the connections among `over` whose bytes are all missing, to report the gaps."""
        sides = self.placer.sides
        begun = sides[:, Side.STATE] & State.BEGUN != 0
        lost = (begun & (stream_ends(sides) > sides[:, Side.BEGIN])).reshape(-1, 2).any(axis=1)
        for number in np.flatnonzero(over & lost & (self.holdings == Holding.NONE)).tolist():
            self.get_or_open(number)

    def keep_only(self, kept: Ints) -> None:
        """Evict all TCP connections except `kept`, and number those from 0 on."""
        conversations = self.placer.connections[kept, Connection.CONVERSATION]
        datagrams = np.array([*self.datagrams], np.int64)
        left, numbers = np.unique(np.r_[conversations, datagrams], return_inverse=True)
        numbers = numbers.reshape(-1)
        self.flows.keep(left)
        self.placer.keep(kept, numbers[: len(kept)], len(left))
        self.holdings = self.holdings[kept]
        self._ordinals = self._ordinals[kept]
        for table, old, new in (
            (self.open, kept, np.arange(len(kept))),
            (self.datagrams, datagrams, numbers[len(kept) :]),
        ):
            moved = {}
            for before, after in zip(old.tolist(), new.tolist(), strict=True):
                if (connection := table.get(before)) is not None:
                    connection.number = after
                    moved[after] = connection
            table.clear()
            table.update(moved)
