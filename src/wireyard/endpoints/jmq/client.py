"""The client's side of a JMQ connection.

Replies are events, each with the tag of its request. The login, which follows from `open`, is made
here. Flow, deliveries and transactions follow the tables of ``wireyard.layers.jmq.states``:
where the broker breaks one, the connection ends with the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Final, NamedTuple

from wireyard.endpoints.channel import Ended, Limits, Tap
from wireyard.endpoints.jmq.codes import CLIENT_CLOSED
from wireyard.endpoints.jmq.endpoint import Answered, Event, Flow, JmqEndpoint
from wireyard.endpoints.jmq.packets import BLOCK, Message, Request, Stamp, login_body, with_types
from wireyard.errors import UsageError
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import Packet, encode
from wireyard.formats.jmq_names import PACKET_CODES
from wireyard.layers.jmq.rules import OK, REPLIES, RULES
from wireyard.layers.jmq.states import DELIVERY, TRANSACTION

_LEVEL: Final = 500
_HELLO_REPLY, _LOGIN_REPLY, _GOODBYE, _CHALLENGE, _RESUME_FLOW = 11, 13, 28, 38, 52

Key = tuple[int, bytes]
"""A consumer id and a SysMessageID."""


class _Asked(NamedTuple):
    """A request without a reply: what it is about."""

    kind: str
    tag: Any = None
    transaction_id: int | None = None
    keys: tuple[Key, ...] = ()
    consumer_id: int = 0


_ENDS: Final = {
    "COMMIT_TRANSACTION": ("commit", "deny_commit"),
    "ROLLBACK_TRANSACTION": ("roll_back", "roll_back"),
}
"""What a reply to the end of a transaction is, accepted or not."""
_SETTLES: Final = {"COMMIT_TRANSACTION": "committed", "ROLLBACK_TRANSACTION": "rolled_back"}


class ClientEndpoint(JmqEndpoint):
    """The client's side of one connection."""

    is_client: ClassVar = True
    keep_alive = 0

    def __init__(
        self, stamp: Callable[[], Stamp], limits: Limits | None = None, tap: Tap | None = None
    ) -> None:
        super().__init__(stamp, limits, tap)
        self._login: tuple[str, str] = ("", "")
        self._ids = count(1)
        self._asked: dict[int, _Asked] = {}
        self.flow = Flow()
        """The flow of messages that are sent, and by producer:"""
        self.producers: dict[int, Flow] = {}
        self.consumers: dict[int, Flow] = {}
        """The flow of messages to each consumer."""
        self.held: dict[Key, str] = {}
        """States in `DELIVERY` of the messages that are not acknowledged."""
        self.transactions: dict[int, str] = {}
        """States in `TRANSACTION`, and the messages acknowledged in each:"""
        self._joined: dict[int, list[Key]] = {}

    # --- packets out ----------------------------------------------------------------------

    def open(self, user: str, password: str) -> None:
        """Send HELLO; the login follows."""
        self._login = user, password
        self.ask("HELLO", {"JMQProtocolLevel": _LEVEL, "JMQVersion": "6.5.0", "JMQRBufferSize": 0})

    def _packet(
        self, kind: str, properties: Mapping[str, Any] | None, flags: int, **fields: Any
    ) -> bytes:
        timestamp, address, port, sequence = self._stamp()
        return encode(
            Packet(
                packet_type=kind, bit_flags=flags, properties=with_types(properties or {}) or None,
                timestamp=timestamp, source_ip=address, source_port=port, sequence=sequence,
                **fields,
            )
        )  # fmt: skip

    def ask(
        self,
        kind: str,
        properties: Mapping[str, Any] | None = None,
        body: bytes = b"",
        transaction_id: int | None = None,
        tag: Any = None,
    ) -> int:
        """Send a request, whose reply has the tag; return the id of the reply."""
        number, values = next(self._ids), properties or {}
        about = values.get("JMQTransactionID", transaction_id)
        keys = tuple(BLOCK.iter_unpack(body)) if kind == "ACKNOWLEDGE" else ()
        asked = _Asked(kind, tag, about, keys, values.get("JMQConsumerID", 0))
        if kind == "COMMIT_TRANSACTION":
            self._transact(about, "ask_commit")
        for key in keys:
            self._settle(key, "acknowledge_in_transaction" if about else "acknowledge")
        self._asked[number] = asked
        fields = {"consumer_id": number, "transaction_id": transaction_id, "body": body or None}
        self.send_packet(PACKET_CODES[kind], self._packet(kind, properties, FLAGS["A"], **fields))
        return number

    def tell(
        self, kind: str, properties: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> None:
        """Send a request without a reply."""
        self.send_packet(PACKET_CODES[kind], self._packet(kind, properties, 0, body=body or None))

    def room(self, producer_id: int) -> bool:
        """Return whether a producer may send a message."""
        return self.flow.is_open and self.producers[producer_id].is_open

    @property
    def tags(self) -> list[Any]:
        """The tags of the requests and messages without a reply, in their order."""
        return [asked.tag for asked in self._asked.values() if asked.tag is not None]

    def send(self, packet: Packet, producer_id: int, tag: Any = None) -> None:
        """Send a message, for which there is `room`."""
        number, flags = next(self._ids), packet.bit_flags | FLAGS["A"]
        if packet.transaction_id is not None:
            self._transact(packet.transaction_id, "send")
        flags |= FLAGS["C"] if self.producers[producer_id].send() else 0
        flags |= FLAGS["F"] if self.flow.send() else 0
        self._asked[number] = _Asked("SEND", tag, packet.transaction_id)
        changed = replace(packet, bit_flags=flags, consumer_id=number, producer_id=producer_id)
        self.send_packet(packet.packet_type, encode(changed))

    def take_no_more(self, keys: list[Key]) -> None:
        """Acknowledge messages without a reply."""
        for key in keys:
            for event in ("acknowledge", "confirmed"):
                self._settle(key, event)
        self.tell("ACKNOWLEDGE", body=b"".join(BLOCK.pack(*key) for key in keys))

    def resume(self, consumer_id: int, size: int) -> None:
        """Let more messages come to a consumer."""
        self.consumers[consumer_id].resume(size)
        self.tell("RESUME_FLOW", {"JMQConsumerID": consumer_id, "JMQSize": size})

    def _settle(self, key: Key, event: str) -> None:
        """Apply an event to a delivery, which is over when nothing can come of it."""
        state = self.held.get(key)
        cell = None if state is None else DELIVERY.get((state, event))
        if cell is None:
            raise UsageError("the message is not held: it was acknowledged, or will come again")
        self.held[key] = cell.state
        if not DELIVERY.row(cell.state):
            del self.held[key]

    def _transact(self, number: int | None, event: str) -> None:
        """Apply an event to a transaction."""
        cell = TRANSACTION.lookup(self.transactions.get(number or 0, "committed"), event)
        if cell.rule is not None:
            raise UsageError(RULES[cell.rule])
        self.transactions[number or 0] = cell.state
        if not any(one in TRANSACTION.row(cell.state) for one in ("send", "commit", "ask_commit")):
            del self.transactions[number or 0]

    # --- packets in -----------------------------------------------------------------------

    def take_packet(self, packet: Message | Request, events: list[Event]) -> None:
        """Act on a packet that may come now."""
        kind = packet.packet_type
        if isinstance(packet, Message):
            self._take_message(packet, events)
        elif kind == _CHALLENGE:
            self._log_in(packet)
        elif kind == _RESUME_FLOW:
            flow = self.producers.get(packet.get("JMQProducerID", int, 0))
            if "JMQProducerID" not in packet.properties:
                flow = self.flow
            if flow is not None:
                flow.resume(packet.get("JMQSize", int, -1), stops=True)
            events.append(packet)
        elif kind == _GOODBYE:
            text = packet.get("JMQGoodbyeReasonString", str) or "the broker says goodbye"
            self.ended = Ended(text, packet.get("JMQGoodbyeReason", int, 0), packet)
            events.append(self.ended)
        elif kind in REPLIES:
            self._take_reply(packet, events)

    def _log_in(self, request: Request) -> None:
        kind = request.get("JMQAuthType", str, "basic")
        user, password = self._login
        self.ask("AUTHENTICATE", {"JMQAuthType": kind}, login_body(kind, user, password, request))

    def _take_message(self, message: Message, events: list[Event]) -> None:
        key = message.id, message.key
        flow = self.consumers.get(message.id)
        if flow is None:
            self.break_rule(message, "unknown_consumer", events)
        elif key in self.held and not self._comes_back(key):
            self.break_rule(message, "handed_over_twice", events)
        elif not flow.take(is_last=bool(message.flags & FLAGS["C"])):
            self.break_rule(message, "sent_while_paused", events)
        else:
            self.held[key] = DELIVERY.states[0]
            events.append(message)

    def _comes_back(self, key: Key) -> bool:
        """Settle a message that comes again before the reply to the rollback of its transaction."""
        for asked in self._asked.values():
            keys = self._joined.get(asked.transaction_id or 0, [])
            if asked.kind == "ROLLBACK_TRANSACTION" and key in keys:
                keys.remove(key)
                self._settle(key, _SETTLES[asked.kind])
                return True
        return False

    def _take_reply(self, reply: Request, events: list[Event]) -> None:
        asked = self._asked.get(reply.id)
        if asked is None:
            self.break_rule(reply, "reply_without_request", events)
            return
        del self._asked[reply.id]
        status = reply.get("JMQStatus", int, OK)
        is_ok = status == OK
        if reply.packet_type in (_HELLO_REPLY, _LOGIN_REPLY) and not is_ok:
            self.ended = Ended(reply.get("JMQReason", str) or f"status {status}", status, reply)
            events.append(self.ended)
            return
        if reply.packet_type == _HELLO_REPLY:
            self.flow.resume(reply.get("JMQSize", int, -1))
        if asked.kind in _ENDS:
            event = _ENDS[asked.kind][not is_ok]
            self._transact(asked.transaction_id, event)
            if is_ok:
                for key in self._joined.pop(asked.transaction_id or 0, ()):
                    if key in self.held:
                        self._settle(key, _SETTLES[asked.kind])
        for key in asked.keys:
            if key in self.held:
                self._settle(key, "confirmed" if is_ok else "denied")
        if is_ok and asked.keys and asked.transaction_id is not None:
            self._joined.setdefault(asked.transaction_id, []).extend(asked.keys)
        self._add_part(asked, reply, is_ok)
        events.append(Answered(reply, asked.tag))

    def _add_part(self, asked: _Asked, reply: Request, is_ok: bool) -> None:
        """Remember what a reply has made, or has removed."""
        if not is_ok:
            return
        if asked.kind == "ADD_PRODUCER":
            made = self.producers[reply.get("JMQProducerID", int, 0)] = Flow()
            made.resume(reply.get("JMQSize", int, -1), stops=True)
        elif asked.kind == "ADD_CONSUMER":
            self.consumers[reply.get("JMQConsumerID", int, 0)] = Flow()
        elif asked.kind == "START_TRANSACTION":
            number = reply.get("JMQTransactionID", int, 0)
            self.transactions[number] = TRANSACTION["unseen", "start"].state
        elif asked.kind == "DELETE_CONSUMER":
            self.consumers.pop(asked.consumer_id, None)
            for key in [key for key in self.held if key[0] == asked.consumer_id]:
                del self.held[key]

    # --- ends -----------------------------------------------------------------------------

    def end(self, code: int, text: str | None, *, by_client: bool = False) -> Ended | None:
        """End the connection; None if it is over already."""
        if self.ended is not None:
            return None
        self.ended = Ended(text, code)
        return self.ended

    def disconnect(self) -> None:
        """Send GOODBYE."""
        if self.is_logged_in and self.ended is None:
            self.tell("GOODBYE", {"JMQBlock": False})
        self.end(CLIENT_CLOSED, "disconnected")

    def answer_ping(self, request: Request) -> None:
        """Answer a PING."""
        data = self._packet("PING_REPLY", {"JMQStatus": OK}, 0, consumer_id=request.id)
        self.send_packet(PACKET_CODES["PING_REPLY"], data)
