"""Decoding of payloads of the cluster protocol to plain Python values, and their nested packets.

Brokers send lists of records, marshalled properties, whole packets, or one serialized object.
Payloads of other packet types stay bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from wireyard import java
from wireyard.errors import DecodeError, Malformed
from wireyard.formats.base import Nested, Row, View
from wireyard.formats.cursor import Cursor
from wireyard.formats.gpacket.framing import frame_size
from wireyard.formats.gpacket.layout import (
    HEADER_BYTES,
    LINK_BYTES,
    LINK_SPEC,
    LINK_VERSION,
    MAX_PACKET_BYTES,
)
from wireyard.formats.gpacket.packet import is_ported, read_row
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text
from wireyard.formats.plain_values import plain_objects, value_text
from wireyard.formats.properties import decode_properties
from wireyard.formats.property_rows import typed_properties

_SPEC = "cluster protocol, payload"
MESSAGE_DATA = 1
CARRIERS = (17, 20, 51)
"""Packet types whose payload is whole GPackets: changes of the cluster's configuration."""
_ADDRESS_VERSION = 100
_CONSUMER_MARK = 99353142765567461
_MESSAGE_ID = struct.Struct(f">{MESSAGE_ID_CODES}")
_LEVEL_WITH_SESSIONS = 400
"""The cluster protocol level from which LINK_INIT has broker and store sessions."""


def payload_value(row: Row) -> Any:
    """Return a row's payload as a plain value; None if there is no payload.

    The row needs `version`, `packet_type`, `property_size`, `properties` and `payload`. A payload
    that does not fit its packet type raises a DecodeError. The limits are those of
    ``wireyard.java``; records are bounded by the payload's bytes.
    """
    data = row.get("payload")
    if data is None:
        return None
    link = row["version"] == LINK_VERSION
    if not link and is_ported(typed_properties(row.get("properties"))):
        return data
    reader = (_LINK_READERS if link else _READERS).get(row["packet_type"])
    if reader is None:
        return data
    start = LINK_BYTES if link else HEADER_BYTES + row["property_size"]
    cursor = Cursor(data, "gpacket", start, LINK_SPEC if link else _SPEC)
    value = reader(cursor, row)
    if cursor.at < len(data):
        problem = f"has {len(data) - cursor.at} bytes after its last field"
        raise cursor.fault(Malformed, "payload", cursor.at, problem)
    return value


def payload_text(row: Row) -> str | None:
    """Return a row's payload as text; None if there is no payload.

    Bytes become hex, anything else JSON. A DecodeError is raised as by `payload_value`.
    """
    return value_text(payload_value(row))


def nested_packets(view: View, context: int = 0) -> Sequence[Nested]:
    """Return the packets directly inside one whole packet; none if they cannot be located.

    G_MESSAGE_DATA has one JMQ packet after its consumers; changes of the configuration are
    consecutive GPackets. They have the dialect of the outer packet.
    """
    row, error = read_row(view, context)
    if error or row.get("payload") is None or row["version"] == LINK_VERSION:
        return ()
    if is_ported(row.get("properties")):
        return ()
    start = HEADER_BYTES + row["property_size"]
    dialect = "/short-object" if context else ""
    if row["packet_type"] in CARRIERS:
        return _gpackets(view, start, f"gpacket{dialect}")
    if row["packet_type"] != MESSAGE_DATA:
        return ()
    cursor = Cursor(row["payload"], "gpacket", start, _SPEC)
    try:
        _counted_consumers(cursor, row)
    except DecodeError:
        return ()
    first = start + cursor.at
    return (Nested(f"jmq{dialect}", first, len(view)),) if first < len(view) else ()


def _gpackets(view: View, start: int, label: str) -> Sequence[Nested]:
    packets = []
    while start < len(view):
        try:
            size = frame_size(view, start, len(view), MAX_PACKET_BYTES)
        except DecodeError:
            break
        if size is None or size > len(view) - start:
            break
        packets.append(Nested(label, start, start + size))
        start += size
    return packets


# --- records --------------------------------------------------------------------------------


def _boolean(cursor: Cursor, field: str) -> bool:
    return cursor.integer(1, field) != 0


def _optional_text(cursor: Cursor, field: str) -> str | None:
    return cursor.text(field) if _boolean(cursor, f"{field} follows") else None


def _address(cursor: Cursor) -> Row:
    start = cursor.at
    version = cursor.integer(4, "broker address version")
    if version != _ADDRESS_VERSION:
        problem = f"is {version}, not {_ADDRESS_VERSION}"
        raise cursor.fault(Malformed, "broker address version", start, problem)
    return _host(cursor)


def _host(cursor: Cursor) -> Row:
    return {
        "host": cursor.text("host"),
        "instance": cursor.text("instance"),
        "port": cursor.integer(4, "port"),
    }


def _consumer(cursor: Cursor) -> Row:
    return {
        "consumer_id": cursor.integer(8, "consumer id"),
        "connection_id": cursor.integer(8, "connection id"),
        "broker": _address(cursor),
    }


def _acknowledged(cursor: Cursor) -> Row:
    message = _MESSAGE_ID.unpack(cursor.take(_MESSAGE_ID.size, "message id"))
    return {"sys_message_id": message_id_text(*message), "consumer": _consumer(cursor)}


def _interest(cursor: Cursor) -> Row:
    start = cursor.at
    mark = cursor.integer(8, "consumer record mark")
    if mark != _CONSUMER_MARK:
        problem = f"is {mark}, not {_CONSUMER_MARK}"
        raise cursor.fault(Malformed, "consumer record mark", start, problem)
    record: Row = {
        "destination": cursor.text("destination"),
        "consumer": _consumer(cursor) if _boolean(cursor, "consumer follows") else None,
        "client_id": _optional_text(cursor, "client id"),
        "durable_name": _optional_text(cursor, "durable name"),
        "selector": _optional_text(cursor, "selector"),
        "queue": _boolean(cursor, "queue"),
        "no_local": _boolean(cursor, "no local"),
        "active": _boolean(cursor, "active"),
    }
    if cursor.at < len(cursor.data):  # Older brokers end here.
        limited = _boolean(cursor, "max active follows")
        record["max_active"] = cursor.integer(4, "max active") if limited else None
        record["lock_position"] = cursor.integer(4, "lock position")
        record["jms_shared"] = _boolean(cursor, "JMS shared")
        record["subscription_name"] = _optional_text(cursor, "subscription name")
    return record


def _list_of(read: Callable[[Cursor], Row]) -> Callable[[Cursor, Row], list[Row]]:
    def read_all(cursor: Cursor, row: Row) -> list[Row]:
        records = []
        while cursor.at < len(cursor.data):
            records.append(read(cursor))
        return records

    return read_all


def _counted_consumers(cursor: Cursor, row: Row) -> list[Row]:
    """Read the consumers before a message; the property C is their number."""
    kind, count = typed_properties(row.get("properties")).get("C", (None, 0))
    if kind != "integer" or int(count) < 0:
        raise cursor.fault(Malformed, "C", 0, "is no count of consumers in an integer property")
    return [_consumer(cursor) for _ in range(int(count))]


def _message(cursor: Cursor, row: Row) -> Row:
    consumers = _counted_consumers(cursor, row)
    return {"consumers": consumers, "packet": _rest(cursor)}


def _rest(cursor: Cursor) -> bytes:
    return cursor.take(len(cursor.data) - cursor.at, "payload")


def _durable(cursor: Cursor, row: Row) -> Row:
    return {"durable_name": cursor.text("durable name"), "client_id": cursor.text("client id")}


def _properties(cursor: Cursor, row: Row) -> Row:
    properties = decode_properties(_rest(cursor), cursor.format, cursor.base, _SPEC)
    return {name: {"type": kind, "value": value} for name, (kind, value) in properties.items()}


def _object(cursor: Cursor, row: Row) -> Any:
    try:
        objects = plain_objects(_rest(cursor))
    except java.JavaError as error:
        problem = f"is Java serialization whose '{error.field}' {error.problem}"
        raise cursor.fault(Malformed, "payload", error.offset, problem, error.code) from None
    if len(objects) != 1:
        problem = f"is Java serialization of {len(objects)} objects, not one"
        raise cursor.fault(Malformed, "payload", 0, problem)
    return objects[0]


def _link_init(cursor: Cursor, row: Row) -> Row:
    level = cursor.integer(4, "cluster protocol level")
    values: Row = {
        "protocol_level": level,
        "broker": _host(cursor),
        "master": _host(cursor) if _boolean(cursor, "master broker follows") else None,
        "match": {},
    }
    for _ in range(cursor.integer(4, "number of properties to match")):
        name = cursor.text("property name")
        values["match"][name] = cursor.text("property value")
    if level >= _LEVEL_WITH_SESSIONS:
        values["ha"] = _boolean(cursor, "HA")
        values["broker_id"] = _optional_text(cursor, "broker id")
        values["broker_session"] = cursor.integer(8, "broker session")
        has_session = values["ha"] or _boolean(cursor, "store session follows")
        values["store_session"] = cursor.integer(8, "store session") if has_session else None
    return values


_Reader = Callable[[Cursor, Row], Any]

_READERS: Mapping[int, _Reader] = MappingProxyType(
    {
        MESSAGE_DATA: _message,
        3: _list_of(_acknowledged),
        4: _list_of(_acknowledged),
        5: _list_of(_interest),
        7: _durable,
        9: _list_of(_consumer),
        13: _properties,
        35: _list_of(_interest),
        46: _object,
    }
)
"""The decoder of the payload by packet type; the payloads of other types stay bytes."""

_LINK_READERS: Mapping[int, _Reader] = MappingProxyType({3: _object, 4: _link_init, 9: _object})
