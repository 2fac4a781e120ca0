"""A transparent proxy: it listens, and makes a connection to the broker for each of a client."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from wireyard.broker.recording import Address, Recording, shown_address
from wireyard.client.address import why_unreachable
from wireyard.errors import SourceError
from wireyard.tap.faults import Faults, Rule
from wireyard.tap.relay import Connection, Observer, Passing

Later = Callable[[Callable[[], None]], object]
_SECONDS_TO_CONNECT: Final = 10.0
_SECONDS_TO_FLUSH: Final = 0.02
"""Until what was recorded is visible to readers of the file."""
_MAX_MAPPED: Final = 64
"""Services of port mappers that the proxy listens for."""


class Tap:
    """A proxy that listens.

    Parameters
    ----------
    listen, upstream
        Addresses; port 0 to listen on is any that is free.
    say
        Is called with one line for each notable cause.
    tls
        Context of a server with its certificate, if clients use TLS.
    upstream_tls
        Context of a client, if the broker uses TLS.
    record
        Begins the record of what passes; is given a function that has another one called soon.
    rules
        Faults: packets that are not passed on as they came.
    observer
        Is called with what passes.
    max_connections
        More are refused.

    Attributes
    ----------
    address
        The address that it listens on, once started.
    connections
        Those that are open.
    is_over
        Set when it has to stop.
    """

    def __init__(
        self,
        listen: Address,
        upstream: Address,
        say: Callable[[str], None] = lambda text: None,
        *,
        tls: ssl.SSLContext | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        record: Callable[[Later], Recording] | None = None,
        rules: Sequence[Rule] = (),
        observer: Observer | None = None,
        max_connections: int = 10_000,
    ) -> None:
        self.address, self.upstream, self.say = listen, upstream, say
        self.is_over = asyncio.Event()
        self.connections: set[Connection] = set()
        self._passing = Passing(
            say, self._port_of, Faults(rules), observer, self._opened, self._ended
        )
        self._tls, self._upstream_tls = tls, upstream_tls
        self._begin_record = record
        self._recording: Recording | None = None
        self._max_connections = max_connections
        self._servers: dict[int, asyncio.Server] = {}
        """Those that listen, by the port of the broker."""
        self._connecting: dict[Connection, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        SourceError
            The address cannot be bound, or the folder for the record cannot be written.
        """
        port = self.upstream[1]
        try:
            self._servers[port] = await self._listen(self.address[1], port)
            if self._begin_record is not None:
                loop = asyncio.get_running_loop()
                self._recording = self._begin_record(partial(loop.call_later, _SECONDS_TO_FLUSH))
        except OSError as error:
            self._close_servers()
            name = error.filename or shown_address(self.address)
            raise SourceError(f"{name}: {why_unreachable(error)}") from None
        self.address = self._servers[port].sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """End all connections, and close."""
        self._close_servers()
        for connection in list(self.connections):
            connection.reset()
        await asyncio.sleep(0.005)
        if self._recording is not None:
            self._recording.close()

    def _close_servers(self) -> None:
        for server in self._servers.values():
            server.close()

    async def _listen(self, port: int, upstream_port: int) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(self._passing, upstream_port).client,
            self.address[0],
            port,
            ssl=self._tls,
            ssl_handshake_timeout=_SECONDS_TO_CONNECT if self._tls else None,
            backlog=1024,
        )

    async def _port_of(self, service: str, port: int) -> int:
        """Return the port on which the proxy listens for a service of the broker.

        `OSError` is raised if the proxy cannot listen on another port.
        """
        if port not in self._servers:
            if len(self._servers) > _MAX_MAPPED:
                raise OSError(errno.EMFILE, f"there are {_MAX_MAPPED} already")
            server = await self._listen(0, port)
            if port in self._servers:  # since another answer, meanwhile
                server.close()
            else:
                self._servers[port] = server
                own = server.sockets[0].getsockname()[:2]
                self.say(f"listens on {shown_address(own)} for {service}, {port} of the broker")
        mapped: int = self._servers[port].sockets[0].getsockname()[1]
        return mapped

    # --- connections ----------------------------------------------------------------------

    def _opened(self, connection: Connection) -> None:
        client = connection.client.address_of("peername")
        connection.address = shown_address(client)
        if len(self.connections) >= self._max_connections:
            self.say(f"{connection}: refused, there are {self._max_connections} connections")
            connection.client.reset()
            return
        self.connections.add(connection)
        if self._recording is not None:
            own = connection.client.address_of("sockname")
            connection.tape = self._recording.open(client, own)
        connection.client.hold()
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting[connection] = task

    async def _connect(self, connection: Connection) -> None:
        upstream, tls = (self.upstream[0], connection.upstream_port), self._upstream_tls
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection.broker,
                    *upstream,
                    ssl=tls,
                    server_hostname=None if tls is None else upstream[0],
                )
        except (OSError, TimeoutError) as error:
            self.say(f"{connection}: {shown_address(upstream)}: {why_unreachable(error)}")
            connection.reset()
        else:
            connection.client.release()
        self._connecting.pop(connection, None)

    def _ended(self, connection: Connection) -> None:
        task = self._connecting.pop(connection, None)
        if task is not None:
            task.cancel()
        self.connections.discard(connection)
