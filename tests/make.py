"""Packets and streams put together from the specification, without a line of ours.

Nothing here imports the code under test, so a test that builds with it compares two readings of
the specification.
"""

from __future__ import annotations

import struct
from random import Random

MAGIC = bytes.fromhex("1bffe3c2")
ADDRESS = bytes(10) + b"\xff\xff" + bytes([192, 168, 1, 17])
MAC_ADDRESS = bytes.fromhex("ff000000 ad1c83d091ae ffff 7f000001")
IPV6 = bytes.fromhex("20010db800000000000000000000002a")

WIDE = struct.Struct(">4sHhi qq16sii ii bBHq")
"""Versions 200 and 301: magic, version, type, size; expiration, timestamp, address, port,
sequence; property offset and size; priority, encryption, flags, consumer id."""
NARROW = struct.Struct(">4sHhi i qq16sii ii bBH i")
"""Version 103: a 32-bit transaction id behind the size, a 32-bit consumer id at the end."""


def packet(
    *,
    version: int = 301,
    packet_type: int = 1,
    items: bytes = b"",
    properties: bytes = b"",
    body: bytes = b"",
    size: int | None = None,
    property_offset: int | None = None,
    property_size: int | None = None,
    expiration: int = 0,
    timestamp: int = 1105948800001,
    source_ip: bytes = ADDRESS,
    source_port: int = 49152,
    sequence: int = 1,
    priority: int = 5,
    encryption: int = 0,
    bit_flags: int = 0,
    consumer_id: int = 0,
    transaction_id: int = 0,
) -> bytes:
    """Lay out one packet; sizes that are not given are those of the sections."""
    offset = 72 + len(items) if property_offset is None else property_offset
    section = len(properties) if property_size is None else property_size
    total = 72 + len(items) + len(properties) + len(body) if size is None else size
    start = (MAGIC, version, packet_type, total)
    sender = (expiration, timestamp, source_ip, source_port, sequence)
    rest = (offset, section, priority, encryption, bit_flags, consumer_id)
    if version == 103:
        head = NARROW.pack(*start, transaction_id, *sender, *rest)
    else:
        head = WIDE.pack(*start, *sender, *rest)
    return head + items + properties + body


def item(code: int, value: bytes | str, length: int | None = None) -> bytes:
    """Lay out one item of the variable header; `length` may lie."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">HH", code, len(data) if length is None else length) + data


def long_item(code: int, value: int) -> bytes:
    """Lay out one of the 64-bit items: 8, 9 and 10."""
    return item(code, value.to_bytes(8, "big", signed=True))


def items(*parts: bytes, align: int = 4) -> bytes:
    """Lay out the variable header: items, the end of the list, zeros to the next boundary."""
    listed = b"".join(parts) + b"\0\0"
    return listed + bytes(-len(listed) % align)


def text(value: str | bytes) -> bytes:
    """Lay out a u16 length and the bytes of a text; give bytes for modified UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


_FORMS = {1: ">?", 2: ">b", 3: ">h", 4: ">i", 5: ">q", 6: ">f", 7: ">d"}

Value = bool | int | float | str | bytes


def one_property(name: str | bytes, code: int, value: Value) -> bytes:
    """Lay out one property; a type that has no form gets `value` as it is."""
    if code in _FORMS:
        data = struct.pack(_FORMS[code], value)
    elif code == 8:
        assert isinstance(value, (str, bytes))
        data = text(value)
    else:
        assert isinstance(value, bytes)
        data = struct.pack(">i", len(value)) + value if code == 9 else value
    return text(name) + struct.pack(">h", code) + data


def section(*entries: tuple[str | bytes, int, Value], count: int | None = None) -> bytes:
    """Lay out a marshalled property section; `count` may lie."""
    parts = b"".join(one_property(*entry) for entry in entries)
    return struct.pack(">ii", 1, len(entries) if count is None else count) + parts


ALL_TYPES: tuple[tuple[str | bytes, int, Value], ...] = (
    ("flag", 1, True),
    ("octet", 2, -128),
    ("small", 3, -32768),
    ("whole", 4, -(2**31)),
    ("large", 5, -(2**63)),
    ("single", 6, 1.5),
    ("double", 7, -2.5e-300),
    ("words", 8, "grün"),
    ("thing", 9, bytes.fromhex("aced0005740003") + b"xyz" + bytes(246)),
)
"""One property of each of the nine types; the object has slack as shipped writers leave it."""

ALL_ITEMS = items(
    long_item(8, 2**62 + 1),
    long_item(9, -2),
    long_item(10, 1105948900000),
    item(11, (7).to_bytes(4, "big")),
    item(1, "queue.of.work"),
    item(2, "ID:my-own-id"),
    item(3, "corr-ä"),
    item(4, "answers"),
    item(5, "kind"),
    item(6, "com.sun.messaging.BasicQueue"),
    item(7, "com.sun.messaging.BasicTopic"),
)


def variety() -> list[bytes]:
    """Return well-formed packets that between them have every section, type and version."""
    hashtable = bytes.fromhex(EMPTY_HASHTABLE)
    return [
        packet(packet_type=20),
        packet(items=ALL_ITEMS, properties=section(*ALL_TYPES), body=b"hello", bit_flags=0x1FFF),
        packet(items=items(item(1, "q0")), body=b"x" * 40, source_ip=MAC_ADDRESS, sequence=-1),
        packet(properties=section(("", 4, 1), ("m", 8, "text")), consumer_id=2**40, priority=9),
        packet(properties=section(), packet_type=55, source_ip=IPV6),
        packet(items=items(item(77, b"new"), item(1, "t"), item(0xFFFF, b"")), packet_type=6),
        packet(items=items(item(1, "first"), item(1, "second"))),
        packet(properties=section(("a", 8, b"\xc0\x80\xed\xa0\xbd\xed\xb8\x80"), ("d", 7, 0.1))),
        packet(properties=section(*((f"p{n}", 4, n) for n in range(70))), packet_type=74),
        packet(version=200, items=items(long_item(8, 5)), properties=hashtable, body=b"\0\1"),
        packet(version=200, body=b"two hundred", packet_type=-3),
        packet(version=103, items=items(), transaction_id=-5, consumer_id=-6, bit_flags=0xAB95),
        packet(version=103, items=items(item(1, "old")), properties=hashtable, body=b"103"),
        packet(packet_type=2, body=bytes(range(256)), timestamp=-1, expiration=2**63 - 1),
    ]


EMPTY_HASHTABLE = (
    "aced0005"  # stream magic and version
    "73"  # an object
    "72"  # of a class described here
    "0013 6a6176612e7574696c2e486173687461626c65"  # java.util.Hashtable
    "13bb0f25214ae4b8"  # its serialVersionUID
    "03"  # serializable, with writeObject
    "0002"  # two fields:
    "46 000a 6c6f6164466163746f72"  # float loadFactor
    "49 0009 7468726573686f6c64"  # int threshold
    "78 70"  # no annotation, no superclass
    "3f400000 00000008"  # 0.75, 8
    "77 08 0000000b 00000000"  # block of 8 bytes: 11 buckets, no entry
    "78"  # end of what writeObject wrote
)


def nested(outer: bytes, inner: bytes, *, before: int = 0, after: int = 0) -> bytes:
    """Return `outer` with whole packets at the end of its body, some bytes around them."""
    body = bytes(before) + inner + bytes(after)
    size = len(outer) + len(body)
    return outer[:8] + struct.pack(">i", size) + outer[12:] + body


# --- anything well-formed -------------------------------------------------------------------

_ADDRESSES = (ADDRESS, MAC_ADDRESS, IPV6, bytes(16), bytes(12) + b"\xff" * 4, b"\xff" * 16)
_LETTERS = ("abc XYZ.09_-", "äöüßéñ", "日本語Ω€", "😀🔑𝄞", "\0\x7f\x80", "\ufeff\uffff\ud7ff")


def random_text(rng: Random, most: int) -> str:
    """Return up to `most` characters, mostly of one kind."""
    letters = rng.choice(_LETTERS) if rng.random() < 0.3 else _LETTERS[0]
    return "".join(rng.choices(letters, k=rng.randint(0, most)))


def random_packet(rng: Random) -> bytes:
    """Return a well-formed packet: any version, items and properties in any order and number."""
    version = rng.choice((301, 301, 301, 301, 200, 103))
    entries = [_random_property(rng, n) for n in range(rng.choice((0, 1, 3, 8, 20)))]
    properties = section(*entries) if version == 301 and rng.random() < 0.7 else b""
    codes = rng.sample(range(1, 12), rng.choice((0, 1, 2, 5, 11)))
    return packet(
        version=version,
        packet_type=rng.choice((1, 1, 2, 3, 6, 7, 24, 79, 80, -1, 32767)),
        items=items(*(_random_item(rng, code) for code in codes)) if codes else b"",
        properties=properties,
        body=rng.randbytes(rng.choice((0, 0, 1, 7, 40, 300))),
        expiration=_random_integer(rng, 64),
        timestamp=_random_integer(rng, 64),
        source_ip=rng.choice((*_ADDRESSES, rng.randbytes(16))),
        source_port=_random_integer(rng, 32),
        sequence=_random_integer(rng, 32),
        priority=rng.randint(0, 9),
        bit_flags=rng.getrandbits(13),
        consumer_id=_random_integer(rng, 32 if version == 103 else 64),
    )


def _random_integer(rng: Random, bits: int) -> int:
    """Return a signed integer; small ones are as likely as large ones."""
    return int.from_bytes(rng.randbytes(bits // 8), "big", signed=True) >> rng.randrange(bits)


def _random_item(rng: Random, code: int) -> bytes:
    if code <= 7:
        return item(code, random_text(rng, 30))
    width = 4 if code == 11 else 8
    return item(code, _random_integer(rng, 8 * width).to_bytes(width, "big", signed=True))


def _random_property(rng: Random, number: int) -> tuple[str, int, Value]:
    code = rng.randint(1, 9)
    name = f"{random_text(rng, 12)}{number}"
    if code == 8:
        return name, code, random_text(rng, 60)
    if code == 9:
        return name, code, rng.randbytes(rng.randint(0, 20))
    size = struct.calcsize(_FORMS[code])
    value: Value = struct.unpack(_FORMS[code], rng.randbytes(size))[0]
    if code in (2, 3, 4, 5):
        value = _random_integer(rng, 8 * size)
    return name, code, value
