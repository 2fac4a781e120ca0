"""Format detection for growing connections, and streams of the bytes that can be read already.

A connection is read as soon as its format is certain: after a client's CONNECT, or after enough
first bytes of another format. Weaker evidence, a port or the first of several segments, waits
for `SETTLE_NS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wireyard.captures.carriers.opening import Carriers
from wireyard.captures.carriers.tls_keys import KeyLog
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import BufferPool, Stream
from wireyard.captures.connections.tcp import has_stream, known_begins, stream_begins
from wireyard.captures.connections.tcp_kernels import NOWHERE, Side, State
from wireyard.captures.detection.assignment import (
    HEAD_BYTES,
    Assigned,
    CapturedConnection,
    DecodeAs,
    captured_connections,
)
from wireyard.captures.directed import CapturedStream
from wireyard.captures.live.connections import LiveConnections, OpenConnection, Stage
from wireyard.captures.live.copies import SETTLE_NS
from wireyard.captures.live.stream import LiveStream
from wireyard.captures.packets.headers import PacketReader
from wireyard.captures.records import NO_TIME
from wireyard.captures.signatures import SNIFFED_BYTES
from wireyard.formats import Format, get_format
from wireyard.streams.blocks import Grown
from wireyard.streams.framer import Framer

MAX_CARRIED_BYTES: Final = 4 << 20
"""Bytes of a TLS or WebSocket connection that are held, as it is opened from its beginning again
whenever it grows."""
PRESUMED_NS: Final = 1_000_000_000
"""How long the first bytes of a stream that began before the capture wait for others to show that a
packet begins with them."""
_MOST_PROBLEMS: Final = 256
_ANSWERED_BYTES: Final = 1 << 10
"""First bytes of a direction that decide the context of the other."""


class _GrowingStream(CapturedStream):
    """The part of a growing stream that can be read now."""

    @property
    def size(self) -> int:
        """Bytes that are left to read; those before were read and released."""
        return self.bytes_ahead


class LiveReader:
    """Detects the formats of connections, and makes streams of the bytes that can be read.

    `packets` are the headers of the records that have arrived, and `connections` their connections.
    The others are as for `LiveCapture`.
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
        """Formats of endpoints, from the connections so far."""
        self.problems: dict[str, None] = {}
        """Reasons why bytes inside TLS or WebSocket are in no row."""
        self.proxies = Counter[tuple[str, int]]()
        """Streams by the kind and size in bytes of their proxy header."""
        self._name, self._named, self._rules = name, named, rules
        self._max_packet_bytes = max_packet_bytes
        self._packets, self._connections = packets, connections
        self._pool = BufferPool()

    def add_problem(self, text: str) -> None:
        """Add a problem, unless there are `_MOST_PROBLEMS` already."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems[text] = None

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues, as JSON values."""
        services = self.services.items()
        return {
            "services": [[end.address, end.port, name] for end, name in services],
            "proxies": [[name, size, count] for (name, size), count in self.proxies.items()],
            "problems": [*self.problems],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        `KeyError`, `TypeError` or `ValueError` is raised if `state` is not such a state.
        """
        self.services = {Endpoint(address, port): name for address, port, name in state["services"]}
        self.proxies = Counter({(name, size): count for name, size, count in state["proxies"]})
        self.problems = dict.fromkeys(state["problems"])

    def framer_of(self, label: str) -> Framer:
        """Return a new framer for the format with this label."""
        return Framer(get_format(label), self._max_packet_bytes)

    def find_beginning(
        self,
        connection: OpenConnection,
        direction: int,
        now_ns: int,
        due_ns: list[int],
        *,
        final: bool,
    ) -> bool:
        """Set where a stream of a connection begins; return whether that is known.

        `due_ns` receives the time at which to try again, if only waiting helps. With `final`,
        waiting stops: the stream begins with its first captured byte.
        """
        stream = connection.sides[direction]
        number = 2 * connection.number
        sides = self._connections.placer.sides[number : number + 2]
        state = int(sides[direction, Side.STATE])
        settled_ns = stream.first_ns + PRESUMED_NS
        if not stream.begun and stream.first_ns != NO_TIME and now_ns < settled_ns:
            due_ns.append(settled_ns)
        if stream.begin is not None and stream.framer is not None:
            stream.framer.is_settled = not stream.begun and now_ns >= settled_ns
            return True
        if not stream.held.shape[1] and not final:
            return False
        stream.begun = bool(known_begins(sides)[direction] != NOWHERE)
        stream.opened = bool(state & State.OPENED)
        if not has_stream(sides)[direction]:
            return False
        stream.begin = int(stream_begins(sides)[direction])
        wait_ns = stream.first_ns + SETTLE_NS
        if not (stream.begun or final) and now_ns < wait_ns and connection.stage == Stage.READ:
            due_ns.append(wait_ns)
            return False
        if connection.stage == Stage.UNKNOWN and now_ns < wait_ns:
            due_ns.append(wait_ns)
        return True

    def detect_format(
        self, connection: OpenConnection, ready: dict[str, int], now_ns: int, *, final: bool
    ) -> None:
        """Set the stage and the format of a connection, once its bytes show them for certain.

        `ready` has the number of held runs that can be read, by the name of the stream.
        """
        seen = self._streams(connection, dict.fromkeys(ready), final=final)
        if not seen:
            return
        captured = next(captured_connections(seen, Carriers(self.keys)))
        self.services.update({**captured.services(), **captured.opened()})
        assigned = captured.assigned(self._rules, self.services, self._named)
        if not final and not any(each.stream.size for each in assigned):
            return  # so far there is only the header of a proxy
        connection.assigned = assigned
        format = assigned[0].format
        held = max(stream.size for stream in seen)
        if assigned[0].carriers:
            closed = assigned[0].closed and not (self._may_open(assigned[0]))
            if final or not closed or held > SNIFFED_BYTES:
                connection.stage = Stage.IGNORED if closed else Stage.CARRIED
        elif format is None:
            if held > SNIFFED_BYTES:
                connection.stage = Stage.IGNORED
        elif final or self._is_certain(connection, captured, seen, now_ns):
            self._set_format(connection, format)
            connection.heads = {
                each.stream.name: head[:_ANSWERED_BYTES]
                for each, head in zip(assigned, captured.heads, strict=False)
            }

    def _set_format(self, connection: OpenConnection, format: Format) -> None:
        """Begin to read a connection of this format: remove proxy headers, create framers."""
        connection.format = format
        connection.stage = Stage.READ if self._is_wanted(format) else Stage.IGNORED
        for each in connection.assigned:
            stream = connection.side(each.stream.name)
            if each.captured.proxy is not None and connection.stage == Stage.READ:
                self.proxies[each.captured.proxy] += 1
                stream.skip(each.captured.proxy[1])
            stream.framer = self._framer(format, each.context)

    def _streams(
        self, connection: OpenConnection, counts: Mapping[str, int | None], *, final: bool
    ) -> list[Stream]:
        """Return the streams of a connection that have bytes.

        `counts` has the number of held runs to include, by the name of the stream; all if None.
        Streams without a number are left out.
        """
        places = self._packets.places
        streams = [
            stream.as_stream(places, counts[stream.name])
            for stream in connection.ordered
            if stream.name in counts
        ]
        if final:
            streams = [self._connections.with_final_size(connection, each) for each in streams]
        return [stream for stream in streams if stream.size]

    def _is_certain(
        self,
        connection: OpenConnection,
        captured: CapturedConnection,
        seen: Sequence[Stream],
        now_ns: int,
    ) -> bool:
        if captured.opened():
            return True
        first_ns = [stream.first_ns for stream in connection.sides if stream.first_ns != NO_TIME]
        if not first_ns or now_ns >= min(first_ns) + SETTLE_NS:
            return True
        shown = captured.sniffed is not None or bool(self._rules)
        return (
            shown
            and all(stream.begun for stream in seen)
            and max(map(len, captured.heads)) >= HEAD_BYTES
        )

    def read(
        self, connection: OpenConnection, ready: dict[str, int], *, final: bool
    ) -> list[Grown]:
        """Return the streams of a connection that can be read now.

        `ready` has the number of held runs that can be read, by the name of the stream.
        """
        if connection.stage == Stage.CARRIED:
            return self._read_carried(connection, ready, final=final)
        if connection.stage != Stage.READ:
            return []
        assert connection.format is not None
        readable = []
        for stream in connection.ordered:
            if stream.name not in ready:
                continue
            if stream.framer is None:
                other = (
                    connection.sides[0] if connection.sides[1] is stream else connection.sides[1]
                )
                # The context of the other direction, such as its version, holds for this one too.
                context = (
                    connection.format.context if other.framer is None else other.framer.context
                )
                if head := connection.heads.get(other.name, b""):
                    context = connection.format.contexts.answer(head, context)
                stream.framer = self._framer(connection.format, context)
            count = ready[stream.name]
            live = stream.as_stream(self._packets.places, count)
            if final:
                live = self._connections.with_final_size(connection, live)
            if count > stream.first_unread(stream.held) or (final and live.size):
                readable.append(
                    self._grown(connection.format, stream.framer, live, growing=not final)
                )
        return readable

    def _read_carried(
        self, connection: OpenConnection, ready: dict[str, int], *, final: bool
    ) -> list[Grown]:
        """Return the new bytes inside TLS or WebSocket.

        All bytes of such a connection are held, and opened from the beginning each time.
        """
        seen = self._streams(connection, ready, final=final)
        size = sum(int(stream.runs.lengths.sum()) for stream in seen)
        if not seen or (size == connection.opened_bytes and not final):
            return []
        connection.opened_bytes = size
        captured = next(captured_connections(seen, Carriers(self.keys)))
        connection.assigned = captured.assigned(self._rules, self.services, self._named)
        self.services |= captured.opened()
        readable = []
        for each in connection.assigned:
            if each.closed or not each.stream.size or not self._is_wanted(each.format):
                continue
            assert each.format is not None
            framer = connection.framers.get(each.stream.name)
            if framer is None or framer.position == 0:
                framer = self._framer(each.format, each.context)
                connection.framers[each.stream.name] = framer
            readable.append(self._grown(each.format, framer, each.stream, growing=not final))
        if size > MAX_CARRIED_BYTES and not final:
            if readable:
                name, limit = connection.sides[0].name, f"{MAX_CARRIED_BYTES >> 20} MiB"
                limited = f"{name}: only {limit} of a connection in TLS or WebSocket"
                self.add_problem(f"{limited} are read while it grows")
            connection.stage = Stage.IGNORED
        return readable

    def read_datagrams(
        self, connection: OpenConnection, stream: LiveStream, live: Stream
    ) -> list[Grown]:
        """Return the new datagrams of a stream; each can be read at once.

        `stream` is a direction of the conversation, and `live` has its new datagrams.
        """
        if connection.stage == Stage.UNKNOWN:
            captured = next(captured_connections([live], Carriers(self.keys)))
            connection.assigned = captured.assigned(self._rules, self.services, self._named)
            connection.format = format = connection.assigned[0].format
            connection.stage = Stage.READ if self._is_wanted(format) else Stage.IGNORED
        if connection.stage != Stage.READ or connection.format is None:
            return []
        if stream.framer is None:
            stream.framer = self._framer(connection.format, connection.format.context)
        return [self._grown(connection.format, stream.framer, live, growing=False)]

    def _may_open(self, assigned: Assigned) -> bool:
        """Return whether later secrets may still decrypt a connection."""
        return assigned.carriers[-1].name == "tls" and len(self.keys) > 0

    def _grown(self, format: Format, framer: Framer, live: Stream, *, growing: bool) -> Grown:
        context = framer.context
        ahead = live.size - framer.position
        opened = _GrowingStream(self._name, live, context, ahead, self._pool, growing)
        return Grown(format, opened, framer)

    def _framer(self, format: Format, context: int) -> Framer:
        return Framer(format, self._max_packet_bytes, context=context)

    def _is_wanted(self, format: Format | None) -> bool:
        return format is not None and (self._named is None or format.name == self._named.name)
