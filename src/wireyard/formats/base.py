"""What a wire format is to everything above it: one frozen value of functions and columns.

Streams, columns, Spark and the command line know a format only through `Format`. Adding one means
a folder beside this file and a line in ``wireyard.formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wireyard.errors import DecodeError
from wireyard.layout import Column

__all__ = ["Annotation", "Format", "Row", "View"]

View = bytes | memoryview
"""Bytes of a stream; indexing gives an int and slicing does not have to copy."""

Row = dict[str, Any]
"""One packet as named values: ints, text, bytes, and plain containers of them."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What some bytes of a packet mean, for people; start and stop count from the packet."""

    start: int
    stop: int
    field: str
    value: str
    spec: str


@dataclass(frozen=True, slots=True)
class Format:
    """One wire format.

    Every function takes a view and half-open positions in it. Nothing here knows about files,
    threads or tables, and no function reads at or beyond `stop`.
    """

    name: str
    """Name in options, rows and file suffixes, such as ``jmq``."""
    title: str
    """One line for people."""
    columns: tuple[Column, ...]
    """The format's own columns, in order; the columns every row has come before them."""
    fast_path: str
    """Module with the columnar decoder; imported only when there is enough work for it."""
    header_bytes: int
    """Bytes that `find_header` looks at; no more than this is held back while bytes arrive."""
    max_packet_bytes: int
    """Largest packet believed unless the caller says otherwise."""
    frame_size: Callable[[View, int, int, int], int | None]
    """``(view, start, stop, max_packet_bytes)`` -> size in bytes of the packet at `start`.

    None means more bytes are needed to say. A `DecodeError` means no packet begins here.
    """
    find_header: Callable[[View, int, int, int], tuple[int, bool]]
    """``(view, start, stop, max_packet_bytes)`` -> ``(position, certain)``.

    Position of the first header at or after `start` that passes every check that its bytes allow,
    or `stop`. Not certain means the header is cut off by `stop`.
    """
    decode: Callable[[View], Any]
    """One whole packet -> a frozen packet. Raises `DecodeError`."""
    encode: Callable[[Any], bytes]
    """A packet -> its bytes. Raises `EncodeError`."""
    read_row: Callable[[View], tuple[Row, DecodeError | None]]
    """One whole packet -> its row, and the error if it is malformed.

    A malformed packet gives every value that could still be read. Never raises.
    """
    packet_of: Callable[[Mapping[str, Any]], Any]
    """A row (bytes as bytes) -> the packet it describes. Raises `EncodeError`."""
    annotate: Callable[[View], list[Annotation]]
    """One whole packet -> what each of its bytes means, without gaps. Never raises."""
    redact: Callable[[Row], Row]
    """A row -> the row without passwords."""
    body_views: Mapping[str, Callable[[Row], Any]]
    """Other ways to show a body: ``text`` and ``value``."""
