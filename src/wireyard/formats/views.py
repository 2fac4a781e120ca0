"""Ways to show what a packet carries that several formats have."""

from __future__ import annotations

from collections.abc import Callable

from wireyard.formats.base import Row

__all__ = ["text_of"]


def text_of(column: str) -> Callable[[Row], str | None]:
    """Return what shows the bytes of a column as text, with what is not UTF-8 spelled out."""

    def show(row: Row) -> str | None:
        data: bytes | None = row.get(column)
        return None if data is None else data.decode("utf-8", "backslashreplace")

    return show
