"""Framing of JMQ packets in a stream.

Only the first 12 bytes are the same in every version, so magic and size alone decide, at the
beginning of a stream, after another packet and after lost bytes: a packet with any version, flag or
encryption is found, and one of an unknown version is skipped by its size (errata 26). Random bytes
pass with a probability of 4e-12 per position. A packet inside another packet's body passes, too, so
splitting verifies its guesses (``wireyard.streams.split``).
"""

from __future__ import annotations

import struct

from wireyard.errors import Malformed
from wireyard.formats.base import View
from wireyard.formats.framing import checked_size, find_magic
from wireyard.formats.jmq.layout import (
    HEADERS,
    MAGIC,
    MAGIC_BYTES,
    MAX_PACKET_BYTES,
    PREFIX_BYTES,
    SPEC,
    least_bytes,
)

_SPEC = f"{SPEC}, fixed header"
_PREFIX = struct.Struct(">IHhi")
_SIZE = HEADERS[301]["size"]


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    _context: int = 0,
    _at_end: bool = False,
) -> int | None:
    """Return the size of the packet at `start`, None if more bytes are needed.

    `Malformed` is raised if the magic is missing or the size is below that of the header,
    `LimitExceeded` if the size is over `max_packet_bytes`.
    """
    left = stop - start
    if left < PREFIX_BYTES:
        if bytes(view[start : min(stop, start + 4)]) != MAGIC_BYTES[:left]:
            raise Malformed("jmq", "magic", 0, "is not there", _SPEC, "bad_magic")
        return None
    magic, version, _, size = _PREFIX.unpack_from(view, start)
    if magic != MAGIC:
        raise Malformed("jmq", "magic", 0, "is not there", _SPEC, "bad_magic")
    return checked_size("jmq", _SIZE, size, least_bytes(version), max_packet_bytes)


def find_header(view: View, start: int, stop: int, max_packet_bytes: int) -> tuple[int, bool]:
    """Return the first position at or after `start` of a magic and a possible size.

    The position is `stop` if there is none. The second result is whether it is certain: if not, a
    header may begin there, but `stop` cuts it off.
    """
    at = find_magic(view, MAGIC_BYTES, start, stop)
    while at >= 0:
        if stop - at < PREFIX_BYTES:
            return at, False
        _, version, _, size = _PREFIX.unpack_from(view, at)
        if least_bytes(version) <= size <= max_packet_bytes:
            return at, True
        at = find_magic(view, MAGIC_BYTES, at + 1, stop)
    return stop, True


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` consists of JMQ packets."""
    stop = min(len(head), PREFIX_BYTES)
    return stop > 0 and find_header(head, 0, stop, MAX_PACKET_BYTES)[0] == 0
