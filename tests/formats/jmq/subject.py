"""JMQ as the search for disagreements sees it: packets to start from, and where they can lie."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.formats.jmq.grammar import random_jmq
from tests.golden import GOLDEN
from tests.make import MAGIC, nested, random_packet, variety
from tests.mutations import (
    MAX_CORPUS_BYTES,
    Corpus,
    Place,
    Subject,
    lie,
    mutate_packet,
    recorded_examples,
    section_places,
)
from wireyard.formats import get_format

__all__ = ["SUBJECT"]

HEADER_BYTES = 72
_EDGES = (71, 72, 73, 76, 80, 300)
_VERSIONS = (103, 103, 200, 200, 301, 0, 102, 302, 350, 65535)


def _corpus(shared: Path | None = None) -> Corpus:
    """Return handmade packets, the recorded examples, and what the shipped classes wrote."""
    recorded = [packet for _, packet in recorded_examples("jmq")]
    made = [*variety(), *(golden.data for golden in GOLDEN.values())]
    # Made packets are few and rich: each counts as many recorded ones.
    corpus = made * max(1, len(recorded) // (2 * len(made))) + recorded
    if shared is not None:
        for path in sorted((shared / "vectors" / "openmq").glob("jmq_*.bin")):
            if HEADER_BYTES <= path.stat().st_size <= MAX_CORPUS_BYTES:
                corpus.append(path.read_bytes())
    return {0: corpus}


def _packets(subject: Subject, corpus: Corpus, rng: Random, count: int) -> list[bytes]:
    """Return packets, some with whole others, damaged or not, at or near the end of the body."""
    packets = []
    for packet in rng.choices(corpus[0], k=count):
        if rng.random() < 0.2:
            packet = random_packet(rng)
        elif rng.random() < 0.2:
            version = rng.choice((103, 200, 301, 301, 301))
            dialect = subject.format.dialect
            packet = random_jmq(rng, version, dialect == "short-object", dialect == "timestamps")
        if rng.random() < 0.05:
            inner = b"".join(rng.choices(corpus[0], k=rng.randint(1, 3)))
            if rng.random() < 0.3:
                inner = mutate_packet(inner, rng, subject)
            before, after = rng.choice(((0, 0), (0, 0), (10, 4), (0, 1), (3, 0)))
            packet = nested(packet, inner, before=before, after=after)
        packets.append(packet)
    return packets


def _sections(data: bytes | bytearray) -> int:
    """Return where property offset and size stand, shifted by four in version 103."""
    return 56 if data[4:6] == b"\0\x67" else 52


def _places(data: bytes, _: Subject) -> list[Place]:
    """Return every type, length and count in items and properties."""
    at = _sections(data)
    offset = min(int.from_bytes(data[at : at + 4], "big"), len(data))
    size = int.from_bytes(data[at + 4 : at + 8], "big")
    found: list[Place] = []
    at = HEADER_BYTES
    while at + 4 <= offset:
        found += [(at, 2), (at + 2, 2)]
        if data[at : at + 2] == b"\0\0":
            break
        at += 4 + int.from_bytes(data[at + 2 : at + 4], "big")
    found += section_places(data, offset, min(offset + size, len(data)))
    return [(place, width) for place, width in found if place + width <= len(data)]


def _lie_in_sections(data: bytearray, rng: Random, subject: Subject) -> None:
    lie(data, (_sections(data) + rng.choice((0, 4)), 4), rng, subject.edges)


def _lie_in_size(data: bytearray, rng: Random, subject: Subject) -> None:
    lie(data, (8, 4), rng, subject.edges)


def _change_version(data: bytearray, rng: Random, _: Subject) -> None:
    if len(data) >= 6:
        data[4:6] = rng.choice(_VERSIONS).to_bytes(2, "big")


def _seal(data: bytearray, _: Subject) -> None:
    data[8:12] = len(data).to_bytes(4, "big")


SUBJECT = Subject(
    format=get_format("jmq"),
    labels=("jmq", "jmq/short-object", "jmq/timestamps"),
    corpus=_corpus,
    packets=_packets,
    places=_places,
    seal=_seal,
    lie_in_length=_lie_in_size,
    own_damage=((12, _lie_in_sections), (5, _change_version)),
    head_bytes=HEADER_BYTES,
    edges=_EDGES,
    lures=tuple(MAGIC + struct.pack(">HHi", 301, 1, size) for size in (72, 80, 300, 71)),
)
