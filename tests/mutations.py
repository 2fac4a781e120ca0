"""Seeded damage: packets with flipped bits and lying lengths, streams cut, spliced and repeated.

The same seed and corpus give the same bytes on every machine. What a format's packets are like is
told by a `Subject`, one in each format's folder; it finds structure by a small walk of its own, so
that damage lands on lengths and counts, not only on random bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    "lie",
    "mutate_packet",
    "mutated_stream",
    "mutated_streams",
    "recorded_examples",
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
Damage = Callable[[bytearray, Random], None]
Corpus = Mapping[int, list[bytes]]
"""Whole packets to start from, by the context that they are read with."""


def _as_it_is(data: bytearray, format: Format) -> None:
    """Leave a packet as it is."""


def _whole(packet: Any, format: Format) -> Any:
    return packet


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One format as a search sees it."""

    name: str
    corpus: Callable[[Path | None], Corpus]
    """Packets made by hand and recorded ones, those of the shared folder too if it is given."""
    packets: Callable[[Format, Corpus, Random, int], list[bytes]]
    """So many whole packets in an order that they can have in a stream of the format."""
    places: Callable[[bytes, Format], list[Place]]
    """Where types, lengths and counts stand, big-endian, as far as the packet can be walked."""
    seal: Callable[[bytearray, Format], None]
    """Make the packet's own length right."""
    own_damage: tuple[tuple[int, Damage], ...] = ()
    """Weight and damage that only this format has."""
    head_bytes: int
    """Half of all flipped bits are before this."""
    edges: tuple[int, ...]
    """Values where one of the format's integers changes its meaning."""
    texts: tuple[bytes, ...] = ()
    """What its texts must not have, besides what is no UTF-8."""
    lures: tuple[bytes, ...]
    """Beginnings of packets: what resynchronising must not fall for."""
    labels: tuple[str, ...]
    """What streams are read as; each case takes one."""
    alone: frozenset[str] = frozenset()
    """Labels under which a stream is one packet."""
    kept: Callable[[Any, Format], Any] = field(default=_whole)
    """A packet -> what a row of it keeps, as the packet that `packet_of` makes of that row."""
    exact: bool = True
    """Whether every well-formed packet is encoded to the bytes it was decoded from."""


def subject_of(name: str) -> Subject:
    """Return the subject of a format, which stands in its folder."""
    found: Subject = import_module(f"tests.formats.{name}.subject").SUBJECT
    return found


def recorded_examples(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the recorded example packets of a format, each after its context."""
    for path in sorted(EXAMPLES.glob(f"traffic/*.{name}")):
        data = path.read_bytes()
        for frame in frames_of(data, get_format(name)):
            if frame.stop - frame.start <= MAX_CORPUS_BYTES:
                yield frame.context, data[frame.start : frame.stop]


# --- damage to one packet -------------------------------------------------------------------


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
            value = rng.choice((*edges, *(_EDGES_32 if width > 2 else _EDGES)))
        case _:
            value = rng.getrandbits(8 * width)
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")


def _flip_bits(data: bytearray, rng: Random, subject: Subject) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        reach = min(len(data), subject.head_bytes) if rng.random() < 0.5 else len(data)
        data[rng.randrange(reach)] ^= 1 << rng.randrange(8)


def _change_text(data: bytearray, rng: Random, subject: Subject) -> None:
    """Put bytes that are or nearly are UTF-8 over others, behind the header if possible."""
    text = rng.choice(subject.texts if subject.texts and rng.random() < 0.5 else _TEXTS)
    at = rng.randrange(min(subject.head_bytes, len(data) - 1), len(data))
    data[at : at + len(text)] = text[: len(data) - at]


def _cut(data: bytearray, rng: Random, _: Subject) -> None:
    del data[rng.randrange(1, len(data)) :]


def _insert(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 72)))


def _remove(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(1, len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, 71))]


def _repeat(data: bytearray, rng: Random, _: Subject) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 4, 12, 72, 200))]


def _put_lure(data: bytearray, rng: Random, subject: Subject) -> None:
    lure = rng.choice(subject.lures)
    at = rng.randrange(len(data))
    data[at : at + len(lure)] = lure[: len(data) - at]


_LIE_WEIGHT = 30
_IN_PLACE = ((20, _flip_bits), (12, _change_text), (4, _put_lure))
"""Weight and damage that leaves the packet as long as it is."""
_OTHER_LENGTH = ((3, _cut), (3, _insert), (3, _remove), (3, _repeat))
"""What breaks the framing is rare, or most packets would only be garbage."""
_SEALED = 0.7
"""How many packets of another length say so."""


def mutate_packet(
    packet: bytes, rng: Random, subject: Subject, format: Format | None = None
) -> bytes:
    """Return a packet with one to three kinds of damage."""
    format = format or get_format(subject.name)
    data = bytearray(packet)

    def _lie(data: bytearray, rng: Random, subject: Subject) -> None:
        places = subject.places(bytes(data), format)
        if places:
            lie(data, rng.choice(places), rng, subject.edges)

    def sealed(damage: Callable[[bytearray, Random, Subject], None]) -> Any:
        def seal(data: bytearray, rng: Random, subject: Subject) -> None:
            damage(data, rng, subject)
            if data and rng.random() < _SEALED:
                subject.seal(data, format)

        return seal
    return bytes(data)
