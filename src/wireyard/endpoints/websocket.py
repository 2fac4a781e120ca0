"""WebSocket below MQTT, for both sides, without sockets: RFC 6455, and section 6 of the standards.

A packet may be in several frames and a frame may have several packets, so the bytes of frames are
passed on as they arrive: nothing but a header and a control frame is ever held.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import Final

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_HEAD_BYTES: Final = 8 << 10
_MAX_CONTROL_BYTES: Final = 125
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_FINAL, _MASKED = 0x80, 0x80
_NORMAL, _PROTOCOL_ERROR, _UNSUPPORTED = 1000, 1002, 1003
_PROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""Subprotocols; clients of 3.1 have their own."""


class WebSocket:
    """One side of a WebSocket connection.

    Parameters
    ----------
    request
        The client's side: host and path to ask for.
    allows
        The broker's side: whether a page of an origin may connect to a host.
    is_overheard
        Whether the bytes are for another, who judges the handshake and answers.

    Attributes
    ----------
    out
        Bytes to send: handshake, answers to control frames. The caller empties it.
    ended
        Why the connection is over, None as long as it is not.
    has_failed
        Whether the other side broke a rule, or refuses.
    is_open
        Whether the handshake is over, so that frames may be sent.
    """

    def __init__(
        self,
        request: tuple[str, str] | None = None,
        allows: Callable[[str, str], bool] = lambda origin, host: True,
        *,
        is_overheard: bool = False,
    ) -> None:
        self.out = bytearray()
        self.ended: str | None = None
        self.has_failed = self.is_open = False
        self._is_client = request is not None
        self._allows, self._is_overheard = allows, is_overheard
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the current frame that have not arrived."""
        self._mask = b""
        self._in_message = False
        """Whether a message continues in another frame."""
        if request is not None:
            self._key = b64encode(os.urandom(16))
            host, path = request
            self.out += (
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                f"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: {self._key.decode()}\r\n\r\n"
            ).encode()

    # --- bytes in -------------------------------------------------------------------------

    def receive(self, data: bytes) -> bytes:
        """Read what arrived; return the bytes of MQTT in it."""
        self._buffer += data
        if not self.is_open and not self._read_head():
            return b""
        payload = []
        while self.ended is None and (self._left or self._read_header()):
            part = bytes(self._buffer[: self._left])
            if not part and self._left:
                break
            del self._buffer[: len(part)]
            self._left -= len(part)
            payload.append(self._unmasked(part))
        return b"".join(payload)

    def _read_header(self) -> bool:
        """Read the header of a data frame, and control frames before it; False if none is whole."""
        buffer = self._buffer
        while len(buffer) >= 2 and self.ended is None:
            kind, size = buffer[0] & 15, buffer[1] & 127
            is_masked = bool(buffer[1] & _MASKED)
            if buffer[0] & 0x70 or is_masked == self._is_client:
                self._fail(_PROTOCOL_ERROR, "sends a WebSocket frame that may not be")
                return False
            extended = {126: 2, 127: 8}.get(size, 0)
            start = 2 + extended + 4 * is_masked
            if len(buffer) < start:
                return False
            if extended:
                size = int.from_bytes(buffer[2 : 2 + extended], "big")
            self._mask = bytes(buffer[start - 4 : start]) if is_masked else b""
            is_final = bool(buffer[0] & _FINAL)
            if kind >= _CLOSE:
                if size > _MAX_CONTROL_BYTES or not is_final:
                    self._fail(_PROTOCOL_ERROR, "sends a WebSocket control frame that may not be")
                    return False
                if len(buffer) < start + size:
                    return False
                body = self._unmasked(bytes(buffer[start : start + size]))
                del buffer[: start + size]
                self._take_control(kind, body)
                continue
            if kind != (_CONTINUATION if self._in_message else _BINARY):
                self._fail(_UNSUPPORTED, "sends WebSocket data that is not binary [MQTT-6.0.0-1]")
                return False
            self._in_message = not is_final
            del buffer[:start]
            if size:
                self._left = size
                return True
        return False

    def _take_control(self, kind: int, body: bytes) -> None:
        if kind == _PING:
            self.out += self._frame(_PONG, body)
        elif kind == _CLOSE:
            self.out += self._frame(_CLOSE, body[:2])
            self.ended = "closes the WebSocket"
        elif kind != _PONG:
            self._fail(_PROTOCOL_ERROR, "sends a WebSocket frame that may not be")

    def _unmasked(self, data: bytes) -> bytes:
        """Remove the mask of bytes that follow each other, which may be part of a frame."""
        if not self._mask:
            return data
        plain = _xor(data, self._mask)
        at = len(data) % 4
        self._mask = self._mask[at:] + self._mask[:at]
        return plain

    # --- bytes out ------------------------------------------------------------------------

    def frame(self, data: bytes) -> bytes:
        """Return bytes of MQTT as a frame."""
        return self._frame(_BINARY, data)

    def close(self) -> bytes:
        """Return the frame that ends the connection; nothing if it is over already."""
        if self.ended is not None or not self.is_open:
            return b""
        self.ended = "closed"
        return self._frame(_CLOSE, _NORMAL.to_bytes(2, "big"))

    def _fail(self, code: int, text: str) -> None:
        if self.ended is None:
            self.out += self._frame(_CLOSE, code.to_bytes(2, "big"))
            self.ended, self.has_failed = text, True

    def _frame(self, kind: int, data: bytes) -> bytes:
        size, first = len(data), bytes((_FINAL | kind,))
        masked = _MASKED if self._is_client else 0
        if size < 126:
            head = first + bytes((masked | size,))
        elif size < 1 << 16:
            head = first + bytes((masked | 126,)) + size.to_bytes(2, "big")
        else:
            head = first + bytes((masked | 127,)) + size.to_bytes(8, "big")
        if not masked:
            return head + data
        mask = os.urandom(4)
        return head + mask + _xor(data, mask)

    # --- the handshake --------------------------------------------------------------------

    def _read_head(self) -> bool:
        """Read the request or its answer; return False if it is not whole or is refused."""
        stop = self._buffer.find(b"\r\n\r\n")
        if stop < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large", "has no end")
            return False
        head, *lines = bytes(self._buffer[:stop]).decode("latin-1").split("\r\n")
        del self._buffer[: stop + 4]
        fields = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon
        }
        if self._is_overheard:
            pass
        elif self._is_client:
            self._take_answer(head, fields)
        else:
            self._take_request(head, fields)
        self.is_open = self.ended is None
        return self.is_open

    def _take_request(self, head: str, fields: dict[str, str]) -> None:
        key = fields.get("sec-websocket-key", "")
        offered = [one.strip() for one in fields.get("sec-websocket-protocol", "").split(",")]
        protocol = next((one for one in offered if one in _PROTOCOLS), None)
        asks = fields.get("upgrade", "").lower() == "websocket"
        origin, host = fields.get("origin"), fields.get("host", "")
        if not re.fullmatch(r"GET \S+ HTTP/1\.1", head) or not asks or len(key) != 24:
            self._refuse("400 Bad Request", "is none of a WebSocket")
        elif fields.get("sec-websocket-version") != "13":
            self._refuse("426 Upgrade Required\r\nSec-WebSocket-Version: 13", "has no version 13")
        elif protocol is None:
            self._refuse("400 Bad Request", "has not the subprotocol mqtt [MQTT-6.0.0-3]")
        elif origin is not None and not self._allows(origin, host):
            self._refuse("403 Forbidden", f"comes from a page of {origin[:200]}")
        else:
            self.out += (
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Protocol: {protocol}\r\n"
                f"Sec-WebSocket-Accept: {_accept(key.encode('latin-1'))}\r\n\r\n"
            ).encode()

    def _take_answer(self, head: str, fields: dict[str, str]) -> None:
        is_accepted = fields.get("sec-websocket-accept") == _accept(self._key)
        if head.split(" ")[1:2] != ["101"] or not is_accepted:
            self.ended, self.has_failed = f"answers the WebSocket with '{head[:100]}'", True
        elif fields.get("sec-websocket-protocol") != "mqtt":
            self.ended, self.has_failed = "has no subprotocol mqtt", True

    def _refuse(self, status: str, text: str) -> None:
        self.ended, self.has_failed = f"its request {text}", True
        self.out += f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def _accept(key: bytes) -> str:
    return b64encode(sha1(key + _GUID, usedforsecurity=False).digest()).decode()


def _xor(data: bytes, mask: bytes) -> bytes:
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    value = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
    return value.to_bytes(len(data), "big")
