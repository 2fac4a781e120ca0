"""JMQ packets, scalar: handmade bytes, every shorter prefix, every rule broken once."""

from __future__ import annotations

import dataclasses
import math
from random import Random
from typing import Any

import pytest

import wireyard
from tests.golden import GOLDEN, Golden
from tests.make import (
    ADDRESS,
    ALL_ITEMS,
    ALL_TYPES,
    EMPTY_HASHTABLE,
    IPV6,
    MAC_ADDRESS,
    item,
    items,
    long_item,
    one_property,
    packet,
    random_packet,
    section,
    text,
    variety,
)
from wireyard.errors import DecodeError, Truncated, UnsupportedVersion
from wireyard.formats.jmq.layout import COLUMNS
from wireyard.formats.jmq.packet import Packet, decode, encode, read_row
from wireyard.formats.message_id import address_text, sys_message_id_text
from wireyard.formats.properties import TYPES, Properties, Property

DATE = bytes.fromhex(
    "aced0005 73 72 000e 6a6176612e7574696c2e44617465"  # a stream; an object: java.util.Date
    "686a81014b597419 03 0000 78 70"  # its version, serializable with writeObject; no fields
    "77 08 0000000000000005 78"  # 5 ms
)
HASHTABLE = bytes.fromhex(EMPTY_HASHTABLE)


@pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN.keys())
class TestGolden:
    def test_decodes_to_its_fields(self, golden: Golden) -> None:
        found = decode(golden.data)
        assert {name: getattr(found, name) for name in golden.fields} == golden.fields
        assert {name: getattr(found, name) for name in golden.texts} == golden.texts

    def test_its_row_says_the_same(self, golden: Golden) -> None:
        row, error = read_row(golden.data)
        assert error is None
        expected = {**golden.fields, **golden.texts, "size": len(golden.data)}
        if "unknown_items" in expected:
            expected["unknown_items"] = None  # none is absent in a row
        assert {name: row.get(name) for name in expected} == expected
        assert row["body_size"] == len(golden.fields["body"] or b"")
        assert set(row) <= {column.name for column in COLUMNS}

    def test_encodes_to_its_bytes(self, golden: Golden) -> None:
        assert encode(decode(golden.data)) == golden.data

    def test_is_read_from_any_kind_of_view(self, golden: Golden) -> None:
        padded = memoryview(b"\0" + golden.data)[1:]
        assert decode(padded) == decode(golden.data) == wireyard.decode(padded, "jmq")

    def test_any_shorter_prefix_is_truncated(self, golden: Golden) -> None:
        for size in range(len(golden.data)):
            with pytest.raises(Truncated) as caught:
                decode(golden.data[:size])
            assert caught.value.available == size
            row, error = read_row(golden.data[:size])
            assert error is not None and error.code == "truncated"
            assert row.get("body") is None

    def test_bytes_after_it_are_refused(self, golden: Golden) -> None:
        with pytest.raises(DecodeError, match="'size'"):
            decode(golden.data + b"\0")


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_what_is_encoded_again_reads_the_same(data: bytes) -> None:
    found = decode(data)
    again = encode(found)
    assert decode(again) == dataclasses.replace(
        found, property_offset=decode(again).property_offset
    )
    assert encode(decode(again)) == again


def test_random_packets_come_back_as_they_were() -> None:
    rng = Random(11)
    for _ in range(500):
        data = random_packet(rng)
        found = decode(data)
        row, error = read_row(data)
        assert error is None
        assert all(row.get(name) == getattr(found, name) for name in ("destination", "body"))
        assert encode(found) == data


# --- the variable header --------------------------------------------------------------------


def row_of(data: bytes) -> dict[str, Any]:
    row, error = read_row(data)
    assert error is None
    return row


def test_all_items_in_any_order() -> None:
    codes = [long_item(8, 1), item(1, "d"), item(11, b"\0\0\0\2"), item(5, "t"), long_item(10, 3)]
    for seed in range(20):
        Random(seed).shuffle(codes)
        row = row_of(packet(items=items(*codes)))
        assert (row["transaction_id"], row["delivery_count"], row["delivery_time"]) == (1, 2, 3)
        assert (row["destination"], row["message_type"]) == ("d", "t")


def test_absent_items_are_none_and_empty_ones_are_empty() -> None:
    found = decode(packet(items=items(item(4, ""))))
    assert found.reply_to == ""
    assert (found.destination, found.transaction_id, found.delivery_count) == (None, None, None)


def test_the_last_of_two_items_counts() -> None:
    assert row_of(packet(items=items(item(1, "a"), item(1, "b"))))["destination"] == "b"


def test_unknown_items_are_kept_in_order_and_written_back() -> None:
    listed = items(item(1, "q"), item(300, b"\1\2"), item(0xFFFF, b""), item(300, b"\3"))
    data = packet(items=listed)
    found = decode(data)
    assert found.unknown_items == ((300, b"\1\2"), (0xFFFF, b""), (300, b"\3"))
    assert row_of(data)["unknown_items"] == [
        {"type": 300, "value": b"\1\2"},
        {"type": 0xFFFF, "value": b""},
        {"type": 300, "value": b"\3"},
    ]
    assert encode(found) == data


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 65535])
def test_item_lengths_are_unsigned(size: int) -> None:
    data = packet(items=items(item(3, b"f" * size), item(1, "after")))
    assert row_of(data)["correlation_id"] == "f" * size
    assert row_of(data)["destination"] == "after"


def test_what_follows_the_end_of_the_list_is_ignored() -> None:
    row = row_of(packet(items=items(item(1, "q")) + b"\0\1\0\1x" + b"\xff" * 7))
    assert row["destination"] == "q"


@pytest.mark.parametrize("padding", range(8))
def test_any_padding_is_read(padding: int) -> None:
    data = packet(items=item(1, "queue") + b"\0\0" + bytes(padding), body=b"b")
    assert row_of(data)["destination"] == "queue"
    assert row_of(data)["body"] == b"b"
    if padding <= 2:  # 72 + 9 + 2 and at most four
        assert encode(decode(data)) == data


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\xc0\x80b", "a\0b"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "😀"),
        (b"\xf0\x9f\x98\x80", "😀"),
        (b"x\xed\xa0\xbd", "x\ud83d"),
        (b"\xed\xb8\x80\xed\xa0\xbd", "\ude00\ud83d"),
        (b"\0", "\0"),
    ],
)
def test_texts_are_read_leniently_in_items_and_properties(raw: bytes, shown: str) -> None:
    found = decode(packet(items=items(item(1, raw)), properties=section((raw, 8, raw))))
    assert found.destination == shown
    assert found.properties == {shown: Property("string", shown)}


# --- every rule broken once -----------------------------------------------------------------

GOOD = {"items": items(item(1, "queue")), "properties": section(("name", 8, "text")), "body": b"b"}

BROKEN = {
    "no magic": (b"\x1c" + packet()[1:], "bad_magic", "magic", 0),
    "version 0": (packet(version=0), "unsupported_version", "version", 4),
    "version 302": (packet(version=302), "unsupported_version", "version", 4),
    "version 65535": (packet(version=65535), "unsupported_version", "version", 4),
    "offset 71": (packet(property_offset=71), "malformed", "property offset", 52),
    "offset 0": (packet(property_offset=0), "malformed", "property offset", 52),
    "offset negative": (packet(property_offset=-1), "malformed", "property offset", 52),
    "offset beyond": (packet(property_offset=73), "malformed", "property offset", 52),
    "offset huge": (packet(property_offset=2**31 - 1), "malformed", "property offset", 52),
    "offset 103": (
        packet(version=103, property_offset=0),
        "malformed",
        "property offset",
        56,
    ),
    "section negative": (packet(property_size=-1), "malformed", "property size", 56),
    "section beyond": (packet(property_size=1), "malformed", "property size", 56),
    "section huge": (packet(property_size=2**31 - 1), "malformed", "property size", 56),
    "section 103": (packet(version=103, property_size=1), "malformed", "property size", 60),
    "no end of the list": (packet(items=item(1, "1234")), "truncated", "item type", 80),
    "half a type": (packet(items=item(1, "1234") + b"\0"), "truncated", "item type", 80),
    "half a length": (packet(items=b"\0\1\0"), "truncated", "item length", 74),
    "type alone": (packet(items=b"\0\1"), "truncated", "item length", 74),
    "long item": (packet(items=items(item(1, "q", 9))), "truncated", "destination", 76),
    "long unknown": (packet(items=items(item(12, b"", 99))), "truncated", "item 12", 76),
    "short number": (packet(items=items(item(8, b"1234"))), "malformed", "transaction_id", 74),
    "long number": (packet(items=items(item(9, b"123456789"))), "malformed", "producer_id", 74),
    "empty number": (packet(items=items(item(10, b""))), "malformed", "delivery_time", 74),
    "wide count": (packet(items=items(item(11, bytes(8)))), "malformed", "delivery_count", 74),
    "text": (packet(items=items(item(2, b"a\xff"))), "bad_utf8", "message_id", 76),
    "second text": (
        packet(items=items(item(1, "q"), item(5, b"\xc1\xbf"))),
        "bad_utf8",
        "message_type",
        81,
    ),
    "short section": (packet(properties=b"\0\0\0"), "truncated", "property version", 72),
    "no count": (packet(properties=b"\0\0\0\1\0"), "truncated", "property count", 76),
    "section version 0": (packet(properties=bytes(8)), "malformed", "property version", 72),
    "section version 2": (
        packet(properties=b"\0\0\0\2" + bytes(4)),
        "malformed",
        "property version",
        72,
    ),
    "count negative": (packet(properties=section(count=-1)), "malformed", "property count", 76),
    "count huge": (
        packet(properties=section(("a", 1, True), count=2**31 - 1)),
        "limit_exceeded",
        "property count",
        76,
    ),
    "one more": (
        packet(properties=section(("a", 8, "0123456789"), count=2)),
        "truncated",
        "property name length",
        97,
    ),
    "name": (packet(properties=section((b"\xff", 4, 1))), "bad_utf8", "property name", 82),
    "type 0": (packet(properties=section(("a", 0, b"x"))), "malformed", "property type", 83),
    "type 10": (packet(properties=section(("a", 10, b"x"))), "malformed", "property type", 83),
    "type negative": (
        packet(properties=section(("a", -1, b"x"))),
        "malformed",
        "property type",
        83,
    ),
    "value": (packet(properties=section(("a", 8, b"\xe2\x82"))), "bad_utf8", "property value", 87),
    "object negative": (
        packet(properties=section()[:4] + b"\0\0\0\1" + text("a") + b"\0\x09\xff\xff\xff\xff"),
        "malformed",
        "object length",
        85,
    ),
    "object short length": (
        packet(properties=b"\0\0\0\1\0\0\0\1" + text("a") + b"\0\x09\0\x0c\xac\xed\0\5t\0"),
        "truncated",
        "property value",
        87,
    ),
    "200 as 301": (packet(version=200, properties=section()), "bad_java", "stream header", 72),
    "301 as 200": (packet(properties=HASHTABLE), "malformed", "property version", 72),
    "200 cut": (packet(version=200, properties=HASHTABLE[:-1]), "truncated", None, None),
    "103 cut": (packet(version=103, properties=HASHTABLE[:9]), "truncated", None, None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told_by_code_field_and_place(name: str) -> None:
    data, code, field, offset = BROKEN[name]
    with pytest.raises(DecodeError) as caught:
        decode(data)
    error = caught.value
    assert error.format == "jmq"
    assert error.code == code
    assert field is None or (error.field, error.offset) == (field, offset)
    assert str(error).startswith(f"jmq: '{error.field}' ") and "JMQ 3.0.1c" in str(error)
    assert "\n" not in str(error)
    _, same = read_row(data)
    assert same is not None and same.row() == error.row()


def test_unknown_versions_have_their_own_error() -> None:
    with pytest.raises(UnsupportedVersion):
        decode(packet(version=102))
    row, _ = read_row(packet(version=102, packet_type=7, body=b"?"))
    assert (row["version"], row["packet_type"], row["size"]) == (102, 7, 73)
    assert row.get("timestamp") is None  # nothing after the size is to be trusted


@pytest.mark.parametrize("size", [0, 1, 71, -1, -(2**31), 73, 2**31 - 1])
def test_a_size_that_is_not_that_of_the_bytes_is_refused(size: int) -> None:
    with pytest.raises(DecodeError):
        decode(packet(size=size))


def test_a_malformed_packet_keeps_what_can_be_read() -> None:
    broken_list = packet(items=item(1, "queue") + item(8, b"1234"), properties=section(("a", 4, 5)),
                         body=b"body", consumer_id=9)  # fmt: skip
    row, error = read_row(broken_list)
    assert error is not None and error.field == "transaction_id"
    assert row["destination"] == "queue"
    assert row["properties"] == {"a": Property("integer", 5)}
    assert (row["body"], row["body_size"], row["consumer_id"]) == (b"body", 4, 9)

    broken_section = packet(
        items=items(item(1, "q")), properties=section(("a", 12, b"xy")), body=b"b"
    )
    row, error = read_row(broken_section)
    assert error is not None and error.field == "property type"
    assert row["destination"] == "q" and row["body"] == b"b"
    assert row.get("properties") is None


def test_only_the_first_of_two_faults_is_told() -> None:
    _, error = read_row(packet(items=b"\0\1", properties=bytes(8)))
    assert error is not None and error.field == "item length"


# --- properties -----------------------------------------------------------------------------


def test_all_nine_types_in_301() -> None:
    found = decode(packet(properties=section(*ALL_TYPES)))
    assert found.properties is not None
    assert [entry.type for entry in found.properties.values()] == list(TYPES.values())
    assert [entry.value for entry in found.properties.values()] == [
        value for _, _, value in ALL_TYPES
    ]


def test_no_section_and_an_empty_table_are_different() -> None:
    assert decode(packet()).properties is None
    assert decode(packet(properties=section())).properties == {}
    assert encode(decode(packet(properties=section()))) == packet(properties=section())


def test_the_last_of_two_properties_of_one_name_counts() -> None:
    found = decode(packet(properties=section(("a", 4, 1), ("b", 4, 2), ("a", 8, "x"))))
    assert found.properties == {"a": ("string", "x"), "b": ("integer", 2)}


def test_bytes_after_the_last_property_are_ignored_and_written_back() -> None:
    data = packet(properties=section(("a", 4, 1)) + b"\xff\0junk", body=b"b")
    found = decode(data)
    assert found.properties == {"a": ("integer", 1)} and found.body == b"b"
    assert encode(found) == data


def test_any_byte_but_zero_is_true() -> None:
    raw = section()[:4] + b"\0\0\0\2" + text("a") + b"\0\1\x80" + text("b") + b"\0\1\0"
    assert decode(packet(properties=raw)).properties == {
        "a": ("boolean", True),
        "b": ("boolean", False),
    }


@pytest.mark.parametrize("version", [103, 200, 301])
def test_every_type_comes_back_in_every_version(version: int) -> None:
    given = Properties(
        {
            "b": Property("boolean", False),
            "y": Property("byte", -1),
            "s": Property("short", 300),
            "i": Property("integer", 127),
            "j": Property("integer", 127),
            "l": Property("long", -(2**63)),
            "f": Property("float", -0.5),
            "d": Property("double", math.inf),
            "n": Property("double", math.nan),
            "t": Property("string", "x\0😀ü"),
            "e": Property("string", ""),
            "o": Property("object", DATE),
        }
    )
    sent = Packet(version=version, packet_type=1, properties=given, body=b"after")
    data = encode(sent)
    found = decode(data)
    assert found.properties == given
    assert list(found.properties or ()) == list(given)
    assert found.body == b"after"
    assert encode(found) == data


# --- addresses, ids, flags ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (ADDRESS, "192.168.1.17"),
        (bytes(10) + b"\xff\xff" + bytes(4), "0.0.0.0"),
        (MAC_ADDRESS, "127.0.0.1(ad:1c:83:d0:91:ae)"),
        (bytes.fromhex("ff000000000102030405ffff01020304"), "1.2.3.4(0:1:2:3:4:5)"),
        # Only the first four bytes of the MAC form are tested (facts of the shipped classes).
        (bytes.fromhex("ff0000000001020304050000ffffffff"), "255.255.255.255(0:1:2:3:4:5)"),
        (IPV6, "2001:db8:0:0:0:0:0:2a"),
        (bytes(16), "0:0:0:0:0:0:0:0"),
        (b"\xff" * 16, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (bytes(10) + b"\xff\xfe" + bytes(4), "0:0:0:0:0:fffe:0:0"),
    ],
)
def test_addresses_as_the_shipped_classes_print_them(address: bytes, shown: str) -> None:
    assert address_text(address) == shown
    data = packet(source_ip=address, sequence=-2, source_port=-3, timestamp=-4)
    assert row_of(data)["source_ip_text"] == shown
    assert row_of(data)["sys_message_id"] == f"-2-{shown}--3--4"
    assert sys_message_id_text(62, shown, 49152, 1105948800061) == f"62-{shown}-49152-1105948800061"


def test_flag_letters_stand_in_bit_order_and_reserved_bits_have_none() -> None:
    assert decode(packet(bit_flags=0xFFFF)).flags == "QRPSALFTCBZIW"
    assert decode(packet(bit_flags=0xE000)).flags == ""
    assert decode(packet(bit_flags=0xE000)).bit_flags == 0xE000
    for bit, letter in enumerate("QRPSALFTCBZIW"):
        assert decode(packet(bit_flags=1 << bit)).flags == letter


def test_in_103_the_upper_flags_are_garbage_and_the_header_has_the_transaction() -> None:
    found = decode(
        packet(version=103, bit_flags=0xFF84, transaction_id=7, items=items(long_item(8, 99)))
    )
    assert (found.flags, found.transaction_id) == ("P", 7)
    assert decode(packet(version=103)).transaction_id == 0  # the field is there: it is zero


def test_one_property_helper_is_what_the_specification_says() -> None:
    assert one_property("ab", 3, -2) == bytes.fromhex("0002 6162 0003 fffe")
    assert ALL_ITEMS[:12] == bytes.fromhex("0008 0008 4000000000000001")
