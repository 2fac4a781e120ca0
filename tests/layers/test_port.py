"""JMQ packets as GPackets, and back: nothing is lost, and what cannot be is refused."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest

from tests.formats.jmq.recorded import packets, recorded_packets, vectors
from tests.formats.jmq.subject import SUBJECT
from tests.golden import GOLDEN
from tests.make import random_packet, variety
from tests.mutations import mutate_packet
from tests.readings import assert_one_reading
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.gpacket import packet as gpacket
from wireyard.formats.gpacket.payload import nested_packets, payload_value
from wireyard.formats.jmq import packet as jmq
from wireyard.formats.jmq.reading import read_properties
from wireyard.formats.properties import Properties, Property, encode_properties
from wireyard.layers.port import TERSE, to_gpacket, to_jmq

MESSAGE = jmq.Packet(packet_type=1, timestamp=5, sequence=6, bit_flags=0x15, body=b"hi")
CONTROL = jmq.Packet(packet_type=54, timestamp=5, sequence=6, bit_flags=0x10, consumer_id=3)
ENTRIES = {"JMQStatus": Property("integer", 200), "JMQReason": Property("string", "no")}


def ported(packet: jmq.Packet) -> jmq.Packet:
    """Port a packet, send the GPacket over a wire, and port it back."""
    return to_jmq(_received(to_gpacket(packet)))


def _received(packet: gpacket.Packet) -> gpacket.Packet:
    found = gpacket.decode(gpacket.encode(packet))
    assert found == packet
    assert isinstance(found, gpacket.Packet)
    return found


def check(data: bytes) -> str:
    """Assert that a packet comes back as it was; say what kind it was."""
    try:
        packet = jmq.decode(data)
    except DecodeError:
        return "malformed"
    again = ported(packet)
    assert again == packet
    assert jmq.encode(again) == data
    return "canonical" if packet.raw_header is None else "well-formed"


# --- what goes where ------------------------------------------------------------------------


def test_a_message_has_its_properties_and_body_in_the_payload() -> None:
    packet = replace(MESSAGE, destination="q0", expiration=9, properties=Properties(ENTRIES))
    section = encode_properties(Properties(ENTRIES))
    found = to_gpacket(packet)
    assert found == gpacket.Packet(
        packet_type=1,
        timestamp=5,
        sequence=6,
        bit_flags=0x15,
        properties=Properties(
            {
                ".v": Property("short", 301),
                ".e": Property("long", 9),
                ".d": Property("string", "q0"),
                ".n": Property("integer", len(section)),
            }
        ),
        payload=section + b"hi",
    )


def test_a_control_packet_keeps_its_properties() -> None:
    packet = replace(CONTROL, properties=Properties(ENTRIES), body=b"body")
    found = to_gpacket(packet)
    assert found.properties == {
        ".v": Property("short", 301), ".c": Property("long", 3), **ENTRIES,
    }  # fmt: skip
    assert found.payload == b"body"


def test_what_a_new_packet_has_is_left_out() -> None:
    assert to_gpacket(jmq.Packet(packet_type=20)).properties == {".v": Property("short", 301)}


def test_every_field_has_its_place() -> None:
    """What the GPacket header has not is a terse property, a section or the payload."""
    elsewhere = {"packet_type", "timestamp", "sequence", "bit_flags", "properties", "body"}
    named = [terse.field for terse in TERSE if terse.field]
    assert set(named) | elsewhere == {item.name for item in fields(jmq.Packet)}
    assert not set(named) & elsewhere
    assert len({terse.name for terse in TERSE}) == len(TERSE)


def test_no_terse_name_is_a_java_identifier() -> None:
    for terse in TERSE:
        assert terse.name.startswith(".") and not terse.name.startswith("..")
        assert len(terse.name) == 2 and terse.doc


# --- shown as what it is --------------------------------------------------------------------


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_a_ported_packet_has_the_names_of_jmq(data: bytes) -> None:
    packet = jmq.decode(data)
    ported = to_gpacket(packet)
    assert (ported.packet_type_name, ported.flags) == (packet.packet_type_name, packet.flags)
    stream = gpacket.encode(ported) + gpacket.encode(gpacket.Packet(packet_type=1))
    table = assert_one_reading(stream, Random(1), format="gpacket")
    names = [packet.packet_type_name, "G_MESSAGE_DATA"]
    assert table["packet_type_name"].to_pylist() == names
    assert table["flags"].to_pylist() == [packet.flags, ""]
    row, _ = gpacket.read_row(gpacket.encode(ported))
    assert payload_value(row) == ported.payload
    assert nested_packets(gpacket.encode(ported)) == ()


# --- nothing is lost ------------------------------------------------------------------------


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_every_version_and_section_comes_back(data: bytes) -> None:
    assert check(data) in ("canonical", "well-formed")


@pytest.mark.parametrize("name", GOLDEN)
def test_handmade_packets_come_back(name: str) -> None:
    assert check(GOLDEN[name].data) != "malformed"


@pytest.mark.parametrize("seed", range(4))
def test_random_packets_come_back_damaged_or_not(seed: int) -> None:
    rng = Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(600):
        data = random_packet(rng)
        seen[check(data)] += 1
        seen[check(mutate_packet(data, rng, SUBJECT))] += 1
    assert min(seen["canonical"], seen["well-formed"], seen["malformed"]) > 50


@pytest.mark.parametrize("version", [103, 200, 301])
@pytest.mark.parametrize("packet_type", [1, 54])
@pytest.mark.parametrize(
    "properties",
    [
        None,
        Properties({}),
        Properties(ENTRIES),
        Properties(
            {".v": Property("byte", 1), "..": Property("byte", 2), ".": Property("byte", 3)}
        ),
        Properties({"s": Property("string", "😀" * 20000)}),
        Properties({"n": Property("double", float("nan"))}),
    ],
    ids=["none", "empty", "some", "dots", "long", "nan"],
)
def test_properties_come_back(
    version: int, packet_type: int, properties: Properties | None
) -> None:
    packet = jmq.Packet(version=version, packet_type=packet_type, properties=properties)
    if version == 301 and properties and "s" in properties:
        with pytest.raises(EncodeError):
            jmq.encode(packet)  # no marshalled section can hold it
        return
    again = ported(packet)
    assert again == packet
    assert jmq.encode(again) == jmq.encode(packet)


@pytest.mark.parametrize("packet_type", [1, 54])
@pytest.mark.parametrize(
    "section",
    [
        "00000001 00000000",
        "00000001 00000000 736c61636b",  # slack
        "00000001 00000002 0001 61 0002 01 0001 61 0002 02",  # one name twice
        "00000001 00000001 0001 61 0001 05",  # true as 5
        "00000001 00000001 0001 61 0006 7fc00001",  # another NaN
        "00000001 00000001 0001 61 0008 0004 f09f9880",  # true UTF-8
        "00000001 00000001 0001 61 0009 00000003 616263",
    ],
)
def test_a_section_comes_back_byte_for_byte(packet_type: int, section: str) -> None:
    data = bytes.fromhex(section)
    packet = jmq.Packet(
        packet_type=packet_type, properties=read_properties(301, data, 72), body=b"b"
    )
    again = ported(packet)
    assert again == packet
    assert jmq.encode(again) == jmq.encode(packet)
    assert data in jmq.encode(again)


def test_long_and_odd_text_comes_back() -> None:
    packet = replace(
        MESSAGE,
        destination="😀" * 16000,
        reply_to="x" * 65535,
        message_type="a\0b\ud800",
        body=None,
    )
    assert ported(packet) == packet


def test_unknown_items_come_back_in_order() -> None:
    items = ((77, b"\0\xff"), (65535, b""), (77, b"again"), (12, b"x" * 65535))
    packet = replace(MESSAGE, unknown_items=items, property_offset=1000)
    assert ported(packet) == packet


def test_an_empty_body_is_none() -> None:
    assert ported(replace(MESSAGE, body=b"")).body is None


# --- what is no ported packet ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ({}, "property .v"),
        ({".v": Property("integer", 301)}, "property .v"),
        ({".zz": Property("byte", 1)}, "property .zz"),
        ({".a": Property("string", "not hex")}, "property .a"),
        ({".d": Property("long", 1)}, "property .d"),
        ({".d": Property("object", b"no String")}, "property .d"),
        ({".d": Property("object", b"\xac\xed\0\5\x7c" + bytes(7) + b"\x09x")}, "property .d"),
        ({".u": Property("object", b"no byte[]")}, "property .u"),
        ({".n": Property("integer", 3)}, "property .n"),
        ({".n": Property("integer", -1)}, "property .n"),
        ({"own": Property("integer", 1)}, "properties"),
    ],
)  # fmt: skip
def test_other_gpackets_are_refused(entries: dict[str, Property], field: str) -> None:
    version = {} if ".v" in entries or not entries else {".v": Property("short", 301)}
    properties = Properties({**version, **entries})
    with pytest.raises(EncodeError) as caught:
        to_jmq(gpacket.Packet(packet_type=1, properties=properties, payload=b"hi"))
    assert caught.value.field == field


def test_an_item_that_does_not_fit_is_refused() -> None:
    items = bytes.fromhex("aced0005757200025b42acf317f8060854e0020000787000000006 0009 0005 6162")
    properties = Properties({".v": Property("short", 301), ".u": Property("object", items)})
    with pytest.raises(EncodeError, match="item 9"):
        to_jmq(gpacket.Packet(packet_type=1, properties=properties))


def test_properties_of_another_version_are_refused() -> None:
    properties = Properties({".v": Property("short", 200), ".n": Property("integer", 8)})
    payload = struct.pack(">ii", 1, 0)
    with pytest.raises(DecodeError):
        to_jmq(gpacket.Packet(packet_type=1, properties=properties, payload=payload))


def test_a_packet_of_wrong_values_is_refused() -> None:
    for packet in (
        replace(MESSAGE, priority=2**31),
        replace(MESSAGE, destination=5),  # type: ignore[arg-type]
        replace(MESSAGE, unknown_items=((1 << 16, b""),)),
    ):
        with pytest.raises(EncodeError):
            to_gpacket(packet)


# --- what was recorded ----------------------------------------------------------------------


def test_every_vector_comes_back(shared: Path) -> None:
    seen = Counter(check(data) for _, data in vectors(shared))
    assert seen["canonical"] > 80


def test_every_recorded_packet_comes_back(shared: Path) -> None:
    seen = Counter(check(data) for data in recorded_packets(shared))
    assert set(seen) == {"canonical"}
    assert seen["canonical"] > 7500


def test_the_stream_of_the_shipped_writer_comes_back(shared: Path) -> None:
    seen = Counter(check(data) for data in packets(shared / "streams/jmq_5000.stream"))
    assert seen == {"canonical": 5000}
