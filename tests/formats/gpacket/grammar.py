"""GPackets and link packets, byte by byte from the grammar."""

from __future__ import annotations

import struct
from random import Random

from tests.grammar import bits, odd_bytes, section

__all__ = ["random_gpacket"]

_MAGIC = bytes.fromhex("7fffe3c2")


def random_gpacket(rng: Random, short_objects: bool = False) -> bytes:
    """Return a well-formed packet: of either order, or of the link."""
    payload = odd_bytes(rng, (0, 0, 1, 9, 100))
    kind = rng.choice((1, 3, 5, 42, 46, bits(rng, 16)))
    if rng.random() < 0.1:
        size = 16 + len(payload)
        return struct.pack(">HHiII", 100, kind, size, bits(rng, 32), bits(rng, 32)) + payload
    properties = section(rng, short_objects) if rng.random() < 0.7 else b""
    start = struct.pack(">HHi", 350, kind, 36 + len(properties) + len(payload))
    head = _MAGIC + start if rng.random() < 0.3 else start + _MAGIC
    rest = struct.pack(">iQQI", len(properties), bits(rng, 64), bits(rng, 64), bits(rng, 32))
    return head + rest + properties + payload
