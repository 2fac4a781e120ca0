"""The packets of one direction of a connection that passes, found in bytes as they arrive.

Rules of this file:

1. The protocol of a connection follows from the first bytes of its client: a CONNECT of MQTT, a
   packet of JMQ, TLS, or a request for WebSocket, inside of which the same holds. Any other is
   opaque.
2. Packets are found by the format's ``frame_size``. Where it raises, the rest of the direction is
   opaque, and so is it behind a login whose size may be wrong.
3. A packet with a login is held until it is whole, up to `MAX_LOGIN_BYTES`; what is opaque, or is
   longer, may have a password anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from wireyard.endpoints.websocket import WebSocket
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.base import Format
from wireyard.formats.marks import masked

MAX_LOGIN_BYTES: Final = 64 << 10
OPAQUE: Final = -1
"""The type of bytes that belong to no packet, or to a login that is not read."""
CLEAR: Final = -2
"""The type of bytes that are not read and have no secret: TLS, and the later parts of packets."""

_TLS: Final = b"\x16\x03"
"""The beginning of a handshake record."""
_GET: Final = b"GET "
FORMATS: Final = ("mqtt", "jmq")
"""Formats whose packets show their type before they are whole."""
_MQTT_LOGINS: Final = frozenset(
    kind << 4 | flags for kind in get_format("mqtt").secrets.types for flags in range(16)
)
"""First bytes of packets that may have a login."""


class Span(NamedTuple):
    """A packet of some bytes, or the part of it that they have: it may go on behind them."""

    packet_type: int
    start: int
    stop: int
    context: int = 0
    """That of a packet with a login."""


class Conversation:
    """The protocol of a connection, which both of its directions have.

    `format` is None until the first packet shows it, and if it is none that is known. `context` is
    that of the packets from now on.
    """

    def __init__(self) -> None:
        self.format: Format | None = None
        self.context = 0
        self.is_decided = self.is_encrypted = self.is_websocket = False

    def decide(self, head: bytes) -> bool:
        """Find the format by the first bytes of the client; return False if more are needed."""
        open_ends = head == _TLS[: len(head)] or head == _GET[: len(head)]
        self.is_encrypted, self.is_websocket = head[:2] == _TLS, head[:4] == _GET
        for name in FORMATS:
            format = get_format(name)
            at, certain = format.framing.find_header(
                head, 0, len(head), format.framing.max_packet_bytes
            )
            if at == 0 and certain and head:
                self.format, self.context = format, format.context
            open_ends |= at == 0 and not certain
        self.is_decided = self.format is not None or not open_ends
        self.is_decided |= self.is_encrypted or self.is_websocket
        return self.is_decided


class PacketReader:
    """One direction of a connection.

    Packets of up to `most_whole` bytes are held until they are whole. If it is 0, several packets
    without a login are one span, for there are so many. At most one unfinished packet is held, of
    at most `most_whole` or `MAX_LOGIN_BYTES`.
    """

    def __init__(self, conversation: Conversation, is_client: bool, most_whole: int = 0) -> None:
        self._conversation, self._is_client = conversation, is_client
        self._most_whole = most_whole
        self._held = b""
        self._needed = 0
        self._left, self._left_type = 0, OPAQUE
        """Bytes that are missing of a packet that was not held, and its type."""
        self._is_lost = False

    def read(self, data: bytes) -> tuple[bytes, Sequence[Span]]:
        """Read the next bytes; return those that are not held any more, and the packets in them."""
        if self._held:
            data = self._held + data
            self._held = b""
            if len(data) < self._needed:
                self._held = data
                return b"", ()
        talk = self._conversation
        if not talk.is_decided and self._is_client and not talk.decide(data):
            self._held = data
            return b"", ()
        if talk.format is None or self._is_lost:
            return data, (Span(CLEAR if talk.is_encrypted else OPAQUE, 0, len(data)),)
        return self._packets(talk.format, data)

    def rest(self) -> tuple[bytes, Sequence[Span]]:
        """Return what is held at the end of the direction."""
        held, self._held = self._held, b""
        talk = self._conversation
        if talk.format is None:
            return held, (Span(OPAQUE, 0, len(held)),)
        head = talk.format.framing.head
        kind = head.type_of(held, 0) if head and len(held) >= head.type_bytes else CLEAR
        return held, (Span(kind, 0, len(held), talk.context),)

    def _packets(self, format: Format, data: bytes) -> tuple[bytes, Sequence[Span]]:
        stop, at = len(data), self._left
        spans = [Span(self._left_type, 0, at)] if at else []
        framing, logins, context = format.framing, format.secrets.types, self._conversation.context
        frame_size, most = framing.frame_size, framing.max_packet_bytes
        assert framing.head is not None, "it is one of `FORMATS`"
        type_of, _, clear_bytes = framing.head
        while at < stop:
            if not self._most_whole and format.name == "mqtt":
                behind = _skip_messages(data, at, stop)
                if behind > at:
                    spans.append(Span(CLEAR, at, behind))
                    at = behind
                    continue
            try:
                size = frame_size(data, at, stop, most, context, False)
            except DecodeError:
                self._is_lost = True
                spans.append(Span(OPAQUE, at, stop))
                at = stop
                break
            if size is None:
                self._needed = 0
                return self._hold(data, at), spans
            kind = type_of(data, at)
            is_login = kind in logins
            if at + size > stop and size <= (MAX_LOGIN_BYTES if is_login else self._most_whole):
                self._needed = size
                return self._hold(data, at), spans
            if is_login and at + size <= stop:
                login = data[at : at + size]
                context = format.contexts.next(login, context)
                self._conversation.context = context
                if not _is_certain(format, login, context):
                    self._is_lost = True
                    spans += Span(kind, at, at + size, context), Span(OPAQUE, at + size, stop)
                    at = stop
                    break
            elif is_login:
                head = min(stop, at + clear_bytes)
                spans.append(Span(CLEAR, at, head))
                size, at, kind = size + at - head, head, OPAQUE
            spans.append(Span(kind, at, at + size, context))
            at += size
        is_opaque = spans[-1].packet_type == OPAQUE
        self._left, self._left_type = at - stop, OPAQUE if is_opaque else CLEAR
        return data, spans

    def _hold(self, data: bytes, at: int) -> bytes:
        self._left = 0
        self._held = data[at:]
        return data[:at]


class WebSocketReader:
    """One direction of a connection of WebSocket, as `PacketReader` of the bytes inside.

    What breaks a rule of WebSocket, or is compressed, is opaque from there on.
    """

    def __init__(self, conversation: Conversation, is_client: bool, most_whole: int = 0) -> None:
        self._packets = PacketReader(conversation, is_client, most_whole)
        self._frames = WebSocket(None if is_client else ("", ""), is_overheard=True)
        """The side that the bytes are for; what it would answer is not sent."""

    def read(self, data: bytes) -> tuple[bytes, Sequence[Span]]:
        """Read the next bytes; return those inside that are not held any more, and the packets."""
        inside = self._frames.receive(data)
        self._frames.out.clear()
        if self._frames.has_failed:
            return data, (Span(OPAQUE, 0, len(data)),)
        return self._packets.read(inside) if inside else (b"", ())

    def rest(self) -> tuple[bytes, Sequence[Span]]:
        """Return what is held at the end of the direction."""
        return self._packets.rest()


def _is_certain(format: Format, login: bytes, context: int) -> bool:
    """Return whether a packet with a login ends where its size says.

    A malformed one is certain to if its texts may be shown: they make up all of its bytes.
    """
    row, error = format.read_row(login, context)
    return error is None or format.secrets.redact(row).get("client_id") is not None


def _skip_messages(data: bytes, at: int, stop: int) -> int:
    """Return where the first packet of MQTT begins that has a login, is not whole, or is large.

    The others have a Remaining Length of up to two bytes.
    """
    while at + 2 < stop and data[at] not in _MQTT_LOGINS:
        size, at_size = data[at + 1], at + 2
        if size > 0x7F:
            size += (data[at_size] << 7) - 0x80
            at_size += 1
            if data[at + 2] > 0x7F:
                break
        if at_size + size > stop:
            break
        at = at_size + size
    return at


def without_secrets(format: Format | None, data: bytes, spans: Sequence[Span]) -> bytes:
    """Return bytes with asterisks for what may be secret in their packets.

    Of packets with a login, what the format hides; of opaque bytes all.
    """
    logins = format.secrets.types if format is not None else ()
    shown: bytearray | None = None
    for kind, start, stop, context in spans:
        if kind == OPAQUE or kind in logins:
            shown = bytearray(data) if shown is None else shown
            if kind == OPAQUE or format is None:
                shown[start:stop] = b"*" * (min(stop, len(data)) - start)
            else:
                shown[start:stop] = masked(format, data[start:stop], context)
    return data if shown is None else bytes(shown)
