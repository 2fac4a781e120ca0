"""Packets with marks where secrets are: whole, cut, and malformed in many ways.

A mark is a distinct text that repeats one pattern, so that any eight of its bytes contain five
bytes of the pattern: four can be the header of what seems to be the next packet. `leaks` finds
parts of marks in plain text, hexadecimal, base64 and UTF-16.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.captures.make import ACK, CLIENT, SERVER, SYN, ethernet, ipv4, packets, pcap, tcp
from tests.formats.gpacket.make import gpacket
from tests.make import item, items, packet, section, text

__all__ = [
    "DECODE_AS",
    "PLACES",
    "URL_MARK",
    "Place",
    "Shown",
    "capture",
    "leaks",
    "mark",
    "variants",
]

DECODE_AS: Final = tuple(
    f"tcp.port=={port},{format}"
    for port, format in ((1883, "mqtt"), (7676, "jmq"), (7677, "gpacket"))
)
_PORTS: Final = {"mqtt": 1883, "jmq": 7676, "gpacket": 7677}
_PATTERN: Final = b"Zq7#"
URL_MARK: Final = "Zq7x" * 5
"""The mark in URLs, of characters that are not escaped there."""
_ROTATIONS: Final = [
    (3 * pattern)[at : at + 8] for pattern in (_PATTERN, URL_MARK[:4].encode()) for at in range(4)
]


def mark(number: int) -> bytes:
    """Return the mark of this number."""
    return b"%s%02d%s" % (3 * _PATTERN, number, 2 * _PATTERN)


def _needles() -> list[bytes]:
    found = []
    for eight in _ROTATIONS:
        five = eight[:5]
        found += [five, five.hex().encode(), five.hex(" ").encode(), five.hex().upper().encode()]
        found += [five.decode().encode("utf-16-le"), five.decode().encode("utf-16-be")]
        # Base64 of any three alignments, in whole groups of three: eight characters, as fewer are
        # found by chance in a large file.
        for at in range(3):
            groups = b64encode((bytes(at) + eight)[: (at + 8) // 3 * 3])
            found.append(groups[4 * (at > 0) :])
    return found


_NEEDLES: Final = _needles()


def leaks(output: bytes | str) -> list[bytes]:
    """Return the surroundings of every part of a mark in an output."""
    data = output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
    places = [data.find(needle) for needle in _NEEDLES]
    return [data[max(at - 120, 0) : at + 40] for at in places if at >= 0]


# --- MQTT -----------------------------------------------------------------------------------


def _size(size: int) -> bytes:
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


def control(first: int, body: bytes, size: int | None = None) -> bytes:
    """Lay out a control packet; `size` may lie."""
    return bytes([first]) + _size(len(body) if size is None else size) + body


def properties(*parts: bytes) -> bytes:
    """Lay out properties of MQTT 5.0."""
    return _size(sum(map(len, parts))) + b"".join(parts)


def connect(
    level: int,
    password: bytes,
    *,
    flags: int = 0xC2,
    name: bytes | None = None,
    client: bytes = b"till",
    own: bytes = b"",
    will: bytes = b"",
    user: bytes = b"ann",
    behind: bytes = b"",
    client_size: int | None = None,
    user_size: int | None = None,
    password_size: int | None = None,
    size: int | None = None,
    first: int = 0x10,
) -> bytes:
    """Lay out a CONNECT; every length may lie."""
    name = (b"MQIsdp" if level & 0x7F == 3 else b"MQTT") if name is None else name
    body = text(name) + bytes([level, flags]) + b"\0\x3c"
    body += (own or b"\0") if level == 5 else b""
    body += _counted(client, client_size) + will + _counted(user, user_size)
    body += _counted(password, password_size) + behind
    return control(first, body, size)


def _counted(data: bytes, size: int | None) -> bytes:
    return struct.pack(">H", len(data) if size is None else size) + data


def _auth_data(data: bytes) -> bytes:
    return properties(b"\x15" + text(b"SCRAM"), b"\x16" + text(data))


def _connect_of(level: int, **fixed: object) -> Callable[[bytes], Iterator[bytes]]:
    """Return what yields a CONNECT with a password, then its malformations."""

    def make(secret: bytes) -> Iterator[bytes]:
        def one(**others: object) -> bytes:
            return connect(level, secret, **{**fixed, **others})  # type: ignore[arg-type]

        whole = one()
        size = len(whole) - 2 - (len(whole) > 129)
        yield whole
        yield from (one(size=size - less) for less in (1, 5, len(secret), len(secret) + 4))
        yield from (one(size=size + more) for more in (1, 2, 9))
        yield from (one(flags=flags) for flags in (0xC3, 0x82, 0x42, 0xC6, 0xDA, 0xE2, 0x02))
        yield from (one(name=name) for name in (b"MQTX", b"", b"HTTP", b"MQ\xff\xff", b"MQTT\0"))
        for lie in (0, 2, 9, 30, 0xFFFF):
            yield whole.replace(whole[:size].partition(b"MQ")[0][-2:], struct.pack(">H", lie), 1)
        yield from (one(client=client) for client in (b"\xff\xfe", b"a\0b", b"", b"x" * 30))
        yield from (one(client_size=most) for most in (0, 3, 9, 11, 13, 30, 0xFFFF))
        yield from (one(user_size=most) for most in (0, 2, 5, 7, 20))
        yield from (one(password_size=most) for most in (0, 4, len(secret) + 1, 0xFFFF))
        yield one(user=b"\xc3\x28")
        yield from (one(behind=behind) for behind in (b"\0", secret, text(secret)))
        yield one(first=0x13)
        yield whole.replace(bytes([level, 0xC2]), bytes([77, 0xC2]))
        yield b"\xf0" + whole
        yield b"no packet" + whole

    return make


def _properties_of(
    whole: Callable[[bytes], bytes], before: bytes = b""
) -> Callable[[bytes], Iterator[bytes]]:
    """Return what yields a packet with authentication data, then its malformations."""

    def make(secret: bytes) -> Iterator[bytes]:
        data = whole(secret)
        yield before + data
        at = data.index(secret)
        length = data[at - 1]
        for lie in (0, 3, length - 4, length + 1, 127):
            yield before + data[: at - 1] + bytes([lie]) + data[at:]
        method = data.index(b"SCRAM")
        start = method - 4  # the property length
        for lie in (0, 5, data[start] - 3, data[start] + 1, 127):
            yield before + data[:start] + bytes([lie]) + data[start + 1 :]
        for lie in (2, data[1] - 4, data[1] + 3):
            yield before + data[:1] + bytes([lie]) + data[2:]
        yield before + bytes([data[0] | 7]) + data[1:]
        yield before + data[: method - 3] + b"\x7e" + data[method - 2 :]  # no such property
        yield before + data[: method - 3] + b"\x26" + data[method - 2 :]  # a user property
        yield before + data[:method] + b"\xff\xfe" + data[method + 2 :]
        if data[0] == 0x10:  # a reason string, which no CONNECT has
            yield before + data[: at - 3] + b"\x1f" + data[at - 2 :]

    return make


_HELLO_5: Final = control(0x10, text("MQTT") + b"\x05\x02\0\x3c\0" + text("till"))
_WILL: Final = text("gone") + text("lost")


# --- JMQ and GPackets -----------------------------------------------------------------------


def _login(code: int, **fixed: object) -> Callable[[bytes], Iterator[bytes]]:
    """Return what yields a packet whose body is secret, then its malformations."""

    def make(secret: bytes) -> Iterator[bytes]:
        body = text("guest") + text(secret) if code == 12 else secret

        def one(**others: object) -> bytes:
            return packet(packet_type=code, body=body, **{**fixed, **others})  # type: ignore[arg-type]

        whole = one()
        offset = len(whole) - len(body)
        yield whole
        for size in (71, offset, offset + 8, len(whole) - 1, len(whole) + 7, 2**31 - 1, -1):
            yield one(size=size)
        for at in (0, offset + 4, len(whole), len(whole) + 1, offset - 1, -1):
            yield one(property_offset=at)
        yield from (one(property_size=size) for size in (1, 9, len(body), len(body) + 1, -1))
        yield from (one(version=version) for version in (0, 102, 999))
        yield one(bit_flags=0xFFFF)
        yield one(items=items(item(1, "x", length=len(body) + 2)))
        yield one(items=items(item(1, "x", length=600)))
        yield one(items=item(9, b"\0" * 8), property_offset=len(whole))
        yield one(properties=section(("a", 8, "b"), count=7))
        yield one(properties=section(("a", 8, "b"), count=2), property_size=12 + len(body))
        yield one(properties=b"\xff" * 9)
        yield b"\x1b\xff\xe3\xc3" + whole[4:]
        yield b"noise" + whole
        yield whole + body

    return make


def _carried(kind: int, *, damaged: bool, **fixed: object) -> Callable[[bytes], Iterator[bytes]]:
    """Return what yields GPackets whose payload is a JMQ login, whole and malformed."""

    def make(secret: bytes) -> Iterator[bytes]:
        logins = [*_login(12)(secret), *_login(38)(secret)]
        for inner in logins if damaged else logins[:1]:
            yield _outer(kind, inner, fixed)
        yield from _lies(lambda **others: _outer(kind, packet_of(secret), {**fixed, **others}))

    return make


def packet_of(secret: bytes) -> bytes:
    """Lay out a login of JMQ."""
    return packet(packet_type=12, body=text("guest") + text(secret))


def _outer(kind: int, inner: bytes, others: dict[str, object]) -> bytes:
    if kind != 1:  # a carrier of GPackets
        inner = gpacket(packet_type=1, properties=section(("C", 4, 0)), payload=inner)
    entries = section(("C", 4, 0))
    given = {"properties": entries, **others}
    return gpacket(packet_type=kind, payload=inner, **given)  # type: ignore[arg-type]


def _lies(one: Callable[..., bytes]) -> Iterator[bytes]:
    whole = one()
    for size in (35, 40, len(whole) - 5, len(whole) + 9, -1):
        yield one(size=size)
    yield from (one(property_size=size) for size in (0, 5, 30, len(whole) - 36, 2**30, -1))
    yield from (one(version=version) for version in (0, 351))
    yield one(properties=section(("C", 4, 0), count=9))
    yield one(properties=section(("C", 8, "x")))
    yield one(properties=b"")
    yield b"noise" + whole


def _ported(code: int, **fixed: object) -> Callable[[bytes], Iterator[bytes]]:
    """Return what yields JMQ logins that were converted to GPackets, whole and malformed."""

    def make(secret: bytes) -> Iterator[bytes]:
        entries = section((".v", 3, 301))
        payload = text("guest") + text(secret)

        def one(**others: object) -> bytes:
            given = {"properties": entries, **fixed, **others}
            return gpacket(packet_type=code, payload=payload, **given)  # type: ignore[arg-type]

        yield one()
        odd = section((".v", 3, 301), (".w", 9, secret), (".s", 9, secret))
        yield one(properties=odd)
        yield from _lies(one)

    return make


# --- all places -----------------------------------------------------------------------------


class Place(NamedTuple):
    """A place of a secret: its format, and the packets with a mark in it, the whole one first."""

    name: str
    format: str
    make: Callable[[bytes], Iterator[bytes]]


_OWN: Final = properties(b"\x11\0\0\0\x05", b"\x26" + text("k") + text("v"))

PLACES: Final = (
    Place("password of 3.1", "mqtt", _connect_of(3)),
    Place("password of 3.1.1", "mqtt", _connect_of(4)),
    Place("password of 5.0", "mqtt", _connect_of(5)),
    Place("password of 3.1 behind a will", "mqtt", _connect_of(3, will=_WILL, flags=0xC6)),
    Place("password of 3.1.1 behind a will", "mqtt", _connect_of(4, will=_WILL, flags=0xC6)),
    Place("password of 5.0 behind a will", "mqtt", _connect_of(5, will=b"\0" + _WILL, flags=0xC6)),
    Place("password of 5.0 behind properties", "mqtt", _connect_of(5, own=_OWN)),
    Place("password of a bridge of 3.1", "mqtt", _connect_of(0x83)),
    Place("password of a bridge of 3.1.1", "mqtt", _connect_of(0x84)),
    Place("password of a user without a name", "mqtt", _connect_of(4, user=b"")),
    Place("password of a long user name", "mqtt", _connect_of(4, user=b"u" * 150)),
    Place("password of a client without an id", "mqtt", _connect_of(4, client=b"")),
    Place(
        "authentication data of CONNECT",
        "mqtt",
        _properties_of(lambda data: connect(5, b"", own=_auth_data(data), flags=0xC2)),
    ),
    Place(
        "authentication data of CONNECT without a login",
        "mqtt",
        _properties_of(
            lambda data: control(
                0x10, text("MQTT") + b"\x05\x02\0\x3c" + _auth_data(data) + text("till")
            )
        ),
    ),
    Place(
        "authentication data of CONNACK",
        "mqtt",
        _properties_of(lambda data: control(0x20, b"\0\0" + _auth_data(data))),
    ),
    Place(
        "authentication data of AUTH",
        "mqtt",
        _properties_of(lambda data: control(0xF0, b"\x18" + _auth_data(data)), _HELLO_5),
    ),
    Place(
        "authentication data of a new login",
        "mqtt",
        _properties_of(lambda data: control(0xF0, b"\x19" + _auth_data(data)), _HELLO_5),
    ),
    *(
        Place(f"{name} of {version}", "jmq", _login(code, version=version))
        for version in (103, 200, 301)
        for code, name in ((12, "login"), (38, "challenge"))
    ),
    Place("login with items", "jmq", _login(12, items=items(item(1, "queue")))),
    Place("challenge with properties", "jmq", _login(38, properties=section(("a", 8, "b")))),
    *(
        Place(f"login carried by type {kind}{' documented' * order}", "gpacket",
              _carried(kind, damaged=kind in (1, 17) and not order, documented=order))
        for kind in (1, 17, 20, 51)
        for order in (False, True)
    ),
    *(
        Place(f"ported packet of type {code}{' documented' * order}", "gpacket",
              _ported(code, documented=order))
        for code in (12, 38)
        for order in (False, True)
    ),
)  # fmt: skip


class Shown(NamedTuple):
    """A stream with a mark in it."""

    place: Place
    data: bytes


def variants(*, cuts: bool = True) -> Iterator[Shown]:
    """Yield streams of every place: the whole packet and all malformations, and cuts of each.

    A packet is cut at every place behind the beginning of its mark, a malformed one before its last
    byte.
    """
    for number, place in enumerate(PLACES):
        secret = mark(number)
        for count, data in enumerate(place.make(secret)):
            yield Shown(place, data)
            if count % 4 == 0:
                yield Shown(place, data + next(place.make(b"x")))
            at = data.find(secret)
            if cuts and at >= 0:
                stops = range(at + 1, len(data)) if not count else (len(data) - 1,)
                yield from (Shown(place, data[:stop]) for stop in stops)


def capture(streams: Iterator[Shown], *, websocket: bool = False) -> bytes:
    """Return a capture in which each stream is that of a client of a connection of its own."""
    frames: list[bytes] = []
    for number, (place, data) in enumerate(streams):
        port, server = 10_000 + number % 50_000, _PORTS[place.format]
        sent, answered = _upgrade(data) if websocket else (data, b"")
        steps = [
            (tcp(port, server, 999, flags=SYN), False),
            (tcp(server, port, 499, b"", SYN | ACK, 1000), True),
            (tcp(port, server, 1000, sent, ACK, 500), False),
            *([(tcp(server, port, 500, answered, ACK, 1000), True)] if answered else []),
        ]
        frames += [
            ethernet(ipv4(one, src=SERVER, dst=CLIENT) if back else ipv4(one))
            for one, back in steps
        ]
    return pcap(packets(frames))


def _upgrade(data: bytes) -> tuple[bytes, bytes]:
    """Return the stream in a WebSocket, whose handshake has a mark in its target, too."""
    head = "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: mqtt"
    target = f"http://ann:{URL_MARK}@h/mqtt;s={URL_MARK}?access_token={URL_MARK}&{URL_MARK}"
    cookies = f"Authorization: Bearer {URL_MARK}\r\nCookie: a={URL_MARK}"
    request = f"GET {target} HTTP/1.1\r\n{head}\r\n{cookies}\r\n\r\n"
    response = f"HTTP/1.1 101 Switching Protocols\r\n{head}\r\n\r\n"
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return request.encode() + b"\x82" + length + bytes(4) + data, response.encode()
