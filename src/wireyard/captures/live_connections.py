"""The connections of a capture while it is made: their numbers, names and ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.captures.assignment import Assigned
from wireyard.captures.flows import FlowTable
from wireyard.captures.layout import Flag, Unit
from wireyard.captures.live_stream import LiveStream
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream import Stream
from wireyard.captures.stream_table import describe_beginning
from wireyard.captures.tcp import Placer
from wireyard.captures.tcp_kernels import NONE, Connection, Side, State, distance
from wireyard.captures.units import Units
from wireyard.formats import Format, get_format
from wireyard.streams.framer import Framer

__all__ = ["LINGER_NS", "LiveConnections", "OpenConnection", "Stage"]

Ints = npt.NDArray[np.int64]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

LINGER_NS: Final = 10_000_000_000
"""How long a connection that has ended waits for segments that were captured late."""
_MOST_PAIRS: Final = 1 << 17
"""Pairs of endpoints whose connections are counted, for their names, at about 150 bytes each."""


class Stage(IntEnum):
    """How far reading a connection has come."""

    UNKNOWN = 0
    """Its format is not certain."""
    READ = 1
    CARRIED = 2
    """It is carried by TLS or WebSocket, and is opened again when it has grown."""
    PASSED = 3
    """Nobody wants its bytes, or nobody can read them."""


@dataclass(eq=False, slots=True)
class OpenConnection:
    """A connection with bytes; the side that sent its first packet comes first."""

    number: int
    """Of the connection, or of UDP of the conversation."""
    first_way: int
    sides: tuple[LiveStream, LiveStream]
    """By their way."""
    stage: Stage = Stage.UNKNOWN
    due_ns: int | None = None
    assigned: Sequence[Assigned] = ()
    """What it is, where that is reported at its end."""
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
        """Its directions, the one that sent the first packet before the other."""
        one, other = self.sides
        return (other, one) if self.first_way else (one, other)

    def side(self, name: str) -> LiveStream:
        """Return the direction of a name."""
        return self.sides[0] if self.sides[0].name == name else self.sides[1]

    def restore(self, state: Mapping[str, Any], framer_of: Callable[[str], Framer]) -> None:
        """Go on where a connection stood in another capture.

        Raises
        ------
        KeyError, TypeError, ValueError, IndexError, AttributeError
            It is no such state.
        """
        self.stage = Stage(state["stage"])
        self.format = None if state["format"] is None else get_format(state["format"])
        self.heads = {name: bytes.fromhex(head) for name, head in state["heads"].items()}
        self.opened_bytes, self.latest_ns = int(state["opened_bytes"]), int(state["latest_ns"])
        for stream, each in zip(self.sides, state["sides"], strict=True):
            stream.restore(each, framer_of)
        for name, (label, framed) in state["framers"].items():
            self.framers[name] = framer_of(label)
            self.framers[name].restore(framed)

    def state(self) -> dict[str, Any]:
        """Return what a connection is gone on with."""
        suffix = self.sides[0].name.partition("#")[2]
        return {
            "number": self.number,
            "ordinal": int(suffix or 1),
            "first_way": self.first_way,
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
    """The connections of TCP that have arrived, and the conversations of UDP.

    Limits
    ------
    250 bytes for each connection that is not forgotten.
    """

    def __init__(self) -> None:
        self.flows = FlowTable()
        self.placer = Placer()
        self.open: dict[int, OpenConnection] = {}
        """Connections with bytes."""
        self.datagrams: dict[int, OpenConnection] = {}
        self.stages: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        """Of each connection: 0 without bytes, 1 if it is open, 2 if its bytes are passed over."""
        self._ordinals: Ints = np.zeros(0, np.int64)
        self._first_ways: Ints = np.zeros(0, np.int64)
        self._closings: Grid = np.zeros((0, 2), np.int64)
        """Of each side the number and the time of its first packet with a FIN or RST."""
        self._pairs: OrderedDict[bytes, int] = OrderedDict()

    # --- what another process goes on with --------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what another capture goes on with: values of JSON and arrays."""
        return {
            "flows": self.flows.state(),
            "placer": self.placer.state(),
            "stages": self.stages,
            "ordinals": self._ordinals,
            "first_ways": self._first_ways,
            "closings": self._closings,
            "pairs": np.frombuffer(b"".join(self._pairs), np.uint8),
            "pair_counts": np.array([*self._pairs.values()], np.int64),
            "open": [one.state() for one in self.open.values()],
            "datagrams": [one.state() for one in self.datagrams.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the connections of another capture, but for those that are open.

        Raises
        ------
        KeyError, TypeError, ValueError, IndexError, AttributeError
            It is no such state.
        """
        self.flows.restore(state["flows"])
        self.placer.restore(state["placer"])
        count = len(self.placer)
        self.stages, self._closings = state["stages"].copy(), state["closings"].copy()
        self._ordinals, self._first_ways = state["ordinals"].copy(), state["first_ways"].copy()
        if not len(self.stages) == len(self._ordinals) == len(self._first_ways) == count:
            raise ValueError("no state of a capture")
        if self._closings.shape != (2 * count, 2) or len(self.placer.latest) > len(self.flows):
            raise ValueError("no state of a capture")
        counts = state["pair_counts"].tolist()
        keys = state["pairs"].reshape(len(counts), -1) if counts else ()
        self._pairs = OrderedDict(
            (key.tobytes(), ordinal) for key, ordinal in zip(keys, counts, strict=True)
        )

    def restored(self, state: Mapping[str, Any], kind: str) -> OpenConnection:
        """Return a connection that another capture had open, without what frames its streams.

        Parameters
        ----------
        kind
            ``open`` or ``datagrams``: which of the two it was in.
        """
        number, ordinal = int(state["number"]), int(state["ordinal"])
        is_tcp = kind == "open"
        conversation = number
        if is_tcp:
            conversation = int(self.placer.connections[number, Connection.CONVERSATION])
        if not 0 <= conversation < len(self.flows):
            raise ValueError("no state of a connection")
        protocol = "tcp" if is_tcp else "udp"
        one = self.made(number, conversation, int(state["first_way"]), ordinal, protocol)
        (self.open if is_tcp else self.datagrams)[number] = one
        return one

    # --- what arrives -----------------------------------------------------------------------

    def name_new(
        self, before: int, segments: Units, datagrams: Grid, flows: Ints
    ) -> list[OpenConnection]:
        """Count new connections by their endpoints, in the order of their first packets.

        Return the open ones that others took the place of.
        """
        new, superseded = [], []
        table = self.placer.connections[before:]
        first_rows = table[:, Connection.FIRST_ROW]
        records = segments.records[first_rows].tolist()
        for number, record, conversation in zip(
            range(before, len(self.placer)),
            records,
            table[:, Connection.CONVERSATION].tolist(),
            strict=True,
        ):
            new.append((record, conversation, number))
        known = self.datagrams
        numbers, first = np.unique(flows >> 1, return_index=True)
        for conversation, row in zip(numbers.tolist(), first.tolist(), strict=True):
            if conversation not in known:
                record = int(datagrams[Unit.RECORD, row])
                new.append((record, conversation, -1 - int(flows[row] & 1)))
        more = len(self.placer) - len(self.stages)
        if more > 0:
            self.stages = np.r_[self.stages, np.zeros(more, np.int8)]
            self._ordinals, self._first_ways = (
                np.r_[old, np.zeros(more, np.int64)] for old in (self._ordinals, self._first_ways)
            )
            self._closings = np.concatenate([self._closings, np.full((2 * more, 2), NONE)])
        self._first_ways[before:] = segments.flows[first_rows] & 1
        for _, conversation, number in sorted(new):
            pair = self.flows.pair(conversation)
            ordinal = self._pairs[pair] = self._pairs.pop(pair, 0) + 1
            if len(self._pairs) > _MOST_PAIRS:
                self._pairs.popitem(last=False)
            if number >= 0:
                self._ordinals[number] = ordinal
                older = int(self.placer.connections[number, Connection.BEFORE])
                if older != NONE and (one := self.open.get(older)) is not None:
                    superseded.append(one)
            else:
                way = -1 - number
                one = self.made(conversation, conversation, way, ordinal, "udp")
                self.datagrams[conversation] = one
        return superseded

    def note_closings(self, segments: Units, times_ns: Ints, sides: npt.NDArray[np.int32]) -> None:
        """Take note of the packets that show the end of a stream first."""
        closing = np.unique(sides[segments.flags & (Flag.FIN | Flag.RST) != 0])
        rows = self.placer.sides[closing, Side.CLOSED]
        new = (self._closings[closing, 0] == NONE) & (rows != NONE)
        rows = rows[new]
        self._closings[closing[new], 0] = segments.records[rows]
        self._closings[closing[new], 1] = times_ns[rows]

    def made(
        self, number: int, conversation: int, first_way: int, ordinal: int, protocol: str
    ) -> OpenConnection:
        """Return a new connection between two endpoints, with no byte yet."""
        ends = self.flows.endpoints(conversation)
        suffix = "" if ordinal == 1 else f"#{ordinal}"
        sides = [
            LiveStream(f"{src}>{dst}{suffix}", protocol, src, dst)
            for src, dst in (ends, ends[::-1])
        ]
        return OpenConnection(number, first_way, (sides[0], sides[1]))

    def opened(self, connection: int) -> OpenConnection:
        """Return a connection that has bytes, or had some that are missing."""
        one = self.open.get(connection)
        if one is None:
            conversation = int(self.placer.connections[connection, Connection.CONVERSATION])
            first_way = int(self._first_ways[connection])
            ordinal = int(self._ordinals[connection])
            one = self.made(connection, conversation, first_way, ordinal, "tcp")
            self.open[connection] = one
            self.stages[connection] = 1
        return one

    # --- what is known of them ---------------------------------------------------------------

    def ended_ns(self, one: OpenConnection) -> int | None:
        """Return when a connection that ended, or that another took the place of, is closed."""
        known = self.placer.connections[one.number]
        latest = self.placer.latest[known[Connection.CONVERSATION]]
        if not known[Connection.ENDED] and latest == one.number:
            return None
        latest_ns = int(known[Connection.LATEST_NS])
        return None if latest_ns == NO_TIME else latest_ns + LINGER_NS

    def is_complete(self, one: OpenConnection, ready: dict[str, int]) -> bool:
        """Return whether all bytes up to both FINs can be read."""
        if one.stage not in (Stage.READ, Stage.CARRIED):
            return False
        for way, stream in enumerate(one.sides):
            side = self.placer.sides[2 * one.number + way]
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

    def acknowledged(self, one: OpenConnection, way: int) -> int | None:
        """Return the position in a stream that its receiver acknowledged last."""
        number = 2 * one.number + way
        acknowledgment = int(self.placer.sides[number ^ 1, Side.ACKNOWLEDGED])
        if acknowledgment == NONE:
            return None
        side = self.placer.sides[number]
        high = int(side[Side.HIGH])
        return high + distance(acknowledgment, int(side[Side.BASE]) + high)

    def sized(self, one: OpenConnection, stream: Stream) -> Stream:
        """Return a stream with the size that it has at its end."""
        live = one.side(stream.name)
        if live.protocol == "udp":
            return replace(stream, size=live.floor or 0)
        side = self.placer.sides[2 * one.number + (live is one.sides[1])]
        if not side[Side.STATE] & (State.BEGUN | State.DATA) or live.begin is None:
            return stream
        return replace(stream, size=max(stream.size, int(side[Side.END]) - live.begin))

    def facts(self, one: OpenConnection, stream: LiveStream) -> dict[str, Any]:
        """Return what a capture shows of a stream: see `describe_stream`."""
        closing, is_reset, is_finished = NONE, False, False
        closed_ns = NO_TIME
        if stream.protocol == "tcp":
            number = 2 * one.number + (stream is one.sides[1])
            sides, closings = self.placer.sides, self._closings
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
        side = self.placer.sides[number]
        if not side[Side.STATE] & (State.BEGUN | State.DATA):
            return False
        begin = side[Side.BEGIN] if side[Side.STATE] & State.BEGUN else side[Side.LOW]
        return bool(side[Side.END] > begin)

    def open_silent(self, over: npt.NDArray[np.bool_]) -> None:
        """Open those of some connections that have no byte, but lack some."""
        sides = self.placer.sides.reshape(-1, 2, len(Side))
        states = sides[:, :, Side.STATE]
        there = states & State.BEGUN != 0
        lost = (there & (sides[:, :, Side.END] > sides[:, :, Side.BEGIN])).any(axis=1)
        for number in np.flatnonzero(over & lost & (self.stages == 0)).tolist():
            self.opened(number)

    def forget(self, kept: Ints) -> None:
        """Forget all connections but some."""
        conversations = self.placer.connections[kept, Connection.CONVERSATION]
        datagrams = np.array([*self.datagrams], np.int64)
        left, numbers = np.unique(np.r_[conversations, datagrams], return_inverse=True)
        numbers = numbers.reshape(-1)
        self.flows.keep(left)
        self.placer.keep(kept, numbers[: len(kept)], len(left))
        self.stages = self.stages[kept]
        self._ordinals, self._first_ways = self._ordinals[kept], self._first_ways[kept]
        self._closings = self._closings.reshape(-1, 4)[kept].reshape(-1, 2)
        for table, old, new in (
            (self.open, kept, np.arange(len(kept))),
            (self.datagrams, datagrams, numbers[len(kept) :]),
        ):
            moved = {}
            for before, after in zip(old.tolist(), new.tolist(), strict=True):
                if (one := table.get(before)) is not None:
                    one.number = after
                    moved[after] = one
            table.clear()
            table.update(moved)
