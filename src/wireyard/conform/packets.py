"""Broken packets of a client, each against one rule of `wireyard.formats.mqtt.rules`.

They are written byte by byte, since the encoder does not write most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from wireyard.errors import DecodeError
from wireyard.formats import get_format

Make = Callable[[int], bytes | None]
VERSIONS = (2, 3, 4, 5)
NAMES = {2: "MQIpdp", 3: "MQIsdp", 4: "MQTT", 5: "MQTT"}


def variable(value: int, least: int = 1) -> bytes:
    """Return a variable byte integer in at least so many bytes."""
    out = bytearray()
    while not out or value or len(out) < least:
        out.append(value % 128 + 128)
        value //= 128
    out[-1] -= 128
    return bytes(out)


def packet(first: int, body: bytes = b"", least: int = 1) -> bytes:
    """Return a packet by its first byte and what follows Remaining Length."""
    return bytes([first]) + variable(len(body), least) + body


def binary(data: bytes) -> bytes:
    """Return binary data behind its length."""
    return len(data).to_bytes(2, "big") + data


def text(data: str | bytes) -> bytes:
    """Return text, or what is none, behind its length."""
    return binary(data.encode() if isinstance(data, str) else data)


def word(version: int, value: int) -> bytes:
    """Return a word: in 1999 the least significant byte comes first."""
    return value.to_bytes(2, "little" if version == 2 else "big")


def block(version: int, properties: bytes = b"") -> bytes:
    """Return Property Length and properties, which only 5.0 has."""
    return variable(len(properties)) + properties if version == 5 else b""


def connect(
    version: int,
    flags: int = 2,
    rest: bytes = b"",
    *,
    client: str | bytes = "c",
    properties: bytes = b"",
    name: str | None = None,
    level: int | None = None,
) -> bytes:
    """Return a CONNECT; `rest` is what follows the client identifier."""
    body = text(NAMES[version] if name is None else name)
    body += bytes([version if level is None else level, flags]) + word(version, 60)
    return packet(0x10, body + block(version, properties) + text(client) + rest)


def connack(version: int, flags: int = 0, code: int = 0, properties: bytes = b"") -> bytes:
    """Return a CONNACK."""
    return packet(0x20, bytes([flags, code]) + block(version, properties))


def publish(
    version: int,
    first: int = 0x30,
    topic: str | bytes = "a/b",
    packet_id: int | None = None,
    payload: bytes = b"x",
    properties: bytes = b"",
    least: int = 1,
) -> bytes:
    """Return a PUBLISH by its first byte; Remaining Length has at least so many bytes."""
    number = b"" if packet_id is None else word(version, packet_id)
    return packet(first, text(topic) + number + block(version, properties) + payload, least)


def numbered(
    version: int, first: int, rest: bytes = b"", packet_id: int = 7, properties: bytes | None = None
) -> bytes:
    """Return a packet that begins with its identifier; without `properties` if they are None."""
    written = b"" if properties is None else block(version, properties)
    return packet(first, word(version, packet_id) + written + rest)


def subscribe(version: int, *filters: tuple[str | bytes, int], first: int = 0x82) -> bytes:
    """Return a SUBSCRIBE by its filters, each with its options."""
    rest = b"".join(text(name) + bytes([options]) for name, options in filters)
    return numbered(version, first, rest, properties=b"")


@dataclass(frozen=True)
class Case:
    """Bytes that break one rule, in the versions that have it."""

    name: str
    rule: str
    make: Make
    """Version to bytes; None where the version has no such packet."""


def verdict_of(data: bytes, version: int) -> str | None:
    """Return what breaks first when a packet is framed and read in a version, None if nothing."""
    mqtt = get_format("mqtt")
    try:
        framing = mqtt.framing
        framing.frame_size(data, 0, len(data), framing.max_packet_bytes, version, True)
    except DecodeError as error:
        return error.code
    verdict: str | None = mqtt.read_row(data, version)[0]["verdict"]
    return verdict


def _of_5(data: bytes) -> Make:
    return lambda version: data if version == 5 else None


def _will(version: int, topic: str | bytes = "w") -> bytes:
    return block(version) + text(topic) + binary(b"m")


def _from(first_version: int, make: Callable[[int], bytes]) -> Make:
    return lambda version: make(version) if version >= first_version else None


def _properties(data: bytes, topic: str = "a/b") -> Make:
    return _of_5(publish(5, 0x30, topic, properties=data))


def _broken_texts() -> Iterator[Case]:
    """Yield packets with each kind of text that is none."""
    places: dict[str, Callable[[bytes, int], bytes]] = {
        "filter": lambda broken, v: subscribe(v, (broken, 0)),
        "filter of UNSUBSCRIBE": lambda broken, v: numbered(v, 0xA2, text(broken), properties=b""),
        "client identifier": lambda broken, v: connect(v, client=broken),
        "user name": lambda broken, v: connect(v, 0x82, text(broken)),
        "topic of a will": lambda broken, v: connect(v, 6, _will(v, broken)),
    }
    for place, make in places.items():
        for rule, kind, broken in (
            ("bad_utf8", "that is not UTF-8", b"a\xff\xfe"),
            ("bad_utf8", "with a surrogate", b"a\xed\xa0\x80"),
            ("null_character", "with U+0000", b"a\0"),
        ):
            yield Case(f"{place} {kind}", rule, _from(4, partial(make, broken)))


CASES = (
    # The name, the rule, and the bytes by version.
    # --- fixed header
    Case("Remaining Length in five bytes", "remaining_length",
         lambda v: b"\x30\xff\xff\xff\xff\x7f" + b"a" * 20),
    Case("Remaining Length padded", "overlong_integer", lambda v: publish(v, least=3)),
    Case("packet type 0", "packet_type", lambda v: b"\0\0"),
    Case("packet type 15", "packet_type", lambda v: packet(0xF0) if v != 5 else None),
    Case("PUBACK with flags", "fixed_flags", lambda v: numbered(v, 0x41)),
    Case("PUBREC with flags", "fixed_flags", lambda v: numbered(v, 0x51)),
    Case("PUBCOMP with flags", "fixed_flags", lambda v: numbered(v, 0x71)),
    Case("PINGREQ with flags", "fixed_flags", lambda v: packet(0xC1)),
    Case("PUBREL with flags 0", "pubrel_flags", lambda v: numbered(v, 0x60)),
    Case("SUBSCRIBE with flags 0", "subscribe_flags",
         lambda v: subscribe(v, ("a", 0), first=0x80)),
    Case("UNSUBSCRIBE with flags 0", "unsubscribe_flags",
         lambda v: numbered(v, 0xA0, text("a"), properties=b"")),
    Case("DISCONNECT with flags", "disconnect_flags", lambda v: packet(0xE1)),
    Case("AUTH with flags", "auth_flags", _of_5(packet(0xF1))),
    Case("CONNECT cut short", "truncated",
         lambda v: packet(0x10, text({2: "MQIpdp", 3: "MQIsdp"}.get(v, "MQTT")) + bytes([v]))),
    Case("topic longer than the packet", "truncated", lambda v: packet(0x32, b"\0Pabc")),
    Case("PUBLISH without its packet identifier", "truncated", lambda v: packet(0x32, text("a"))),
    Case("user name announced and not there", "truncated",
         lambda v: connect(v, 0x82) if v > 3 else None),
    Case("PINGREQ with a body", "trailing_bytes", lambda v: packet(0xC0, b"\0")),
    Case("byte behind CONNECT's last field", "trailing_bytes", lambda v: connect(v, rest=b"\0")),
    Case("byte behind PUBACK's last field", "trailing_bytes",
         lambda v: numbered(v, 0x40, b"\0\0\0" if v == 5 else b"\0")),
    # --- text and identifiers
    Case("topic that is not UTF-8", "bad_utf8", lambda v: publish(v, 0x32, b"a\xff\xfe", 1)),
    Case("topic with a surrogate", "bad_utf8", lambda v: publish(v, 0x32, b"a\xed\xa0\x80", 1)),
    Case("topic in an overlong form", "bad_utf8", lambda v: publish(v, 0x32, b"a\xc1\x81", 1)),
    Case("topic with U+0000", "null_character",
         lambda v: publish(v, 0x32, b"a\xc0\x80b" if v == 2 else b"a\0b", 1)),
    Case("PUBLISH, QoS 1, packet identifier 0", "packet_id_0", lambda v: publish(v, 0x32, "a", 0)),
    Case("PUBLISH, QoS 2, packet identifier 0", "packet_id_0", lambda v: publish(v, 0x34, "a", 0)),
    Case("SUBSCRIBE, packet identifier 0", "packet_id_0",
         lambda v: packet(0x82, word(v, 0) + block(v) + text("a") + b"\0")),
    *_broken_texts(),
    # --- CONNECT
    Case("protocol name MQTX", "protocol_name", lambda v: connect(v, name="MQTX")),
    Case("protocol level 6", "protocol_level", lambda v: connect(v, level=6)),
    Case("protocol level 132, of a bridge", "protocol_level",
         lambda v: connect(v, level=132) if v == 4 else None),
    Case("reserved Connect Flag", "connect_reserved", lambda v: connect(v, 3)),
    Case("Will QoS 3", "will_qos_3", lambda v: connect(v, 0x1E, _will(v))),
    Case("Will QoS 1 without a will", "will_qos_without_will", lambda v: connect(v, 0x0A)),
    Case("Will Retain without a will", "will_retain_without_will", lambda v: connect(v, 0x22)),
    Case("password without a user name", "password_without_username",
         _from(3, lambda v: connect(v, 0x42, binary(b"p")))),
    Case("client identifier of 24 characters", "client_id_length",
         lambda v: connect(v, client="c" * 24)),
    Case("empty client identifier, session kept", "client_id_empty",
         lambda v: connect(v, 0, client="") if v > 3 else None),
    Case("will to a wildcard", "will_topic_wildcard", lambda v: connect(v, 6, _will(v, "a/#"))),
    Case("will to an empty topic", "empty_topic", _from(3, lambda v: connect(v, 6, _will(v, "")))),
    # --- CONNACK and other answers
    Case("CONNACK with reserved flags", "connack_flags", lambda v: connack(v, 2)),
    Case("CONNACK 5.0: a session, and refused", "session_present", _of_5(connack(5, 1, 0x87))),
    Case("CONNACK: a session, and refused", "session_present",
         lambda v: connack(v, 1, 3) if v < 5 else None),
    Case("CONNACK with code 6", "connack_code", lambda v: connack(v, 0, 6)),
    Case("PUBACK with an unknown reason", "puback_code", _of_5(numbered(5, 0x40, b"\x55"))),
    Case("PUBREC with an unknown reason", "pubrec_code", _of_5(numbered(5, 0x50, b"\x92"))),
    Case("PUBREL with an unknown reason", "pubrel_code", _of_5(numbered(5, 0x62, b"\x10"))),
    Case("PUBCOMP with an unknown reason", "pubcomp_code", _of_5(numbered(5, 0x70, b"\x10"))),
    Case("SUBACK with code 3", "suback_code",
         lambda v: numbered(v, 0x90, b"\x03", properties=b"")),
    Case("UNSUBACK with an unknown reason", "unsuback_code",
         _of_5(numbered(5, 0xB0, b"\x01", properties=b""))),
    Case("DISCONNECT with an unknown reason", "disconnect_code", _of_5(packet(0xE0, b"\x01"))),
    Case("AUTH with an unknown reason", "auth_code",
         _of_5(packet(0xF0, b"\x01" + block(5, b"\x15" + text("m"))))),
    # --- PUBLISH
    Case("QoS 3", "qos_3", lambda v: publish(v, 0x36, "a", 1)),
    Case("QoS 0 with DUP", "dup_qos_0", lambda v: publish(v, 0x38)),
    Case("topic with +", "topic_wildcard", lambda v: publish(v, 0x32, "a/+/b", 1)),
    Case("topic with #", "topic_wildcard", lambda v: publish(v, 0x32, "a/#", 1)),
    Case("empty topic", "empty_topic", lambda v: publish(v, 0x32, "", 1)),
    # --- SUBSCRIBE, UNSUBSCRIBE
    Case("SUBSCRIBE without filter", "subscribe_empty", subscribe),
    Case("UNSUBSCRIBE without filter", "unsubscribe_empty",
         lambda v: numbered(v, 0xA2, properties=b"")),
    Case("SUBSCRIBE with QoS 3", "subscribe_qos", lambda v: subscribe(v, ("a", 3))),
    Case("SUBSCRIBE with reserved bits", "subscribe_reserved",
         lambda v: subscribe(v, ("a", 0xC1))),
    Case("Retain Handling 3", "retain_handling", _of_5(subscribe(5, ("a", 0x30)))),
    Case("filter a/#/b", "multi_level_wildcard", lambda v: subscribe(v, ("a/#/b", 1))),
    Case("filter #a", "multi_level_wildcard", lambda v: subscribe(v, ("#a", 1))),
    Case("filter a+", "single_level_wildcard", lambda v: subscribe(v, ("a+", 1))),
    Case("UNSUBSCRIBE from a+", "single_level_wildcard",
         lambda v: numbered(v, 0xA2, text("a+"), properties=b"")),
    Case("empty filter", "empty_topic", lambda v: subscribe(v, ("", 1))),
    Case("share without a name", "share_name", _of_5(subscribe(5, ("$share//a", 0)))),
    Case("share without a filter", "share_filter", _of_5(subscribe(5, ("$share/g", 1)))),
    Case("share name with a wildcard", "share_filter", _of_5(subscribe(5, ("$share/+/a", 0)))),
    Case("share with No Local", "no_local_shared", _of_5(subscribe(5, ("$share/g/a", 5)))),
    # --- properties
    Case("Property Length beyond the packet", "property_length",
         _of_5(packet(0x32, text("a") + b"\0\1\x40x"))),
    Case("Property Length padded", "overlong_integer",
         _of_5(packet(0x30, text("a") + b"\x80\0x"))),
    Case("Property Length in five bytes", "variable_byte_integer",
         _of_5(packet(0x30, text("a") + b"\x80\x80\x80\x80\0x"))),
    Case("property beyond Property Length", "truncated",
         _of_5(packet(0x30, text("a") + b"\x03\x02\0\0\0\0x"))),
    Case("unknown property", "property_id", _properties(b"\x7f\5")),
    Case("property of another packet", "property_place",
         _of_5(connect(5, properties=b"\x23\0\5"))),
    Case("property twice", "property_twice", _of_5(connect(5, properties=b"\x21\0\5\x21\0\5"))),
    Case("Receive Maximum 0", "property_value", _of_5(connect(5, properties=b"\x21\0\0"))),
    Case("Payload Format Indicator 2", "property_value", _properties(b"\x01\x02")),
    Case("Subscription Identifier 0", "property_value", _properties(b"\x0b\0")),
    Case("topic alias 0", "topic_alias_0", _properties(b"\x23\0\0")),
    Case("response topic with #", "response_topic_wildcard", _properties(b"\x08" + text("a/#"))),
    Case("user property that is not UTF-8", "bad_utf8",
         _properties(b"\x26" + text("k") + text(b"\xff"))),
    Case("authentication data without a method", "auth_data_alone",
         _of_5(connect(5, properties=b"\x16" + binary(b"d")))),
    Case("AUTH without a method", "auth_method_missing", _of_5(packet(0xF0, b"\x19\0"))),
)  # fmt: skip
