"""Framing that JMQ and GPackets share: headers with a magic number and the size of the packet."""

from __future__ import annotations

from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats.base import View
from wireyard.layout import Field

_FIRST_BYTES, _MOST_BYTES = 1 << 12, 1 << 20
"""A memoryview has no `find`, so it is copied in pieces: small ones first, for near hits."""


def checked_size(format: str, field: Field, size: int, least: int, most: int) -> int:
    """Return the size in a header.

    `Malformed` is raised if it is below `least`, that of the header, `LimitExceeded` if it is over
    `most`.
    """
    if size < least:
        problem = f"is {size}, less than the {least} of the header"
        raise Malformed(format, "size", field.offset, problem, field.spec, "bad_size")
    if size > most:
        raise LimitExceeded(format, "size", field.offset, f"is {size}, over {most}", field.spec)
    return size


def find_magic(view: View, magic: bytes, start: int, stop: int) -> int:
    """Return the position of `magic` in ``view[start:stop]``, or -1.

    A prefix of `magic` at the end counts too, because more bytes could complete it.
    """
    at = start
    piece = _FIRST_BYTES
    while at < stop:
        data = bytes(view[at : min(stop, at + piece)])
        index = data.find(magic)
        if index >= 0:
            return at + index
        if at + len(data) == stop:
            break
        at += len(data) - len(magic) + 1
        piece = min(piece * 4, _MOST_BYTES)
    for size in range(min(len(magic) - 1, stop - start), 0, -1):
        if bytes(view[stop - size : stop]) == magic[:size]:
            return stop - size
    return -1
