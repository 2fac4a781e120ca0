"""The scalar reader of messages: the typing word, and the fields that it announces.

Framing, decoding and the inspector all use it, so each rule is implemented once. A message that no
receiver can process is malformed. One that a sender should not send, but every receiver can read
(fields on a later packet of a message, a segment before other messages, a request for a reply that
no reply can refer to: errata R9, R10, R21), is well-formed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from wireyard.errors import Malformed, Truncated
from wireyard.formats.base import Row, View
from wireyard.formats.rmp.layout import (
    FLAG_ORDER,
    FLAGS,
    FOREIGN,
    LAYER_MASK,
    LENGTH,
    LIST_ORDER,
    PREFIX_BYTES,
    REPLY_TO,
    SEGMENT,
    SPEC,
    TYPING,
)

_WORD = struct.Struct(">H")
_MULTIPLEXING = LENGTH.fields[0].spec


def read_message(view: View, at: int, stop: int, list_order: bool, values: Row) -> int:
    """Read the message at `at` of a packet that ends at `stop`; return the end of the message.

    `values` gets the fields by column name, without absent ones. If the message breaks a rule, a
    DecodeError is raised, whose offsets count from the view's first byte; the values before it are
    valid.
    """
    if stop - at < TYPING.size:
        raise Truncated("rmp", TYPING.name, at, TYPING.size, stop - at, TYPING.fields[0].spec)
    (word,) = _WORD.unpack_from(view, at)
    values["typing"] = word
    values["foreign"] = word >= FOREIGN
    if word >= FOREIGN:
        # Opaque: all of the packet from the typing word on is its data (errata R18).
        values.update(data_size=stop - at, data=bytes(view[at:stop]))
        return stop
    values["layer"] = word & LAYER_MASK
    values["reply_requested"] = bool(word & FLAGS["reply_requested"])
    values["more_follows"] = bool(word & FLAGS["more_follows"])
    at += TYPING.size
    for part in LIST_ORDER if list_order else FLAG_ORDER:
        if word & FLAGS[part.flag]:
            layout = part.layout
            if stop - at < layout.size:
                spec = layout.fields[0].spec
                raise Truncated("rmp", layout.name, at, layout.size, stop - at, spec)
            values.update(layout.unpack(view, at))
            if layout is REPLY_TO:
                values["reply_source"] = _source_text(values["reply_source"])
            elif layout is SEGMENT:
                _check_segment(values, at)
            at += layout.size
    size = values.setdefault("data_size", stop - at)
    if size > stop - at:
        raise Truncated("rmp", "data", at, size, stop - at, _MULTIPLEXING)
    values["data"] = bytes(view[at : at + size])
    return int(at + size)


def read_messages(view: View, at: int, stop: int, list_order: bool, values: Row) -> Iterator[int]:
    """Yield the end of each message of the packet ``[at, stop)``; `values` has its fields.

    If the packet breaks a rule, a DecodeError is raised, and none of its messages counts (errata
    R19).
    """
    more = True
    while more:
        if at == stop:
            raise Malformed("rmp", "packet", at, "is empty", SPEC, "empty_packet")
        values.clear()
        at = read_message(view, at, stop, list_order, values)
        more = values.get("more_follows", False)
        if more and at == stop:
            raise nothing_follows(at)
        yield at


def nothing_follows(at: int) -> Malformed:
    """Return the error of a packet that ends at `at` although it announces another message."""
    problem = "says that another message follows, none does"
    return Malformed("rmp", "more follows", at, problem, _MULTIPLEXING, "nothing_follows")


def _check_segment(values: Mapping[str, int], at: int) -> None:
    number, count = values["packet_number"], values["packet_count"]
    if not 1 <= number <= count:
        field = SEGMENT["packet_number"]
        problem = f"is {number} of {count}, packets count from 1"
        raise Malformed("rmp", "packet number", at + field.offset, problem, field.spec)


def _source_text(source: bytes) -> str:
    """Return an RMP process id as ``address:port``."""
    port = int.from_bytes(source[4:], "big")
    return f"{'.'.join(map(str, source[:4]))}:{port}"


def framed_bytes(view: View, at: int) -> int:
    """Return the bytes of the framed packet at `at`, with those of its length field."""
    return PREFIX_BYTES + int(_WORD.unpack_from(view, at)[0])
