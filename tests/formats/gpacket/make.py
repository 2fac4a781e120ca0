"""GPackets and link packets put together from the specification, without a line of ours."""

from __future__ import annotations

import struct
from random import Random

from tests.make import ALL_TYPES, Value, random_text, section, text

MAGIC = bytes.fromhex("7fffe3c2")
SHIPPED = struct.Struct(">Hhi4siqqI")
DOCUMENTED = struct.Struct(">4sHhiiqqI")
LINK = struct.Struct(">Hhiii")
CONSUMER_MARK = struct.pack(">q", 99353142765567461)


def gpacket(
    *,
    packet_type: int = 1,
    properties: bytes = b"",
    payload: bytes = b"",
    documented: bool = False,
    version: int = 350,
    magic: bytes = MAGIC,
    size: int | None = None,
    property_size: int | None = None,
    timestamp: int = 1105948800001,
    sequence: int = 1,
    bit_flags: int = 0,
) -> bytes:
    """Lay out one GPacket; sizes that are not given are those of the sections."""
    total = 36 + len(properties) + len(payload) if size is None else size
    start = (version, packet_type, total)
    rest = (
        len(properties) if property_size is None else property_size,
        timestamp,
        sequence,
        bit_flags,
    )
    if documented:
        head = DOCUMENTED.pack(magic, *start, *rest)
    else:
        head = SHIPPED.pack(*start, magic, *rest)
    return head + properties + payload


def link(
    packet_type: int = 4,
    body: bytes = b"",
    *,
    version: int = 100,
    size: int | None = None,
    destination_id: int = 0,
    flags: int = 0,
) -> bytes:
    """Lay out one link packet."""
    total = 16 + len(body) if size is None else size
    return LINK.pack(version, packet_type, total, destination_id, flags) + body


def address(host: str = "10.0.0.1", instance: str = "wy1", port: int = 7676) -> bytes:
    """Lay out a broker address as payloads have it."""
    return struct.pack(">i", 100) + text(host) + text(instance) + struct.pack(">i", port)


def consumer(number: int = 7, connection: int = 8) -> bytes:
    """Lay out a consumer uid."""
    return struct.pack(">qq", number, connection) + address()


def record(*, old: bool = False) -> bytes:
    """Lay out a consumer record; an old broker leaves its end out."""
    data = CONSUMER_MARK + text("t1") + b"\1" + consumer() + b"\1" + text("client")
    data += b"\0" + b"\1" + text("a > 1") + b"\0\1\1"
    if old:
        return data
    return data + b"\1" + struct.pack(">ii", 3, -1) + b"\1\1" + text("shared")


def message(inner: bytes, consumers: int = 2) -> bytes:
    """Lay out a G_MESSAGE_DATA that carries a JMQ packet."""
    payload = b"".join(consumer(number) for number in range(consumers)) + inner
    return gpacket(properties=section(("C", 4, consumers)), payload=payload)


def variety() -> list[bytes]:
    """Return well-formed packets that between them have every section, order and kind."""
    return [
        gpacket(packet_type=33),
        gpacket(properties=section(*ALL_TYPES[:8]), payload=b"hello", bit_flags=0xFFFFFFFF),
        gpacket(properties=section(*ALL_TYPES), payload=bytes(300), documented=True),
        gpacket(properties=section(), sequence=2**32 + 1, bit_flags=0x06000000),
        gpacket(properties=section(("", 8, b"\xc0\x80\xed\xa0\xbd\xed\xb8\x80"), ("d", 7, 0.1))),
        gpacket(properties=section(*((f"p{n}", 4, n) for n in range(70))), packet_type=-3),
        gpacket(payload=b"x" * 40, timestamp=-1, sequence=-(2**63), documented=True),
        message(b"whole packet"),
        gpacket(packet_type=17, payload=gpacket(packet_type=15) + gpacket(packet_type=5)),
        gpacket(packet_type=76, payload=bytes(range(256))),
        link(4, b"body"),
        link(7),
        link(12, bytes(65520), destination_id=-5, flags=1),
    ]


def random_packet(rng: Random) -> bytes:
    """Return a well-formed packet: mostly in the shipped order, any properties."""
    if rng.random() < 0.05:
        return link(rng.randint(1, 9), rng.randbytes(rng.randrange(40)))
    entries = [_random_property(rng, n) for n in range(rng.choice((0, 1, 3, 4, 8, 20)))]
    return gpacket(
        packet_type=rng.choice((1, 1, 3, 5, 42, 46, 76, 77, -1, 32767, -32768)),
        properties=section(*entries) if entries or rng.random() < 0.1 else b"",
        payload=rng.randbytes(rng.choice((0, 0, 1, 7, 40, 300))),
        documented=rng.random() < 0.1,
        timestamp=rng.getrandbits(64) - 2**63,
        sequence=rng.getrandbits(64) - 2**63,
        bit_flags=rng.choice((0, 1, 2, rng.getrandbits(32))),
    )


def _random_property(rng: Random, number: int) -> tuple[str, int, Value]:
    code = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9))
    name = f"{random_text(rng, 12)}{number}"
    if code == 8:
        return name, code, random_text(rng, 60)
    if code == 9:
        return name, code, rng.randbytes(rng.randint(0, 20))
    forms = {1: ">?", 2: ">b", 3: ">h", 4: ">i", 5: ">q", 6: ">f", 7: ">d"}
    value: Value = struct.unpack(forms[code], rng.randbytes(struct.calcsize(forms[code])))[0]
    return name, code, value
