"""Framing of GPackets and link packets in a stream.

While the framing is intact, magic and size decide, or version and size of link packets, which have
no magic; a packet of an unknown version is skipped by its size (errata G5). After lost bytes a
header is accepted only if all its fields are consistent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats.base import View
from wireyard.formats.gpacket.layout import (
    HEADER_BYTES,
    HEADERS,
    LINK_BYTES,
    LINK_HEADER,
    LINK_TYPES,
    LINK_VERSION,
    MAGIC,
    MAGIC_BYTES,
    MAX_LINK_BYTES,
    MAX_PACKET_BYTES,
    PREFIX_BYTES,
    SHIPPED,
    SPEC,
    VERSION,
)
from wireyard.formats.gpacket.packet import header_of
from wireyard.formats.views import find_magic
from wireyard.layout import Layout

__all__ = ["begins", "find_header", "frame_size"]

_SPEC = f"{SPEC}, packet format"
_MAGIC_AT = HEADERS[SHIPPED]["magic"].offset
_LINK_SIGN = LINK_VERSION.to_bytes(2, "big") + b"\0"
"""First bytes of a link header: the version, and the high byte of the type, which is always 0."""
_LEAST_SECTION_BYTES = 8
"""Smallest property section: version and count."""


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
        There is neither a magic nor the version of a link packet, or the size is below the header.
    LimitExceeded
        The size is over `max_packet_bytes`, or over the limit of link packets.
    """
    if stop - start < PREFIX_BYTES:
        return None
    prefix = bytes(view[start : start + PREFIX_BYTES])
    layout = header_of(prefix)
    if layout is None:
        raise Malformed("gpacket", "magic", _MAGIC_AT, "is not there", _SPEC, "bad_magic")
    field = layout["size"]
    size = int.from_bytes(prefix[field.offset : field.stop], "big", signed=True)
    least, most = _bounds(layout, max_packet_bytes)
    if size < least:
        problem = f"is {size}, less than the {least} of the fixed header"
        raise Malformed("gpacket", "size", field.offset, problem, field.spec, "bad_size")
    if size > most:
        problem = f"is {size}, over {most}"
        raise LimitExceeded("gpacket", "size", field.offset, problem, field.spec)
    return size


def _bounds(layout: Layout, max_packet_bytes: int) -> tuple[int, int]:
    if layout is LINK_HEADER:
        return LINK_BYTES, min(MAX_LINK_BYTES, max_packet_bytes)
    return HEADER_BYTES, max_packet_bytes


def find_header(view: View, start: int, stop: int, max_packet_bytes: int) -> tuple[int, bool]:
    """Return the first position at or after `start` of a header with consistent fields.

    Returns
    -------
    position, certain
        `stop` if there is none. Not certain: a header may begin at `position`, but `stop` cuts it
        off.
    """
    first = _find_magic_header(view, start, stop, max_packet_bytes)
    # Link packets are searched only before the first GPacket, so no byte is searched often.
    first = _find_link(view, start, first, stop, max_packet_bytes)
    for at in range(max(start, stop - HEADER_BYTES + 1), first):
        for form in _FORMS:
            if stop - at < form.layout.size and _agrees(view, at, stop, form, max_packet_bytes):
                return at, False
    return first, True


def _find_magic_header(view: View, start: int, stop: int, max_packet_bytes: int) -> int:
    """Return the position of the first whole header with a magic, or `stop`."""
    at = find_magic(view, MAGIC_BYTES, start, stop)
    while at >= 0:
        for form in (_SHIPPED, _DOCUMENTED):
            first = at - form.layout["magic"].offset
            whole = first >= start and stop - first >= HEADER_BYTES
            if whole and _agrees(view, first, stop, form, max_packet_bytes):
                return first
        at = find_magic(view, MAGIC_BYTES, at + 1, stop)
    return stop


def _find_link(view: View, start: int, before: int, stop: int, max_packet_bytes: int) -> int:
    """Return the position of the first whole link header before `before`, or `before`."""
    at = find_magic(view, _LINK_SIGN, start, before)
    while at >= 0:
        if stop - at >= LINK_BYTES and _agrees(view, at, stop, _LINK, max_packet_bytes):
            return at
        at = find_magic(view, _LINK_SIGN, at + 1, before)
    return before


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` consists of GPackets or link packets.

    Fewer than `PREFIX_BYTES` identify nothing: almost any bytes could begin a packet.
    """
    return len(head) >= PREFIX_BYTES and any(
        _agrees(head, 0, len(head), form, MAX_PACKET_BYTES) for form in _FORMS
    )


Check = Callable[[Any, int], bool]


class _Form(NamedTuple):
    """A kind of header, with its constant bytes and the checks of its fields."""

    layout: Layout
    constants: tuple[tuple[int, bytes], ...]
    checks: tuple[tuple[str, Check], ...]
    """Each with the last field that it needs."""


def _form(layout: Layout, checks: tuple[tuple[str, Check], ...], **constants: int) -> _Form:
    known = ((layout[name], value) for name, value in constants.items())
    return _Form(
        layout,
        tuple((field.offset, value.to_bytes(field.width, "big")) for field, value in known),
        checks,
    )


_PACKET_CHECKS: tuple[tuple[str, Check], ...] = (
    ("size", lambda header, most: HEADER_BYTES <= header["size"] <= most),
    (
        "property_size",
        lambda header, _: (
            header["property_size"] == 0
            or _LEAST_SECTION_BYTES <= header["property_size"] <= header["size"] - HEADER_BYTES
        ),
    ),
)
_LINK_CHECKS: tuple[tuple[str, Check], ...] = (
    ("packet_type", lambda header, _: header["packet_type"] in LINK_TYPES),
    ("size", lambda header, most: LINK_BYTES <= header["size"] <= most),
    ("destination_id", lambda header, _: header["destination_id"] == 0),
    ("bit_flags", lambda header, _: header["bit_flags"] in (0, 1)),
)
_SHIPPED, _DOCUMENTED = (
    _form(layout, _PACKET_CHECKS, magic=MAGIC, version=VERSION) for layout in HEADERS.values()
)
_LINK = _form(LINK_HEADER, _LINK_CHECKS, version=LINK_VERSION)
_FORMS = (_SHIPPED, _DOCUMENTED, _LINK)


def _agrees(view: View, start: int, stop: int, form: _Form, max_packet_bytes: int) -> bool:
    """Return whether the available fields of a header are consistent."""
    layout = form.layout
    head = bytes(view[start : min(start + layout.size, stop)])
    for at, data in form.constants:
        if not data.startswith(head[at : at + len(data)]):
            return False
    header = layout.unpack(head.ljust(layout.size, b"\0"))
    most = min(max_packet_bytes, MAX_LINK_BYTES) if form is _LINK else max_packet_bytes
    return all(check(header, most) for name, check in form.checks if layout[name].stop <= len(head))
