"""What a connection is while its segments arrive, and which of its bytes can be read already.

A connection is read as soon as its format is certain: a client's CONNECT, or enough of what begins
another format. What only a port, or the first of several segments, shows waits for `SETTLE_NS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from wireyard.captures.assignment import (
    Assigned,
    CapturedConnection,
    DecodeAs,
    captured_connections,
)
from wireyard.captures.carriers import Carriers
from wireyard.captures.directed import CapturedStream
from wireyard.captures.flows import Endpoint
from wireyard.captures.headers import PacketReader
from wireyard.captures.live_connections import LiveConnections, OpenConnection, Stage
from wireyard.captures.live_stream import LiveStream
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream import Stream
from wireyard.captures.tcp_kernels import Side, State
from wireyard.captures.tls_keys import KeyLog
from wireyard.captures.tray import Tray
from wireyard.formats import Format, get_format
from wireyard.streams.framer import Framer
from wireyard.streams.growth import Grown

__all__ = ["LiveReader"]

SETTLE_NS: Final = 200_000_000
"""How long a connection waits for what may show its format, or where its streams begin, better."""
MAX_HEAD_BYTES: Final = 1 << 16
"""Held of a direction while no format is known: as much as formats are found by."""
MAX_CARRIED_BYTES: Final = 4 << 20
"""Held of a connection of TLS or WebSocket, which is opened from its beginning as it grows."""
_MOST_PROBLEMS: Final = 256
_HEAD_BYTES: Final = 72
"""First bytes that show a format for certain: the longest header, that of JMQ packets."""
_ANSWERED_BYTES: Final = 1 << 10
"""First bytes of a direction that decide the context of the other."""


class _GrowingStream(CapturedStream):
    """One direction of a conversation, as far as it can be read now."""

    @property
    def size(self) -> int:
        """The bytes that there are to read: those before were read, and are not there any more."""
        return self.bytes_ahead


class LiveReader:
    """Decides the formats of connections, and makes streams of what can be read.

    Parameters
    ----------
    name, named, rules, keys, max_packet_bytes
        Those of `LiveCapture`.
    packets, connections
        What has arrived.
    """

    def __init__(
        self,
        name: str,
        named: Format | None,
        rules: Sequence[DecodeAs],
        keys: KeyLog,
        max_packet_bytes: int | None,
        packets: PacketReader,
        connections: LiveConnections,
    ) -> None:
        self.keys = keys
        self.services: dict[Endpoint, str | None] = {}
        """The formats of endpoints, as connections have shown them so far."""
        self.problems: dict[str, None] = {}
        """Why some bytes that were carried are in no row."""
        self.proxies = Counter[tuple[str, int]]()
        """Names and sizes of headers of proxies."""
        self._name, self._named, self._rules = name, named, rules
        self._max_packet_bytes = max_packet_bytes
        self._packets, self._connections = packets, connections
        self._tray = Tray()

    def note(self, text: str) -> None:
        """Add a problem, unless there are too many."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[text] = None

    def framer_of(self, label: str) -> Framer:
        """Return what cuts a stream of a format into frames."""
        return Framer(get_format(label), self._max_packet_bytes)

    def settle(
        self, one: OpenConnection, way: int, now_ns: int, due_ns: list[int], *, final: bool
    ) -> bool:
        """Return whether it is known where a stream of a connection begins."""
        stream, side = one.sides[way], self._connections.placer.sides[2 * one.number + way]
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
        if not (stream.begun or final) and now_ns < wait_ns and one.stage == Stage.READ:
            due_ns.append(wait_ns)
            return False
        if one.stage == Stage.UNKNOWN and now_ns < wait_ns:
            due_ns.append(wait_ns)
        return True

    def decide(
        self, one: OpenConnection, ready: dict[str, int], now_ns: int, *, final: bool
    ) -> None:
        """Find out what a connection is, as far as its bytes show."""
        places = self._packets.places
        seen = [stream.seen(places) for stream in one.ordered if ready.get(stream.name, -1) >= 0]
        seen = [stream if not final else self._connections.sized(one, stream) for stream in seen]
        seen = [stream for stream in seen if stream.size]
        if not seen:
            return
        connection = next(captured_connections(seen, Carriers(self.keys)))
        self.services.update({**connection.services(), **connection.opened()})
        assigned = connection.assigned(self._rules, self.services, self._named)
        if not final and not any(each.stream.size for each in assigned):
            return  # so far there is the header of a proxy alone
        one.assigned = assigned
        format = assigned[0].format
        held = max(stream.size for stream in seen)
        if assigned[0].carriers:
            closed = assigned[0].closed and not (self._may_open(assigned[0]))
            if final or not closed or held > MAX_HEAD_BYTES:
                one.stage = Stage.PASSED if closed else Stage.CARRIED
        elif format is None:
            if held > MAX_HEAD_BYTES:
                one.stage = Stage.PASSED
        elif final or self._is_certain(one, connection, seen, now_ns):
            one.format = format
            one.stage = Stage.READ if self._is_wanted(format) else Stage.PASSED
            for each in assigned:
                stream = one.side(each.stream.name)
                if each.captured.proxy is not None and one.stage == Stage.READ:
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

    def _is_certain(
        self,
        one: OpenConnection,
        connection: CapturedConnection,
        seen: Sequence[Stream],
        now_ns: int,
    ) -> bool:
        if connection.opened():
            return True
        first_ns = [stream.first_ns for stream in one.sides if stream.first_ns != NO_TIME]
        if not first_ns or now_ns >= min(first_ns) + SETTLE_NS:
            return True
        shown = connection.sniffed is not None or bool(self._rules)
        return (
            shown
            and all(stream.begun for stream in seen)
            and max(map(len, connection.heads)) >= _HEAD_BYTES
        )

    def read(self, one: OpenConnection, ready: dict[str, int], *, final: bool) -> list[Grown]:
        """Return what can be read of a connection: what is ready of what its streams hold."""
        if one.stage == Stage.CARRIED:
            return self._read_carried(one, ready, final=final)
        if one.stage != Stage.READ:
            return []
        assert one.format is not None
        found = []
        for stream in one.ordered:
            if stream.name not in ready:
                continue
            if stream.framer is None:
                other = one.sides[0] if one.sides[1] is stream else one.sides[1]
                # What the packets of the other direction have told goes for this one too.
                context = one.format.context if other.framer is None else other.framer.context
                if head := one.heads.get(other.name, b""):
                    context = one.format.answer_context(head, context)
                stream.framer = self._framer(one.format, context)
            count = ready[stream.name]
            live = stream.seen(self._packets.places, count)
            if final:
                live = self._connections.sized(one, live)
            if count or (final and live.size):
                found.append(self._grown(one.format, stream.framer, live, growing=not final))
        return found

    def _read_carried(
        self, one: OpenConnection, ready: dict[str, int], *, final: bool
    ) -> list[Grown]:
        """Open what carries a connection again, all of which is held, and read what is new."""
        places = self._packets.places
        seen = [
            stream.seen(places, ready[stream.name])
            for stream in one.ordered
            if stream.name in ready
        ]
        if final:
            seen = [self._connections.sized(one, stream) for stream in seen]
        seen = [stream for stream in seen if stream.size]
        size = sum(int(stream.runs.lengths.sum()) for stream in seen)
        if not seen or (size == one.opened_bytes and not final):
            return []
        one.opened_bytes = size
        connection = next(captured_connections(seen, Carriers(self.keys)))
        one.assigned = connection.assigned(self._rules, self.services, self._named)
        self.services |= connection.opened()
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
                self.note(f"{shown} in TLS or WebSocket are read while it grows")
            one.stage = Stage.PASSED
        return found

    def read_datagrams(self, one: OpenConnection, stream: LiveStream, live: Stream) -> list[Grown]:
        """Return a stream of datagrams, each of which can be read at once.

        Parameters
        ----------
        stream, live
            A direction of the conversation, and what is new of it.
        """
        if one.stage == Stage.UNKNOWN:
            connection = next(captured_connections([live], Carriers(self.keys)))
            one.assigned = connection.assigned(self._rules, self.services, self._named)
            one.format = format = one.assigned[0].format
            one.stage = Stage.READ if self._is_wanted(format) else Stage.PASSED
        if one.stage != Stage.READ or one.format is None:
            return []
        if stream.framer is None:
            stream.framer = self._framer(one.format, one.format.context)
        return [self._grown(one.format, stream.framer, live, growing=False)]

    def _may_open(self, assigned: Assigned) -> bool:
        """Return whether the key logs may open a connection that is closed so far."""
        return assigned.carriers[-1].name == "tls" and len(self.keys) > 0

    def _grown(self, format: Format, framer: Framer, live: Stream, *, growing: bool) -> Grown:
        context = framer.context
        ahead = live.size - framer.position
        opened = _GrowingStream(self._name, live, context, ahead, self._tray, growing)
        return Grown(format, opened, framer)

    def _framer(self, format: Format, context: int) -> Framer:
        return Framer(format, self._max_packet_bytes, context=context)

    def _is_wanted(self, format: Format | None) -> bool:
        return format is not None and (self._named is None or format.name == self._named.name)
