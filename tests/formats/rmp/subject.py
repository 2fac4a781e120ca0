"""RMP as the search for disagreements sees it: packets alone, and framed ones in long streams."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from tests.formats.rmp.make import (
    ALL_FLAGS,
    CLIENT,
    DOMAIN,
    MORE,
    REPLY_TO,
    SEGMENT,
    framed,
    message,
    random_packet,
)
from tests.mutations import Corpus, Place, Subject, lie
from wireyard.formats import get_format, labels

__all__ = ["FORMATS", "SUBJECT"]

FORMATS = {label: get_format(label) for label in labels() if label.startswith("rmp")}
"""The dialects, by label."""

_FLAG_ORDER, _LIST_ORDER = (FORMATS[label].context for label in ("rmp", "rmp/list-order"))
_FIELD_WIDTHS = {SEGMENT: (2, 2, 2), DOMAIN: (2,), CLIENT: (2,), REPLY_TO: (2, 4, 2), MORE: (2,)}
_EDGES = (0, 1, 2, 5, 6, 10, 0x0FFF, 0x1000, 0x1001)


def _is_framed(subject: Subject) -> bool:
    return "framed" in subject.format.label


def _is_list_order(subject: Subject) -> bool:
    return "list-order" in subject.format.label


def _corpus(shared: Path | None = None) -> Corpus:
    """Return a packet for each combination of flags, in both orders, and the golden ones."""
    golden: list[bytes] = []
    if shared is not None:
        vectors = json.loads((shared / "vectors" / "rmp" / "vectors.json").read_text())
        golden = [bytes.fromhex(vector["hex"]) for vector in vectors]
    return {
        context: [
            message(flags | 3, b"data", list_order=list_order)
            + (message(1, b"last") if flags & MORE else b"")
            for flags in ALL_FLAGS
        ]
        + golden
        for context, list_order in ((_FLAG_ORDER, False), (_LIST_ORDER, True))
    }


def _packets(subject: Subject, corpus: Corpus, rng: Random, count: int) -> list[bytes]:
    list_order = _is_list_order(subject)
    known = corpus[_LIST_ORDER if list_order else _FLAG_ORDER]
    packets = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.02:
            packets.append(_many_messages(rng, list_order))
        else:
            packets.append(
                rng.choice(known) if kind < 0.2 else random_packet(rng, list_order=list_order)
            )
    return [framed(packet) for packet in packets] if _is_framed(subject) else packets


def _many_messages(rng: Random, list_order: bool) -> bytes:
    """Return a packet of more messages than packets usually have."""
    flags = [rng.choice(ALL_FLAGS) | MORE for _ in range(rng.randint(10, 200))]
    first = [message(each, b"x" * (each % 3), list_order=list_order) for each in flags]
    return b"".join(first) + message(0, b"last")


def _places(data: bytes, subject: Subject) -> list[Place]:
    """Return typing words, segmentation fields and lengths, as far as the packet can be walked."""
    found: list[Place] = []
    at = 2 if _is_framed(subject) else 0
    order = [SEGMENT, DOMAIN, CLIENT, REPLY_TO, MORE]
    if _is_list_order(subject):
        order[3:] = MORE, REPLY_TO
    more = True
    while more and at + 2 <= len(data):
        word = int.from_bytes(data[at : at + 2], "big")
        found.append((at, 2))
        at += 2
        size = 0
        more = word & MORE != 0 and word < 0x1000
        for flag in order if word < 0x1000 else ():
            if word & flag:
                if flag in (SEGMENT, MORE):
                    found += [(at + 2 * n, 2) for n in range(len(_FIELD_WIDTHS[flag]))]
                if flag == MORE:
                    size = int.from_bytes(data[at : at + 2], "big")
                at += sum(_FIELD_WIDTHS[flag])
        at += size
    return [(place, width) for place, width in found if place + width <= len(data)]


def _seal(data: bytearray, subject: Subject) -> None:
    if _is_framed(subject):
        data[:2] = min(max(len(data) - 2, 0), 0xFFFF).to_bytes(2, "big")


def _lie_in_length(data: bytearray, rng: Random, subject: Subject) -> None:
    """Lie about how long the packet is, which only a framed one says."""
    if _is_framed(subject):
        lie(data, (0, 2), rng, subject.edges)


def _change_flag(data: bytearray, rng: Random, subject: Subject) -> None:
    """Set or take one flag of a message, or make it foreign."""
    at = rng.choice(_typing_words(data, subject))
    if at + 2 <= len(data):
        data[at] ^= rng.choice((0x08, 0x04, 0x02, 0x01, 0x10))


def _typing_words(data: bytearray, subject: Subject) -> list[int]:
    first = 2 if _is_framed(subject) else 0
    return [first, *(at for at, _ in _places(bytes(data), subject))]


def _kept(packet: Any) -> Any:
    """Return the message, but of several in a framed packet not the first.

    Its row alone does not tell how long the packet is; all rows of the packet do.
    """
    return None if packet.framed_bytes is not None and packet.more_follows else packet


SUBJECT = Subject(
    format=FORMATS["rmp"],
    labels=tuple(FORMATS),
    alone=frozenset({"rmp", "rmp/list-order"}),
    joined=frozenset({"rmp/framed", "rmp/framed-list-order"}),
    corpus=_corpus,
    packets=_packets,
    places=_places,
    seal=_seal,
    lie_in_length=_lie_in_length,
    own_damage=((10, _change_flag),),
    head_bytes=14,
    edges=_EDGES,
    kept=_kept,
    lures=(b"\0\0", b"\x10\0", b"\0\x80\0\0", struct.pack(">HH", 6, 0)),
)
