"""Detection by first bytes: of capture files, and of the carriers of a stream, TLS and HTTP.

The modules that open carriers are only imported when one is detected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

# --- capture files --------------------------------------------------------------------------

MICROSECONDS: Final = 0xA1B2C3D4
"""Magic number of pcap files, in the byte order of the file: times in microseconds."""
NANOSECONDS: Final = 0xA1B23C4D
PATCHED: Final = 0xA1B2CD34
"""The format of Kuznetzov's patches to libpcap."""
PCAPNG: Final = b"\n\r\r\n"
"""The type of a section header block, the same in both byte orders."""

_PCAP: Final = frozenset(
    magic.to_bytes(4, order)
    for magic in (MICROSECONDS, NANOSECONDS, PATCHED)
    for order in ("little", "big")
)


SLICE_COMMENT: Final = b"a slice, made by wireyard"
"""The comment on a section of a pcapng file that has only some packets of a capture."""
SLICE_MARK: Final = b"WYSL"
"""The same in a field of a pcap file's header that readers ignore, `SLICE_MARK_AT`."""
SLICE_MARK_AT: Final = 12
STATED_BYTES: Final = 1 << 10
"""First bytes of a capture file that are read for what it states (`STATED`)."""


def is_slice(head: bytes) -> bool:
    """Return whether a capture file says that it has only some packets of a capture."""
    if head[:4] == PCAPNG:
        return SLICE_COMMENT in head[:STATED_BYTES]
    return head[:4] in _PCAP and head[SLICE_MARK_AT:].startswith(SLICE_MARK)


STATED: Final = MappingProxyType({"sliced": is_slice})
"""The columns of the table ``streams`` that a capture file states itself: what a column is, given
the first bytes of the file."""


def stated_columns(
    heads: Iterable[bytes], before: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the columns `STATED` of a capture: each as the first file has it that states it.

    `heads` are the first bytes of its files, and `before` the columns of the files before them.
    """
    columns = {name: before.get(name) for name in STATED}
    for head in heads:
        columns = {name: value or STATED[name](head) for name, value in columns.items()}
    return columns


def is_capture(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a capture file."""
    return head[:4] in _PCAP or head[:4] == PCAPNG


SNIFFED_BYTES: Final = 1 << 16
"""First bytes of a stream that decide about its format and carriers."""

# --- carriers -------------------------------------------------------------------------------

MAX_RECORD_BYTES: Final = (1 << 14) + 2048
"""Largest encrypted record of TLS 1.2; those of TLS 1.3 are smaller."""
RECORD_START: Final = re.compile(rb"[\x14-\x18]\x03[\0-\x04]")
"""Type and version of a TLS record."""
HTTP_START: Final = re.compile(
    rb"(?:GET|PUT|POST|HEAD|PATCH|TRACE|DELETE|OPTIONS|CONNECT) [!-~]+ HTTP/1\.[01]\r\n"
    rb"|HTTP/1\.[01] [1-5]\d\d[ \r]"
    rb"|PRI \* HTTP/2\.0\r\n"
)
_HANDSHAKE: Final = re.compile(rb"\x16\x03[\0-\x04](..[\x01\x02]|.{0,2}\Z)", re.S)
"""A record with a ClientHello or ServerHello, or the beginning of one."""
_HEADER_BYTES: Final = 5
_CHAIN: Final = 3
"""Record headers in a row that are taken as TLS if no handshake was captured; frames in a row that
are taken as WebSocket."""


def is_tls(head: bytes) -> bool:
    """Return whether a stream's first bytes are TLS, even if its beginning was not captured.

    The first record of a handshake is recognized by its first bytes. Otherwise consecutive records
    are looked for, at the first byte or after the rest of a record.
    """
    if _HANDSHAKE.match(head):
        return True
    starts = (match.start() for match in RECORD_START.finditer(head, 0, MAX_RECORD_BYTES))
    return any(is_chain(head, start) for start in starts)


def is_chain(head: bytes | memoryview, at: int) -> bool:
    """Return whether consecutive records of TLS begin at `at`: `_CHAIN`, or all of `head`."""
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


def is_websocket(head: bytes | memoryview, *, masked: bool, reserved: int = 0x70) -> bool:
    """Return whether a stream's first bytes are frames of WebSocket (RFC 6455, 5.2).

    The frames of a client are `masked`. `reserved` are the bits of a frame's first byte that are 0.
    """
    at, count = 0, 0
    while at + 2 <= len(head) and count < _CHAIN:
        first, second = head[at : at + 2]
        if first & reserved or first & 0x0F not in (0, 2, 8, 9, 10) or (second >= 0x80) != masked:
            return False
        size, head_bytes = second & 0x7F, 2 + 4 * masked
        if size > 125:
            more = 2 if size == 126 else 8
            size = int.from_bytes(head[at + 2 : at + 2 + more], "big")
            head_bytes += more
        at += head_bytes + size
        count += 1
    return count == _CHAIN or (at == len(head) and count >= (2 if masked else 1))


def is_http(head: bytes) -> bool:
    """Return whether a stream's first bytes are those of HTTP."""
    return HTTP_START.match(head) is not None
