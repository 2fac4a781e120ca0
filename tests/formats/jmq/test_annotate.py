from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.jmq.recorded import recorded_packets, vectors
from tests.readings import check_cover
from wireyard.errors import DecodeError
from wireyard.formats.jmq.layout import FLAGS, HEADERS, VERSIONS
from wireyard.formats.jmq.packet import Packet, decode, encode
from wireyard.formats.marks import MAX_SHOWN
from wireyard.formats.properties import Properties, Property

HEAD, ITEMS = "JMQ 3.0.1c, fixed header", "JMQ 3.0.1c, variable header"
PROPERTIES, BODY = "JMQ 3.0.1c, property data", "JMQ 3.0.1c, message data"

GOLDEN = bytes.fromhex(
    "1bffe3c2 012d 0001 00000080"  # magic, version 301, TEXT_MESSAGE, 128 bytes
    "0000000000000000 000001017faf743d"  # never expires, 2005-01-17
    "00000000000000000000ffffc0a80111 0000c000 0000003e"  # 192.168.1.17, port, sequence
    "00000060 0000001d 04 00 0005 0000000000000007"  # sections, priority, flags Q and P, consumer
    "000a 0008 000001017faf743d"  # delivery time
    "0001 0002 7130"  # destination q0
    "0000 00000000"  # end of the list, four bytes of padding
    "00000001 00000002"  # two properties
    "0001 6e 0004 00000005"  # n, integer, 5
    "0001 73 0008 0005"  # s, string
) + b"a\x1bb\xc3\xb6" + b"low"  # fmt: skip


def by_field(data: bytes) -> dict[str, str]:
    return {item.field: item.value for item in check_cover(data)}


def test_golden_packet() -> None:
    assert [
        (item.start, item.stop, item.field, item.value, item.spec) for item in check_cover(GOLDEN)
    ] == [
        (0, 4, "magic", "469754818", HEAD),
        (4, 6, "version", "301", HEAD),
        (6, 8, "packet_type", "1 (TEXT_MESSAGE)", HEAD),
        (8, 12, "size", "128 bytes", HEAD),
        (12, 20, "expiration", "0 (never)", HEAD),
        (20, 28, "timestamp", "1105948800061 (2005-01-17T08:00:00.061Z)", HEAD),
        (28, 44, "source_ip", "192.168.1.17", HEAD),
        (44, 48, "source_port", "49152", HEAD),
        (48, 52, "sequence", "62", HEAD),
        (52, 56, "property_offset", "96 bytes", HEAD),
        (56, 60, "property_size", "29 bytes", HEAD),
        (60, 61, "priority", "4", HEAD),
        (61, 62, "encryption", "0", HEAD),
        (62, 64, "bit_flags", "0x0005 (QP)", HEAD),
        (64, 72, "consumer_id", "7", HEAD),
        (72, 74, "item type", "10 (delivery_time)", "shipped classes, variable header"),
        (74, 76, "item length", "8 bytes", "shipped classes, variable header"),
        (
            76,
            84,
            "delivery_time",
            "1105948800061 (2005-01-17T08:00:00.061Z)",
            "shipped classes, variable header",
        ),
        (84, 86, "item type", "1 (destination)", ITEMS),
        (86, 88, "item length", "2 bytes", ITEMS),
        (88, 90, "destination", "q0", ITEMS),
        (90, 92, "list end", "0", ITEMS),
        (92, 96, "padding", "4 bytes", ITEMS),
        (96, 100, "property version", "1", PROPERTIES),
        (100, 104, "property count", "2", PROPERTIES),
        (104, 106, "property name length", "1 byte", PROPERTIES),
        (106, 107, "property name", "n", PROPERTIES),
        (107, 109, "property type", "4 (integer)", PROPERTIES),
        (109, 113, "n", "5", PROPERTIES),
        (113, 115, "property name length", "1 byte", PROPERTIES),
        (115, 116, "property name", "s", PROPERTIES),
        (116, 118, "property type", "8 (string)", PROPERTIES),
        (118, 120, "property value length", "5 bytes", PROPERTIES),
        (120, 125, "s", "a\\x1bbö", PROPERTIES),
        (125, 128, "body", "3 bytes: low", BODY),
    ]


PACKET = Packet(
    packet_type=1,
    timestamp=1105948800061,
    bit_flags=FLAGS["Q"] | FLAGS["A"],
    transaction_id=3,
    destination="orders",
    unknown_items=((77, b"\1\2"),),
    properties=Properties(
        {
            "s": Property("string", "text"),
            "o": Property("object", b"\xac\xed\0\5t\0\1x"),
            "f": Property("float", 0.5),
            "e": Property("string", ""),
        }
    ),
    body=b"a body",
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_header_field_stands_at_its_place(version: int) -> None:
    found = check_cover(encode(Packet(version=version, packet_type=20)))
    for field in HEADERS[version].fields:
        marks = [item for item in found if item.field == field.name]
        assert [(item.start, item.stop) for item in marks] == [(field.offset, field.stop)]


def test_properties_before_301_are_one_annotation() -> None:
    data = encode(Packet(version=200, packet_type=6, properties=PACKET.properties))
    assert "s = text" in by_field(data)["properties"]


def test_unknown_items_are_shown_as_they_are() -> None:
    found = by_field(encode(PACKET))
    assert found["item 77"] == "0102"


def test_103_shows_the_flags_that_count() -> None:
    data = bytearray(encode(Packet(version=103, packet_type=6, bit_flags=FLAGS["Q"])))
    data[66] = 0xAB
    assert by_field(bytes(data))["bit_flags"] == "0xab01 (Q)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1 (1969-12-31T23:59:59.999Z)"),
        (2**63 - 1, f"{2**63 - 1} (out of the calendar)"),
        (-(2**63), f"{-(2**63)} (out of the calendar)"),
    ],
)
def test_times_at_the_edge(value: int, shown: str) -> None:
    assert by_field(encode(Packet(packet_type=6, timestamp=value)))["timestamp"] == shown


def test_long_text_says_how_much_was_cut() -> None:
    shown = by_field(encode(Packet(packet_type=1, body=b"x" * (MAX_SHOWN + 50))))["body"]
    assert shown == f"250 bytes: {'x' * MAX_SHOWN}.. (50 more characters)"


def test_nothing_shown_can_move_a_cursor() -> None:
    text = "\x1b[2J\r\n\u202e\ud800"
    data = encode(
        Packet(
            packet_type=1,
            destination="\x1b[2J\u202e",
            properties=Properties({text: Property("string", text)}),
            body=b"\x1b[2J\n",
        )
    )
    for item in check_cover(data):
        assert (item.field + item.value).isprintable()


@pytest.mark.parametrize(
    "body", [b"\0\x05guest\0\x08c2VjcmV0", b"\0\x05guest\0\x63c2VjcmV0", b"\0\xffguestc2VjcmV0"]
)
def test_passwords_are_not_shown(body: bytes) -> None:
    data = encode(Packet(packet_type=12, body=body))
    for cut in (len(data), 71, 40):
        shown = " ".join(item.value for item in check_cover(data[:cut]))
        assert "c2VjcmV0" not in shown
        assert b"c2VjcmV0".hex() not in shown
    assert "password not shown" in by_field(data)["body"]


# Malformed packets: what can be read is, and the rest says why not.


def broken(at: int, value: bytes, data: bytes = GOLDEN) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("at", "value", "start", "stop", "text"),
    [
        (4, b"\x01\x2e", 12, 128, "302"),
        (8, b"\0\0\0\x7f", 72, 128, "127"),
        (8, b"\0\0\0\x81", 72, 128, "129"),
        (52, b"\0\0\0\x47", 72, 128, "71"),
        (56, b"\0\0\0\x21", 72, 128, "33"),
        (86, b"\xff\xff", 84, 96, "65535"),
        (74, b"\0\x07", 76, 83, "length 7"),
        (88, b"\xff", 88, 90, "UTF-8"),
        (99, b"\2", 104, 125, "version"),
        (100, b"\x7f", 104, 125, "count"),
        (103, b"\3", 125, 125, "needs 2 bytes, 0 left"),
        (105, b"\0", 106, 125, "not 1 to 9"),
        (106, b"\xff", 104, 125, "UTF-8"),
        (108, b"\x0a", 107, 125, "10"),
        (119, b"\6", 116, 125, "needs 6 bytes, 5 left"),
    ],
)
def test_what_cannot_be_read_says_why(
    at: int, value: bytes, start: int, stop: int, text: str
) -> None:
    data = broken(at, value)
    with pytest.raises(DecodeError) as caught:
        decode(data)
    unread = [item for item in check_cover(data) if item.field == "not readable"]
    assert (unread[0].start, unread[0].stop) == (start, stop)
    assert text in unread[0].value
    assert unread[0].spec == caught.value.spec


def test_a_wrong_magic_is_shown_and_nothing_else_believed() -> None:
    found = check_cover(broken(0, b"\0"))
    assert [item.field for item in found] == ["magic", "not readable"]
    assert found[0].value == "16769986, not 469754818"


def test_a_broken_list_leaves_properties_and_body_readable() -> None:
    found = by_field(broken(86, b"\xff\xff"))
    assert found["n"] == "5"
    assert found["body"] == "3 bytes: low"


def test_bytes_after_the_last_property_are_named() -> None:
    found = check_cover(broken(103, b"\1"))
    assert [(item.start, item.stop, item.value) for item in found][-2] == (
        113,
        125,
        "12 bytes, ignored",
    )


def test_a_hashtable_that_is_none_says_why() -> None:
    data = encode(Packet(version=200, packet_type=6, properties=PACKET.properties))
    at = struct.unpack_from(">i", data, 52)[0]
    found = check_cover(broken(at, b"\0", data))
    assert found[-1].field == "not readable"
    with pytest.raises(DecodeError) as caught:
        decode(broken(at, b"\0", data))
    assert found[-1].value == str(caught.value)


def test_a_body_that_cannot_be_opened_says_why() -> None:
    assert "UTF-8" in by_field(broken(127, b"\xff"))["body"]


# Everything.


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_packet_is_covered(version: int) -> None:
    data = encode(replace(PACKET, version=version))
    for stop in range(len(data) + 1):
        check_cover(data[:stop])


def test_a_serialized_section_without_properties_says_so() -> None:
    section = encode(Packet(version=200, packet_type=20, properties=Properties({})))
    assert {mark.field: mark.value for mark in check_cover(section)}["properties"] == "none"


@given(st.data())
def test_every_changed_packet_is_covered(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    packet = bytearray(encode(replace(PACKET, version=version)))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    check_cover(bytes(packet))


@given(st.binary(max_size=200))
def test_any_bytes_are_covered(data: bytes) -> None:
    check_cover(data)


def test_golden_packets_are_covered(shared: Path) -> None:
    for _, data in vectors(shared):
        found = check_cover(data)
        try:
            decode(data)
        except DecodeError:
            continue
        assert all(item.field != "not readable" for item in found)


def test_recorded_packets_are_covered(shared: Path) -> None:
    for data in recorded_packets(shared):
        assert all(item.field != "not readable" for item in check_cover(data))
