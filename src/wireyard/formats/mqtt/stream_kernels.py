"""Kernels over many small streams in one call: detection of MQTT, and framing.

A capture may have a hundred thousand connections of a few packets each, for which one kernel call
per stream costs more than decoding. So the streams lie one after the other in one buffer here.

Axes: t = streams, r = rows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.mqtt.kernels import find_frames
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
)
from wireyard.formats.mqtt.resync import PROOF_BITS, PUBLISH_BITS, TYPE_AND_LENGTH_BITS
from wireyard.formats.mqtt.session_kernels import (
    LONGEST_HEAD,
    body_at,
    declared_version,
    is_valid,
    is_valid_publish,
)
from wireyard.memory import Bytes, load_u8, load_u16

__all__ = ["Side", "sniff_heads", "walk_streams"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]

_INTS: Final = array("int64")


class Side(IntEnum):
    """The sender of a stream by its first bytes."""

    OTHER = 0
    """Not decided here."""
    CLIENT = 1
    """The stream begins with a CONNECT of 3.1 to 5.0."""
    SERVER = 2
    """Its first byte is that of CONNACK, and Remaining Length is one byte."""


@piece
def connect_version(data: Bytes, start: int, stop: int, max_packet_bytes: int) -> int:
    """Return the version of a CONNECT with a consistent header, as `find_header` checks it, else 0.

    A header that is cut off counts as none.
    """
    stop = min(stop, start + LONGEST_HEAD)
    at = body_at(data, start, stop)
    if at == start:
        return 0
    length = 0
    for place in range(at - start - 1):
        length |= (load_u8(data, start + 1 + place) & 0x7F) << 7 * place
    end = at + length
    version = declared_version(data, at, stop)
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


@kernel(I64(READ, _INTS, I64, TEXT, _INTS))
def sniff_heads(
    heads: Bytes, bounds: Ints, max_packet_bytes: int, sides: Octets, contexts: Ints
) -> int:
    """Find the `Side` of each stream by its first bytes; return how many are not `Side.OTHER`.

    The context of a client's stream is the version of its CONNECT; that of a server's stream is
    what its CONNACK alone shows.

    Shapes: bounds (t + 1), the extents in `heads` of each stream's first bytes; sides, contexts
    (t).
    """
    detected = 0
    for stream in range(len(sides)):
        start, stop = bounds[stream], bounds[stream + 1]
        sides[stream], contexts[stream] = 0, 0
        if stop - start < 4:
            continue
        first = load_u8(heads, start)
        if first == CONNECT << 4:
            contexts[stream] = connect_version(heads, start, stop, max_packet_bytes)
            sides[stream] = 1 if contexts[stream] else 0
        elif first == CONNACK << 4 and load_u8(heads, start + 1) < 0x80:
            contexts[stream] = 5 if load_u8(heads, start + 1) > 2 else 0
            sides[stream] = 2
        detected += sides[stream] != 0
    return detected


@piece
def confirms_start(
    data: Bytes, starts: Ints, sizes: Ints, first: int, last: int, version: int
) -> bool:
    """Return whether packets confirm that a stream begins with a packet, as in `confirm_start`.

    It is stricter: of a PUBLISH only the first byte counts, so more packets may be needed.
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
            if not is_valid_publish(data, start, start + size, version):
                return False
            bits += PUBLISH_BITS - TYPE_AND_LENGTH_BITS
        elif not is_valid(data, start, start + size, version):
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
    """Find the packets of streams that consist of whole packets only; return their number.

    A stream has no rows if that is not certain, or if a packet after the first could change the
    context.

    Shapes: bounds (t + 1), the extents in `data` of the streams; firsts, followings (t), the
    context of the first packet, and of those after a CONNECT; begun (t), whether the stream's
    beginning was captured; starts, sizes, contexts (r), at least one for every two bytes of the
    streams; rows (t + 1), the first row of each stream.
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
            whole = confirms_start(data, starts, sizes, first, row, context)
        if not whole:
            row = first
            continue
        for place in range(behind, row):
            contexts[place] = context
    rows[len(firsts)] = row
    return row
