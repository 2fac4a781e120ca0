r"""Tables of MQTT: versions, packet types, flags, properties, reason codes, columns. No logic.

Every control packet is a fixed header, a variable header and a payload::

    0   type and flags    1       type in the high nibble
    1   Remaining Length  1 to 4  of everything after it; seven bits a byte, lowest first
    .   variable header           by type and version: topic, packet identifier, properties ..
    .   payload                   by type: message, filters, return codes ..

Integers of 16 and 32 bits are big-endian, but for the words of the page of 1999 (errata M12); text
and binary data follow a big-endian length of 16 bits in every version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from wireyard.layout import Column

__all__ = [
    "AUTH",
    "BROKER_TYPES",
    "CLIENT_TYPES",
    "COLUMNS",
    "CONNACK",
    "CONNECT",
    "DERIVED",
    "DISCONNECT",
    "FIXED_FLAGS",
    "MAX_ENTRIES",
    "MAX_PACKET_BYTES",
    "MAX_REMAINING_LENGTH",
    "MSB_FIRST",
    "PACKET_TYPES",
    "PINGREQ",
    "PINGRESP",
    "PROPERTIES",
    "PROPERTIES_BY_NAME",
    "PROTOCOLS",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "REASON_CODES",
    "SPECS",
    "SUBACK",
    "SUBSCRIBE",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "VERSION_BITS",
    "WILL",
    "PropertyType",
]

MAX_REMAINING_LENGTH: Final = 268_435_455
MAX_PACKET_BYTES: Final = MAX_REMAINING_LENGTH + 5
"""The largest possible packet; brokers accept it by default, so the limit is no smaller."""
MAX_ENTRIES: Final = 65_536
"""Most properties, topic filters or return codes of a packet: any more are an error, because each
takes many times its bytes in memory."""

# --- versions -------------------------------------------------------------------------------

SPECS: Final = MappingProxyType(
    {0: "MQTT", 2: "MQIpdp 2.3", 3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}
)
"""Specification by version in force, the protocol level of CONNECT; 0 is an unknown version."""

PROTOCOLS: Final = MappingProxyType({2: "MQIpdp", 3: "MQIsdp", 4: "MQTT", 5: "MQTT"})
"""Protocol name of each version."""

VERSION_BITS: Final = 7
"""The bits of a context with the version in force."""
MSB_FIRST: Final = 8
"""The bit of a context by which words are big-endian if the version is that of 1999 (errata M12).
"""

# --- packet types ---------------------------------------------------------------------------

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

CLIENT_TYPES = (CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ)
"""Packet types that only clients send."""
BROKER_TYPES = (CONNACK, SUBACK, UNSUBACK, PINGRESP)
"""Packet types that only brokers send."""
WILL: Final = 16
"""A pseudo packet type: the properties of a will, in tables of properties by packet type."""

PACKET_TYPES: Final = MappingProxyType(
    {
        CONNECT: "CONNECT",
        CONNACK: "CONNACK",
        PUBLISH: "PUBLISH",
        PUBACK: "PUBACK",
        PUBREC: "PUBREC",
        PUBREL: "PUBREL",
        PUBCOMP: "PUBCOMP",
        SUBSCRIBE: "SUBSCRIBE",
        SUBACK: "SUBACK",
        UNSUBSCRIBE: "UNSUBSCRIBE",
        UNSUBACK: "UNSUBACK",
        PINGREQ: "PINGREQ",
        PINGRESP: "PINGRESP",
        DISCONNECT: "DISCONNECT",
        AUTH: "AUTH",
    }
)
"""Names of the packet types; AUTH exists in 5.0 only."""
FIXED_FLAGS: Final = MappingProxyType(
    {kind: 2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0 for kind in PACKET_TYPES}
)
"""The low nibble that 3.1.1 and 5.0 fix for each type but PUBLISH; we write it in every version.

Before 3.1.1 the nibble 2 of those three types is QoS 1, and DUP may be set beside it.
"""

# --- properties -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PropertyType:
    """A property of 5.0: its type, the packets that may have it, its range of values."""

    code: int
    name: str
    kind: str
    """``byte two four variable text binary pair``"""
    packets: frozenset[int]
    repeats: frozenset[int]
    """Packets that may carry it more than once."""
    low: int
    high: int | None
    spec: str


def _property(
    code: int,
    name: str,
    kind: str,
    packets: tuple[int, ...],
    spec: str,
    values: tuple[int, int | None] = (0, None),
    repeats: tuple[int, ...] = (),
) -> PropertyType:
    return PropertyType(code, name, kind, frozenset(packets), frozenset(repeats), *values, spec)


_MESSAGE = (PUBLISH, WILL)
_ANSWERS = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ALL = (CONNECT, *_MESSAGE, *_ANSWERS, SUBSCRIBE, UNSUBSCRIBE)
_LOGIN = (CONNECT, CONNACK, AUTH)
_TRUTH = (0, 1)
_NOT_ZERO = (1, None)

PROPERTIES: Final[Mapping[int, PropertyType]] = MappingProxyType(
    {
        known.code: known
        for known in (
            _property(1, "payload_format_indicator", "byte", _MESSAGE, "3.3.2.3.2", _TRUTH),
            _property(2, "message_expiry_interval", "four", _MESSAGE, "3.3.2.3.3"),
            _property(3, "content_type", "text", _MESSAGE, "3.3.2.3.9"),
            _property(8, "response_topic", "text", _MESSAGE, "3.3.2.3.5"),
            _property(9, "correlation_data", "binary", _MESSAGE, "3.3.2.3.6"),
            _property(
                11, "subscription_identifier", "variable", (PUBLISH, SUBSCRIBE), "3.3.2.3.8",
                _NOT_ZERO, (PUBLISH,),
            ),
            _property(
                17, "session_expiry_interval", "four", (CONNECT, CONNACK, DISCONNECT), "3.1.2.11.2"
            ),
            _property(18, "assigned_client_identifier", "text", (CONNACK,), "3.2.2.3.7"),
            _property(19, "server_keep_alive", "two", (CONNACK,), "3.2.2.3.14"),
            _property(21, "authentication_method", "text", _LOGIN, "3.1.2.11.9"),
            _property(22, "authentication_data", "binary", _LOGIN, "3.1.2.11.10"),
            _property(23, "request_problem_information", "byte", (CONNECT,), "3.1.2.11.7", _TRUTH),
            _property(24, "will_delay_interval", "four", (WILL,), "3.1.3.2.2"),
            _property(25, "request_response_information", "byte", (CONNECT,), "3.1.2.11.6", _TRUTH),
            _property(26, "response_information", "text", (CONNACK,), "3.2.2.3.15"),
            _property(28, "server_reference", "text", (CONNACK, DISCONNECT), "3.2.2.3.16"),
            _property(31, "reason_string", "text", _ANSWERS, "3.2.2.3.9"),
            _property(33, "receive_maximum", "two", (CONNECT, CONNACK), "3.1.2.11.3", _NOT_ZERO),
            _property(34, "topic_alias_maximum", "two", (CONNECT, CONNACK), "3.1.2.11.5"),
            _property(35, "topic_alias", "two", (PUBLISH,), "3.3.2.3.4", _NOT_ZERO),
            _property(36, "maximum_qos", "byte", (CONNACK,), "3.2.2.3.4", _TRUTH),
            _property(37, "retain_available", "byte", (CONNACK,), "3.2.2.3.5", _TRUTH),
            _property(38, "user_property", "pair", _ALL, "3.1.2.11.8", repeats=_ALL),
            _property(
                39, "maximum_packet_size", "four", (CONNECT, CONNACK), "3.1.2.11.4", _NOT_ZERO
            ),
            _property(
                40, "wildcard_subscription_available", "byte", (CONNACK,), "3.2.2.3.11", _TRUTH
            ),
            _property(
                41, "subscription_identifier_available", "byte", (CONNACK,), "3.2.2.3.12", _TRUTH
            ),
            _property(
                42, "shared_subscription_available", "byte", (CONNACK,), "3.2.2.3.13", _TRUTH
            ),
        )
    }
)  # fmt: skip
"""Properties by identifier (MQTT 5.0, 2.2.2.2)."""
PROPERTIES_BY_NAME: Final = MappingProxyType({known.name: known for known in PROPERTIES.values()})

# --- reason codes ---------------------------------------------------------------------------

_PUBLISHED = frozenset({0, 16, 128, 131, 135, 144, 145, 151, 153})
_RELEASED = frozenset({0, 146})

REASON_CODES: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        CONNACK: frozenset({0, *range(128, 139), 140, 144, 149, 151, 153, 154, 155, 156, 157, 159}),
        PUBACK: _PUBLISHED,
        PUBREC: _PUBLISHED,
        PUBREL: _RELEASED,
        PUBCOMP: _RELEASED,
        SUBACK: frozenset({0, 1, 2, 128, 131, 135, 143, 145, 151, 158, 161, 162}),
        UNSUBACK: frozenset({0, 17, 128, 131, 135, 143, 145}),
        DISCONNECT: frozenset(
            {0, 4, *range(128, 132), 135, 137, *range(139, 145), *range(147, 163)}
        ),
        AUTH: frozenset({0, 24, 25}),
    }
)
"""Reason codes that 5.0 allows for each packet type (2.4 and the sections of the types)."""

# --- columns --------------------------------------------------------------------------------

_FIXED, _CONNECT, _WILL = "fixed header", "CONNECT", "CONNECT, Will"

COLUMNS: Final = (
    Column("packet_type", "int32", "type of the control packet", _FIXED),
    Column("packet_type_name", "string", "name of the type, null for 0", _FIXED),
    Column("dup", "bool", "DUP of PUBLISH; before 3.1.1 also of PUBREL and (UN)SUBSCRIBE", _FIXED),
    Column("qos", "int32", "quality of service of the same packets", _FIXED),
    Column("retain", "bool", "RETAIN of PUBLISH: to be retained, or was retained", _FIXED),
    Column("flags", "int32", "the low nibble as sent", _FIXED),
    Column("remaining_length", "int64", "length of the packet after this field", _FIXED, "bytes"),
    Column("remaining_length_bytes", "int32", "size of that field", _FIXED, "bytes"),
    Column("protocol_name", "string", "MQIpdp, MQIsdp or MQTT", _CONNECT),
    Column("protocol_version", "int32", "protocol level: 2 to 5", _CONNECT),
    Column("client_id", "string", "client identifier", _CONNECT),
    Column("clean_start", "bool", "discard an existing session (Clean Session)", _CONNECT),
    Column("keep_alive", "int32", "longest time between packets of the client", _CONNECT, "s"),
    Column("will_topic", "string", "topic of the will", _WILL),
    Column("will_payload", "binary", "payload of the will", _WILL),
    Column("will_qos", "int32", "QoS of the will", _WILL),
    Column("will_retain", "bool", "whether the will is retained", _WILL),
    Column("username", "string", "user name", _CONNECT),
    Column("has_password", "bool", "whether there is a password", _CONNECT),
    Column("password", "binary", "the password, null unless secrets are asked for", _CONNECT),
    Column("session_present", "bool", "the broker has the session; from 3.1.1 on", "CONNACK"),
    Column("return_code", "int32", "return code, from 5.0 on reason code, null if left out"),
    Column("return_codes", "int32s", "one for each filter", "SUBACK, UNSUBACK"),
    Column("topic", "string", "topic name as sent: empty if replaced by an alias", "PUBLISH"),
    Column("packet_id", "int32", "packet identifier"),
    Column("payload_size", "int64", "length of the payload", "PUBLISH", "bytes"),
    Column("payload", "binary", "the payload", "PUBLISH"),
    Column("filters", "filters", "topic filters with subscription options", "SUBSCRIBE"),
    Column("properties", "name_values", "properties in wire order; 5.0 only"),
    Column("will_properties", "name_values", "properties of the will; 5.0 only", _WILL),
    Column("version_in_force", "int32", "protocol level it was decoded by, null if unknown"),
    Column("verdict", "string", "the rule that the packet breaks, null if it is valid"),
    Column(
        "header_flags",
        "int32",
        "flag bits that the version ignores, null if none is set",
        "CONNECT, CONNACK",
    ),
)
"""The columns of an MQTT row, in the order of the outside contract."""

DERIVED: Final = MappingProxyType(
    {
        "packet_type_name": "packet_type",
        "qos": "flags",
        "flags": "dup, qos and retain",
        "remaining_length": "the other columns",
        "remaining_length_bytes": "version_in_force",
        "header_flags": "the other columns",
        "protocol_name": "version_in_force",
        "protocol_version": "version_in_force",
        "has_password": "password",
        "payload_size": "payload",
        "verdict": "the other columns",
    }
)
"""Columns that follow from other columns, each with those others; a row to encode may omit them.

For PUBLISH, `flags` follows from `qos`; for other types, `qos` from `flags`. In 5.0
`remaining_length_bytes` is determined, and for CONNECT `version_in_force`. Bits of `header_flags`
are free in versions that ignore them.
"""
