"""Decoding and encoding of message bodies, by packet type, as plain Python values.

Bodies of messages are text, bytes or Java serialization, compressed if the flag Z is set. Bodies of
some control packets are fixed records. All other bodies stay bytes.
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

_Entry = PlainValue | Property | None
PlainBody = bytes | str | Mapping[str, _Entry] | Sequence[_Entry]
"""A body as a plain value: text, bytes, a mapping for MAP, a sequence for STREAM."""

MAX_INFLATED_BYTES = MAX_PACKET_BYTES
"""Largest body after inflation: the largest packet that brokers accept without compression. Deflate
expands up to a thousand times, so 70 KB may inflate to this much."""

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
    """A body to decode; `start` is its offset in the packet."""

    data: bytes
    version: int
    start: int
    inflated: bool

    def fault(self, problem: str, at: int = 0, code: str | None = None) -> DecodeError:
        """Return an error at `at`; of a compressed body the offset is that of its start."""
        kind = LimitExceeded if code == LimitExceeded.code else Malformed
        offset = self.start if self.inflated else self.start + at
        return kind("jmq", "body", offset, problem, _SPEC, code)


def body_value(source: Any) -> Any:
    """Return the body of a packet or of a row as a plain value; None if there is no body.

    TEXT is text, BYTES bytes, MAP a dict, STREAM a list, OBJECT the value of the object. An object
    of an unknown class is ``{"class": name, "data": its own serialization stream}``. Records of
    control packets are lists of numbers, message ids, acknowledged messages or XA ids; AUTHENTICATE
    gives the user alone. A row needs `packet_type`, `version`, `bit_flags`, `property_offset`,
    `property_size`, `properties` and `body`.

    Raises
    ------
    DecodeError
        A body that does not fit its packet type, or does not inflate to its size. Offsets count
        from the start of the packet for a row, from the start of the body for a packet.

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
    reader = _READERS.get(get("packet_type"))
    return body.data if reader is None else reader(body)


def body_text(row: Row) -> str | None:
    """Return a row's body as text; None if there is no body.

    Text stays as it is, bytes become hex, all else becomes JSON: bytes as hex, times as ISO 8601,
    decimals, NaN and infinities as text, a map with keys that are no text as a list of pairs. A
    DecodeError is raised as by `body_value`.
    """
    return value_text(body_value(row))


def body_bytes(packet_type: int, bit_flags: int, body: Any) -> bytes | None:
    """Encode a body for its packet type; an empty one becomes None.

    Bytes stay as they are. Text is accepted for types with a text body, a mapping for MAP_MESSAGE,
    a sequence for STREAM_MESSAGE. The Java types of values follow from the values, bytes become
    byte arrays; a pair, such as `Property`, has the type explicitly, which may be ``character``
    too. An EncodeError is raised for a body that does not fit the packet type, a value without a
    Java type, or a plain value although the flags have Z, for a compressed body.
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
    """The encoder of a kind of body: the Python types it accepts, in words too."""

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


# --- decoding -------------------------------------------------------------------------------


def _inflate(body: _Body, properties: Mapping[str, Any] | None) -> bytes:
    """Inflate a body, which has to give exactly the size in its property (errata 24)."""
    entry = typed_properties(properties).get(_SIZE_PROPERTY)
    if entry is None or entry.type != "integer":
        raise body.fault(f"is compressed, and no integer {_SIZE_PROPERTY} says to what size")
    size = int(entry.value)
    if size > MAX_INFLATED_BYTES:
        problem = f"inflates to {size} bytes, at most {MAX_INFLATED_BYTES} are believed"
        raise body.fault(problem, code=LimitExceeded.code)
    stream = zlib.decompressobj()
    try:
        # One byte more than stated shows a wrong size. It is never 0, which would mean no limit.
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
    objects = _objects(body)
    if len(objects) != 1:
        raise body.fault(f"is Java serialization of {len(objects)} objects, not one")
    return objects[0]


def _map(body: _Body) -> dict[str, Any]:
    value = _object(body)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise body.fault("is Java serialization, but not of a map from names to values")
    return value


def _records(body: _Body, record: struct.Struct) -> list[tuple[Any, ...]]:
    if len(body.data) % record.size:
        raise body.fault(f"has {len(body.data)} bytes, records have {record.size} each")
    return list(record.iter_unpack(body.data))


def _ids(body: _Body) -> list[str]:
    return [message_id_text(*record) for record in _records(body, _IDS)]


def _acknowledged(body: _Body) -> list[Row]:
    # The consumer id is as wide as in the version's header, so a record has 40 bytes, 36 in 103.
    return [
        {"consumer_id": consumer, "sys_message_id": message_id_text(*message)}
        for consumer, *message in _records(body, _ACKS[body.version])
    ]


def _xids(body: _Body) -> list[Row]:
    xids = []
    for format_id, global_size, branch_size, global_id, branch_id in _records(body, _XIDS):
        if global_size > len(global_id) or branch_size > len(branch_id):
            raise body.fault(f"has an XA id of lengths {global_size} and {branch_size}, 64 fit")
        xids.append(
            {
                "format_id": format_id,
                "global_id": global_id[:global_size],
                "branch_id": branch_id[:branch_size],
            }
        )
    return xids


def _uids(body: _Body) -> list[int]:
    return [uid for (uid,) in _records(body, _UIDS)]


def _user(body: _Body) -> Row:
    """Return the user of a login; the password, or a hash of it, follows the name."""
    stop = 2 + int.from_bytes(body.data[:2], "big")
    if len(body.data) < stop:
        raise body.fault("is not a user and a password")
    try:
        return {"user": java.decode_text(body.data[2:stop])}
    except ValueError:
        raise body.fault("has a user that is not modified UTF-8", 2, "bad_utf8") from None


_READERS: Mapping[int, Callable[[_Body], Any]] = MappingProxyType(
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
"""The decoder of the body by packet type; the bodies of other types stay bytes."""
