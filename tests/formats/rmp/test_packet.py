"""RMP messages: golden packets, every combination of flags, every broken rule, encoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import wireyard
from tests.formats.rmp.make import (
    ALL_FLAGS,
    CLIENT,
    DOMAIN,
    MORE,
    REPLY_TO,
    REQUESTED,
    SEGMENT,
    framed,
    message,
    random_packet,
    take_apart,
)
from tests.formats.rmp.subject import FORMATS
from tests.readings import table_of
from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated
from wireyard.formats.rmp.packet import (
    Message,
    Packet,
    decode,
    decode_packet,
    encode,
    encode_packet,
    packet_of,
    read_row,
)

FRAMED = FORMATS["rmp/framed"].context
LIST_ORDER = FORMATS["rmp/list-order"].context

OPTIONAL = (
    "foreign", "message_number", "packet_number", "packet_count", "domain", "client",
    "reply_message_number", "reply_source",
)  # fmt: skip
SOURCE = "10.0.0.7:7001"
REPLY = Message(reply_message_number=258, reply_source=SOURCE, data=b"ok")
GOLDEN: dict[str, tuple[str, bool, tuple[Message, ...]]] = {
    "plain": ("0000 6869", False, (Message(data=b"hi"),)),
    "reply requested": (
        "0842 0102 0001 0001 3f",
        False,
        (
            Message(
                layer=2, message_number=258, packet_number=1, packet_count=1,
                reply_requested=True, data=b"?",
            ),
        ),
    ),
    "segment 1 of 3": (
        "0e00 0007 0001 0003 0005 0009 41414141",
        False,
        (
            Message(
                message_number=7, packet_number=1, packet_count=3, domain=5, client=9,
                data=b"AAAA",
            ),
        ),
    ),
    "segment 2 of 3": (
        "0800 0007 0002 0003 42424242",
        False,
        (Message(message_number=7, packet_number=2, packet_count=3, data=b"BBBB"),),
    ),
    "reply": ("0102 0102 0a000007 1b59 6f6b", False, (replace(REPLY, layer=2),)),
    "three messages": (
        "0480 0001 0001 61 0080 0000 0000 636363",
        False,
        (
            Message(domain=1, more_follows=True, data=b"a"),
            Message(more_follows=True),
            Message(data=b"ccc"),
        ),
    ),
    "flag order": (
        "0180 0102 0a000007 1b59 0002 6f6b 0000 7a",
        False,
        (replace(REPLY, more_follows=True), Message(data=b"z")),
    ),
    "list order": (
        "0180 0002 0102 0a000007 1b59 6f6b 0000 7a",
        True,
        (
            replace(REPLY, more_follows=True, list_order=True),
            Message(data=b"z", list_order=True),
        ),
    ),
    "foreign": ("1000 78797a", False, (Message(foreign=True, data=b"\x10\0xyz"),)),
    "all flags": (
        "0fc3 0001 0001 0001 0002 0003 0004 0a000007 1b59 0001 44 0000",
        False,
        (
            Message(
                layer=3, message_number=1, packet_number=1, packet_count=1, domain=2, client=3,
                reply_message_number=4, reply_source=SOURCE, reply_requested=True,
                more_follows=True, data=b"D",
            ),
            Message(),
        ),
    ),
}  # fmt: skip


def golden(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name][0])


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_packets(name: str) -> None:
    data, list_order, messages = bytes.fromhex(GOLDEN[name][0]), *GOLDEN[name][1:]
    assert decode_packet(data, list_order) == messages
    assert encode_packet(messages, list_order) == data
    assert b"".join(map(encode, messages)) == data


def test_shared_vectors_are_the_golden_packets(shared: Path) -> None:
    vectors = json.loads((shared / "vectors" / "rmp" / "vectors.json").read_text())
    assert [bytes.fromhex(vector["hex"]) for vector in vectors] == [golden(name) for name in GOLDEN]


def test_layers_have_names_and_any_layer_is_read() -> None:
    names = [decode(message(layer)).layer_name for layer in range(64)]
    assert names == ["messaging", "streams", "RPC", "replicated object"] + [None] * 60
    assert read_row(message(63))[0]["layer"] == 63
    assert read_row(message(2))[0]["layer_name"] == "RPC"


@pytest.mark.parametrize("list_order", [False, True])
@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_every_combination_of_flags(flags: int, list_order: bool) -> None:
    first = message(flags | 9, b"data", list_order=list_order)
    packet = first + (message(1, b"last") if flags & MORE else b"")
    expected = take_apart(packet, list_order=list_order)
    assert expected is not None
    found = decode_packet(packet, list_order)
    for message_of, said in zip(found, expected, strict=True):
        assert message_of.typing == said["typing"]
        for name in OPTIONAL:
            assert getattr(message_of, name) == said.get(name), name
        assert message_of.data == said["data"]
        assert message_of.more_follows is said["more_follows"]
        assert message_of.reply_requested is said["reply_requested"]
    assert encode_packet(found, list_order) == packet
    same = message(flags | 9, b"data", list_order=not list_order) == first
    assert same is not (flags & MORE and flags & REPLY_TO)


def test_random_packets_come_back() -> None:
    rng = Random(1)
    for place in range(500):
        packet = random_packet(rng, list_order=place % 2 == 1)
        found = decode_packet(packet, place % 2 == 1)
        assert encode_packet(found, place % 2 == 1) == packet
        assert b"".join(map(encode, found)) == packet


@pytest.mark.parametrize(
    "packet",
    [
        message(SEGMENT | DOMAIN | CLIENT | REPLY_TO | REQUESTED, b"x", segment=(7, 2, 3)),
        message(SEGMENT | MORE, b"x", segment=(7, 2, 3)) + message(),
        message(REQUESTED, b"x"),
        message(DOMAIN, b"x", domain=0),
        message(CLIENT, b"x", client=0),
        message(63, b"x"),
        message(MORE) + message(61) + message(),
    ],
)
def test_what_a_sender_should_not_send_is_read(packet: bytes) -> None:
    """Errata R9, R10, R15, R21, R22: receivers can tell what is meant."""
    assert encode_packet(decode_packet(packet)) == packet


@pytest.mark.parametrize("label", FORMATS)
@pytest.mark.parametrize("name", GOLDEN)
def test_a_whole_packet_is_all_its_messages_and_goes_back(name: str, label: str) -> None:
    listed, laid_out = "list-order" in label, framed if "framed" in label else bytes
    messages = tuple(replace(one, list_order=listed) for one in GOLDEN[name][2])
    data = laid_out(encode_packet(messages, listed))
    whole = wireyard.decode(data, label)
    assert [one.data for one in whole] == [one.data for one in messages]
    assert wireyard.encode(whole) == data
    nothing_behind = encode(Message(domain=1, more_follows=True, list_order=listed, data=b"x"))
    with pytest.raises(Malformed, match="another message follows, none does"):  # errata R19
        wireyard.decode(laid_out(nothing_behind), label)
    if laid_out is framed:
        for wrong in (data[:1], data[:-1], data + b"x"):
            with pytest.raises(DecodeError, match="packet"):
                wireyard.decode(wrong, label)
        with pytest.raises(EncodeError, match="framed_bytes"):
            first = replace(whole[0], framed_bytes=len(data))
            wireyard.encode(Packet((first, *whole[1:])))


# --- broken packets -------------------------------------------------------------------------

BROKEN: dict[str, tuple[bytes, type[DecodeError], str, str, int]] = {
    "empty": (b"", Malformed, "empty_packet", "packet", 0),
    "half a word": (b"\0", Truncated, "truncated", "typing information", 0),
    "no segment": (
        message(SEGMENT)[:7], Truncated, "truncated", "segmentation and reassembly", 2,
    ),
    "no domain": (message(DOMAIN)[:3], Truncated, "truncated", "domain filtering", 2),
    "no client": (message(CLIENT)[:2], Truncated, "truncated", "multiple clients", 2),
    "no reply-to": (message(REPLY_TO)[:9], Truncated, "truncated", "reply to", 2),
    "no length": (message(MORE)[:3], Truncated, "truncated", "multiplexing packets", 2),
    "data beyond the end": (
        message(MORE, b"abc", length=4), Truncated, "truncated", "data", 4,
    ),
    "nothing follows": (message(MORE, b"a"), Malformed, "nothing_follows", "more follows", 5),
    "packet 0 of 3": (
        message(SEGMENT, segment=(7, 0, 3)), Malformed, "malformed", "packet number", 4,
    ),
    "packet 0 of 0": (
        message(SEGMENT, segment=(7, 0, 0)), Malformed, "malformed", "packet number", 4,
    ),
    "packet 1 of 0": (
        message(SEGMENT, segment=(7, 1, 0)), Malformed, "malformed", "packet number", 4,
    ),
    "packet 4 of 3": (
        message(SEGMENT, segment=(7, 4, 3)), Malformed, "malformed", "packet number", 4,
    ),
    "second message empty": (
        message(MORE, b"a") + message(MORE, b"b"), Malformed, "nothing_follows", "more follows", 10,
    ),
    "second message cut": (message(MORE, b"a") + b"\0", Truncated, "truncated",
                           "typing information", 5),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    data, kind, code, field, offset = BROKEN[name]
    assert take_apart(data) is None
    with pytest.raises(kind) as caught:
        decode_packet(data)
    error = caught.value
    assert (error.code, error.field, error.offset) == (code, field, offset)
    assert error.format == "rmp" and error.spec.startswith("RMP messaging layer")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_framed_packet_is_one_malformed_row(name: str) -> None:
    data, kind, code, field, offset = BROKEN[name]
    row, error = read_row(framed(data), FRAMED)
    assert isinstance(error, kind)
    assert (error.code, error.field, error.offset) == (code, field, offset + 2)
    assert row["packet_offset"] == 0
    with pytest.raises(kind):
        decode(framed(data), FRAMED)


def test_a_malformed_row_shows_the_message_at_fault() -> None:
    packet = message(MORE | DOMAIN, b"a", domain=3) + message(SEGMENT | 2, b"b", segment=(7, 9, 3))
    row, error = read_row(packet)
    assert error is not None
    shown = {name: row.get(name) for name in ("message_in_packet", "layer", "domain", "data")}
    assert shown == {"message_in_packet": 1, "layer": 2, "domain": None, "data": None}
    assert (row["message_number"], row["packet_number"], row["packet_count"]) == (7, 9, 3)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_shorter_prefix(name: str) -> None:
    """A packet has no length of its own, so a shorter one may be another packet."""
    data, list_order = golden(name), GOLDEN[name][1]
    for size in range(len(data)):
        expected = take_apart(data[:size], list_order=list_order)
        if expected is None:
            with pytest.raises(DecodeError):
                decode_packet(data[:size], list_order)
        else:
            assert len(decode_packet(data[:size], list_order)) == len(expected)
    assert len(decode_packet(data + b"more", list_order)) == len(GOLDEN[name][2])


@pytest.mark.parametrize("name", GOLDEN)
def test_every_shorter_prefix_of_a_framed_packet_is_refused(name: str) -> None:
    messages = GOLDEN[name][2]
    data = framed(golden(name))
    context = FORMATS["rmp/framed-list-order" if GOLDEN[name][1] else "rmp/framed"].context
    first = 2 + len(encode(messages[0]))
    for size in range(len(data)):
        row, error = read_row(data[:size], context)
        if len(messages) > 1 and size == first:
            assert error is None and row["data"] == messages[0].data
        else:
            assert isinstance(error, Truncated) and error.available < error.needed


def test_decode_and_read_row_agree_on_damage() -> None:
    rng = Random(5)
    contexts = [format.context for format in FORMATS.values()]
    for _ in range(3000):
        packet = bytearray(random_packet(rng))
        for _ in range(rng.randrange(3)):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        context = rng.choice(contexts)
        data = framed(bytes(packet)) if context & FRAMED else bytes(packet)
        data = data[: rng.choice((len(data), rng.randrange(len(data) + 1)))]
        _, error = read_row(data, context)
        try:
            found = decode(data, context)
        except DecodeError as raised:
            assert error is not None and raised.row() == error.row()
        else:
            assert error is None
            assert encode(found) == data


# --- encoding -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer": 64}, "layer"),
        ({"layer": -1}, "layer"),
        ({"message_number": 1}, "packet_number"),
        ({"packet_number": 1, "packet_count": 1}, "message_number"),
        ({"message_number": 1, "packet_number": 0, "packet_count": 1}, "packet_number"),
        ({"message_number": 1, "packet_number": 2, "packet_count": 1}, "packet_number"),
        ({"message_number": 65536, "packet_number": 1, "packet_count": 1}, "message_number"),
        ({"domain": 65536}, "domain"),
        ({"domain": -1}, "domain"),
        ({"client": "x"}, "client"),
        ({"reply_source": SOURCE}, "reply_message_number"),
        ({"reply_message_number": 1}, "reply_source"),
        *(
            ({"reply_message_number": 1, "reply_source": source}, "reply_source")
            for source in ("", "1.2.3.4", "1.2.3:4", "1.2.3.256:4", "1.2.3.4:65536", "::1:4",
                           "1.2.3.-4:5", "1.2.3.4:٣", "1.2.3.4.5:6")
        ),
        ({"data": "text"}, "data"),
        ({"data": bytes(65536), "more_follows": True}, "data_size"),
        ({"foreign": True, "data": b"\x0f\xff"}, "data"),
        ({"foreign": True, "data": b"\x10"}, "data"),
        ({"foreign": True, "data": b"\x10\0", "more_follows": True}, "more_follows"),
        ({"framed_bytes": 3, "data": b"x"*2}, "framed_bytes"),
        ({"framed_bytes": 5, "data": b"x"*2}, "framed_bytes"),
        ({"framed_bytes": 65536, "data": bytes(65534)}, "framed_bytes"),
    ],
)  # fmt: skip
def test_what_has_no_form_on_the_wire_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(Message(**changes))
    assert caught.value.field == field


def test_a_packet_says_itself_which_messages_others_follow() -> None:
    messages = [Message(data=b"a"), Message(data=b"b", more_follows=True)]
    assert encode_packet(messages) == message(MORE, b"a") + message(0, b"b")
    with pytest.raises(EncodeError):
        encode_packet([])
    with pytest.raises(EncodeError):
        encode_packet([Message(foreign=True, data=b"\x10\0"), Message()])


@pytest.mark.parametrize("label", FORMATS)
def test_rows_go_back_to_their_bytes(label: str) -> None:
    context = FORMATS[label].context
    rng = Random(9)
    for _ in range(200):
        packet = random_packet(rng, list_order=bool(context & LIST_ORDER))
        expected = take_apart(packet, list_order=bool(context & LIST_ORDER))
        assert expected is not None
        if context & FRAMED:
            if len(expected) > 1:
                continue
            packet = framed(packet)
        else:
            packet = packet[: expected[0]["stop"]]
        row, error = read_row(packet, context)
        assert error is None
        assert encode(packet_of(row, context)) == packet


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_packet_alone_is_one_malformed_row(name: str) -> None:
    data, _, code, field, offset = BROKEN[name]
    if not data:
        return  # No stream is an empty packet.
    [row] = table_of(data, compiled=False, format="rmp").to_pylist()
    assert (row["status"], row["length"]) == ("malformed", len(data))
    assert [row["error"][name] for name in ("code", "field", "offset")] == [code, field, offset]


def test_a_row_does_not_tell_how_long_its_framed_packet_is() -> None:
    row, _ = read_row(framed(message(MORE, b"a") + message())[:7], FRAMED)
    with pytest.raises(EncodeError) as caught:
        packet_of(row, FRAMED)
    assert caught.value.field == "more_follows"
