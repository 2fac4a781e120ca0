"""The malformed matrix: broken packets, what each version says of them, and what mosquitto did.

``python -m tests.formats.mqtt.matrix`` writes docs/formats/mqtt-malformed.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.formats.mqtt.make import (
    VERSIONS,
    binary,
    block,
    connack,
    connect,
    numbered,
    packet,
    publish,
    subscribe,
    text,
    word,
)
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.mqtt.layout import SPECS
from wireyard.formats.mqtt.rules import RULES

__all__ = ["CASES", "DOCUMENT", "Case", "malformed_matrix", "verdict_of"]

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "formats" / "mqtt-malformed.md"
MQTT = get_format("mqtt")

Make = Callable[[int], bytes | None]


@dataclass(frozen=True)
class Case:
    """Bytes that break one rule, in the versions that have it."""

    name: str
    rule: str
    make: Make
    """Version to bytes; None where the version has no such packet."""
    offence: str | None = None
    """What the recording calls the same offence."""
    mosquitto: tuple[str, str] = ("", "")
    """What mosquitto 2.0.11 did, spoken to in 3.1.1 and in 5.0."""


def _of_5(data: bytes) -> Make:
    return lambda version: data if version == 5 else None


def _will(version: int, topic: str = "w") -> bytes:
    return block(version) + text(topic) + binary(b"m")


def _from(first_version: int, make: Callable[[int], bytes]) -> Make:
    return lambda version: make(version) if version >= first_version else None


def _properties(data: bytes, topic: str = "a/b") -> Make:
    return _of_5(publish(5, 0x30, topic, properties=data))


CASES = (
    # --- fixed header
    Case("Remaining Length in five bytes", "remaining_length",
         lambda v: b"\x30\xff\xff\xff\xff\x7f" + b"a" * 20,
         "remaining length of five bytes", ("closed", "closed")),
    Case("Remaining Length padded", "overlong_integer",
         lambda v: publish(v, least=3), "remaining length padded", ("taken", "taken")),
    Case("packet type 0", "packet_type",
         lambda v: b"\0\0", "packet type 0", ("closed", "DISCONNECT 130, closed")),
    Case("packet type 15", "packet_type",
         lambda v: packet(0xF0) if v != 5 else None, "packet type 15", ("closed", "")),
    Case("PUBACK with flags", "fixed_flags",
         lambda v: numbered(v, 0x41), "PUBACK with wrong flags", ("taken", "taken")),
    Case("PUBREC with flags", "fixed_flags",
         lambda v: numbered(v, 0x51), "PUBREC with wrong flags", ("PUBREL", "PUBREL")),
    Case("PUBCOMP with flags", "fixed_flags",
         lambda v: numbered(v, 0x71), "PUBCOMP with wrong flags", ("taken", "taken")),
    Case("PINGREQ with flags", "fixed_flags",
         lambda v: packet(0xC1), "PINGREQ with flags", ("PINGRESP", "PINGRESP")),
    Case("PUBREL with flags 0", "pubrel_flags",
         lambda v: numbered(v, 0x60), "PUBREL with wrong flags", ("closed", "closed")),
    Case("SUBSCRIBE with flags 0", "subscribe_flags",
         lambda v: subscribe(v, ("a", 0), first=0x80),
         "SUBSCRIBE with wrong flags", ("closed", "DISCONNECT 129, closed")),
    Case("UNSUBSCRIBE with flags 0", "unsubscribe_flags",
         lambda v: numbered(v, 0xA0, text("a"), properties=b""),
         "UNSUBSCRIBE with wrong flags", ("closed", "DISCONNECT 129, closed")),
    Case("DISCONNECT with flags", "disconnect_flags",
         lambda v: packet(0xE1), "DISCONNECT with flags", ("closed", "closed")),
    Case("AUTH with flags", "auth_flags", _of_5(packet(0xF1))),
    Case("CONNECT cut short", "truncated",
         lambda v: packet(0x10, text({2: "MQIpdp", 3: "MQIsdp"}.get(v, "MQTT")) + bytes([v])),
         "connect cut short", ("closed", "closed")),
    Case("topic longer than the packet", "truncated",
         lambda v: packet(0x32, b"\0Pabc"),
         "publish topic longer than the packet", ("closed", "DISCONNECT 129, closed")),
    Case("PUBLISH without its packet identifier", "truncated",
         lambda v: packet(0x32, text("a"))),
    Case("user name announced and not there", "truncated",
         lambda v: connect(v, 0x82) if v > 3 else None),
    Case("PINGREQ with a body", "trailing_bytes",
         lambda v: packet(0xC0, b"\0"), "PINGREQ with a body", ("PINGRESP", "PINGRESP")),
    Case("byte behind CONNECT's last field", "trailing_bytes",
         lambda v: connect(v, rest=b"\0")),
    Case("byte behind PUBACK's last field", "trailing_bytes",
         lambda v: numbered(v, 0x40, b"\0\0\0" if v == 5 else b"\0")),
    # --- text and identifiers
    Case("topic that is not UTF-8", "bad_utf8",
         lambda v: publish(v, 0x32, b"a\xff\xfe", 1),
         "publish topic is not UTF-8", ("closed", "DISCONNECT 129, closed")),
    Case("topic with a surrogate", "bad_utf8",
         lambda v: publish(v, 0x32, b"a\xed\xa0\x80", 1),
         "publish topic with a surrogate", ("closed", "DISCONNECT 129, closed")),
    Case("topic in an overlong form", "bad_utf8",
         lambda v: publish(v, 0x32, b"a\xc1\x81", 1)),
    Case("topic with U+0000", "null_character",
         lambda v: publish(v, 0x32, b"a\xc0\x80b" if v == 2 else b"a\0b", 1),
         "publish topic with NUL", ("closed", "DISCONNECT 129, closed")),
    Case("user name with U+0000", "null_character",
         _from(3, lambda v: connect(v, 0x82, text("u\0")))),
    Case("PUBLISH, QoS 1, packet identifier 0", "packet_id_0",
         lambda v: publish(v, 0x32, "a", 0),
         "publish qos 1 with packet id 0", ("closed", "DISCONNECT 130, closed")),
    Case("PUBLISH, QoS 2, packet identifier 0", "packet_id_0",
         lambda v: publish(v, 0x34, "a", 0),
         "publish qos 2 with packet id 0", ("closed", "DISCONNECT 130, closed")),
    Case("SUBSCRIBE, packet identifier 0", "packet_id_0",
         lambda v: packet(0x82, word(v, 0) + block(v) + text("a") + b"\0"),
         "SUBSCRIBE with packet id 0", ("closed", "DISCONNECT 129, closed")),
    # --- CONNECT
    Case("protocol name MQTX", "protocol_name",
         lambda v: connect(v, name="MQTX"), "protocol name", ("closed", "closed")),
    Case("protocol level 6", "protocol_level",
         lambda v: connect(v, level=6), "protocol level 6", ("CONNACK 1, closed",) * 2),
    Case("protocol level 132, of a bridge", "protocol_level",
         lambda v: connect(v, level=132) if v == 4 else None,
         "protocol level 132", ("CONNACK 0", "closed")),
    Case("reserved Connect Flag", "connect_reserved",
         lambda v: connect(v, 3), "reserved connect flag", ("closed", "closed")),
    Case("Will QoS 3", "will_qos_3",
         lambda v: connect(v, 0x1E, _will(v)), "will qos 3", ("closed", "closed")),
    Case("Will QoS 1 without a will", "will_qos_without_will",
         lambda v: connect(v, 0x0A), "will qos without will", ("closed", "closed")),
    Case("Will Retain without a will", "will_retain_without_will", lambda v: connect(v, 0x22)),
    Case("password without a user name", "password_without_username",
         _from(3, lambda v: connect(v, 0x42, binary(b"p"))),
         "password without user", ("closed", "CONNACK 0")),
    Case("client identifier of 24 characters", "client_id_length",
         lambda v: connect(v, client="c" * 24)),
    Case("empty client identifier, session kept", "client_id_empty",
         lambda v: connect(v, 0, client="") if v > 3 else None,
         "empty client id, session kept", ("CONNACK 2, closed", "CONNACK 0")),
    Case("will to a wildcard", "will_topic_wildcard",
         lambda v: connect(v, 6, _will(v, "a/#")), "will to a wildcard", ("closed", "closed")),
    Case("will to an empty topic", "empty_topic",
         _from(3, lambda v: connect(v, 6, _will(v, "")))),
    # --- CONNACK and other answers
    Case("CONNACK with reserved flags", "connack_flags", lambda v: connack(v, 2)),
    Case("CONNACK 5.0: a session, and refused", "session_present", _of_5(connack(5, 1, 0x87))),
    Case("CONNACK: a session, and refused", "session_present",
         lambda v: connack(v, 1, 3) if v < 5 else None),
    Case("CONNACK with code 6", "connack_code", lambda v: connack(v, 0, 6)),
    Case("PUBACK with an unknown reason", "puback_code",
         _of_5(numbered(5, 0x40, b"\x55")), "PUBACK with an unknown reason", ("", "taken")),
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
    Case("QoS 3", "qos_3", lambda v: publish(v, 0x36, "a", 1),
         "publish with qos 3", ("closed", "DISCONNECT 129, closed")),
    Case("QoS 0 with DUP", "dup_qos_0",
         lambda v: publish(v, 0x38), "publish qos 0 with dup", ("taken", "taken")),
    Case("topic with +", "topic_wildcard",
         lambda v: publish(v, 0x32, "a/+/b", 1),
         "publish to a wildcard +", ("closed", "DISCONNECT 130, closed")),
    Case("topic with #", "topic_wildcard",
         lambda v: publish(v, 0x32, "a/#", 1),
         "publish to a wildcard #", ("closed", "DISCONNECT 130, closed")),
    Case("empty topic", "empty_topic",
         lambda v: publish(v, 0x32, "", 1),
         "publish to an empty topic", ("closed", "DISCONNECT 130, closed")),
    # --- SUBSCRIBE, UNSUBSCRIBE
    Case("SUBSCRIBE without filter", "subscribe_empty",
         subscribe, "SUBSCRIBE without filter", ("closed", "DISCONNECT 129, closed")),
    Case("UNSUBSCRIBE without filter", "unsubscribe_empty",
         lambda v: numbered(v, 0xA2, properties=b""),
         "UNSUBSCRIBE without filter", ("closed", "DISCONNECT 129, closed")),
    Case("SUBSCRIBE with QoS 3", "subscribe_qos",
         lambda v: subscribe(v, ("a", 3)),
         "SUBSCRIBE with qos 3", ("closed", "DISCONNECT 129, closed")),
    Case("SUBSCRIBE with reserved bits", "subscribe_reserved",
         lambda v: subscribe(v, ("a", 0xC1)),
         "SUBSCRIBE with reserved bits", ("closed", "DISCONNECT 129, closed")),
    Case("Retain Handling 3", "retain_handling", _of_5(subscribe(5, ("a", 0x30)))),
    Case("filter a/#/b", "multi_level_wildcard",
         lambda v: subscribe(v, ("a/#/b", 1)),
         "SUBSCRIBE to a/#/b", ("closed", "DISCONNECT 129, closed")),
    Case("filter #a", "multi_level_wildcard",
         lambda v: subscribe(v, ("#a", 1)),
         "SUBSCRIBE to #a", ("closed", "DISCONNECT 129, closed")),
    Case("filter a+", "single_level_wildcard",
         lambda v: subscribe(v, ("a+", 1)),
         "SUBSCRIBE to a+", ("closed", "DISCONNECT 129, closed")),
    Case("UNSUBSCRIBE from a+", "single_level_wildcard",
         lambda v: numbered(v, 0xA2, text("a+"), properties=b"")),
    Case("empty filter", "empty_topic",
         lambda v: subscribe(v, ("", 1)),
         "SUBSCRIBE to nothing", ("closed", "DISCONNECT 129, closed")),
    Case("share without a name", "share_name", _of_5(subscribe(5, ("$share//a", 0)))),
    Case("share without a filter", "share_filter",
         _of_5(subscribe(5, ("$share/g", 1))),
         "shared subscription without filter", ("", "SUBACK")),
    Case("share name with a wildcard", "share_filter", _of_5(subscribe(5, ("$share/+/a", 0)))),
    Case("share with No Local", "no_local_shared",
         _of_5(subscribe(5, ("$share/g/a", 5))),
         "shared subscription with no local", ("", "SUBACK")),
    # --- properties
    Case("Property Length beyond the packet", "property_length",
         _of_5(packet(0x32, text("a") + b"\0\1\x40x")),
         "property length beyond the packet", ("", "DISCONNECT 129, closed")),
    Case("Property Length padded", "overlong_integer",
         _of_5(packet(0x30, text("a") + b"\x80\0x"))),
    Case("Property Length in five bytes", "variable_byte_integer",
         _of_5(packet(0x30, text("a") + b"\x80\x80\x80\x80\0x"))),
    Case("property beyond Property Length", "truncated",
         _of_5(packet(0x30, text("a") + b"\x03\x02\0\0\0\0x"))),
    Case("unknown property", "property_id",
         _properties(b"\x7f\5"), "unknown property", ("", "DISCONNECT 129, closed")),
    Case("property of another packet", "property_place",
         _of_5(connect(5, properties=b"\x23\0\5")),
         "property of another packet", ("", "closed")),
    Case("property twice", "property_twice",
         _of_5(connect(5, properties=b"\x21\0\5\x21\0\5")), "property twice", ("", "closed")),
    Case("Receive Maximum 0", "property_value",
         _of_5(connect(5, properties=b"\x21\0\0")), "receive maximum 0", ("", "closed")),
    Case("Payload Format Indicator 2", "property_value", _properties(b"\x01\x02")),
    Case("Subscription Identifier 0", "property_value", _properties(b"\x0b\0")),
    Case("topic alias 0", "topic_alias_0",
         _properties(b"\x23\0\0"), "topic alias 0", ("", "DISCONNECT 129, closed")),
    Case("response topic with #", "response_topic_wildcard",
         _properties(b"\x08" + text("a/#"))),
    Case("user property that is not UTF-8", "bad_utf8",
         _properties(b"\x26" + text("k") + text(b"\xff"))),
    Case("authentication data without a method", "auth_data_alone",
         _of_5(connect(5, properties=b"\x16" + binary(b"d")))),
    Case("AUTH without a method", "auth_method_missing",
         _of_5(packet(0xF0, b"\x19\0")), "AUTH without a method", ("", "closed")),
)  # fmt: skip


def verdict_of(data: bytes, version: int) -> str | None:
    """Return what breaks first when a packet is framed and read in a version, None if nothing."""
    try:
        MQTT.framing.frame_size(data, 0, len(data), MQTT.framing.max_packet_bytes, version, True)
    except DecodeError as error:
        return error.code
    verdict: str | None = MQTT.read_row(data, version)[0]["verdict"]
    return verdict


_HEAD = """
# MQTT: broken packets

The verdict of wireyard on a packet that breaks a rule, by the version in force: the number of the
rule if the standard has one, otherwise a name of ours; `ok` if the version has no such rule; empty
if it has no such packet. A packet is malformed exactly if it has a verdict. The last two columns
have the reaction of mosquitto 2.0.11 to the same packet: `taken` without an answer, the answer, or
`closed`.

| packet | MQIpdp 2.3 | 3.1 | 3.1.1 | 5.0 | mosquitto, 3.1.1 | mosquitto, 5.0 |
|---|---|---|---|---|---|---|
"""
_RULES_HEAD = """
## Rules

The place of each rule in each version; empty if the version does not have it. While the version is
not known, only rules of both 3.1 and 3.1.1 count.

| rule | | MQIpdp 2.3 | 3.1 | 3.1.1 | 5.0 |
|---|---|---|---|---|---|
"""


def malformed_matrix() -> str:
    """Return the document."""
    rows = []
    for case in CASES:
        verdicts = []
        for version in VERSIONS:
            data = case.make(version)
            verdicts.append("" if data is None else verdict_of(data, version) or "ok")
        rows.append(_row(case.name, *verdicts, *case.mosquitto))
    rules = [
        _row(f"`{rule.name}`", rule.text, *(rule.cited.get(version, "") for version in VERSIONS))
        for rule in RULES.values()
    ]
    assert set(VERSIONS) == set(SPECS) - {0}
    return f"{_HEAD.lstrip()}{''.join(rows)}{_RULES_HEAD}{''.join(rules)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("  ", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(malformed_matrix())
