"""Many small streams in one call: which of them show MQTT, and the frames of those.

A capture may have a hundred thousand connections of a few packets each, and a call of a kernel for
each costs more than all of their bytes. Streams lie one behind the other in one buffer here.

Axes: t = streams, r = rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.base import Shown
from wireyard.formats.mqtt.kernels import find_frames
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    VERSION_BITS,
)
from wireyard.formats.mqtt.resync import PROOF_BITS, PUBLISH_BITS, TYPE_AND_LENGTH_BITS
from wireyard.formats.mqtt.session_kernels import (
    LONGEST_HEAD,
    body_at,
    keeps_rules,
    shown_version,
    sound_publish,
)
from wireyard.memory import Bytes, load_u8, load_u16

__all__ = ["sniff_heads", "walk_streams"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]

_INTS: Final = array("int64")
_CLIENT, _ANSWER = int(Shown.CLIENT), int(Shown.ANSWER)
"""The values of `Shown` as kernels can have them."""


@piece
def connect_shown(data: Bytes, start: int, stop: int, max_packet_bytes: int) -> int:
    """Return the version of a CONNECT whose header agrees with itself, else 0.

    It is what `find_header` of the framing finds; what is cut off shows nothing.
    """
    stop = min(stop, start + LONGEST_HEAD)
    at = body_at(data, start, stop)
    if at == start:
        return 0
    length = 0
    for place in range(at - start - 1):
        length |= (load_u8(data, start + 1 + place) & 0x7F) << 7 * place
    end = at + length
    version = shown_version(data, at, stop)
    if end - start > max_packet_bytes or version == 0:
        return 0
    at += 2 + load_u16(data, at)
    if at + 4 > stop:
        return 0
    flags = load_u8(data, at + 1)
    if flags & 1 or flags & 0x18 == 0x18 or (not flags & 4 and flags & 0x38):
        return 0
    if version != 5 and flags & 0xC0 == 0x40:
        return 0
    at += 4
    if version == 5:  # one byte of Property Length; longer ones are rare
        if at >= stop or load_u8(data, at) >= 0x80:
            return 0
        return version if at + 1 + load_u8(data, at) + 2 <= end else 0
    return version if at + 2 <= stop and at + 2 + load_u16(data, at) <= end else 0


@kernel(I64(READ, _INTS, _INTS, I64, TEXT, _INTS))
def sniff_heads(
    heads: Bytes, starts: Ints, stops: Ints, max_packet_bytes: int, shown: Octets, contexts: Ints
) -> int:
    """Find what streams show by their first bytes, as `Shown` says; return how many show something.

    Their contexts, those of the dialect before, become those of the streams that answer them: a
    client's CONNECT declares the version, and without it a CONNACK shows that of 5.0.

    Shapes: starts, stops (t), where in `heads` the bytes of each are; shown, contexts (t).
    """
    found = 0
    for stream in range(len(shown)):
        start, stop = starts[stream], stops[stream]
        shown[stream] = 0
        if stop - start < 4:
            continue
        first, context = load_u8(heads, start), contexts[stream]
        if first == CONNECT << 4:
            version = connect_shown(heads, start, stop, max_packet_bytes)
            if version:
                shown[stream] = _CLIENT
                contexts[stream] = context & ~VERSION_BITS | version
        elif first == CONNACK << 4 and load_u8(heads, start + 1) < 0x80:
            shown[stream] = _ANSWER
            if not context & VERSION_BITS and load_u8(heads, start + 1) > 2:
                contexts[stream] = context | 5
        found += shown[stream] != 0
    return found


@piece
def confirmed(data: Bytes, starts: Ints, sizes: Ints, first: int, last: int, version: int) -> bool:
    """Return whether a stream surely is confirmed to begin with a packet, as `confirm_start` says.

    Of a PUBLISH its first byte counts alone, so more packets may be asked for than there.
    """
    bits = 0
    for row in range(first, last):
        start, size = starts[row], sizes[row]
        byte = load_u8(data, start)
        kind = byte >> 4
        if PUBACK <= kind <= PUBCOMP:
            if size != 4 or byte & 15 != (2 if kind == PUBREL else 0):
                return False
        elif kind == PINGRESP:
            if size != 2 or byte & 15:
                return False
        elif kind == PUBLISH:
            if not sound_publish(data, start, start + size, version):
                return False
            bits += PUBLISH_BITS - TYPE_AND_LENGTH_BITS
        elif not keeps_rules(data, start, start + size, version):
            return False
        bits += TYPE_AND_LENGTH_BITS
        if bits >= PROOF_BITS:
            break
    return True


@kernel(I64(READ, _INTS, _INTS, _INTS, TEXT, I64, _INTS, _INTS, _INTS, _INTS))
def walk_streams(
    data: Bytes,
    bounds: Ints,
    firsts: Ints,
    followings: Ints,
    begun: Octets,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    rows: Ints,
) -> int:
    """Find the packets of streams that are nothing but whole packets; return how many there are.

    A stream of which that is not sure, or in which a packet behind the first could change the
    context, has none.

    Shapes: bounds (t + 1), where in `data` each stream is; firsts, followings (t): the context of
    the first packet, and that of those behind a CONNECT; begun (t): whether the capture shows the
    stream's beginning; starts, sizes, contexts (r), one for two bytes of the streams at least;
    rows (t + 1): the first row of each stream.
    """
    row = 0
    for stream in range(len(firsts)):
        rows[stream] = row
        at, stop = bounds[stream], bounds[stream + 1]
        first, context = row, followings[stream]
        if load_u8(data, at) == CONNECT << 4:
            body = body_at(data, at, stop)
            length = 0
            for place in range(body - at - 1):
                length |= (load_u8(data, at + 1 + place) & 0x7F) << 7 * place
            size = body + length - at
            if body == at or size > stop - at or size > max_packet_bytes:
                continue
            starts[row], sizes[row], contexts[row] = at, size, firsts[stream]
            row += 1
            at += size
        behind = row
        row = find_frames(
            data, at, stop, stop, max_packet_bytes, context, starts, sizes, row, len(starts)
        )
        end = starts[row - 1] + sizes[row - 1] if row > first else at
        whole = row > first and end == stop
        if whole and not begun[stream] and behind == first:
            whole = confirmed(data, starts, sizes, first, row, context & VERSION_BITS)
        if not whole:
            row = first
            continue
        for place in range(behind, row):
            contexts[place] = context
    rows[len(firsts)] = row
    return row
