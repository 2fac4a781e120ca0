"""MQTT as the search for disagreements sees it: sessions of every version, one after the other."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.formats.mqtt.make import (
    VERSIONS,
    connack,
    connect,
    publish,
    random_publish,
    variable,
    variety,
)
from tests.mutations import MAX_CORPUS_BYTES, Corpus, Place, Subject, lie, recorded_examples
from wireyard.formats import get_format, labels

__all__ = ["SUBJECT"]

_CONNECT, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE = 1, 3, 8, 10
_LABELS = tuple(label for label in labels() if label.split("/")[0] == "mqtt")
_VERSION_BITS = 7
_SESSION_PACKETS = (2, 5, 20)
"""How many packets follow a CONNECT: lost streams find their way at the next."""
_KINDS = {
    1: "1", 2: "4", 3: "s", 8: "s", 9: "s", 11: "v", 17: "4", 18: "s", 19: "2", 21: "s", 22: "s",
    23: "1", 24: "4", 25: "1", 26: "s", 28: "s", 31: "s", 33: "2", 34: "2", 35: "2", 36: "1",
    37: "1", 38: "ss", 39: "4", 40: "1", 41: "1", 42: "1",
}  # fmt: skip
"""What each property holds: so many bytes, a variable byte integer, or things behind a length."""


def _corpus(shared: Path | None = None) -> Corpus:
    """Return handmade packets and recorded ones by their version."""
    corpus: dict[int, list[bytes]] = {version: variety(version) for version in VERSIONS}
    found = [*recorded_examples("mqtt"), *(_of_fuzzers(shared) if shared else ())]
    for context, packet in found:
        version = context & _VERSION_BITS
        corpus[version if version in corpus else 4].append(packet)
    return corpus


def _of_fuzzers(shared: Path) -> list[tuple[int, bytes]]:
    """Return the packets that fuzzers of other MQTT 5.0 implementations keep."""
    files = sorted((shared / "captures" / "raw-mqtt5").glob("*/*"))
    return [
        (5, path.read_bytes()) for path in files if 2 <= path.stat().st_size <= MAX_CORPUS_BYTES
    ]


def _packets(subject: Subject, corpus: Corpus, rng: Random, count: int) -> list[bytes]:
    """Return sessions; the first may be one whose CONNECT nobody saw."""
    by_type = {version: _by_type(packets) for version, packets in corpus.items()}
    packets: list[bytes] = []
    version = subject.format.context & _VERSION_BITS or rng.choice(VERSIONS)
    if subject.format.dialect is None and rng.random() < 0.3:
        packets.append(connack(version))
    while len(packets) < count:
        if packets or subject.format.dialect is None:
            version = rng.choice(VERSIONS)
            packets.append(rng.choice(by_type[version][_CONNECT]))
        for _ in range(rng.choice(_SESSION_PACKETS)):
            if rng.random() < 0.3:
                packets.append(random_publish(version, rng))
            else:
                packets.append(rng.choice(rng.choice([*by_type[version].values()])))
    return packets[:count]


def _by_type(packets: list[bytes]) -> dict[int, list[bytes]]:
    """Group packets by their type: most are PUBLISH, and each has rules of its own."""
    found: dict[int, list[bytes]] = {}
    for packet in packets:
        found.setdefault(packet[0] >> 4, []).append(packet)
    return found


# --- where structure stands -----------------------------------------------------------------


def _variable_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable byte integer, of four bytes at most, and where it ends."""
    value = shift = 0
    for place in range(at, min(at + 4, len(data))):
        value |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            return value, place + 1
    return value, min(at + 4, len(data))


def _after_text(data: bytes, at: int) -> int:
    return at + 2 + int.from_bytes(data[at : at + 2], "big")


def _property_places(data: bytes, at: int, found: list[Place]) -> int:
    """Find the identifiers, values and lengths of a property section; return where it ends."""
    found.append((at, 1))
    size, at = _variable_at(data, at)
    stop = min(at + size, len(data))
    while at < stop:
        found.append((at, 1))
        kind = _KINDS.get(data[at], "1")
        at += 1
        if kind == "v":
            found.append((at, 1))
            at = _variable_at(data, at)[1]
        elif kind[0] == "s":
            for _ in kind:
                found.append((at, 2))
                at = _after_text(data, at)
        else:
            found.append((at, int(kind)))
            at += int(kind)
    return stop


def _places(data: bytes, _: Subject) -> list[Place]:
    """Return codes, flags and lengths; read both as if there were properties and as if not.

    Only 5.0 has them, and only the stream tells the version.
    """
    found: list[Place] = []
    kind, at = data[0] >> 4, _variable_at(data, 1)[1]
    if kind == _CONNECT:
        _connect_places(data, at, found)
    else:
        if kind == _PUBLISH:
            found.append((at, 2))
            at = _after_text(data, at)
        found.append((at, 2))
        for has_properties in (False, True):
            _rest_places(data, kind, at, has_properties, found)
    return [(place, width) for place, width in found if place + width <= len(data)]


def _rest_places(data: bytes, kind: int, at: int, has_properties: bool, found: list[Place]) -> None:
    """Find what stands behind the topic, or behind the fixed header of other packets."""
    if kind != _PUBLISH or data[0] & 6:
        at += 2
    if kind not in (_PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE, 9, 11):
        at -= 2 * (kind in (14, 15))
        found.append((at, 1))
        at += 1
    if has_properties and at < len(data):
        at = _property_places(data, at, found)
    while kind in (_SUBSCRIBE, _UNSUBSCRIBE) and at < len(data):
        found.append((at, 2))
        at = _after_text(data, at)
        if kind == _SUBSCRIBE:
            found.append((at, 1))
            at += 1
    if kind in (9, 11):
        found += [(place, 1) for place in range(at, len(data))]


def _connect_places(data: bytes, at: int, found: list[Place]) -> None:
    found.append((at, 2))
    at = _after_text(data, at)
    found += [(at, 1), (at + 1, 1), (at + 2, 2)]
    has_properties, flags = data[at : at + 1] == b"\5", data[at + 1 : at + 2]
    at += 4
    if has_properties and at < len(data):
        at = _property_places(data, at, found)
    found.append((at, 2))
    at = _after_text(data, at)
    if has_properties and flags and flags[0] & 4 and at < len(data):
        at = _property_places(data, at, found)
    while at < len(data):
        found.append((at, 2))
        at = _after_text(data, at)


# --- damage ---------------------------------------------------------------------------------


def _seal(data: bytearray, _: Subject) -> None:
    """Set Remaining Length in as many bytes as it has."""
    _set_remaining_length(data, _variable_at(bytes(data), 1)[1] - 1)


def _set_remaining_length(data: bytearray, least: int) -> None:
    stop = _variable_at(bytes(data), 1)[1]
    data[1:stop] = variable(len(data) - stop, least)


def _pad_remaining_length(data: bytearray, rng: Random, _: Subject) -> None:
    _set_remaining_length(data, rng.choice((2, 3, 4)))


def _lie_in_remaining_length(data: bytearray, rng: Random, subject: Subject) -> None:
    if rng.random() < 0.1:
        data[1:2] = b"\xff\xff\xff\xff\x7f"
    else:
        lie(data, (1, 1), rng, subject.edges)


def _change_first_byte(data: bytearray, rng: Random, _: Subject) -> None:
    """Change a flag, or the type."""
    if rng.random() < 0.7:
        data[0] ^= 1 << rng.randrange(4)
    else:
        data[0] = data[0] & 15 | rng.randrange(16) << 4


def _change_last_byte(data: bytearray, rng: Random, _: Subject) -> None:
    """Change what is a code or an option of most packets."""
    data[-1] = rng.choice((0, 1, 3, 4, 0x30, 0x80, 0x92, rng.randrange(256)))


def _change_connect_flags(data: bytearray, rng: Random, subject: Subject) -> None:
    """Change the flags of a CONNECT, which say what its payload has."""
    places = subject.places(bytes(data), subject)
    if data[0] >> 4 == _CONNECT and len(places) > 2:
        data[places[2][0]] = rng.randrange(256)


def _add_property(data: bytearray, rng: Random, _: Subject) -> None:
    """Put a property before others, its length counted; the packet may be of another version."""
    kind, at = data[0] >> 4, _variable_at(bytes(data), 1)[1]
    if kind == _PUBLISH:
        at = _after_text(bytes(data), at)
    at += _BEFORE_PROPERTIES[kind] - 2 * (kind == _PUBLISH and not data[0] & 6)
    if at >= len(data) or data[at] >= 100:
        return
    code = rng.choice((*_KINDS, 127))
    value = rng.choice((b"\0", b"\1", b"\2", b"\xff"))
    held = _KINDS.get(code, "1")
    if held[0] == "s":
        made = b"".join(b"\0\1" + rng.choice((b"a", b"#", b"\xff")) for _ in held)
    else:
        made = value.rjust(1 if held == "v" else int(held), b"\0")
    data[at] += 1 + len(made)
    data[at + 1 : at + 1] = bytes([code]) + made


_BEFORE_PROPERTIES = [0, 10, 2, 2, 3, 3, 3, 3, 2, 2, 2, 2, 0, 0, 1, 1]
"""Bytes in front of Property Length by packet type, behind the topic of PUBLISH."""
_LURES = (connect(4), connect(5)[:12], connect(3)[:14], b"\x10", b"\x10\x0c\0\4MQTT", publish(4))
_TEXTS = (
    b"+",
    b"#",
    b"/#",
    b"+/",
    b"\0",
    b"$share/",
    b"$share//a",
    b"$share/+/a",
    b"\xff\xff\xff\x7f",
)


SUBJECT = Subject(
    format=get_format("mqtt"),
    labels=_LABELS,
    corpus=_corpus,
    packets=_packets,
    places=_places,
    seal=_seal,
    lie_in_length=_lie_in_remaining_length,
    own_damage=(
        (2, _pad_remaining_length),
        (8, _change_first_byte),
        (10, _add_property),
        (3, _change_connect_flags),
        (5, _change_last_byte),
    ),
    head_bytes=12,
    edges=(0, 2, 3, 4, 5, 6, 0x30, 0x83, 0x84, 0x87),
    damaged=0.6,  # Most of what packets so short can be hit in is what their rules are about.
    texts=_TEXTS,
    lures=_LURES,
)
