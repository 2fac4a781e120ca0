"""The broker on sockets: one asyncio loop that listens, reads, writes, and keeps the time.

What one pass of the loop makes for a client is written by one call. With a store, it leaves once
the changes that were made with it are committed.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from wireyard.broker.access import CheckLogin
from wireyard.broker.connection import SECONDS_TO_CLOSE, Connection
from wireyard.broker.core import Core
from wireyard.broker.half import Half
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.persistence import TABLES, Persistence
from wireyard.broker.recording import Address, Recording, Tape, record_into, shown_address
from wireyard.broker.settings import Settings
from wireyard.broker.store import Store
from wireyard.errors import SourceError

__all__ = ["LOOPBACK", "Server"]

LOOPBACK: Final = "127.0.0.1"
_LOGIN_THREADS: Final = 2


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
    store
        File in which its state outlives the process; in memory if there is none.
    jmq
        Port for JMQ clients, on the same address; None for none.

    Attributes
    ----------
    address
        The address that it listens on, once started.
    """

    core: Half[Any]
    takes_websocket: ClassVar = True

    def __init__(
        self,
        settings: Settings | None = None,
        say: Callable[[str], None] = lambda text: None,
        *,
        bind: str = LOOPBACK,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        record: str | Path | None = None,
        store: str | Path | None = None,
        jmq: int | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.address: Address = (bind, port)
        self.say = say
        self.store: Store | None = None
        self.is_over = asyncio.Event()
        """Set when it has to stop: by its caller, or because the store cannot be written."""
        self.recording: Recording | None = None
        self.tls = tls
        self._record = None if record is None else Path(record)
        self._store = None if store is None else Path(store)
        self._logins: ThreadPoolExecutor | None = None
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._connections: dict[Any, Connection] = {}
        self.open_connections: set[Connection] = set()
        """Those whose sockets are open, refused ones too."""
        self._waiting: set[Connection] = set()
        """Those with something to send that waits for the store."""
        # Time since 1970 that never jumps.
        self._epoch = time.time() - time.monotonic()
        self.jmq = None if jmq is None else JmqServer(self, jmq)

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._epoch

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        SourceError
            The address cannot be bound, the folder for the record cannot be written, or the store
            cannot be opened or read.
        """
        self.loop = asyncio.get_running_loop()
        if self._store is not None:
            self.store = Store(str(self._store), TABLES, self.say)
        try:
            self._begin()
            await self._listen()
        except BaseException:
            if self.store is not None:
                self.store.close()
            raise
        if self.jmq is not None:
            if self.store is not None:
                self.say("what JMQ clients send is in memory only, not in the store")
            try:
                await self.jmq.start()
            except SourceError:
                self.jmq = None
                await self.stop()
                raise

    def _begin(self) -> None:
        """Make the core, and continue with what the store has."""
        kept = None if self.store is None else Persistence(self.store)
        self.core = core = Core(self.settings, self.say, self._login_check(), kept)
        core.tick(self.now())
        if self.store is not None:
            gc.disable()  # what is read stays: collections during it would look at it in vain
            try:
                core.restore()
            finally:
                gc.enable()
            self.store.start(lambda: self.loop.call_soon_threadsafe(self._on_commit))
            self.store.flush()

    async def _listen(self) -> None:
        try:
            bind, port = self.address
            self._server = await self.loop.create_server(
                lambda: Connection(self),
                bind,
                port,
                ssl=self.tls,
                ssl_handshake_timeout=self.settings.connect_timeout_s if self.tls else None,
                backlog=1024,
                start_serving=False,
            )
            if self._record is not None:
                self.recording = record_into(
                    self._record, "broker", lambda: int(self.now() * 1e9), self.say
                )
            await self._server.start_serving()
        except OSError as error:
            if self._server is not None:
                self._server.close()
            raise SourceError(f"{error.filename or self.address[0]}: {error.strerror}") from None
        self.address = self._server.sockets[0].getsockname()[:2]

    def _on_commit(self) -> None:
        """Send what waited for the store."""
        assert self.store is not None
        if self.store.failed is not None:
            self.is_over.set()
        waiting, self._waiting = self._waiting, set()
        for connection in waiting:
            connection.leave()

    def wait(self, connection: Connection) -> None:
        """Have a connection look again after the next commit."""
        self._waiting.add(connection)

    @property
    def committed(self) -> int:
        """The last group of changes that is durable."""
        return 0 if self.store is None else self.store.committed

    async def stop(self) -> None:
        """End all connections, and close."""
        if self.jmq is not None:
            await self.jmq.stop()
        if self._server is not None:
            self._server.close()
        self.core.shut_down()
        self._flush()
        if self.store is not None:
            await self.loop.run_in_executor(None, self.store.close)
            self._on_commit()
        until = self.loop.time() + SECONDS_TO_CLOSE
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
        if self.store is not None:
            self.store.flush()
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

    def _login_check(self) -> CheckLogin | None:
        """Return what compares passwords; None if everybody may log in."""
        access = self.settings.access
        return None if access is None or access.users is None else self._check_login

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
                self.core.tick(self.now())
                done(checked.exception() is None and checked.result())
                self.wake()

        future = self.loop.run_in_executor(self._logins, access.logs_in, user, password)
        future.add_done_callback(finish)

    # --- connections ----------------------------------------------------------------------

    def allows(self, origin: str, host: str) -> bool:
        """Return whether a page of an origin may connect to this broker by a host's name.

        A browser lets any page of the world connect to loopback, so those have to be local too.
        """
        try:
            name, own = urlsplit(origin).hostname, urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        is_own = name == own and not _is_local(self.address[0])
        return is_own or _is_local(name) or origin in self.settings.origins

    def open(self, connection: Connection, client: Address, server: Address) -> Any:
        """Return the link of a new connection, None if it is refused."""
        tape = None if self.recording is None else self.recording.open(client, server)
        connection.tape = tape
        self.core.tick(self.now())  # its time to log in begins now
        link = self.core.open_link(
            shown_address(client), None if tape is None else connection.record
        )
        if link is not None:
            self._connections[link] = connection
            self.wake()
        elif tape is not None:
            tape.close(by_client=False)
        return link

    def close(self, link: Any, tape: Tape | None, by_client: bool) -> None:
        """Take note that a connection is closed."""
        connection = self._connections.pop(link, None)
        if connection is not None:
            self._waiting.discard(connection)
        self.core.tick(self.now())
        self.core.lose(link)
        if tape is not None:
            tape.close(by_client)
        self.wake()


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

    takes_websocket = False

    def __init__(self, whole: Server, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(whole.settings, whole.say, bind=whole.address[0], port=port, tls=tls)
        self._whole = whole
        has_other = tls is None and whole.tls is not None
        self._service = JmqServer(whole, 0, whole.tls) if has_other else self

    def _begin(self) -> None:
        self.core = core = JmqCore(self.settings, self.say, self._login_check())
        core.tick(self.now())
        self._core = core

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


def _is_local(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
