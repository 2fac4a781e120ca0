"""Packets from plain Python: one form however they are written, refusals by the field's name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wireyard
from tests.formats.garbage import GARBAGE, PROPERTY_VALUES, TEXT, TIMES, blamed, field_names, long
from wireyard.errors import EncodeError
from wireyard.formats.gpacket.packet import LinkPacket
from wireyard.formats.gpacket.packet import Packet as GPacket
from wireyard.formats.jmq.packet import Packet, decode
from wireyard.formats.properties import Property
from wireyard.formats.rmp.packet import Message
from wireyard.formats.rmp.packet import decode as rmp_decode

# --- what people write ----------------------------------------------------------------------


def test_names_letters_texts_and_times_are_what_they_stand_for() -> None:
    when = datetime(2026, 7, 1, 12, 0, 0, 250_000, UTC)
    written = Packet(
        packet_type="TEXT_MESSAGE", bit_flags="PQ", timestamp=when, source_ip="10.0.0.7",
        unknown_items=[(77, b"x")], body="hé",
    )  # fmt: skip
    assert written == Packet(
        packet_type=1, bit_flags=5, timestamp=1782907200250, body=b"h\xc3\xa9",
        source_ip=bytes(10) + b"\xff\xff\x0a\0\0\x07", unknown_items=((77, b"x"),),
    )  # fmt: skip
    assert replace(written, bit_flags="QR").bit_flags == 3
    assert GPacket(packet_type="G_PING", bit_flags="Af").bit_flags == 0x8000_0001
    assert LinkPacket(packet_type="LINK_INIT").packet_type == 4
    assert Message(layer="RPC") == Message(layer=2)


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        ("192.168.1.17", "00000000000000000000ffffc0a80111"),
        ("127.0.0.1(ad:1c:83:d0:91:ae)", "ff000000ad1c83d091aeffff7f000001"),
        ("1.2.3.4(0:1:2:3:4:5)", "ff000000000102030405ffff01020304"),
        ("2001:db8:0:0:0:0:0:2a", "20010db800000000000000000000002a"),
        ("2001:db8::2a", "20010db800000000000000000000002a"),
        ("::", "00" * 16),
    ],
)
def test_addresses_are_texts_as_columns_show_them(text: str, octets: str) -> None:
    packet = Packet(packet_type=1, source_ip=text)
    assert packet.source_ip.hex() == octets
    assert replace(packet, source_ip=packet.source_ip_text) == packet


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "1.2.3.04", "1.2.3.4(1:2)", "fe80::1%lo", "host", "1.2.3.4(g:0:0:0:0:0)"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(EncodeError, match="source_ip"):
        Packet(packet_type=1, source_ip=text)


def test_types_of_properties_follow_from_values_or_are_said() -> None:
    packet = GPacket(
        packet_type=33,
        properties={
            "b": True, "i": 5, "l": 2**31, "d": 1.5, "s": "x", "o": b"\xac\xed\0\5t\0\1x",
            "short": Property("short", 5), "float": Property("float", 0.1),
        },
    )  # fmt: skip
    assert {name: one.type for name, one in (packet.properties or {}).items()} == {
        "b": "boolean", "i": "integer", "l": "long", "d": "double", "s": "string", "o": "object",
        "short": "short", "float": "float",
    }  # fmt: skip
    assert packet.properties is not None
    assert packet.properties["float"].value == 0.10000000149011612  # what 32 bits hold


@pytest.mark.parametrize(
    ("field", "properties"),
    [
        ("properties", [("a", 1)]),
        ("property name", {1: 1}),
        ("property a", {"a": None}),
        ("property a", {"a": 2**63}),
        ("property a", {"a": [1]}),
        ("property a", {"a": Property("byte", 128)}),
        ("property a", {"a": ("boolean", 1)}),
        ("property a", {"a": ("float", 1e300)}),
        ("property a", {"a": ("string", 5)}),
        ("type of property a", {"a": ("int", 5)}),
    ],
)
def test_properties_that_have_no_type(field: str, properties: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        wireyard.encode(Packet(packet_type=1, properties=properties))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "packet_type", "body"),
    [
        ("body", 2, "text"),
        ("body", 1, {"a": 1}),
        ("body", 3, [1]),
        ("body", 4, {"a": 1}),
        ("body", 4, {1, 2}),
        ("body", 1, "\ud800"),
        ("body name", 3, {1: 1}),
        ("body entry a", 3, {"a": object()}),
        ("body entry a", 3, {"a": ("character", "xy")}),
        ("type of body entry a", 3, {"a": ("object", b"x")}),
        ("body element 1", 4, [1, 2**63]),
    ],
)
def test_bodies_that_the_type_does_not_hold(field: str, packet_type: int, body: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        Packet(packet_type=packet_type, body=body)
    assert caught.value.field == field


def test_a_compressed_body_is_given_as_it_is() -> None:
    with pytest.raises(EncodeError, match="flag Z"):
        Packet(packet_type=1, bit_flags="Z", body="text")
    assert Packet(packet_type=1, bit_flags="Z", body=b"zlib").body == b"zlib"


def test_what_reads_back_as_the_same_is_the_same() -> None:
    assert Packet(packet_type=1, body="") == Packet(packet_type=1)
    assert Packet(packet_type=4, body=[]) == Packet(packet_type=4)
    assert Packet(packet_type=1, property_offset=76) == Packet(packet_type=1)
    assert Packet(version=103, packet_type=1).transaction_id == 0
    assert GPacket(packet_type=1, payload=b"") == GPacket(packet_type=1)


def test_repr_says_what_differs_and_can_be_read_back() -> None:
    packet = Packet(packet_type=1, bit_flags=0x8001, source_ip="10.0.0.7", destination="q")
    shown = (
        "Packet(packet_type='TEXT_MESSAGE', source_ip='10.0.0.7', bit_flags={}, destination='q')"
    )
    assert repr(packet) == shown.format(32769)  # a reserved bit has no letter
    assert repr(replace(packet, bit_flags="Q")) == shown.format("'Q'")
    assert eval(repr(packet), {"Packet": Packet}) == packet
    assert repr(Packet(packet_type=999, body=bytes(100))) == (
        "Packet(packet_type=999, body=<100 bytes>)"
    )
    assert repr(Packet(packet_type="AUTHENTICATE", body=b"secret")) == (
        "Packet(packet_type='AUTHENTICATE', body=<6 bytes>)"
    )


# --- good values ----------------------------------------------------------------------------

BODY_VALUES = st.one_of(
    st.none(),
    st.binary(max_size=9),
    PROPERTY_VALUES,
    st.tuples(st.just("character"), st.characters(max_codepoint=0xFFFF)),
)
BODIES = st.one_of(
    st.tuples(st.sampled_from([1, "TEXT_MESSAGE", 38]), TEXT),
    st.tuples(st.just("BYTES_MESSAGE"), st.binary(max_size=30)),
    st.tuples(st.just("MAP_MESSAGE"), st.dictionaries(TEXT, BODY_VALUES, max_size=4)),
    st.tuples(st.just("STREAM_MESSAGE"), st.lists(BODY_VALUES, max_size=4)),
    st.tuples(long(16), st.none() | st.binary(max_size=30)),
)
ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.tuples(st.ip_addresses(v=4), st.binary(min_size=6, max_size=6)).map(
        lambda pair: f"{pair[0]}({pair[1].hex(':')})"
    ),
    st.binary(min_size=16, max_size=16),
)
ITEM = st.none() | TEXT | st.just("a\0b")
PROPERTIES = st.none() | st.dictionaries(TEXT.filter(bool), PROPERTY_VALUES, max_size=4)


@st.composite
def jmq_packets(draw: st.DrawFn) -> Packet:
    version = draw(st.sampled_from([103, 200, 301]))
    kind: Any = draw(BODIES)
    packet_type, body = kind
    wide = 32 if version == 103 else 64
    flags = draw(long(7 if version == 103 else 16, signed=False) | st.just("QP") | st.just(""))
    values: dict[str, Any] = {
        "expiration": TIMES, "timestamp": TIMES, "source_ip": ADDRESSES, "source_port": long(32),
        "sequence": long(32), "priority": long(8), "encryption": long(8, signed=False),
        "consumer_id": long(wide), "transaction_id": st.none() | long(wide),
        "producer_id": st.none() | long(64), "delivery_time": st.none() | TIMES,
        "delivery_count": st.none() | long(32), "destination": ITEM,
        "reply_to": ITEM, "message_id": ITEM, "properties": PROPERTIES,
        "unknown_items": st.lists(st.tuples(st.integers(12, 65535), st.binary(max_size=5))),
    }  # fmt: skip
    said: Any = draw(st.fixed_dictionaries({}, optional=values))
    if isinstance(flags, int) and flags & 0x0400 and not isinstance(body, bytes):
        body = None  # The compressed body of a packet is bytes.
    return Packet(version=version, packet_type=packet_type, bit_flags=flags, body=body, **said)


@given(jmq_packets())
def test_a_jmq_packet_comes_back_equal(packet: Packet) -> None:
    again = decode(wireyard.encode(packet))
    assert again == packet and hash(again) == hash(packet)
    assert wireyard.encode(again) == wireyard.encode(packet)


@given(
    st.fixed_dictionaries(
        {"packet_type": long(16) | st.just("G_PING")},
        optional={
            "timestamp": TIMES, "sequence": long(64),
            "bit_flags": long(32, signed=False) | st.just("Af"),
            "header_order": st.sampled_from(["shipped", "documented"]), "properties": PROPERTIES,
            "payload": st.none() | st.binary(max_size=30),
        },
    )
)  # fmt: skip
def test_a_gpacket_comes_back_equal(said: dict[str, Any]) -> None:
    packet = GPacket(**said)
    assert wireyard.decode(wireyard.encode(packet), "gpacket") == packet


NUMBER = long(16, signed=False)
SEGMENTS = st.tuples(NUMBER, NUMBER.filter(bool), NUMBER).map(
    lambda three: dict(
        zip(
            ("message_number", "packet_number", "packet_count"),
            (three[0], min(three[1:]) or 1, max(three[1:])),
            strict=True,
        )
    )
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "layer": st.integers(0, 63) | st.just("RPC"), "domain": NUMBER, "client": NUMBER,
            "reply_requested": st.booleans(), "data": st.binary(max_size=30),
        },
    ),
    st.just({}) | SEGMENTS,
    st.just({}) | st.just({"reply_message_number": 7, "reply_source": "10.0.0.7:7001"}),
)  # fmt: skip
def test_an_rmp_message_comes_back_equal(
    plain: dict[str, Any], segment: dict[str, Any], reply: dict[str, Any]
) -> None:
    message = Message(**plain, **segment, **reply)
    assert rmp_decode(wireyard.encode(message)) == message


# --- bad values -----------------------------------------------------------------------------

FULL = {
    "jmq": Packet(
        packet_type=3, destination="q", reply_to="r", transaction_id=1, delivery_count=2,
        unknown_items=[(77, b"x")], properties={"n": 1}, body={"n": 1},
    ),
    "jmq 103": Packet(version=103, packet_type=1, properties={"n": 1}, body="text"),
    "gpacket": GPacket(packet_type=1, properties={"n": 1}, payload=b"x"),
    "gpacket_link": LinkPacket(packet_type="PING", payload=b"x"),
    "rmp": Message(
        message_number=1, packet_number=1, packet_count=2, domain=3, client=4,
        reply_message_number=5, reply_source="1.2.3.4:5", data=b"x",
    ),
}  # fmt: skip


def dialect(packet: Any) -> str:
    """Return the dialect of a packet, which nothing on the wire says."""
    if getattr(packet, "short_objects", False):
        return "/short-object"
    if getattr(packet, "timestamps", None) is not None:
        return "/timestamps"
    framed = getattr(packet, "framed_bytes", None) is not None
    words = ["framed"] * framed + ["list-order"] * getattr(packet, "list_order", False)
    return "/" + "-".join(words) if words else ""


@pytest.mark.parametrize("label", FULL)
@given(data=st.data(), value=GARBAGE)
def test_garbage_in_any_field_is_an_encode_error_with_its_name(
    label: str, data: st.DataObject, value: Any
) -> None:
    packet: Any = FULL[label]
    name = data.draw(st.sampled_from(field_names(type(packet))))
    try:
        made = replace(packet, **{name: value})
        encoded = wireyard.encode(made)
    except EncodeError as error:
        assert blamed(error, name), f"{error.field} is blamed for {name}"
        assert "\n" not in str(error)
    else:
        # It was a good value after all.
        if getattr(made, "more_follows", False):
            encoded += wireyard.encode(packet)
        again = wireyard.decode(encoded, label.partition(" ")[0].partition("_")[0] + dialect(made))
        assert (again[0] if isinstance(again, tuple) else again) == made
        assert repr(made).startswith(f"{type(made).__name__}(")
