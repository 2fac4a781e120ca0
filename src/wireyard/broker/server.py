"""The broker on sockets: one asyncio loop that listens, reads, writes, and keeps the time.

What one pass of the loop makes for a client is written by one call.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, cast

from wireyard.broker.access import CheckLogin
from wireyard.broker.core import Core
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.recording import Address, Recording, Tape
from wireyard.broker.settings import Settings
from wireyard.endpoints import Tap
from wireyard.errors import SourceError

__all__ = ["LOOPBACK", "Server", "shown"]

LOOPBACK: Final = "127.0.0.1"
_LOGIN_THREADS: Final = 2
_SECONDS_TO_CLOSE: Final = 2.0
_MAX_UNREAD_BYTES: Final = 64 << 10
"""Bytes of a client that wait for the answer to its CONNECT, from which on nothing is read."""


class Half(Protocol):
    """The core of a broker for one protocol; its links are its own."""

    @property
    def router(self) -> Any: ...
    @property
    def unidentified(self) -> Collection[Any]: ...
    def open_link(self, name: str, tap: Tap | None = None) -> Any: ...
    def receive(self, link: Any, data: bytes, now: float) -> None: ...
    def resume(self, link: Any) -> None: ...
    def lose(self, link: Any) -> None: ...
    def tick(self, now: float) -> float | None: ...
    def take_dirty(self) -> Iterator[Any]: ...
    def shut_down(self) -> None: ...


class Server:
    """A broker that listens.

    Parameters
    ----------
    settings
        Its behaviour and limits.
    say
        Is called with one line for each notable cause.
    bind, port
        Address to listen on; port 0 is any that is free.
    tls
        Context of a server with its certificate, for TLS.
    record
        Folder in which what passes is written to a new capture.
    jmq
        Port for JMQ clients, on the same address; None for none.

    Attributes
    ----------
    address
        The address that it listens on, once started.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        say: Callable[[str], None] = lambda text: None,
        *,
        bind: str = LOOPBACK,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        record: str | Path | None = None,
        jmq: int | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.address: Address = (bind, port)
        self.say = say
        self.recording: Recording | None = None
        self.tls = tls
        self._record = None if record is None else Path(record)
        self._logins: ThreadPoolExecutor | None = None
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._connections: dict[Any, _Connection] = {}
        self.open_connections: set[_Connection] = set()
        """Those whose sockets are open, refused ones too."""
        # Time since 1970 that never jumps.
        self._epoch = time.time() - time.monotonic()
        has_users = self.settings.access is not None and self.settings.access.users is not None
        self.core: Half = self._make_core(self._check_login if has_users else None)
        self.jmq = None if jmq is None else JmqServer(self, jmq)

    def _make_core(self, check_login: CheckLogin | None) -> Half:
        return Core(self.settings, self.say, check_login)

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._epoch

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        SourceError
            The address cannot be bound, or the folder for the record cannot be written.
        """
        self.loop = asyncio.get_running_loop()
        self.core.tick(self.now())
        try:
            bind, port = self.address
            self._server = await self.loop.create_server(
                lambda: _Connection(self),
                bind,
                port,
                ssl=self.tls,
                ssl_handshake_timeout=self.settings.connect_timeout_s if self.tls else None,
                backlog=1024,
                start_serving=False,
            )
            if self._record is not None:
                self._open_record(self._record)
            await self._server.start_serving()
        except OSError as error:
            if self._server is not None:
                self._server.close()
            raise SourceError(f"{error.filename or self.address[0]}: {error.strerror}") from None
        self.address = self._server.sockets[0].getsockname()[:2]
        if self.jmq is not None:
            try:
                await self.jmq.start()
            except SourceError:
                await self.stop()
                raise

    def _open_record(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.now()))
        path = folder / f"broker-{began}-{time.monotonic_ns() % 1_000_000:06}.pcapng"
        file = path.open("xb")
        self.recording = Recording(file, lambda: int(self.now() * 1e9), self.say)
        self.say(f"records to {path}")

    async def stop(self) -> None:
        """End all connections, and close."""
        if self.jmq is not None:
            await self.jmq.stop()
        if self._server is not None:
            self._server.close()
        self.core.shut_down()
        self._flush()
        until = self.loop.time() + _SECONDS_TO_CLOSE
        while self.open_connections and self.loop.time() < until:
            await asyncio.sleep(0.005)
        for connection in list(self.open_connections):
            connection.abort()
        await asyncio.sleep(0.005)
        if self._timer is not None:
            self._timer.cancel()
        if self._logins is not None:
            self._logins.shutdown(wait=False, cancel_futures=True)
        if self.recording is not None:
            self.recording.close()

    # --- passes of the loop ---------------------------------------------------------------

    def wake(self) -> None:
        """Have what was made in this pass of the loop written at its end."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        due = self.core.tick(self.now())
        for link in self.core.take_dirty():
            connection = self._connections.get(link)
            if connection is not None:
                connection.flush()
        if due is None:
            return
        when = max(0.0, due - self._epoch)
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._flush()

    # --- logins ---------------------------------------------------------------------------

    def _check_login(
        self, user: str | None, password: bytes | None, done: Callable[[bool], None]
    ) -> None:
        """Compare a password in a thread, because a hash takes long by design."""
        access = self.settings.access
        assert access is not None
        if self._logins is None:
            self._logins = ThreadPoolExecutor(_LOGIN_THREADS, "login")

        def finish(checked: asyncio.Future[bool]) -> None:
            if not checked.cancelled():
                done(checked.exception() is None and checked.result())
                self.wake()

        future = self.loop.run_in_executor(self._logins, access.logs_in, user, password)
        future.add_done_callback(finish)

    def open(self, connection: _Connection, client: Address, server: Address) -> Any:
        """Return the link of a new connection, None if it is refused."""
        tape = None if self.recording is None else self.recording.open(client, server)
        connection.tape = tape
        self.core.tick(self.now())  # Its time to log in begins now.
        link = self.core.open_link(shown(client), None if tape is None else tape.write)
        if link is not None:
            self._connections[link] = connection
            self.wake()
        elif tape is not None:
            tape.close(by_client=False)
        return link

    def close(self, link: Any, tape: Tape | None, by_client: bool) -> None:
        """Take note that a connection is closed."""
        self._connections.pop(link, None)
        self.core.lose(link)
        if tape is not None:
            tape.close(by_client)
        self.wake()


class _Connection(asyncio.Protocol):
    """A socket, and the link of the core that reads from it and writes to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._link: Any = None
        self._is_paused = False
        self.tape: Tape | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.open_connections.add(self)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._server.settings.max_unsent_bytes)
        client: Any = transport.get_extra_info("peername") or (LOOPBACK, 0)
        server: Any = transport.get_extra_info("sockname") or (LOOPBACK, 0)
        self._link = self._server.open(self, client[:2], server[:2])
        if self._link is None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        link, server = self._link, self._server
        if link is None:
            return
        server.core.receive(link, data, server.now())
        server.wake()
        if link.endpoint.held_bytes > _MAX_UNREAD_BYTES and link in server.core.unidentified:
            self._transport.pause_reading()

    def flush(self) -> None:
        """Write what there is, and close if the connection has ended."""
        link, transport = self._link, self._transport
        assert link is not None
        data = link.endpoint.take()
        if transport.is_closing():
            return
        if data:
            transport.write(data)
            if link.is_slow and not self._is_paused:
                self.resume_writing()
        if link.endpoint.ended is not None:
            transport.close()
            # A client that does not read keeps its socket for a moment only.
            self._server.loop.call_later(_SECONDS_TO_CLOSE, transport.abort)
        elif not transport.is_reading() and link.endpoint.held_bytes <= _MAX_UNREAD_BYTES:
            transport.resume_reading()

    def abort(self) -> None:
        """Close the socket without waiting for the client to read."""
        self._transport.abort()

    def pause_writing(self) -> None:
        assert self._link is not None
        self._is_paused = self._link.is_slow = True

    def resume_writing(self) -> None:
        link = self._link
        assert link is not None
        self._is_paused = link.is_slow = False
        self._server.core.resume(link)
        self._server.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open_connections.discard(self)
        if self._link is not None:
            by_client = self._link.endpoint.ended is None
            self._server.close(self._link, self.tape, by_client)


class JmqServer(Server):
    """The part of a broker that JMQ clients connect to; the record is that of the whole.

    One port is the port mapper's and the service's. With TLS the service has a port of its own,
    which the port mapper names.

    Parameters
    ----------
    whole
        The broker.
    port
        Port to listen on.
    tls
        Context of a server with its certificate, for TLS.
    """

    def __init__(self, whole: Server, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(whole.settings, whole.say, bind=whole.address[0], port=port, tls=tls)
        self._whole = whole
        self._service = (
            self if tls is not None or whole.tls is None else JmqServer(whole, 0, whole.tls)
        )

    def _make_core(self, check_login: CheckLogin | None) -> Half:
        self._core = JmqCore(self.settings, self.say, check_login)
        return self._core

    async def start(self) -> None:
        """Listen."""
        self.recording = self._whole.recording
        if self._service is not self:
            await self._service.start()
        await super().start()
        self._core.name_service(self._service.address[1], has_tls=self._service.tls is not None)
        self._core.is_mapper_only = self._service is not self

    async def stop(self) -> None:
        """End all connections, and close; the record goes on."""
        self.recording = None
        if self._service is not self:
            await self._service.stop()
        await super().stop()


def shown(address: Address) -> str:
    """Return an address as text."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
