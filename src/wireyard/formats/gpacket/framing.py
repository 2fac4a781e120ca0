"""Where GPackets and link packets begin and end in a stream.

In step, a packet is what its magic and its size say, or its version and size where it has no magic:
an unknown version is consumed by its size (errata G5). Out of step, a header is believed only
if all its fields agree with each other.
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
from wireyard.formats.search import find_magic
from wireyard.layout import Layout

__all__ = ["begins", "find_header", "frame_size"]

_SPEC = f"{SPEC}, packet format"
_MAGIC_AT = HEADERS[SHIPPED]["magic"].offset
_LINK_SIGN = LINK_VERSION.to_bytes(2, "big") + b"\0"
"""What a link header begins with; no type has more than one byte."""
_LEAST_SECTION_BYTES = 8
"""Version and count of properties."""


def frame_size(
    view: View,
    start: int,
    stop: int,
    max_packet_bytes: int,
    _context: int = 0,
    _at_end: bool = False,
) -> int | None:
    """Return the size of the packet at `start`, None if more bytes are needed to say.

    Raises
    ------
    Malformed
        There is neither a magic nor the version of a link packet, or the size is below the header.
    LimitExceeded
        The size is over `max_packet_bytes`, or over what link packets may have.
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
    """Return the first position at or after `start` where a whole header agrees with itself.

    Returns
    -------
    position, certain
        `stop` if there is none. Not certain: the bytes from `position` on may be a header, but
        `stop` cuts it off.
    """
    found = _find_magic_header(view, start, stop, max_packet_bytes)
    # Link packets are looked for only where no GPacket comes first: no byte is searched for long.
    found = _find_link(view, start, found, stop, max_packet_bytes)
    for at in range(max(start, stop - HEADER_BYTES + 1), found):
        for form in _FORMS:
            if stop - at < form.layout.size and _agrees(view, at, stop, form, max_packet_bytes):
                return at, False
    return found, True


def _find_magic_header(view: View, start: int, stop: int, max_packet_bytes: int) -> int:
    """Return where the first whole header with a magic begins, or `stop`."""
    at = find_magic(view, MAGIC_BYTES, start, stop)
    while at >= 0:
        for form in (_SHIPPED, _DOCUMENTED):
            first = at - form.layout["magic"].offset
            whole = first >= start and stop - first >= HEADER_BYTES
            if whole and _agrees(view, first, stop, form, max_packet_bytes):
                return first
        at = find_magic(view, MAGIC_BYTES, at + 1, stop)
    return stop


def _find_link(view: View, start: int, found: int, stop: int, max_packet_bytes: int) -> int:
    """Return where the first whole link header before `found` begins, or `found`."""
    at = find_magic(view, _LINK_SIGN, start, found)
    while at >= 0:
        if stop - at >= LINK_BYTES and _agrees(view, at, stop, _LINK, max_packet_bytes):
            return at
        at = find_magic(view, _LINK_SIGN, at + 1, found)
    return found


def begins(head: View) -> bool:
    """Return whether a stream that begins with `head` is one of GPackets, or of a cluster link.

    Fewer bytes than a packet's size needs show nothing: almost any could begin one.
    """
    return len(head) >= PREFIX_BYTES and any(
        _agrees(head, 0, len(head), form, MAX_PACKET_BYTES) for form in _FORMS
    )


Check = Callable[[Any, int], bool]


class _Form(NamedTuple):
    """One kind of header: the bytes that are the same in each, and what its fields have to say."""

    layout: Layout
    constants: tuple[tuple[int, bytes], ...]
    checks: tuple[tuple[str, Check], ...]
    """By the last field that each check needs."""


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
    """Return whether the fields of a header, as far as they are there, agree with each other."""
    layout = form.layout
    head = bytes(view[start : min(start + layout.size, stop)])
    for at, data in form.constants:
        if not data.startswith(head[at : at + len(data)]):
            return False
    header = layout.unpack(head.ljust(layout.size, b"\0"))
    most = min(max_packet_bytes, MAX_LINK_BYTES) if form is _LINK else max_packet_bytes
    return all(check(header, most) for name, check in form.checks if layout[name].stop <= len(head))
