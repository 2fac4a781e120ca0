"""A fast parser of packets for the layer: the messages of a packet, or the first error.

The format's `decode_packet` is the reference. This parser reads well-formed messages several times
as fast: it reads the head of a run of messages with the same fields once, with `struct` formats
made from the format's own tables. Any other packet is decoded by the reference, which raises the
error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

from wireyard.formats.rmp.layout import (
    CLIENTS,
    DOMAIN,
    FLAG_ORDER,
    FLAGS,
    LAYER_MASK,
    LENGTH,
    REPLY_TO,
    SEGMENT,
    TYPING,
)
from wireyard.formats.rmp.packet import Message, decode_packet


class Fields(NamedTuple):
    """The header fields of a message; fields without their flag are None."""

    layer: int | None
    """None for other protocols, whose data begins with the typing word."""
    message_number: int | None
    packet_number: int | None
    packet_count: int | None
    domain: int | None
    client: int | None
    reply_message_number: int | None
    reply_source: str | None
    reply_requested: bool


_fields = partial(tuple.__new__, Fields)
"""A faster constructor of `Fields` from a tuple: it takes half the time."""
Run = tuple[Fields, list[bytes]]
"""The common fields of consecutive messages, and the data of each."""

_OPTIONAL = (*SEGMENT.names, *DOMAIN.names, *CLIENTS.names, *REPLY_TO.names, *LENGTH.names)
_LAYER_BITS = LAYER_MASK.bit_length()
_SOURCE_AT, _LENGTH_AT = _OPTIONAL.index("reply_source"), len(_OPTIONAL) - 1
_NUMBER_AT, _COUNT_AT = _OPTIONAL.index("packet_number"), _OPTIONAL.index("packet_count")

Values = tuple[Any, ...]


class _Shape(NamedTuple):
    """The layout of messages with the same flags."""

    unpack_from: Callable[[bytes, int], Values]
    size: int
    pick: Callable[[Values], Values]
    """Returns the values in the order of `_OPTIONAL`, with None for missing fields."""
    plain: bool
    """Whether the values need no check or conversion."""
    more_follows: bool
    reply_requested: bool


def _shape(flags: int) -> _Shape:
    layouts = [TYPING, *(part.layout for part in FLAG_ORDER if flags & FLAGS[part.flag])]
    codes = "".join(field.code for layout in layouts for field in layout.fields)
    names = [name for layout in layouts for name in layout.names]
    form = struct.Struct(">" + codes)
    places = (names.index(name) if name in names else len(names) for name in _OPTIONAL)
    return _Shape(
        form.unpack_from,
        form.size,
        itemgetter(*places),
        not flags & (FLAGS["segmentation"] | FLAGS["reply_to"]),
        bool(flags & FLAGS["more_follows"]),
        bool(flags & FLAGS["reply_requested"]),
    )


_SHAPES = tuple(_shape(flags << _LAYER_BITS) for flags in range(1 << len(FLAGS)))
"""The shape for each value of the flags; typing words of other protocols are beyond the last."""
_ABSENT = (None,)
_SOURCES = 1024
"""The most cached names of processes, 150 kB of them: more than rings have members."""
_word_at = TYPING.struct.unpack_from


class _NeedsReference(Exception):
    """The packet has to be decoded by the reference."""


def parse_packet(packet: bytes) -> list[Run]:
    """Return the messages of a packet, whole ones and segments, in runs with the same fields.

    A segment or a reply is a run of its own. The first rule that the packet violates raises a
    DecodeError; then none of its messages counts (errata R19).
    """
    try:
        return _parse_fast(packet)
    except (_NeedsReference, struct.error, IndexError):
        return [(_fields_of(message), [message.data]) for message in decode_packet(packet)]


def _parse_fast(packet: bytes) -> list[Run]:
    runs = []
    at, stop, more = 0, len(packet), True
    while more:
        (word,) = _word_at(packet, at)
        unpack_from, size, pick, plain, more, requested = _SHAPES[word >> _LAYER_BITS]
        values = pick(unpack_from(packet, at) + _ABSENT)
        if not plain:
            values = _checked(values)
        start = at + size
        if not more:
            run = [packet[start:]]
            at = stop
        else:
            head = packet[at : start - LENGTH.size]
            at = start + values[_LENGTH_AT]
            run = [packet[start:at]]
            while plain and packet.startswith(head, at):
                start = at + size
                at = start + (packet[start - 2] << 8 | packet[start - 1])
                run.append(packet[start:at])
        if at > stop:
            raise _NeedsReference
        runs.append((_fields((word & LAYER_MASK, *values[:_LENGTH_AT], requested)), run))
    return runs


def _checked(values: Values) -> Values:
    """Return the fields of a segment or a reply, checked and with the source as text."""
    number, count = values[_NUMBER_AT], values[_COUNT_AT]
    if number is not None and count is not None and not 1 <= number <= count:
        raise _NeedsReference
    source = values[_SOURCE_AT]
    if source is None:
        return values
    return (*values[:_SOURCE_AT], _source_text(source), *values[_SOURCE_AT + 1 :])


@lru_cache(_SOURCES)
def _source_text(source: bytes) -> str:
    *octets, high, low = source
    return f"{'.'.join(map(str, octets))}:{high << 8 | low}"


def _fields_of(message: Message) -> Fields:
    layer = None if message.foreign else message.layer
    return Fields._make((layer, *(getattr(message, name) for name in Fields._fields[1:])))
