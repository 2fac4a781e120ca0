"""A JMQ client for asyncio, which connects again and loses nothing that was sent as persistent.

Rules of this file:

1. A message is in flight until its reply comes. After a new connection it is sent again with the
   same SysMessageID and flag I, by which a broker and receivers recognise it.
2. A message that arrives is acknowledged when it is taken from its consumer, unless the consumer
   leaves that to the caller. What was not acknowledged when a connection ends comes again.
3. A transaction ends with its connection: whoever uses it after that gets `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_bytes
from typing import Any, Final, NamedTuple

from wireyard.client.address import Address, parse_address
from wireyard.client.connection import ConnectionLost, Keeper, Refused, Wire, fail_all
from wireyard.client.jmq_parts import Consumer, Place, Received, Transaction
from wireyard.endpoints.channel import Ended
from wireyard.endpoints.jmq import Answered, ClientEndpoint, Event, Message, Request
from wireyard.endpoints.jmq.packets import BLOCK, Stamp
from wireyard.errors import DecodeError, SourceError, UsageError
from wireyard.formats.jmq.body import PlainBody
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.jmq.sender import MAX_SEQUENCE
from wireyard.formats.port_mapper import MAX_ANSWER_BYTES, Service, decode_answer
from wireyard.formats.properties import PlainProperties
from wireyard.formats.stamps import Stamps
from wireyard.layers.jmq.rules import DESTINATION_CLASSES, OK, QUEUE, TOPIC

__all__ = ["Consumer", "JmqClient", "Received", "Transaction"]

_LOGIN_REPLY, _RESUME_FLOW = 13, 52
_CLIENT_MODE: Final = 2
_PASSING: Final = frozenset({1, 2, 3, 6, 7, 8, 9, 10, 409, 449, 503})
"""Reasons of GOODBYE and statuses of a broker that is unavailable, or has not missed the client."""
_MOST_UNSENT: Final = 10_000
_NO_SERVICE: Final = "names no service for JMQ clients"


@dataclass(slots=True, eq=False)
class _Sending:
    """A message without a reply."""

    packet: Packet
    place: Place
    done: asyncio.Future[Request | None]


class _Asking(NamedTuple):
    """A request without a reply, and the consumer that gets messages from its reply on."""

    done: asyncio.Future[Request]
    consumer: Consumer | None


class JmqClient(Keeper):
    """A client of Open MQ or of our broker, from ``async with`` to the end of its block.

    Parameters
    ----------
    url
        ``mq://user:password@host:port`` with the port of the port mapper, or ``mqs://`` for TLS.
    client_id
        Needed for durable subscriptions.
    username, password
        The login, also those of the URL; ``guest`` if there is none.
    tls, reconnect, say
        As of `Client`.
    """

    def __init__(
        self,
        url: str = "localhost",
        *,
        client_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(parse_address(url, "mq"), tls, reconnect, say)
        if not self.address.is_jmq:
            raise UsageError(f"'{url}' is no address of a JMQ broker: mq://HOST:PORT")
        self.say, self._client_id = say, client_id
        user, secret = self.address.username, self.address.password
        self._login = username or user or "guest", password or secret or "guest"
        self._stamps = Stamps(MAX_SEQUENCE)
        self._own_address = b"\xff\0\0\0" + token_bytes(6) + b"\xff\xff\x7f\0\0\1"
        self._session = 0
        self._producers: dict[Place, int] = {}
        self._making = asyncio.Lock()
        """Is held while a producer is made, so that a destination has one."""
        self._kept: list[Consumer] = []
        """All consumers, and those of the connection by their ids:"""
        self._consumers: dict[int, Consumer] = {}
        self._unsent: dict[Place, deque[_Sending]] = {}
        """Messages that wait; those that are in flight are tags of the endpoint."""

    # --- connections ----------------------------------------------------------------------

    def _stamp(self) -> Stamp:
        timestamp, sequence = self._stamps.next(time.time_ns() // 1_000_000)
        return timestamp, self._own_address, 0, sequence

    async def _where(self) -> tuple[str, int]:
        """Ask the port mapper."""
        wanted = ("tcp",) if self._tls is None else ("tls", "ssl")
        for one in await ask_port_mapper(self.address):
            if one.protocol in wanted and one.type == "NORMAL" and one.port:
                return self.address.host, one.port
        raise ConnectionLost(f"{self.address}: {_NO_SERVICE}")

    def _new_wire(self) -> Wire:
        return Wire(ClientEndpoint(self._stamp), self._handle, self._lose)

    def _greet(self, wire: Wire) -> None:
        wire.endpoint.open(*self._login)

    def _say_goodbye(self, wire: Wire) -> None:
        wire.endpoint.disconnect()

    def _passes(self, error: SourceError) -> bool:
        return not isinstance(error, Refused) or error.code in _PASSING

    async def _set_up(self, wire: Wire) -> None:
        if self._client_id is not None:
            await self._ask(wire, "SET_CLIENTID", {"JMQClientID": self._client_id})
        made = await self._ask(wire, "CREATE_SESSION", {"JMQAckMode": _CLIENT_MODE})
        self._session = made.get("JMQSessionID", int, 0)
        self._consumers.clear()
        for place in list(self._producers):
            await self._add_producer(wire, place)
        for consumer in self._kept:
            consumer.messages.clear()
            await self._add_consumer(wire, consumer)
        wire.endpoint.tell("START")
        self._wire = wire
        self._pump()

    def _lose(self, wire: Wire) -> None:
        lost = ConnectionLost(f"{self.address}: the connection is lost")
        for tag in reversed(wire.endpoint.tags):
            if isinstance(tag, _Asking):
                fail_all([tag.done], lost)
            else:
                packet = tag.packet
                tag.packet = replace(packet, bit_flags=packet.bit_flags | FLAGS["I"])
                self._unsent.setdefault(tag.place, deque()).appendleft(tag)
        in_transactions = (one for one in self._waiting() if one.packet.transaction_id is not None)
        fail_all((one.done for one in in_transactions), lost)
        super()._lose(wire)

    def _fail(self, error: SourceError) -> None:
        super()._fail(error)
        fail_all((one.done for one in self._waiting()), error)
        for consumer in self._kept:
            consumer.news.set()

    def _waiting(self) -> Iterator[_Sending]:
        """Yield the messages that wait for a connection, or for credit."""
        return chain.from_iterable(self._unsent.values())

    async def _persist(self, act: Callable[[Wire], Awaitable[None]]) -> None:
        """Do something on the connection, again on the next one if that one is lost."""
        while True:
            wire = await self._connection()
            try:
                await act(wire)
            except ConnectionLost:
                continue
            return

    # --- requests -------------------------------------------------------------------------

    async def _ask(
        self,
        wire: Wire | None,
        kind: str,
        properties: Mapping[str, Any],
        body: bytes = b"",
        transaction_id: int | None = None,
        consumer: Consumer | None = None,
    ) -> Request:
        """Send a request; return its reply. A consumer gets messages from its reply on.

        A `Refused` is raised if the reply has an error, and a `ConnectionLost` if there is no
        connection.
        """
        self.check()
        if wire is None or wire.closed.is_set():
            raise ConnectionLost(f"{self.address}: there is no connection")
        asking = _Asking(asyncio.get_running_loop().create_future(), consumer)
        wire.endpoint.ask(kind, properties, body, transaction_id, asking)
        wire.wake()
        reply = await asking.done
        status = reply.get("JMQStatus", int, OK)
        if status != OK:
            raise Refused(f"{kind}: {reply.get('JMQReason', str) or status}", status)
        return reply

    async def _declare(self, wire: Wire, place: Place) -> dict[str, Any]:
        asked = {"JMQDestination": place[0], "JMQDestType": QUEUE if place[1] else TOPIC}
        try:
            await self._ask(wire, "CREATE_DESTINATION", asked)
        except Refused as refused:
            if refused.code != 409:  # it is there
                raise
        return asked | {"JMQSessionID": self._session}

    async def _add_producer(self, wire: Wire, place: Place) -> None:
        made = await self._ask(wire, "ADD_PRODUCER", await self._declare(wire, place))
        self._producers[place] = made.get("JMQProducerID", int, 0)

    async def _add_consumer(self, wire: Wire, consumer: Consumer) -> None:
        asked = await self._declare(wire, consumer.place) | dict(consumer.asked)
        await self._ask(wire, "ADD_CONSUMER", asked, consumer=consumer)

    # --- messages -------------------------------------------------------------------------

    async def send(
        self,
        name: str,
        body: PlainBody | None = None,
        *,
        is_topic: bool = False,
        persistent: bool = True,
        priority: int = 4,
        expires_s: float = 0,
        properties: PlainProperties | None = None,
        transaction: Transaction | None = None,
        **fields: Any,
    ) -> None:
        """Send a message; return when the broker has it.

        Parameters
        ----------
        name
            Of a queue, or of a topic.
        body
            Text, bytes, a mapping or a sequence, by which the type of the message is chosen.
        expires_s
            Seconds until it expires; 0 for never.
        fields
            Others of `wireyard.jmq.Packet`, such as `correlation_id` and `reply_to`.

        Raises
        ------
        Refused
            The broker refused the message.
        ConnectionLost
            The connection is lost for good, or that of the transaction.
        """
        place, flags = (name, not is_topic), (0 if is_topic else FLAGS["Q"])
        packet = Packet(
            packet_type=_type_of(body),
            body=body,
            destination=name,
            destination_class=DESTINATION_CLASSES[not is_topic],
            bit_flags=flags | (FLAGS["P"] if persistent else 0),
            priority=priority,
            expiration=int((time.time() + expires_s) * 1000) if expires_s else 0,
            properties=properties,
            transaction_id=None if transaction is None else transaction.id,
            **fields,
        )
        while len(waiting := self._unsent.get(place, deque())) >= _MOST_UNSENT:
            await asyncio.wait([waiting[0].done])
        if place not in self._producers:
            async with self._making:
                if place not in self._producers:
                    await self._persist(lambda wire: self._add_producer(wire, place))
        self._check_transaction(transaction)
        self.check()
        done: asyncio.Future[Request | None] = asyncio.get_running_loop().create_future()
        self._unsent.setdefault(place, deque()).append(_Sending(packet, place, done))
        self._pump()
        await done

    def _check_transaction(self, transaction: Transaction | None) -> None:
        if transaction is not None and transaction.wire is not self._wire:
            raise ConnectionLost(f"{self.address}: the connection of the transaction is lost")

    def _pump(self) -> None:
        """Send messages that wait, as far as the broker takes them."""
        wire = self._wire
        if wire is None:
            return
        for place, waiting in list(self._unsent.items()):
            producer = self._producers[place]
            while waiting and wire.endpoint.room(producer):
                sending = waiting.popleft()
                if not sending.packet.sequence:
                    timestamp, address, port, sequence = self._stamp()
                    sending.packet = replace(
                        sending.packet, timestamp=timestamp, source_ip=address, source_port=port,
                        sequence=sequence,
                    )  # fmt: skip
                if not sending.done.done():
                    wire.endpoint.send(sending.packet, producer, sending)
            if not waiting:
                del self._unsent[place]
        wire.wake()

    async def consume(
        self,
        name: str,
        *,
        is_topic: bool = False,
        selector: str | None = None,
        durable: str | None = None,
        no_local: bool = False,
        prefetch: int = 1000,
        acknowledges: bool = True,
    ) -> Consumer:
        """Consume from a queue or a topic.

        Parameters
        ----------
        durable
            Name of a durable subscription.
        prefetch
            Messages that come before the first one is taken.
        acknowledges
            Whether a message is acknowledged when it is taken; else by `acknowledge`.
        """
        asked: dict[str, Any] = {"JMQSize": prefetch, "JMQNoLocal": no_local}
        for key, value in (("JMQSelector", selector), ("JMQDurableName", durable)):
            if value is not None:
                asked[key] = value
        consumer = Consumer(self, (name, not is_topic), asked, acknowledges)
        await self._persist(lambda wire: self._add_consumer(wire, consumer))
        self._kept.append(consumer)
        return consumer

    async def acknowledge(
        self, *messages: Received, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge messages; return when the broker knows it.

        Raises
        ------
        ConnectionLost
            The connection on which one came is lost: it comes again.
        """
        self._check_transaction(transaction)
        if any(one.wire is not self._wire for one in messages):
            raise ConnectionLost(f"{self.address}: the connection of the messages is lost")
        body = b"".join(BLOCK.pack(*one.key) for one in messages)
        number = None if transaction is None else transaction.id
        await self._ask(self._wire, "ACKNOWLEDGE", {}, body, number)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Begin a transaction, which is committed at the end of its block, or rolled back."""
        wire = await self._connection()
        made = await self._ask(wire, "START_TRANSACTION", {"JMQSessionID": self._session})
        transaction = Transaction(self, made.get("JMQTransactionID", int, 0), wire)
        asked = {"JMQTransactionID": transaction.id}
        try:
            yield transaction
        except BaseException:
            with suppress(ConnectionLost):  # which ends it too
                await self._ask(wire, "ROLLBACK_TRANSACTION", asked | {"JMQRedeliver": True})
            raise
        self._check_transaction(transaction)
        await self._ask(wire, "COMMIT_TRANSACTION", asked)

    # --- events ---------------------------------------------------------------------------

    def _handle(self, wire: Wire, events: Sequence[Event]) -> bool:
        """Act on what happened on a connection."""
        for event in events:
            if isinstance(event, Message):
                consumer = self._consumers.get(event.id)
                if consumer is not None:
                    consumer.messages.append((event, wire))
                    consumer.news.set()
            elif isinstance(event, Ended):
                self._reason = Refused(f"{self.address}: {event.text}", event.code)
            elif isinstance(event, Answered):
                self._take_reply(*event)
        self._pump()
        return True

    def _take_reply(self, reply: Request, tag: Any) -> None:
        if reply.packet_type == _LOGIN_REPLY:
            assert self._accepted is not None
            self._accepted.set_result(None)
        elif isinstance(tag, _Asking) and tag.consumer and "JMQConsumerID" in reply.properties:
            tag.consumer.id = reply.get("JMQConsumerID", int, 0)
            self._consumers[tag.consumer.id] = tag.consumer
        if tag is None or tag.done.done():
            return
        status = reply.get("JMQStatus", int, OK)
        if isinstance(tag, _Asking) or status in (OK, 304):  # it has the message already
            tag.done.set_result(reply)
        else:
            text = reply.get("JMQReason", str) or str(status)
            tag.done.set_exception(Refused(f"{tag.place[0]}: {text}", status))


async def ask_port_mapper(address: Address) -> Sequence[Service]:
    """Return the services of a broker; `ConnectionLost` is raised if it names none."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(b"101\n")
        answer = b""
        while b"\n.\n" not in answer and len(answer) <= MAX_ANSWER_BYTES:
            data = await reader.read(4096)
            if not data:
                break
            answer += data
    finally:
        writer.close()
    try:
        return decode_answer(answer).services
    except DecodeError as error:
        raise ConnectionLost(f"{address}: {_NO_SERVICE}, {error}") from None


def _type_of(body: PlainBody | None) -> str:
    if body is None:
        return "MESSAGE"
    if isinstance(body, str):
        return "TEXT_MESSAGE"
    if isinstance(body, bytes):
        return "BYTES_MESSAGE"
    return "MAP_MESSAGE" if isinstance(body, Mapping) else "STREAM_MESSAGE"
