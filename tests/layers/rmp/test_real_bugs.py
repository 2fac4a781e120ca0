"""Bugs that systems of this kind really had, each as the packets that would show it.

corosync's ``totempg`` is the nearest of kin: segments and packs on a token ring. The number of a
test is its place in a list of thirteen; several bugs of one kind share a number.
"""

from __future__ import annotations

import pytest

from tests.layers.rmp.make import (
    ME,
    PACKET_BYTES,
    RING,
    YOU,
    delivered,
    events,
    layer,
    packets,
    plain,
    receive,
    segment,
)
from wireyard.formats.rmp.packet import Message, decode_packet, encode_packet
from wireyard.layers.rmp import Delivered, Drop, MessageTooBig, QoS
from wireyard.layers.rmp.events import Foreign, MalformedPacket, UnknownLayer

THIRD = "10.0.0.3:7001"


def segments(number: int, *data: bytes) -> list[bytes]:
    return [segment(number, n, len(data), each) for n, each in enumerate(data, 1)]


def test_01_a_joiner_gets_the_tail_of_a_message_without_its_head() -> None:
    """Corosync 2005 and 2009, Aeron 2020: the tail was taken for a message."""
    at = layer()
    receive(at, *segments(1, b"a", b"b", b"c")[1:], *segments(2, b"d", b"e"))
    assert delivered(at) == [b"de"]
    assert at.dropped == {Drop.ORPHAN: 2}


def test_02_throwing_away_is_of_one_source() -> None:
    """Corosync: one flag for all sources, so one orphan cost the messages of others."""
    at = layer()
    receive(at, segments(1, b"a", b"b")[1])
    receive(at, *segments(1, b"c", b"d"), source=THIRD)
    assert delivered(at) == [b"cd"]


def test_03_a_restarted_process_is_not_judged_by_what_its_old_self_left() -> None:
    """Corosync: the old half message stayed, and everything of the new process was refused."""
    at = layer()
    receive(at, *segments(0xFFF0, b"o", b"l", b"d")[:2])
    at.view(RING, (ME,), now=0.0)
    at.view(RING, (ME, YOU), now=0.0)
    receive(at, *segments(0xFFF0, b"n", b"e", b"w"))
    assert delivered(at) == [b"new"]


def test_04_a_tail_that_leaves_room_does_not_glue_what_follows() -> None:
    """Corosync: the mark of a segment outlived it; a crash after half a day."""
    at = layer()
    tail = Message(message_number=1, packet_number=2, packet_count=2, data=b"b")
    after = Message(data=b"small")
    head = Message(message_number=2, packet_number=1, packet_count=2, data=b"c")
    first, last = segments(1, b"a", b"b")[0], segments(2, b"c", b"d")[1]
    receive(at, first, encode_packet([tail, after, head]), last)
    assert delivered(at) == [b"ab", b"small", b"cd"]


def test_04_a_small_message_is_not_split_over_the_end_of_a_packet() -> None:
    """Corosync: what the repair of the one before did."""
    at = layer(max_delay_s=9.0)
    for size in (60, 60, 20):
        at.send(RING, bytes(size), now=0.0)
    at.flush()
    sizes = [[len(message.data) for message in decode_packet(p)] for p in packets(at)]
    assert sizes == [[60], [60, 20]]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_05_the_longest_message_fits_and_a_byte_more_does_not(more: int) -> None:
    """Corosync: the buffer was too short by one packet."""
    at = layer(max_message_bytes=10 * PACKET_BYTES)
    data = bytes(10 * (PACKET_BYTES - 8) + more)
    if more > 0:
        with pytest.raises(MessageTooBig):
            at.send(RING, data, now=0.0)
        return
    at.send(RING, data, now=0.0)
    receive(at, *packets(at), source=ME)
    assert delivered(at) == [data]


def test_06_every_length_is_checked() -> None:
    """Corosync until 2019: lengths of other nodes were believed."""
    for length in (2, 3, 0xFFFF):
        at = layer()
        receive(at, b"\x00\x80" + length.to_bytes(2, "big") + b"\x00")
        assert [type(event) for event in events(at)] == [MalformedPacket]


def test_07_what_a_recovery_cuts_is_not_delivered_corrupt() -> None:
    """Corosync for nine years: the tail was joined to another message's head."""
    at = layer(first_number=1)
    at.send(RING, b"m" * 200, now=0.0)
    first, second, third = packets(at)
    receive(at, first, source=ME)
    receive(at, *segments(1, b"y", b"y")[:1])
    at.view(RING, (ME, YOU), now=0.0)
    receive(at, second, third, source=ME)
    receive(at, *segments(1, b"y", b"y")[1:])
    assert delivered(at) == []
    receive(at, *packets(at), source=ME)
    assert delivered(at) == [b"m" * 200]


def test_08_two_first_packets_in_a_row() -> None:
    """Corosync: an interrupted send began again, and both beginnings were joined."""
    at = layer()
    receive(at, segments(1, b"a", b"b")[0], *segments(1, b"a", b"b"))
    assert delivered(at) == [b"ab"]


def test_09_what_members_left_behind_does_not_stay() -> None:
    """JGroups: views were noticed in one direction only, and fragments leaked."""
    at = layer()
    for number in range(50):
        receive(at, segments(number, b"a", b"b")[0])
    at.view(RING, (ME,), now=0.0)
    assert all(one.idle for one in at._rings[RING].reassemblies)


def test_09_a_message_that_ends_in_a_packet_of_several_has_its_own_place() -> None:
    """JGroups: it was put at the wrong position of the batch."""
    at = layer()
    tail = Message(message_number=1, packet_number=2, packet_count=2, data=b"2")
    receive(at, segments(1, b"1", b"2")[0])
    receive(at, encode_packet([Message(data=b"x"), tail, Message(data=b"y")]))
    assert delivered(at) == [b"12", b"x", b"y"]


def test_09_what_the_first_packet_says_is_said_of_the_whole_message() -> None:
    """JGroups: flags were not copied, so a part was handled as something else."""
    at = layer()
    at.register_layer(2)
    at.send(RING, bytes(300), now=0.0, layer=2, client=7, domain=3)
    receive(at, *packets(at), source=ME)
    (found,) = events(at)
    assert isinstance(found, Delivered)
    assert (found.layer, found.client, found.domain, len(found.data)) == (2, 7, 3, 300)


@pytest.mark.parametrize("qos", [QoS.UNRELIABLE, QoS.SOURCE_ORDERED, QoS.TOTALLY_ORDERED])
def test_10_a_loss_from_one_message_into_the_next_glues_nothing(qos: QoS) -> None:
    """Aeron: the head of one and the tail of the next became a message."""
    at = layer()
    receive(at, segments(1, b"a", b"b", b"c")[0], segments(2, b"d", b"e", b"f")[2], qos=qos)
    receive(at, *segments(3, b"g", b"h"), qos=QoS.UNORDERED)
    assert delivered(at) == [b"gh"]


def test_10_nothing_is_lost_where_numbers_begin_anew() -> None:
    """Aeron and what is built on it: messages at the end of a term were lost."""
    at = layer(first_number=0xFFF0)
    for n in range(40):
        at.send(RING, b"%03d" % n * 50, now=0.0)
        receive(at, *packets(at), source=ME)
    assert delivered(at) == [b"%03d" % n * 50 for n in range(40)]


@pytest.mark.parametrize("count", [255, 256, 257, 4000])
def test_11_more_than_256_packets(count: int) -> None:
    """Fast DDS: they were never sent."""
    at = layer()
    data = bytes(count * (PACKET_BYTES - 8))
    at.send(RING, data, now=0.0)
    out = packets(at)
    assert len(out) == count
    receive(at, *out, source=ME)
    assert delivered(at) == [data]


@pytest.mark.parametrize("size", [8191, 8192, 8193, 65507, 1 << 20])
def test_12_a_packet_longer_than_anybodys_buffer(size: int) -> None:
    """libzmq: more than 8 KB of a datagram went over the end."""
    at = layer()
    receive(at, plain(bytes(size - 2)))
    assert [len(data) for data in delivered(at)] == [size - 2]


def test_13_what_only_newer_peers_send_is_told_and_passed_over() -> None:
    """Corosync with mixed versions: an unknown type was the end of the process."""
    at = layer()
    receive(at, plain(b"?", layer=63), b"\xff\xff?", b"\x0f\xff", plain(b"known"))
    found = events(at)
    kinds = [UnknownLayer, Foreign, MalformedPacket, Delivered]
    assert [type(event) for event in found] == kinds
