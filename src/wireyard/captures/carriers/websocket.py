"""HTTP at the beginning of a connection, and the streams inside WebSocket (RFC 6455).

Frames are unmasked, fragments of messages joined, control frames removed, and messages inflated if
both sides agreed on permessage-deflate (RFC 7692).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from wireyard.captures.carriers.inner import Budget, Carrier, Outer, Unreadable
from wireyard.captures.connections.stream import Stream
from wireyard.captures.signatures import HTTP_START, is_websocket
from wireyard.streams.urls import shown_target

MAX_HEAD_BYTES: Final = 1 << 16
"""Largest head of a request or response; servers accept 8 to 16 KiB."""
_MAX_MESSAGE_BYTES: Final = (1 << 28) + 4
"""Largest inflated message: as large as an MQTT packet, which is mostly a message of its own."""

_MAX_BEFORE_BYTES: Final = 1 << 20
"""First bytes of a connection that are searched for the change to WebSocket."""
_MOST_DIGITS: Final = 10
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,7})[^\r\n]{0,256}\r\n")
"""The head of a chunk (RFC 9112, 7.1)."""
_TUNNEL: Final = re.compile(r"[^?]*\?Type=(?:connect|push|pull)(?:&.*)?")
"""Request targets of Open MQ's HTTP tunnel."""
_MOST_HEAD_BYTES: Final = 14
"""Largest head of a frame."""
_CONTINUATION, _TEXT, _BINARY, _CLOSE = 0, 1, 2, 8
_CONTROLS: Final = range(8, 16)
_MAX_CONTROL_BYTES: Final = 125
_END_OF_MESSAGE: Final = b"\0\0\xff\xff"
"""The end of a compressed message, which senders omit (RFC 7692, 7.2.1)."""
_WINDOW_BYTES: Final = 1 << 15


class OpenedHttp(NamedTuple):
    """A connection that begins with HTTP."""

    carrier: Carrier
    streams: list[Stream] | None
    """The streams inside a WebSocket, in the order of the outer ones; None if it is none."""


class _Head(NamedTuple):
    """The start line and header fields of a request or a response."""

    line: list[str]
    """The words of the start line."""
    fields: dict[str, str]
    """Values by field name in lower case; those of the same name are joined with commas."""
    size: int
    """Bytes of the head, including the empty line."""


def open_http(streams: Sequence[Stream], budget: Budget) -> OpenedHttp:
    """Read a connection that begins with HTTP, and the streams inside if it is a WebSocket.

    `streams` are its directions, one or both.
    """
    walked = [[*_heads(stream.head(_MAX_BEFORE_BYTES).tobytes())] for stream in streams]
    asks = [bool(heads) and not _is_response(heads[0]) for heads in walked]
    requests = [
        head for heads, is_client in zip(walked, asks, strict=True) if is_client for head in heads
    ]
    responses = [head for heads in walked for head in heads if _is_response(head)]
    request, response = _upgrade(requests, responses)
    if not _is_websocket(request, response):
        is_version_2 = any(stream.head(3).tobytes() == b"PRI" for stream in streams)
        return OpenedHttp(_http(request, response, is_version_2), None)
    # Without the response, the client's offer is assumed to have been accepted.
    agreed = _deflate(response or request)
    walks = []
    for stream, heads, is_client in zip(streams, walked, asks, strict=True):
        head = (request if is_client else response) if heads else None
        is_client = is_client or not (heads or any(asks))
        side = "client" if is_client else "server"
        resets = f"{side}_no_context_takeover" in agreed if agreed is not None else None
        walks.append(_Walk(stream, head.size if head else None, is_client, resets, budget))
    carrier = Carrier(
        "websocket",
        server_name=request.fields.get("host") if request else None,
        protocol=_protocol(request, response),
        target=_request_text(request),
    )
    return _opened(carrier, walks)


def open_frames(streams: Sequence[Stream], heads: Sequence[bytes], budget: Budget) -> OpenedHttp:
    """Read a WebSocket whose handshake was not captured; `heads` are its `first_bytes`."""
    walks = [
        _Walk(stream, 0, head[1:2] >= b"\x80", None, budget)
        for stream, head in zip(streams, heads, strict=True)
    ]
    return _opened(Carrier("websocket"), walks)


def _opened(carrier: Carrier, walks: Sequence[_Walk]) -> OpenedHttp:
    problems = [f"{walk.stream.name}: {walk.problem}" for walk in walks if walk.problem]
    inside = [walk.inner_stream() for walk in walks]
    return OpenedHttp(replace(carrier, problem="; ".join(problems) or None), inside)


# --- heads ----------------------------------------------------------------------------------


def _heads(data: bytes) -> Iterator[_Head]:
    """Yield the heads at the beginning of `data`, up to the one that changes the protocol.

    HTTP 1.1 keeps connections: WebSocket may be what a later request asks for, after a page or
    after 401. The size of a head is where it ends in `data`.
    """
    at: int | None = 0
    while at is not None and (start := HTTP_START.match(data, at)) is not None:
        stop = data.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES)
        if stop < 0 or start[0].startswith(b"PRI"):
            return
        line, *lines = data[at:stop].decode("latin-1").split("\r\n")
        fields: dict[str, str] = {}
        for name, colon, value in (each.partition(":") for each in lines):
            if colon:
                key = name.strip().lower()
                fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
        head = _Head(line.split(" "), fields, stop + 4)
        yield head
        if _is_response(head) and head.line[1] == "101":
            return
        at = _behind_body(data, head)
        if _is_response(head) and (at is None or HTTP_START.match(data, at) is None):
            at = head.size  # to HEAD, which has the size of a body and none


def _behind_body(data: bytes, head: _Head) -> int | None:
    """Return where the body of a request or response ends; None if its end is not known."""
    at = head.size
    if "chunked" in head.fields.get("transfer-encoding", "").lower():
        while (chunk := _CHUNK.match(data, at)) is not None:
            size = int(chunk[1], 16)
            at = chunk.end() + size + 2
            if size == 0:
                return at
        return None
    if _is_response(head) and (head.line[1][:1] == "1" or head.line[1] in ("204", "304")):
        return at
    length = head.fields.get("content-length", "0")
    return at + int(length) if length.isdecimal() and len(length) < _MOST_DIGITS else None


def _upgrade(
    requests: Sequence[_Head], responses: Sequence[_Head]
) -> tuple[_Head | None, _Head | None]:
    """Return the request that was answered by a change of the protocol, and this answer.

    If there is no answer, the last request; if there is no change, the first of both.
    """
    final = [head for head in responses if head.line[1] == "101" or head.line[1][:1] != "1"]
    if final and final[-1].line[1] == "101":
        at = len(final) - 1
        return (requests[at] if at < len(requests) else None), final[-1]
    if not final and requests:
        return requests[-1], None
    return next(iter(requests), None), next(iter(final), None)


def _is_response(head: _Head) -> bool:
    return head.line[0].startswith("HTTP/")


def _is_websocket(request: _Head | None, response: _Head | None) -> bool:
    if response is not None and response.line[1] != "101":
        return False
    heads = [head for head in (request, response) if head is not None]
    return bool(heads) and all(
        head.fields.get("upgrade", "").lower() == "websocket" for head in heads
    )


def _http(request: _Head | None, response: _Head | None, is_version_2: bool) -> Carrier:
    """Return the carrier of an HTTP connection that is no WebSocket."""
    line = request.line if request else []
    version = response.line[0][5:] if response else line[2][5:] if len(line) > 2 else None
    tunnel = request is not None and _TUNNEL.fullmatch(line[1]) is not None
    return Carrier(
        "openmq-http" if tunnel else "http",
        version="2" if is_version_2 else version,
        server_name=request.fields.get("host") if request else None,
        target=None if is_version_2 else _request_text(request),
        problem=None,
    )


def _request_text(request: _Head | None) -> str | None:
    """Return method and target of a request, without what is secret in the target."""
    return None if request is None else " ".join(map(shown_target, request.line[:2])) or None


def _protocol(request: _Head | None, response: _Head | None) -> str | None:
    """Return the subprotocol that the server chose, or else the client's offers."""
    for head in (response, request):
        if head is not None and (names := head.fields.get("sec-websocket-protocol")):
            return names.replace(", ", ",")
    return None


def _deflate(head: _Head | None) -> set[str] | None:
    """Return the parameters of permessage-deflate; None if it is not used."""
    text = head.fields.get("sec-websocket-extensions", "") if head else ""
    for extension in text.split(","):
        name, *parameters = (part.strip().lower() for part in extension.split(";"))
        if name == "permessage-deflate":
            return {parameter.partition("=")[0].strip() for parameter in parameters}
    return None


# --- frames ---------------------------------------------------------------------------------


class _Frame(NamedTuple):
    start: int
    stop: int
    final: bool
    reserved: int
    """The bits RSV1 to RSV3."""
    opcode: int
    payload: bytes


class _Walk(Outer):
    """One direction of a WebSocket, read frame by frame.

    Its frames begin at `begin`; None if that is not known. Behind a gap, a frame begins where the
    interrupted one ends by its size, or else at a segment from which frames follow each other:
    `is_websocket`. The frames of a client are masked. `resets` shows whether each message is
    compressed independently; None without permessage-deflate.
    """

    def __init__(
        self,
        stream: Stream,
        begin: int | None,
        is_client: bool,
        resets: bool | None,
        budget: Budget,
    ) -> None:
        super().__init__(stream)
        self.problem: str | None = None
        self.at = begin or 0
        self._is_client = is_client
        self._resets = resets
        self._inflater = _Inflater(budget)
        self._opcode: int | None = None
        """Opcode of the message whose fragments are being read; None between messages."""
        self._deflated = False
        self._is_torn = False
        """Whether a message may have begun in bytes that were not captured."""
        self._read(begin)

    def _read(self, begin: int | None) -> None:
        try:
            if begin is None and self.stream.size:
                self.lost_from, self._is_torn = 0, True
                if not self.seek(0):
                    self.resume(None)
            for frame in self._frames():
                self._take(frame)
                self.at = frame.stop
                if frame.opcode == _CLOSE:
                    break
            if self.at < self.stream.size:
                raise Unreadable("is behind the one that closes the connection")
        except Unreadable as error:
            begun = self.at if self.lost_from is None else self.lost_from
            self.problem = f"WebSocket frame at byte {begun} {error}"

    def _frames(self) -> Iterator[_Frame]:
        while self.at < self.stream.size:
            data = self.view(_MOST_HEAD_BYTES)
            size = head = 0
            if len(data) >= 2:
                first, second = data[:2]
                size, masked = second & 0x7F, second >= 0x80
                extended = {126: 2, 127: 8}.get(size, 0)
                head = 2 + extended + 4 * masked
            if not head or len(data) < head:
                self.resume(None)
                continue
            if extended:
                size = int.from_bytes(data[2 : 2 + extended], "big")
            stop = self.at + head + size
            if stop > self.piece[1]:
                self.resume(stop)
                continue
            data = self.view(head + size)
            payload = bytes(data[head : head + size])
            if masked:
                payload = _unmasked(payload, bytes(data[head - 4 : head]))
            yield _Frame(self.at, stop, first >= 0x80, first >> 4 & 7, first & 0x0F, payload)

    def resume(self, stop: int | None) -> int:
        """Go on behind a gap, at the next frame, which need not begin a message."""
        self._is_torn = True
        return super().resume(stop)

    def seek(self, start: int) -> bool:
        """Go to the first segment of the piece from which frames follow each other."""
        offsets, stop = self.stream.runs.offsets, self.piece[1]
        for at in offsets[slice(*offsets.searchsorted([start, stop]))].tolist():
            self.at = at
            reserved = 0x30 if self._resets is not None else 0x70
            if is_websocket(self.view(stop - at), masked=self._is_client, reserved=reserved):
                return True
        return False

    def _take(self, frame: _Frame) -> None:
        opcode = frame.opcode
        if opcode in _CONTROLS:
            if len(frame.payload) > _MAX_CONTROL_BYTES or not frame.final or frame.reserved:
                raise Unreadable(f"is an invalid control frame (opcode {opcode})")
            return
        if self._is_torn:
            self._mend(frame)
        if (opcode == _CONTINUATION) != (self._opcode is not None):
            raise Unreadable(f"is out of order (opcode {opcode})")
        if opcode == _TEXT:
            raise Unreadable("holds text, and packets are binary (MQTT 5.0, 6)")
        if opcode not in (_CONTINUATION, _BINARY):
            raise Unreadable(f"has the reserved opcode {opcode}")
        if opcode != _CONTINUATION:
            self._opcode, self._deflated = opcode, frame.reserved == 4
        if frame.reserved and (
            frame.reserved != 4 or opcode == _CONTINUATION or self._resets is None
        ):
            raise Unreadable("has reserved bits that were not negotiated")
        data = frame.payload
        if self._deflated:
            data = self._inflater.inflate(data, ends=frame.final)
        if data:
            self.add(frame.start, frame.stop, data)
        if frame.final:
            self._opcode = None
            if self._resets:
                self._inflater.reset()

    def _mend(self, frame: _Frame) -> None:
        """Go on with a frame behind a gap, in which messages may have ended and begun."""
        goes_on = frame.opcode == _CONTINUATION
        if (goes_on and self._resets is not None) or (frame.reserved and self._resets is False):
            raise Unreadable("is compressed with bytes that were not captured")
        self._opcode = _BINARY if goes_on else None
        self._is_torn = self._resets is False


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    """Return a payload without its mask (RFC 6455, 5.3)."""
    data = np.frombuffer(payload, np.uint8)
    return (data ^ np.resize(np.frombuffer(mask, np.uint8), len(data))).tobytes()


class _Inflater:
    """Inflates the messages of one direction (RFC 7692, 7.2.2)."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._message_bytes = 0
        self.reset()

    def reset(self) -> None:
        """Clear the window: the next message is compressed independently."""
        self._window = b""
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)

    def inflate(self, data: bytes, *, ends: bool) -> bytes:
        """Inflate a fragment of a message; `ends` marks the last one."""
        data += _END_OF_MESSAGE if ends else b""
        parts = []
        while data:
            limit = min(_MAX_MESSAGE_BYTES - self._message_bytes, self._budget.left)
            try:
                parts.append(self._inflate.decompress(data, limit + 1))
            except zlib.error:
                raise Unreadable("does not inflate") from None
            size = len(parts[-1])
            if size > limit:
                raise Unreadable(f"inflates to over {self._message_bytes + limit} bytes")
            self._message_bytes += size
            self._budget.left -= size
            self._window = (self._window + parts[-1][-_WINDOW_BYTES:])[-_WINDOW_BYTES:]
            data = self._inflate.unconsumed_tail
            if self._inflate.eof:
                # More blocks may follow one that is marked as the last (RFC 7692, 7.2.3.5).
                data = self._inflate.unused_data
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=self._window)
        if ends:
            self._message_bytes = 0
        return b"".join(parts)
