"""The interface of a wire format: one frozen value of functions and columns.

Streams, columns, Spark and the command line use a format only through `Format`. A new format is a
folder beside this file and a line in ``wireyard.formats``.
"""

from __future__ import annotations

import re
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
    "Body",
    "Carried",
    "Columnar",
    "Contexts",
    "Dialect",
    "Evidence",
    "Format",
    "Framing",
    "Head",
    "Inner",
    "Nested",
    "Row",
    "Secrets",
    "Several",
    "Shown",
    "Texts",
    "View",
]

View = bytes | memoryview
"""Bytes of a stream: indexing returns an int, and slicing need not copy."""

Row = dict[str, Any]
"""One packet as values by column name: ints, text, bytes, and lists and dicts of them."""

UNPROVEN: Final = -1
"""The bytes from a position on break no rule, but are too few to confirm that a packet begins."""
FIRST_PACKETS: Final = 32
"""Packets of each direction that are read to find a context that nothing else shows."""
REFUTED: Final = -2
"""No packet begins at a position: the bytes from there on break a rule."""


class Shown(IntEnum):
    """The evidence in the first bytes of a stream, of a format that reads many streams together."""

    NOTHING = 0
    """No evidence: the other bytes of the stream are needed."""
    CLIENT = 1
    """The format, and the direction client to server, as with `Evidence.opens`."""
    ANSWER = 2
    """The format, if the other direction of the connection shows it too."""
    EITHER = 3
    """The format, but no direction."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The meaning of bytes ``[start, stop)`` of a packet, for display; counted from its start."""

    start: int
    stop: int
    field: str
    value: str
    spec: str
    hidden: bool = False
    """Whether the bytes are shown only if secrets are requested; `value` never contains them."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A variant of a format that nothing on the wire announces."""

    context: int
    """Context of a stream's first frame."""
    doc: str


class Nested(NamedTuple):
    """A whole packet inside another: the label of its format, and its bytes ``[start, stop)``."""

    format: str
    start: int
    stop: int


class Carried(NamedTuple):
    """The beginnings of packets inside a body.

    A body holds no secret if `header` occurs in it, and `secret_header` does not.
    """

    header: re.Pattern[bytes]
    secret_header: re.Pattern[bytes]

    def is_clean(self, body: bytes) -> bool:
        """Return whether a body holds no secret."""
        return bool(self.header.search(body)) and not self.secret_header.search(body)


# --- what every format has ------------------------------------------------------------------


class Head(NamedTuple):
    """The beginning of a packet, for readers that do not have all of it."""

    type_of: Callable[[View, int], int]
    """Bytes, the position of a packet in them -> its type."""
    type_bytes: int
    """Bytes of a packet up to the end of its type."""
    clear_bytes: int
    """Bytes of a long packet that hold no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Where the packets of a stream begin and end."""

    header_bytes: int
    """Most bytes that `find_header` examines, and that are held back while more bytes arrive."""
    max_packet_bytes: int
    """Default limit of the packet size; a header with a larger size is malformed."""
    frame_size: Callable[[View, int, int, int, int, bool], int | None]
    """``(view, start, stop, max_packet_bytes, context, at_end)`` -> bytes of the frame at `start`.

    None means that more bytes are needed. A `DecodeError` means that no packet begins here.
    `at_end` is whether the stream ends at `stop`. The size may depend on the context only in
    formats whose `find_header` finds nothing.
    """
    find_header: Callable[[View, int, int, int], tuple[int, bool]]
    """``(view, start, stop, max_packet_bytes)`` -> ``(position, certain)``.

    Position of the first header at or after `start` that passes every check that its bytes allow,
    or `stop`. Not certain: the header is cut off by `stop`. A packet that is found this way is
    read with the context of a stream's first frame, for it does not depend on earlier packets.
    """
    head: Head | None = None
    """None if nothing follows from the first bytes of a packet alone."""


@dataclass(frozen=True, slots=True)
class Columnar:
    """The columnar decoder."""

    module: str
    """Its module, imported only when there is enough work for it.

    The module of a format in `wireyard.formats.FIRST_BYTES` also has kernels for many streams in
    one call: `sniff_heads`, which finds the evidence (`Shown`) in their first bytes, and
    `walk_streams`, which finds their packets. If the format has `Evidence.confirm_start`, it also
    has `find_contexts`, which finds the contexts of connections.
    """
    finds_frames: bool = False
    """Whether it can find the frames itself, if one thread does both."""


@dataclass(frozen=True, slots=True)
class Body:
    """The application data of a packet: a message body or payload."""

    column: str
    """The column that has it."""
    views: Mapping[str, Callable[[Row], Any]]
    """Functions that show the body of a row in another form: ``text`` and ``value``."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What text columns hold."""

    are_plain: bool = False
    """Whether they equal the text of the wire: UTF-8 without lone surrogates."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kind of the values in columns of names and values, by name: ``number text binary pair``.

    A pair is one of texts.
    """


# --- what only some formats have ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contexts:
    """How the context of a frame follows from earlier bytes; it stays the same by default."""

    next: Callable[[View, int], int] = lambda view, context: context
    """A frame, its context -> the context of the frame after it. The frame may be cut short."""
    last: Callable[[int], int] = lambda context: context
    """The context of a frame -> its context if it is the last frame of the stream."""
    answer: Callable[[View, int], int] = lambda view, context: context
    """The first bytes of a stream, its context -> the context of the opposite direction."""
    of_row: Callable[[Mapping[str, Any], int], int] = lambda row, context: context
    """A row, the context of its dialect -> the context to decode its packet with, on its own."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """By what the streams of a format, and their directions, are recognized."""

    begins: Callable[[View], bool] = lambda view: False
    """The first bytes of a stream -> whether they identify the format."""
    opens: Callable[[View], bool] = lambda view: False
    """The first bytes of a stream -> whether they identify the direction client to server."""
    confirm_start: Callable[[View, int, int, int, int, bool], int | None] | None = None
    """``(view, start, stop, max_packet_bytes, context, at_end)`` -> context of a packet at `start`.

    For formats whose packets have no magic number: decides from the bytes at a position where a
    TCP segment begins whether a packet begins there too. Returns `UNPROVEN` or `REFUTED` if they
    do not confirm it, and None if more bytes are needed. `at_end` is whether the captured bytes
    end at `stop`.
    """
    find_context: Callable[[Iterable[View], int], int] = lambda packets, context: context
    """Whole packets of both directions of a connection whose beginning was not captured, the
    context of the dialect -> the context to decode them with."""
    ports: Sequence[int] = ()
    """Default ports of servers."""
    in_datagrams: bool = False
    """Whether packets are sent in datagrams, each of which holds whole packets."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets in packets; none by default.

    The rule is at the head of ``wireyard.streams.redaction``.
    """

    redact: Callable[[Row], Row] = lambda row: row
    """A row with its status -> the row without secrets; the same row if there are none."""
    types: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The packet types with secrets, each with columns of which one has a value if there is one.

    `redact` leaves all other well-formed packets as they are. Empty if the format has no secrets.
    """
    columns: Sequence[str] = ()
    """The columns that `redact` may change."""
    reads: Sequence[str] = ("packet_type",)
    """The columns by which `redact` decides about others, besides `status`."""
    carried: Mapping[int, Carried] = field(default_factory=dict)
    """How packets without secrets are recognized in the bodies of some of `types`."""


@dataclass(frozen=True, slots=True)
class Several:
    """A packet that is several frames, none of which determines it alone."""

    join_rows: Callable[[Iterable[Row], int], Iterable[Row]] = lambda rows, context: rows
    """The rows of a stream, the context of its dialect -> rows complete enough for `packet_of`.

    Raises `EncodeError`.
    """
    decode_whole: Callable[[View, int], Any] | None = None
    """One packet as a transport carries it, its context -> all its frames. Raises `DecodeError`.

    None stands for `Format.decode`.
    """


@dataclass(frozen=True, slots=True)
class Inner:
    """Packets and rows of other formats in streams of this one."""

    nested: Callable[[View, int], Sequence[Nested]] = lambda view, context: ()
    """One whole packet, its context -> the packets inside it. Never raises."""
    other_rows: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)
    """Rows with another format name in streams of this format, by that name.

    Of each: its columns, by the column of this format that holds their values.
    """


# --- a format -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """One wire format.

    Every function takes a view and half-open positions in it. Nothing here depends on files,
    threads or tables, and no function reads at or beyond `stop`.

    `context` is the state that earlier bytes of the stream left for a frame, such as the version
    that a connection began with. It is one integer; only the format interprets it.
    """

    name: str
    """Name in options, rows and file suffixes, such as ``jmq``."""
    title: str
    """Description in one line."""
    columns: tuple[Column, ...]
    """The format's own columns, in order; the columns of every row come before them."""
    framing: Framing
    columnar: Columnar
    body: Body
    decode: Callable[[View, int], Any]
    """One whole packet, its context -> a frozen packet. Raises `DecodeError`."""
    encode: Callable[[Any], bytes]
    """A packet of `decode` or `Several.decode_whole` -> its bytes. Raises `EncodeError`."""
    read_row: Callable[[View, int], tuple[Row, DecodeError | None]]
    """One whole packet, its context -> its row, and the error if it is malformed.

    The row of a malformed packet has every value that could be read. A row with a `format` of its
    own belongs to that format (`Inner.other_rows`). Never raises.
    """
    packet_of: Callable[[Mapping[str, Any], int], Any]
    """A row (bytes as bytes), the context of its dialect -> its packet. Raises `EncodeError`."""
    derived: Mapping[str, str]
    """Columns that follow from other columns, each with those others."""
    annotate: Callable[[View, int], list[Annotation]]
    """One whole packet, its context -> annotations of all its bytes, without gaps. Never raises."""
    texts: Texts = Texts()
    contexts: Contexts = Contexts()
    evidence: Evidence = Evidence()
    secrets: Secrets = Secrets()
    several: Several = Several()
    inner: Inner = Inner()
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    """Dialects by name; a caller writes one after a slash, as in ``mqtt/5.0``."""
    dialect: str | None = None
    """Name of the dialect in use."""

    @property
    def label(self) -> str:
        """Name and dialect, as `get_format` accepts them."""
        return self.name if self.dialect is None else f"{self.name}/{self.dialect}"

    @property
    def context(self) -> int:
        """Context of a stream's first frame."""
        return 0 if self.dialect is None else self.dialects[self.dialect].context
