"""Proxy headers: the bytes at the beginning of a connection that are addressed to a proxy.

The PROXY protocol (haproxy, doc/proxy-protocol.txt, versions 1 and 2), SOCKS 4 and 4a, SOCKS 5
(RFC 1928, 1929). A header is accepted only if it is complete and valid, and if the same is true of
the server's answer, where that was captured. Otherwise the streams are left unchanged. A proxy may
put a header of the PROXY protocol before the bytes of its client, which may begin with a header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from wireyard.captures.connections.stream import Stream

_PROXY: Final = "PROXY protocol"
_MOST_BYTES: Final = 16 + 0xFFFF
"""Longest header: version 2 of the PROXY protocol, whose length has 16 bits."""
_LINE: Final = re.compile(
    rb"PROXY (?:UNKNOWN[^\r\n]{0,92}|TCP[46] [0-9a-fA-F.:]+ [0-9a-fA-F.:]+ \d{1,5} \d{1,5})\r\n"
)
_SIGNATURE: Final = bytes.fromhex("0d0a0d0a000d0a515549540a")
_ADDRESS_BYTES: Final = {0: 0, 1: 12, 2: 36, 3: 216}
"""Bytes of the addresses in version 2, by family: unspecified, IPv4, IPv6, Unix."""
_FIRST_BYTES: Final = (b"P", _SIGNATURE[:1], b"\x04", b"\x05")
_GRANTED: Final = 0x5A
_BY_NAME: Final = 3
_SIZES: Final = {1: 4, 4: 16}
"""Bytes of an address in SOCKS 5, by its type; a host name has its own length."""
_BY_PASSWORD: Final = 2


_MOST_PROXIES: Final = 8
"""Headers behind each other, a proxy each: more than anybody has in a row."""


class ProxyHeader(NamedTuple):
    """The kind of a proxy header, or of several behind each other, and its size by direction."""

    name: str
    asked_bytes: int
    """Size of the requests, from the side that opened the connection."""
    answered_bytes: int = 0
    """Size of the answers."""


def behind_proxy(directions: list[Stream], heads: Sequence[bytes]) -> list[Stream]:
    """Remove the proxy header from the directions of a connection, if there is one.

    `heads` are the first bytes of each direction.
    """
    if directions[0].protocol != "tcp" or not any(head[:1] in _FIRST_BYTES for head in heads):
        return directions
    heads = [stream.head(_MOST_BYTES).tobytes() for stream in directions]
    for asking in range(len(directions)):
        other = 1 - asking
        header = find_header(heads[asking], heads[other] if len(heads) > 1 else b"")
        if header is not None:
            sizes = {asking: header.asked_bytes, other: header.answered_bytes}
            return [stream.behind(sizes[at], header.name) for at, stream in enumerate(directions)]
    return directions


def find_header(asked: bytes, answered: bytes) -> ProxyHeader | None:
    """Return the proxy headers at the beginning of a connection as one; None if there is none.

    `asked` are the first bytes from the side that opened it, and `answered` those from the other
    side; empty if they were not captured.
    """
    found: list[ProxyHeader] = []
    size = 0
    while len(found) < _MOST_PROXIES:
        header = _first_header(asked[size:], answered)
        if header is None:
            break
        found.append(header)
        size += header.asked_bytes
        if not header.name.startswith(_PROXY):
            break
    if not found:
        return None
    names = " and ".join(header.name for header in found)
    return ProxyHeader(names, size, found[-1].answered_bytes)


def is_refused(asked: bytes, answered: bytes) -> bool:
    """Return whether a server refused the request of SOCKS that a connection begins with."""
    if asked[:1] == b"\x05" and len(asked) > 1 and len(asked) >= 2 + asked[1]:
        no_method = answered[:2] == b"\x05\xff"
        no_login = answered[:3] == b"\x05\x02\x01" and answered[3:4] != b"\x00"
        if no_method or (no_login and len(answered) > 3):
            return True
    is_request = bool(answered) and find_header(asked, b"") is not None
    return is_request and find_header(asked, answered) is None


def _first_header(asked: bytes, answered: bytes) -> ProxyHeader | None:
    if line := _LINE.match(asked):
        return ProxyHeader(f"{_PROXY} 1", line.end()) if line.end() <= 107 else None
    if asked.startswith(_SIGNATURE):
        return _version_2(asked)
    if asked[:2] == b"\x04\x01":
        return _socks_4(asked, answered)
    return _socks_5(asked, answered) if asked[:1] == b"\x05" else None


def _version_2(asked: bytes) -> ProxyHeader | None:
    if len(asked) < 16 or asked[12] >> 4 != 2 or asked[12] & 15 > 1:
        return None
    size = int.from_bytes(asked[14:16], "big")
    family = asked[13] >> 4
    if family not in _ADDRESS_BYTES or len(asked) < 16 + size:
        return None
    local = asked[12] & 15 == 0
    if not local and size < _ADDRESS_BYTES[family]:
        return None
    return ProxyHeader(f"{_PROXY} 2", 16 + size)


def _socks_4(asked: bytes, answered: bytes) -> ProxyHeader | None:
    stop = asked.find(b"\0", 8)
    if len(asked) >= 8 and asked[4:7] == b"\0\0\0" and asked[7]:  # 4a: a name instead of an address
        stop = asked.find(b"\0", stop + 1) if stop >= 0 else -1
    if stop < 0:
        return None
    if not answered:
        return ProxyHeader("SOCKS 4", stop + 1)
    granted = len(answered) >= 8 and answered[:2] == bytes((0, _GRANTED))
    return ProxyHeader("SOCKS 4", stop + 1, 8) if granted else None


def _socks_5(asked: bytes, answered: bytes) -> ProxyHeader | None:
    at = 2 + asked[1] if len(asked) > 1 and asked[1] else len(asked)
    methods = asked[2:at]
    if asked[at : at + 1] == b"\x01" and _BY_PASSWORD in methods:
        at = _after_text(asked, _after_text(asked, at + 1))  # user name, password
    stop = _after_address(asked, at, 1)
    if stop is None:
        return None
    if not answered:
        return ProxyHeader("SOCKS 5", stop)
    begin = 2
    if answered[:1] != b"\x05" or answered[1:2] not in [bytes((each,)) for each in methods]:
        return None
    if answered[1] == _BY_PASSWORD:
        if answered[2:4] != b"\x01\x00":
            return None
        begin = 4
    end = _after_address(answered, begin, 0)
    return None if end is None else ProxyHeader("SOCKS 5", stop, end)


def _after_text(data: bytes, at: int) -> int:
    """Return where a length-prefixed text ends; that may be beyond the end of `data`."""
    return at + 1 + (data[at] if at < len(data) else 0)


def _after_address(data: bytes, at: int, command: int) -> int | None:
    """Return where a CONNECT request, or a granting reply to it, ends; None if it is neither."""
    if len(data) < at + 5 or data[at : at + 3] != bytes((5, command, 0)):
        return None
    kind = data[at + 3]
    size = 1 + data[at + 4] if kind == _BY_NAME else _SIZES.get(kind)
    if size is None or len(data) < at + 4 + size + 2:
        return None
    return at + 4 + size + 2
