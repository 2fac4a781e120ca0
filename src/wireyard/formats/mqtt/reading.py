"""Readers of the variable header and the payload of each packet type.

A reader fills values by column name; the values before an error are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from wireyard.formats.mqtt.cursor import Cursor
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.layout import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PROTOCOLS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    REASON_CODES,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from wireyard.formats.mqtt.properties import Property, read_properties
from wireyard.formats.mqtt.topics import check_filter, has_wildcard, is_shared

Values = dict[str, Any]

_BRIDGE = 0x80
_OLD_ID_CHARACTERS = 23
_CONNACK_CODES = MappingProxyType({0: 6, 2: 4, 3: 6, 4: 6})
"""Number of return codes of CONNACK by version, before 5.0."""
_SUBACK_CODES = (0, 1, 2, 128)


def declared_version(name: str, level: int) -> int | None:
    """Return the version of a CONNECT; bridges set the highest bit of its level."""
    plain = level & ~_BRIDGE if level in (_BRIDGE | 3, _BRIDGE | 4) else level
    return plain if PROTOCOLS.get(plain) == name else None


# --- CONNECT --------------------------------------------------------------------------------


def _read_connect(cursor: Cursor, values: Values) -> None:
    start = cursor.at
    name = values["protocol_name"] = cursor.text("protocol name")
    if name not in PROTOCOLS.values():
        problem = "is no name of MQTT"
        cursor.fault("protocol_name", "protocol name", start, problem)
    start = cursor.at
    level = values["protocol_version"] = cursor.byte("protocol level")
    if name in PROTOCOLS.values() and PROTOCOLS.get(level) != name:
        cursor.fault("protocol_level", "protocol level", start, f"is {level} with {name}")
    if declared_version(str(name), level) is None:
        # The layout of the following fields is unknown.
        raise cursor.faults[-1]
    start = cursor.at
    flags = cursor.byte("connect flags")
    values["clean_start"] = bool(flags & 2)
    if cursor.version != 2:
        values["has_password"] = bool(flags & 0x40)
    _check_connect_flags(cursor, flags, start)
    values["keep_alive"] = cursor.word("keep alive")
    if cursor.version == 5:
        _properties(cursor, values, CONNECT)
    _read_connect_payload(cursor, values, flags)
    if cursor.version in (2, 3):
        values["header_flags"] = flags & ignored_flags(values.get) or None


def ignored_flags(get: Callable[[str], Any]) -> int:
    """Return the Connect Flags that 1999 and 3.1 ignore in a CONNECT; `get` returns its fields."""
    bits = {"will_topic": 0x38, "username": 0x80, "password": 0x40}
    return 1 | sum(bit for name, bit in bits.items() if get(name) is None)


def _check_connect_flags(cursor: Cursor, flags: int, at: int) -> None:
    will, qos = flags & 4, flags >> 3 & 3
    checks = (
        ("connect_reserved", flags & 1, "has its reserved bit set"),
        ("will_qos_3", will and qos == 3, "asks for Will QoS 3"),
        ("will_qos_without_will", not will and qos, f"has Will QoS {qos} and no will"),
        ("will_retain_without_will", not will and flags & 0x20, "has Will Retain and no will"),
        ("password_without_username", flags & 0xC0 == 0x40, "has a password and no user name"),
    )
    for rule, broken, problem in checks:
        if broken:
            cursor.fault(rule, "connect flags", at, problem)


def _read_connect_payload(cursor: Cursor, values: Values, flags: int) -> None:
    start = cursor.at
    client_id = values["client_id"] = cursor.text("client identifier")
    if client_id is not None:
        size = len(client_id)
        if not 1 <= size <= _OLD_ID_CHARACTERS:
            problem = f"has {size} characters"
            cursor.fault("client_id_length", "client identifier", start, problem)
        if not size and not flags & 2:
            cursor.fault("client_id_empty", "client identifier", start, "is empty")
    if flags & 4:
        values["will_qos"] = flags >> 3 & 3
        values["will_retain"] = bool(flags & 0x20)
        if cursor.version == 5:
            _properties(cursor, values, WILL, "will_properties")
        start = cursor.at
        topic = values["will_topic"] = cursor.text("will topic")
        _check_topic(cursor, topic, "will topic", "will_topic_wildcard", start)
        values["will_payload"] = cursor.binary("will payload")
    if flags & 0x80 and not _left_out(cursor):
        values["username"] = cursor.text("user name")
    if flags & 0x40 and not _left_out(cursor):
        values["password"] = cursor.binary("password")
    elif "has_password" in values:
        values["has_password"] = False


def _left_out(cursor: Cursor) -> bool:
    """Return whether user name or password are missing although their flag is set.

    1999 has no logins, and in 3.1 Remaining Length overrides the flags.
    """
    return cursor.version == 2 or (cursor.version == 3 and not cursor.left and not cursor.is_cut)


# --- PUBLISH --------------------------------------------------------------------------------


def _read_publish(cursor: Cursor, values: Values) -> None:
    start = cursor.at
    topic = values["topic"] = cursor.text("topic")
    if topic:
        _check_topic(cursor, topic, "topic", "topic_wildcard", start)
    if values["qos"] == 3:
        # The fault is recorded with the flags. No version defines if a packet identifier follows.
        start = cursor.skip(cursor.left, "rest")
        cursor.mark(start, "rest", "not readable")
        return
    if values["qos"]:
        _packet_id(cursor, values, checked=True)
    if cursor.version == 5:
        _properties(cursor, values, PUBLISH)
    properties = values.get("properties", ())
    if topic == "" and not any(entry.name == "topic_alias" for entry in properties):
        cursor.fault("empty_topic", "topic", start, "is empty")
    if cursor.is_cut:
        return
    size = values["payload_size"] = cursor.left
    start = cursor.skip(size, "payload")
    values["payload"] = bytes(cursor.view[start : cursor.at])
    cursor.mark(start, "payload", values["payload"])


def _check_topic(cursor: Cursor, topic: str | None, field: str, wildcard: str, at: int) -> None:
    if topic == "":
        cursor.fault("empty_topic", field, at, "is empty")
    elif topic is not None and has_wildcard(topic):
        cursor.fault(wildcard, field, at, "has a wildcard")


# --- SUBSCRIBE, UNSUBSCRIBE -----------------------------------------------------------------


def _read_subscribe(cursor: Cursor, values: Values) -> None:
    filters = _begin_list(cursor, values, SUBSCRIBE)
    if not cursor.left:
        cursor.fault("subscribe_empty", "payload", cursor.at, "has no topic filter")
    while cursor.more(filters, "topic filter"):
        start = cursor.at
        text = cursor.text("topic filter")
        options_at = cursor.at
        options = cursor.byte("subscription options" if cursor.version == 5 else "requested QoS")
        filters.append(Filter(text, options))
        if text is not None:
            check_filter(cursor, text, start)
        _check_options(cursor, text or "", options, options_at)


def _check_options(cursor: Cursor, text: str, options: int, at: int) -> None:
    newest = cursor.version == 5
    checks = (
        ("subscribe_qos", options & 3 == 3, "asks for QoS 3"),
        ("subscribe_reserved", options & (0xC0 if newest else 0xFC), "has reserved bits set"),
        ("retain_handling", newest and options >> 4 & 3 == 3, "has Retain Handling 3"),
        ("no_local_shared", newest and options & 4 and is_shared(text), "has No Local"),
    )
    for rule, broken, problem in checks:
        if broken:
            cursor.fault(rule, "subscription options", at, problem)


def _read_unsubscribe(cursor: Cursor, values: Values) -> None:
    filters = _begin_list(cursor, values, UNSUBSCRIBE)
    if not cursor.left:
        cursor.fault("unsubscribe_empty", "payload", cursor.at, "has no topic filter")
    while cursor.more(filters, "topic filter"):
        start = cursor.at
        text = cursor.text("topic filter")
        filters.append(Filter(text))
        if text is not None:
            check_filter(cursor, text, start)


def _begin_list(cursor: Cursor, values: Values, packet_type: int) -> list[Filter]:
    _packet_id(cursor, values, checked=True)
    if cursor.version == 5:
        _properties(cursor, values, packet_type)
    filters: list[Filter] = []
    values["filters"] = filters
    return filters


# --- acknowledgements -----------------------------------------------------------------------


def _read_connack(cursor: Cursor, values: Values) -> None:
    start = cursor.at
    flags = ignored = cursor.byte("connect acknowledge flags")
    if cursor.version not in (2, 3):
        values["session_present"] = bool(flags & 1)
        ignored &= ~1
    values["header_flags"] = ignored or None
    if flags & ~1:
        cursor.fault("connack_flags", "connect acknowledge flags", start, f"is {flags}")
    code = _code(cursor, values, CONNACK)
    if flags & 1 and code:
        problem = f"says a session is present beside return code {code}"
        cursor.fault("session_present", "connect acknowledge flags", start, problem)
    if cursor.version == 5:
        _properties(cursor, values, CONNACK)


def _acknowledgement(packet_type: int) -> Callable[[Cursor, Values], None]:
    """Return the reader of an acknowledgement of one packet identifier."""

    def read(cursor: Cursor, values: Values) -> None:
        _packet_id(cursor, values, checked=False)
        if cursor.version == 5 and cursor.left:
            _code(cursor, values, packet_type)
            if cursor.left:
                _properties(cursor, values, packet_type)

    return read


def _code_list(packet_type: int) -> Callable[[Cursor, Values], None]:
    """Return the reader of an acknowledgement with a code for each topic filter."""

    def read(cursor: Cursor, values: Values) -> None:
        _packet_id(cursor, values, checked=False)
        newest = cursor.version == 5
        if newest:
            _properties(cursor, values, packet_type)
        elif packet_type == UNSUBACK:
            return
        allowed = REASON_CODES[packet_type] if newest else _SUBACK_CODES
        codes: list[int] = []
        values["return_codes"] = codes
        while cursor.more(codes, "return code"):
            start = cursor.at
            codes.append(cursor.byte("return code"))
            if codes[-1] not in allowed:
                cursor.fault(_CODE_RULES[packet_type], "return code", start, f"is {codes[-1]}")

    return read


def _read_disconnect(cursor: Cursor, values: Values) -> None:
    if cursor.version == 5 and cursor.left:
        _code(cursor, values, DISCONNECT)
        if cursor.left:
            _properties(cursor, values, DISCONNECT)


def _read_auth(cursor: Cursor, values: Values) -> None:
    if cursor.left:
        _code(cursor, values, AUTH)
        _properties(cursor, values, AUTH)


def _read_nothing(_cursor: Cursor, _values: Values) -> None:
    """Read nothing: PINGREQ and PINGRESP are a fixed header alone."""


_CODE_RULES = MappingProxyType(
    {
        CONNACK: "connack_code",
        PUBACK: "puback_code",
        PUBREC: "pubrec_code",
        PUBREL: "pubrel_code",
        PUBCOMP: "pubcomp_code",
        SUBACK: "suback_code",
        UNSUBACK: "unsuback_code",
        DISCONNECT: "disconnect_code",
        AUTH: "auth_code",
    }
)


def _code(cursor: Cursor, values: Values, packet_type: int) -> int:
    start = cursor.at
    newest = cursor.version == 5
    field = "reason code" if newest else "return code"
    code: int = cursor.byte(field)
    values["return_code"] = code
    allowed = REASON_CODES[packet_type] if newest else range(_CONNACK_CODES[cursor.version])
    if code not in allowed:
        cursor.fault(_CODE_RULES[packet_type], field, start, f"is {code}")
    return code


def _packet_id(cursor: Cursor, values: Values, *, checked: bool) -> None:
    start = cursor.at
    values["packet_id"] = cursor.word("packet identifier")
    if checked and not values["packet_id"]:
        cursor.fault("packet_id_0", "packet identifier", start, "is 0")


def _properties(
    cursor: Cursor, values: Values, packet_type: int, column: str = "properties"
) -> None:
    read: list[Property] = []
    values[column] = read
    read_properties(cursor, packet_type, read)


READERS: Mapping[int, Callable[[Cursor, Values], None]] = MappingProxyType(
    {
        CONNECT: _read_connect,
        CONNACK: _read_connack,
        PUBLISH: _read_publish,
        **{kind: _acknowledgement(kind) for kind in (PUBACK, PUBREC, PUBREL, PUBCOMP)},
        SUBSCRIBE: _read_subscribe,
        SUBACK: _code_list(SUBACK),
        UNSUBSCRIBE: _read_unsubscribe,
        UNSUBACK: _code_list(UNSUBACK),
        PINGREQ: _read_nothing,
        PINGRESP: _read_nothing,
        DISCONNECT: _read_disconnect,
        AUTH: _read_auth,
    }
)
"""The reader of each packet type, by its code."""
