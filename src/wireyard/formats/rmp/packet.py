"""RMP messages as frozen values: decoding, encoding, rows, and whole packets.

A row is one message; the bytes of a packet's messages are contiguous. A packet that breaks a rule
is one malformed row, and none of its messages counts (errata R19). The row has the message that
breaks the rule, as far as it can be read.

`decode` returns a message or raises; `read_row` never raises. Both run the same code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated
from wireyard.formats.base import Row, View
from wireyard.formats.fields import PlainFields, Takes, code_of, flag, octets, whole
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.layout import (
    CLIENTS,
    DOMAIN,
    FLAG_ORDER,
    FLAGS,
    FOREIGN,
    LAYER_MASK,
    LAYERS,
    LENGTH,
    LIST_ORDER,
    MAX_MESSAGE_BYTES,
    PREFIX_BYTES,
    REPLY_TO,
    SEGMENT,
    SPEC,
)
from wireyard.formats.rmp.reading import (
    framed_bytes,
    nothing_follows,
    read_message,
    read_messages,
)
from wireyard.layout import Layout

_U16 = struct.Struct(">H")
_SOURCE = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3}):(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message(PlainFields):
    """One message of a packet; fields that its flags do not announce are None.

    The layer may be given by its name. A message of another protocol is `foreign`: its data begins
    with the typing word, and it has no other field.
    """

    layer: Takes[int | str, int] = Takes(code_of(LAYERS), 0)
    foreign: Takes[bool, bool] = Takes(flag, False)
    message_number: int | None = None
    packet_number: int | None = None
    packet_count: int | None = None
    domain: int | None = None
    client: int | None = None
    reply_message_number: int | None = None
    reply_source: str | None = None
    """Process that sent the message this one replies to, as ``address:port``."""
    reply_requested: Takes[bool, bool] = Takes(flag, False)
    more_follows: Takes[bool, bool] = Takes(flag, False)
    data: Takes[bytes, bytes] = Takes(octets, b"")
    list_order: Takes[bool, bool] = Takes(flag, False)
    """Whether the length comes before the reply-to field."""
    framed_bytes: int | None = None
    """Length before a framed packet, in bytes; only the packet's first message has it."""

    _spelled: ClassVar[Mapping[str, str]] = {"layer": "layer_name"}

    @property
    def typing(self) -> int:
        """The typing word."""
        if self.foreign:
            return int.from_bytes(self.data[:2], "big")
        set_flags = {
            "segmentation": self.message_number is not None,
            "domain": self.domain is not None,
            "client": self.client is not None,
            "reply_to": self.reply_message_number is not None,
            "more_follows": self.more_follows,
            "reply_requested": self.reply_requested,
        }
        return self.layer | sum(bit for flag, bit in FLAGS.items() if set_flags[flag])

    @property
    def layer_name(self) -> str | None:
        """Name of the layer, None if it has none."""
        return None if self.foreign else LAYERS.get(self.layer)

    @property
    def data_size(self) -> int:
        """Bytes of the data."""
        return len(self.data)


class Packet(tuple[Message, ...]):
    """All messages of one packet, in order."""

    __slots__ = ()


_FIELDS = tuple(item.name for item in fields(Message))
_NOT_FOREIGN = {
    item.name: item.default
    for item in fields(Message)
    if item.name not in ("foreign", "data", "list_order", "framed_bytes")
}
"""Fields that a message of another protocol does not have, each with its default."""


# --- decoding -------------------------------------------------------------------------------


def decode(view: View, context: int = 0) -> Message:
    """Decode the message of a row's bytes.

    Raises
    ------
    DecodeError
        The first rule that the packet breaks.
    """
    values: Row = {}
    _read(view, MessageContext.of(context), values)
    return _message(values, MessageContext.of(context).list_order)


def read_row(view: View, context: int = 0) -> tuple[Row, DecodeError | None]:
    """Read the message of a row's bytes; the error is None for a well-formed packet."""
    values: Row = {}
    error: DecodeError | None = None
    try:
        _read(view, MessageContext.of(context), values)
    except DecodeError as raised:
        error = raised
    values["layer_name"] = LAYERS.get(values.get("layer", -1))
    values.pop("framed_bytes", None)
    return values, error


def decode_whole(view: View, context: int = 0) -> Packet:
    """Decode all messages of one packet, which has its length before it if the stream is framed.

    A DecodeError is raised for the first rule that the packet breaks, or bytes that are not exactly
    one packet.
    """
    state = MessageContext.of(context)
    if not state.framed:
        return decode_packet(view, state.list_order)
    if len(view) < PREFIX_BYTES:
        raise Truncated("rmp", "packet length", 0, PREFIX_BYTES, len(view), SPEC)
    size = framed_bytes(view, 0)
    if size > len(view):
        raise Truncated("rmp", "packet", 0, size, len(view), SPEC)
    if size < len(view):
        problem = f"has {size} bytes, {len(view)} were given"
        raise Malformed("rmp", "packet", 0, problem, SPEC)
    first, *others = _messages(view, PREFIX_BYTES, state.list_order)
    return Packet((replace(first, framed_bytes=size - PREFIX_BYTES), *others))


def decode_packet(data: View, list_order: bool = False) -> Packet:
    """Decode all messages of one packet.

    Parameters
    ----------
    data
        The packet as its transport delivered it.
    list_order
        Whether the length comes before the reply-to field.

    Raises
    ------
    DecodeError
        The first rule that the packet breaks.
    """
    return Packet(_messages(data, 0, list_order))


def _messages(view: View, at: int, list_order: bool) -> Iterator[Message]:
    values: Row = {}
    for _ in read_messages(view, at, len(view), list_order, values):
        yield _message(values, list_order)


def _message(values: Row, list_order: bool) -> Message:
    known = {name: values[name] for name in _FIELDS if name in values}
    return Message(**known, list_order=list_order)


def _read(view: View, state: MessageContext, values: Row) -> None:
    """Fill `values`; the values before an error are valid."""
    values.update(packet_offset=-state.before, message_in_packet=state.ordinal)
    start, left = 0, state.left
    if state.framed and not state.ordinal:
        if len(view) < PREFIX_BYTES:
            raise Truncated("rmp", "packet length", 0, PREFIX_BYTES, len(view), SPEC)
        start, left = PREFIX_BYTES, framed_bytes(view, 0)
        values["framed_bytes"] = left - PREFIX_BYTES
    elif not state.framed:
        left = len(view)
    if len(view) > left:
        problem = f"has {left} bytes, {len(view)} were given"
        raise Malformed("rmp", "packet", 0, problem, SPEC)
    if start == left:
        _read_all(view, start, state, values)
    stop = read_message(view, start, len(view), state.list_order, values)
    more = values.get("more_follows", False)
    if left > len(view):
        if stop < len(view) or not more:
            if stop == len(view):  # The data may go on.
                values.update(data=None, data_size=None)
            raise Truncated("rmp", "packet", 0, left, len(view), SPEC)
    elif stop < len(view):
        _read_all(view, start, state, values)
    elif more and (state.framed or state.at_end):
        raise nothing_follows(stop)


def _read_all(view: View, start: int, state: MessageContext, values: Row) -> None:
    """Read a packet that is one row although it is not one message, and raise its error."""
    last: Row = {}
    count = 0
    try:
        for _ in read_messages(view, start, len(view), state.list_order, last):
            count += 1
    except DecodeError:
        values.clear()
        values.update(packet_offset=-state.before, message_in_packet=state.ordinal + count, **last)
        raise
    problem = f"has {count} messages, a row has one"
    raise Malformed("rmp", "packet", start, problem, SPEC)


# --- encoding -------------------------------------------------------------------------------


def encode(message: Message | Packet) -> bytes:
    """Encode one message or a whole packet, with the length before it if it is framed.

    Raises
    ------
    EncodeError
        A value that the wire cannot represent.
    """
    if isinstance(message, Packet):
        encoded = encode_packet(message, bool(message) and message[0].list_order)
        size, more = message[0].framed_bytes, False
    else:
        encoded = _encode(message)
        size, more = message.framed_bytes, message.more_follows
    if size is None:
        return encoded
    if whole("framed_bytes", size) < len(encoded) or (size > len(encoded) and not more):
        raise EncodeError("framed_bytes", size, f"{len(encoded)} bytes are behind it")
    return _number("framed_bytes", size) + encoded


def encode_packet(messages: Sequence[Message], list_order: bool = False) -> bytes:
    """Encode messages as one packet; `more_follows` is set in all but the last.

    Raises
    ------
    EncodeError
        No messages, a message of another protocol that is not the last, or a value that the wire
        cannot represent.
    """
    if not messages:
        raise EncodeError("packet", messages, "a packet has at least one message")
    last = len(messages) - 1
    return b"".join(
        _encode(replace(message, more_follows=place < last, list_order=list_order))
        for place, message in enumerate(messages)
    )


def _encode(message: Message) -> bytes:
    if message.foreign:
        for name, default in _NOT_FOREIGN.items():
            if (value := getattr(message, name)) != default:
                raise EncodeError(name, value, "a message of another protocol has data alone")
        if len(message.data) < 2 or message.typing < FOREIGN:
            raise EncodeError("data", message.data, f"begins with a word from {FOREIGN} on")
        return message.data
    _check(message)
    sizes = {"data_size": len(message.data)}
    typing = message.typing
    parts = [_U16.pack(typing)]
    for part in LIST_ORDER if message.list_order else FLAG_ORDER:
        if typing & FLAGS[part.flag]:
            parts += (
                _source_bytes(message.reply_source)
                if field.kind == "bytes"
                else _number(field.name, sizes.get(field.name, getattr(message, field.name)))
                for field in part.layout.fields
            )
    return b"".join((*parts, message.data))


def _check(message: Message) -> None:
    """Raise an error for a message that would not be decoded to itself."""
    if not 0 <= message.layer <= LAYER_MASK:
        raise EncodeError("layer", message.layer, LAYER_MASK)
    for layout in (SEGMENT, DOMAIN, CLIENTS, REPLY_TO):
        _check_together(message, layout)
    if message.packet_number is not None:
        number = _whole_16("packet_number", message.packet_number)
        count = _whole_16("packet_count", message.packet_count)
        if count < 1:
            raise EncodeError("packet_count", count, "from 1 on")
        if not 1 <= number <= count:
            raise EncodeError("packet_number", number, f"from 1 to packet_count, {count}")
    if message.more_follows and len(message.data) > MAX_MESSAGE_BYTES:
        limit = f"{MAX_MESSAGE_BYTES} bytes at most where another message follows"
        raise EncodeError(LENGTH.fields[0].name, len(message.data), limit)


def _check_together(message: Message, layout: Layout) -> None:
    values = {name: getattr(message, name) for name in layout.names}
    missing = [name for name, value in values.items() if value is None]
    if 0 < len(missing) < len(values):
        raise EncodeError(missing[0], None, f"goes with {', '.join(values)}")


def _number(name: str, value: object) -> bytes:
    return _U16.pack(_whole_16(name, value))


def _whole_16(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= 0xFFFF:
        raise EncodeError(name, value, "an integer from 0 to 65535")
    return value


def _source_bytes(source: object) -> bytes:
    match = _SOURCE.fullmatch(source) if isinstance(source, str) else None
    parts = match.groups() if match else ()
    numbers = [int(part) for part in parts]
    # A number with leading zeros would not be decoded to itself.
    if not match or max(numbers[:4]) > 0xFF or parts != tuple(map(str, numbers)):
        raise EncodeError("reply_source", source, "IPv4 address and port, as in 10.0.0.7:7001")
    return bytes(numbers[:4]) + _number("reply_source", numbers[4])


def packet_of(row: Mapping[str, Any], context: int = 0) -> Message:
    """Return the message of a row.

    In framed streams an EncodeError is raised for the first of several messages in a row without
    `framed_bytes`, the length of the packet, which `join_rows` adds.
    """
    state = MessageContext.of(context)
    message = _message({name: row[name] for name in _FIELDS if row.get(name) is not None}, False)
    message = replace(message, list_order=state.list_order)
    if not state.framed or row.get("message_in_packet") or message.framed_bytes is not None:
        return message
    if message.more_follows:
        raise EncodeError("more_follows", True, "no row has the length of a packet of several")
    return replace(message, framed_bytes=len(_encode(message)))


def row_context(row: Mapping[str, Any], context: int) -> int:
    """Return the context to decode the message of a row with.

    Only the first message of a framed packet has the packet's length before it; the others are
    decoded as in a packet that is not framed.
    """
    state = MessageContext.of(context)
    return state._replace(framed=state.framed and not row.get("message_in_packet")).context
