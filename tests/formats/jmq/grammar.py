"""JMQ packets, byte by byte from the grammar: items in any order, any padding, any property."""

from __future__ import annotations

import struct
from random import Random

from tests.grammar import bits, java_table, lenient_text, odd_bytes, section

__all__ = ["random_jmq"]

_MAGIC = bytes.fromhex("1bffe3c2")
_SHIPPED = (8, 9, 10, 11, 1, 2, 3, 4, 5, 6, 7)
_ADDRESSES = (
    bytes(10) + b"\xff\xff\x0a\0\0\1", b"\xff\0\0\0" + bytes(8) + b"\xff\xff\1\2", bytes(16)
)  # fmt: skip


def random_jmq(
    rng: Random, version: int, short_objects: bool = False, stamped: bool = False
) -> bytes:
    """Return a well-formed packet of a version; a stamped one may have time stamps at its end."""
    body = odd_bytes(rng, (0, 0, 1, 9, 100))
    items = _items(rng, len(body) if stamped else None)
    if stamped and b"\0\x0c\0\4" + struct.pack(">I", len(body)) in items:
        body += b"".join(rng.randbytes(32) for _ in range(rng.randrange(4)))
    properties = b""
    if rng.random() < 0.6:
        properties = section(rng, short_objects) if version == 301 else java_table(rng)
    offset = 72 + len(items)
    size = offset + len(properties) + len(body)
    kind = rng.choice((1, 2, 3, 6, 24, 54, 55, 74, bits(rng, 16)))
    parts = [
        _MAGIC,
        struct.pack(">HHi", version, kind, size),
        struct.pack(">I", bits(rng, 32)) if version == 103 else b"",
        struct.pack(">QQ", bits(rng, 64), bits(rng, 64)),
        rng.choice((*_ADDRESSES, rng.randbytes(16))),
        struct.pack(">IIii", bits(rng, 32), bits(rng, 32), offset, len(properties)),
        bytes([bits(rng, 8), bits(rng, 8)]),
        struct.pack(">H", bits(rng, 16)),
        struct.pack(">I", bits(rng, 32)) if version == 103 else struct.pack(">Q", bits(rng, 64)),
    ]
    return b"".join((*parts, items, properties, body))


def _items(rng: Random, message_bytes: int | None) -> bytes:
    """Return the variable header: nothing at all, or a list with its end and padding.

    It may have an item with the bytes of the message, if that is given.
    """
    if rng.random() < 0.15:
        return b""
    codes = [code for code in _SHIPPED if rng.random() < 0.4]
    match rng.randrange(6):
        case 0 | 1:
            rng.shuffle(codes)
        case 2:
            codes.sort()
        case 3 if codes:
            codes.insert(rng.randrange(len(codes) + 1), rng.choice(codes))
        case 4:
            codes.insert(rng.randrange(len(codes) + 1), rng.choice((13, 77, 65535)))
    parts = [_item(rng, code) for code in codes]
    if message_bytes is not None and rng.random() < 0.8:
        parts.insert(rng.randrange(len(parts) + 1), struct.pack(">HHI", 12, 4, message_bytes))
    listed = b"".join(parts) + b"\0\0"
    aligned = -len(listed) % 4
    padding = bytes(rng.choice((aligned, aligned, aligned, aligned or 4, 0, 4, 5, 13)))
    return listed + (rng.randbytes(len(padding)) if rng.random() < 0.1 else padding)


def _item(rng: Random, code: int) -> bytes:
    if code <= 7:
        value = lenient_text(rng, 20)
    elif code <= 11:
        width = 4 if code == 11 else 8
        value = bits(rng, 8 * width).to_bytes(width, "big")
    else:
        value = odd_bytes(rng, (0, 1, 8))
    return struct.pack(">HH", code, len(value)) + value
