"""The broker's side of a connection of a JMQ client.

Requests are events that the caller answers with `reply`; PING is answered here. From AUTHENTICATE
to its answer nothing is read. The state of the connection is that of the table `SESSION`, which
judges captures too.

Rules of this file:

1. What a client may not send yet is refused with a status, and the connection stays; a second login
   ends it.
2. A packet that is too large is skipped and refused, because the client waits for the reply.
3. A packet that cannot be read ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from wireyard.endpoints.jmq.codes import ERROR, FATAL, TOO_LARGE
from wireyard.endpoints.jmq.packets import (
    Items,
    Message,
    Request,
    addressed_reply,
    read_packet,
)
from wireyard.endpoints.packets import Limits, Tap
from wireyard.errors import DecodeError, LimitExceeded
from wireyard.formats.base import Row
from wireyard.formats.jmq.framing import frame_size
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    MAGIC_BYTES,
    SECRET_BODIES,
)
from wireyard.formats.jmq.router import RouterView
from wireyard.formats.jmq.secrets import login_user
from wireyard.formats.jmq_names import PACKET_TYPES
from wireyard.layers.jmq.rules import ALWAYS, BY_SIDE, BY_STATUS, OK, PINGS, RULES
from wireyard.layers.jmq.states import LOGGING_IN, SESSION

__all__ = ["Ended", "Event", "MapperRequest", "Refused", "ServerEndpoint"]

_AUTHENTICATE: Final = 12
_GOODBYE: Final = 28
_CHALLENGE: Final = 38
_MAX_LINE_BYTES: Final = 128
_MAX_TEXT: Final = 1000
"""Characters of a reason, which may quote what a client sent."""
_CLIENT, _BROKER = 0, 1
_HEADER = HEADERS[301]
_TYPE_AT: Final = _HEADER["packet_type"].offset


class Ended(NamedTuple):
    """The connection is over: after `take` it is to be closed."""

    text: str | None
    """Why; None where that goes without saying."""
    code: int = 0
    by_client: bool = False


class MapperRequest(NamedTuple):
    """The client wants to know the ports of the broker: it is to be answered by `tell`."""


class Refused(NamedTuple):
    """A packet was refused, and the connection goes on."""

    text: str


Event = Message | Request | MapperRequest | Refused | Ended


class ServerEndpoint:
    """The broker's side of one connection.

    Parameters
    ----------
    limits
        What this side accepts.
    stamp
        Returns timestamp, address, port and sequence for a packet of the broker.
    tap
        Is called with all that passes, without secrets.

    Limits
    ------
    Holds one unfinished packet of at most `Limits.max_packet_bytes`, and what one call reads.
    """

    def __init__(
        self,
        limits: Limits,
        stamp: Callable[[], tuple[int, bytes, int, int]],
        tap: Tap | None = None,
    ) -> None:
        self.limits = limits
        self.state = "new"
        """The state in the table `SESSION`."""
        self.ended: Ended | None = None
        self.unsent_bytes = 0
        self._stamp, self._tap = stamp, tap
        self._known: Items = {}
        self._buffer = bytearray()
        self._needed = 0
        self._to_skip = 0
        self._is_paused = False
        self._out: list[bytes | memoryview] = []
        self._masked: dict[int, bytes] = {}
        """Packets in `_out` that have a secret, without it, by their place."""

    @property
    def is_logged_in(self) -> bool:
        """Whether a login was accepted."""
        return self.state not in LOGGING_IN and self.state not in ("new", "refused")

    @property
    def held_bytes(self) -> int:
        """Bytes that are not read yet."""
        return len(self._buffer)

    # --- bytes in -------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Read the next bytes of the client; return what happened, in order."""
        if self._buffer or self._is_paused:
            self._buffer += data
            if self._is_paused or len(self._buffer) < self._needed:
                return []
            return self.read_on()
        return self._read(data)

    def read_on(self) -> list[Event]:
        """Read what arrived since reading paused; return what happened, in order."""
        self._is_paused = False
        data = bytes(self._buffer)
        self._buffer.clear()
        return self._read(data)

    def _read(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        secret: list[tuple[int, int]] = []
        at, stop = min(self._to_skip, len(data)), len(data)
        self._to_skip -= at
        if self.state == "new" and data[:1] != MAGIC_BYTES[:1]:
            return self._read_mapper_request(data)
        while at < stop and self.ended is None and not self._is_paused:
            try:
                size = frame_size(data, at, stop, self._most())
                self._needed = size or 0
                if size is None or at + size > stop:
                    break
                if data[at + _TYPE_AT + 1] in SECRET_BODIES:
                    secret.append((at, at + size))
                self._take_packet(read_packet(data[at : at + size], self._known), events)
            except LimitExceeded as error:
                size = self._skip(data, at, error, events)
                if not size:
                    break
            except DecodeError as error:
                self._end_by(str(error), events)
                break
            at += size
        if at < stop and self.ended is None:
            self._buffer += data[at:] if at else data
        if self._tap is not None and (at or self.ended is not None):
            shown = data if self.ended is not None else data[:at]
            self._tap(True, _without_secrets(shown, secret))
        return events

    def _read_mapper_request(self, data: bytes) -> list[Event]:
        """Read the one line of a client of the port mapper, which has the same port."""
        if b"\n" not in data and len(data) < _MAX_LINE_BYTES:
            self._buffer += data
            return []
        if self._tap is not None:
            self._tap(True, data)
        return [MapperRequest()]

    def _most(self) -> int:
        if self.is_logged_in:
            return self.limits.max_packet_bytes
        return min(self.limits.max_packet_bytes, self.limits.max_connect_bytes)

    def _skip(self, data: bytes, at: int, error: LimitExceeded, events: list[Event]) -> int:
        """Refuse a packet that is too large; return the bytes of it that there are."""
        left = len(data) - at
        if not self.is_logged_in:
            self._end_by(str(error), events)
            return 0
        if left < HEADER_BYTES:
            self._needed = HEADER_BYTES
            return 0
        header: Row = _HEADER.unpack(data[at : at + HEADER_BYTES])
        if header["bit_flags"] & FLAGS["A"]:
            self.reply(header["packet_type"], header["consumer_id"], TOO_LARGE, str(error))
        skipped = min(left, header["size"])
        self._to_skip = header["size"] - skipped
        events.append(Refused(str(error)))
        return int(skipped)

    def _take_packet(self, packet: Message | Request, events: list[Event]) -> None:
        kind = packet.packet_type
        if kind in PINGS:
            if isinstance(packet, Request) and packet.wants_reply:
                self.reply(kind, packet.id, OK)
            return
        event = ALWAYS.get(kind) or BY_SIDE.get(kind, ("client_packet",))[_CLIENT]
        cell = SESSION.get((self.state, event)) or SESSION.lookup(self.state, event)
        if cell.rule is None:
            self.state = cell.state
            self._is_paused = kind == _AUTHENTICATE
            events.append(packet)
            return
        text = f"{PACKET_TYPES.get(kind, f'type {kind}')}: {RULES[cell.rule]}"
        wants_reply = (
            packet.flags & FLAGS["A"] if isinstance(packet, Message) else (packet.wants_reply)
        )
        if wants_reply:
            self.reply(kind, packet.id, ERROR, text)
        if cell.rule == "before_login":
            events.append(Refused(text))
        else:
            self._end_by(text, events)

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
        self._send(52, 0, properties)

    def _send(
        self, kind: int, id: int, values: Mapping[str, Any], body: bytes = b"", status: int = OK
    ) -> None:
        event = ALWAYS.get(kind) or BY_SIDE.get(kind, (None, None))[_BROKER]
        if kind in BY_STATUS:
            event = BY_STATUS[kind][status != OK]
        if event is not None:
            self.state = SESSION.lookup(self.state, event).state
        data = addressed_reply(kind, id, self._stamp(), values, body)
        if self._tap is not None and kind in SECRET_BODIES:
            self._masked[len(self._out)] = _without_secrets(data, [(0, len(data))])
        self._out.append(data)
        self.unsent_bytes += len(data)

    def deliver(self, message: Message, consumer_id: int, flags: int, count: int) -> None:
        """Send a message to a consumer: only its id, flags and the delivery count are new."""
        parts = message.parts_for(consumer_id, flags, count)
        self._out += parts
        self.unsent_bytes += len(parts[0]) + len(parts[1])

    def show(self, message: Message, browser_id: int, is_last: bool) -> None:
        """Send a copy of a message to a browser, without a delivery count."""
        view = RouterView(message.packet).replace(
            consumer_id=browser_id, last=is_last, redelivered=False, connection_paused=False,
            consumer_paused=False,
        )  # fmt: skip
        self._out.extend(view.parts())
        self.unsent_bytes += len(message.packet)

    def tell(self, text: str) -> None:
        """Send text: the answer of the port mapper."""
        self._out.append(text.encode())
        self.unsent_bytes += len(text)

    def take(self) -> bytes:
        """Return the bytes to send, and forget them."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        if self._tap is not None:
            shown = (self._masked.get(place, part) for place, part in enumerate(self._out))
            self._tap(False, b"".join(shown))
            self._masked.clear()
        self._out = []
        self.unsent_bytes = 0
        return data

    # --- ends -----------------------------------------------------------------------------

    def end(self, text: str | None, code: int = FATAL, *, by_client: bool = False) -> Ended | None:
        """End the connection, with a GOODBYE unless the client did; None if it is over already."""
        if self.ended is not None:
            return None
        self.ended = Ended(text, code, by_client)
        if not by_client and self.state != "new":
            reason = {"JMQExit": False, "JMQGoodbyeReason": code}
            self._send(_GOODBYE, 0, reason | {"JMQGoodbyeReasonString": (text or "")[:_MAX_TEXT]})
        return self.ended

    def _end_by(self, text: str, events: list[Event]) -> None:
        ended = self.end(text)
        if ended is not None:
            events.append(ended)


def _without_secrets(data: bytes, packets: list[tuple[int, int]]) -> bytes:
    """Return bytes in which the secrets of some packets are replaced by as many asterisks.

    Of a login the user stays. Of a packet that is no whole login all but its header is replaced.
    """
    if not packets:
        return data
    shown = bytearray(data)
    for start, stop in packets:
        offset, size = _HEADER["property_offset"].offset, _HEADER["property_size"].offset
        behind = sum(
            int.from_bytes(data[start + at : start + at + 4], "big") for at in (offset, size)
        )
        first = start + max(behind, HEADER_BYTES)
        row = {"packet_type": data[start + _TYPE_AT + 1], "body": data[first:stop]}
        if row["packet_type"] == _AUTHENTICATE:
            if login_user(row) is None:
                first = start + HEADER_BYTES
            else:
                first += 4 + int.from_bytes(data[first : first + 2], "big")
        first = min(first, stop)
        shown[first:stop] = b"*" * (stop - first)
    return bytes(shown)
