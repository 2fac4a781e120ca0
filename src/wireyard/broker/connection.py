"""One socket of the broker: what it reads goes to the core, what the core makes is written."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from wireyard.broker.reading import Reading
from wireyard.broker.recording import Tape
from wireyard.endpoints import WebSocket
from wireyard.endpoints.codes import PROTOCOL_ERROR

if TYPE_CHECKING:
    from wireyard.broker.server import Port, Server

SECONDS_TO_CLOSE: Final = 2.0
_MAX_UNREAD_BYTES: Final = 64 << 10
"""Bytes of a client that wait for the answer to its CONNECT, from which on nothing is read."""
_NOWHERE: Final = ("127.0.0.1", 0)


class Connection(Reading):
    """A socket, and the link of the core that reads from it and writes to it.

    MQTT begins with CONNECT; a connection that begins with a request of HTTP is a WebSocket.
    """

    def __init__(self, server: Server, port: Port) -> None:
        super().__init__(server.room)
        self._server, self.port = server, port
        self._link: Any = None
        self._is_paused = False
        self.tape: Tape | None = None
        self._held: deque[tuple[int, bytes, bytes]] = deque()
        """What has to be sent: the group of the store that it waits for, and how it is recorded."""
        self._held_bytes = 0
        self._shown = b""
        self._socket: WebSocket | None = None
        self._is_new, self._has_ended = True, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or refuse it."""
        self._server.open_connections.add(self)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._server.settings.max_unsent_bytes)
        client: Any = transport.get_extra_info("peername") or _NOWHERE
        server: Any = transport.get_extra_info("sockname") or _NOWHERE
        self._link = self._server.open(self, client[:2], server[:2])
        if self._link is None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read what arrived."""
        link, server = self._link, self._server
        if link is None or link.endpoint.ended is not None:
            return
        if self._is_new:
            self._is_new = False
            is_http = self.port.takes_websocket and data[:1] == b"G"
            self._socket = WebSocket(allows=server.allows) if is_http else None
        if self._socket is not None:
            data = self._receive(link, self._socket, data)
        if data:
            self.port.core.receive(link, data, server.now())
        server.wake()
        if self._has_to_wait(link):
            self._transport.pause_reading()
            server.wait(self)

    def _receive(self, link: Any, socket: WebSocket, data: bytes) -> bytes:
        """Return what a client has sent over its WebSocket."""
        data = socket.receive(data)
        if not self._is_paused:
            self._transport.write(bytes(socket.out))
        socket.out.clear()
        if socket.ended is not None:
            core = self.port.core
            core.receive(link, data, self._server.now())
            core.end(link, PROTOCOL_ERROR if socket.has_failed else 0, socket.ended)
            return b""
        return data

    def _has_to_wait(self, link: Any) -> bool:
        """Return whether no more is to be read for now."""
        core, store = self.port.core, self._server.store
        has_unread = link.endpoint.held_bytes > _MAX_UNREAD_BYTES and link in core.unidentified
        return has_unread or (store is not None and store.is_behind)

    def record(self, arrived: bool, data: bytes) -> None:
        """Record what arrived; keep what is to be sent until it leaves."""
        assert self.tape is not None
        if arrived:
            self.tape.write(True, data)
        else:
            self._shown = data

    def flush(self) -> None:
        """Write what there is, and close if the connection has ended."""
        link, transport = self._link, self._transport
        assert link is not None
        data = link.endpoint.take()
        if data and not transport.is_closing():
            self._held.append((link.waits_for, data, self._shown))
            self._held_bytes += len(data)
        self.leave()

    def leave(self) -> None:
        """Write what does not wait for the store, and close if that was all."""
        link, transport, held = self._link, self._transport, self._held
        assert link is not None
        if transport.is_closing():
            return
        committed, parts = self._server.committed, []
        while held and held[0][0] <= committed:
            _, data, shown = held.popleft()
            parts.append(data)
            self._held_bytes -= len(data)
            if self.tape is not None and not self._is_gone:
                self.tape.write(False, shown)
        if parts:
            self._write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._held_bytes > self._server.settings.max_unsent_bytes:
            link.is_slow = True
        elif parts and link.is_slow and not self._is_paused:
            self.resume_writing()
        if held:
            self._server.wait(self)
        elif link.endpoint.ended is not None:
            self._end()
        if not transport.is_closing() and not transport.is_reading():
            if self._has_to_wait(link):
                self._server.wait(self)
            else:
                transport.resume_reading()

    def _end(self) -> None:
        """Close the sending side; the client closes the other one, or loses it in a moment.

        If both were closed, what the client still sends would be answered by a reset, which would
        make it lose what it has not read: the reason.
        """
        transport = self._transport
        if self._has_ended:
            return
        self._has_ended = True
        if self._socket is not None:
            transport.write(self._socket.close())
        try:
            if not transport.can_write_eof() or transport.get_write_buffer_size():
                transport.close()
            else:
                transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
        self._server.loop.call_later(SECONDS_TO_CLOSE, transport.abort)

    @property
    def _is_gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._socket is not None and self._socket.ended is not None

    def _write(self, data: bytes) -> None:
        if self._socket is None:
            self._transport.write(data)
        elif not self._is_gone:
            self._transport.write(self._socket.frame(data))

    def abort(self) -> None:
        """Close the socket without waiting for the client to read."""
        self._transport.abort()

    def pause_writing(self) -> None:
        """Take note that the client does not read."""
        assert self._link is not None
        self._is_paused = self._link.is_slow = True

    def resume_writing(self) -> None:
        """Send what waited for the client to read."""
        link = self._link
        assert link is not None
        self._is_paused = link.is_slow = False
        self._server.tick()
        self.port.core.resume(link)
        self._server.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        self._server.open_connections.discard(self)
        if self._link is not None:
            by_client = self._link.endpoint.ended is None
            self._server.close(self, self._link, by_client)
