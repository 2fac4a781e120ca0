"""Messages, consumers and transactions of a JMQ client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from wireyard.client.connection import Wire
from wireyard.endpoints.jmq import Message
from wireyard.endpoints.jmq.client import Key
from wireyard.errors import DecodeError
from wireyard.formats.jmq.body import PlainBody, body_value
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import Packet, decode

if TYPE_CHECKING:
    from wireyard.client.jmq import JmqClient

Place = tuple[str, bool]
"""The name of a destination, and whether it is a queue."""


class Received:
    """A message that came to a consumer."""

    def __init__(self, packet: Packet, consumer: Consumer, key: Key, wire: Wire) -> None:
        self.packet, self.consumer, self.key, self.wire = packet, consumer, key, wire

    @property
    def body(self) -> Any:
        """The body as a plain value: text, bytes, a dict, a list; None if there is none."""
        return body_value(self.packet)

    @property
    def properties(self) -> dict[str, Any]:
        """The values of its properties by name."""
        return {name: entry.value for name, entry in (self.packet.properties or {}).items()}

    @property
    def is_redelivered(self) -> bool:
        """Whether it may have been seen before."""
        return bool(self.packet.bit_flags & (FLAGS["R"] | FLAGS["I"]))


class Consumer:
    """A consumer; iterate over its messages."""

    def __init__(
        self, client: JmqClient, place: Place, asked: Mapping[str, Any], acknowledges: bool
    ) -> None:
        self._client, self.place, self.asked = client, place, asked
        self._acknowledges = acknowledges
        self.id = 0
        self.messages: deque[tuple[Message, Wire]] = deque()
        self.news = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Yield messages as they arrive.

        A `SourceError` is raised when there will be no connection any more.
        """
        while True:
            while not self.messages:
                self._client.check()
                self.news.clear()
                await self.news.wait()
            message, wire = self.messages.popleft()
            key = message.id, message.key
            if self._acknowledges and key in wire.endpoint.held:
                wire.endpoint.take_no_more([key])
            wire.wake()
            try:
                yield Received(decode(message.packet), self, key, wire)
            except DecodeError as error:
                self._client.say(f"{self.place[0]}: a message cannot be read, {error}")
            if message.flags & FLAGS["C"] and not wire.closed.is_set():
                wire.endpoint.resume(message.id, self.asked["JMQSize"])
                wire.wake()


class Transaction:
    """A transaction of a client, from ``async with client.transaction()`` to its end."""

    def __init__(self, client: JmqClient, id: int, wire: Wire) -> None:
        self._client, self.id, self.wire = client, id, wire

    async def send(self, name: str, body: PlainBody | None = None, **more: Any) -> None:
        """Send a message when the transaction is committed, as `JmqClient.send` does."""
        await self._client.send(name, body, transaction=self, **more)

    async def acknowledge(self, *messages: Received) -> None:
        """Acknowledge messages when the transaction is committed."""
        await self._client.acknowledge(*messages, transaction=self)
