"""Framing of JMQ packets in a stream.

While the framing is intact, magic and size decide: faults in the sections do not lose the framing,
and a packet of an unknown version is skipped by its size (errata 26). After lost bytes a header is
accepted only if all its fields are consistent: the probability that random bytes pass is below
1e-28 per position. A packet inside another packet's body passes, too, so splitting verifies its
guesses (``wireyard.streams.split``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats.base import View
from wireyard.formats.jmq.layout import (
    HEADER_BYTES,
    HEADERS,
    MAGIC,
    MAGIC_BYTES,
    MAX_PACKET_BYTES,
    PREFIX_BYTES,
    SPEC,
)
from wireyard.formats.views import find_magic

__all__ = ["FLAG_BITS", "MAX_PRIORITY", "begins", "find_header", "frame_size"]

_SPEC = f"{SPEC}, fixed header"
_PREFIX = struct.Struct(">IHhi")
MAX_PRIORITY = 9
FLAG_BITS = 0x1FFF


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    _context: int = 0,
    _at_end: bool = False,
) -> int | None:
    """Return the size of the packet at `start`, None if more bytes are needed.

    Raises
    ------
    Malformed
        The magic is missing, or the size is below that of the fixed header.
    LimitExceeded
        The size is over `max_packet_bytes`.
    """
    left = stop - start
    if left < PREFIX_BYTES:
        if bytes(view[start : min(stop, start + 4)]) != MAGIC_BYTES[:left]:
            raise Malformed("jmq", "magic", 0, "is not there", _SPEC, "bad_magic")
        return None
    magic, _, _, size = _PREFIX.unpack_from(view, start)
    if magic != MAGIC:
        raise Malformed("jmq", "magic", 0, "is not there", _SPEC, "bad_magic")
    if size < HEADER_BYTES:
        problem = f"is {size}, less than the {HEADER_BYTES} of the fixed header"
        raise Malformed("jmq", "size", 8, problem, _SPEC, "bad_size")
    if size > max_packet_bytes:
        raise LimitExceeded("jmq", "size", 8, f"is {size}, over {max_packet_bytes}", _SPEC)
    return int(size)


def find_header(view: View, start: int, stop: int, max_packet_bytes: int) -> tuple[int, bool]:
    """Return the first position at or after `start` of a header with consistent fields.

    Returns
    -------
    position, certain
        `stop` if there is none. Not certain: a header may begin at `position`, but `stop` cuts it
        off.
    """
    at = find_magic(view, MAGIC_BYTES, start, stop)
    while at >= 0:
        if _agrees(bytes(view[at : min(at + HEADER_BYTES, stop)]), max_packet_bytes):
            return at, stop - at >= HEADER_BYTES
        at = find_magic(view, MAGIC_BYTES, at + 1, stop)
    return stop, True


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` consists of JMQ packets."""
    stop = min(len(head), HEADER_BYTES)
    return stop > 0 and find_header(head, 0, stop, MAX_PACKET_BYTES)[0] == 0


def _agrees(head: bytes, max_packet_bytes: int) -> bool:
    """Return whether the available fields of a header are consistent."""
    whole = head.ljust(HEADER_BYTES, b"\0")
    layout = HEADERS.get(int.from_bytes(whole[4:6], "big"))
    if layout is None:
        return len(head) < 6
    header = layout.unpack(whole)
    return all(
        check(header, max_packet_bytes) for name, check in _CHECKS if layout[name].stop <= len(head)
    )


_CHECKS: tuple[tuple[str, Callable[[Any, int], bool]], ...] = (
    ("size", lambda header, most: HEADER_BYTES <= header["size"] <= most),
    ("property_offset", lambda header, _: header["property_offset"] >= HEADER_BYTES),
    (
        "property_size",
        lambda header, _: (
            0 <= header["property_size"] <= header["size"] - header["property_offset"]
        ),
    ),
    ("priority", lambda header, _: 0 <= header["priority"] <= MAX_PRIORITY),
    ("encryption", lambda header, _: header["encryption"] == 0),
    (
        "bit_flags",
        lambda header, _: header["bit_flags"] <= FLAG_BITS or header["version"] == 103,
    ),
)
"""Checks of a header, each with the last field that it needs."""
