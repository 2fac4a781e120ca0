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
from itertools import chain
from threading import Thread
from typing import Any

from wireyard.client.client import Client
from wireyard.client.connection import ConnectionLost, Refused
from wireyard.client.jmq import JmqClient
from wireyard.endpoints import Message

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
    """Yield the lines of a file, a pipe or a terminal as they come.

    The thread that waits for them is none of asyncio's: the end would wait for the next line.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes](1)

    def read() -> None:
        with suppress(RuntimeError, CancelledError), open(os.dup(descriptor), "rb") as file:
            for line in chain(file, [b""]):
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    Thread(target=read, daemon=True).start()
    while line := await lines.get():
        yield line.rstrip(b"\r\n")
