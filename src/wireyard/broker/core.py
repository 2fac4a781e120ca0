"""The broker without sockets and clocks: logins, sessions, wills, and the end of connections.

Rules of this file:

1. What a connection has to send is in its endpoint; `take_dirty` has the links to look at, once a
   pass of the caller's loop.
2. What a client sent takes effect in its order, and a message is passed on before it is
   acknowledged.
3. A connection ends in one place, `_on_ended`, which says why in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

from wireyard.broker.half import Half
from wireyard.broker.persistence import Persistence
from wireyard.broker.routing import Router
from wireyard.broker.session import FOR_EVER, Link, Session, Will, expiry_asked
from wireyard.broker.store import Store
from wireyard.endpoints import (
    Burst,
    Completed,
    Ended,
    Event,
    Message,
    Received,
    Released,
    ServerEndpoint,
    Tap,
    codes,
)
from wireyard.endpoints.packets import ERROR
from wireyard.formats.mqtt.control import Auth, Connect, Disconnect, Subscribe, Unsubscribe
from wireyard.formats.mqtt.layout import SPECS
from wireyard.layers.mqtt.connection import WILL
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription

_CONTINUE, _REAUTHENTICATE = 24, 25
_LOGIN_FLAGS = 0xC0  # of Connect Flags
_NO_SUBSCRIPTION: Final = 17
_MOST_QOS: Final = 2


class Core(Half[Link]):
    """The broker for MQTT clients."""

    _UNIDENTIFIED = "have sent no CONNECT yet"
    _TOO_LATE = codes.KEEP_ALIVE_TIMEOUT, "sent no valid CONNECT"
    _TOO_MUCH, _SHUT_DOWN = codes.QUOTA_EXCEEDED, codes.SHUTTING_DOWN
    router: Router
    kept: Persistence | None

    def _set_up(self, store: Store | None) -> None:
        self.kept = None if store is None else Persistence(store)
        self.router = Router(self.settings, self.say, self.kept)
        self._known: dict[bytes, str] = {}
        self._handlers: dict[type, Callable[[Link, Any], None]] = {
            Message: self._on_message,
            Burst: self._on_burst,
            Completed: self._on_acknowledged,
            Received: self._on_acknowledged,
            Released: self._on_acknowledged,
            Connect: self._on_connect,
            Auth: self._on_auth,
            Subscribe: self._on_subscribe,
            Unsubscribe: self._on_unsubscribe,
            Ended: self._on_ended,
        }

    # --- connections ----------------------------------------------------------------------

    def _new_link(self, name: str, tap: Tap | None) -> Link:
        return Link(ServerEndpoint(self.settings.endpoint, self._known, tap), name)

    def _handle(self, link: Link, events: Iterable[Event]) -> None:
        handlers, links, session = self._handlers, self.links, link.session
        for event in events:
            if link in links:
                handlers[type(event)](link, event)
            elif isinstance(event, Completed | Received | Released) and session is not None:
                # What arrived before the end of the connection counts.
                self._acknowledged(session, event)
        if link.session is not None and link.session.queue:
            self.router.pump(link.session)
        self._touch(link)

    def resume(self, link: Link) -> None:
        """Send on to a client that has read what was sent."""
        if link.session is not None:
            self.router.pump(link.session)
            self.router.dirty.add(link)

    def restore(self) -> None:
        """Continue with what the store has: connections were lost when the process ended."""
        connected = self.router.restore()
        for session in list(self.router.sessions.values()):
            will = session.will
            self._expire(session)
            if will is not None:
                self._await_will(session, will)
        for session in connected:
            self._leave(session, None)

    # --- time -----------------------------------------------------------------------------

    def _watch(self, link: Link) -> None:
        """End a connection that has been silent for too long."""
        until = link.endpoint.keep_alive_until
        if until is None or link not in self.links:
            return
        if until <= self.now:
            seconds = 1.5 * link.endpoint.keep_alive
            self.end(link, codes.KEEP_ALIVE_TIMEOUT, f"was silent for over {seconds:g} s")
        else:
            self._at(until, lambda: self._watch(link))

    # --- login ----------------------------------------------------------------------------

    def _on_connect(self, link: Link, packet: Connect) -> None:
        method = dict(packet.properties).get("authentication_method")
        if packet.version_in_force == 3 and (packet.header_flags or 0) & _LOGIN_FLAGS:
            # What seems to be the client id or the user name may be the password (errata M19).
            self.end(link, codes.BAD_LOGIN, "its flags announce a login that is missing")
        elif method is not None:
            self._begin_conversation(link, packet, str(method))
        elif self._check_login is None:
            self._admit(link, packet)
        else:
            self._check_login(
                packet.username,
                packet.password,
                lambda is_known: self._logged_in(link, packet, is_known),
            )

    def _logged_in(self, link: Link, packet: Connect, is_known: bool) -> None:
        if is_known and link in self.links:
            self._admit(link, packet)
        elif link in self.links:
            name = packet.username or ""
            self.end(link, codes.BAD_LOGIN, f"user name '{name}' or its password is not known")

    def _admit(self, link: Link, packet: Connect, method: dict[str, Any] | None = None) -> None:
        """Accept a CONNECT whose login is right, and give it its session."""
        settings, sessions = self.settings, self.router.sessions
        client_id = packet.client_id or f"wireyard-{token_hex(8)}"
        if not self._may_write(packet.username, client_id, packet.will_topic):
            self.end(link, codes.NOT_AUTHORIZED, f"may not publish its will to {packet.will_topic}")
            return
        if client_id not in sessions and len(sessions) >= settings.max_sessions:
            self.end(link, codes.QUOTA_EXCEEDED, f"there are {len(sessions)} sessions")
            return
        old = sessions.get(client_id)
        if old is not None and old.link is not None:
            self.end(old.link, codes.TAKEN_OVER, f"client id is used by {link.name} now")
        if packet.clean_start and client_id in sessions:
            self._discard(sessions[client_id])
        old = sessions.get(client_id)
        session = sessions[client_id] = old or Session(client_id)
        self._advance_will(session, "back")
        self._begin(link, packet, session)
        properties = settings.connack(packet, client_id) | (method or {})
        link.endpoint.keep_alive = properties.get("server_keep_alive", packet.keep_alive)
        now = self.now
        events = link.endpoint.accept(session.flows, old is not None, properties, now)
        self._watch(link)
        self._handle(link, events)

    def _begin(self, link: Link, packet: Connect, session: Session) -> None:
        self.unidentified.discard(link)
        link.session, session.link = session, link
        session.user = packet.username
        session.expiry_s = expiry_asked(packet, self.settings.max_session_expiry_s)
        session.expires_at = None
        if packet.will_topic is not None:
            session.will = Will(packet)
            self._advance_will(session, "connected")
        user = f", user {packet.username}" if packet.username else ""
        self.say(f"{link.shown}: connected, {SPECS[link.endpoint.version]}{user}")
        session.is_durable |= session.expiry_s > 0
        self._put(session)

    def _begin_conversation(self, link: Link, packet: Connect, method: str) -> None:
        begin = self.settings.enhanced.get(method)
        if begin is None:
            self.end(link, codes.BAD_METHOD, f"authentication method '{method}' is not known")
        else:
            link.conversation = begin(packet)
            self._converse(link, packet, method, None)

    def _on_auth(self, link: Link, packet: Auth) -> None:
        connect = link.endpoint.connect
        properties: dict[str, Any] = dict(packet.properties or ())
        assert connect is not None
        method = properties["authentication_method"]
        if packet.return_code == _REAUTHENTICATE and link.session is not None:
            again = replace(connect, properties=packet.properties or ())
            self._begin_conversation(link, again, method)
        elif packet.return_code == _CONTINUE and link.conversation is not None:
            self._converse(link, connect, method, properties.get("authentication_data", b""))
        else:
            self.end(link, codes.PROTOCOL_ERROR, "sends AUTH where there is nothing to answer")

    def _converse(self, link: Link, connect: Connect, method: str, data: bytes | None) -> None:
        """Pass data to an enhanced authentication, and act on what it says."""
        named: dict[str, Any] = {"authentication_method": method}
        assert link.conversation is not None
        try:
            answer = next(link.conversation) if data is None else link.conversation.send(data)
        except StopIteration as result:
            link.conversation = None
            if not result.value:
                self.end(link, codes.NOT_AUTHORIZED, f"is not who it says it is, by '{method}'")
            elif link.session is None:
                self._admit(link, connect, named)
            else:
                self._handle(link, link.endpoint.challenge(0, named, self.now))
            return
        named["authentication_data"] = answer
        self._handle(link, link.endpoint.challenge(_CONTINUE, named, self.now))

    # --- the end of connections and sessions ----------------------------------------------

    def _on_ended(self, link: Link, ended: Ended) -> None:
        self._drop(link)
        reason = f" [{ended.code}]" if ended.code else ""
        self.say(f"{link.shown}: {ended.text}{reason}")
        session, link.session = link.session, None
        if session is not None:
            session.link = None
            self.router.report_dropped(session)
            self._leave(session, ended.packet)

    def _leave(self, session: Session, packet: Disconnect | None) -> None:
        """Decide what becomes of a session whose connection has ended."""
        event = "dropped"
        if packet is not None:
            event = (
                "disconnected_with_will"
                if packet.return_code == codes.WITH_WILL
                else "disconnected"
            )
            asked = dict(packet.properties or ()).get("session_expiry_interval")
            if isinstance(asked, int) and session.expiry_s:
                session.expiry_s = min(asked, self.settings.max_session_expiry_s)
        if not session.expiry_s:
            self.router.forget(session)  # before its will, which is not for itself
        self._advance_will(session, event)
        if not session.expiry_s:
            self._discard(session)
        elif session.expiry_s != FOR_EVER:
            session.expires_at = self.now + session.expiry_s
            self._at(session.expires_at, lambda: self._expire(session))
        if session.expiry_s:
            self._put(session)

    def _put(self, session: Session) -> None:
        if self.kept is not None and self.router.has(session):
            self.kept.put_session(session)

    def _expire(self, session: Session) -> None:
        if session.expires_at is None:
            return
        if session.expires_at <= self.now:
            self.say(f"{session.client_id}: its session has expired")
            self._discard(session)
        else:
            self._at(session.expires_at, lambda: self._expire(session))

    def _discard(self, session: Session) -> None:
        """End a session: its subscriptions, its messages, its will."""
        session.expires_at = None
        self.router.forget(session)
        self._advance_will(session, "session_over")

    def _advance_will(self, session: Session, event: str) -> None:
        """Apply an event to the will of a session; publish it if it is time."""
        will = session.will
        if will is None:
            return
        cell = WILL.lookup(will.state, event)
        is_delayed = cell.state == "delayed" != will.state
        will.state = cell.state
        if cell.state == "none":
            session.will = None
        if cell.effect == "published":
            self.router.publish(will.message(self.now), session)
        if is_delayed:
            will.due = self.now + min(will.delay_s, session.expiry_s)
            self._await_will(session, will)

    def _await_will(self, session: Session, will: Will) -> None:
        if session.will is not will or will.due is None:
            return
        if will.due <= self.now:
            self._advance_will(session, "delay_over")
            self._put(session)
        else:
            self._at(will.due, lambda: self._await_will(session, will))

    # --- packets --------------------------------------------------------------------------

    def _on_subscribe(self, link: Link, packet: Subscribe) -> None:
        session, codes, granted = link.session, [], []
        assert session is not None
        has_options = link.endpoint.version == 5
        number: Any = dict(packet.properties).get("subscription_identifier")
        for filter in packet.filters:
            options = (filter.options or 0) & (0xFF if has_options else 3)
            subscription = Subscription(
                session.client_id, filter.filter or "", options & 3, bool(options & 4),
                bool(options & 8), options >> 4 & 3, number,
            )  # fmt: skip
            code, is_new = self.router.subscribe(session, subscription)
            codes.append(code)
            if code <= _MOST_QOS:
                granted.append((subscription, is_new))
        link.endpoint.suback(packet, codes)
        for subscription, is_new in granted:
            self.router.send_retained(session, subscription, is_new)

    def _on_unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        session = link.session
        assert session is not None
        known = [self.router.unsubscribe(session, one.filter or "") for one in packet.filters]
        link.endpoint.unsuback(packet, [0 if one else _NO_SUBSCRIPTION for one in known])

    def _on_message(self, link: Link, message: Message) -> None:
        session = link.session
        assert session is not None
        if not self._may_write(session.user, session.client_id, message.topic):
            self._refuse(link, message, codes.NOT_AUTHORIZED, f"may not publish to {message.topic}")
            return
        code = self.router.publish(message, session)
        if code >= ERROR and message.qos:
            self._refuse(link, message, code, f"publishes to {message.topic}, which is full")
            return
        if message.qos:
            link.endpoint.acknowledge(message, code)
        is_held = session.is_durable and message.packet_id in session.flows.receiving
        if self.kept is not None and is_held:
            self.kept.hold(session, message.packet_id)

    def _on_burst(self, link: Link, burst: Burst) -> None:
        session = link.session
        assert session is not None
        if self._may_write(session.user, session.client_id, burst.first.topic):
            self.router.publish_burst(burst, session)
        else:
            self._on_message(link, burst.first)

    def _refuse(self, link: Link, message: Message, code: int, text: str) -> None:
        if message.qos and link.endpoint.version == 5:
            self.say(f"{link.shown}: {text} [{code}]")
            link.endpoint.acknowledge(message, code)
        else:
            # Nothing else informs the client that the message is not passed on.
            self.end(link, code, text)

    def _on_acknowledged(self, link: Link, event: Completed | Received | Released) -> None:
        assert link.session is not None
        self._acknowledged(link.session, event)

    def _acknowledged(self, session: Session, event: Completed | Received | Released) -> None:
        kept = self.kept
        if not self.router.has(session):
            pass
        elif isinstance(event, Completed):
            self.router.release(session, event.delivery)
        elif kept is None or not session.is_durable:
            pass
        elif isinstance(event, Received):
            kept.put_delivery(session, event.delivery, True)
        else:
            kept.release(session, event.packet_id)

    def _may_write(self, user: str | None, client_id: str, topic: str | None) -> bool:
        access = self.settings.access
        return access is None or topic is None or access.may_write(user, client_id, topic)
