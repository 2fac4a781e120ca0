"""Body views that several formats share."""

from __future__ import annotations

from collections.abc import Callable

from wireyard.formats.base import Row

__all__ = ["text_of"]


def text_of(column: str) -> Callable[[Row], str | None]:
    """Return a view of a bytes column as text; bytes that are not UTF-8 are backslash-escaped."""

    def show(row: Row) -> str | None:
        data: bytes | None = row.get(column)
        return None if data is None else data.decode("utf-8", "backslashreplace")

    return show
