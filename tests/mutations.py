"""Seeded damage: packets with flipped bits and lying lengths, streams cut, spliced and nested.

The same seed and corpus give the same bytes on every machine. Structure is found here by a small
walk of its own, so damage lands on lengths and counts, not only on random bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from tests.golden import GOLDEN
from tests.make import MAGIC, random_packet, variety

__all__ = ["MAX_CORPUS_BYTES", "base_corpus", "mutate_packet", "mutated_stream", "split_packets"]

MAX_CORPUS_BYTES = 4096
"""Longer packets only slow the search: what damage can hit is in the first few hundred bytes."""

HEADER_BYTES = 72

_EDGES = (0, 1, 2, 4, 7, 8, 11, 12, 71, 72, 73, 76, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF)
_EDGES_32 = (*_EDGES, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8, 0x04000000)
_TEXTS = (
    b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc1\xbf",
    b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xc3\xa9", b"\xff", b"\x80",
    b"\0", b"\xef\xbb\xbf", b"\xe2\x82", b"\xf0\x80\x80\x80", b"\xed\x9f\xbf", b"\xee\x80\x80",
)  # fmt: skip

Damage = Callable[[bytearray, Random], None]


def base_corpus(examples: Path) -> list[bytes]:
    """Return the packets every run starts from: handmade ones, and the recorded examples."""
    recorded = [
        packet
        for path in sorted(examples.glob("traffic/*.jmq"))
        for packet in split_packets(path.read_bytes())
        if len(packet) <= MAX_CORPUS_BYTES
    ]
    made = [*variety(), *(golden.data for golden in GOLDEN.values())]
    # Made packets are few and rich: each counts as many recorded ones.
    return made * max(1, len(recorded) // (2 * len(made))) + recorded


def split_packets(stream: bytes) -> Iterator[bytes]:
    """Yield the packets of an undamaged stream."""
    at = 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 8 : at + 12], "big")
        yield stream[at : at + size]
        at += size


# --- damage to one packet -------------------------------------------------------------------


def _section_fields(data: bytearray) -> tuple[int, int, int]:
    """Return where property offset and size stand, shifted by four in version 103."""
    shift = 4 if data[4:6] == b"\0\x67" else 0
    return 52 + shift, 56 + shift, 72


def _lengths(data: bytearray) -> list[tuple[int, int]]:
    """Return position and width of every type, length and count in items and properties."""
    at_offset, at_size, at = _section_fields(data)
    offset = min(int.from_bytes(data[at_offset : at_offset + 4], "big"), len(data))
    size = int.from_bytes(data[at_size : at_size + 4], "big")
    found: list[tuple[int, int]] = []
    while at + 4 <= offset:
        found += [(at, 2), (at + 2, 2)]
        if data[at : at + 2] == b"\0\0":
            break
        at += 4 + int.from_bytes(data[at + 2 : at + 4], "big")
    stop = min(offset + size, len(data))
    at = offset + 8
    if size >= 8 and data[offset : offset + 4] == b"\0\0\0\1":
        found += [(offset, 4), (offset + 4, 4)]
        widths = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8}
        while at + 5 <= stop:
            kind_at = at + 2 + int.from_bytes(data[at : at + 2], "big")
            found += [(at, 2), (kind_at, 2)]
            kind = int.from_bytes(data[kind_at : kind_at + 2], "big")
            width = 2 if kind == 8 else 4
            value = int.from_bytes(data[kind_at + 2 : kind_at + 2 + width], "big")
            if kind in (8, 9):
                found.append((kind_at + 2, width))
            at = kind_at + 2 + (width + value if kind in (8, 9) else widths.get(kind, 0))
    return [(place, width) for place, width in found if place + width <= len(data)]


def _store(data: bytearray, at: int, width: int, value: int) -> None:
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")


def _lie(data: bytearray, at: int, width: int, rng: Random) -> None:
    """Change an integer: a little, to an edge, or to anything."""
    value = int.from_bytes(data[at : at + width], "big")
    match rng.randrange(4):
        case 0 | 1:
            value += rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3, 4, 8, 12, 40, 72, 200))
        case 2:
            value = rng.choice(_EDGES if width == 2 else _EDGES_32)
        case _:
            value = rng.getrandbits(8 * width)
    _store(data, at, width, value)


def _flip_bits(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        reach = min(len(data), 72) if rng.random() < 0.5 else len(data)
        data[rng.randrange(reach)] ^= 1 << rng.randrange(8)


def _lie_in_sections(data: bytearray, rng: Random) -> None:
    at_offset, at_size, _ = _section_fields(data)
    _lie(data, rng.choice((at_offset, at_size)), 4, rng)


def _lie_in_size(data: bytearray, rng: Random) -> None:
    _lie(data, 8, 4, rng)


def _lie_in_lengths(data: bytearray, rng: Random) -> None:
    places = _lengths(data)
    if places:
        _lie(data, *rng.choice(places), rng)


def _change_version(data: bytearray, rng: Random) -> None:
    version = rng.choice((103, 103, 200, 200, 301, 0, 102, 302, 350, 65535))
    _store(data, 4, 2, version)


def _change_text(data: bytearray, rng: Random) -> None:
    """Put bytes that are or nearly are UTF-8 over others, behind the fixed header if possible."""
    text = rng.choice(_TEXTS)
    at = rng.randrange(min(72, len(data) - 1), len(data))
    data[at : at + len(text)] = text[: len(data) - at]


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(1, len(data)) :]


def _insert(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 72)))


def _remove(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, 71))]


def _repeat(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 4, 12, 72, 200))]


def _put_magic(data: bytearray, rng: Random) -> None:
    """Put the beginning of a header somewhere: what resynchronising must not fall for."""
    head = MAGIC + struct.pack(">HHi", 301, 1, rng.choice((72, 80, 300, 71)))
    at = rng.randrange(len(data))
    data[at : at + len(head)] = head[: len(data) - at]


_DAMAGE: tuple[tuple[int, Damage], ...] = (
    (20, _flip_bits),
    (12, _lie_in_sections),
    (3, _lie_in_size),
    (30, _lie_in_lengths),
    (5, _change_version),
    (12, _change_text),
    (3, _cut),
    (2, _insert),
    (2, _remove),
    (2, _repeat),
    (4, _put_magic),
)
"""Weight and damage. What breaks the framing is rare, or most packets would only be garbage."""
_WEIGHTS = [weight for weight, _ in _DAMAGE]
_KINDS = [damage for _, damage in _DAMAGE]


def mutate_packet(packet: bytes, rng: Random) -> bytes:
    """Return a packet with one to three kinds of damage."""
    data = bytearray(packet)
    for damage in rng.choices(_KINDS, _WEIGHTS, k=rng.choice((1, 1, 1, 2, 3))):
        if len(data) < HEADER_BYTES:
            break
        damage(data, rng)
    return bytes(data)


# --- damage to a stream ---------------------------------------------------------------------


def _nest(packet: bytes, rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Return a packet with whole packets, damaged or not, at or near the end of its body."""
    inner = b"".join(rng.choices(corpus, k=rng.randint(1, 3)))
    if rng.random() < 0.3:
        inner = mutate_packet(inner, rng)
    before, after = rng.choice(((0, 0), (0, 0), (10, 4), (0, 1), (3, 0)))
    body = rng.randbytes(before) + inner + rng.randbytes(after)
    return packet[:8] + struct.pack(">i", len(packet) + len(body)) + packet[12:] + body


def mutated_stream(corpus: Sequence[bytes], rng: Random, count: int) -> bytes:
    """Return a stream of `count` damaged packets, some whole ones between them."""
    parts: list[bytes] = []
    for packet in rng.choices(corpus, k=count):
        if rng.random() < 0.2:
            packet = random_packet(rng)
        if rng.random() < 0.05:
            packet = _nest(packet, rng, corpus)
        parts.append(mutate_packet(packet, rng))
        if rng.random() < 0.2:
            parts.append(rng.choice(corpus))
    if rng.random() < 0.3:
        at = rng.randrange(len(parts))
        parts[at:at] = parts[at : at + rng.randint(1, 5)]
    stream = b"".join(parts)
    match rng.randrange(6):
        case 0:
            return stream[: rng.randrange(1, len(stream))]
        case 1:
            return stream[rng.randrange(min(len(stream), 500)) :]
        case 2:
            at = rng.randrange(len(stream))
            return stream[:at] + stream[at + rng.randint(1, 300) :]
        case 3:
            return rng.randbytes(rng.randint(1, 100)) + stream
    return stream
