"""The steps that look across connections: replies, relays, gaps in numbers."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from tests.layers.jmq.judge import derive
from tests.layers.jmq.make import MS, Talk, block, lose, message_id
from wireyard.formats.base import Row
from wireyard.formats.gpacket import FORMAT as GPACKET
from wireyard.formats.gpacket.packet import Packet as GPacket
from wireyard.formats.jmq.packet import Packet, encode
from wireyard.formats.properties import Properties, Property
from wireyard.layers.jmq.packet_row import relays

TEMPORARY = "temporary_destination://queue/10.0.0.9/50000/1"


def pairs(talk: Talk) -> list[tuple[str, str | None]]:
    """Return the JMS requests and their replies."""
    found = [row for row in talk.tables()["conversations"] if row["kind"] == "jms"]
    return [(row["request_key"], row["reply_key"]) for row in found]


# --- requests and replies -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({}, {"correlation_id": "ID:{key}"}),
        ({"correlation_id": "c-1"}, {"correlation_id": "c-1"}),
        ({"correlation_id": "c-1"}, {"correlation_id": "ID:{key}"}),
        ({"message_id": "mine"}, {"correlation_id": "ID:mine"}),
    ],
)
def test_what_a_reply_correlates_with(asked: dict[str, str], answered: dict[str, str]) -> None:
    talk = Talk().login()
    talk.send(reply_to="back")
    request = talk.send(destination="service", reply_to="back", **asked)
    key = request["sys_message_id"]
    correlation = answered["correlation_id"].format(key=key)
    talk.send(destination="other", correlation_id=correlation)
    reply = talk.send(destination="back", correlation_id=correlation)
    assert pairs(talk)[1:] == [(key, reply["sys_message_id"])]
    row = talk.tables()["conversations"][-1]
    assert (row["kind"], row["request"], row["latency_ms"]) == ("jms", "service", 2)
    assert (row["requested_frame"], row["replied_frame"]) == (request["frame"], reply["frame"])
    assert (row["stream"], row["offset"]) == (request["stream"], request["offset"])
    assert row["status"] is None


def test_several_replies_are_several_rows() -> None:
    talk = Talk().login()
    request = talk.send(reply_to="back")
    key = request["sys_message_id"]
    replies = [talk.send(destination="back", correlation_id=f"ID:{key}") for _ in range(3)]
    assert pairs(talk) == [(key, reply["sys_message_id"]) for reply in replies]


def test_one_at_a_time_needs_no_correlation() -> None:
    """A message to a temporary destination answers the oldest request that still waits there."""
    talk = Talk().login()
    first, second, third = (talk.send(reply_to=TEMPORARY)["sys_message_id"] for _ in range(3))
    late = talk.send(destination=TEMPORARY, correlation_id=f"ID:{second}")["sys_message_id"]
    one, two = (talk.send(destination=TEMPORARY)["sys_message_id"] for _ in range(2))
    talk.send(destination=TEMPORARY)
    assert pairs(talk) == [(first, one), (second, late), (third, two)]
    talk = Talk().login()
    request = talk.send(reply_to="queue")["sys_message_id"]
    talk.send(destination="queue")
    assert pairs(talk) == [(request, None)]


@pytest.mark.parametrize("lost", ["reply", "anything", "login"])
def test_the_order_of_replies_shows_nothing_where_packets_are_missing(lost: str) -> None:
    talk = Talk() if lost == "login" else Talk().login()
    requests = [talk.send(reply_to=TEMPORARY)["sys_message_id"] for _ in range(2)]
    later = talk.send(reply_to=TEMPORARY)["sys_message_id"]
    replies = [talk.send(destination=TEMPORARY) for _ in range(2)]
    named = talk.send(destination=TEMPORARY, correlation_id=f"ID:{later}")["sys_message_id"]
    if lost != "login":
        lose(replies[0] if lost == "reply" else talk.tell("PING"))
    assert pairs(talk) == [(requests[0], None), (requests[1], None), (later, named)]


def test_a_reply_is_known_where_the_requester_lacks_nothing() -> None:
    asker, service = Talk().login(), Talk(client=("10.0.0.8", 50008)).login()
    service.now_ms = asker.now_ms
    asker.consumer(7)
    service.consumer(8)
    request = asker.send(reply_to=TEMPORARY)
    lose(service.deliver(request, 8))
    reply = service.send(destination=TEMPORARY)
    asker.deliver(reply, 7)
    (row,) = (
        row for row in derive(asker.rows + service.rows)["conversations"] if row["kind"] == "jms"
    )
    assert (row["request_key"], row["reply_key"]) == (
        request["sys_message_id"], reply["sys_message_id"],
    )  # fmt: skip


def test_what_was_taken_back_or_refused_answers_nothing() -> None:
    talk = Talk().login()
    request = talk.send(reply_to="back")["sys_message_id"]
    answer: dict[str, Any] = {"destination": "back", "correlation_id": f"ID:{request}"}
    talk.request("START_TRANSACTION", re_JMQTransactionID=9)
    talk.send(transaction_id=9, reply_to="back", **answer)
    talk.tell("ROLLBACK_TRANSACTION", JMQTransactionID=9)
    talk.request("TEXT_MESSAGE", 404, reply="SEND_REPLY", **answer)
    assert pairs(talk) == [(request, None)]
    reply = talk.request("TEXT_MESSAGE", reply="SEND_REPLY", **answer)["sys_message_id"]
    assert pairs(talk) == [(request, reply)]


def test_a_request_does_not_answer_itself() -> None:
    talk = Talk().login()
    request = talk.send(destination="q", reply_to="q", correlation_id="c")["sys_message_id"]
    assert pairs(talk) == [(request, None)]


def test_a_reply_that_was_only_seen_when_it_was_delivered() -> None:
    talk = Talk().login()
    talk.consumer(7)
    request = talk.send(reply_to=TEMPORARY)
    elsewhere = Talk(client=("10.0.0.8", 4000)).send(destination=TEMPORARY)
    first = talk.deliver(elsewhere, 7)
    talk.tell("REDELIVER", body=block(first), JMQSetRedelivered=True)
    talk.acknowledge(talk.deliver(elsewhere, 7, "R", count=2))
    talk.tell("REDELIVER", body=block(first))
    row = talk.tables()["conversations"][-1]
    assert row["request_key"] == request["sys_message_id"]
    assert row["reply_key"] == elsewhere["sys_message_id"]
    assert row["responder"] == "10.0.0.8:4000"
    assert row["replied_frame"] == first["frame"]


# --- the cluster ----------------------------------------------------------------------------


def relayed(message: Row, consumer_ids: list[int], captured_ns: int, broken: int = 0) -> Row:
    """Return the GPacket that brings a message to consumers of another broker."""

    def words(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    address = struct.pack(">i", 100) + words("10.0.0.1") + words("b1") + struct.pack(">i", 7676)
    consumers = b"".join(struct.pack(">qq", one, 0) + address for one in consumer_ids)
    packet = Packet(
        packet_type=1,
        timestamp=message["timestamp"],
        source_ip=message["source_ip"],
        source_port=message["source_port"],
        sequence=message["sequence"],
    )
    properties = {
        "C": Property("integer", len(consumer_ids)),
        "host": Property("string", "10.0.0.1"),
        "port": Property("integer", 7676),
    }
    payload = consumers + encode(packet)
    data = GPACKET.encode(
        GPacket(
            packet_type=1,
            properties=Properties(properties),
            payload=payload[: len(payload) - broken],
        )
    )
    row, error = GPACKET.read_row(data, 0)
    assert error is None
    where = {"source": "made.pcap", "stream": "10.0.0.1:9>10.0.0.2:9", "offset": 0, "frame": 77}
    return {"format": "gpacket", "status": "ok", "captured_ns": captured_ns} | where | row


def returned(message: Row, consumer_id: int, kind: int, captured_ns: int) -> Row:
    """Return the GPacket in which the acknowledgement of a consumer goes back."""
    link = relayed(message, [consumer_id], captured_ns)
    consumer = link["payload"][: 16 + 4 + 2 + len("10.0.0.1") + 2 + len("b1") + 4]
    payload = message_id(message) + consumer
    properties = Properties({**link["properties"], "T": Property("integer", kind)})
    return link | {"packet_type": 3, "properties": properties, "payload": payload, "frame": 78}


@pytest.mark.parametrize(("kind", "shown"), [(3, True), (9, True), (2, False), (0, False)])
def test_acknowledgements_go_back_over_the_cluster(kind: int, shown: bool) -> None:
    """Where they are consumed, or a transaction in which they are is prepared."""
    talk = Talk().login()
    message = talk.send()
    link = relayed(message, [7], talk.now_ms * MS + 1)
    back = returned(message, 7, kind, talk.now_ms * MS + 5)
    found = derive([*talk.rows, link, back])["hops"]
    assert [row["kind"] for row in found[:2]] == ["sent", "relayed"]
    names = ("kind", "consumer_id", "follows", "took_ns", "frame")
    back_in = [tuple(row[name] for name in names) for row in found[2:]]
    assert back_in == ([("relay_acknowledged", 7, 2, 4, 78)] if shown else [])
    assert derive([*talk.rows, link, back])["deliveries"] == []


def test_a_delivery_tells_which_broker_the_message_came_from() -> None:
    sender = Talk().login()
    message = sender.send()
    link = relayed(message, [7, 8], sender.now_ms * MS + 1)
    receiver = Talk(("10.0.0.9", 50001), ("10.0.0.2", 7677), now_ms=sender.now_ms + 1).login()
    receiver.consumer(7)
    receiver.consumer(9)
    receiver.acknowledge(receiver.deliver(message, 7), receiver.deliver(message, 9))
    rows = [*sender.rows, link, *receiver.rows]
    seven, nine = derive(rows)["deliveries"]
    assert (seven["producer"], seven["server"]) == ("10.0.0.9:50000", "10.0.0.2:7677")
    assert (seven["via_broker"], seven["relayed_frame"]) == ("10.0.0.1:7676", 77)
    assert (nine["via_broker"], nine["relayed_frame"]) == (None, None)


def test_a_gpacket_that_is_no_message_relays_nothing() -> None:
    message = Talk().send()
    whole = relayed(message, [7, 8], 0)
    assert [one.consumer_id for one in relays(whole)] == [7, 8]
    assert not list(relays({**whole, "packet_type": 3}))
    assert not list(relays({**whole, "payload": None}))
    for cut in range(len(whole["payload"])):
        damaged = {**whole, "payload": whole["payload"][:cut]}
        assert not list(relays(damaged)), cut


# --- what a peer may do ---------------------------------------------------------------------


def test_any_packets_in_any_order_give_tables() -> None:
    """Whatever is lost, repeated, out of order or made up: rows, and each delivery once."""
    dice = random.Random(5)
    talk = Talk().login()
    talk.consumer(7)
    held = [talk.deliver(talk.send(reply_to=TEMPORARY, flags="A"), 7, "FC") for _ in range(4)]
    talk.acknowledge(*held[:2], transaction_id=3)
    talk.request("START_TRANSACTION", re_JMQTransactionID=3)
    talk.request("PREPARE_TRANSACTION", JMQTransactionID=3)
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=3)
    talk.tell("REDELIVER", body=b"x" * 80)
    talk.tell("RESUME_FLOW", JMQConsumerID=7)
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, body=bytes(32))
    talk.request("BROWSE", re_JMQConsumerID=7)
    talk.goodbye()
    types = [row["packet_type"] for row in talk.rows]
    for _ in range(200):
        rows = [dict(dice.choice(talk.rows)) for _ in range(dice.randrange(60))]
        for row in rows:
            match dice.randrange(6):
                case 0:
                    row["packet_type"] = dice.choice(types)
                case 1:
                    row["properties"] = {"JMQStatus": {"type": "string", "value": "x"}}
                case 2:
                    row["consumer_id"] = dice.choice((0, 1, 7, -1))
                case 3:
                    row["body"] = dice.randbytes(dice.choice((0, 32, 40, 41)))
        ended = {(talk.source, talk.stream(True)): (0, 1)} if dice.randrange(2) else {}
        found = derive(rows, ended)
        assert len(found["sessions"]) <= 1
        keys = {(row["stream"], row["offset"]) for row in found["deliveries"]}
        assert keys <= {(row["stream"], row["offset"]) for row in rows}
