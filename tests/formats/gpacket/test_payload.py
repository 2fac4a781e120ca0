"""Payloads opened, and the packets inside them."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import pytest

from tests.formats.gpacket.make import (
    CONSUMER_MARK,
    address,
    consumer,
    gpacket,
    link,
    message,
    record,
    variety,
)
from tests.formats.gpacket.subject import SUBJECT
from tests.make import packet as jmq_packet
from tests.make import section, text
from tests.mutations import mutate_packet
from wireyard.errors import DecodeError
from wireyard.formats.base import Nested
from wireyard.formats.gpacket import FORMAT
from wireyard.formats.gpacket.packet import read_row

ADDRESS = {"host": "10.0.0.1", "instance": "wy1", "port": 7676}
CONSUMER = {"consumer_id": 7, "connection_id": 8, "broker": ADDRESS}
MESSAGE_ID = struct.pack(">q16sii", 1105948800061, bytes(10) + b"\xff\xff\xc0\xa8\1\x11", 49152, 62)
MESSAGE_ID_TEXT = "62-192.168.1.17-49152-1105948800061"
RECORD = {
    "destination": "t1",
    "consumer": CONSUMER,
    "client_id": "client",
    "durable_name": None,
    "selector": "a > 1",
    "queue": False,
    "no_local": True,
    "active": True,
    "max_active": 3,
    "lock_position": -1,
    "jms_shared": True,
    "subscription_name": "shared",
}
OBJECT = bytes.fromhex("aced0005 73 72 0003 612e42 0000000000000001 02 0000 78 70")
"""An object of class a.B without fields."""


def value_of(data: bytes) -> Any:
    row, error = read_row(data)
    assert error is None
    return FORMAT.body.views["value"](row)


def payload(packet_type: int, data: bytes, **properties: int) -> bytes:
    entries = ((name, 4, number) for name, number in properties.items())
    return gpacket(packet_type=packet_type, properties=section(*entries), payload=data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (message(b"jmq", 1), {"consumers": [{**CONSUMER, "consumer_id": 0}], "packet": b"jmq"}),
        (message(b"jmq", 0), {"consumers": [], "packet": b"jmq"}),
        (payload(3, MESSAGE_ID + consumer()),
         [{"sys_message_id": MESSAGE_ID_TEXT, "consumer": CONSUMER}]),
        (payload(4, (MESSAGE_ID + consumer()) * 2),
         [{"sys_message_id": MESSAGE_ID_TEXT, "consumer": CONSUMER}] * 2),
        (payload(5, record()), [RECORD]),
        (payload(5, record() + record(), C=2), [RECORD, RECORD]),
        (payload(35, record(old=True)), [dict(list(RECORD.items())[:8])]),
        (payload(7, text("durable") + text("")), {"durable_name": "durable", "client_id": ""}),
        (payload(9, consumer() + consumer()), [CONSUMER, CONSUMER]),
        (payload(13, section(("max", 5, -1))), {"max": {"type": "long", "value": -1}}),
        (payload(46, OBJECT), {"class": "a.B", "data": OBJECT}),
        (link(3, OBJECT), {"class": "a.B", "data": OBJECT}),
        (link(5, b"old"), b"old"),
        (payload(12, b"any"), b"any"),
        (gpacket(packet_type=5), None),
        (link(4), None),
    ],
)  # fmt: skip
def test_values(data: bytes, value: Any) -> None:
    assert value_of(data) == value


def link_init(level: int, rest: bytes) -> bytes:
    head = struct.pack(">i", level) + text("10.0.0.1") + text("wy1") + struct.pack(">i", 7676)
    return link(4, head + rest)


def test_link_init_of_every_level() -> None:
    plain = {"broker": ADDRESS, "master": None, "match": {"k": "v"}}
    match = b"\0" + struct.pack(">i", 1) + text("k") + text("v")
    assert value_of(link_init(350, match)) == {"protocol_level": 350, **plain}
    session = struct.pack(">q", 9)
    found = value_of(link_init(500, match + b"\0\0" + session + b"\0"))
    expected: dict[str, Any] = {
        "ha": False,
        "broker_id": None,
        "broker_session": 9,
        "store_session": None,
    }
    assert found == {"protocol_level": 500, **plain, **expected}
    found = value_of(link_init(400, match + b"\1\1" + text("b") + session + session))
    expected = {"ha": True, "broker_id": "b", "broker_session": 9, "store_session": 9}
    assert found == {"protocol_level": 400, **plain, **expected}
    master = b"\1" + text("10.0.0.1") + text("wy1") + struct.pack(">ii", 7676, 0)
    assert value_of(link_init(-5000, master))["master"] == ADDRESS


def test_text_is_json_with_bytes_in_hex() -> None:
    row, _ = read_row(message(b"\1\xff", 1))
    found = FORMAT.body.views["text"](row)
    assert json.loads(found)["packet"] == "01ff"
    assert FORMAT.body.views["text"](read_row(payload(12, b"\1\xff"))[0]) == "01ff"
    assert FORMAT.body.views["text"](read_row(gpacket())[0]) is None


@pytest.mark.parametrize(
    ("data", "field", "at"),
    [
        (payload(1, consumer() + consumer()[:-1], C=2), "port", 2 * len(consumer()) - 4),
        (gpacket(payload=consumer()), "C", 0),
        (payload(1, consumer(), C=-1), "C", 0),
        (gpacket(properties=section(("C", 8, "1")), payload=consumer()), "C", 0),
        (payload(3, MESSAGE_ID), "consumer id", 32),
        (payload(3, MESSAGE_ID[:-1]), "message id", 0),
        (payload(9, consumer() + b"\0"), "consumer id", len(consumer())),
        (payload(9, struct.pack(">qqi", 1, 2, 101)), "broker address version", 16),
        (payload(5, b"\0" * 8), "consumer record mark", 0),
        (payload(5, CONSUMER_MARK), "destination length", 8),
        (payload(5, CONSUMER_MARK + b"\0\1\xff"), "destination", 10),
        (payload(7, text("d") + text("c") + b"?"), "payload", 6),
        (payload(13, section(("a", 77, b"?"))), "property type", 11),
        (payload(46, OBJECT[:-1]), "payload", None),
        (payload(46, OBJECT + OBJECT[4:]), "payload", 0),
        (payload(35, record() + b"\0"), "consumer record mark", len(record())),
    ],
)
def test_a_payload_that_is_not_what_its_type_says_is_an_error(
    data: bytes, field: str, at: int | None
) -> None:
    row, error = read_row(data)
    assert error is None
    with pytest.raises(DecodeError) as caught:
        FORMAT.body.views["value"](row)
    assert caught.value.field == field
    if at is not None:
        assert caught.value.offset == 36 + row["property_size"] + at


@pytest.mark.parametrize("cut", range(1, len(record())))
def test_every_shorter_record_is_an_error_or_ends_where_old_ones_end(cut: int) -> None:
    data = payload(5, record()[:cut])
    if cut == len(record(old=True)):
        assert value_of(data) == [dict(list(RECORD.items())[:8])]
        return
    with pytest.raises(DecodeError):
        value_of(data)


# --- packets inside -------------------------------------------------------------------------


def test_a_message_has_its_jmq_packet() -> None:
    inner = jmq_packet(body=b"hello")
    for consumers in (0, 1, 5):
        data = message(inner, consumers)
        [found] = FORMAT.inner.nested(data, 0)
        assert found == Nested("jmq", len(data) - len(inner), len(data))
        assert data[found.start : found.stop] == inner


@pytest.mark.parametrize("packet_type", [17, 20, 51])
@pytest.mark.parametrize("documented", [False, True])
def test_changes_have_their_gpackets(packet_type: int, documented: bool) -> None:
    inner = [gpacket(packet_type=15), gpacket(payload=b"xyz", documented=True), gpacket()]
    data = gpacket(packet_type=packet_type, payload=b"".join(inner), documented=documented)
    found = FORMAT.inner.nested(memoryview(data), 0)
    assert [(each.format, data[each.start : each.stop]) for each in found] == [
        ("gpacket", packet) for packet in inner
    ]


def test_what_cannot_be_found_is_left_out() -> None:
    whole = gpacket()
    for rest in (b"\0" * 40, whole[:-1], whole[:11], gpacket(size=5)):
        [found] = FORMAT.inner.nested(gpacket(packet_type=17, payload=whole + rest), 0)
        assert (found.start, found.stop) == (36, 72)
    for data in (
        gpacket(payload=consumer()),  # no count
        payload(1, consumer(), C=2),
        payload(1, consumer(), C=1),  # consumers, but no packet
        payload(1, consumer(), C=2**31 - 1),
        payload(3, MESSAGE_ID + consumer()),
        gpacket(packet_type=17),
        gpacket(version=351, packet_type=17, payload=whole),
        link(1, whole),
        whole[:20],
        b"",
    ):
        assert FORMAT.inner.nested(data, 0) == ()


def test_damaged_packets_give_a_value_or_a_decode_error() -> None:
    rng = Random(5)
    good = [
        message(jmq_packet(), 2), payload(3, MESSAGE_ID + consumer()), payload(5, record() * 2),
        payload(9, consumer()), payload(13, section(("a", 8, "b"))), payload(46, OBJECT),
        link_init(500, b"\0" + bytes(4) + b"\0\0" + bytes(9)), link(3, OBJECT), *variety()[:11],
        payload(17, gpacket() * 3), payload(7, text("d") + text("c")), payload(0, address()),
    ]  # fmt: skip
    opened = 0
    for _ in range(6000):
        data = mutate_packet(rng.choice(good), rng, SUBJECT)
        assert all(each.stop <= len(data) for each in FORMAT.inner.nested(data, 0))
        row, _ = read_row(data)
        try:
            FORMAT.body.views["text"](row)
        except DecodeError as error:
            assert 0 <= error.offset <= len(data)
        else:
            opened += 1
    assert opened > 1000
