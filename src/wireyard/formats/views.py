"""Helpers that several formats share: a body as text, and the search for a magic number."""

from __future__ import annotations

from collections.abc import Callable

from wireyard.formats.base import Row, View

__all__ = ["find_magic", "text_of"]

_FIRST_BYTES, _MOST_BYTES = 1 << 12, 1 << 20
"""A memoryview has no `find`, so it is copied in pieces: small ones first, for near hits."""


def text_of(column: str) -> Callable[[Row], str | None]:
    """Return a view of a bytes column as text; bytes that are not UTF-8 are backslash-escaped."""

    def show(row: Row) -> str | None:
        data: bytes | None = row.get(column)
        return None if data is None else data.decode("utf-8", "backslashreplace")

    return show


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
