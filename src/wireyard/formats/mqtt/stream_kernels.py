"""Many small streams in one call: which of them show MQTT, and the frames of those.

A capture may have a hundred thousand connections of a few packets each, and a call of a kernel for
each costs more than all of their bytes. Streams lie one behind the other in one buffer here.

Axes: t = streams, r = rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.formats.base import FIRST_PACKETS, Shown
from wireyard.formats.mqtt.kernels import find_frames
from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    VERSION_BITS,
)
from wireyard.formats.mqtt.resync import (
    ENOUGH_PACKETS,
    PROOF_BITS,
    PUBLISH_BITS,
    TYPE_AND_LENGTH_BITS,
)
from wireyard.formats.mqtt.session_kernels import (
    LONGEST_HEAD,
    body_at,
    keeps_rules,
    shown_version,
    sound_publish,
)
from wireyard.memory import Bytes, load_u8, load_u16

__all__ = ["find_contexts", "sniff_heads", "walk_streams"]

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
def surely_keeps(data: Bytes, start: int, size: int, version: int) -> bool:
    """Return whether a packet behind a CONNECT and its answer surely keeps every rule."""
    byte, stop = load_u8(data, start), start + size
    kind = byte >> 4
    if PUBACK <= kind <= PUBCOMP and size == 4:
        return byte & 15 == (2 if kind == PUBREL else 0)
    if kind in (PINGREQ, PINGRESP, DISCONNECT) and size == 2:
        return byte & 15 == 0
    if kind == PUBLISH:
        return sound_publish(data, start, stop, version)
    return keeps_rules(data, start, stop, version)


@piece
def confirmed(data: Bytes, starts: Ints, sizes: Ints, first: int, last: int, context: int) -> bool:
    """Return whether a stream surely is confirmed to begin with a packet, as `confirm_start` says.

    Of a PUBLISH its first byte counts alone, so more packets may be asked for than there. What
    3.1.1 allows is no fault where the version is unknown.
    """
    bits, version = 0, context & VERSION_BITS
    for row in range(first, last):
        if not surely_keeps(data, starts[row], sizes[row], version if version else 4):
            return False
        publishes = load_u8(data, starts[row]) >> 4 == PUBLISH
        bits += PUBLISH_BITS if publishes else TYPE_AND_LENGTH_BITS
        if bits >= PROOF_BITS:
            break
    return True


@piece
def breaks_newest(data: Bytes, start: int, stop: int) -> bool:
    """Return whether a PUBLISH that keeps the rules of 3.1.1 surely breaks one of 5.0.

    It does if it ends before Property Length, or before the properties that this says.
    """
    at = body_at(data, start, stop)
    at += 2 + load_u16(data, at) + (2 if load_u8(data, start) & 6 else 0)
    return at >= stop or (load_u8(data, at) < 0x80 and at + 1 + load_u8(data, at) > stop)


@piece
def may_be_records(data: Bytes, start: int, stop: int) -> bool:
    """Return whether bytes may have a record of TLS among them."""
    for at in range(start, stop - 2):
        if (
            load_u8(data, at + 1) == 3
            and 0x14 <= load_u8(data, at) <= 0x18
            and load_u8(data, at + 2) <= 4
        ):
            return True
    return False


@kernel(I64(READ, _INTS, _INTS, I64, _INTS, _INTS, _INTS))
def find_contexts(
    data: Bytes,
    bounds: Ints,
    firsts: Ints,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
) -> int:
    """Find the contexts of connections without a CONNECT, as `find_context` does of their packets.

    It is -1 where that is not sure, or the bytes might show something else than MQTT: a connection
    is sure if it is whole packets alone, of which the first keep every rule. Return how many are.

    Shapes: bounds (t + 1), where in `data` each stream is; firsts (e + 1), the first stream of each
    connection; starts, sizes (r), one for two bytes of each stream at least; contexts (e).
    """
    found = 0
    for connection in range(len(contexts)):
        first, last = firsts[connection], firsts[connection + 1]
        old = new = 0
        sure, publishes, enough = True, False, False
        for stream in range(first, last):
            at, stop = bounds[stream], bounds[stream + 1]
            rows = find_frames(
                data, at, stop, stop, max_packet_bytes, 0, starts, sizes, 0, len(starts)
            )
            whole = rows > 0 and starts[rows - 1] + sizes[rows - 1] == stop
            if not whole or may_be_records(data, at, stop):
                sure = False
            for row in range(min(rows, FIRST_PACKETS) if sure else 0):
                if enough:
                    break
                start, size = starts[row], sizes[row]
                publish = load_u8(data, start) >> 4 == PUBLISH
                if not surely_keeps(data, start, size, 4):
                    sure = False
                    break
                old += 1
                if surely_keeps(data, start, size, 5):
                    new += 1
                    publishes |= publish
                elif not publish or not breaks_newest(data, start, start + size):
                    sure = False
                    break
                enough = old - new == ENOUGH_PACKETS
        context = 5 if new == old and publishes else 0
        for stream in range(first, last if sure else first):
            at, stop = bounds[stream], bounds[stream + 1]
            rows = find_frames(
                data, at, stop, stop, max_packet_bytes, 0, starts, sizes, 0, len(starts)
            )
            sure = sure and confirmed(data, starts, sizes, 0, rows, context)
        contexts[connection] = context if sure else -1
        found += sure
    return found


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
            whole = confirmed(data, starts, sizes, first, row, context)
        if not whole:
            row = first
            continue
        for place in range(behind, row):
            contexts[place] = context
    rows[len(firsts)] = row
    return row
