"""Redaction of control packets: passwords and authentication data.

In a CONNECT that is malformed, a password may be where another text should be. So its texts stay
only if all of its bytes are those of its fields, such as in one with a client identifier that is
too long.
"""

from __future__ import annotations

from wireyard.errors import EncodeError
from wireyard.formats.base import Row
from wireyard.formats.mqtt.cursor import read_integer
from wireyard.formats.mqtt.layout import AUTH, CONNACK, CONNECT, PROTOCOLS
from wireyard.formats.mqtt.packet import packet_of
from wireyard.formats.mqtt.properties import SECRET_PROPERTY
from wireyard.formats.mqtt.writing import encode

SECRET_TYPES = {
    CONNECT: ("password", "properties", "header_flags"),
    CONNACK: ("properties",),
    AUTH: ("properties",),
}
SECRET_COLUMNS = (
    "password",
    "properties",
    "will_properties",
    "protocol_name",
    "client_id",
    "will_topic",
    "will_payload",
    "username",
)
REDACT_READS = (
    *("packet_type", "verdict", "version_in_force", "flags", "remaining_length", "header_flags"),
    *("protocol_name", "protocol_version", "clean_start", "keep_alive", "client_id"),
    *("will_topic", "will_payload", "will_qos", "will_retain", "username", "has_password"),
    "password",
)
_LOGIN_FLAGS = 0xC0
_MOST_PLAIN = 4
"""The last version without properties, into which anything can get if a length is wrong."""


def is_exact(row: Row) -> bool:
    """Return whether the fields of a CONNECT, CONNACK or AUTH are certain to be what they seem.

    They are not if the flags of 3.1 announce a login that is missing (errata M19). Else those of a
    well-formed packet are, and those of a malformed CONNECT if they make up all of its bytes.
    """
    if (row.get("header_flags") or 0) & _LOGIN_FLAGS and row.get("protocol_version") != 2:
        return False
    if row.get("verdict") is None:
        return True
    if row["packet_type"] != CONNECT or (row.get("protocol_version") or 0) & 0x7F > _MOST_PLAIN:
        return False
    if any("\0" in (row.get(name) or "") for name in ("client_id", "will_topic", "username")):
        return False
    try:
        data = encode(packet_of(row))
    except EncodeError:
        return False
    return read_integer(data, 1, len(data))[0] == row.get("remaining_length")


def redact(row: Row) -> Row:
    """Return the row without secrets; the same row if it has none.

    A redacted row cannot be encoded to its packet.
    """
    hidden: Row = {}
    if row.get("packet_type") in SECRET_TYPES:
        names = SECRET_COLUMNS[:1] if is_exact(row) else SECRET_COLUMNS
        hidden = {name: None for name in names if row.get(name) is not None}
        if row.get("protocol_name") in PROTOCOLS.values():
            hidden.pop("protocol_name", None)
    for name in ("properties", "will_properties"):
        entries = () if name in hidden else row.get(name) or ()
        if any(each["name"] == SECRET_PROPERTY for each in entries):
            hidden[name] = [
                {**each, "value": None} if each["name"] == SECRET_PROPERTY else each
                for each in entries
            ]
    return {**row, **hidden} if hidden else row
