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
from collections.abc import Coroutine
from typing import Any

from wireyard.client.client import Client
from wireyard.client.connection import ConnectionLost, Refused
from wireyard.client.jmq import JmqClient
from wireyard.endpoints import Message

__all__ = ["Client", "ConnectionLost", "JmqClient", "Message", "Refused", "run"]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in an event loop of its own."""
    asyncio.run(main)
