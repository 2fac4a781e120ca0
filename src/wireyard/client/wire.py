"""One connection of a client: an endpoint on a socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from wireyard.endpoints import WebSocket

_PINGS_A_KEEP_ALIVE = 2


class Wire(asyncio.Protocol):
    """A connection; what one pass of the loop makes is written by one call.

    `handle` is called with what happened; it returns whether more is to be read for now. `lost` is
    called once it is closed, also if it never was accepted. `socket` is the WebSocket that MQTT is
    inside of, if it is inside of one.
    """

    def __init__(
        self,
        endpoint: Any,
        handle: Callable[[Wire, Sequence[Any]], bool],
        lost: Callable[[Wire], None],
        socket: WebSocket | None = None,
    ) -> None:
        self.endpoint, self.socket = endpoint, socket
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        """Set while the broker reads what is sent."""
        self.writable.set()
        self._handle, self._lost = handle, lost
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Read what arrived."""
        assert self._transport is not None
        if self.socket is not None:
            data = self.socket.receive(data)
            if self.socket.ended is not None:
                self.close()
                return
        reads_on = self._handle(self, self.endpoint.receive(data, time.monotonic()))
        if self.endpoint.ended is not None:
            self.close()
            return
        if self._timer is None and self.endpoint.state == "open" and self.endpoint.keep_alive:
            self._ping_later()
        if not reads_on:
            self._transport.pause_reading()
        self.wake()

    def read_on(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _ping_later(self) -> None:
        seconds = self.endpoint.keep_alive / _PINGS_A_KEEP_ALIVE
        self._timer = self._loop.call_later(seconds, self._ping)

    def _ping(self) -> None:
        endpoint = self.endpoint
        if not endpoint.waits_for_ping:
            endpoint.ping()
            self.flush()
        elif time.monotonic() - endpoint.heard_at > endpoint.keep_alive:
            self.abort()
            return
        self._ping_later()

    def wake(self) -> None:
        """Write what there is at the end of this pass of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is."""
        self._flush_is_due = False
        if self._transport is None or self._transport.is_closing():
            return
        socket = self.socket
        if socket is not None:
            self._transport.write(bytes(socket.out))
            socket.out.clear()
        if socket is None:
            self._transport.write(self.endpoint.take())
        elif socket.is_open and socket.ended is None and (data := self.endpoint.take()):
            self._transport.write(socket.frame(data))

    def close(self) -> None:
        """Write what there is, and close."""
        self.flush()
        if self._transport is not None:
            if self.socket is not None:
                self._transport.write(self.socket.close())
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Take note that the broker does not read."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Take note that the broker reads again."""
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        if self._timer is not None:
            self._timer.cancel()
        self.closed.set()
        self.writable.set()
        self._lost(self)
