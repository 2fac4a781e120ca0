"""The client: an endpoint on a socket, and what has to survive the loss of a connection.

Rules of this file:

1. A message of QoS 1 or 2 stays in the flows of the session until it is acknowledged. If the broker
   has the session after a new connection, it is sent again with DUP; else as a new message.
2. A message that arrives is acknowledged when it is taken from the client.
3. A client whose messages are not taken stops reading: `_MOST_WAITING` of them wait, and those of
   one read.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from wireyard.client.address import parse_address
from wireyard.client.connection import ConnectionLost, Keeper, Refused, Wire, fail_all
from wireyard.endpoints import (
    ClientEndpoint,
    Completed,
    Delivery,
    Ended,
    Event,
    Flows,
    Message,
    WebSocket,
)
from wireyard.endpoints.packets import ERROR
from wireyard.errors import SourceError, UsageError
from wireyard.formats.mqtt.control import Auth, ConnAck, Connect, SubAck, UnsubAck
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.properties import PlainProperties, plain_properties
from wireyard.formats.mqtt.topics import has_wildcard
from wireyard.layers.mqtt.reasons import REASONS

VERSIONS: Final = {"3.1": 3, "3.1.1": 4, "5": 5, "5.0": 5}
_MOST_WAITING: Final = 1000
_MOST_UNSENT: Final = 10_000
_SESSION_S: Final = 3600
_CONTINUE, _REAUTHENTICATE, _BAD_METHOD = 24, 25, 140
_PASSING: Final = frozenset({3, 136, 137, 139, 141})
"""Codes of a broker that is unavailable, busy or shuts down, or did not hear from the client."""

Conversation = Generator[bytes, bytes, object]
"""An enhanced authentication: yields the data of CONNECT and AUTH, and is sent the broker's. It
returns when it is sent the data of the last packet, or raises `Refused`."""


@dataclass(slots=True)
class _Request:
    """A SUBSCRIBE or UNSUBSCRIBE without an answer."""

    filters: list[Filter]
    is_subscribe: bool
    answer: asyncio.Future[tuple[int, ...]]


class Client(Keeper):
    """An MQTT client; connected from ``async with`` to the end of its block.

    Parameters
    ----------
    url
        ``mqtt://user:password@host:port``, or ``mqtts://`` for TLS; a host alone is enough.
        ``ws://`` and ``wss://`` are the same inside a WebSocket.
    client_id
        One is made if it is not given.
    username, password
        The login, also those of the URL.
    version
        3.1, 3.1.1 or 5.
    keep_alive
        Longest silence in seconds; 0 for no limit.
    keep_session
        Whether the broker keeps the session of the client id beyond the end of the block, and
        continues one that it has. Else the session outlives lost connections only, in 5.0.
    authentication
        Enhanced authentication in 5.0: its method, and a function that begins a conversation.
    will
        Message that the broker publishes if the client is lost.
    tls
        Context for TLS; by default that of the system for ``mqtts://`` and ``wss://``.
    reconnect
        Whether to connect again when the connection is lost.
    say
        Is called with a line when the connection is lost or back.

    Examples
    --------
    See ``wireyard.client``.
    """

    def __init__(
        self,
        url: str = "localhost",
        *,
        client_id: str = "",
        username: str | None = None,
        password: str | bytes | None = None,
        version: str = "5",
        keep_alive: int = 60,
        keep_session: bool = False,
        authentication: tuple[str, Callable[[], Conversation]] | None = None,
        will: Message | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if version not in VERSIONS:
            raise UsageError(f"MQTT has no version '{version}', only {', '.join(VERSIONS)}")
        if authentication is not None and VERSIONS[version] != 5:
            raise UsageError(f"MQTT {version} has no enhanced authentication, only 5 has")
        super().__init__(parse_address(url), tls, reconnect, say)
        self.client_id = client_id or f"wireyard-{token_hex(6)}"
        self.version = VERSIONS[version]
        self._login = username or self.address.username, password or self.address.password
        self._keep_alive, self._keep_session, self._will = keep_alive, keep_session, will
        self._authentication = authentication
        self._conversation: Conversation | None = None
        self._proven: asyncio.Future[None] | None = None
        """Is done when the broker has answered an authentication of an open connection."""
        self._known: dict[bytes, str] = {}
        self._flows = Flows()
        self._was_connected = False
        self._unsent: deque[Delivery] = deque()
        self._requests: dict[int, _Request] = {}
        self._unasked: list[_Request] = []
        """Requests that wait for a connection."""
        self._subscriptions: dict[str, Filter] = {}
        self._messages: deque[Message] = deque()
        self._news = asyncio.Event()

    # --- connections ----------------------------------------------------------------------

    def _new_wire(self) -> Wire:
        path = self.address.path
        socket = None if path is None else WebSocket((str(self.address), path))
        return Wire(ClientEndpoint(known=self._known), self._handle, self._lose, socket)

    def _greet(self, wire: Wire) -> None:
        wire.endpoint.open(self._connect_packet(), self._flows)

    async def _set_up(self, wire: Wire) -> None: ...

    def _say_goodbye(self, wire: Wire) -> None:
        wire.endpoint.disconnect(keeps_session=self._keep_session)

    def _connect_packet(self) -> Connect:
        is_clean = not self._keep_session and not (self.version == 5 and self._was_connected)
        properties: dict[str, Any] = {}
        if self.version == 5:
            properties = {"session_expiry_interval": _SESSION_S} | self._begin_conversation()
        will = self._will
        return Connect(
            client_id=self.client_id,
            clean_start=is_clean,
            keep_alive=self._keep_alive,
            username=self._login[0],
            password=self._login[1],
            will_topic=None if will is None else will.topic,
            will_payload=None if will is None else will.payload,
            will_qos=None if will is None else will.qos,
            will_retain=None if will is None else will.retain,
            properties=properties,
            version_in_force=self.version,
        )

    def _begin(self, wire: Wire) -> None:
        """Continue on a new connection with what is open."""
        self._wire = wire
        if not wire.endpoint.has_session:
            self._unsent.extendleft(reversed(self._flows.discard()))
            if self._was_connected and self._subscriptions:
                answer = asyncio.get_running_loop().create_future()
                filters = list(self._subscriptions.values())
                self._unasked.insert(0, _Request(filters, True, answer))
        self._was_connected = True
        requests = [*self._unasked, *self._requests.values()]
        self._unasked, self._requests = [], {}
        for request in requests:
            self._ask(wire, request)
        self._pump()

    def _passes(self, error: SourceError) -> bool:
        return not isinstance(error, Refused) or error.code in _PASSING

    def _fail(self, error: SourceError) -> None:
        super()._fail(error)
        self._news.set()
        waiting = [delivery.tag for delivery in (*self._unsent, *self._flows.discard())]
        waiting += [one.answer for one in (*self._requests.values(), *self._unasked)]
        self._unsent.clear()
        fail_all(waiting, error)

    # --- enhanced authentication ----------------------------------------------------------

    async def authenticate(self) -> None:
        """Authenticate again, on the open connection.

        Raises
        ------
        ConnectionLost
            The connection is lost meanwhile; the next one is authenticated too.
        """
        if self._authentication is None:
            raise UsageError("the client has no enhanced authentication")
        wire = await self._connection()
        if self._conversation is not None:
            raise UsageError("the client authenticates already")
        self._proven = asyncio.get_running_loop().create_future()
        wire.endpoint.authenticate(_REAUTHENTICATE, self._begin_conversation())
        wire.wake()
        await self._proven

    def _begin_conversation(self) -> dict[str, Any]:
        """Begin an authentication, if there is to be one; return the properties of its packet."""
        if self._authentication is None:
            return {}
        self._conversation = self._authentication[1]()
        return self._authentic(next(self._conversation))

    def _authentic(self, data: bytes) -> dict[str, Any]:
        assert self._authentication is not None
        method = {"authentication_method": self._authentication[0]}
        return method | ({"authentication_data": data} if data else {})

    def _prove(self, wire: Wire, packet: Auth | ConnAck) -> None:
        """Go on with an authentication; begin where the connection is accepted."""
        try:
            answer = self._answer_to(packet)
        except Refused as refused:
            self._reason, self._conversation = refused, None
            wire.endpoint.end(refused.code, str(refused))
            return
        if answer is not None:
            wire.endpoint.authenticate(_CONTINUE, self._authentic(answer))
        elif isinstance(packet, ConnAck):
            assert self._accepted is not None
            self._accepted.set_result(None)
            self._begin(wire)
        elif self._proven is not None and not self._proven.done():
            self._proven.set_result(None)

    def _answer_to(self, packet: Auth | ConnAck) -> bytes | None:
        """Return what the conversation answers; None at its end."""
        conversation, answer = self._conversation, None
        if conversation is not None:
            try:
                answer = conversation.send(
                    dict(packet.properties or ()).get("authentication_data", b"")
                )
            except StopIteration:
                self._conversation = None
        is_unasked = conversation is None and isinstance(packet, Auth)
        if is_unasked or (answer is None) is (packet.return_code == _CONTINUE):
            raise Refused(f"{self.address}: does not keep to the authentication", _BAD_METHOD)
        return answer

    def _lose(self, wire: Wire) -> None:
        if self._proven is not None:
            lost = ConnectionLost(f"{self.address}: the connection is lost")
            fail_all([self._proven], self._reason or lost)
        super()._lose(wire)

    # --- messages -------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: PlainProperties = (),
    ) -> int:
        """Publish a message; return once it is sent, at QoS 1 and 2 once it is acknowledged.

        Returns
        -------
        int
            Reason code of the acknowledgement; 16 if nobody has subscribed to the topic.

        Raises
        ------
        Refused
            The broker refused the message.
        ConnectionLost
            The connection is lost for good.
        UsageError
            The topic is none, or the message is larger than the broker takes.
        """
        if not topic or has_wildcard(topic):
            raise UsageError(f"'{topic}' is no topic: it has a character, and no + or #")
        self.check()
        data = payload.encode() if isinstance(payload, str) else payload
        message = Message(topic, data, qos, retain, plain_properties("properties", properties))
        while len(self._unsent) >= _MOST_UNSENT:
            await asyncio.wait([self._unsent[0].tag])
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unsent.append(Delivery(message, qos, retain, (), done))
        self._pump()
        if self._wire is not None:
            await self._wire.writable.wait()
        code = await done
        if code >= ERROR:
            raise Refused(f"{topic}: {REASONS.get(code, code)}", code)
        return code

    def _pump(self) -> None:
        """Send messages that wait, as far as the broker takes them."""
        wire = self._wire
        while self._unsent and wire is not None:
            delivery = self._unsent[0]
            if delivery.qos and wire.endpoint.room <= 0:
                break
            self._unsent.popleft()
            if delivery.tag.done():
                continue
            if not wire.endpoint.send(delivery, time.monotonic()):
                most = wire.endpoint.peer_max_packet
                error = UsageError(f"the broker takes packets of {most} bytes at most")
                delivery.tag.set_exception(error)
            elif not delivery.qos:
                delivery.tag.set_result(0)
        if wire is not None:
            wire.wake()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they arrive; each is acknowledged when it is taken.

        A `SourceError` is raised when there will be no connection any more.
        """
        while True:
            while not self._messages:
                self.check()
                self._news.clear()
                await self._news.wait()
            message = self._messages.popleft()
            if self._wire is not None:
                self._wire.endpoint.acknowledge(message)
                self._wire.wake()
                if len(self._messages) < _MOST_WAITING:
                    self._wire.read_on()
            yield message

    # --- subscriptions --------------------------------------------------------------------

    async def subscribe(
        self,
        filters: str | Filter | Sequence[str | Filter],
        qos: int = 0,
        **options: Any,
    ) -> tuple[int, ...]:
        """Subscribe to topic filters; return the reason code of each, the granted QoS.

        Parameters
        ----------
        filters
            One or several; `qos` and the options of `Filter.of` are for those that are text.

        Raises
        ------
        Refused
            The broker refused one of them.
        """
        given = [filters] if isinstance(filters, str | Filter) else list(filters)
        wanted = [
            one if isinstance(one, Filter) else Filter.of(one, qos, **options) for one in given
        ]
        codes = await self._request(wanted, True)
        for filter, code in zip(wanted, codes, strict=True):
            if code >= ERROR:
                raise Refused(f"{filter.filter}: {REASONS.get(code, code)}", code)
        return codes

    async def unsubscribe(self, filters: str | Sequence[str]) -> tuple[int, ...]:
        """Unsubscribe from topic filters; return in 5.0 the reason code of each."""
        names = [filters] if isinstance(filters, str) else filters
        return await self._request([Filter(name) for name in names], False)

    async def _request(self, filters: list[Filter], is_subscribe: bool) -> tuple[int, ...]:
        self.check()
        answer: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        request = _Request(filters, is_subscribe, answer)
        if self._wire is None:
            self._unasked.append(request)
        else:
            self._ask(self._wire, request)
        return await answer

    def _ask(self, wire: Wire, request: _Request) -> None:
        if request.is_subscribe:
            packet_id = wire.endpoint.subscribe(request.filters)
        else:
            packet_id = wire.endpoint.unsubscribe([one.filter or "" for one in request.filters])
        self._requests[packet_id] = request
        wire.wake()

    # --- events ---------------------------------------------------------------------------

    def _handle(self, wire: Wire, events: Sequence[Event]) -> bool:
        """Act on what happened on a connection; return whether more is to be read for now."""
        for event in events:
            if isinstance(event, Message):
                self._messages.append(event)
                self._news.set()
            elif isinstance(event, Completed):
                if not event.delivery.tag.done():
                    event.delivery.tag.set_result(event.code)
            elif isinstance(event, SubAck | UnsubAck):
                self._answer(event)
            elif isinstance(event, Auth) or (isinstance(event, ConnAck) and not event.return_code):
                self._prove(wire, event)
            elif isinstance(event, Ended):
                text = event.text if event.packet is None else REASONS.get(event.code, event.text)
                self._reason = Refused(f"{self.address}: {text}", event.code)
        self._pump()
        return len(self._messages) < _MOST_WAITING

    def _answer(self, packet: SubAck | UnsubAck) -> None:
        request = self._requests.pop(packet.packet_id)
        codes = packet.return_codes or (0,) * len(request.filters)
        for filter, code in zip(request.filters, codes, strict=True):
            if not request.is_subscribe:
                self._subscriptions.pop(filter.filter or "", None)
            elif code < ERROR:
                self._subscriptions[filter.filter or ""] = filter
        if not request.answer.done():
            request.answer.set_result(codes)
