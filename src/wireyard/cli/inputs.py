"""Opening what a command was given to read, and telling its format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, get_format, labels, sniff

if TYPE_CHECKING:
    from wireyard.streams.scan import OpenedStream

__all__ = ["open_input"]

_SNIFFED_BYTES = 1 << 16
_SHOWN_BYTES = 16


@contextmanager
def open_input(path: str, format_name: str | None) -> Iterator[tuple[Format, OpenedStream]]:
    """Open a path, a URL or ``-``; without a name the first bytes tell the format.

    Raises
    ------
    SourceError
        It cannot be read, or is empty and nothing says what it would hold.
    UsageError
        An unknown format, or first bytes of none.
    """
    from wireyard.streams.scan import open_windows

    named = get_format(format_name) if format_name else None
    opened = open_windows(path)
    # The windows close the file; somebody may stop before the last one.
    with closing(opened.rest):
        yield named or _sniffed(opened), opened


def _sniffed(opened: OpenedStream) -> Format:
    head = bytes(opened.first.view[:_SNIFFED_BYTES])
    if not head:
        raise SourceError(f"{opened.name}: is empty; --format says what to take it for")
    found = sniff(head)
    if found is None:
        from wireyard.captures.read import is_capture

        if is_capture(head):
            raise UsageError(f"{opened.name}: is a capture; 'wireyard flows' lists what is in it")
        shown = head[:_SHOWN_BYTES].hex(" ")
        raise UsageError(
            f"{opened.name}: begins like no format ({shown}); --format says what to take it for:"
            f" {', '.join(labels())}"
        )
    return found
