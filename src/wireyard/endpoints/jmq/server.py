"""The broker's side of a connection of a JMQ client.

Requests are events that the caller answers with `reply`. From AUTHENTICATE to its answer nothing is
read.

Rules of this file:

1. What a client may not send yet is refused with a status, and the connection stays; a second login
   ends it.
2. A packet that is too large is skipped and refused, because the client waits for the reply.
3. A packet that cannot be read ends the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from wireyard.endpoints.channel import Ended
from wireyard.endpoints.jmq.codes import ERROR, TOO_LARGE
from wireyard.endpoints.jmq.endpoint import Event, JmqEndpoint, MapperRequest, Refused
from wireyard.endpoints.jmq.packets import Message, Request, addressed_reply
from wireyard.errors import LimitExceeded
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS, HEADER_BYTES, HEADERS, MAGIC_BYTES
from wireyard.formats.jmq.router import RouterView
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.layers.jmq.rules import OK, RULES

_AUTHENTICATE: Final = 12
_GOODBYE: Final = 28
_CHALLENGE: Final = 38
_RESUME_FLOW: Final = 52
_MAX_LINE_BYTES: Final = 128
_MAX_TEXT: Final = 1000
"""Characters of a reason, which may quote what a client sent."""


class ServerEndpoint(JmqEndpoint):
    """The broker's side of one connection."""

    is_client: ClassVar = False

    _to_skip = 0
    _was_early = False
    """Whether it was said that the client sends requests before its login."""

    # --- bytes in -------------------------------------------------------------------------

    def _read(self, data: bytes, now: float) -> list[Event]:
        if self.state == "new" and data[:1] != MAGIC_BYTES[:1]:
            return self._read_mapper_request(data)
        if self._to_skip:
            skipped = min(self._to_skip, len(data))
            self._to_skip -= skipped
            self._leave(data[:skipped], skipped)
            data = data[skipped:]
        return super()._read(data, now)

    def _read_mapper_request(self, data: bytes) -> list[Event]:
        """Read the one line of a client of the port mapper, which has the same port."""
        if b"\n" not in data and len(data) < _MAX_LINE_BYTES:
            self._buffer += data
            return []
        self._leave(data, len(data))
        return [MapperRequest()]

    def _most(self) -> int:
        most = self.limits.max_packet_bytes
        return most if self.is_logged_in else min(most, self.limits.max_connect_bytes)

    def _skip(self, head: bytes, left: int, error: LimitExceeded, events: list[Event]) -> int:
        if not self.is_logged_in:
            return super()._skip(head, left, error, events)
        if left < HEADER_BYTES:
            self._needed = HEADER_BYTES
            return 0
        header: Row = HEADERS[301].unpack(head)
        if header["bit_flags"] & FLAGS["A"]:
            self.reply(header["packet_type"], header["consumer_id"], TOO_LARGE, str(error))
        skipped = min(left, header["size"])
        self._to_skip = header["size"] - skipped
        events.append(Refused(str(error)))
        return int(skipped)

    def take_packet(self, packet: Message | Request, events: list[Event]) -> None:
        """Act on a packet that may come now."""
        self.is_paused = packet.packet_type == _AUTHENTICATE
        events.append(packet)

    def answer_ping(self, request: Request) -> None:
        """Answer a PING."""
        self.reply(request.packet_type, request.id, OK)

    def break_rule(self, packet: Message | Request, rule: str, events: list[Event]) -> None:
        """Refuse a packet that may not come; before the login the connection stays."""
        kind = packet.packet_type
        text = f"{PACKET_TYPES.get(kind, f'type {kind}')}: {RULES[rule]}"
        if packet.wants_reply:
            self.reply(kind, packet.id, ERROR, text)
        if rule != "before_login":
            self.end_by(text, events)
        elif not self._was_early:
            self._was_early = True
            events.append(Refused(text))

    # --- bytes out ------------------------------------------------------------------------

    def reply(
        self,
        packet_type: int,
        id: int,
        status: int,
        reason: str | None = None,
        properties: Mapping[str, Any] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request of a type.

        Parameters
        ----------
        id
            Its id.
        reason
            Why it is refused.
        properties
            Those of the reply besides JMQStatus.
        """
        values: dict[str, Any] = {"JMQStatus": status}
        if reason is not None:
            values["JMQReason"] = reason[:_MAX_TEXT]
        if properties:
            values.update(properties)
        kind = 9 if packet_type < 9 else packet_type + 1
        self._send(kind, id, values, body, status)

    def challenge(self, id: int, kind: str, nonce: bytes) -> None:
        """Ask for a login, behind the answer to a HELLO."""
        values = {"JMQStatus": OK, "JMQSequence": 1, "JMQChallenge": True, "JMQAuthType": kind}
        self._send(_CHALLENGE, id, values, nonce)

    def resume(self, properties: Mapping[str, Any]) -> None:
        """Let a producer, or the connection, send more messages: RESUME_FLOW."""
        self._send(_RESUME_FLOW, 0, properties)

    def _send(
        self, kind: int, id: int, values: Mapping[str, Any], body: bytes = b"", status: int = OK
    ) -> None:
        self.send_packet(kind, addressed_reply(kind, id, self._stamp(), values, body), status)

    def deliver(self, message: Message, consumer_id: int, flags: int, count: int) -> None:
        """Send a message to a consumer: only its id, flags and the delivery count are new."""
        parts = message.parts_for(consumer_id, flags, count)
        self.out += parts
        self.unsent_bytes += len(parts[0]) + len(parts[1])

    def show(self, message: Message, browser_id: int, is_last: bool) -> None:
        """Send a copy of a message to a browser, without a delivery count."""
        view = RouterView(message.packet).replace(
            consumer_id=browser_id, last=is_last, redelivered=False, connection_paused=False,
            consumer_paused=False,
        )  # fmt: skip
        self.out.extend(view.parts())
        self.unsent_bytes += len(message.packet)

    def tell(self, text: str) -> None:
        """Send text: the answer of the port mapper."""
        self.write(text.encode())

    def end(self, code: int, text: str | None, *, by_client: bool = False) -> Ended | None:
        """End the connection, with a GOODBYE unless the client did; None if it is over already."""
        if self.ended is not None:
            return None
        self.ended = Ended(text, code)
        if not by_client and self.state != "new":
            reason = {"JMQExit": False, "JMQGoodbyeReason": code}
            self._send(_GOODBYE, 0, reason | {"JMQGoodbyeReasonString": (text or "")[:_MAX_TEXT]})
        return self.ended
