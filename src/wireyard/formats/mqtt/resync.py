"""Whether a packet begins where a TCP segment does, behind bytes that were not captured.

MQTT has no mark that a packet begins with, so the bytes themselves are the evidence. Senders begin
most segments with a packet; whole packets that keep every rule, one behind the other, confirm it.
Each of them has bits that the rules fix, and random bytes have them right with a chance of one half
a bit. `PROOF_BITS` of them are proof: the chance of a false start is 2^-40 a segment. Where the
captured bytes end before that, `LEAST_BITS` suffice if all of them are packets that keep the rules.
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

__all__ = [
    "ENOUGH_PACKETS",
    "LEAST_BITS",
    "PROOF_BITS",
    "PUBLISH_BITS",
    "TYPE_AND_LENGTH_BITS",
    "confirm_start",
    "find_context",
]

PROOF_BITS: Final = 40
LEAST_BITS: Final = 16
TYPE_AND_LENGTH_BITS: Final = 16
"""Of a packet other than PUBLISH: its first byte, and a length that its fields fill exactly."""
PUBLISH_BITS: Final = 4
"""Of a PUBLISH: half of its first byte."""
_WORD_BITS: Final = 16
_MOST_BYTES: Final = 1 << 16
"""A longer packet other than PUBLISH confirms nothing: it would be read whole for each segment."""
ENOUGH_PACKETS: Final = 3
"""How many more packets keep the rules of a version where no more of them need be read."""
_WITHOUT_CONNECT: Final = (0, 5)
"""Where CONNECT was not captured: the versions before 5.0 are read as one (errata M17)."""


def confirm_start(
    view: View, start: int, stop: int, max_packet_bytes: int, context: int, at_end: bool
) -> int | None:
    """Return the context of the packet that begins at `start` if the bytes behind it confirm it.

    Parameters
    ----------
    at_end
        Whether the captured bytes end at `stop`.

    Returns
    -------
    context
        `UNPROVEN` if no rule is broken and too few bytes are there, `REFUTED` if a rule is broken;
        None if more bytes are needed to say.
    """
    contexts = (context,) if context & VERSION_BITS else [context | one for one in _WITHOUT_CONNECT]
    best = REFUTED
    for one in contexts:
        found = _follow(view, start, stop, max_packet_bytes, one, at_end)
        if found is None or found >= 0:
            return found
        best = max(best, found)
    return best


def find_context(packets: Iterable[View], context: int) -> int:
    """Return the context of packets whose CONNECT was not captured (erratum M33).

    It is that of 5.0 where more of them keep the rules of 5.0 than those of the versions before, or
    as many and a PUBLISH is one of them: all payloads would begin with well-formed properties.

    Parameters
    ----------
    packets
        Whole packets of both directions.
    context
        That of the dialect, which is returned if it has a version.
    """
    if context & VERSION_BITS:
        return context
    kept, has_publish = dict.fromkeys(_WITHOUT_CONNECT, 0), False
    for view in packets:
        for one in kept:
            _, cursor = read_packet(view, context | one)
            kept[one] += not cursor.faults
            has_publish |= one == 5 and view[0] >> 4 == PUBLISH and not cursor.faults
        if abs(kept[5] - kept[0]) == ENOUGH_PACKETS:
            break
    is_new = kept[5] > kept[0] or (kept[5] == kept[0] and has_publish)
    return context | 5 if is_new else context


def _follow(
    view: View, start: int, stop: int, max_packet_bytes: int, context: int, at_end: bool
) -> int | None:
    """Follow whole packets from `start` on, all of the version of `context`."""
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
    if at == stop:  # which only one length of the last packet makes it do
        bits += last_bits
    return context if bits >= LEAST_BITS else UNPROVEN


def _fixed_bits(values: dict[str, Any]) -> int:
    """Return how many bits of a packet the rules fix at least, given its size.

    Of PUBLISH that is half of the first byte, a topic length that is no larger than the packet, and
    the highest bit of each byte of the topic.
    """
    if values["packet_type"] != PUBLISH:
        return TYPE_AND_LENGTH_BITS
    spare_bits = _WORD_BITS - int(values["remaining_length"]).bit_length()
    return PUBLISH_BITS + max(spare_bits, 0) + len(values["topic"])


def _may_begin(view: View, at: int, stop: int, size: int | None, context: int) -> bool:
    """Return whether the first bytes of a packet may be those of one that keeps the rules.

    Its first byte, and of PUBLISH the topic as far as it is there: what is not, is not waited for.
    """
    kind, flags = view[at] >> 4, view[at] & 15
    if kind not in FIXED_FLAGS or (kind == AUTH and context & VERSION_BITS not in (0, 5)):
        return False
    if kind != PUBLISH:
        strict = context & VERSION_BITS not in (2, 3)
        fits = size is None or size <= _MOST_BYTES
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
