"""Seeded damage: packets with flipped bits and lying lengths, streams cut, spliced and repeated.

The same seed and corpus give the same bytes on every machine. What a format's packets are like is
in a `Subject`, one in each format's folder; it finds structure by a small walk of its own, so that
damage lands on lengths and counts, not only on random bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from tests.readings import frames_of
from wireyard.formats import get_format
from wireyard.formats.base import Format

__all__ = [
    "MAX_CORPUS_BYTES",
    "Corpus",
    "Damage",
    "Place",
    "Subject",
    "damaged_stream",
    "damaged_streams",
    "lie",
    "mutate_packet",
    "recorded_examples",
    "section_places",
    "subject_of",
]

MAX_CORPUS_BYTES = 4096
"""Longer packets only slow the search: what damage can hit is in the first few hundred bytes."""

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

_EDGES = (0, 1, 2, 3, 4, 7, 8, 11, 12, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF)
_EDGES_32 = (*_EDGES, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8, 0x04000000)
_STEPS = (1, 1, 2, 3, 4, 8, 12, 40, 72, 200)
_TEXTS = (
    b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc1\xbf",
    b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xc3\xa9", b"\xff", b"\x80",
    b"\0", b"\xef\xbb\xbf", b"\xe2\x82", b"\xf0\x80\x80\x80", b"\xed\x9f\xbf", b"\xee\x80\x80",
)  # fmt: skip

Place = tuple[int, int]
"""Position and width in bytes of an integer that says how a packet is laid out."""
Damage = Callable[[bytearray, Random, "Subject"], None]
Corpus = Mapping[int, list[bytes]]
"""Whole packets to start from, by the context that they are read with."""


def _whole(packet: Any) -> Any:
    return packet


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One format as a search sees it, read as one of its dialects."""

    format: Format
    labels: tuple[str, ...]
    """What streams can be read as; each case takes one."""
    alone: frozenset[str] = frozenset()
    """Labels under which a stream is one packet."""
    joined: frozenset[str] = frozenset()
    """Labels under which a packet may be several rows, which have its bytes only together."""
    corpus: Callable[[Path | None], Corpus]
    """Packets made by hand and recorded ones, those of the shared folder too if it is given."""
    packets: Callable[[Subject, Corpus, Random, int], list[bytes]]
    """So many whole packets, in an order that they can have in a stream."""
    places: Callable[[bytes, Subject], list[Place]]
    """Where types, lengths and counts stand, big-endian, as far as the packet can be walked."""
    seal: Callable[[bytearray, Subject], None]
    """Make the packet's own length right."""
    lie_in_length: Damage
    """Make it wrong."""
    own_damage: tuple[tuple[int, Damage], ...] = ()
    """Weight and damage that only this format has."""
    head_bytes: int
    """Half of all flipped bits are before this, texts behind it."""
    edges: tuple[int, ...]
    """Values where one of the format's integers changes its meaning."""
    texts: tuple[bytes, ...] = ()
    """What its texts must not have, besides what is no UTF-8."""
    lures: tuple[bytes, ...]
    """Beginnings of packets: what resynchronising must not fall for."""
    kept: Callable[[Any], Any] = _whole
    """A packet -> the packet that its row describes, None if no row does."""
    damaged: float = 1.0
    """How many packets are damaged, of those that are not there to stand between others."""

    def read_as(self, label: str) -> Subject:
        """Return the same, read as another dialect."""
        return replace(self, format=get_format(label))


def subject_of(label: str) -> Subject:
    """Return the subject of a format, which stands in its folder, read as the label says."""
    name = label.partition("/")[0]
    found: Subject = import_module(f"tests.formats.{name}.subject").SUBJECT
    return found.read_as(label)


def recorded_examples(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the recorded example packets of a format, each after the context it leaves behind."""
    format = get_format(name)
    for path in sorted(EXAMPLES.glob(f"traffic/*.{name}")):
        data = path.read_bytes()
        for frame in frames_of(data, format):
            packet = data[frame.start : frame.stop]
            if len(packet) <= MAX_CORPUS_BYTES:
                yield format.contexts.next(packet, frame.context), packet


# --- damage to one packet -------------------------------------------------------------------


_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8}
"""Of the marshalled property types that have one width."""


def lie(data: bytearray, place: Place, rng: Random, edges: Sequence[int]) -> None:
    """Change an integer: a little, to an edge, or to anything."""
    at, width = place
    if at + width > len(data):
        return
    value = int.from_bytes(data[at : at + width], "big")
    match rng.randrange(4):
        case 0 | 1:
            value += rng.choice((-1, 1)) * rng.choice(_STEPS)
        case 2:
            others = _EDGES_32 if width > 2 else _EDGES
            value = rng.choice(edges if rng.random() < 0.5 else others)
        case _:
            value = rng.getrandbits(8 * width)
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")


def section_places(data: bytes, start: int, stop: int) -> list[Place]:
    """Return version and count, and lengths and types, of the marshalled properties at `start`."""
    if stop - start < 8 or data[start : start + 4] != b"\0\0\0\1":
        return []
    found: list[Place] = [(start, 4), (start + 4, 4)]
    at = start + 8
    while at + 5 <= stop:
        kind_at = at + 2 + int.from_bytes(data[at : at + 2], "big")
        found += [(at, 2), (kind_at, 2)]
        kind = int.from_bytes(data[kind_at : kind_at + 2], "big")
        width = {8: 2, 9: 4}.get(kind, 0)
        value = int.from_bytes(data[kind_at + 2 : kind_at + 2 + width], "big")
        if width:
            found.append((kind_at + 2, width))
        at = kind_at + 2 + width + value + _VALUE_BYTES.get(kind, 0)
    return found


def _lie_in_places(data: bytearray, rng: Random, subject: Subject) -> None:
    places = subject.places(bytes(data), subject)
    if places:
        lie(data, rng.choice(places), rng, subject.edges)


def _flip_bits(data: bytearray, rng: Random, subject: Subject) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        reach = min(len(data), subject.head_bytes) if rng.random() < 0.5 else len(data)
        data[rng.randrange(reach)] ^= 1 << rng.randrange(8)


def _change_text(data: bytearray, rng: Random, subject: Subject) -> None:
    """Put bytes that are or nearly are UTF-8 over others, behind a length or behind the header."""
    text = rng.choice(subject.texts if subject.texts and rng.random() < 0.5 else _TEXTS)
    at = rng.randrange(min(subject.head_bytes, len(data) - 1), len(data))
    places = subject.places(bytes(data), subject)
    if places and rng.random() < 0.5:
        at = min(sum(rng.choice(places)), len(data))
    _put(data, at, text)


def _put_lure(data: bytearray, rng: Random, subject: Subject) -> None:
    _put(data, rng.randrange(len(data)), rng.choice(subject.lures))


def _put(data: bytearray, at: int, part: bytes) -> None:
    data[at : at + len(part)] = part[: len(data) - at]


def _cut(data: bytearray, rng: Random, subject: Subject) -> None:
    """Cut a packet anywhere, or where something begins."""
    places = [at for at, _ in subject.places(bytes(data), subject) if at > 0]
    at = rng.choice(places) if places and rng.random() < 0.5 else rng.randrange(1, len(data))
    del data[at:]


def _insert(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 72)))


def _remove(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(1, len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, 71))]


def _repeat(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 4, 12, 72, 200))]


_DAMAGE = (
    (30, _lie_in_places),
    (20, _flip_bits),
    (12, _change_text),
    (4, _put_lure),
    (4, _cut),
    (3, _insert),
    (3, _remove),
    (3, _repeat),
)
"""Weight and damage."""
_SEALED, _LYING = 0.95, 0.04
"""What breaks the framing is rare, or most packets would only be garbage."""


def mutate_packet(packet: bytes, rng: Random, subject: Subject) -> bytes:
    """Return a packet with one to three kinds of damage; almost all say how long they now are."""
    data = bytearray(packet)
    table = (*_DAMAGE, *subject.own_damage)
    kinds = rng.choices(
        [damage for _, damage in table],
        [weight for weight, _ in table],
        k=rng.choice((1, 1, 1, 2, 3)),
    )
    for damage in kinds:
        if len(data) < 2:
            break
        damage(data, rng, subject)
    if data and rng.random() < _SEALED:
        subject.seal(data, subject)
    if data and rng.random() < _LYING:
        subject.lie_in_length(data, rng, subject)
    return bytes(data)


# --- damage to a stream ---------------------------------------------------------------------


def damaged_streams(subject: Subject, corpus: Corpus, rng: Random, count: int) -> list[bytes]:
    """Return `count` packets, most of them damaged, as one stream, or as one stream each."""
    parts: list[bytes] = []
    for packet in subject.packets(subject, corpus, rng, count):
        if rng.random() < 0.2:
            parts.append(packet)
        damaged = rng.random() < subject.damaged
        parts.append(mutate_packet(packet, rng, subject) if damaged else packet)
    if subject.format.label in subject.alone:
        return [part for part in parts if part]
    return [_spoilt(parts, rng)]


def damaged_stream(label: str, rng: Random, count: int) -> bytes:
    """Return `count` damaged packets, some whole ones between them, as one stream."""
    [stream] = damaged_streams(subject_of(label), _corpus_of(label), rng, count)
    return stream


@cache
def _corpus_of(label: str) -> Corpus:
    return subject_of(label).corpus(None)


def _spoilt(parts: list[bytes], rng: Random) -> bytes:
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
