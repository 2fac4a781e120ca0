from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.errors import DecodeError
from wireyard.formats.base import Row
from wireyard.formats.jmq.body import MAX_INFLATED_BYTES, body_text, body_value
from wireyard.formats.jmq.layout import FLAGS, PACKET_TYPES
from wireyard.formats.jmq.packet import Packet, encode, read_row
from wireyard.formats.properties import Properties, Property

TEXT, BYTES, MAP, STREAM, OBJECT, MESSAGE = range(1, 7)

STREAM_HEADER = bytes.fromhex("aced 0005")
NUMBER = (
    bytes.fromhex("78 72 0010") + b"java.lang.Number" + bytes.fromhex("86ac951d0b94e08b 02 0000")
)
INTEGER = (
    bytes.fromhex("73 72 0011") + b"java.lang.Integer" + bytes.fromhex("12e2a0a4f7818738 02 0001")
    + b"I\0\x05value" + NUMBER + b"\x78\x70"
)  # fmt: skip
HASH_MAP = (
    bytes.fromhex("73 72 0011") + b"java.util.HashMap" + bytes.fromhex("0507dac1c31660d1 03 0002")
    + b"F\0\x0aloadFactorI\0\x09threshold"
    + bytes.fromhex("78 70 3f400000 0000000c 77 08 00000010")
)  # fmt: skip
"""A map up to its count; pairs and the byte 78 follow."""
UNKNOWN = bytes.fromhex("73 72 0003") + b"a.B" + bytes.fromhex("0000000000000001 02 0000 78 70")
"""An object of a class without fields."""

MESSAGE_ID = struct.pack(
    ">q16sii", 1105948800061, bytes(10) + b"\xff\xff" + bytes([192, 168, 1, 17]), 49152, 62
)
MESSAGE_ID_TEXT = "62-192.168.1.17-49152-1105948800061"


def integer(value: int) -> bytes:
    return INTEGER + struct.pack(">i", value)


def string(text: str) -> bytes:
    return b"\x74" + struct.pack(">H", len(text)) + text.encode()


def hash_map(*pairs: bytes) -> bytes:
    return STREAM_HEADER + HASH_MAP + struct.pack(">i", len(pairs) // 2) + b"".join(pairs) + b"\x78"


def row(packet_type: int, body: bytes | None, **values: Any) -> Row:
    found, error = read_row(encode(Packet(packet_type=packet_type, body=body, **values)))
    assert error is None
    return found


def compressed(data: bytes, size: object, kind: str = "integer", packet_type: int = BYTES) -> Row:
    entry = Property(kind, size)  # type: ignore[arg-type]
    properties = Properties({"JMS_SUN_UNCOMPRESSED_SIZE": entry})
    return row(packet_type, data, bit_flags=FLAGS["Z"], properties=properties)


# What each kind of message holds.


@pytest.mark.parametrize("packet_type", sorted(PACKET_TYPES))
def test_no_body_is_none(packet_type: int) -> None:
    assert body_value(row(packet_type, None)) is None
    assert body_text(row(packet_type, None)) is None


def test_text_is_standard_utf8() -> None:
    assert body_value(row(TEXT, "Grüße 😀\0".encode())) == "Grüße 😀\0"
    assert body_text(row(TEXT, "Grüße 😀\0".encode())) == "Grüße 😀\0"


def test_text_that_is_not_utf8_is_an_error_at_its_byte() -> None:
    found = row(TEXT, b"ab\xff", destination="q")
    with pytest.raises(DecodeError) as caught:
        body_value(found)
    assert (caught.value.format, caught.value.field, caught.value.code) == (
        "jmq",
        "body",
        "bad_utf8",
    )
    assert caught.value.offset == found["property_offset"] + 2


def test_bytes_are_bytes_and_their_text_is_hex() -> None:
    assert body_value(row(BYTES, b"\0\xff")) == b"\0\xff"
    assert body_text(row(BYTES, b"\0\xff")) == "00ff"


def test_map_is_a_dict_of_plain_values() -> None:
    found = row(MAP, hash_map(string("n"), integer(7), string("s"), string("x")))
    assert body_value(found) == {"n": 7, "s": "x"}
    assert body_text(found) == '{"n": 7, "s": "x"}'


@pytest.mark.parametrize(
    "body",
    [
        STREAM_HEADER + string("x"),
        STREAM_HEADER,
        hash_map() + string("x"),
        hash_map(integer(1), string("x")),
    ],
    ids=["a string", "nothing", "two objects", "a key that is no name"],
)
def test_a_map_body_holds_one_map_with_names(body: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        body_value(row(MAP, body))
    assert caught.value.field == "body"


def test_stream_is_a_list_with_references_followed() -> None:
    body = STREAM_HEADER + string("a") + b"\x70" + bytes.fromhex("71 007e0000") + integer(-1)
    assert body_value(row(STREAM, body)) == ["a", None, "a", -1]
    assert body_text(row(STREAM, body)) == '["a", null, "a", -1]'
    assert body_value(row(STREAM, STREAM_HEADER)) == []


def test_what_stands_twice_in_a_stream_is_converted_once() -> None:
    body = hash_map(string("n"), UNKNOWN) + bytes.fromhex("71 007e0001") * 1000
    found = body_value(row(STREAM, body))
    assert len(found) == 1001
    assert found[0]["n"]["class"] == "a.B"
    assert all(item is found[0] for item in found)


def test_object_is_what_it_stands_for() -> None:
    assert body_value(row(OBJECT, STREAM_HEADER + integer(7))) == 7
    assert body_text(row(OBJECT, STREAM_HEADER + integer(7))) == "7"
    assert body_value(row(OBJECT, STREAM_HEADER + string("x"))) == "x"
    assert body_value(row(OBJECT, STREAM_HEADER + b"\x70")) is None


def test_an_object_of_an_unknown_class_keeps_its_bytes() -> None:
    body = STREAM_HEADER + UNKNOWN
    assert body_value(row(OBJECT, body)) == {"class": "a.B", "data": body}
    assert body_text(row(OBJECT, body)) == json.dumps({"class": "a.B", "data": body.hex()})


def test_an_unknown_object_inside_a_map_keeps_its_bytes() -> None:
    found = body_value(row(MAP, hash_map(string("o"), UNKNOWN)))
    assert found == {"o": {"class": "a.B", "data": STREAM_HEADER + UNKNOWN}}


def test_a_message_without_a_kind_of_body_keeps_what_it_has() -> None:
    assert body_value(row(MESSAGE, b"odd")) == b"odd"
    assert body_value(row(999, b"odd")) == b"odd"


@pytest.mark.parametrize("cut", range(1, len(hash_map(string("n"), integer(7)))))
def test_every_shorter_map_is_an_error_inside_the_packet(cut: int) -> None:
    found = row(MAP, hash_map(string("n"), integer(7))[:cut], destination="q")
    with pytest.raises(DecodeError) as caught:
        body_value(found)
    assert caught.value.field == "body"
    assert found["property_offset"] <= caught.value.offset <= found["size"]


# Control packets.


@pytest.mark.parametrize("packet_type", [24, 32])
@pytest.mark.parametrize(
    ("version", "consumer"), [(301, ">q"), (200, ">q"), (103, ">i")], ids=["301", "200", "103"]
)
def test_acknowledged_messages(packet_type: int, version: int, consumer: str) -> None:
    body = b"".join(struct.pack(consumer, number) + MESSAGE_ID for number in (7, -1))
    assert body_value(row(packet_type, body, version=version)) == [
        {"consumer_id": 7, "sys_message_id": MESSAGE_ID_TEXT},
        {"consumer_id": -1, "sys_message_id": MESSAGE_ID_TEXT},
    ]


@pytest.mark.parametrize("packet_type", [16, 27, 42])
def test_message_ids(packet_type: int) -> None:
    assert body_value(row(packet_type, MESSAGE_ID * 2)) == [MESSAGE_ID_TEXT] * 2
    assert body_text(row(packet_type, MESSAGE_ID)) == f'["{MESSAGE_ID_TEXT}"]'


@pytest.mark.parametrize("packet_type", [44, 46, 48, 56, 58, 61, 78])
def test_xa_ids(packet_type: int) -> None:
    body = struct.pack(">iHH64s64s", 4660, 3, 1, b"abc", b"\0")
    assert body_value(row(packet_type, body)) == [
        {"format_id": 4660, "global_id": b"abc", "branch_id": b"\0"}
    ]


def test_an_xa_id_longer_than_its_field_is_an_error() -> None:
    with pytest.raises(DecodeError):
        body_value(row(44, struct.pack(">iHH64s64s", 4660, 65, 1, b"", b"")))


def test_generated_ids() -> None:
    assert body_value(row(63, struct.pack(">qq", 1, -(2**63)))) == [1, -(2**63)]


@pytest.mark.parametrize("packet_type", [16, 24, 27, 32, 42, 44, 46, 48, 56, 58, 61, 63, 78])
def test_half_a_record_is_an_error(packet_type: int) -> None:
    with pytest.raises(DecodeError, match="records"):
        body_value(row(packet_type, bytes(137)))


def test_information_is_a_plain_value() -> None:
    assert body_value(row(79, hash_map(string("State"), integer(3)))) == {"State": 3}


def test_nonce_is_text() -> None:
    assert body_value(row(38, b"-5a8d")) == "-5a8d"


def test_login_gives_the_user_alone() -> None:
    found = row(12, b"\0\x05guest\0\x08Z3Vlc3Q=")
    assert body_value(found) == {"user": "guest"}
    assert body_text(found) == '{"user": "guest"}'


@pytest.mark.parametrize("body", [b"\0", b"\0\x09guest", b"\0\x01\xff\0\0"])
def test_a_login_that_is_none_tells_nothing(body: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        body_value(row(12, body))
    assert "guest" not in str(caught.value)


# Compression.


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_compressed_body_is_inflated(size: int) -> None:
    data = b"x" * size
    assert body_value(compressed(zlib.compress(data), size)) == data


def test_a_compressed_body_is_opened_by_its_kind() -> None:
    body = hash_map(string("n"), integer(7))
    assert body_value(compressed(zlib.compress(body), len(body), packet_type=MAP)) == {"n": 7}


@pytest.mark.parametrize(
    "entry", [{"type": "integer", "value": 3}, {"type": "integer", "value": "3"}]
)
def test_the_size_is_found_in_rows_from_json_and_columns(entry: dict[str, Any]) -> None:
    found = compressed(zlib.compress(b"abc"), 3)
    found["properties"] = {"JMS_SUN_UNCOMPRESSED_SIZE": entry}
    assert body_value(found) == b"abc"


@pytest.mark.parametrize(
    ("body", "size", "kind", "code"),
    [
        (zlib.compress(b"abc"), 2, "integer", "bad_zlib"),
        (zlib.compress(b"abc"), 4, "integer", "bad_zlib"),
        (zlib.compress(b"abc"), 0, "integer", "bad_zlib"),
        (zlib.compress(b"abc"), -1, "integer", "bad_zlib"),
        (zlib.compress(b"abc"), "3", "string", "malformed"),
        (zlib.compress(b"abc"), 3, "long", "malformed"),
        (zlib.compress(b"abc"), True, "boolean", "malformed"),
        (zlib.compress(b"abc"), MAX_INFLATED_BYTES + 1, "integer", "limit_exceeded"),
        (zlib.compress(b"abc")[:-1], 3, "integer", "bad_zlib"),
        (zlib.compress(b"abc")[:-5] + b"\0\0\0\0\0", 3, "integer", "bad_zlib"),
        (zlib.compress(b"abc") + b"\0", 3, "integer", "bad_zlib"),
        (b"abc", 3, "integer", "bad_zlib"),
    ],
)
def test_a_lie_about_compression_is_an_error(
    body: bytes, size: object, kind: str, code: str
) -> None:
    found = compressed(body, size, kind)
    with pytest.raises(DecodeError) as caught:
        body_value(found)
    assert caught.value.field == "body"
    assert caught.value.code == code


@pytest.mark.parametrize("properties", [None, Properties({})])
def test_compression_without_a_size_is_an_error(properties: Properties | None) -> None:
    found = row(TEXT, zlib.compress(b"abc"), bit_flags=FLAGS["Z"], properties=properties)
    with pytest.raises(DecodeError, match="JMS_SUN_UNCOMPRESSED_SIZE"):
        body_value(found)


def test_a_bomb_is_stopped_at_its_stated_size() -> None:
    found = compressed(zlib.compress(bytes(50_000_000)), 1000)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="more"):
        body_value(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_an_error_inside_a_compressed_body_is_at_the_body() -> None:
    found = compressed(zlib.compress(b"ab\xff"), 3, packet_type=TEXT)
    with pytest.raises(DecodeError) as caught:
        body_value(found)
    assert caught.value.offset == found["property_offset"] + found["property_size"]


# Text of values that JSON has no form for.


@pytest.mark.parametrize(
    ("data", "value", "text"),
    [
        (
            "7372000e6a6176612e7574696c2e44617465686a81014b597419030000787077080000018bcfe5680078",
            datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            '"2023-11-14T22:13:20.000Z"',
        ),
        (
            "737200106a6176612e6c616e672e446f75626c6580b3c24a296bfb0402000144000576616c756578"
            "7200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870fff0000000000000",
            float("-inf"),
            '"-Infinity"',
        ),
    ],
    ids=["a date", "not a number of JSON"],
)
def test_text_of_scalars(data: str, value: object, text: str) -> None:
    found = row(OBJECT, STREAM_HEADER + bytes.fromhex(data))
    assert body_value(found) == value
    assert body_text(found) == text


def test_a_map_with_other_keys_than_text_is_pairs() -> None:
    found = row(OBJECT, hash_map(integer(1), string("a"), string("1"), b"\x70"))
    assert body_value(found) == {1: "a", "1": None}
    assert body_text(found) == '[[1, "a"], ["1", null]]'


# Anything at all.


@given(st.sampled_from(sorted(PACKET_TYPES)), st.binary(max_size=300), st.booleans())
def test_any_body_gives_a_value_or_a_decode_error(
    packet_type: int, body: bytes, java: bool
) -> None:
    found = row(packet_type, (STREAM_HEADER if java else b"") + body)
    try:
        text = body_text(found)
    except DecodeError as error:
        assert error.field == "body"
    else:
        assert text is None or isinstance(text, str)


@given(st.data())
def test_a_changed_byte_gives_a_value_or_a_decode_error(data: st.DataObject) -> None:
    body = bytearray(hash_map(string("n"), integer(7), string("o"), UNKNOWN))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        body_text(row(MAP, bytes(body)))
    except DecodeError as error:
        assert error.field == "body"
