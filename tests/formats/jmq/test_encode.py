"""JMQ packets to bytes: what is written, what is refused, and that anything comes back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make import item, items, long_item, packet, section
from wireyard.errors import EncodeError
from wireyard.formats.jmq.packet import Packet, decode, encode, packet_of, read_row
from wireyard.formats.properties import Properties, Property


def test_defaults_are_those_of_an_untouched_shipped_packet() -> None:
    assert encode(Packet(packet_type=20)) == packet(
        packet_type=20, source_ip=bytes(10) + b"\xff\xff" + bytes(4), timestamp=0, sequence=0,
        source_port=0,
    )  # fmt: skip


def test_a_list_is_there_when_it_has_items_and_always_in_103() -> None:
    for version in (200, 301):
        assert decode(encode(Packet(version=version, packet_type=1))).property_offset == 72
    old = encode(Packet(version=103, packet_type=1, transaction_id=5))
    assert old[56:60] == b"\0\0\0\x4c" and old[72:76] == bytes(4)
    for size in range(9):
        data = encode(Packet(packet_type=1, destination="d" * size, body=b"!"))
        offset = decode(data).property_offset
        assert offset is not None and offset % 4 == 0
        assert 0 <= offset - (72 + 4 + size + 2) < 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 300),
        ("packet_type", 2**15),
        ("packet_type", "1"),
        ("expiration", 2**63),
        ("timestamp", None),
        ("source_ip", b"\0" * 15),
        ("source_ip", b"\0" * 17),
        ("source_ip", "1.2.3.400"),
        ("source_port", 2**31),
        ("sequence", -(2**31) - 1),
        ("priority", 128),
        ("encryption", 1.0),
        ("encryption", -1),
        ("encryption", 256),
        ("bit_flags", 0x10000),
        ("bit_flags", -1),
        ("consumer_id", 2**63),
        ("transaction_id", 2**63),
        ("delivery_count", 2**31),
        ("delivery_time", "now"),
        ("destination", "\ud800"),
        ("destination", b"bytes"),
        ("message_type", 5),
        ("reply_to", "x" * 65536),
        ("correlation_id", "ü" * 32768),
        ("body", "\ud800"),
    ],
)
def test_a_value_without_a_form_on_the_wire_is_refused_by_name(field: str, value: object) -> None:
    given: dict[str, Any] = {"packet_type": 1, field: value}
    with pytest.raises(EncodeError) as caught:
        encode(Packet(**given))
    assert caught.value.field == field
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("field", ["transaction_id", "consumer_id"])
def test_103_has_32_bits_for_its_ids(field: str) -> None:
    given: dict[str, Any] = {"version": 103, "packet_type": 1, field: 2**31}
    with pytest.raises(EncodeError) as caught:
        encode(Packet(**given))
    assert caught.value.field == field


def test_flags_that_103_does_not_have_come_back_but_cannot_be_built() -> None:
    data = packet(version=103, bit_flags=0xAB85)
    found = decode(data)
    assert (found.bit_flags, encode(found)) == (5, data)
    assert encode(dataclasses.replace(found, bit_flags=4)) == packet(version=103, bit_flags=4)
    with pytest.raises(EncodeError, match="'bit_flags' cannot be 43781"):
        encode(dataclasses.replace(found, bit_flags=0xAB05))


def test_layout_makes_no_other_packet_but_short_objects_do() -> None:
    data = packet(items=items(item(1, "q"), long_item(9, 7)))
    found = decode(data)
    assert found.raw_header == data and encode(found) == data
    tidy = dataclasses.replace(found, raw_header=None, property_offset=None)
    assert tidy == found and repr(tidy) == repr(found) and encode(tidy) != data
    short = Packet(packet_type=1, properties={"o": b"\1\2"}, short_objects=True)
    assert decode(encode(short), 1) == short != dataclasses.replace(short, short_objects=False)


@pytest.mark.parametrize("code", [0, 1, 11, -1, 65536])
def test_an_unknown_item_has_a_type_that_is_unknown(code: int) -> None:
    with pytest.raises(EncodeError):
        encode(Packet(packet_type=1, unknown_items=((code, b""),)))


def test_packets_do_not_change() -> None:
    found: Any = decode(packet())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.priority = 1
    assert found.__slots__


def test_packets_with_the_same_bytes_are_equal_even_with_nan() -> None:
    data = packet(properties=section(("n", 7, math.nan)))
    assert decode(data) == decode(data)
    assert hash(decode(data)) == hash(decode(data))


def test_a_packet_without_a_type_is_refused() -> None:
    with pytest.raises(EncodeError):
        packet_of({"destination": "q"})


@pytest.mark.parametrize("entry", [Property("integer", "x"), Property("whole", 1)])
def test_a_property_of_a_row_is_checked_before_it_is_compared_with_the_section(
    entry: Property,
) -> None:
    row = {"packet_type": 1, "properties": {"n": entry}, "raw_properties": section(("n", 4, 1))}
    with pytest.raises(EncodeError, match="property n"):
        packet_of(row)


# --- any packet -----------------------------------------------------------------------------

_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_item_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_any_text = st.text(st.characters(), max_size=40)
_values = st.one_of(
    st.booleans().map(lambda value: ("boolean", value)),
    st.integers(-128, 127).map(lambda value: ("byte", value)),
    st.integers(-(2**15), 2**15 - 1).map(lambda value: ("short", value)),
    _i32.map(lambda value: ("integer", value)),
    _i64.map(lambda value: ("long", value)),
    st.floats(width=32).map(lambda value: ("float", value)),
    st.floats().map(lambda value: ("double", value)),
    _any_text.map(lambda value: ("string", value)),
)
_packets = st.builds(
    Packet,
    version=st.sampled_from((103, 200, 301)),
    packet_type=st.integers(-(2**15), 2**15 - 1),
    expiration=_i64,
    timestamp=_i64,
    source_ip=st.binary(min_size=16, max_size=16),
    source_port=_i32,
    sequence=_i32,
    priority=st.integers(-128, 127),
    encryption=st.integers(0, 255),
    bit_flags=st.integers(0, 127),
    consumer_id=_i32,
    transaction_id=st.none() | _i32,
    producer_id=st.none() | _i64,
    delivery_time=st.none() | _i64,
    delivery_count=st.none() | _i32,
    destination=st.none() | _item_text,
    message_id=st.none() | _item_text,
    correlation_id=st.none() | _item_text,
    reply_to=st.none() | _item_text,
    message_type=st.none() | _item_text,
    destination_class=st.none() | _item_text,
    reply_to_class=st.none() | _item_text,
    unknown_items=st.lists(
        st.tuples(st.integers(12, 65535), st.binary(max_size=20)), max_size=3
    ).map(tuple),
    properties=st.none()
    | st.dictionaries(_any_text, _values, max_size=6).map(
        lambda entries: Properties({name: Property(*entry) for name, entry in entries.items()})
    ),
    body=st.none() | st.binary(min_size=1, max_size=60),
)


@given(_packets)
def test_any_packet_comes_back(sent: Packet) -> None:
    data = encode(sent)
    found = decode(data)
    expected = dataclasses.replace(sent, property_offset=found.property_offset)
    if sent.version == 103 and sent.transaction_id is None:
        expected = dataclasses.replace(expected, transaction_id=0)
    assert found == expected
    assert encode(found) == data


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_a_reported_error(tail: bytes) -> None:
    for version in (103, 200, 301):
        data = packet(version=version)[:52] + tail
        data = data[:8] + len(data).to_bytes(4, "big") + data[12:]
        row, error = read_row(data)
        assert isinstance(row, dict)
        if error is None:
            assert encode(decode(data)) == data
        else:
            assert 0 <= error.offset <= len(data)
            with pytest.raises(type(error)):
                decode(data)
