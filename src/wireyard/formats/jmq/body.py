"""Message bodies opened and made: what a packet's type says its body is, as plain Python values.

Messages carry what JMS applications sent: text, bytes, or Java serialization, compressed if the Z
flag says so. Some control packets carry fixed records. Anything else stays the bytes it is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from wireyard import java
from wireyard.errors import DecodeError, EncodeError, LimitExceeded, Malformed
from wireyard.formats.base import Row
from wireyard.formats.fields import octets_or_text
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADERS,
    MAX_PACKET_BYTES,
    PACKET_TYPES,
    SPEC,
)
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.formats.plain_values import plain_objects, value_text
from wireyard.formats.properties import PlainValue, Property, plain_property
from wireyard.formats.property_rows import typed_properties

__all__ = ["MAX_INFLATED_BYTES", "PlainBody", "body_bytes", "body_text", "body_value"]

_Entry = PlainValue | Property | None
PlainBody = bytes | str | Mapping[str, _Entry] | Sequence[_Entry]
"""A body as people write it: text, bytes, a MAP, or a STREAM."""

MAX_INFLATED_BYTES = MAX_PACKET_BYTES
"""Largest body believed after inflation: what brokers would take without compression. Deflate makes
a thousand bytes of one at best, so 70 KB could ask for this much."""

_SIZE_PROPERTY = "JMS_SUN_UNCOMPRESSED_SIZE"
_SPEC = f"{SPEC}, message data"

_IDS = struct.Struct(f">{MESSAGE_ID_CODES}")
_ACKS = {
    version: struct.Struct(f">{header['consumer_id'].code}{MESSAGE_ID_CODES}")
    for version, header in HEADERS.items()
}
_XIDS = struct.Struct(">iHH64s64s")
_UIDS = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class _Body:
    """A body ready to be opened; `start` is where its packet has it."""

    data: bytes
    version: int
    start: int
    inflated: bool

    def fault(self, problem: str, at: int = 0, code: str | None = None) -> DecodeError:
        """Return the error; inside a compressed body only its start is a place in the packet."""
        kind = LimitExceeded if code == LimitExceeded.code else Malformed
        offset = self.start if self.inflated else self.start + at
        return kind("jmq", "body", offset, problem, _SPEC, code)


def body_value(source: Any) -> Any:
    """Return the body of a packet or of a row as a plain value; None if there is no body.

    TEXT is text, BYTES bytes, MAP a dict, STREAM a list, OBJECT what the object stands for. An
    object of an unknown class is ``{"class": name, "data": its own serialization stream}``.
    Records of control packets are lists of numbers, message ids, acknowledged messages or XA ids;
    AUTHENTICATE gives the user alone. A row needs `packet_type`, `version`, `bit_flags`,
    `property_offset`, `property_size`, `properties` and `body`.

    Raises
    ------
    DecodeError
        A body that is not what its packet type says, or that does not inflate to its size. Offsets
        count from the packet where a row says where its body begins, else from the body.

    Limits
    ------
    `MAX_INFLATED_BYTES`, and those of ``wireyard.java``.
    """
    in_row = isinstance(source, Mapping)
    get: Callable[[str], Any] = source.get if in_row else partial(getattr, source)
    data = get("body")
    if data is None:
        return None
    start = source["property_offset"] + source["property_size"] if in_row else 0
    body = _Body(data, get("version"), start, False)
    if get("bit_flags") & FLAGS["Z"]:
        body = _Body(_inflate(body, get("properties")), body.version, start, True)
    opener = _OPENERS.get(get("packet_type"))
    return body.data if opener is None else opener(body)


def body_text(row: Row) -> str | None:
    """Return a row's body as text; None if there is no body.

    Text stays as it is, bytes become hex, anything else JSON: bytes in hex, times in ISO 8601,
    decimals and what JSON has no number for as text, a map with other keys than text as pairs.

    Raises
    ------
    DecodeError
        As `body_value`.
    """
    return value_text(body_value(row))


def body_bytes(packet_type: int, bit_flags: int, body: Any) -> bytes | None:
    """Return a body as on the wire; an empty one is none.

    Bytes stay as they are. Text is the body of types whose body is text, a mapping from names that
    of MAP_MESSAGE, a sequence that of STREAM_MESSAGE. Types of values follow from the values, bytes
    are arrays; a pair, such as `Property`, names its type, and ``character`` is one more.

    Raises
    ------
    EncodeError
        Not what the packet type holds, a value that Java has no type for, or a plain value beside
        the flag that says the body is compressed.
    """
    if body is None or isinstance(body, bytes):
        return body or None
    writer = _WRITERS.get(packet_type)
    if writer is None or not isinstance(body, writer.takes):
        name = PACKET_TYPES.get(packet_type, f"type {packet_type}")
        wanted = f"bytes or {writer.words}" if writer else "bytes"
        raise EncodeError("body", body, f"the body of {name} is {wanted}")
    if bit_flags & FLAGS["Z"]:
        raise EncodeError("body", body, "a compressed body (flag Z) is given as bytes")
    return writer.write(body) or None


def _text_bytes(text: str) -> bytes:
    return octets_or_text("body", text)


def _map_bytes(entries: Mapping[str, Any]) -> bytes:
    typed = {name: _typed(f"body entry {name}", value) for name, value in entries.items()}
    return java.write_hashmap(typed, "body")


def _stream_bytes(values: Sequence[Any]) -> bytes:
    typed = [_typed(f"body element {place}", value) for place, value in enumerate(values)]
    return java.write_objects(typed, "body") if typed else b""


def _typed(field: str, value: Any) -> tuple[str, Any] | None:
    match value:
        case None | (str(), _):
            return value
        case bytes():
            return "bytes", value
        case _:
            return plain_property(field, value)


class _Writer(NamedTuple):
    """How a body is made of plain values."""

    takes: type | tuple[type, ...]
    words: str
    write: Callable[[Any], bytes]


_WRITERS: Mapping[int, _Writer] = MappingProxyType(
    {
        1: _Writer(str, "text", _text_bytes),
        3: _Writer(Mapping, "a mapping from names to values", _map_bytes),
        4: _Writer((list, tuple), "a list of values", _stream_bytes),
        38: _Writer(str, "text", _text_bytes),
    }
)


# --- opened ---------------------------------------------------------------------------------


def _inflate(body: _Body, properties: Mapping[str, Any] | None) -> bytes:
    """Inflate a body to exactly the size its property states (errata 24)."""
    entry = typed_properties(properties).get(_SIZE_PROPERTY)
    if entry is None or entry.type != "integer":
        raise body.fault(f"is compressed, and no integer {_SIZE_PROPERTY} says to what size")
    size = int(entry.value)
    if size > MAX_INFLATED_BYTES:
        problem = f"inflates to {size} bytes, at most {MAX_INFLATED_BYTES} are believed"
        raise body.fault(problem, code=LimitExceeded.code)
    stream = zlib.decompressobj()
    try:
        # One byte more than stated is enough to see that the size is a lie, and never 0, which
        # would mean without a bound.
        data = stream.decompress(body.data, max(size, 0) + 1)
    except zlib.error as error:
        raise body.fault(f"cannot be inflated: {error}", code="bad_zlib") from None
    if len(data) != size or not stream.eof:
        found = f"{len(data)} bytes" if stream.eof or len(data) < size else "more"
        raise body.fault(f"inflates to {found}, {_SIZE_PROPERTY} is {size}", code="bad_zlib")
    if stream.unused_data:
        problem = f"has {len(stream.unused_data)} bytes after its compressed data"
        raise body.fault(problem, len(body.data) - len(stream.unused_data), "bad_zlib")
    return data


def _text(body: _Body) -> str:
    try:
        return body.data.decode()
    except UnicodeDecodeError as error:
        raise body.fault("is not UTF-8", error.start, "bad_utf8") from None


def _objects(body: _Body) -> list[Any]:
    try:
        return plain_objects(body.data)
    except java.JavaError as error:
        problem = f"is Java serialization whose '{error.field}' {error.problem}"
        raise body.fault(problem, error.offset, error.code) from None


def _object(body: _Body) -> Any:
    found = _objects(body)
    if len(found) != 1:
        raise body.fault(f"is Java serialization of {len(found)} objects, not one")
    return found[0]


def _map(body: _Body) -> dict[str, Any]:
    found = _object(body)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise body.fault("is Java serialization, but not of a map from names to values")
    return found


def _records(body: _Body, record: struct.Struct) -> list[tuple[Any, ...]]:
    if len(body.data) % record.size:
        raise body.fault(f"has {len(body.data)} bytes, records have {record.size} each")
    return list(record.iter_unpack(body.data))


def _ids(body: _Body) -> list[str]:
    return [message_id_text(*record) for record in _records(body, _IDS)]


def _acknowledged(body: _Body) -> list[Row]:
    # The consumer id is as wide as that of the version's header: 40 bytes a block, 36 in 103.
    return [
        {"consumer_id": consumer, "sys_message_id": message_id_text(*message)}
        for consumer, *message in _records(body, _ACKS[body.version])
    ]


def _xids(body: _Body) -> list[Row]:
    found = []
    for format_id, global_size, branch_size, global_id, branch_id in _records(body, _XIDS):
        if global_size > len(global_id) or branch_size > len(branch_id):
            raise body.fault(f"has an XA id of lengths {global_size} and {branch_size}, 64 fit")
        found.append(
            {
                "format_id": format_id,
                "global_id": global_id[:global_size],
                "branch_id": branch_id[:branch_size],
            }
        )
    return found


def _uids(body: _Body) -> list[int]:
    return [uid for (uid,) in _records(body, _UIDS)]


def _user(body: _Body) -> Row:
    """Return who logs in; what follows the name is the password, or a hash of it."""
    stop = 2 + int.from_bytes(body.data[:2], "big")
    if len(body.data) < stop:
        raise body.fault("is not a user and a password")
    try:
        return {"user": java.decode_text(body.data[2:stop])}
    except ValueError:
        raise body.fault("has a user that is not modified UTF-8", 2, "bad_utf8") from None


_OPENERS: Mapping[int, Callable[[_Body], Any]] = MappingProxyType(
    {
        1: _text,
        3: _map,
        4: _objects,
        5: _object,
        12: _user,
        16: _ids,  # the last message delivered
        24: _acknowledged,
        27: _ids,
        32: _acknowledged,
        38: _text,  # the nonce of a digest login
        42: _ids,
        44: _xids,
        46: _xids,
        48: _xids,
        56: _xids,
        58: _xids,
        61: _xids,
        63: _uids,
        73: _object,
        74: _object,
        78: _xids,
        79: _object,
    }
)
"""How the body of a packet type is opened; of any other it is bytes."""
