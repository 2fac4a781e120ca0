"""One connection through the proxy: two sockets, and what passes between them.

Rules of this file:

1. What arrives is passed on before anything else is done with it, unless there are faults.
2. While one side does not read, nothing more is read from the other.
3. The end of one direction, and a reset, are passed on as what they are, behind the bytes that
   came before. TLS has no half-closed connections: there the end of a direction closes both.
4. The record and the observer get what was passed on, not what arrived.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from wireyard.broker.reading import Reading, read_room
from wireyard.broker.recording import Address, Tape
from wireyard.errors import DecodeError
from wireyard.tap.faults import Faults, Names, Rule, Step
from wireyard.tap.mapper import AnswerHold, rewritten
from wireyard.tap.packets import (
    CLEAR,
    Conversation,
    PacketReader,
    Span,
    WebSocketReader,
    without_secrets,
)

MAX_UNSENT_BYTES: Final = 256 << 10
"""Bytes for one side, from which on nothing more is read from the other."""
_MAX_FAULTED_BYTES: Final = 10 << 20
"""Largest packet that a rule applies to: it is held until it is whole."""
_MAX_OBSERVED_BYTES: Final = 64 << 10
"""Largest packet whose topic an observer is shown for certain."""
_SECONDS_TO_DRAIN: Final = 2.0
"""How long a reset waits for a side that does not read."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose closing is a reset."""


def reset(transport: asyncio.Transport) -> None:
    """Close a connection at once, by a reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


class Observer(Protocol):
    """What shows connections while they are open."""

    def passed(
        self, connection: Connection, from_client: bool, data: bytes, spans: Sequence[Span]
    ) -> None:
        """Take note of bytes that were passed on, and of the packets in them."""


@dataclass(frozen=True, slots=True)
class Passing:
    """What all connections of a proxy have in common."""

    say: Callable[[str], None]
    port_of: Callable[[str, int], Awaitable[int]]
    """Returns the port of the proxy for a service of a port mapper, by its name and port."""
    faults: Faults
    observer: Observer | None
    opened: Callable[[Connection], None]
    """Is called when a client has connected."""
    ended: Callable[[Connection], None]
    """Is called when both sockets of a connection are closed."""
    room: memoryview = field(default_factory=read_room)


class Connection:
    """A client, the broker at `upstream_port`, and what passes in both directions."""

    def __init__(self, passing: Passing, upstream_port: int) -> None:
        self.passing, self.upstream_port = passing, upstream_port
        self.outer, self.inside, self.names = Conversation(), Conversation(), Names()
        self.address = "a client"
        self.tape: Tape | None = None
        self.client, self.broker = Side(self, True), Side(self, False)
        self.client.other, self.broker.other = self.broker, self.client

    @property
    def talk(self) -> Conversation:
        """What is shown and recorded: with WebSocket the conversation inside."""
        return self.inside if self.outer.is_websocket else self.outer

    def __str__(self) -> str:
        return f"{self.names.client} ({self.address})" if self.names.client else self.address

    def reset(self, by_client: bool = False) -> None:
        """End both sides by a reset."""
        if self.tape is not None:
            self.tape.reset(by_client)
        self.client.reset()
        self.broker.reset()

    def lost(self, side: Side, by_reset: bool) -> None:
        """Pass on that a socket is closed."""
        if by_reset:
            self.reset(side.is_client)
        else:
            side.other.close()
        if self.client.is_gone and (self.broker.is_gone or not self.broker.is_open):
            if self.tape is not None:
                self.tape.close(side.is_client)
            self.passing.ended(self)


class Side(Reading):
    """One socket of a connection, and what arrives on it for the other."""

    other: Side

    def __init__(self, connection: Connection, is_client: bool) -> None:
        super().__init__(connection.passing.room)
        self.is_client = is_client
        self.is_open = self.is_gone = False
        """Whether the socket was ever open, and whether it is closed again."""
        self.is_unread = False
        """Whether it does not read what is sent."""
        self._connection = connection
        passing = connection.passing
        self._faults, self._observer = passing.faults, passing.observer
        whole = _MAX_FAULTED_BYTES if self._faults else 0
        if self._observer is not None:
            whole = max(whole, _MAX_OBSERVED_BYTES)
        self._reader = PacketReader(connection.outer, is_client, whole)
        self._inside = WebSocketReader(connection.inside, is_client, whole)
        self._answer = None if is_client else AnswerHold()
        self._steps: deque[Step] = deque()
        self._is_waiting = False
        self._holds = 0
        """How many reasons there are not to read."""
        self._has_ended = self._is_finished = self._is_reset = False

    # --- the socket -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self.is_open = True
        if self._holds:
            self._transport.pause_reading()
        if self.is_client:
            self._connection.passing.opened(self._connection)
        elif self.other.is_gone:
            self.reset()

    def address_of(self, name: str) -> Address:
        """Return the address of the client (``peername``), or its own (``sockname``)."""
        host, port = self._transport.get_extra_info(name)[:2]
        return host, port

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the socket is closed, or was reset."""
        self.is_gone = True
        self._connection.lost(self, exc is not None)

    def pause_writing(self) -> None:
        """Read nothing from the other side, because this one does not read."""
        self.is_unread = True
        self.other.hold()

    def resume_writing(self) -> None:
        """Read from the other side again."""
        self.is_unread = False
        self.other.release()
        if self._is_reset:
            self._abort()

    def hold(self) -> None:
        """Read nothing, for one more reason."""
        self._holds += 1
        if self.is_open:
            self._transport.pause_reading()

    def release(self) -> None:
        """Read again, unless there is another reason not to."""
        self._holds -= 1
        if not self._holds and self.is_open:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes of the other side."""
        if not self._is_reset:
            self._transport.write(data)

    def close(self) -> None:
        """Close once all bytes are sent."""
        if self.is_open and not self._is_reset:
            self._transport.close()

    def finish(self) -> None:
        """Send nothing more once all bytes are sent."""
        if self._transport.is_closing() or self._is_finished:
            return
        self._is_finished = True
        if self._has_ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()

    def reset(self) -> None:
        """Close by a reset, once the bytes are sent that came before."""
        if not self.is_open or self.is_gone or self._is_reset:
            return
        self._is_reset = True
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # `resume_writing` once all is sent
            asyncio.get_running_loop().call_later(_SECONDS_TO_DRAIN, self._abort)
        else:
            self._abort()

    def _abort(self) -> None:
        reset(self._transport)

    # --- what arrives ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._answer is not None:
            answer = self._answer.add(data)
            if answer is None:
                return
            self._answer, data = None, answer
            if answer.startswith(b"101 "):
                self.hold()
                asyncio.get_running_loop().create_task(self._pass_answer(answer))
                return
        self._arrived(data)

    async def _pass_answer(self, answer: bytes) -> None:
        """Pass on the answer of a port mapper, with the ports of the proxy."""
        passing = self._connection.passing
        try:
            answer = await rewritten(answer, passing.port_of)
        except DecodeError:
            self._arrived(answer)
        except OSError as error:
            passing.say(f"{self._connection}: no port for a service: {error.strerror}")
            self._arrived(answer)
        else:
            self._do([Step(answer, [Span(CLEAR, 0, len(answer))])])
        self.release()

    def eof_received(self) -> bool:
        """Pass on that nothing more comes."""
        if self._answer is not None and (held := self._answer.rest()):
            self._arrived(held)
        self._has_ended = True
        data, spans = self._reader.rest()
        if self._faults:
            self._do([Step(data, spans), Step(ends=True)])
        else:
            self._see(data, spans)
            self._end()
        return self._transport.can_write_eof()

    def _arrived(self, data: bytes) -> None:
        if self._faults:
            connection = self._connection
            read, spans = self._reader.read(data)
            self._do(
                self._faults.steps(connection.outer, read, spans, connection.names, self.is_client)
            )
            return
        self.other.write(data)
        if self._connection.tape is not None or self._observer is not None:
            self._see(*self._reader.read(data))

    def _see(self, data: bytes, spans: Sequence[Span]) -> None:
        """Record and show what was passed on."""
        if self._connection.outer.is_websocket:
            data, spans = self._inside.read(data)
        self._show(data, spans)

    def _show(self, data: bytes, spans: Sequence[Span]) -> None:
        connection = self._connection
        if connection.tape is not None:
            shown = without_secrets(connection.talk.format, data, spans)
            connection.tape.write(self.is_client, shown)
        if self._observer is not None:
            self._observer.passed(connection, self.is_client, data, spans)

    def _end(self) -> None:
        if self._connection.outer.is_websocket:
            self._show(*self._inside.rest())
        if self._connection.tape is not None:
            self._connection.tape.finish(self.is_client)
        self.other.finish()
        if self._is_finished:
            self.close()

    # --- faults ---------------------------------------------------------------------------

    def _do(self, steps: Iterable[Step | Rule]) -> None:
        for step in steps:
            if isinstance(step, Rule):
                way = "from" if self.is_client else "to"
                self._connection.passing.say(f"{step.action}: {step.packet_type} {way}"
                                             f" {self._connection}")  # fmt: skip
            else:
                self._steps.append(step)
        self._go_on()

    def _go_on(self) -> None:
        while self._steps and not self._is_waiting:
            step = self._steps.popleft()
            if step.data:
                self.other.write(step.data)
                self._see(step.data, step.spans)
            if step.cuts:
                self._steps.clear()
                self._connection.reset(self.is_client)
            elif step.ends:
                self._end()
            elif step.seconds:
                self._is_waiting = True
                self.hold()
                asyncio.get_running_loop().call_later(step.seconds, self._wait_is_over)

    def _wait_is_over(self) -> None:
        self._is_waiting = False
        self.release()
        self._go_on()
