"""Packets as values: by hand, back to bytes, cut short, and as rows both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.mqtt.make import (
    EVERY_PUBLISH_PROPERTY,
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
    variety,
    with_ignored_bits,
)
from tests.readings import check_cover
from wireyard.errors import DecodeError, EncodeError, Truncated
from wireyard.formats import get_format
from wireyard.formats.mqtt.control import CONTROL_PACKETS, Packet, PingReq, Publish, Subscribe
from wireyard.formats.mqtt.filters import Filter
from wireyard.formats.mqtt.layout import COLUMNS, MSB_FIRST, PROPERTIES
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.rows import rows_to_batch

MQTT = get_format("mqtt")
IGNORED = [data for version in (2, 3) for data in with_ignored_bits(version)]
"""Rows do not say bits that the version does not look at."""
ALL = [(version, data) for version in VERSIONS for data in variety(version)]


def control_packet(kind: int, **values: Any) -> Packet:
    return CONTROL_PACKETS[kind](**values)


def row_of(data: bytes, context: int = 4) -> dict[str, Any]:
    row, error = MQTT.read_row(data, context)
    assert error is None
    return {name: value for name, value in row.items() if value is not None}


# --- golden ---------------------------------------------------------------------------------

FIXED = {
    "packet_type": 3, "packet_type_name": "PUBLISH", "dup": True, "qos": 1, "retain": True,
    "flags": 11, "remaining_length": 8, "remaining_length_bytes": 1, "topic": "a/b",
    "packet_id": 258, "payload": b"x", "payload_size": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("hexadecimal", "context", "changed"),
    [
        ("3b080003612f62010278", 4, {"version_in_force": 4}),
        ("3b080003612f62010278", 3, {"version_in_force": 3}),
        ("3b080003612f62010278", 0, {}),
        ("3b080003612f62020178", 2, {"version_in_force": 2}),
        ("3b080003612f62010278", 2 | MSB_FIRST, {"version_in_force": 2}),
        ("3b090003612f6201020078", 5,
         {"version_in_force": 5, "remaining_length": 9, "properties": []}),
        ("3b8880000003612f62010278", 4, {"version_in_force": 4, "remaining_length_bytes": 3}),
    ],
)  # fmt: skip
def test_a_publish_by_hand(hexadecimal: str, context: int, changed: dict[str, Any]) -> None:
    assert row_of(bytes.fromhex(hexadecimal), context) == FIXED | changed


def test_a_connect_by_hand() -> None:
    data = bytes.fromhex(
        "102f 00044d515454 05 f6 003c 05 1100000e10 000474686973"
        "02 0101 0005612f622f63 0002ff00 000475736572 0003736563"
    )
    assert len(data) == data[1] + 2
    assert row_of(data, 0) == {
        "packet_type": 1, "packet_type_name": "CONNECT", "flags": 0, "remaining_length": data[1],
        "remaining_length_bytes": 1, "protocol_name": "MQTT", "protocol_version": 5,
        "client_id": "this", "clean_start": True, "keep_alive": 60, "will_topic": "a/b/c",
        "will_payload": b"\xff\0", "will_qos": 2, "will_retain": True, "username": "user",
        "has_password": True, "password": b"sec", "version_in_force": 5,
        "properties": [{"name": "session_expiry_interval", "value": 3600}],
        "will_properties": [{"name": "payload_format_indicator", "value": 1}],
    }  # fmt: skip


def test_lists_by_hand() -> None:
    both = {"filter": "+/x/#", "qos": 1}
    plain = dict.fromkeys(("no_local", "retain_as_published", "retain_handling", "ignored_bits"))
    assert row_of(subscribe(4, ("+/x/#", 1)))["filters"] == [both | plain]
    full = plain | {"no_local": True, "retain_as_published": True, "retain_handling": 2}
    assert row_of(subscribe(5, ("+/x/#", 0x2D)), 5)["filters"] == [both | full]
    assert row_of(numbered(4, 0xA2, text("a")))["filters"] == [{"filter": "a", "qos": None} | plain]
    assert row_of(numbered(4, 0x90, b"\x00\x80"))["return_codes"] == [0, 128]
    assert row_of(numbered(5, 0xB0, b"\x11", properties=b""), 5)["return_codes"] == [17]
    assert "return_codes" not in row_of(numbered(4, 0xB0))


def test_properties_by_hand() -> None:
    row = row_of(publish(5, properties=EVERY_PUBLISH_PROPERTY), 5)
    assert [(one["name"], one["value"]) for one in row["properties"]] == [
        ("payload_format_indicator", 1),
        ("message_expiry_interval", 3600),
        ("content_type", "text/plain"),
        ("response_topic", "answers/to"),
        ("correlation_data", b"\0\xff\x10"),
        ("user_property", ["k", "v"]),
        ("subscription_identifier", 268_435_455),
        ("user_property", ["k", ""]),
        ("subscription_identifier", 1),
        ("topic_alias", 65535),
    ]
    packet = MQTT.decode(publish(5, properties=EVERY_PUBLISH_PROPERTY), 5)
    assert packet.properties[5] == Property("user_property", ("k", "v"))


def test_answers_by_hand() -> None:
    assert row_of(connack(4, 1, 0))["session_present"] is True
    assert row_of(connack(4, 0, 5))["return_code"] == 5
    assert "session_present" not in row_of(connack(3, 1, 0), 3)
    assert "return_code" not in row_of(numbered(5, 0x40), 5)
    assert row_of(numbered(5, 0x40, b"\x10"), 5)["return_code"] == 16
    assert "return_code" not in row_of(packet(0xE0), 5)
    assert row_of(packet(0xE0, b"\x04"), 5)["return_code"] == 4
    assert row_of(packet(0xC0)) == {
        "packet_type": 12, "packet_type_name": "PINGREQ", "flags": 0, "remaining_length": 0,
        "remaining_length_bytes": 1, "version_in_force": 4,
    }  # fmt: skip


def test_what_carried_qos_1_before_3_1_1() -> None:
    for version in (2, 3):
        row = row_of(numbered(version, 0x6A), version)
        assert (row["dup"], row["qos"], row.get("retain")) == (True, 1, None)
    assert "qos" not in row_of(numbered(4, 0x62))


# --- versions -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("before", [0, *VERSIONS])
def test_connect_says_its_version(version: int, before: int) -> None:
    assert MQTT.read_row(connect(version), before)[0]["version_in_force"] == version
    assert MQTT.contexts.next(connect(version), before) == version
    assert MQTT.contexts.next(connect(version), MSB_FIRST) == version | MSB_FIRST


def test_an_answer_tells_5_0_from_the_others() -> None:
    assert MQTT.contexts.next(connack(5), 0) == 5
    assert MQTT.contexts.next(connack(4), 0) == 0
    assert MQTT.contexts.next(connack(4), 5) == 5  # 5.0 was declared; this one is wrong
    assert row_of(connack(5), 0)["version_in_force"] == 5
    assert "version_in_force" not in row_of(connack(4), 0)


def test_a_bridge_says_3_1_1_with_its_highest_bit() -> None:
    row, error = MQTT.read_row(connect(4, level=132), 0)
    assert error is not None and (error.code, row["client_id"]) == ("MQTT-3.1.2-2", "c")
    assert MQTT.contexts.next(connect(4, level=132), 0) == 4


def test_dialects() -> None:
    contexts = {name: get_format(f"mqtt/{name}").context for name in MQTT.dialects}
    assert contexts == {"3.1": 3, "3.1.1": 4, "5.0": 5, "mqipdp": 2, "mqipdp-msb": 10}


def test_the_byte_order_of_a_dialect_is_that_of_1999_alone() -> None:
    context = get_format("mqtt/mqipdp-msb").context
    for data, msb_first in ((publish(2, 0x32, "a", 0x0101), True), (connect(4), False)):
        row, _ = MQTT.read_row(data, context)
        assert MQTT.decode(data, context).msb_first is msb_first
        assert MQTT.packet_of(row, context).msb_first is msb_first


# --- there and back -------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "data"), ALL)
def test_packets_come_back_byte_for_byte(version: int, data: bytes) -> None:
    packet = MQTT.decode(data, version)
    assert MQTT.encode(packet) == data
    row, error = MQTT.read_row(data, version)
    assert error is None
    if data not in IGNORED:
        assert MQTT.encode(MQTT.packet_of(row, version)) == data


@pytest.mark.parametrize(("version", "data"), ALL)
def test_rows_come_back_from_columns(version: int, data: bytes) -> None:
    """Properties are text in columns; what they say is the same."""
    row, _ = MQTT.read_row(data, version)
    [stored] = pa.Table.from_batches([rows_to_batch(COLUMNS, [row])]).to_pylist()
    if data not in IGNORED:
        assert MQTT.packet_of(stored, version) == MQTT.packet_of(row, version)
    assert {name: stored[name] for name in stored if "properties" not in name} == {
        name: row.get(name) for name in stored if "properties" not in name
    }


def test_properties_in_columns() -> None:
    row, _ = MQTT.read_row(publish(5, properties=EVERY_PUBLISH_PROPERTY), 5)
    [stored] = pa.Table.from_batches([rows_to_batch(COLUMNS, [row])]).to_pylist()
    values = [one["value"] for one in stored["properties"]]
    assert values[:6] == ["1", "3600", "text/plain", "answers/to", "00ff10", '["k", "v"]']


def test_every_property_comes_back() -> None:
    values: dict[str, Any] = {
        "byte": 1, "two": 258, "four": 2**32 - 1, "variable": 128, "text": "é", "binary": b"\0\xff",
        "pair": ("a", "b"),
    }  # fmt: skip
    kinds = {1: "CONNECT", 2: "CONNACK", 3: "PUBLISH", 14: "DISCONNECT", 15: "AUTH", 16: "will"}
    compared = 0
    for one in PROPERTIES.values():
        for kind in sorted(one.packets & kinds.keys()):
            made: tuple[Property, ...] = (Property(one.name, values[one.kind]),)
            if (kind != 16 and "authentication_data" in one.name) or kind == 15:
                made += (Property("authentication_method", "m"),)
            if one.name == "authentication_method":
                made = made[:1]
            fields: dict[str, Any] = {"properties": made}
            if kind == 16:
                fields = {"will_topic": "w", "will_properties": made}
            if kind == 3:
                fields["topic"] = "a"
            packet = control_packet(1 if kind == 16 else kind, version_in_force=5, **fields)
            again = MQTT.decode(MQTT.encode(packet), 5)
            name = "will_properties" if kind == 16 else "properties"
            assert getattr(again, name) == made
            compared += 1
    assert compared == 49


@pytest.mark.parametrize(("version", "data"), ALL)
def test_every_shorter_prefix_is_truncated(version: int, data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(Truncated):
            MQTT.decode(data[:size], version)
        row, error = MQTT.read_row(data[:size], version)
        assert isinstance(error, Truncated) and row["verdict"] == "truncated"
        assert 0 <= error.offset <= size


@pytest.mark.parametrize(("version", "data"), ALL)
def test_a_shorter_remaining_length_is_an_error_or_another_packet(
    version: int, data: bytes
) -> None:
    body = data[1 + MQTT.read_row(data, version)[0]["remaining_length_bytes"] :]
    for size in range(len(body)):
        cut = packet(data[0], body[:size])
        row, error = MQTT.read_row(cut, version)
        try:
            again = MQTT.decode(cut, version)
        except DecodeError as raised:
            assert error is not None and error.row() == raised.row()
        else:
            assert error is None and MQTT.encode(again) == cut
        assert row["packet_type"] == data[0] >> 4


def test_bytes_behind_a_packet_are_told() -> None:
    with pytest.raises(DecodeError, match="is 0, 1 bytes were given"):
        MQTT.decode(packet(0xC0) + b"\0", 4)


# --- what stays readable --------------------------------------------------------------------


def test_fields_behind_a_broken_one_are_read() -> None:
    row, error = MQTT.read_row(publish(4, 0x32, b"a\xff", 7, b"still here"), 4)
    assert error is not None and error.code == "MQTT-1.5.3-1"
    assert (row["topic"], row["packet_id"], row["payload"]) == (None, 7, b"still here")
    unknown = block(5, b"\x01\x01\x7f\0\0")
    row, _ = MQTT.read_row(packet(0x30, text("a") + unknown + b"still here"), 5)
    assert (row["properties"], row["payload"], row["verdict"]) == (
        [{"name": "payload_format_indicator", "value": 1}], b"still here", "property_id",
    )  # fmt: skip
    row, _ = MQTT.read_row(packet(0x82, b"\0\7" + text("a") + b"\3" + text("b/#/c") + b"\1"), 4)
    assert [one["filter"] for one in row["filters"]] == ["a", "b/#/c"]


# --- encoding -------------------------------------------------------------------------------


def test_the_least_that_has_to_be_said() -> None:
    assert MQTT.encode(PingReq()) == b"\xc0\0"
    assert MQTT.encode(control_packet(1)) == packet(0x10, text("MQTT") + b"\4\2\0\0\0\0")
    made = Publish(topic="a", qos=1, packet_id=2, payload=b"x", version_in_force=5)
    assert MQTT.encode(made) == publish(5, 0x32, "a", 2)
    made = replace(made, version_in_force=2)
    assert MQTT.encode(made) == publish(2, 0x32, "a", 2)
    assert MQTT.encode(replace(made, msb_first=True)) == publish(4, 0x32, "a", 2)
    asks = Subscribe(packet_id=7, filters=(Filter("a/b", 1),))
    assert MQTT.encode(asks) == subscribe(4, ("a/b", 1))
    assert MQTT.encode(MQTT.packet_of({"packet_type": 3, "topic": "a"}, 5)) == publish(
        5, 0x30, "a", payload=b""
    )


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("version_in_force", {"packet_type": 15, "version_in_force": 4}),
        ("version_in_force", {"packet_type": 12, "version_in_force": 1}),
        ("topic", {"packet_type": 3, "topic": "x" * 65536}),
        ("topic", {"packet_type": 3, "topic": "\ud800"}),
        ("packet_id", {"packet_type": 3, "topic": "a", "qos": 1}),
        ("packet_id", {"packet_type": 4, "packet_id": 65536}),
        ("qos", {"packet_type": 3, "topic": "a", "qos": 3, "packet_id": 1}),
        ("flags", {"packet_type": 12, "flags": 16}),
        ("payload", {"packet_type": 3, "topic": "a", "payload": 5}),
        ("packet_id", {"packet_type": 3, "topic": "a", "packet_id": 5}),
        ("keep_alive", {"packet_type": 1, "keep_alive": -1}),
        ("will_qos", {"packet_type": 1, "will_topic": "w", "will_qos": 4}),
        ("will_qos", {"packet_type": 1, "will_qos": 1}),
        ("will_payload", {"packet_type": 1, "will_payload": b""}),
        ("will_properties", {"packet_type": 1, "will_topic": "w",
                             "will_properties": {"will_delay_interval": 1}}),
        ("password", {"packet_type": 1, "password": 5}),
        ("password", {"packet_type": 1, "password": b"", "version_in_force": 2}),
        ("username", {"packet_type": 1, "username": "u", "version_in_force": 2}),
        ("return_code", {"packet_type": 2, "return_code": 256}),
        ("return_codes", {"packet_type": 9, "packet_id": 1, "return_codes": (256,)}),
        ("return_codes", {"packet_type": 11, "packet_id": 1, "return_codes": (0,)}),
        ("return_code", {"packet_type": 4, "packet_id": 1, "return_code": 0}),
        ("properties", {"packet_type": 4, "packet_id": 1, "properties": ()}),
        ("session_present", {"packet_type": 2, "session_present": True, "version_in_force": 3}),
        ("msb_first", {"packet_type": 12, "msb_first": True}),
        ("dup", {"packet_type": 6, "packet_id": 1, "dup": True}),
        ("filters", {"packet_type": 10, "packet_id": 1, "filters": (Filter("a", 1),)}),
        ("filters", {"packet_type": 8, "packet_id": 1, "filters": (Filter("a"),)}),
        ("properties", {"packet_type": 3, "topic": "a",
                        "properties": (Property("topic_alias", 1),)}),
        ("property", {"packet_type": 3, "topic": "a", "version_in_force": 5,
                      "properties": (Property("x", 1),)}),
        ("topic_alias", {"packet_type": 3, "topic": "a", "version_in_force": 5,
                         "properties": (Property("topic_alias", 65536),)}),
        ("user_property", {"packet_type": 3, "topic": "a", "version_in_force": 5,
                           "properties": (Property("user_property", "k"),)}),
        ("subscription_identifier", {"packet_type": 3, "topic": "a", "version_in_force": 5,
                                     "properties": (Property("subscription_identifier", 2**28),)}),
    ],
)  # fmt: skip
def test_what_has_no_form_on_the_wire(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(EncodeError) as raised:
        MQTT.encode(control_packet(values.pop("packet_type"), **values))
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("field", "row"),
    [
        ("packet_type", {}),
        ("password", {"packet_type": 1, "has_password": True}),
        ("filters", {"packet_type": 8, "filters": ["a"]}),
        ("packet_type", {"packet_type": 0}),
        ("packet_type", {"packet_type": [3]}),
        ("topic", {"packet_type": 3}),
        ("packet_id", {"packet_type": 4}),
        ("keep_alive", {"packet_type": 3, "topic": "a", "keep_alive": 60}),
        ("qos", {"packet_type": 8, "filters": [{"filter": "a", "qos": "x"}]}),
        ("properties", {"packet_type": 3, "properties": {"topic_alias": 1}}),
        ("property", {"packet_type": 3, "properties": [{"name": "x", "value": 1}]}),
        ("topic_alias", {"packet_type": 3, "properties": [{"name": "topic_alias", "value": "x"}]}),
        ("topic_alias", {"packet_type": 3, "properties": [{"name": "topic_alias", "value": -1}]}),
        ("topic_alias", {"packet_type": 3, "properties": [{"name": "topic_alias", "value": True}]}),
        ("correlation_data",
         {"packet_type": 3, "properties": [{"name": "correlation_data", "value": "!"}]}),
        ("user_property",
         {"packet_type": 3, "properties": [{"name": "user_property", "value": "[1]"}]}),
        ("content_type", {"packet_type": 3, "properties": [{"name": "content_type", "value": 1}]}),
    ],
)  # fmt: skip
def test_rows_that_say_no_packet(field: str, row: dict[str, Any]) -> None:
    with pytest.raises(EncodeError) as raised:
        MQTT.packet_of(row, 5)
    assert raised.value.field == field


# --- secrets --------------------------------------------------------------------------------


def test_secrets_are_taken_out() -> None:
    method = b"\x15" + text("PLAIN") + b"\x16" + binary(b"secret")
    data = connect(5, 0xC2, text("user") + binary(b"secret"), properties=method)
    row, _ = MQTT.read_row(data, 5)
    shown = MQTT.secrets.redact(row)
    assert b"secret" not in repr(shown).encode() and row["password"] == b"secret"
    assert shown["has_password"] is True and shown["username"] == "user"
    assert [one["name"] for one in shown["properties"]] == [
        "authentication_method", "authentication_data",
    ]  # fmt: skip
    with pytest.raises(EncodeError):
        MQTT.packet_of(shown, 5)
    stored = pa.Table.from_batches([rows_to_batch(COLUMNS, [shown])]).to_pylist()
    assert MQTT.secrets.redact(stored[0])["properties"][1]["value"] is None
    other, _ = MQTT.read_row(packet(0xC0), 5)
    assert MQTT.secrets.redact(other) is other
    plain, _ = MQTT.read_row(connect(5), 5)
    assert MQTT.secrets.redact(plain) is plain
    assert "secret" not in "".join(mark.value for mark in MQTT.annotate(data, 5))


def test_payload_views() -> None:
    row, _ = MQTT.read_row(publish(4, payload="é\xff".encode() + b"\xff"), 4)
    assert MQTT.body.views["text"](row) == "é\xff\\xff"
    assert MQTT.body.views["text"](MQTT.read_row(packet(0xC0), 4)[0]) is None


# --- annotations ----------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "data"), ALL)
def test_annotations_touch_and_cover(version: int, data: bytes) -> None:
    rng = Random(len(data))
    damaged = bytearray(data)
    for at in rng.sample(range(len(data)), min(3, len(data))):
        damaged[at] ^= 1 << rng.randrange(8)
    for view in (data, bytes(damaged), data[:-1], data[: len(data) // 2], b""):
        assert check_cover(view, version, MQTT)


def test_annotations_say_which_rule_is_broken() -> None:
    marks = MQTT.annotate(publish(4, 0x38, "a/#\x1b"), 4)
    shown = {mark.field: mark.value for mark in marks}
    assert shown["packet type and flags"] == (
        "3 (PUBLISH), flags 1000 (is set at QoS 0: MQTT-3.3.1-2)"
    )
    assert shown["topic"].startswith("a/#\\x1b")
    assert json.dumps(shown).count("MQTT-3.3.2-2") == 1
