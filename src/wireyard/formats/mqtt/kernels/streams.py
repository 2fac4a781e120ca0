"""Kernels over many small streams in one call: detection of MQTT, and framing.

A capture may have a hundred thousand connections of a few packets each, for which one kernel call
per stream costs more than decoding. So the streams lie one after the other in one buffer here.

Axes: t = streams, r = rows.
"""

from __future__ import annotations

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Ints, ReadOnly
from wireyard.formats.base import FIRST_PACKETS, Shown
from wireyard.formats.mqtt.kernels.packets import find_frames
from wireyard.formats.mqtt.kernels.sessions import (
    LONGEST_HEAD,
    body_at,
    declared_version,
    is_valid,
    is_valid_publish,
)
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
    MOST_BYTES,
    PROOF_BITS,
    PUBLISH_BITS,
    TYPE_AND_LENGTH_BITS,
)
from wireyard.memory import load_u8, load_u16

_CLIENT, _ANSWER = int(Shown.CLIENT), int(Shown.ANSWER)
"""The values of `Shown` as integers, as kernels need them."""


@inlined
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


@kernel
def sniff_heads(
    heads: ReadOnly[Bytes],
    starts: Ints,
    stops: Ints,
    max_packet_bytes: int,
    shown: Bytes,
    contexts: Ints,
) -> int:
    """Find the evidence (`Shown`) in the first bytes of streams; return how many streams have any.

    `contexts` holds the contexts of the dialects before the call, and those of the streams that
    answer after it: a CONNECT declares the version, and a CONNACK may show that it is 5.0.

    Shapes: starts, stops (t), the extents in `heads` of each stream's first bytes; shown, contexts
    (t).
    """
    detected = 0
    for stream in range(len(shown)):
        start, stop = starts[stream], stops[stream]
        shown[stream] = 0
        if stop - start < 4:
            continue
        first, context = load_u8(heads, start), contexts[stream]
        if first == CONNECT << 4:
            version = connect_version(heads, start, stop, max_packet_bytes)
            if version:
                shown[stream] = _CLIENT
                contexts[stream] = context & ~VERSION_BITS | version
        elif first == CONNACK << 4 and load_u8(heads, start + 1) < 0x80:
            shown[stream] = _ANSWER
            if not context & VERSION_BITS and load_u8(heads, start + 1) > 2:
                contexts[stream] = context | 5
        detected += shown[stream] != 0
    return detected


@inlined
def is_valid_after_connect(data: Bytes, start: int, size: int, version: int) -> bool:
    """Return whether a packet other than CONNECT and CONNACK is certainly valid."""
    byte, stop = load_u8(data, start), start + size
    kind = byte >> 4
    if PUBACK <= kind <= PUBCOMP and size == 4:
        return byte & 15 == (2 if kind == PUBREL else 0)
    if kind in (PINGREQ, PINGRESP, DISCONNECT) and size == 2:
        return byte & 15 == 0
    if kind == PUBLISH:
        return is_valid_publish(data, start, stop, version)
    return is_valid(data, start, stop, version)


@inlined
def confirms_start(
    data: Bytes, starts: Ints, sizes: Ints, first: int, last: int, context: int
) -> bool:
    """Return whether packets confirm that the first of them is one, as in `confirm_start`.

    They are all packets of a piece of a stream, so that valid ones are enough at its end.

    It is stricter: of a PUBLISH only the first byte counts, so more packets may be needed. If the
    version is unknown, packets that are valid in 3.1.1 count.
    """
    bits, version = 0, context & VERSION_BITS
    for row in range(first, last):
        if not is_valid_after_connect(data, starts[row], sizes[row], version if version else 4):
            return False
        publishes = load_u8(data, starts[row]) >> 4 == PUBLISH
        if not publishes and sizes[row] > MOST_BYTES:
            return False
        bits += PUBLISH_BITS if publishes else TYPE_AND_LENGTH_BITS
        if bits >= PROOF_BITS:
            break
    return True


@inlined
def ends_before_properties(data: Bytes, start: int, stop: int) -> bool:
    """Return whether a PUBLISH that is valid in 3.1.1 ends before the properties that 5.0 has."""
    at = body_at(data, start, stop)
    at += 2 + load_u16(data, at) + (2 if load_u8(data, start) & 6 else 0)
    return at >= stop or (load_u8(data, at) < 0x80 and at + 1 + load_u8(data, at) > stop)


@inlined
def may_have_tls_records(data: Bytes, start: int, stop: int) -> bool:
    """Return whether any bytes look like the header of a TLS record."""
    for at in range(start, stop - 2):
        if (
            load_u8(data, at + 1) == 3
            and 0x14 <= load_u8(data, at) <= 0x18
            and load_u8(data, at + 2) <= 4
        ):
            return True
    return False


@kernel
def find_contexts(
    data: ReadOnly[Bytes],
    bounds: Ints,
    firsts: Ints,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
) -> int:
    """Find the contexts of connections without a CONNECT, as `find_context` does.

    A context is -1 if it is not certain, or if the bytes might be something other than MQTT. It is
    certain if both streams consist of whole packets, and the first ones are valid. Returns the
    number of contexts that are certain.

    Shapes: bounds (t + 1), the extents in `data` of the streams; firsts (e + 1), the first stream
    of each connection; starts, sizes (r), at least one for every two bytes of each stream; contexts
    (e).
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
            if not whole or may_have_tls_records(data, at, stop):
                sure = False
            for row in range(min(rows, FIRST_PACKETS) if sure else 0):
                if enough:
                    break
                start, size = starts[row], sizes[row]
                publish = load_u8(data, start) >> 4 == PUBLISH
                if not is_valid_after_connect(data, start, size, 4):
                    sure = False
                    break
                old += 1
                if is_valid_after_connect(data, start, size, 5):
                    new += 1
                    publishes |= publish
                elif not publish or not ends_before_properties(data, start, start + size):
                    sure = False
                    break
                enough = old - new == ENOUGH_PACKETS
        context = 5 if new == old and publishes else 0
        for stream in range(first, last if sure else first):
            at, stop = bounds[stream], bounds[stream + 1]
            rows = find_frames(
                data, at, stop, stop, max_packet_bytes, 0, starts, sizes, 0, len(starts)
            )
            sure = sure and confirms_start(data, starts, sizes, 0, rows, context)
        contexts[connection] = context if sure else -1
        found += sure
    return found


@kernel
def walk_streams(
    data: ReadOnly[Bytes],
    bounds: Ints,
    pieces: Ints,
    behind_gap: Bytes,
    firsts: Ints,
    followings: Ints,
    begun: Bytes,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
    contexts: Ints,
    rows: Ints,
) -> int:
    """Find the packets of streams that consist of whole packets only; return their number.

    A stream has no rows if that is not certain, or if a packet after the first could change the
    context. Behind a gap it is certain only if valid packets follow, as in `confirm_start`.

    Shapes: bounds (p + 1), the extents in `data` of the streams' contiguous pieces; pieces (t + 1),
    the first piece of each stream; behind_gap (p), whether bytes before a piece are missing;
    firsts, followings (t), the context of the first packet, and of those after a CONNECT; begun
    (t), whether the stream's beginning was captured; starts, sizes, contexts (r), at least one for
    every two bytes of the streams; rows (p + 1), the first row of each piece.
    """
    row = 0
    for stream in range(len(firsts)):
        first, context, whole = row, followings[stream], True
        for part in range(pieces[stream], pieces[stream + 1]):
            rows[part] = begin = row
            at, stop = bounds[part], bounds[part + 1]
            needs_proof = behind_gap[part] or (not begun[stream] and part == pieces[stream])
            if not behind_gap[part] and load_u8(data, at) == CONNECT << 4:
                body = body_at(data, at, stop)
                length = 0
                for place in range(body - at - 1):
                    length |= (load_u8(data, at + 1 + place) & 0x7F) << 7 * place
                size = body + length - at
                if body == at or size > stop - at or size > max_packet_bytes:
                    whole = False
                    break
                starts[row], sizes[row], contexts[row] = at, size, firsts[stream]
                row += 1
                at += size
                needs_proof = False
            behind = row
            row = find_frames(
                data, at, stop, stop, max_packet_bytes, context, starts, sizes, row, len(starts)
            )
            end = starts[row - 1] + sizes[row - 1] if row > begin else at
            whole = row > begin and end == stop
            if whole and needs_proof:
                whole = confirms_start(data, starts, sizes, begin, row, context)
            if not whole:
                break
            for place in range(behind, row):
                contexts[place] = context
        if not whole:
            row = first
            for part in range(pieces[stream], pieces[stream + 1]):
                rows[part] = first
    rows[len(rows) - 1] = row
    return row
