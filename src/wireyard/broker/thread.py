"""A broker in a thread of its own, for tests and notebooks."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from wireyard.broker.recording import shown_address
from wireyard.broker.server import LOOPBACK, Server
from wireyard.broker.settings import Settings

_KEPT_LINES = 1000


class BrokerThread:
    """A broker that runs from ``with`` to the end of its block.

    Parameters
    ----------
    settings
        Its behaviour and limits.
    bind, port
        Address to listen on; port 0 is any that is free.
    tls
        Context of a server with its certificate, for TLS.
    record
        Folder in which what passes is written as a capture.
    store
        File in which its state outlives the process; in memory if there is none.
    jmq
        Port for JMQ clients too; 0 is any that is free.

    Attributes
    ----------
    port, url
        Where it listens.
    jmq_port, jmq_url
        Where JMQ clients connect to.
    lines
        The newest of what it had to say, a line each.

    Raises
    ------
    SourceError
        The address cannot be bound, or the store cannot be opened.

    Examples
    --------
    >>> import wireyard
    >>> with wireyard.broker() as broker:
    ...     broker.url.startswith("mqtt://127.0.0.1:")
    True
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        bind: str = LOOPBACK,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        record: str | Path | None = None,
        store: str | Path | None = None,
        jmq: int | None = None,
    ) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.server = Server(
            settings, self.lines.append, bind=bind, port=port, tls=tls, record=record, store=store,
            jmq=jmq,
        )  # fmt: skip
        self._scheme = "mqtt" if tls is None else "mqtts"
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="wireyard broker", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server.address[1]

    @property
    def url(self) -> str:
        """Where it listens, as clients take it."""
        return f"{self._scheme}://{shown_address(self.server.address)}"

    @property
    def jmq_port(self) -> int:
        """The port of the port mapper for JMQ clients."""
        assert self.server.jmq_address is not None
        return self.server.jmq_address[1]

    @property
    def jmq_url(self) -> str:
        """Where JMQ clients connect to, as they take it, without the name of a service."""
        return f"mq://{shown_address((self.server.address[0], self.jmq_port))}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(RuntimeError):  # its loop is closed: it ended by itself
            self._loop.call_soon_threadsafe(self.server.is_over.set)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.server.start()
        self._started.set()
        await self.server.is_over.wait()
        await self.server.stop()
