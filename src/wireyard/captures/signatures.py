"""The first bytes of protocols that carry streams: records of TLS, and HTTP.

What opens them is imported where a connection begins so.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["HTTP_START", "MAX_RECORD_BYTES", "RECORD_START", "is_http", "is_tls"]

MAX_RECORD_BYTES: Final = (1 << 14) + 2048
"""The most that a record protected by TLS 1.2 may have, which is over what one of 1.3 may."""
RECORD_START: Final = re.compile(rb"[\x14-\x18]\x03[\0-\x04]")
"""Type and version of a record of TLS."""
HTTP_START: Final = re.compile(
    rb"(?:GET|PUT|POST|HEAD|PATCH|TRACE|DELETE|OPTIONS|CONNECT) [!-~]+ HTTP/1\.[01]\r\n"
    rb"|HTTP/1\.[01] [1-5]\d\d[ \r]"
    rb"|PRI \* HTTP/2\.0\r\n"
)
_HANDSHAKE: Final = re.compile(rb"\x16\x03[\0-\x04](..[\x01\x02]|.{0,2}\Z)", re.S)
"""A record with the first message of a client or a server, or as much of it as there is."""
_HEADER_BYTES: Final = 5
_CHAIN: Final = 3
"""Headers in a row that prove records, where no handshake was captured."""


def is_tls(head: bytes) -> bool:
    """Return whether a stream's first bytes are TLS, even if it was captured from later on.

    A handshake's first record shows by its first bytes. Without that, records are looked for
    that follow each other, from the first byte on or behind the rest of one.
    """
    if _HANDSHAKE.match(head):
        return True
    starts = (found.start() for found in RECORD_START.finditer(head, 0, MAX_RECORD_BYTES))
    return any(_is_chain(head, start) for start in starts)


def _is_chain(head: bytes, at: int) -> bool:
    """Return whether there are records from a place on: several, or nothing else to the end."""
    start = at
    for _ in range(_CHAIN):
        if at == len(head):
            return start == 0
        size = int.from_bytes(head[at + 3 : at + _HEADER_BYTES], "big")
        if not RECORD_START.match(head, at) or not 0 < size <= MAX_RECORD_BYTES:
            return False
        at += _HEADER_BYTES + size
        if at > len(head):
            return False
    return True


def is_http(head: bytes) -> bool:
    """Return whether a stream's first bytes are those of HTTP."""
    return HTTP_START.match(head) is not None
