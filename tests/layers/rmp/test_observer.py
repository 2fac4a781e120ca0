"""What a capture of RMP packets shows: messages as a receiver has them, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest

from tests.formats.rmp.make import framed
from tests.layers.rmp.captured import Sent, breaches, messages, rows_of, watch
from tests.layers.rmp.make import (
    ME,
    RING,
    YOU,
    delivered,
    layer,
    packets,
    plain,
    receive,
    segment,
)
from tests.readings import table_of
from wireyard.formats.rmp.packet import Message, encode_packet
from wireyard.layers.records import Violation
from wireyard.layers.rmp import Limits, MessageId, QoS, Want
from wireyard.layers.rmp.limits import NUMBERS, Drop
from wireyard.layers.rmp.observer import Observer, Seen, observe
from wireyard.layers.rmp.violations import RULES

UNRELIABLE: dict[str, Any] = {"qos": QoS.UNRELIABLE, "now": 0.0}


def every(period_s: float, sent: Sequence[bytes]) -> list[Sent]:
    return [Sent(packet, number * period_s) for number, packet in enumerate(sent)]


def live(datagrams: Sequence[Sent]) -> list[bytes]:
    """Return what the layer of a process that receives the same datagrams delivers."""
    receiver = layer(members=None)
    for number in range(64):
        receiver.register_layer(number)
    for packet, at_s, _, _ in datagrams:
        receiver.handle_timer(at_s)
        receiver.receive(RING, YOU, packet, qos=QoS.UNRELIABLE, now=at_s)
    return delivered(receiver)


# --- messages -------------------------------------------------------------------------------


def test_what_a_layer_sends_is_seen() -> None:
    sender = layer(members=None)
    sender.register_layer(2)
    sent = [b"small", b"s" * 70, b"large " * 50, b"", b"again" * 300]
    for data in sent[:3]:
        sender.send(RING, data, **UNRELIABLE, client=9, domain=5)
    sender.request(RING, sent[3], **UNRELIABLE, want=Want.STREAM, timeout_s=1.0, layer=2)
    sender.send(RING, sent[4], **UNRELIABLE, reply_to=MessageId(YOU, 77))
    sender.flush()
    found = watch(*every(0.0001, packets(sender)))
    assert messages(found) == sent and not breaches(found)
    seen = [one for one in found if isinstance(one, Seen)]
    assert [(one.fields.client, one.fields.domain) for one in seen] == [(9, 5)] * 3 + [
        (None, None)
    ] * 2
    assert [one.fields.reply_requested for one in seen] == [False] * 3 + [True, False]
    assert (seen[3].fields.layer, seen[3].fields.message_number) == (2, 0xFFF1)
    assert (seen[4].fields.reply_source, seen[4].fields.reply_message_number) == (YOU, 77)


def test_a_message_has_the_positions_of_its_packets() -> None:
    one, other = (
        [segment(number, place, 3, data * place) for place in (1, 2, 3)]
        for number, data in ((7, b"a"), (8, b"b"))
    )
    sent = [one[0], other[0], other[1], plain(b"x"), other[2], one[2], one[1]]
    found = watch(*every(0.001, sent))
    assert messages(found) == [b"x", b"bbbbbb", b"aaaaaa"]
    x, b, a = (one for one in found if isinstance(one, Seen))
    assert [at.frame for at in a.packets] == [1, 6, 7]
    assert [at.frame for at in b.packets] == [2, 3, 5]
    assert [at.offset for at in a.packets] == [
        sum(len(packet) for packet in sent[: n - 1]) for n in (1, 6, 7)
    ]
    assert (x.packets[0].frame, x.length) == (4, 3)
    assert all(at.ns is not None for at in a.packets)


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_a_message_that_a_view_cut_is_there_once(seen: int) -> None:
    """Its sender sends it again under its number; the ring may have carried the tail or not."""
    sender = layer()
    sender.send(RING, b"cut" * 80, now=0.0)
    sender.send(RING, b"later", now=0.0, urgent=True)
    first = [sender.next_packet(RING) for _ in range(seen)]
    carried = [packet for _, packet in filter(None, first)]
    receive(sender, carried[0], source=ME)
    sender.view(RING, (ME, YOU), now=0.0)
    receive(sender, *carried[1:], source=ME)
    again = packets(sender)
    receive(sender, *again, source=ME)
    found = watch(*every(0.001, [*carried, *again, *packets(sender)]))
    assert messages(found) == [b"cut" * 80, b"later"] and not breaches(found)


def test_messages_of_one_packet_have_positions_of_their_own() -> None:
    packet = encode_packet([Message(data=b"a"), Message(data=b"bb"), Message(data=b"c")])
    found = watch(Sent(packet), Sent(plain(b"d"), 1.0))
    seen = [one for one in found if isinstance(one, Seen)]
    assert [(one.packets[0].offset, one.length, one.packets[0].frame) for one in seen] == [
        (0, 5, 1), (5, 6, 1), (11, 3, 1), (14, 3, 2),
    ]  # fmt: skip


def test_foreign_messages_are_messages() -> None:
    found = watch(Sent(b"\x10\0xyz"))
    assert messages(found) == [b"\x10\0xyz"] and not breaches(found)
    assert isinstance(found[0], Seen) and found[0].fields.layer is None


@pytest.mark.parametrize("seed", range(40))
def test_a_receiver_delivers_what_is_seen(seed: int) -> None:
    """Packets lost, late and out of order: the layer itself is the judge."""
    rng = Random(seed)
    sender = layer(members=None, first_number=rng.choice((0, 0xFFF0)))
    for number in range(40):
        size = rng.choice((0, 3, 50, 90, 100, 300, 2000))
        data = number.to_bytes(2, "big") + rng.randbytes(size)
        domain = rng.choice((None, 1, 2))
        sender.send(RING, data, **UNRELIABLE, domain=domain, layer=rng.randrange(4))
    sender.flush()
    datagrams, at_s = [], 0.0
    for packet in packets(sender):
        at_s += rng.choice((0.0001, 0.0001, 0.01, 3.0))
        if rng.random() > 0.05:
            datagrams.append(Sent(packet, at_s))
    if seed % 2:
        for _ in range(5):
            at = rng.randrange(len(datagrams) - 1)
            one, other = datagrams[at], datagrams[at + 1]
            datagrams[at : at + 2] = other._replace(at_s=one.at_s), one._replace(at_s=other.at_s)
    found = messages(watch(*datagrams))
    assert found == live(datagrams) and len(found) > 10


def test_the_list_order_is_another_reading() -> None:
    fields: dict[str, Any] = {"reply_message_number": 258, "reply_source": "10.0.0.7:7001"}
    packet = encode_packet([Message(data=b"ok", **fields), Message(data=b"z")], list_order=True)
    found = watch(Sent(packet), label="rmp/list-order")
    assert messages(found) == [b"ok", b"z"]
    assert breaches(found) == []


def test_a_raw_stream_has_messages_too() -> None:
    parts = [segment(7, place, 3, b"a") for place in (1, 2, 3)]
    table = table_of(framed(*parts, plain(b"b"), plain(b"b")), compiled=False, format="rmp/framed")
    nulls = dict.fromkeys(("captured_ns", "frame", "src_addr", "src_port", "dst_addr", "dst_port"))
    found = list(observe(({**row, **nulls} for row in table.to_pylist()), Observer()))
    assert messages(found) == [b"aaa", b"b", b"b"] and not breaches(found)


# --- packets that come again ----------------------------------------------------------------


def test_a_packet_that_comes_again_is_one() -> None:
    parts = [segment(7, place, 2, b"part") for place in (1, 2)]
    request = segment(8, 1, 1, b"?", reply_requested=True)
    sent = [parts[0], parts[0], parts[1], parts[1], request, parts[0], request]
    observer = Observer()
    found = [*observe(rows_of(every(1.0, sent)), observer)]
    assert messages(found) == [b"partpart", b"?"] and not breaches(found)
    assert observer.dropped == {Drop.REPEAT: 4}


def test_a_number_may_be_used_again_later() -> None:
    request = segment(8, 1, 1, b"?", reply_requested=True)
    assert messages(watch(Sent(request), Sent(request, 9.9))) == [b"?"]
    assert messages(watch(Sent(request), Sent(request, 10.1))) == [b"?", b"?"]
    assert messages(watch(Sent(request), Sent(segment(8, 1, 1, b"!"), 0.1))) == [b"?", b"!"]


def test_equal_packets_without_a_number_are_one_if_a_sender_would_have_packed_them() -> None:
    tick, full = plain(b"tick"), plain(bytes(1398))
    assert messages(watch(Sent(tick), Sent(tick, 0.0005))) == [b"tick"]
    assert messages(watch(Sent(tick), Sent(tick, 0.0011))) == [b"tick", b"tick"]
    assert len(messages(watch(Sent(full), Sent(full, 0.0005)))) == 2
    packed = encode_packet([Message(data=b"tick")] * 2)
    assert messages(watch(Sent(packed))) == [b"tick", b"tick"]
    assert messages(watch(Sent(plain(b"a")), Sent(plain(b"b")))) == [b"a", b"b"]


def test_a_clock_that_is_set_back_goes_on() -> None:
    tick = plain(b"tick")
    times = (100.0, 100.5, 3.0, 3.5, 4.0, 4.0005)
    found = watch(*(Sent(tick, at_s) for at_s in times))
    assert len(messages(found)) == 4
    unfinished = [Sent(PARTS[0], 100.0), *(Sent(plain(b"x"), at_s) for at_s in (3.0, 5.0, 8.5))]
    assert breaches(watch(*unfinished)) == ["incomplete"]


def test_what_is_remembered_of_packets_is_bounded() -> None:
    observer = Observer()
    row = rows_of([Sent(segment(0, 1, 1, b""))])[0]
    for number in range(NUMBERS + 10):
        data = number.to_bytes(4, "big")
        sent = row | {"message_number": number % NUMBERS, "data": data}
        list(observer.receive([sent]))
    assert len(observer._repeats._seen) == NUMBERS


# --- what is wrong --------------------------------------------------------------------------

PARTS = [segment(7, place, 3, b"abc"[place - 1 : place]) for place in (1, 2, 3)]
FIRST: dict[str, Any] = {"message_number": 7, "packet_number": 1, "packet_count": 3}
BROKEN: dict[str, tuple[list[bytes], list[str], list[bytes], str]] = {
    "not well-formed": ([b"\x08\0"], ["malformed_packet"], [], "'segmentation and reassembly'"),
    "nothing follows": ([b"\0\x80\0\x01a"], ["malformed_packet"], [], "another message follows"),
    "a later packet with a domain": (
        [PARTS[0], segment(7, 2, 3, b"b", domain=4), PARTS[2]], ["later_fields"], [b"abc"],
        "only the first",
    ),
    "a later packet that asks": (
        [PARTS[0], segment(7, 2, 3, b"b", reply_requested=True), PARTS[2]], ["later_fields"],
        [b"abc"], "only the first",
    ),
    "a request nobody can reply to": (
        [plain(b"?", reply_requested=True)], ["reply_not_addressable"], [b"?"], "without a number",
    ),
    "another count": (
        [PARTS[0], segment(7, 2, 4, b"b"), PARTS[2]], ["count_changed", "incomplete"], [],
        "3 packets, then 4",
    ),
    "another layer": (
        [PARTS[0], segment(7, 2, 3, b"b", layer=2)], ["layer_changed"], [], "layer 0, then for 2",
    ),
    "other data": (
        [*PARTS[:2], segment(7, 2, 3, b"B"), PARTS[2]], ["packet_changed", "incomplete"], [],
        "packet 2 came again",
    ),
    "begun anew": (
        [*PARTS[:2], segment(7, 1, 2, b"x"), segment(7, 2, 2, b"y")], ["restarted"], [b"xy"],
        "2 of 3 packets when",
    ),
    "one lost": ([PARTS[0], PARTS[2]], ["incomplete"], [], "2 of 3 packets when the capture ends"),
    "first lost": (PARTS[1:], ["incomplete"], [], "2 of 3 packets when the capture ends"),
    "two first ones lost": (
        [*PARTS[1:], segment(9, 2, 2, b"")], ["incomplete", "incomplete"], [],
        "message 7: 2 of 3 packets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_has_a_name(name: str) -> None:
    sent, rules, data, text = BROKEN[name]
    found = watch(*every(0.002, sent))
    assert (breaches(found), messages(found)) == (rules, data)
    first = next(one for one in found if isinstance(one, Violation))
    assert text in first.text


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_a_message_is_whole_with_the_last_of_its_packets(order: tuple[int, ...]) -> None:
    """Its fields and its position are those of packet 1, wherever that comes."""
    first = segment(7, 1, 3, b"a", domain=4, client=5)
    sent = [(first, *PARTS[1:])[place] for place in order]
    [found] = watch(*every(0.002, sent))
    assert isinstance(found, Seen)
    assert (found.data, found.fields.domain, found.fields.client) == (b"abc", 4, 5)
    assert [at.frame for at in found.packets] == [
        1 + order.index(0),
        *(1 + n for n in range(3) if order[n]),
    ]


def test_another_message_with_the_number_does_not_become_part_of_it() -> None:
    found = watch(*every(0.002, [PARTS[1], segment(7, 1, 1, b"x"), PARTS[0], PARTS[2]]))
    assert (breaches(found), messages(found)) == (["restarted", "incomplete"], [b"x"])


REPLY: dict[str, Any] = {"reply_message_number": 1, "reply_source": YOU}
FINE: dict[str, tuple[list[bytes], list[bytes]]] = {
    "a message after a part": (
        [encode_packet([Message(data=b"a", **FIRST), Message(data=b"x")]), *PARTS[1:]],
        [b"x", b"abc"],
    ),
    "a message after a reply": (
        [encode_packet([Message(data=b"a", **REPLY), Message(data=b"b")])], [b"a", b"b"],
    ),
    "domain 0": ([plain(b"a", domain=0)], [b"a"]),
    "client 0": ([plain(b"a", client=0)], [b"a"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_no_rule_forbids_is_no_violation(name: str) -> None:
    sent, data = FINE[name]
    found = watch(*every(0.002, sent))
    assert (breaches(found), messages(found)) == ([], data)


def test_every_rule_is_shown() -> None:
    named = {rule for _, rules, _, _ in BROKEN.values() for rule in rules}
    assert named | {"over_bound", "cut_packet"} == set(RULES)


def test_a_message_that_takes_too_long_is_given_up() -> None:
    found = watch(Sent(PARTS[0]), Sent(PARTS[1], 1.0), Sent(plain(b"x"), 5.1), Sent(PARTS[2], 5.2))
    assert breaches(found) == ["incomplete"] * 2 and messages(found) == [b"x"]
    given_up, late = (one for one in found if isinstance(one, Violation))
    assert given_up.text == "message 7: 2 of 3 packets within 5 s"
    assert (given_up.at.frame, given_up.message_key) == (1, given_up.at.key)
    assert (late.at.frame, late.message_key) == (4, late.at.key)


def test_a_packet_of_which_the_end_is_missing_counts_for_nothing() -> None:
    whole, packet = plain(b"whole"), plain(b"0123456789")
    sent = [Sent(packet, captured_bytes=8), Sent(whole, 1.0), Sent(PARTS[0], captured_bytes=4)]
    rows = rows_of(sent)
    assert [row["status"] for row in rows] == ["ok", "gap", "ok", "malformed", "gap"]
    found = list(observe(rows, Observer()))
    assert messages(found) == [b"whole"]
    assert breaches(found) == ["cut_packet"] * 2
    assert [one.at.frame for one in found if isinstance(one, Violation)] == [1, 3]


# --- bounds ---------------------------------------------------------------------------------


def test_a_hostile_sender_fills_no_memory() -> None:
    limits = Limits(max_unfinished_of_source=3, max_message_bytes=100, max_held_bytes=10_000)
    many = [segment(number, 1, 2, b"x") for number in range(5)]
    found = watch(*every(0.002, many), limits=limits)
    assert breaches(found) == ["over_bound"] * 2 + ["incomplete"] * 3
    large = [segment(1, place, 9, bytes(40)) for place in range(1, 5)]
    found = watch(*every(0.002, large), limits=limits)
    assert breaches(found) == ["over_bound", "incomplete"]
    held = [segment(number, 1, 2, bytes(90)) for number in range(3)]
    found = watch(*every(0.002, held), limits=Limits(max_held_bytes=2000))
    assert breaches(found) == ["over_bound", "incomplete", "incomplete"]


def test_drops_are_counted() -> None:
    rows = rows_of(every(0.002, [*PARTS[1:], b"\x08\0", segment(9, 1, 2, b""), b"\0"]))
    observer = Observer()
    list(observe(rows, observer))
    assert observer.dropped == {
        Drop.MALFORMED: 2,
        Drop.ABORTED: 3,
    }
