"""The JMQ half of a broker without sockets and clocks: connections, logins, and what is due.

Rules of this file:

1. What a connection has to send is in its endpoint; `take_dirty` has the connections to look at,
   once a pass of the caller's loop.
2. What a client sent takes effect in its order.
3. A connection ends in one place, `_on_ended`, which says why in one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_hex
from typing import Final

from wireyard.broker.half import Half
from wireyard.broker.jmq.connections import Connection
from wireyard.broker.jmq.persistence import Persistence
from wireyard.broker.jmq.requests import Requests
from wireyard.broker.jmq.routing import Router
from wireyard.broker.store import Store
from wireyard.endpoints import Tap
from wireyard.endpoints.jmq import (
    Ended,
    Event,
    MapperRequest,
    Message,
    Refused,
    Request,
    ServerEndpoint,
    codes,
)
from wireyard.endpoints.jmq.packets import Login, Stamp, read_login
from wireyard.errors import DecodeError
from wireyard.formats.jmq.sender import MAX_SEQUENCE
from wireyard.formats.message_id import address_bytes
from wireyard.formats.stamps import Stamps
from wireyard.layers.jmq.rules import OK

_HELLO, _AUTHENTICATE, _GOODBYE = 10, 12, 28
_LEVEL: Final = 500
"""The level of the protocol that is spoken; a client of a lower one is served as of this one."""
_VERSION: Final = "6.5.0"
"""The version of Open MQ whose behaviour this is; clients compare it with their own."""
_LOCAL: Final = address_bytes("0.0.0.0")


class JmqCore(Half[Connection]):
    """The broker for JMQ clients; without `check_login` it asks for no password."""

    _UNIDENTIFIED = "have not logged in yet"
    _TOO_LATE = codes.FATAL, "did not log in"
    _TOO_MUCH, _SHUT_DOWN = codes.FATAL, codes.SHUTTING_DOWN
    router: Router
    kept: Persistence | None

    def _set_up(self, store: Store | None) -> None:
        self.kept = None if store is None else Persistence(store)
        self.router = Router(self.settings, self.say, self._at, self.kept)
        self._stamps = Stamps(MAX_SEQUENCE)
        self._requests = Requests(self.router)
        self.name_service(0, has_tls=False)

    def name_service(self, port: int, *, has_tls: bool) -> None:
        """Set what the port mapper answers, and the port in the ids of packets."""
        self._port = port
        service = "ssljms tls" if has_tls else "jms tcp"
        self._services = f"101 wireyard 301\n{service} NORMAL {port}\n.\n"

    def stamp(self) -> Stamp:
        """Return what identifies the next packet of the broker."""
        timestamp, sequence = self._stamps.next(self.router.now_ms)
        return timestamp, _LOCAL, self._port, sequence

    # --- connections ----------------------------------------------------------------------

    def _new_link(self, name: str, tap: Tap | None) -> Connection:
        endpoint = ServerEndpoint(self.stamp, self.settings.endpoint, tap)
        return Connection(endpoint, name, self._requests.next_id())

    def _handle(self, link: Connection, events: Iterable[Event]) -> None:
        for event in events:
            if link not in self.links:
                break
            if isinstance(event, Message):
                self._requests.messages.send(link, event)
            elif isinstance(event, Request):
                self._on_request(link, event)
            elif isinstance(event, Refused):
                self.say(f"{link.shown}: {event.text}")
            elif isinstance(event, MapperRequest):
                link.endpoint.tell(self._services)
                self.end(link, codes.CLIENT_CLOSED, None, by_client=True)
            elif isinstance(event, Ended):
                self._on_ended(link, event)
        self._touch(link)

    def _on_request(self, link: Connection, request: Request) -> None:
        if link.is_mapper_only:
            self.end(link, codes.FATAL, "connects without TLS, to the port of the port mapper")
        elif request.packet_type == _HELLO:
            self._on_hello(link, request)
        elif request.packet_type == _AUTHENTICATE:
            self._on_login(link, request)
        elif request.packet_type == _GOODBYE:
            if request.wants_reply:
                link.endpoint.reply(_GOODBYE, request.id, OK)
            self.end(link, codes.CLIENT_CLOSED, "disconnected", by_client=True)
        else:
            self._requests.answer(link, request)

    def resume(self, link: Connection) -> None:
        """Send on to a client that has read what was sent."""
        self.router.feed_all(link)
        self.router.dirty.add(link)

    def _on_ended(self, link: Connection, ended: Ended) -> None:
        self._drop(link)
        if ended.text is not None:
            self.say(f"{link.shown}: {ended.text}")
        self._requests.leave(link)

    def restore(self) -> None:
        """Continue with what the store has: connections were lost when the process ended."""
        if self.kept is not None:
            self.kept.restore(self.router, self._requests.transactions)

    # --- login ----------------------------------------------------------------------------

    def _on_hello(self, link: Connection, request: Request) -> None:
        level = request.get("JMQProtocolLevel", int, 100)
        endpoint = link.endpoint
        if level > _LEVEL:
            text = f"level {level} of the protocol is not spoken, {_LEVEL} is"
            endpoint.reply(
                _HELLO, request.id, codes.BAD_VERSION, text, {"JMQProtocolLevel": _LEVEL}
            )
            return
        most = self.settings.endpoint.max_packet_bytes
        properties = {
            "JMQProtocolLevel": _LEVEL,
            "JMQVersion": _VERSION,
            "JMQConnectionID": link.id,
            "JMQService": "jms",
            "JMQHA": False,
            "JMQSize": self.settings.jmq.connection_credit,
            "JMQBytes": -1,
            "JMQMaxMsgBytes": most,
        }
        endpoint.reply(_HELLO, request.id, OK, None, properties)
        link.buffer_size = request.get("JMQRBufferSize", int, 0)
        link.flow.resume(link.buffer_size)
        # The file of users has hashes, from which no digest can be made: the password is needed.
        # Without users none is, and the digest keeps it off the network.
        kind = "digest" if self._check_login is None else "basic"
        nonce = token_hex(16).encode() if kind == "digest" else b""
        endpoint.challenge(request.id, kind, nonce)

    def _on_login(self, link: Connection, request: Request) -> None:
        try:
            login = read_login(request)
        except DecodeError as error:
            self._refuse_login(link, request, "", str(error))
            return
        if not login.user.isprintable() or len(login.user) > self.settings.jmq.max_name:
            self._refuse_login(link, request, "", "logs in by a user name that is none")
            return

        def done(is_right: bool) -> None:
            if link not in self.links:
                return
            if is_right:
                self._admit(link, request, login)
            else:
                text = f"user name '{login.user}' or its password is not known"
                self._refuse_login(link, request, login.user, text)

        if self._check_login is None:
            done(True)
        elif login.password is None:
            done(False)
        else:
            self._check_login(login.user, login.password, done)

    def _admit(self, link: Connection, request: Request, login: Login) -> None:
        link.user = login.user
        self.unidentified.discard(link)
        link.endpoint.reply(_AUTHENTICATE, request.id, OK)
        self.say(f"{link.shown}: connected, JMQ, user {login.user}")
        self._handle(link, link.endpoint.read_on())

    def _refuse_login(self, link: Connection, request: Request, user: str, text: str) -> None:
        link.endpoint.reply(_AUTHENTICATE, request.id, codes.BAD_LOGIN, f"Forbidden {user}")
        self.end(link, codes.FATAL, text)
