"""Message bodies opened: what a packet's type says its body is, as plain Python values.

Messages carry what JMS applications sent: text, bytes, or Java serialization, compressed if the Z
flag says so. Some control packets carry fixed records. Anything else stays the bytes it is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from wireyard import java
from wireyard.errors import DecodeError, LimitExceeded, Malformed
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADERS,
    MAX_PACKET_BYTES,
    SPEC,
)
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.formats.plain_values import plain_objects, value_text
from wireyard.formats.properties import typed_properties

__all__ = ["MAX_INFLATED_BYTES", "body_text", "body_value"]

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


def body_value(row: Row) -> Any:
    """Return a row's body as a plain value; None if there is no body.

    TEXT is text, BYTES bytes, MAP a dict, STREAM a list, OBJECT what the object stands for. An
    object of an unknown class is ``{"class": name, "data": its own serialization stream}``.
    Records of control packets are lists of numbers, message ids, acknowledged messages or XA ids;
    AUTHENTICATE gives the user alone. The row needs `packet_type`, `version`, `bit_flags`,
    `property_offset`, `property_size`, `properties` and `body`.

    Raises
    ------
    DecodeError
        A body that is not what its packet type says, or that does not inflate to its size.

    Limits
    ------
    `MAX_INFLATED_BYTES`, and those of ``wireyard.java``.
    """
    data = row.get("body")
    if data is None:
        return None
    start = row["property_offset"] + row["property_size"]
    body = _Body(data, row["version"], start, False)
    if row["bit_flags"] & FLAGS["Z"]:
        body = _Body(_inflate(body, row.get("properties")), body.version, start, True)
    opener = _OPENERS.get(row["packet_type"])
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
