"""A server that does what a test says, and connections to it through a proxy."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from wireyard.tap.proxy import Tap

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
LOOPBACK = "127.0.0.1"


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test that ends within a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(bounded())


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[int]:
    """Serve connections, and wait for their ends; yields the port."""
    tasks = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, LOOPBACK, 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


@asynccontextmanager
async def tapped(port: int, lines: list[str] | None = None, **options: Any) -> AsyncIterator[Tap]:
    """Run a proxy before a port."""
    say = (lambda text: None) if lines is None else lines.append
    tap = Tap((LOOPBACK, 0), (LOOPBACK, port), say, **options)
    await tap.start()
    try:
        yield tap
    finally:
        await tap.stop()


async def until(is_so: Callable[[], object]) -> None:
    """Wait for something that other tasks do."""
    while not is_so():
        await asyncio.sleep(0.002)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection by a reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
