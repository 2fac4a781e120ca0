"""Redaction of GPackets: JMQ logins in their payloads, and logins that were converted to GPackets.

A payload is shown if it contains the beginning of a JMQ packet, or whole GPackets, none of which is
or carries a login. So a damaged login is not shown either.
"""

from __future__ import annotations

import re
from typing import Any, Final

from wireyard.errors import DecodeError
from wireyard.formats.base import Carried, Row
from wireyard.formats.gpacket.framing import frame_size
from wireyard.formats.gpacket.layout import LINK_VERSION, MAGIC_BYTES, MAX_PACKET_BYTES, VERSION
from wireyard.formats.gpacket.packet import read_row
from wireyard.formats.gpacket.payload import CARRIERS, MESSAGE_DATA
from wireyard.formats.property_rows import typed_properties

_BROADCAST: Final = 2
_LOGINS: Final = (12, 38)
"""AUTHENTICATE and AUTHENTICATE_REQUEST of JMQ; the types of the cluster protocol that have these
numbers, G_LOCK_REPLY and G_GOODBYE_REPLY, have no payload."""
SECRET_COLUMNS: Final = ("payload", "properties", "raw_properties")
SECRET_TYPES: Final = {
    **dict.fromkeys((MESSAGE_DATA, _BROADCAST, *CARRIERS), ("payload", "raw_properties")),
    **dict.fromkeys(_LOGINS, SECRET_COLUMNS),
}

_JMQ_MAGIC: Final = bytes.fromhex("1bffe3c2")
_OF_LOGIN: Final = rb"\x00[\x0c\x26]"
_VERSION: Final = VERSION.to_bytes(2, "big")
_CARRIED: Final = Carried(
    re.compile(re.escape(_JMQ_MAGIC)),
    re.compile(
        rb"%b..%b|%b%b%b|%b%b....%b"
        % (
            re.escape(_JMQ_MAGIC), _OF_LOGIN,
            re.escape(MAGIC_BYTES), re.escape(_VERSION), _OF_LOGIN,
            re.escape(_VERSION), _OF_LOGIN, re.escape(MAGIC_BYTES),
        ),
        re.DOTALL,
    ),
)  # fmt: skip
CARRIED: Final = {MESSAGE_DATA: _CARRIED}
"""JMQ packets; those with secrets are logins, also as GPackets, in either order of the header."""


def redact(row: Row) -> Row:
    """Return the row without secrets; the same row if it has none.

    A redacted row cannot be encoded to its packet.
    """
    kind, payload = row.get("packet_type"), row.get("payload")
    hidden: Row = {}
    if row.get("version") == LINK_VERSION:
        if kind in (MESSAGE_DATA, _BROADCAST) and payload and _has_login(payload):
            hidden["payload"] = None
    elif kind in SECRET_TYPES and kind != _BROADCAST:
        if payload is not None and not _is_clean(kind, payload):
            hidden["payload"] = None
        if row.get("raw_properties") is not None:
            hidden["raw_properties"] = None
        if kind in _LOGINS and _has_object(row.get("properties")):
            hidden["properties"] = None
    return {**row, **hidden} if hidden else row


def _has_object(properties: Any) -> bool:
    """Return whether properties have an object, in which a converted login has what is unusual."""
    return any(kind == "object" for kind, _ in typed_properties(dict(properties or ())).values())


def _has_login(payload: bytes) -> bool:
    return _CARRIED.secret_header.search(payload) is not None


def _is_clean(kind: int, payload: bytes) -> bool:
    """Return whether the payload of a packet of `SECRET_TYPES` has no login in it."""
    if kind == MESSAGE_DATA:
        return _CARRIED.is_clean(payload)
    return kind in CARRIERS and not _has_login(payload) and _is_configuration(payload)


def _is_configuration(payload: bytes) -> bool:
    """Return whether a payload is whole GPackets that carry no other packets."""
    at = 0
    while at < len(payload):
        try:
            size = frame_size(payload, at, len(payload), MAX_PACKET_BYTES)
        except DecodeError:
            return False
        if size is None or size > len(payload) - at:
            return False
        row, error = read_row(payload[at : at + size])
        if error or row["packet_type"] in SECRET_TYPES:
            return False
        at += size
    return True
