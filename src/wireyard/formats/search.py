"""Finding a magic number in any view, for the formats that have one."""

from __future__ import annotations

from wireyard.formats.base import View

__all__ = ["find_magic"]

_FIRST_BYTES, _MOST_BYTES = 1 << 12, 1 << 20
"""A view without `find` is copied piece by piece: small first, so that near hits stay cheap."""


def find_magic(view: View, magic: bytes, start: int, stop: int) -> int:
    """Return where `magic` begins in ``view[start:stop]``, or -1.

    A beginning of `magic` that `stop` cuts off counts: more bytes could complete it.
    """
    at = start
    piece = _FIRST_BYTES
    while at < stop:
        data = bytes(view[at : min(stop, at + piece)])
        found = data.find(magic)
        if found >= 0:
            return at + found
        if at + len(data) == stop:
            break
        at += len(data) - len(magic) + 1
        piece = min(piece * 4, _MOST_BYTES)
    for kept in range(min(len(magic) - 1, stop - start), 0, -1):
        if bytes(view[stop - kept : stop]) == magic[:kept]:
            return stop - kept
    return -1
