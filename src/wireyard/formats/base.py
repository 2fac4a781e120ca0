"""What a wire format is to everything above it: one frozen value of functions and columns.

Streams, columns, Spark and the command line know a format only through `Format`. Adding one means
a folder beside this file and a line in ``wireyard.formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from wireyard.errors import DecodeError
from wireyard.layout import Column

__all__ = [
    "FIRST_PACKETS",
    "REFUTED",
    "UNPROVEN",
    "Annotation",
    "Dialect",
    "Format",
    "Nested",
    "Row",
    "Shown",
    "View",
]

View = bytes | memoryview
"""Bytes of a stream; indexing gives an int and slicing does not have to copy."""

Row = dict[str, Any]
"""One packet as named values: ints, text, bytes, and plain containers of them."""

UNPROVEN: Final = -1
"""No rule is broken by the bytes behind a position, and they are too few to confirm it."""
FIRST_PACKETS: Final = 32
"""Of each direction of a connection, what is read to find the context that nothing else shows."""
REFUTED: Final = -2
"""No packet begins at a position."""


class Shown(IntEnum):
    """What the first bytes of a stream show of a format that reads many streams together."""

    NOTHING = 0
    """Nothing that is decided without its other bytes."""
    CLIENT = 1
    """The format, and that a client sends it to a server, as `Format.opens` says."""
    ANSWER = 2
    """The format if the other direction of the connection shows it."""
    EITHER = 3
    """The format, whoever sends it."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What some bytes of a packet mean, for people; start and stop count from the packet."""

    start: int
    stop: int
    field: str
    value: str
    spec: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to read a format that nothing on the wire announces."""

    context: int
    """Context of a stream's first frame."""
    doc: str


class Nested(NamedTuple):
    """A whole packet inside another: bytes ``[start, stop)`` of it are one of a format's label."""

    format: str
    start: int
    stop: int


def _same_context(view: View, context: int) -> int:
    return context


def _same_context_at_end(context: int) -> int:
    return context


def _never_opens(view: View) -> bool:
    return False


def _dialect_context(row: Mapping[str, Any], context: int) -> int:
    return context


def _dialect_of_packets(packets: Iterable[View], context: int) -> int:
    return context


def _same_row(row: Row) -> Row:
    return row


def _same_rows(rows: Iterable[Row], context: int) -> Iterable[Row]:
    return rows


def _nothing_nested(view: View, context: int) -> Sequence[Nested]:
    return ()


@dataclass(frozen=True, slots=True)
class Format:
    """One wire format.

    Every function takes a view and half-open positions in it. Nothing here depends on files,
    threads or tables, and no function reads at or beyond `stop`.

    `context` is what earlier bytes of the stream decided about a frame, such as the version a
    connection began with: one integer, whose meaning is the format's.
    """

    name: str
    """Name in options, rows and file suffixes, such as ``jmq``."""
    title: str
    """One line for people."""
    columns: tuple[Column, ...]
    """The format's own columns, in order; the columns every row has come before them."""
    fast_path: str
    """Module with the columnar decoder; imported only when there is enough work for it.

    Of a format in `wireyard.formats.FIRST_BYTES` it also has `sniff_heads`, which gives what first
    bytes of streams have `Shown`, and `walk_streams`, which finds the packets of many streams. Of
    one of these with `confirm_start` it has `find_contexts` too, for many connections in one call.
    """
    header_bytes: int
    """Bytes that `find_header` looks at; no more than this is held back while bytes arrive."""
    max_packet_bytes: int
    """Largest packet believed unless the caller says otherwise."""
    body: str
    """The column that holds what a packet carries for others."""
    frame_size: Callable[[View, int, int, int, int, bool], int | None]
    """``(view, start, stop, max_packet_bytes, context, at_end)`` -> bytes of the frame at `start`.

    None means more bytes are needed to say. A `DecodeError` means no packet begins here. `at_end`
    is whether the stream ends at `stop`. Where frames end may depend on the context only if
    `find_header` finds nothing.
    """
    find_header: Callable[[View, int, int, int], tuple[int, bool]]
    """``(view, start, stop, max_packet_bytes)`` -> ``(position, certain)``.

    Position of the first header at or after `start` that passes every check that its bytes allow,
    or `stop`. Not certain means the header is cut off by `stop`. A packet that is found so can be
    read without knowing what came before it: its context is that of a stream's first frame.
    """
    begins: Callable[[View], bool]
    """The first bytes of a stream -> whether they show that it is one of this format."""
    decode: Callable[[View, int], Any]
    """One whole packet, its context -> a frozen packet. Raises `DecodeError`."""
    encode: Callable[[Any], bytes]
    """What `decode` or `decode_whole` returned -> its bytes. Raises `EncodeError`."""
    read_row: Callable[[View, int], tuple[Row, DecodeError | None]]
    """One whole packet, its context -> its row, and the error if it is malformed.

    A malformed packet gives every value that could still be read. A row that says its `format` is
    one of another name. Never raises.
    """
    packet_of: Callable[[Mapping[str, Any], int], Any]
    """A row (bytes as bytes), the context of its dialect -> its packet. Raises `EncodeError`."""
    derived: Mapping[str, str]
    """Columns that follow from others, and what each follows from."""
    annotate: Callable[[View, int], list[Annotation]]
    """One whole packet, its context -> what each byte means, without gaps. Never raises."""
    body_views: Mapping[str, Callable[[Row], Any]]
    """Other ways to show a body: ``text`` and ``value``."""
    join_rows: Callable[[Iterable[Row], int], Iterable[Row]] = _same_rows
    """The rows of a stream, the context of its dialect -> rows that say what `packet_of` needs.

    Where a packet is several rows, one alone does not. Raises `EncodeError`.
    """
    decode_whole: Callable[[View, int], Any] | None = None
    """One whole packet as a transport carries it, its context -> all of it. Raises `DecodeError`.

    `decode` if None; set where a packet is several frames.
    """
    row_context: Callable[[Mapping[str, Any], int], int] = _dialect_context
    """A row, the context of its dialect -> the context that its packet alone is read by."""
    redact: Callable[[Row], Row] = _same_row
    """A row -> the row without passwords."""
    secret_columns: Sequence[str] = ()
    """The columns that `redact` may change."""
    next_context: Callable[[View, int], int] = _same_context
    """A frame, its context -> the context of the frame after it. The frame may be cut short."""
    last_context: Callable[[int], int] = _same_context_at_end
    """The context of a frame -> the one it has instead where its stream ends with it."""
    answer_context: Callable[[View, int], int] = _same_context
    """The first bytes of a stream, its context -> the context of the stream that answers it."""
    confirm_start: Callable[[View, int, int, int, int, bool], int | None] | None = None
    """``(view, start, stop, max_packet_bytes, context, at_end)`` -> context of a packet at `start`.

    Of formats without a mark that packets begin with: whether one begins at `start`, where a TCP
    segment does, as the bytes behind it show. `UNPROVEN` or `REFUTED` if they do not; None if more
    of them are needed. `at_end` is whether the captured bytes end at `stop`.
    """
    find_context: Callable[[Iterable[View], int], int] = _dialect_of_packets
    """Whole packets of both directions of a connection whose beginning was not captured, the
    context of the dialect -> the context that they are read by."""
    opens: Callable[[View], bool] = _never_opens
    """The first bytes of a stream -> whether they show that a client sends it to a server."""
    decoder_frames: bool = False
    """Whether its compiled columns find frames while they decode, if one thread does both."""
    plain_text: bool = False
    """Whether columns hold text as packets do: UTF-8 without lone surrogates."""
    named_values: Mapping[str, str] = field(default_factory=dict)
    """What the values in columns of names and values are, by name.

    One of ``number text binary pair``, a pair being of texts.
    """
    ports: Sequence[int] = ()
    """The ports that servers listen on by default."""
    in_datagrams: bool = False
    """Whether it is sent in datagrams, each of them whole packets."""
    nested: Callable[[View, int], Sequence[Nested]] = _nothing_nested
    """One whole packet, its context -> the packets inside it. Never raises."""
    other_rows: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)
    """Rows of other names that streams of the format hold too.

    Their columns, by the column of the format that each stands in.
    """
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    """What a caller may add to the name after a slash, as in ``mqtt/5.0``."""
    dialect: str | None = None
    """Which of them this is."""

    @property
    def label(self) -> str:
        """The name with its dialect: what `get_format` takes to return the same."""
        return self.name if self.dialect is None else f"{self.name}/{self.dialect}"

    @property
    def context(self) -> int:
        """Context of a stream's first frame."""
        return 0 if self.dialect is None else self.dialects[self.dialect].context
