from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.jmq.recorded import recorded_packets, vectors
from tests.make import item, items, packet
from wireyard.errors import DecodeError, EncodeError, UsageError
from wireyard.formats.jmq.layout import FLAGS, HEADERS, VERSIONS
from wireyard.formats.jmq.packet import Packet, decode, encode, read_row
from wireyard.formats.jmq.router import ROUTER_FLAGS, RouterView
from wireyard.formats.properties import Properties, Property

PACKET = Packet(
    packet_type=1,
    timestamp=1105948800061,
    source_port=49152,
    sequence=62,
    bit_flags=FLAGS["Q"] | FLAGS["P"] | FLAGS["F"],
    consumer_id=7,
    producer_id=9,
    destination="orders",
    correlation_id="c-1",
    properties=Properties({"n": Property("integer", 5)}),
    body=b"a body",
)
FIELDS: dict[str, Any] = {
    "consumer_id": 0x01020304,
    "timestamp": 0x0102030405060708,
    "source_ip": bytes(range(1, 17)),
    "source_port": 0x01020304,
    "sequence": 0x01020304,
}


def wire(version: int = 301, **values: Any) -> bytes:
    return encode(replace(PACKET, version=version, **values))


def sent(view: RouterView) -> bytes:
    head, rest = view.parts()
    return head + rest


def changed_bytes(before: bytes, after: bytes) -> set[int]:
    assert len(before) == len(after)
    return {at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_changed_is_sent_as_it_came(version: int) -> None:
    data = wire(version)
    view = RouterView(data)
    assert sent(view) == data
    assert view.header_bytes == data[:72]
    assert view.version == version


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_changes_its_own_bytes_and_no_other(version: int, name: str) -> None:
    data = wire(version)
    after = sent(RouterView(data).replace(**{name: FIELDS[name]}))
    field = HEADERS[version][name]
    assert changed_bytes(data, after) <= set(range(field.offset, field.stop))
    assert getattr(decode(after), name) == FIELDS[name]


@pytest.mark.parametrize(
    ("version", "name", "on"),
    [
        (version, name, on)
        for version in VERSIONS
        for name, bit in ROUTER_FLAGS.items()
        for on in (True, False)
        if version != 103 or bit <= 0x7F
    ],
)
def test_a_flag_changes_its_own_bit_and_no_other(version: int, name: str, on: bool) -> None:
    data = wire(version)
    after = sent(RouterView(data).replace(**{name: on}))
    field = HEADERS[version]["bit_flags"]
    assert changed_bytes(data, after) <= {field.offset, field.offset + 1}
    kept = PACKET.bit_flags & ~ROUTER_FLAGS[name]
    assert decode(after).bit_flags == (kept | ROUTER_FLAGS[name] if on else kept)


def test_all_at_once() -> None:
    data = wire()
    view = RouterView(data).replace(
        consumer_id=-1, redelivered=True, connection_paused=False, consumer_paused=True, last=True
    )
    packet = decode(sent(view))
    assert packet == replace(
        decode(data), consumer_id=-1, bit_flags=sum(FLAGS[letter] for letter in "QPRCL")
    )
    assert view.header()["consumer_id"] == -1


def test_a_changed_view_leaves_the_one_it_came_from() -> None:
    data = wire()
    view = RouterView(data)
    first, second = view.replace(consumer_id=1), view.replace(redelivered=True)
    assert sent(view) == data
    assert decode(sent(first)).bit_flags == PACKET.bit_flags
    assert decode(sent(second)).consumer_id == 7
    with pytest.raises(AttributeError):
        view.head = b""  # type: ignore[misc]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_follows_the_header_is_not_copied(kind: Any) -> None:
    data = kind(wire())
    head, rest = RouterView(data).replace(consumer_id=1, delivery_count=1).parts()
    assert rest.obj is (data.obj if kind is memoryview else data)
    assert rest.readonly
    assert head[72:] == bytes.fromhex("000b 0004 00000001")
    assert bytes(rest) == wire()[72:]


# The delivery count.


@pytest.mark.parametrize("version", VERSIONS)
def test_a_delivery_count_is_put_in_front_of_the_items(version: int) -> None:
    data = wire(version)
    after = sent(RouterView(data).replace(delivery_count=3))
    packet = decode(data)
    assert packet.property_offset is not None
    assert len(after) == len(data) + 8
    # Other items stand in front of it where they are written.
    assert decode(after).raw_header == after[: packet.property_offset + 8]
    assert replace(decode(after), raw_header=None) == replace(
        packet, delivery_count=3, property_offset=packet.property_offset + 8
    )


def test_a_packet_without_items_gets_a_list_with_an_end() -> None:
    data = encode(Packet(packet_type=6, body=b"x", property_offset=72))
    assert len(data) == 73
    after = sent(RouterView(data).replace(delivery_count=1))
    assert after[72:] == bytes.fromhex("000b 0004 00000001 00000000") + b"x"
    assert decode(after).property_offset == 84
    assert decode(after).delivery_count == 1


def test_a_count_that_is_there_is_changed_in_place() -> None:
    data = wire(delivery_count=1)
    view = RouterView(data).replace(delivery_count=2)
    after = sent(view)
    assert len(changed_bytes(data, after)) == 1
    assert decode(after) == replace(decode(data), delivery_count=2)
    assert view.item("delivery_count") == 2


def test_a_second_change_does_not_grow_the_packet_again() -> None:
    once = RouterView(wire()).replace(delivery_count=1)
    twice = once.replace(delivery_count=2, consumer_id=5)
    assert len(sent(twice)) == len(sent(once))
    assert decode(sent(twice)).delivery_count == 2
    assert decode(sent(once)).delivery_count == 1
    assert twice.item("delivery_count") == 2
    assert twice.destination == "orders"


def test_the_last_of_two_counts_is_the_one_that_counts() -> None:
    item = bytes.fromhex("000b 0004 00000001")
    data = bytearray(encode(Packet(packet_type=6, property_offset=72)) + item + item + bytes(4))
    struct.pack_into(">i", data, 8, len(data))
    struct.pack_into(">i", data, 52, len(data))
    after = sent(RouterView(data).replace(delivery_count=9))
    assert changed_bytes(bytes(data), after) == {72 + 15}
    assert decode(after).delivery_count == 9


def test_a_count_is_not_put_into_a_broken_list() -> None:
    data = bytearray(wire())
    data[74:76] = b"\xff\xff"
    with pytest.raises(DecodeError):
        RouterView(data).replace(delivery_count=1)
    assert RouterView(data).replace(consumer_id=1).header()["consumer_id"] == 1


# Refusals.


@pytest.mark.parametrize("name", ["priority", "expiration", "queue", "size", "destination"])
def test_what_belongs_to_the_sender_stays(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        RouterView(wire()).replace(**{name: 1})


@pytest.mark.parametrize(
    ("version", "values"),
    [
        (301, {"consumer_id": 2**63}),
        (103, {"consumer_id": 2**31}),
        (301, {"source_ip": bytes(15)}),
        (301, {"source_ip": bytes(17)}),
        (301, {"sequence": b"1234"}),
        (103, {"consumer_paused": True}),
        (301, {"delivery_count": 2**31}),
    ],
)
def test_a_value_that_does_not_fit_is_refused(version: int, values: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        RouterView(wire(version)).replace(**values)


def test_103_keeps_the_garbage_above_its_flags() -> None:
    data = bytearray(wire(103))
    data[66] = 0xAB
    view = RouterView(data).replace(redelivered=True, consumer_paused=False)
    assert view.header_bytes[66:68] == bytes([0xAB, PACKET.bit_flags | FLAGS["R"]])
    assert view.header()["bit_flags"] == PACKET.bit_flags | FLAGS["R"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_packet_is_refused(version: int) -> None:
    data = wire(version)
    for stop in range(len(data)):
        with pytest.raises(DecodeError):
            RouterView(data[:stop])


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"\0"), (4, b"\1\x2f"), (52, b"\0\0\0\x47"), (52, b"\x7f"), (56, b"\xff"), (56, b"\x7f")],
    ids=["magic", "version", "offset low", "offset high", "negative size", "size high"],
)
def test_sections_that_do_not_fit_are_refused(at: int, value: bytes) -> None:
    data = bytearray(wire())
    data[at : at + len(value)] = value
    with pytest.raises(DecodeError):
        RouterView(data)


# Reading.


@pytest.mark.parametrize("version", VERSIONS)
def test_items_are_found_without_the_rest(version: int) -> None:
    view = RouterView(wire(version, transaction_id=11))
    assert view.destination == "orders"
    assert view.item("producer_id") == 9
    assert view.item("transaction_id") == 11
    assert view.item("message_id") is None


def test_a_packet_without_a_destination() -> None:
    view = RouterView(encode(Packet(packet_type=20)))
    assert (view.destination, view.destination_hash) == (None, None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("queue", [0, 1])
@pytest.mark.parametrize("name", ["orders", "", "Zoë/雪🦊", "a\0b"])
def test_the_number_of_a_destination_is_that_of_its_row(
    version: int, queue: int, name: str
) -> None:
    """Whatever a router changes; a topic and a queue of one name have two numbers."""
    listed = items(item(1, name.encode("utf-8", "surrogatepass")))
    data = packet(version=version, packet_type=1, bit_flags=queue | 4, items=listed)
    row, error = read_row(data)
    assert error is None
    number = zlib.crc32(("TQ"[queue] + ":" + name).encode())
    changed = RouterView(data).replace(delivery_count=2, consumer_id=5, redelivered=True)
    found = [row["destination_hash"], decode(data).destination_hash]
    found += [RouterView(data).destination_hash, changed.destination_hash]
    assert found == [number] * 4


@pytest.mark.parametrize("version", VERSIONS)
def test_the_key_is_the_32_bytes_of_the_message_id(version: int) -> None:
    key = struct.pack(">q16sii", 1105948800061, PACKET.source_ip, 49152, 62)
    assert RouterView(wire(version, message_id="mine")).message_key == key


def test_golden_packets_read_as_they_decode(shared: Path) -> None:
    read = 0
    for name, data in vectors(shared):
        try:
            packet = decode(data)
        except DecodeError:
            continue
        view = RouterView(data)
        assert sent(view) == data, name
        assert view.destination == packet.destination, name
        assert view.item("transaction_id") == packet.transaction_id, name
        assert view.header()["bit_flags"] == packet.bit_flags, name
        read += 1
    assert read > 80


def test_recorded_packets_differ_in_what_was_changed(shared: Path) -> None:
    for data in recorded_packets(shared):
        packet = decode(data)
        assert packet.property_offset is not None
        grown = 0 if packet.delivery_count is not None else 8 if packet.property_offset > 72 else 12
        after = sent(RouterView(data).replace(consumer_id=5, redelivered=True, delivery_count=2))
        assert replace(decode(after), raw_header=None) == replace(
            packet,
            consumer_id=5,
            bit_flags=packet.bit_flags | FLAGS["R"],
            delivery_count=2,
            property_offset=packet.property_offset + grown,
        )


@given(st.data())
def test_any_header_is_read_or_refused(data: st.DataObject) -> None:
    packet = bytearray(wire(data.draw(st.sampled_from(VERSIONS))))
    for _ in range(data.draw(st.integers(1, 3))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    try:
        view = RouterView(packet)
        assert sent(view) == packet
        after = sent(view.replace(consumer_id=1, delivery_count=1, reply_wanted=True))
    except DecodeError:
        return
    assert RouterView(after).item("delivery_count") == 1
    assert RouterView(after).header()["consumer_id"] == 1
