"""What clients of both protocols share: their errors, an endpoint on a socket, and new connections.

A connection that is lost is made again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, cast

from wireyard.client.address import Address, why_unreachable
from wireyard.endpoints import WebSocket
from wireyard.errors import SourceError

_PINGS_A_KEEP_ALIVE: Final = 2
_SECONDS_TO_CONNECT: Final = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 10.0


class ConnectionLost(SourceError):
    """There is no connection to the broker."""


class Refused(SourceError):
    """The broker refused the client, or ended the connection with an error.

    Parameters
    ----------
    code
        Return code or reason code.
    """

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message, code)

    def __str__(self) -> str:
        return str(self.args[0])


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


class Keeper(ABC):
    """A client that is connected from ``async with`` to the end of its block.

    `tls` is the context for TLS; if it is None, that of the address. `reconnect` is whether to
    connect again when the connection is lost. `say` is called with a line when the connection is
    lost or back.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        reconnect: bool,
        say: Callable[[str], None],
    ) -> None:
        self.address, self._tls = address, tls or address.tls
        self._reconnect, self._say = reconnect, say
        self._wire: Wire | None = None
        """The connection, once it is accepted and as long as it lasts."""
        self._accepted: asyncio.Future[None] | None = None
        self._reason: Refused | None = None
        """Why the broker ended the connection, if it said so."""
        self._gone = asyncio.Event()
        self._changed = asyncio.Event()
        """Set when there is a connection, or will be none any more."""
        self._failure: SourceError | None = None
        """Why there will be no connection any more."""
        self._keeper: asyncio.Task[None] | None = None

    @abstractmethod
    def _new_wire(self) -> Wire:
        """Return a connection that is not made yet."""

    @abstractmethod
    def _greet(self, wire: Wire) -> None:
        """Begin the conversation on a new connection."""

    @abstractmethod
    def _say_goodbye(self, wire: Wire) -> None:
        """End the conversation."""

    @abstractmethod
    def _passes(self, error: SourceError) -> bool:
        """Return whether it is worth to connect again."""

    async def _where(self) -> tuple[str, int]:
        return self.address.host, self.address.port

    @abstractmethod
    async def _set_up(self, wire: Wire) -> None:
        """Do what has to be done on a new connection before others use it."""

    async def __aenter__(self) -> Self:
        await self._connect()
        self._keeper = asyncio.create_task(self._keep_connected())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            await asyncio.sleep(0)  # a connection that was being made is closed now
        if self._wire is not None:
            self._wire.flush()
            self._say_goodbye(self._wire)
            self._wire.close()
            await self._wire.closed.wait()
        self._fail(ConnectionLost(f"{self.address}: the client is closed"))

    async def _connect(self) -> None:
        """Connect once.

        A `ConnectionLost` is raised if the broker cannot be reached, and a `Refused` if it refuses
        the client.
        """
        loop = asyncio.get_running_loop()
        self._gone.clear()
        self._reason, self._accepted = None, loop.create_future()
        wire = self._new_wire()
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                host, port = await self._where()
                await loop.create_connection(lambda: wire, host, port, ssl=self._tls)
                self._greet(wire)
                wire.flush()
                await self._accepted
                await self._set_up(wire)
                if self._wire is wire:
                    self._changed.set()
        except BaseException as error:
            wire.abort()
            if not isinstance(error, OSError):
                raise
            raise ConnectionLost(f"{self.address}: {why_unreachable(error)}") from None

    async def _keep_connected(self) -> None:
        while self._failure is None:
            await self._gone.wait()
            reason = self._reason or ConnectionLost(f"{self.address}: the connection is lost")
            if not self._reconnect or not self._passes(reason):
                self._fail(reason)
                return
            self._say(str(reason))
            await self._connect_again()

    async def _connect_again(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._wire is None and self._failure is None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self._connect()
                self._say(f"{self.address}: connected again")
            except SourceError as error:
                if not self._passes(error):
                    self._fail(error)

    def _lose(self, wire: Wire) -> None:
        """Take note of the end of a connection."""
        if self._accepted is not None and not self._accepted.done():
            text = None if wire.socket is None else wire.socket.ended
            lost = ConnectionLost(f"{self.address}: {text or 'closes the connection'}")
            self._accepted.set_exception(self._reason or lost)
        if wire is self._wire:
            self._wire = None
            self._changed.clear()
            self._gone.set()

    def _fail(self, error: SourceError) -> None:
        """Give up: all that waits gets the error."""
        self._failure = self._failure or error
        self._changed.set()

    def check(self) -> None:
        """Raise the error for which there will be no connection any more, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def _connection(self) -> Wire:
        """Return the connection, as soon as there is one."""
        while self._wire is None:
            self.check()
            await self._changed.wait()
        return self._wire


def fail_all(waiting: Iterable[asyncio.Future[Any]], error: SourceError) -> None:
    """Give an error to all who wait."""
    for future in waiting:
        if not future.done():
            future.set_exception(error)
            future.exception()  # nobody may wait for it
