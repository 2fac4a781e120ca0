"""Opening what a command was given to read that is one stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from wireyard.errors import UsageError
from wireyard.formats import Format, get_format

if TYPE_CHECKING:
    from wireyard.streams.scan import OpenedStream

__all__ = ["open_one"]


@contextmanager
def open_one(path: str, format_name: str | None) -> Iterator[tuple[Format, OpenedStream]]:
    """Open a path, a URL or ``-`` that is a bare stream; its first bytes show its format.

    Raises
    ------
    SourceError
        It cannot be read, or is empty and nothing says what it would hold.
    UnknownFormat
        First bytes of no format.
    UsageError
        An unknown format, a capture or a store.
    """
    from wireyard.captures.inputs import open_input
    from wireyard.streams.scan import OpenedStream

    found = open_input(path, get_format(format_name) if format_name else None)
    opened = found.readables[0].opened if len(found.readables) == 1 else None
    if not isinstance(opened, OpenedStream):
        kind = "capture" if found.captured else "file store"
        found.close()
        raise UsageError(
            f"{found.name}: is a {kind}, not one stream; 'wireyard decode' reads what is in it"
        )
    format = found.readables[0].format
    # The windows close the file; somebody may stop before the last one.
    with closing(opened):
        yield format, opened
