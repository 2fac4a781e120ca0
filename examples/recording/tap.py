"""Parts that the recorders share: a running broker, and a tap on loopback in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["LOOPBACK", "free_ports", "running", "tap"]

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports: list[int] = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: BinaryIO
) -> None:
    """Forward one direction; record each chunk first."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65536):
            record.write(chunk)
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def tap(name: str, suffix: str, broker_port: int, out: Path) -> int:
    """Listen for one connection; return the port.

    Bytes from the client go to ``NAME-c2b.SUFFIX``, bytes to it to ``NAME-b2c.SUFFIX``.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Mode x: a second connection of the same name would overwrite the stream of the first.
        with (
            (out / f"{name}-c2b.{suffix}").open("xb") as sent,
            (out / f"{name}-b2c.{suffix}").open("xb") as got,
        ):
            broker_reader, broker_writer = await asyncio.open_connection(LOOPBACK, broker_port)
            await asyncio.gather(
                _pump(reader, broker_writer, sent), _pump(broker_reader, writer, got)
            )
            for end in (writer, broker_writer):
                end.close()

    server = await asyncio.start_server(connected, LOOPBACK, 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


@contextlib.asynccontextmanager
async def running(*command: str | Path, ready: bytes) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a context; enter it at the output line that contains `ready`."""
    broker = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # the command may be a script; its children are stopped with it
    )
    assert broker.stdout is not None
    try:
        async with asyncio.timeout(60):
            while ready not in (line := await broker.stdout.readline()):
                if not line:
                    sys.exit("the broker did not start")
        # Keep reading, or the program would block at a full pipe.
        reading = asyncio.create_task(broker.stdout.read())
        yield broker
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(broker.pid, signal.SIGTERM)
        await broker.wait()
    await reading
