"""The sender's rules, S1 to S7, and packing: what goes out, in how many packets, and when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.rmp.make import (
    ME,
    PACKET_BYTES,
    RING,
    YOU,
    circulate,
    delivered,
    events,
    layer,
    packets,
    plain,
    receive,
    segment,
)
from wireyard.errors import EncodeError, UsageError
from wireyard.formats.rmp.packet import Message, decode_packet, encode_packet
from wireyard.layers.rmp import (
    Delivered,
    MessageId,
    MessageTooBig,
    MessagingLayer,
    NotWritable,
    NumbersExhausted,
    QoS,
    numbers,
)

FIRST_ROOM = PACKET_BYTES - 8
"""Data of a packet that is one of several, and says nothing else."""


def sent(by: MessagingLayer) -> list[tuple[Message, ...]]:
    return [decode_packet(packet) for packet in packets(by)]


# --- S1 to S3: numbers and segments ---------------------------------------------------------


def test_s1_a_small_message_has_no_number() -> None:
    at = layer()
    at.send(RING, bytes(PACKET_BYTES - 2), now=0.0)
    at.flush()
    assert packets(at) == [bytes(PACKET_BYTES)]


def test_s2_a_request_has_a_number_though_it_is_small() -> None:
    at = layer()
    at.register_layer(2)
    at.request(RING, b"?", now=0.0, want=1, timeout_s=1.0, layer=2)
    assert packets(at) == [segment(0xFFF0, 1, 1, b"?", layer=2, reply_requested=True)]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (PACKET_BYTES - 1, [FIRST_ROOM, 7]),
        (2 * FIRST_ROOM, [FIRST_ROOM, FIRST_ROOM]),
        (2 * FIRST_ROOM + 1, [FIRST_ROOM, FIRST_ROOM, 1]),
    ],
)
def test_s3_a_larger_message_is_cut(size: int, sizes: list[int]) -> None:
    at = layer()
    data = bytes(n % 251 for n in range(size))
    at.send(RING, data, now=0.0)
    found = sent(at)
    assert [len(message.data) for (message,) in found] == sizes
    assert b"".join(message.data for (message,) in found) == data
    for place, (message,) in enumerate(found, 1):
        assert message.message_number == 0xFFF0
        assert (message.packet_number, message.packet_count) == (place, len(sizes))


def test_s3_a_message_that_takes_too_many_packets_is_refused_whole() -> None:
    at = layer(64, max_message_bytes=1 << 30)
    most = 65535 * (64 - 8)
    with pytest.raises(MessageTooBig, match="65536 packets"):
        at.send(RING, bytes(most + 1), now=0.0)
    assert packets(at) == []
    at.send(RING, bytes(most), now=0.0)
    assert len(packets(at)) == 65535


def test_s3_the_bound_of_the_receivers_is_the_senders() -> None:
    at = layer(max_message_bytes=10 * PACKET_BYTES)
    with pytest.raises(MessageTooBig, match="11 packets of 100 bytes, 10 are the most"):
        at.send(RING, bytes(10 * FIRST_ROOM + 1), now=0.0)
    at.send(RING, bytes(10 * FIRST_ROOM), now=0.0)
    receive(at, *packets(at), source=ME)
    assert delivered(at) == [bytes(10 * FIRST_ROOM)]


def test_s3_no_room_for_all_is_room_for_none_and_a_message_that_is_back_makes_room() -> None:
    at = layer(max_outgoing_bytes=2500)
    at.send(RING, bytes(1000), now=0.0)
    before = at.waiting_bytes(RING)
    for refused in (bytes(1000), b"small"):
        if before + len(refused) > 2500:
            with pytest.raises(NotWritable, match="2500 are the most"):
                at.send(RING, refused, now=0.0)
    assert at.waiting_bytes(RING) == before
    out = packets(at)
    assert {decode_packet(packet)[0].message_number for packet in out} == {0xFFF0}
    assert at.waiting_bytes(RING) == 1000  # it may have to be sent again
    receive(at, *out, source=ME)
    assert at.waiting_bytes(RING) == 0
    at.send(RING, bytes(1000), now=0.0)


@pytest.mark.parametrize("size", [10, 90, 150, 700])
def test_sending_many_sends_as_many_as_there_is_room_for(size: int) -> None:
    at = layer(max_outgoing_bytes=2500, max_delay_s=9.0)
    one_by_one = layer(max_outgoing_bytes=2500, max_delay_s=9.0)
    messages = [bytes([n]) * size for n in range(250)]
    sent = at.send_all(RING, messages, now=0.0, client=3)
    for message in messages[:sent]:
        one_by_one.send(RING, message, now=0.0, client=3)
    assert 1 <= sent < 250
    for each in (at, one_by_one):
        each.flush()
    assert packets(at) == packets(one_by_one)


def test_sending_many_packs_nothing_without_a_delay_and_refuses_what_send_refuses() -> None:
    at = layer(max_delay_s=0)
    assert at.send_all(RING, [b"a", b"b"], now=0.0) == 2
    assert packets(at) == [plain(b"a"), plain(b"b")]
    with pytest.raises(EncodeError):
        at.send_all(RING, [b"a", "text"], now=0.0)  # type: ignore[list-item]
    assert packets(at) == [plain(b"a")]


def test_numbers_begin_anywhere_and_go_around() -> None:
    at = layer(first_number=0xFFFE)
    for _ in range(4):
        at.send(RING, bytes(PACKET_BYTES), now=0.0)
        receive(at, *packets(at), source=ME)
    numbers = [event.number for event in events(at) if isinstance(event, Delivered)]
    assert numbers == [0xFFFE, 0xFFFF, 0, 1]


@pytest.fixture
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have 16 message numbers only."""
    monkeypatch.setattr(numbers, "NUMBERS", 16)
    return 16


def test_s2_a_number_that_is_in_use_is_not_given_out_again(few_numbers: int) -> None:
    at = layer(first_number=5)
    for _ in range(few_numbers):
        at.send(RING, bytes(100), now=0.0)
    with pytest.raises(NumbersExhausted, match="all 16 message numbers"):
        at.send(RING, bytes(100), now=0.0)
    at.send(RING, b"small ones need none", now=0.0)
    receive(at, *packets(at), source=ME)
    at.send(RING, bytes(100), now=0.0)
    while out := sent(at):
        last = out[-1]
        receive(at, *map(encode_packet, out), source=ME)
    assert last[0].message_number == 5


def test_s2_an_unreliable_message_keeps_its_number_until_no_receiver_can_know_it(
    few_numbers: int,
) -> None:
    at = layer(reassembly_timeout_s=5.0)
    for _ in range(few_numbers):
        at.send(RING, bytes(100), now=0.0, qos=QoS.UNRELIABLE)
    with pytest.raises(NumbersExhausted):
        at.send(RING, bytes(100), now=9.9, qos=QoS.UNRELIABLE)
    at.send(RING, bytes(100), now=10.0, qos=QoS.UNRELIABLE)


# --- S4 and S5: fields and order ------------------------------------------------------------


def test_s4_only_the_first_packet_has_the_fields_and_all_have_the_layer() -> None:
    at = layer()
    to = MessageId(YOU, 77)
    at.send(RING, bytes(200), now=0.0, layer=2, client=9, domain=5, reply_to=to)
    first, *later = sent(at)
    assert (first[0].client, first[0].domain, first[0].layer) == (9, 5, 2)
    assert (first[0].reply_message_number, first[0].reply_source) == (77, YOU)
    assert later
    for (message,) in later:
        assert message.typing == 0x0800 | 2


def test_s5_what_one_process_sends_stays_in_order() -> None:
    at = layer(max_delay_s=9.0)
    at.send(RING, b"a", now=0.0)
    at.send(RING, bytes(200), now=0.0)  # flushes, for it has its own packets
    at.send(RING, b"b", now=0.0)
    at.send(RING, b"c", now=0.0, qos=QoS.UNRELIABLE)  # flushes, for a packet has one QoS
    at.send(RING, b"d", now=0.0)
    at.flush()
    out = [
        (qos, [message.data[:1] for message in decode_packet(packet)])
        for qos, packet in circulate(at)
    ]
    assert out == [
        (QoS.TOTALLY_ORDERED, [b"a"]),
        *[(QoS.TOTALLY_ORDERED, [b"\0"])] * 3,
        (QoS.TOTALLY_ORDERED, [b"b"]),
        (QoS.UNRELIABLE, [b"c"]),
        (QoS.TOTALLY_ORDERED, [b"d"]),
    ]


# --- S7: replies ----------------------------------------------------------------------------


def test_s7_a_reply_ends_its_packet() -> None:
    at = layer(max_delay_s=9.0)
    at.send(RING, b"a", now=0.0)
    at.send(RING, b"!", now=0.0, reply_to=MessageId(YOU, 1))
    at.send(RING, b"b", now=0.0)
    at.flush()
    both, last = sent(at)
    assert [message.data for message in (*both, *last)] == [b"a", b"!", b"b"]
    assert both[1].reply_source == YOU and not both[1].more_follows


# --- packing --------------------------------------------------------------------------------


def test_small_messages_share_a_packet_and_one_alone_has_no_length() -> None:
    at = layer(max_delay_s=9.0)
    at.send(RING, b"a", now=0.0)
    at.flush()
    for data in (b"b", b"", b"ccc"):
        at.send(RING, data, now=0.0, domain=1 if data == b"b" else None)
    at.flush()
    assert packets(at) == [
        bytes.fromhex("0000 61"),
        bytes.fromhex("0480 0001 0001 62 0080 0000 0000 636363"),
    ]


def test_a_packet_is_filled_to_the_last_byte_and_no_further() -> None:
    at = layer(64, max_delay_s=9.0)
    at.send(RING, bytes(30), now=0.0)  # 4 + 30 when followed
    at.send(RING, bytes(28), now=0.0)  # 2 + 28
    at.flush()
    at.send(RING, bytes(30), now=0.0)
    at.send(RING, bytes(29), now=0.0)
    at.flush()
    assert [len(packet) for packet in packets(at)] == [64, 32, 31]


def test_a_message_too_long_for_a_length_ends_its_packet() -> None:
    at = layer(1 << 18, max_delay_s=9.0)
    for size in (65535, 65536, 1):
        at.send(RING, bytes(size), now=0.0)
    at.flush()
    assert [[len(m.data) for m in packet] for packet in sent(at)] == [[65535, 65536], [1]]


def test_flush_has_everything_sent_before_in_next_packet() -> None:
    at = layer(max_delay_s=9.0)
    at.add_ring("other", 100)
    at.send(RING, b"a", now=0.0)
    at.send("other", b"b", now=0.0)
    assert packets(at) == []
    at.flush(RING)
    assert packets(at) == [plain(b"a")]
    assert at.next_packet("other") is None
    at.flush()
    assert at.next_packet("other") == (QoS.TOTALLY_ORDERED, plain(b"b"))


def test_a_packed_message_goes_when_its_delay_is_over() -> None:
    at = layer(max_delay_s=0.5)
    assert at.get_timer() is None
    at.send(RING, b"a", now=1.0)
    at.send(RING, b"b", now=1.4)
    assert at.get_timer() == 1.5
    at.handle_timer(1.4)
    assert packets(at) == []
    at.handle_timer(1.5)
    assert len(packets(at)) == 1
    assert at.get_timer() is None


def test_an_urgent_message_takes_what_waits_with_it() -> None:
    at = layer(max_delay_s=9.0)
    at.send(RING, b"a", now=0.0)
    at.send(RING, b"b", now=0.0, urgent=True)
    assert [[m.data for m in packet] for packet in sent(at)] == [[b"a", b"b"]]


def test_no_delay_packs_nothing() -> None:
    at = layer(max_delay_s=0)
    at.send(RING, b"a", now=0.0)
    at.send(RING, b"b", now=0.0)
    assert packets(at) == [plain(b"a"), plain(b"b")]


@pytest.mark.parametrize(
    "named", [{"layer": 64}, {"domain": 65536}, {"client": -1}, {"reply_to": MessageId("x", 1)}]
)
def test_what_has_no_form_on_the_wire_is_refused(named: dict[str, Any]) -> None:
    at = layer()
    for data in (b"small", bytes(500)):
        with pytest.raises(EncodeError):
            at.send(RING, data, now=0.0, **named)
    assert packets(at) == []


def test_domain_and_client_0_are_never_written() -> None:
    at = layer()
    at.send(RING, b"a", now=0.0, domain=0, client=0, urgent=True)
    assert packets(at) == [plain(b"a")]


def test_data_is_bytes() -> None:
    at = layer()
    with pytest.raises(EncodeError, match="data is bytes"):
        at.send(RING, bytearray(b"a"), now=0.0)  # type: ignore[arg-type]


def test_rings_have_names_and_packets_of_some_length() -> None:
    at = layer()
    with pytest.raises(UsageError, match="ring nowhere is not known"):
        at.send("nowhere", b"a", now=0.0)
    with pytest.raises(UsageError, match="known already"):
        at.add_ring(RING, 100)
    with pytest.raises(UsageError, match="64 at least"):
        at.add_ring("small", 63)
    with pytest.raises(UsageError, match="from 0 to 63"):
        at.register_layer(64)
