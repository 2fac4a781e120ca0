"""Opening the input of a command that reads a single bare stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from wireyard.errors import UsageError
from wireyard.formats import Format, get_format

if TYPE_CHECKING:
    from wireyard.streams.scan import OpenedStream


@contextmanager
def open_one(path: str, format_name: str | None) -> Iterator[tuple[Format, OpenedStream]]:
    """Open a path, a URL or ``-`` as a bare stream; by default its first bytes show its format.

    A `SourceError` is raised if it cannot be read, or is empty and no format is given;
    `UnknownFormat` if it begins like no format; a `UsageError` if the format is unknown, or the
    input is a capture or a store.
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
    # Reading to the end closes the file, but the caller may stop before.
    with closing(opened):
        yield format, opened
