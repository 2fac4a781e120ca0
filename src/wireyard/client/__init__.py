"""Clients of MQTT and JMQ for asyncio, which connect again and lose nothing by the rules.

>>> import asyncio
>>> import wireyard
>>> from wireyard.client import Client
>>> async def talk(url):
...     async with Client(url) as client:
...         await client.subscribe("plant/#", qos=1)
...         await client.publish("plant/line/1", "42", qos=1)
...         async for message in client:
...             return message.topic, message.payload
>>> with wireyard.broker() as broker:
...     asyncio.run(talk(broker.url))
('plant/line/1', b'42')
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread
from typing import Any

from wireyard.client.client import Client
from wireyard.client.connection import ConnectionLost, Refused
from wireyard.client.jmq import JmqClient
from wireyard.endpoints import Message
from wireyard.errors import SourceError
from wireyard.formats.mqtt.layout import MAX_REMAINING_LENGTH

__all__ = ["Client", "ConnectionLost", "JmqClient", "Message", "Refused", "lines_of", "run"]


def run(main: Coroutine[Any, Any, None], seconds: float | None = None) -> None:
    """Run a coroutine in an event loop of its own, for so many seconds at most."""

    async def limited() -> None:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await main
        except TimeoutError:
            if not limit.expired():
                raise

    asyncio.run(limited())


async def lines_of(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of standard input as they come.

    The thread that waits for them is none of asyncio's: the end would wait for the next line.
    `SourceError` is raised if it cannot be read, or if a line is too long for a packet.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | OSError](1)

    def put(line: bytes | OSError) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read() -> None:
        with suppress(RuntimeError, CancelledError):
            try:
                with open(os.dup(descriptor), "rb") as file:
                    while line := file.readline(MAX_REMAINING_LENGTH):
                        put(line)
                put(b"")
            except OSError as error:
                put(error)

    Thread(target=read, daemon=True).start()
    while line := await lines.get():
        if isinstance(line, OSError):
            raise SourceError(f"-: {line.strerror}")
        if len(line) == MAX_REMAINING_LENGTH:
            raise SourceError(f"-: a line has {MAX_REMAINING_LENGTH:,} bytes or more")
        yield line.rstrip(b"\r\n")
