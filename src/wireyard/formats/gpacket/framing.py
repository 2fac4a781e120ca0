"""Framing of GPackets and link packets in a stream.

Magic and size decide, at the beginning of a stream, after another packet and after lost bytes: only
they stay the same in every version, and a packet of an unknown version is skipped by its size
(errata G5). Link packets have no magic: while the framing is intact, version and size decide, and
otherwise all fields of their header have to be consistent.

In the order of the shipped classes a header begins before its magic, so a magic found after lost
bytes has two readings. It is that of a shipped header of version 350; otherwise that of a header in
the documented order, which has a version other than 0: in a shipped header, the property size is at
that place, and hardly any is over 65535; otherwise that of a shipped header of another version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from wireyard.errors import Malformed
from wireyard.formats.base import View
from wireyard.formats.framing import checked_size, find_magic
from wireyard.formats.gpacket.layout import (
    HEADERS,
    LINK_BYTES,
    LINK_HEADER,
    LINK_TYPES,
    LINK_VERSION,
    MAGIC_BYTES,
    MAX_LINK_BYTES,
    MAX_PACKET_BYTES,
    PREFIX_BYTES,
    SHIPPED,
    SPEC,
    VERSION,
    least_bytes,
)
from wireyard.formats.gpacket.packet import header_of
from wireyard.layout import Layout

_SPEC = f"{SPEC}, packet format"
_MAGIC_AT: Final = HEADERS[SHIPPED]["magic"].offset
EXAMINED_BYTES: Final = _MAGIC_AT + PREFIX_BYTES
"""Both readings of a magic: it ends the prefix of one, and begins that of the other."""
_VERSION_AND_SIZE = struct.Struct(">HHi")
_LINK_SIGN = LINK_VERSION.to_bytes(2, "big") + b"\0"
"""First bytes of a link header: the version, and the high byte of the type, which is always 0."""


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    _context: int = 0,
    at_end: bool = False,
) -> int | None:
    """Return the size of the packet at `start`, None if more bytes are needed.

    `Malformed` is raised if there is neither a magic nor the version of a link packet, or the size
    is below the header; at the end of a stream, for a part of a prefix that has neither the magic
    nor a known version. `LimitExceeded` is raised if the size is over `max_packet_bytes`, or over
    the limit of link packets.
    """
    prefix = bytes(view[start : min(start + PREFIX_BYTES, stop)])
    is_cut = len(prefix) < PREFIX_BYTES
    if is_cut and not (
        at_end and all(prefix[: len(sign)] != sign[: len(prefix)] for sign in _SIGNS)
    ):
        return None
    layout = None if is_cut else header_of(prefix)
    if layout is None:
        raise Malformed("gpacket", "magic", _MAGIC_AT, "is not there", _SPEC, "bad_magic")
    field = layout["size"]
    size = int.from_bytes(prefix[field.offset : field.stop], "big", signed=True)
    at = layout["version"].offset
    least, most = _bounds(layout, int.from_bytes(prefix[at : at + 2], "big"), max_packet_bytes)
    return checked_size("gpacket", field, size, least, most)


def _bounds(layout: Layout, version: int, max_packet_bytes: int) -> tuple[int, int]:
    if layout is LINK_HEADER:
        return LINK_BYTES, min(MAX_LINK_BYTES, max_packet_bytes)
    return least_bytes(version), max_packet_bytes


def find_header(view: View, start: int, stop: int, max_packet_bytes: int) -> tuple[int, bool]:
    """Return the first position at or after `start` of a header, and whether it is certain.

    The position is `stop` if there is none. If it is not certain, a header may begin there, but
    `stop` cuts it off.
    """
    first, certain = _find_magic_header(view, start, stop, max_packet_bytes)
    # Link packets are searched only before the first GPacket, so no byte is searched often.
    link = _find_link(view, start, first, stop, max_packet_bytes)
    if link < first:
        first, certain = link, True
    for at in range(max(start, stop - EXAMINED_BYTES + 1), first):
        if _is_cut_off(view, at, stop, max_packet_bytes):
            return at, False
    return first, certain


def _find_magic_header(
    view: View, start: int, stop: int, max_packet_bytes: int
) -> tuple[int, bool]:
    """Return the position of the first header with a magic or its beginning, and if it is certain.

    The position is `stop` if there is none.
    """
    at = find_magic(view, MAGIC_BYTES, start, stop)
    while at >= 0:
        before = at - _MAGIC_AT
        shipped = None
        if before >= start and view[before : before + 4] != MAGIC_BYTES:
            shipped = _version(view, before, max_packet_bytes)
        if stop - at < PREFIX_BYTES:
            is_known = shipped == VERSION and stop - at >= len(MAGIC_BYTES)
            return (at, False) if shipped is None else (before, is_known)
        documented = _version(view, at + len(MAGIC_BYTES), max_packet_bytes)
        if shipped == VERSION:
            return before, True
        if documented:
            return at, True
        if shipped is not None:
            return before, True
        at = find_magic(view, MAGIC_BYTES, at + 1, stop)
    return stop, True


def _version(view: View, at: int, max_packet_bytes: int) -> int | None:
    """Return the version at `at` if the size after it is possible, otherwise None."""
    version, _, size = _VERSION_AND_SIZE.unpack_from(view, at)
    return int(version) if least_bytes(version) <= size <= max_packet_bytes else None


def _find_link(view: View, start: int, before: int, stop: int, max_packet_bytes: int) -> int:
    """Return the position of the first whole link header before `before`, or `before`."""
    at = find_magic(view, _LINK_SIGN, start, before)
    while at >= 0:
        if stop - at >= LINK_BYTES and _is_link(view, at, stop, max_packet_bytes):
            return at
        at = find_magic(view, _LINK_SIGN, at + 1, before)
    return before


def _is_cut_off(view: View, at: int, stop: int, max_packet_bytes: int) -> bool:
    """Return whether a header may begin at `at` of which `stop` cuts off what identifies it."""
    left = stop - at
    if left < _MAGIC_AT or (left == _MAGIC_AT and _version(view, at, max_packet_bytes) is not None):
        return True
    return left < LINK_BYTES and _is_link(view, at, stop, max_packet_bytes)


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` consists of GPackets or link packets.

    Fewer than `PREFIX_BYTES` identify nothing: almost any bytes could begin a packet.
    """
    if len(head) < PREFIX_BYTES:
        return False
    layout = header_of(bytes(head[:PREFIX_BYTES]))
    if layout is LINK_HEADER:
        return _is_link(head, 0, len(head), MAX_PACKET_BYTES)
    return (
        layout is not None
        and _version(head, layout["version"].offset, MAX_PACKET_BYTES) is not None
    )


_LINK_CHECKS: tuple[tuple[str, Callable[[Any, int], bool]], ...] = (
    ("packet_type", lambda header, _: header["packet_type"] in LINK_TYPES),
    ("size", lambda header, most: LINK_BYTES <= header["size"] <= min(most, MAX_LINK_BYTES)),
    ("destination_id", lambda header, _: header["destination_id"] == 0),
    ("bit_flags", lambda header, _: header["bit_flags"] in (0, 1)),
)
"""Checks of a link header, each with the last field that it needs."""


def _is_link(view: View, start: int, stop: int, max_packet_bytes: int) -> bool:
    """Return whether the available fields are those of a link header."""
    head = bytes(view[start : min(start + LINK_BYTES, stop)])
    header = LINK_HEADER.unpack(head.ljust(LINK_BYTES, b"\0"))
    return _LINK_SIGN.startswith(head[: len(_LINK_SIGN)]) and all(
        check(header, max_packet_bytes)
        for name, check in _LINK_CHECKS
        if LINK_HEADER[name].stop <= len(head)
    )


_SIGNS: Final = (MAGIC_BYTES, VERSION.to_bytes(2, "big"), _LINK_SIGN)
"""The first bytes of headers whose order or version is known."""
