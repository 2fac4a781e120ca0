"""GPacket as the search for disagreements sees it, link packets among the others."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.formats.gpacket.grammar import random_gpacket
from tests.formats.gpacket.make import (
    DOCUMENTED,
    LINK,
    MAGIC,
    SHIPPED,
    consumer,
    gpacket,
    link,
    message,
    random_packet,
    record,
    variety,
)
from tests.make import packet as jmq_packet
from tests.make import section
from tests.mutations import (
    MAX_CORPUS_BYTES,
    Corpus,
    Place,
    Subject,
    lie,
    recorded_examples,
    section_places,
)
from wireyard.formats import get_format

__all__ = ["SUBJECT"]

_HEADER_BYTES, _LINK_BYTES = SHIPPED.size, LINK.size
_EDGES = (15, 16, 17, 35, 36, 37, 44, 100, 350, 351)
_VERSIONS = (350, 350, 100, 100, 0, 101, 349, 351, 65535)


def _corpus(shared: Path | None = None) -> Corpus:
    """Return handmade packets, those with records and packets inside, recorded ones."""
    made = [*variety(), *_carriers()]
    recorded = [packet for _, packet in recorded_examples("gpacket")]
    if shared is not None:
        for path in sorted((shared / "vectors" / "openmq").glob("gpacket_*.bin")):
            recorded.append(path.read_bytes())
    packets = made * max(1, len(recorded) // (2 * len(made))) + recorded
    return {0: [packet for packet in packets if len(packet) <= MAX_CORPUS_BYTES]}


def _carriers() -> list[bytes]:
    """Return packets whose payload has a structure of its own."""
    inner = jmq_packet(body=b"text")
    return [
        message(inner),
        message(inner, consumers=0),
        gpacket(packet_type=5, payload=record() + record()),
        gpacket(packet_type=9, payload=consumer() + consumer(9, -1)),
        gpacket(packet_type=13, payload=section(("name", 8, "value"), ("number", 4, 1))),
        gpacket(packet_type=17, payload=gpacket(packet_type=15) + message(inner)),
    ]


def _packets(subject: Subject, corpus: Corpus, rng: Random, count: int) -> list[bytes]:
    """Return packets, some with others behind their payload."""
    packets = []
    for packet in rng.choices(corpus[0], k=count):
        if rng.random() < 0.5:
            packet = random_packet(rng)
        elif rng.random() < 0.2:
            packet = random_gpacket(rng, bool(subject.format.context))
        if rng.random() < 0.05:
            inner = b"".join(rng.choices(corpus[0], k=rng.randint(1, 3)))
            packet = _sealed(packet + inner[:MAX_CORPUS_BYTES])
        packets.append(packet)
    return packets


def _size_at(data: bytes | bytearray) -> int:
    """Return where the size stands: behind the magic if that comes first."""
    return 8 if data[:4] == MAGIC else 4


def _sealed(packet: bytes) -> bytes:
    data = bytearray(packet)
    _seal(data, SUBJECT)
    return bytes(data)


def _seal(data: bytearray, _: Subject) -> None:
    at = _size_at(data)
    data[at : at + 4] = len(data).to_bytes(4, "big")


def _places(data: bytes, _: Subject) -> list[Place]:
    """Return the size, and every type, length and count of the properties."""
    if MAGIC not in data[:12]:
        return [(0, 2), (2, 2), (4, 4), (8, 4), (12, 4)]
    stop = _HEADER_BYTES + int.from_bytes(data[12:16], "big")
    found = section_places(data, _HEADER_BYTES, min(stop, len(data)))
    # The property size is one among many places, and says the most.
    return [*found, *[(12, 4)] * (1 + len(found) // 4)]


def _lie_in_size(data: bytearray, rng: Random, subject: Subject) -> None:
    lie(data, (_size_at(data), 4), rng, subject.edges)


def _change_version(data: bytearray, rng: Random, _: Subject) -> None:
    at = 4 if data[:4] == MAGIC else 0
    if len(data) >= at + 2:
        data[at : at + 2] = rng.choice(_VERSIONS).to_bytes(2, "big")


def _change_order(data: bytearray, rng: Random, _: Subject) -> None:
    """Move the magic to where the other order has it, or put something else there."""
    if len(data) < _LINK_BYTES:
        return
    if data[:4] == MAGIC:
        data[:12] = data[4:12] + data[:4]
    else:
        data[:12] = data[8:12] + data[:8]
    if rng.random() < 0.2:
        data[rng.choice((0, 8))] ^= 1 << rng.randrange(8)


_LURES = (
    MAGIC,
    SHIPPED.pack(350, 1, 40, MAGIC, 0, 0, 0, 0),
    SHIPPED.pack(350, 1, 400, MAGIC, 20, 0, 0, 0),
    DOCUMENTED.pack(MAGIC, 350, 1, 36, 0, 0, 0, 0),
    struct.pack(">Hhi", 100, 4, 20) + bytes(8),
    link(7),
)

SUBJECT = Subject(
    format=get_format("gpacket"),
    labels=("gpacket", "gpacket/short-object"),
    corpus=_corpus,
    packets=_packets,
    places=_places,
    seal=_seal,
    lie_in_length=_lie_in_size,
    own_damage=((4, _change_version), (3, _change_order)),
    head_bytes=_HEADER_BYTES,
    edges=_EDGES,
    lures=_LURES,
)
