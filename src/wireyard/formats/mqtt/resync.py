"""Resynchronization after bytes that were not captured: decides if a packet begins at a segment.

MQTT packets have no magic number, so the bytes themselves are the evidence. Senders begin most TCP
segments with a packet; consecutive whole, valid packets from there on confirm it. The rules fix
some bits of each packet, and random bytes match each with probability 1/2. `PROOF_BITS` such bits
are proof: the probability of a false start is 2^-40 per segment. If the captured bytes end before
that, `LEAST_BITS` suffice, provided that all of the bytes are valid packets.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any, Final

from wireyard.errors import DecodeError
from wireyard.formats.base import REFUTED, UNPROVEN, View
from wireyard.formats.mqtt.cursor import read_integer
from wireyard.formats.mqtt.framing import frame_size, next_context
from wireyard.formats.mqtt.layout import AUTH, FIXED_FLAGS, PUBLISH, VERSION_BITS
from wireyard.formats.mqtt.packet import read_packet

PROOF_BITS: Final = 40
LEAST_BITS: Final = 16
TYPE_AND_LENGTH_BITS: Final = 16
"""Fixed bits of a packet other than PUBLISH: its first byte, and a length that its fields fill."""
PUBLISH_BITS: Final = 4
"""Fixed bits of a PUBLISH: half of its first byte."""
_WORD_BITS: Final = 16
MOST_BYTES: Final = 1 << 16
"""Largest packet other than PUBLISH that counts; longer ones would be read for each segment."""
ENOUGH_PACKETS: Final = 3
"""Lead of one version, in valid packets, at which no more packets are read."""
_WITHOUT_CONNECT: Final = (0, 5)
"""Versions to try if CONNECT was not captured; those before 5.0 are read as one (errata M17)."""


def confirm_start(
    view: View, start: int, stop: int, max_packet_bytes: int, context: int, at_end: bool
) -> int | None:
    """Return the context of a packet at `start` if the bytes from there on confirm that it is one.

    The result is `UNPROVEN` if the bytes break no rule but are too few, `REFUTED` if they break
    one, None if more bytes are needed. With `at_end`, the captured bytes end at `stop`.
    """
    candidates = (
        (context,)
        if context & VERSION_BITS
        else [context | version for version in _WITHOUT_CONNECT]
    )
    best = REFUTED
    for candidate in candidates:
        result = _follow(view, start, stop, max_packet_bytes, candidate, at_end)
        if result is None or result >= 0:
            return result
        best = max(best, result)
    return best


def find_context(packets: Iterable[View], context: int) -> int:
    """Return the context of packets whose CONNECT was not captured (erratum M33).

    It is that of 5.0 if more of them are valid in 5.0 than in the earlier versions, or as many and
    one is a PUBLISH: else every payload would happen to begin with well-formed properties. The
    packets are whole, of both directions. `context` is that of the dialect, which is returned if it
    has a version.
    """
    if context & VERSION_BITS:
        return context
    valid, has_publish = dict.fromkeys(_WITHOUT_CONNECT, 0), False
    for view in packets:
        for version in valid:
            _, cursor = read_packet(view, context | version)
            valid[version] += not cursor.faults
            has_publish |= version == 5 and view[0] >> 4 == PUBLISH and not cursor.faults
        if abs(valid[5] - valid[0]) == ENOUGH_PACKETS:
            break
    is_new = valid[5] > valid[0] or (valid[5] == valid[0] and has_publish)
    return context | 5 if is_new else context


def _follow(
    view: View, start: int, stop: int, max_packet_bytes: int, context: int, at_end: bool
) -> int | None:
    """Decide as `confirm_start` does, for one context: read whole packets from `start` on."""
    bits, last_bits, at, current = 0, 0, start, context
    while bits < PROOF_BITS and at < stop:
        try:
            size = frame_size(view, at, stop, max_packet_bytes, current)
        except DecodeError:
            return REFUTED
        if not _may_begin(view, at, stop, size, current):
            return REFUTED
        if size is None or at + size > stop:
            if not at_end:
                return None
            break
        values, cursor = read_packet(view[at : at + size], current)
        if cursor.faults:
            return REFUTED
        bits += _fixed_bits(values)
        last_bits = int(values["remaining_length"]).bit_length()
        current = next_context(view[at : at + size], current)
        at += size
    if bits >= PROOF_BITS:
        return context
    if not at_end:
        return None
    if at == stop:  # one value only of the last packet's length ends it at `stop`
        bits += last_bits
    return context if bits >= LEAST_BITS else UNPROVEN


def _fixed_bits(values: dict[str, Any]) -> int:
    """Return the least number of bits that the rules fix in a packet of this size.

    In PUBLISH they are half of the first byte, the upper bits of the topic length, which is no
    larger than the packet, and the highest bit of each byte of the topic.
    """
    if values["packet_type"] != PUBLISH:
        return TYPE_AND_LENGTH_BITS
    spare_bits = _WORD_BITS - int(values["remaining_length"]).bit_length()
    return PUBLISH_BITS + max(spare_bits, 0) + len(values["topic"])


def _may_begin(view: View, at: int, stop: int, size: int | None, context: int) -> bool:
    """Return whether the first bytes at `at` may begin a valid packet.

    It checks the first byte, and of PUBLISH the available part of the topic.
    """
    kind, flags = view[at] >> 4, view[at] & 15
    if kind not in FIXED_FLAGS or (kind == AUTH and context & VERSION_BITS not in (0, 5)):
        return False
    if kind != PUBLISH:
        strict = context & VERSION_BITS not in (2, 3)
        fits = size is None or size <= MOST_BYTES
        return fits and not (strict and flags != FIXED_FLAGS[kind])
    if flags & 6 == 6 or flags & 14 == 8:
        return False
    length, body = read_integer(view, at + 1, stop)
    if body == at + 1 or body + 2 > stop:
        return True
    topic_bytes = int.from_bytes(view[body : body + 2], "big")
    if topic_bytes + 2 > length:
        return False
    topic = bytes(view[body + 2 : min(body + 2 + topic_bytes, stop)])
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(topic)
    except UnicodeDecodeError:
        return False
    return not any(char in text for char in "+#\0")
