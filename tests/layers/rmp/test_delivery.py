"""Messages in pieces, handlers, and messages of other protocols, each at its place."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

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
from wireyard.errors import EncodeError, UsageError
from wireyard.formats.rmp.packet import Message, decode_packet, encode_packet
from wireyard.layers.rmp import (
    Delivered,
    Drop,
    Event,
    MessageId,
    MessageTooBig,
    MessagingLayer,
    Order,
    QoS,
    Want,
)
from wireyard.layers.rmp.events import Aborted, Foreign, Piece, Replied, UnknownLayer, ViewChanged

STREAMS = 1
THIRD = "10.0.0.3:7001"
A = [segment(1, n, 3, b"A%d" % n, layer=STREAMS, client=7, domain=5) for n in (1, 2, 3)]


def in_pieces(**named: Any) -> MessagingLayer:
    at = layer(**named)
    at.register_layer(STREAMS, in_pieces=True)
    return at


def pieces(of: MessagingLayer) -> list[tuple[int, bytes, bool]]:
    """Return the pieces among the events that wait, which all are of one message."""
    found = [event for event in events(of) if isinstance(event, Piece)]
    assert len({piece._replace(offset=0, data=b"", last=False) for piece in found}) <= 1
    return [(piece.offset, piece.data, piece.last) for piece in found]


# --- pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", QoS)
def test_a_message_is_delivered_as_it_arrives_where_that_is_wanted(qos: QoS) -> None:
    at = in_pieces()
    found = []
    for packet in A:
        receive(at, packet, qos=qos)
        (piece,) = events(at)
        found.append(piece)
    said = RING, YOU, qos, STREAMS, 7, 5, 1, False
    assert found == [
        Piece(*said, 0, b"A1", False, ()),
        Piece(*said, 2, b"A2", False, ()),
        Piece(*said, 4, b"A3", True, ()),
    ]
    assert isinstance(found[0], Piece) and found[0].message_id == MessageId(YOU, 1)


def test_atomically_is_how_it_is_delivered_elsewhere_and_in_one_packet() -> None:
    at = layer()
    at.register_layer(STREAMS)
    receive(at, *A)
    assert delivered(at) == [b"A1A2A3"]
    at.register_layer(STREAMS, in_pieces=True)
    receive(at, plain(b"whole", layer=STREAMS), segment(9, 1, 1, b"numbered", layer=STREAMS))
    assert delivered(at) == [b"whole", b"numbered"]


def test_pieces_wait_for_what_is_before_their_message() -> None:
    at = in_pieces()
    receive(at, segment(5, 1, 2, b"h"), source=THIRD)
    receive(at, A[0], A[1])
    assert events(at) == []
    receive(at, segment(5, 2, 2, b"h"), source=THIRD)
    head, piece = events(at)
    assert isinstance(head, Delivered) and head.data == b"hh"
    assert isinstance(piece, Piece) and (piece.offset, piece.data) == (0, b"A1A2")
    receive(at, plain(b"behind"), A[2])
    piece, behind = events(at)
    assert isinstance(piece, Piece) and (piece.offset, piece.data, piece.last) == (4, b"A3", True)
    assert isinstance(behind, Delivered)


def test_a_message_that_is_whole_when_its_turn_comes_is_delivered_whole() -> None:
    at = in_pieces()
    receive(at, segment(5, 1, 2, b"h"), source=THIRD)
    receive(at, *A)
    receive(at, segment(5, 2, 2, b"h"), source=THIRD)
    assert delivered(at) == [b"hh", b"A1A2A3"]


def test_packets_that_overtake_each_other_are_pieces_in_their_order() -> None:
    at = in_pieces()
    for packet, found in ((A[0], [(0, b"A1", False)]), (A[2], []), (A[1], [(2, b"A2A3", True)])):
        receive(at, packet, qos=QoS.UNORDERED)
        assert pieces(at) == found


def test_packets_without_data_are_no_pieces() -> None:
    at = in_pieces()
    empty = [segment(1, n, 4, b"x" * (n == 3), layer=STREAMS) for n in (1, 2, 3, 4)]
    receive(at, *empty)
    assert pieces(at) == [(0, b"x", False), (1, b"", True)]
    receive(at, *(segment(2, n, 2, b"", layer=STREAMS) for n in (1, 2)))
    assert delivered(at) == [b""]


def test_a_message_that_is_cut_begins_again() -> None:
    at = in_pieces()
    receive(at, A[0], A[1])
    at.view(RING, (ME, YOU, THIRD), now=0.0)
    receive(at, A[2], *A)
    first, second, aborted, view, *again = events(at)
    assert [type(one) for one in (first, second, aborted, view)] == [
        Piece, Piece, Aborted, ViewChanged,
    ]  # fmt: skip
    assert [(one.offset, one.data) for one in again if isinstance(one, Piece)] == [
        (0, b"A1"), (2, b"A2"), (4, b"A3"),
    ]  # fmt: skip
    assert not at._rings[RING].first_pieces


def test_clients_get_all_pieces_of_a_message_or_none() -> None:
    at = in_pieces()
    at.clients(RING).register(1, domains={5})
    receive(at, A[0])
    at.clients(RING).register(2)
    receive(at, A[1], A[2])
    assert [event.destinations for event in events(at) if isinstance(event, Piece)] == [(1,)] * 3
    at.clients(RING).set_domains(1, {6})
    at.clients(RING).set_domains(2, {6})
    receive(at, A[0])
    at.clients(RING).set_domains(2, {5})
    receive(at, A[1], A[2])
    assert events(at) == []
    assert at.dropped == {Drop.NO_DESTINATION: 1}


def test_the_layer_of_a_message_in_pieces_may_be_unregistered_meanwhile() -> None:
    at = in_pieces()
    receive(at, segment(5, 1, 2, b"h"), source=THIRD)
    receive(at, A[0])
    at.unregister_layer(STREAMS)
    receive(at, segment(5, 2, 2, b"h"), source=THIRD)
    receive(at, A[1], A[2])
    assert [type(event) for event in events(at)] == [Delivered, UnknownLayer]
    assert at.dropped == {Drop.UNKNOWN_LAYER: 1}


def test_a_request_waits_for_whole_replies() -> None:
    at = in_pieces()
    request = at.request(RING, b"?", now=0.0, want=1, timeout_s=1.0)
    to = {"reply_message_number": 0xFFF0, "reply_source": ME}
    receive(at, segment(1, 1, 2, b"re", layer=STREAMS, **to))
    assert events(at) == []
    receive(at, segment(1, 2, 2, b"ply", layer=STREAMS))
    replied = next(event for event in events(at) if isinstance(event, Replied))
    assert (replied.request, replied.reply.data) == (request, b"reply")


def joined(found: Sequence[Event]) -> list[Event | tuple[str, int | None, bytes]]:
    """Return events with the messages among them by their data, pieces put together."""
    lines: list[Event | tuple[str, int | None, bytes]] = []
    parts: dict[tuple[str, int], bytes] = {}
    for event in found:
        if isinstance(event, Piece):
            key = event.source, event.number
            before = parts.pop(key, b"") if event.offset else b""
            assert event.offset == len(before)
            parts[key] = before + event.data
            if event.last:
                lines.append((*key, parts.pop(key)))
        elif isinstance(event, Delivered):
            lines.append((event.source, event.number, event.data))
        else:
            lines.append(event)
    return lines


@pytest.mark.parametrize("qos", [QoS.TOTALLY_ORDERED, QoS.SOURCE_ORDERED, QoS.UNORDERED])
@pytest.mark.parametrize("seed", range(10))
def test_pieces_change_nothing_of_what_is_kept_aborted_and_counted(seed: int, qos: QoS) -> None:
    """Members choose for themselves, and have to agree on what is delivered at all."""
    rng = Random(seed)
    whole, cut = layer(max_held_bytes=4000), in_pieces(max_held_bytes=4000)
    whole.register_layer(STREAMS)
    found: tuple[list[Event], list[Event]] = [], []
    for _ in range(300):
        number, count = rng.randrange(4), rng.choice((1, 3, 3, 5))
        packet = segment(number, rng.randint(1, count), count, rng.randbytes(9), layer=STREAMS)
        source, is_view = rng.choice((YOU, THIRD)), rng.random() < 0.02
        for at, into in zip((whole, cut), found, strict=True):
            if is_view:
                at.view(RING, (ME, YOU, THIRD), now=0.0)
            else:
                receive(at, packet, source=source, qos=qos)
            into += events(at)
        one, other = (at._rings[RING].reassembly(qos.order, source) for at in (whole, cut))
        assert (one.held_bytes, len(one)) == (other.held_bytes, len(other))
    assert joined(found[0]) == joined(found[1]) and whole.dropped == cut.dropped
    assert any(isinstance(event, Piece) for event in found[1])


# --- handlers -------------------------------------------------------------------------------


def test_a_handler_gets_the_messages_of_its_layer_at_their_places() -> None:
    at = layer()
    seen: list[str] = []
    at.register_layer(2, lambda message: seen.append(message.data.decode()))
    receive(at, plain(b"a"), plain(b"b", layer=2), plain(b"c"), plain(b"d", layer=2))
    for event, handled in ((b"a", []), (b"c", ["b"])):
        found = at.next_event()
        assert isinstance(found, Delivered) and (found.data, seen) == (event, handled)
    assert at.next_event() is None and seen == ["b", "d"]


def test_a_handler_may_reply() -> None:
    """The handled messages of the specification: a reply names the message it replies to."""
    here, there = layer(), MessagingLayer(YOU, first_number=0)
    there.add_ring(RING, PACKET_BYTES)

    def answer(message: Delivered | Piece | Foreign) -> None:
        assert isinstance(message, Delivered) and message.reply_requested
        there.send(RING, message.data.upper(), now=0.0, reply_to=message.message_id)

    there.register_layer(2, answer)
    here.register_layer(2)
    here.request(RING, b"shout", now=0.0, want=1, timeout_s=1.0, layer=2)
    receive(there, *packets(here), source=ME)
    assert there.next_event() is None
    receive(here, *packets(there))
    assert [event.reply.data for event in events(here) if isinstance(event, Replied)] == [b"SHOUT"]


def test_a_handler_gets_no_replies() -> None:
    """A reply is for whoever asked, so at every member it is an event (errata R32)."""
    at = layer()
    seen: list[object] = []
    at.register_layer(2, seen.append)
    request = at.request(RING, b"?", now=0.0, want=1, timeout_s=1.0, layer=2)
    reply = {"layer": 2, "reply_message_number": 0xFFF0}
    receive(
        at, plain(b"mine", reply_source=ME, **reply), plain(b"theirs", reply_source=YOU, **reply)
    )
    [replied, _, *others] = events(at)
    assert isinstance(replied, Replied) and replied.request == request
    assert [event.data for event in others if isinstance(event, Delivered)] == [b"mine", b"theirs"]
    assert seen == []


def test_a_request_on_a_layer_that_is_not_registered_is_refused() -> None:
    """Its replies would be dropped."""
    at = layer()
    with pytest.raises(UsageError, match="layer 2 is not registered"):
        at.request(RING, b"?", now=0.0, want=1, timeout_s=1.0, layer=2)
    assert packets(at) == []


def test_a_handler_gets_pieces_too() -> None:
    at = layer()
    seen: list[object] = []
    at.register_layer(STREAMS, seen.append, in_pieces=True)
    receive(at, *A)
    assert events(at) == [] and [type(one) for one in seen] == [Piece] * 3


def test_an_error_of_a_handler_loses_one_message() -> None:
    at = layer()

    def fail(message: object) -> None:
        raise ZeroDivisionError

    at.register_layer(2, fail)
    receive(at, plain(b"a", layer=2), plain(b"b"))
    with pytest.raises(ZeroDivisionError):
        at.next_event()
    assert delivered(at) == [b"b"]


def test_a_layer_has_one_handler_until_it_is_unregistered() -> None:
    at = layer()
    at.register_layer(2, print)
    with pytest.raises(UsageError, match="layer 2 has a handler already"):
        at.register_layer(2, print)
    at.unregister_layer(2)
    at.register_layer(2)
    receive(at, plain(b"a", layer=2))
    assert delivered(at) == [b"a"]
    with pytest.raises(UsageError, match="layer 64 is not from 0 to 63"):
        at.register_layer(64, print)


def test_a_handler_of_a_typing_word_gets_the_messages_of_other_protocols() -> None:
    at = layer()
    seen: list[object] = []
    at.register_foreign(0x1001, seen.append)
    receive(at, b"\x10\x01theirs", b"\x10\x02others", b"\x10\x01again")
    assert events(at) == [Foreign(RING, YOU, b"\x10\x02others")]
    assert seen == [Foreign(RING, YOU, b"\x10\x01theirs"), Foreign(RING, YOU, b"\x10\x01again")]
    at.unregister_foreign(0x1001)
    receive(at, b"\x10\x01")
    (event,) = events(at)
    assert isinstance(event, Foreign) and event.typing == 0x1001


@pytest.mark.parametrize(
    ("typing", "problem"),
    [(4095, "4095 is not from 4096 to 65535"), (1 << 16, "65536"), (5000, "has a handler already")],
)
def test_typing_words_with_a_handler_are_of_other_protocols(typing: int, problem: str) -> None:
    at = layer()
    at.register_foreign(5000, print)
    with pytest.raises(UsageError, match=problem):
        at.register_foreign(typing, print)


# --- messages of other protocols ------------------------------------------------------------


def test_a_message_of_another_protocol_ends_its_packet() -> None:
    at = layer(max_delay_s=9.0)
    theirs = Message(foreign=True, data=b"\xff\xffxyz")
    at.send(RING, b"a", now=0.0)
    at.send_foreign(RING, theirs.data, now=0.0)
    at.send(RING, b"b", now=0.0)
    at.flush()
    assert packets(at) == [encode_packet([Message(data=b"a"), theirs]), plain(b"b")]


def test_a_message_of_another_protocol_fills_a_packet_and_no_more() -> None:
    at = layer()
    at.send(RING, b"a", now=0.0)
    at.send_foreign(RING, b"\x10\0" + bytes(PACKET_BYTES - 2), now=0.0, qos=QoS.UNORDERED)
    first, second = at.next_packet(RING), at.next_packet(RING)
    assert first == (QoS.TOTALLY_ORDERED, plain(b"a"))
    assert second is not None and second[0] is QoS.UNORDERED
    assert decode_packet(second[1])[0].foreign and len(second[1]) == PACKET_BYTES
    with pytest.raises(MessageTooBig, match="another protocol has 101 bytes, 100 are the most"):
        at.send_foreign(RING, b"\x10\0" + bytes(PACKET_BYTES - 1), now=0.0)
    assert packets(at) == []


@pytest.mark.parametrize("data", [b"", b"\x10", b"\x0f\xffxyz", bytearray(b"\x10\0")])
def test_a_typing_word_of_this_protocol_is_refused(data: Any) -> None:
    at = layer()
    with pytest.raises(EncodeError, match="data"):
        at.send_foreign(RING, data, now=0.0)
    assert packets(at) == []


def test_a_message_of_another_protocol_arrives_in_its_order() -> None:
    at = layer()
    at.send(RING, b"1" * 250, now=0.0)
    at.send_foreign(RING, b"\x10\x002", now=0.0)
    while out := packets(at):
        receive(at, *out, source=ME)
    first, second = events(at)
    assert isinstance(first, Delivered) and second == Foreign(RING, ME, b"\x10\x002")


# --- several rings --------------------------------------------------------------------------


def test_rings_of_one_process_have_one_counter_and_a_name_for_the_process_each() -> None:
    at = MessagingLayer(first_number=7)
    at.add_ring("a", 100, ME)
    at.add_ring("b", 100, THIRD)
    asked = []
    for ring in ("a", "b", "a"):
        at.request(ring, b"?", now=0.0, want=Want.STREAM, timeout_s=1.0)
        packet = at.next_packet(ring)
        assert packet is not None
        asked.append(decode_packet(packet[1])[0].message_number)
    assert asked == [7, 8, 9]
    assert (at.process_id("a"), at.process_id("b")) == (ME, THIRD)
    named = plain(b"!", reply_message_number=8, reply_source=ME)
    at.receive("b", YOU, named, qos=QoS.TOTALLY_ORDERED, now=0.0)
    assert [type(event) for event in events(at)] == [Delivered]  # b has another name for it
    named = plain(b"!", reply_message_number=8, reply_source=THIRD)
    at.receive("b", YOU, named, qos=QoS.TOTALLY_ORDERED, now=0.0)
    assert [type(event) for event in events(at)] == [Replied, Delivered]
    with pytest.raises(UsageError, match="ring c has no name for this process"):
        at.add_ring("c", 100)


def test_requests_end_when_their_ring_is_left() -> None:
    at = MessagingLayer(ME, first_number=0)
    at.add_ring("a", 100)
    at.add_ring("b", 100)
    for ring in ("a", "b"):
        at.request(ring, b"?", now=0.0, want=Want.STREAM, timeout_s=1.0)
    at.remove_ring("a", now=0.0)
    found = events(at)
    assert [getattr(event, "reason", None) for event in found] == ["cancelled"]
    with pytest.raises(UsageError, match="ring a is not known"):
        at.send("a", b"x", now=0.0)
    assert at.next_packet("b") is not None
    at.add_ring("a", 100)
    assert at._rings["a"].reassembly(Order.TOTAL, ME).idle
