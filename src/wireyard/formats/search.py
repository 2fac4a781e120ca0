"""Search for a magic number in a view, for the formats that have one."""

from __future__ import annotations

from wireyard.formats.base import View

__all__ = ["find_magic"]

_FIRST_BYTES, _MOST_BYTES = 1 << 12, 1 << 20
"""A memoryview has no `find`, so it is copied in pieces: small ones first, for near hits."""


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
