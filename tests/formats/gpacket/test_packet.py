"""One packet as a value and as a row: golden bytes, every error, and back."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.formats.gpacket.make import gpacket, link, random_packet, variety
from tests.formats.gpacket.subject import SUBJECT
from tests.make import section
from tests.mutations import mutate_packet
from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.formats.gpacket.layout import COLUMNS, FLAGS, HEADERS, LINK_TYPES, PACKET_TYPES
from wireyard.formats.gpacket.packet import (
    LinkPacket,
    Packet,
    decode,
    encode,
    packet_of,
    read_row,
)
from wireyard.formats.properties import Properties, Property

LOCK_SECTIONS = (
    "00000001 00000002"  # two properties
    "0001 49 0008 0008 71756575653a7130"  # I, string, queue:q0
    "0001 58 0005 0000000000000005"  # X, long, 5
    "686921"  # payload hi!
)
LOCK = bytes.fromhex(
    "015e 000b 0000004b 7fffe3c2"  # version 350, G_LOCK, size 75, magic
    "00000024"  # property size 36
    "000001017faf7401 0000000100000001"  # timestamp, sequence over 32 bits
    "80000003"  # flags A, B and f
    f"{LOCK_SECTIONS}"
)
DOCUMENTED_LOCK = bytes.fromhex(
    "7fffe3c2 015e 000b 0000004b"  # the magic first, as the figure has it
    f"00000024 000001017faf7401 0000000100000001 80000003 {LOCK_SECTIONS}"
)
LOCK_ROW = {
    "version": 350,
    "packet_type": 11,
    "packet_type_name": "G_LOCK",
    "size": 75,
    "magic": 2147476418,
    "property_size": 36,
    "timestamp": 1105948800001,
    "sequence": 2**32 + 1,
    "bit_flags": 0x80000003,
    "flags": "ABf",
    "properties": {"I": ("string", "queue:q0"), "X": ("long", 5)},
    "payload_size": 3,
    "payload": b"hi!",
}
PING = bytes.fromhex("0064 0007 00000012 ffffffff 00000001 0102")


@pytest.mark.parametrize(
    ("data", "order"), [(LOCK, "shipped"), (DOCUMENTED_LOCK, "documented")], ids=("code", "figure")
)
def test_golden_packet_in_both_orders(data: bytes, order: str) -> None:
    row, error = read_row(data)
    assert error is None
    assert row == {**LOCK_ROW, "header_order": order}
    packet = decode(data)
    assert isinstance(packet, Packet)
    assert (packet.header_order, packet.flags, packet.packet_type_name) == (order, "ABf", "G_LOCK")
    assert encode(packet) == data
    assert encode(packet_of(row)) == data


def test_golden_link_packet() -> None:
    row, error = read_row(PING)
    assert error is None
    assert row == {
        "format": "gpacket_link",
        "version": 100,
        "packet_type": 7,
        "packet_type_name": "PING",
        "size": 18,
        "destination_id": -1,
        "bit_flags": 1,
        "payload_size": 2,
        "payload": b"\1\2",
    }
    packet = decode(PING)
    assert packet == LinkPacket(packet_type=7, destination_id=-1, bit_flags=1, payload=b"\1\2")
    assert encode(packet) == encode(packet_of(row)) == PING


def test_a_row_of_json_lines_says_the_flags_of_a_link_packet_as_a_number() -> None:
    row = {"version": 100, "packet_type": 7, "destination_id": -1, "flags": 1, "payload": b"\1\2"}
    assert encode(packet_of(row)) == PING


def test_a_row_has_no_other_names_than_the_columns() -> None:
    names = {column.name for column in COLUMNS}
    for data in variety():
        assert read_row(data)[0].keys() - {"format"} <= names


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_well_formed_packets_come_back(data: bytes) -> None:
    row, error = read_row(data)
    assert error is None
    packet = decode(data)
    assert packet == packet_of(row)
    assert encode(packet) == data == encode(packet_of(row))


def test_random_packets_come_back() -> None:
    rng = Random(1)
    for _ in range(500):
        data = random_packet(rng)
        assert encode(decode(data)) == data


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_every_shorter_prefix_is_truncated(data: bytes) -> None:
    for size in {*range(min(len(data), 300)), len(data) - 1}:
        with pytest.raises(Truncated):
            decode(data[:size])
        assert isinstance(read_row(data[:size])[1], Truncated)


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_trailing_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode(data + b"\0")
    assert caught.value.field == "size"


@pytest.mark.parametrize(
    ("data", "kind", "code", "field", "offset"),
    [
        (gpacket(magic=b"\x7f\xff\xe3\xc3"), Malformed, "bad_magic", "magic", 8),
        (gpacket(version=351), UnsupportedVersion, "unsupported_version", "version", 0),
        (gpacket(version=351, documented=True), UnsupportedVersion, "unsupported_version",
         "version", 4),
        (gpacket(version=100), UnsupportedVersion, "unsupported_version", "version", 0),
        (gpacket(size=10), Malformed, "bad_size", "size", 4),
        (gpacket(size=-1), Malformed, "bad_size", "size", 4),
        (gpacket(size=35, documented=True), Malformed, "bad_size", "size", 8),
        (gpacket(size=37), Truncated, "truncated", "packet", 0),
        (gpacket(property_size=-4, payload=b"1234"), Malformed, "malformed", "property size", 12),
        (gpacket(property_size=5, payload=b"1234"), Malformed, "malformed", "property size", 12),
        (gpacket(property_size=4, payload=b"1234"), Malformed, "malformed", "property version", 36),
        (gpacket(properties=section(("a", 12, b"?"))), Malformed, "malformed", "property type", 47),
        (gpacket(properties=section(count=1)), DecodeError, "limit_exceeded", "property count", 40),
        (link(size=15), Malformed, "bad_size", "size", 4),
        (link(4, bytes(65521)), Malformed, "malformed", "size", 4),
        (link(version=101), Malformed, "bad_magic", "magic", 8),
    ],
)  # fmt: skip
def test_each_rule_has_its_error(
    data: bytes, kind: type[DecodeError], code: str, field: str, offset: int
) -> None:
    with pytest.raises(kind) as caught:
        decode(data)
    error = caught.value
    assert (error.format, error.code, error.field, error.offset) == ("gpacket", code, field, offset)
    _, refusal = read_row(data)
    assert refusal is not None and refusal.row() == error.row()


def test_a_malformed_packet_keeps_what_could_be_read() -> None:
    row, error = read_row(gpacket(properties=section(("a", 12, b"?")), payload=b"x", bit_flags=3))
    assert error is not None
    assert (row["sequence"], row["flags"], row["payload"]) == (1, "AB", b"x")
    assert "properties" not in row
    row, _ = read_row(gpacket(version=351, packet_type=33))
    assert (row["version"], row["packet_type_name"], row["size"]) == (351, "G_PING", 36)
    assert (row["header_order"], row["magic"]) == ("shipped", 2147476418)
    assert "sequence" not in row


def test_the_magic_decides_whatever_the_version_says() -> None:
    row, error = read_row(gpacket(version=100, packet_type=4))
    assert row["header_order"] == "shipped" and "format" not in row
    assert isinstance(error, UnsupportedVersion)
    row, _ = read_row(gpacket(documented=True, size=0x7FFFE3C2))
    assert row["header_order"] == "documented"


def test_no_properties_and_none_in_a_table_stay_different() -> None:
    assert decode(gpacket()).properties is None  # type: ignore[union-attr]
    assert decode(gpacket(properties=section())).properties == {}  # type: ignore[union-attr]


def test_what_stands_behind_the_properties_is_kept() -> None:
    data = gpacket(properties=section(("a", 4, 1)) + b"slack", payload=b"p")
    assert encode(decode(data)) == data


def test_flags_have_their_bits() -> None:
    assert (FLAGS["A"], FLAGS["Z"], FLAGS["a"], FLAGS["f"]) == (1, 0x2000000, 0x4000000, 2**31)
    assert len(FLAGS) == 32
    assert Packet(packet_type=1, bit_flags=0xFFFFFFFF).flags == "".join(FLAGS)


def test_types_have_names() -> None:
    assert LinkPacket(packet_type=9).packet_type_name == LINK_TYPES[9] == "BROKER_INFO_REPLY"
    assert LinkPacket(packet_type=8).packet_type_name is None
    assert Packet(packet_type=9).packet_type_name == PACKET_TYPES[9] == "G_INTEREST_UPDATE"
    assert Packet(packet_type=42).packet_type_name is None


def test_both_orders_have_the_same_fields() -> None:
    one, other = (
        {field.name: field.width for field in layout.fields} for layout in HEADERS.values()
    )
    assert one == other
    assert {layout.size for layout in HEADERS.values()} == {36}


PACKET = Packet(packet_type=1)
LINK = LinkPacket(packet_type=1)


@pytest.mark.parametrize(
    ("packet", "changes", "field"),
    [
        (PACKET, {"packet_type": 32768}, "packet_type"),
        (PACKET, {"packet_type": "PING"}, "packet_type"),
        (PACKET, {"version": 351}, "version"),
        (PACKET, {"header_order": "other"}, "header_order"),
        (PACKET, {"timestamp": 2**63}, "timestamp"),
        (PACKET, {"sequence": "1"}, "sequence"),
        (PACKET, {"bit_flags": -1}, "bit_flags"),
        (PACKET, {"bit_flags": 2**32}, "bit_flags"),
        (PACKET, {"bit_flags": "g"}, "bit_flags"),
        (PACKET, {"payload": "text"}, "payload"),
        (PACKET, {"properties": Properties({"a": Property("byte", 200)})}, "property a"),
        (LINK, {"payload": bytes(65521)}, "payload"),
        (LINK, {"destination_id": 2**31}, "destination_id"),
    ],
)
def test_what_does_not_fit_is_refused(
    packet: Packet | LinkPacket, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(replace(packet, **changes))
    assert caught.value.field == field


def test_a_row_without_a_type_is_no_packet() -> None:
    for row in ({}, {"version": 100}, {"packet_type": None}):
        with pytest.raises(EncodeError, match="packet_type"):
            packet_of(row)


def test_properties_of_a_row_may_come_from_json_or_columns() -> None:
    for value in (5, "5"):
        row: dict[str, Any] = {
            "packet_type": 1,
            "properties": {"n": {"type": "long", "value": value}},
        }
        assert packet_of(row).properties == {"n": Property("long", 5)}  # type: ignore[union-attr]


def test_a_damaged_packet_is_read_or_refused_by_both_readers() -> None:
    rng = Random(2)
    refused = 0
    for _ in range(5000):
        data = mutate_packet(random_packet(rng), rng, SUBJECT)
        row, error = read_row(data)
        try:
            packet = decode(data)
        except DecodeError as found:
            assert error is not None and error.row() == found.row()
            refused += 1
        else:
            assert error is None
            assert encode(packet) == data
            assert packet_of(row) == packet
    assert refused > 500
