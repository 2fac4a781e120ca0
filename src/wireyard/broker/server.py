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
from typing import Any, Final
from urllib.parse import urlsplit

from wireyard.broker.access import CheckLogin
from wireyard.broker.bridge import Bridge
from wireyard.broker.connection import SECONDS_TO_CLOSE, Connection
from wireyard.broker.core import Core
from wireyard.broker.half import Half
from wireyard.broker.jmq import persistence as jmq_persistence
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.persistence import TABLES
from wireyard.broker.reading import read_room
from wireyard.broker.recording import Address, Recording, record_into, shown_address
from wireyard.broker.settings import Settings
from wireyard.broker.store import Store
from wireyard.errors import SourceError

LOOPBACK: Final = "127.0.0.1"
_LOGIN_THREADS: Final = 2


class Port:
    """A port that a broker listens on, and the core that serves it.

    `address` is where to listen and, once started, where it listens.
    """

    def __init__(
        self, core: Half[Any], address: Address, tls: ssl.SSLContext | None, is_mapper: bool = False
    ) -> None:
        self.core, self.address, self.tls = core, address, tls
        self.takes_websocket = isinstance(core, Core)
        self.is_mapper_only = is_mapper
        self.server: asyncio.Server | None = None


class Server:
    """A broker that listens.

    `say` is called with one line for each notable cause. Port 0 is any that is free. `tls` is the
    context of a server with its certificate. What passes is written to a new capture in the folder
    `record`. The state outlives the process in the file `store`; without one it is in memory. `jmq`
    is the port for JMQ clients, on the same address; None for none. It is the port mapper's and the
    service's; with TLS the service has a port of its own, which the port mapper names.
    """

    core: Core

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
        self.say = say
        self.store: Store | None = None
        self.is_over = asyncio.Event()
        """Set when it has to stop: by its caller, or because the store cannot be written."""
        self.recording: Recording | None = None
        self.tls = tls
        self.room = read_room()
        """What its sockets are read into."""
        self._asked = (bind, port), None if jmq is None else (bind, jmq)
        self._record = None if record is None else Path(record)
        self._store = None if store is None else Path(store)
        self._logins: ThreadPoolExecutor | None = None
        self._ports: list[Port] = []
        self._cores: list[Half[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._connections: dict[Any, Connection] = {}
        self.open_connections: set[Connection] = set()
        """Those whose sockets are open, refused ones too."""
        self._waiting: set[Connection] = set()
        """Those with something to send that waits for the store."""
        # Time since 1970 that never jumps.
        self._epoch = time.time() - time.monotonic()

    @property
    def address(self) -> Address:
        """The address that it listens on, once started."""
        return self._ports[0].address

    @property
    def jmq_address(self) -> Address | None:
        """The address that JMQ clients connect to, None if there is none."""
        return self._ports[1].address if len(self._ports) > 1 else None

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return time.monotonic() + self._epoch

    async def start(self) -> None:
        """Listen.

        A `SourceError` is raised if the address cannot be bound, the folder for the record cannot
        be written, or the store cannot be opened or read.
        """
        self.loop = asyncio.get_running_loop()
        if self._store is not None:
            self.store = Store(str(self._store), (*TABLES, *jmq_persistence.TABLES), self.say)
        try:
            self._begin()
            servers = [await self._listen(port) for port in self._ports]
            if self._record is not None:
                self.recording = self._open_record(self._record)
            for server in servers:
                await server.start_serving()
        except BaseException:
            await self.stop()
            raise

    def _begin(self) -> None:
        """Make the cores, and continue with what the store has."""
        store, check, (address, jmq_address) = self.store, self._login_check(), self._asked
        self.core = Core(self.settings, self.say, check, store)
        self._cores = [self.core]
        self._ports = [Port(self.core, address, self.tls)]
        if jmq_address is not None:
            jmq = JmqCore(self.settings, self.say, check, store)
            self._cores.append(jmq)
            Bridge(self.core, jmq)
            self._ports.append(Port(jmq, jmq_address, None, is_mapper=self.tls is not None))
            if self.tls is not None:
                self._ports.append(Port(jmq, (jmq_address[0], 0), self.tls))
        for core in self._cores:
            core.tick(self.now())
        if store is not None:
            gc.disable()  # what is read stays: collections during it would look at it in vain
            try:
                # JMS subscriptions are there before wills are published, which MQTT may do at once.
                for core in reversed(self._cores):
                    core.restore()
            finally:
                gc.enable()
            store.start(lambda: self.loop.call_soon_threadsafe(self._on_commit))
            store.flush()

    def _open_record(self, folder: Path) -> Recording:
        try:
            return record_into(folder, "broker", lambda: int(self.now() * 1e9), self.say)
        except OSError as error:
            raise SourceError(f"{error.filename}: {error.strerror}") from None

    async def _listen(self, port: Port) -> asyncio.Server:
        bind, number = port.address
        try:
            port.server = await self.loop.create_server(
                lambda: Connection(self, port),
                bind,
                number,
                ssl=port.tls,
                ssl_handshake_timeout=self.settings.connect_timeout_s if port.tls else None,
                backlog=1024,
                start_serving=False,
            )
        except UnicodeError:
            raise SourceError(f"{bind}: is no address") from None
        except OSError as error:
            raise SourceError(f"{error.filename or bind}: {error.strerror}") from None
        port.address = port.server.sockets[0].getsockname()[:2]
        if isinstance(port.core, JmqCore):
            port.core.name_service(port.address[1], has_tls=port.tls is not None)
        return port.server

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
        for port in self._ports:
            if port.server is not None:
                port.server.close()
        for core in self._cores:
            core.shut_down()
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

    def tick(self) -> None:
        """Do what is due."""
        for core in self._cores:
            core.tick(self.now())

    def wake(self) -> None:
        """Have what was made in this pass of the loop written at its end."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        dues = [core.tick(self.now()) for core in self._cores]
        for core in self._cores:
            for link in core.take_dirty():
                connection = self._connections.get(link)
                if connection is not None:
                    connection.flush()
        if self.store is not None:
            self.store.flush()
        due = min((due for due in dues if due is not None), default=None)
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
                self.tick()
                done(checked.exception() is None and checked.result())
                self.wake()

        future = self.loop.run_in_executor(self._logins, access.logs_in, user, password)
        future.add_done_callback(finish)

    # --- connections ----------------------------------------------------------------------

    def allows(self, origin: str, host: str) -> bool:
        """Return whether a page of an origin may connect to this broker by a host's name.

        A browser lets any page of the world connect to loopback, so those have to be local too. A
        page of the same host is one of its address: the owner of a name may have it lead here.
        """
        try:
            name, own = urlsplit(origin).hostname, urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        is_own = name == own and _is_address(name) and not _is_local(self.address[0])
        return is_own or _is_local(name) or origin in self.settings.origins

    def open(self, connection: Connection, client: Address, server: Address) -> Any:
        """Return the link of a new connection, None if it is refused."""
        tape = None if self.recording is None else self.recording.open(client, server)
        connection.tape = tape
        self.tick()  # its time to log in begins now
        port = connection.port
        link = port.core.open_link(
            shown_address(client), None if tape is None else connection.record
        )
        if link is not None:
            self._connections[link] = connection
            if port.is_mapper_only:
                link.is_mapper_only = True
            self.wake()
        elif tape is not None:
            tape.close(by_client=False)
        return link

    def close(self, connection: Connection, link: Any, by_client: bool) -> None:
        """Take note that a connection is closed."""
        tape = connection.tape
        self._connections.pop(link, None)
        self._waiting.discard(connection)
        self.tick()
        connection.port.core.lose(link)
        if tape is not None:
            tape.close(by_client)
        self.wake()


def _is_local(host: str | None) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host or "").is_loopback)


def _is_address(host: str | None) -> bool:
    try:
        return bool(ip_address(host or ""))
    except ValueError:
        return False
