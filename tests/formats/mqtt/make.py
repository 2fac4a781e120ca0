"""MQTT packets written by hand: nothing here comes from the decoder or the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from wireyard.conform.packets import (
    VERSIONS,
    binary,
    block,
    connack,
    connect,
    numbered,
    packet,
    publish,
    subscribe,
    text,
    variable,
    word,
)

__all__ = [
    "VERSIONS",
    "binary",
    "block",
    "connack",
    "connect",
    "numbered",
    "packet",
    "publish",
    "random_stream",
    "subscribe",
    "text",
    "variable",
    "variety",
    "with_ignored_bits",
    "word",
]


def user(key: str, value: str) -> bytes:
    return b"\x26" + text(key) + text(value)


EVERY_PUBLISH_PROPERTY = (
    b"\x01\x01\x02\0\0\x0e\x10\x03" + text("text/plain") + b"\x08" + text("answers/to")
    + b"\x09" + binary(b"\0\xff\x10") + user("k", "v") + b"\x0b\xff\xff\xff\x7f"
    + user("k", "") + b"\x0b\x01\x23\xff\xff"
)  # fmt: skip
"""User property and subscription identifier twice, apart: their order has to stay."""


def variety(version: int) -> list[bytes]:
    """Well-formed packets of every type, in every form that a version has."""
    names = ("a", "a/b/c", "t/äöü/日本", "$SYS/x", "/", " ", "x" * 200)
    five = version == 5
    made = [
        connect(version),
        connect(version, 0x00, client="device-7"),
        connect(version, 0x36, block(version) + text("gone/äöü") + binary(b"\0\xffbye")),
        connack(version, 0, 0),
        connack(version, 0, 0x87 if five else 3),
        *(publish(version, 0x30, name, payload=b"p" * size) for name in names for size in (0, 9)),
        publish(version, 0x31, "kept"),
        publish(version, 0x3A, "again", 0xFFFF),
        publish(version, 0x3D, "again/2", 258, b"\0" * 300),
        *(numbered(version, first) for first in (0x40, 0x50, 0x62, 0x70)),
        subscribe(version, ("a/b", 0), ("+/x/#", 1), ("#", 2), ("+", 0)),
        numbered(version, 0x90, bytes([0, 1, 2]), properties=b""),
        numbered(version, 0xA2, text("a/b") + text("+/x/#"), properties=b""),
        numbered(version, 0xB0, b"\0\x11" if five else b"", properties=b""),
        packet(0xC0),
        packet(0xD0),
        packet(0xE0),
    ]
    if version in (2, 3):
        made += [numbered(version, 0x6A), numbered(version, 0x4F), packet(0xCF)]
        made += [publish(version, 0x38, least=3), *with_ignored_bits(version)]
    if version == 4:
        made += [connack(version, 1, 0), numbered(version, 0x90, b"\x80"), packet(0xC0, least=4)]
    if version in (3, 4, 5):
        made.append(connect(version, 0xC2, text("user") + binary(b"secret")))
    if five:
        made += _variety_of_5()
    return made


def with_ignored_bits(version: int) -> list[bytes]:
    """Packets of 1999 and 3.1 with bits set that these versions do not look at."""
    made = [connect(version, 0x39), connack(version, 0xFE, 0), subscribe(version, ("a", 0xFD))]
    if version == 3:
        # A login that the flags tell and that is not there: Remaining Length wins.
        made += [connect(version, 0xC2), connect(version, 0xC2, text("user"))]
    return made


def _variety_of_5() -> list[bytes]:
    will = b"\x18\0\0\0\x05" + user("w", "ill")
    said = b"\x1f" + text("why") + user("k", "v")
    return [
        connect(5, 0x42, binary(b"token"), client="", properties=b"\x11\xff\xff\xff\xff\x21\0\x01"),
        connect(5, 0xE6, block(5, will) + text("w") + binary(b"") + text("u") + binary(b"p")),
        connect(5, properties=b"\x15" + text("SCRAM") + b"\x16" + binary(b"\0\1")),
        connack(5, 1, 0, b"\x12" + text("given") + b"\x24\x01\x25\0\x27\0\0\x10\0\x28\x01"),
        publish(5, 0x34, "every", 1, b"payload", EVERY_PUBLISH_PROPERTY),
        publish(5, 0x30, "", None, b"by alias", b"\x23\0\x05"),
        *(numbered(5, first, b"\0") for first in (0x40, 0x50, 0x62, 0x70)),
        *(numbered(5, first, b"\0" + block(5)) for first in (0x40, 0x50, 0x62, 0x70)),
        *(numbered(5, first, b"\x10" + block(5, said)) for first in (0x40, 0x50)),
        *(numbered(5, first, b"\x92" + block(5, said)) for first in (0x62, 0x70)),
        subscribe(5, ("$share/group/a/#", 0x2A), ("own", 0x04)),
        numbered(5, 0x90, b"\x87", properties=said),
        packet(0xE0, b"\x04"),
        packet(0xE0, b"\x8e" + block(5, said)),
        packet(0xF0),
        packet(0xF0, b"\x18" + block(5, b"\x15" + text("SCRAM") + b"\x16" + binary(b"\0"))),
    ]


def random_publish(version: int, rng: Random) -> bytes:
    qos = rng.randrange(3)
    first = 0x30 | (rng.randrange(2) if qos else 0) << 3 | qos << 1 | rng.randrange(2)
    topic = f"room/{rng.randrange(50)}/" + rng.choice(("t", "äöü", "日本", "", "x" * 40))
    payload = rng.randbytes(rng.choice((0, 1, 20, 127, 200)))
    number = rng.randrange(1, 0x10000) if qos else None
    properties = rng.choice((b"", b"", user("k", "v"), EVERY_PUBLISH_PROPERTY))
    return publish(version, first, topic, number, payload, properties if version == 5 else b"")


def random_stream(version: int, rng: Random, count: int, extra: Sequence[bytes] = ()) -> bytes:
    """A stream that begins with its CONNECT; `extra` packets stand among well-formed ones."""
    others = [one for one in variety(version) if one[0] != 0x10]
    parts = [connect(version)]
    for _ in range(count):
        kind = rng.random()
        if extra and kind < 0.1:
            parts.append(rng.choice(extra))
        elif kind < 0.6:
            parts.append(random_publish(version, rng))
        else:
            parts.append(rng.choice(others))
    return b"".join(parts)
