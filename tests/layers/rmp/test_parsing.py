"""The layer's quick reader against the format's reference, and what of a packet counts."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.formats.rmp.make import ALL_FLAGS, CLIENT, DOMAIN, MORE, message, random_packet
from tests.formats.rmp.subject import SUBJECT
from tests.layers.rmp.make import RING, YOU, delivered, events, layer, plain, receive
from tests.mutations import mutate_packet
from wireyard.errors import DecodeError
from wireyard.formats.rmp.packet import decode_packet
from wireyard.layers.rmp import Delivered, Drop
from wireyard.layers.rmp.events import Foreign, MalformedPacket, MessageId, UnknownLayer
from wireyard.layers.rmp.parsing import parse_packet


def check(packet: bytes) -> bool:
    """Compare both readers; say whether the packet is well-formed."""
    try:
        wanted = decode_packet(packet)
    except DecodeError as error:
        with pytest.raises(DecodeError) as caught:
            parse_packet(packet)
        assert caught.value.row() == error.row()
        return False
    found = [(fields, data) for fields, run in parse_packet(packet) for data in run]
    assert len(found) == len(wanted)
    for (fields, data), one in zip(found, wanted, strict=True):
        assert fields.layer == (None if one.foreign else one.layer)
        assert data == one.data
        for name in fields._fields[1:]:
            assert getattr(fields, name) == getattr(one, name), name
    return True


@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_every_combination_of_flags(flags: int) -> None:
    last = message(1, b"last") if flags & MORE else b""
    packet = message(flags | 3, b"data") + last
    assert check(packet)
    for stop in range(len(packet)):
        check(packet[:stop])


def test_messages_that_say_the_same_are_a_run() -> None:
    same, other = message(MORE | CLIENT, b"x"), message(MORE | DOMAIN, b"y")
    last = message(0, b"z")
    packet = same * 3 + other + same + last
    assert check(packet)
    assert [len(run) for _, run in parse_packet(packet)] == [3, 1, 1, 1]
    for damaged in (packet[:-2], packet[: len(same) * 3], packet[:17], same * 3 + same[:-1]):
        assert not check(damaged)
    lie = bytearray(same * 3 + last)
    lie[len(same) + 5] = 200
    assert not check(bytes(lie))


@pytest.mark.parametrize("seed", range(4))
def test_random_packets_damaged_or_not(seed: int) -> None:
    rng = Random(seed)
    malformed = 0
    for _ in range(1500):
        packet = random_packet(rng)
        assert check(packet)
        malformed += not check(mutate_packet(packet, rng, SUBJECT))
    assert malformed > 300


def test_every_vector(shared: Path) -> None:
    vectors = json.loads((shared / "vectors/rmp/vectors.json").read_text())
    read = [check(bytes.fromhex(vector["hex"])) for vector in vectors]
    assert len(read) >= 10
    # The other order of fields, read as ours, says that 258 bytes follow.
    assert [v["name"][:3] for v, ok in zip(vectors, read, strict=True) if not ok] == ["V7'"]


# --- P1 to P6 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packet",
    [
        b"",  # P5
        b"\0",
        b"\x08\x00\x00\x07\x00\x00\x00\x03a",  # packet 0 of 3
        b"\x08\x00\x00\x07\x00\x00\x00\x00a",  # packet 0 of 0
        b"\x08\x00\x00\x07\x00\x04\x00\x03a",  # packet 4 of 3
        b"\x00\x80\x00\x01a",  # nothing follows
        b"\x00\x80\x00\x02a",  # longer than there is
        b"\x00\x80\x00\x01a\x00\x80\x00\x09b",  # the second one broken
    ],
)
def test_p1_and_p5_a_malformed_packet_is_dropped_whole_and_counted(packet: bytes) -> None:
    at = layer()
    receive(at, packet, plain(b"next"))
    found = events(at)
    assert [type(event) for event in found] == [MalformedPacket, Delivered]
    assert at.dropped == {Drop.MALFORMED: 1}
    assert at.malformed_of == {YOU: 1}


def test_p2_a_packet_of_the_smallest_messages_ends() -> None:
    at = layer()
    receive(at, b"\x00\x80\x00\x00" * 20_000 + b"\x00\x00")
    assert delivered(at) == [b""] * 20_001


def test_p3_a_foreign_message_is_the_rest_of_its_packet_at_its_place() -> None:
    at = layer()
    receive(at, b"\x00\x80\x00\x01a" + b"\x10\x00xyz", plain(b"b"))
    found = events(at)
    assert [type(event) for event in found] == [Delivered, Foreign, Delivered]
    assert found[1] == Foreign(RING, YOU, b"\x10\x00xyz")


def test_p4_a_message_for_a_layer_that_is_not_there_is_dropped_alone() -> None:
    at = layer()
    for now in (0.0, 0.4, 0.9, 1.5):
        receive(at, b"\x00\x82\x00\x01a\x00\x00b", now=now)
    found = events(at)
    assert [event.data for event in found if isinstance(event, Delivered)] == [b"b"] * 4
    # Reported at most once a second, so that a peer cannot fill a log.
    unknown = [event for event in found if isinstance(event, UnknownLayer)]
    assert unknown == [UnknownLayer(RING, YOU, 2, 1), UnknownLayer(RING, YOU, 2, 3)]
    assert at.dropped == {Drop.UNKNOWN_LAYER: 4}
    at.register_layer(2)
    receive(at, b"\x00\x02a")
    assert delivered(at) == [b"a"]
    at.unregister_layer(2)
    receive(at, b"\x00\x02a")
    assert delivered(at) == []


def test_p6_a_packet_longer_than_ours_is_taken_if_the_ring_brought_it() -> None:
    at = layer(100)
    receive(at, plain(b"x" * 5000))
    assert delivered(at) == [b"x" * 5000]


def test_what_a_message_says_is_delivered() -> None:
    at = layer()
    at.register_layer(3)
    receive(at, message(0x0800 | 0x0400 | 0x0200 | 0x0100 | 0x0040 | 3, b"D", segment=(258, 1, 1)))
    (found,) = events(at)
    assert isinstance(found, Delivered)
    assert (found.layer, found.domain, found.client, found.data) == (3, 5, 9, b"D")
    assert found.reply_requested
    assert found.message_id == MessageId(YOU, 258)
    assert found.reply_to == MessageId("10.0.0.7:7001", 258)


def test_a_request_that_no_reply_can_name_is_delivered_and_says_so() -> None:
    at = layer()
    receive(at, b"\x00\x40?")  # errata R21
    (found,) = events(at)
    assert isinstance(found, Delivered)
    assert found.reply_requested and found.message_id is None
