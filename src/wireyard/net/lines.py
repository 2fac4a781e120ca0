"""An asynchronous reader of lines, which does not block the event loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator

from wireyard.errors import SourceError

__all__ = ["read_lines"]

_READ_BYTES = 1 << 16
MAX_LINE_BYTES = 16 << 20
"""The longest line, which is as long as the longest message."""


async def read_lines(stream: io.BufferedIOBase) -> AsyncIterator[list[bytes]]:
    """Yield lists of the lines that have arrived, without line ends.

    Raises
    ------
    SourceError
        A line is longer than any message.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await asyncio.to_thread(stream.read1, _READ_BYTES):
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            yield b"".join((*pieces, lines)).split(b"\n")
            pieces.clear()
            size = 0
        pieces.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise SourceError(f"standard input: has a line of more than {MAX_LINE_BYTES} bytes")
    if size:
        yield [b"".join(pieces)]
