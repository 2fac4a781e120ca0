"""Limits, each said in a line, and what hostile bytes do."""

from __future__ import annotations

import random
from typing import Any

from tests.broker.jmq.talk import QUEUE, TOPIC, Broker, Peer, joined, values
from wireyard import java
from wireyard.broker.settings import JmqLimits
from wireyard.endpoints import Limits


def limited(**limits: Any) -> Broker:
    return Broker(jmq=JmqLimits(**limits))


def said(broker: Broker, text: str) -> bool:
    return sum(text in line for line in broker.lines) == 1


def test_connections() -> None:
    broker = Broker(max_connections=2, max_unidentified=1)
    joined(broker)
    Peer(broker)
    assert broker.core.open_link("127.0.0.1:9") is None
    assert said(broker, "there are 2 connections")
    broker = Broker(max_unidentified=1)
    Peer(broker)
    assert broker.core.open_link("127.0.0.1:9") is None
    assert said(broker, "have not logged in yet")


def test_parts_of_a_connection() -> None:
    broker = limited(max_parts=1)
    peer = joined(broker)
    session = peer.session()
    peer.producer("q")
    peer.consumer(session, "q")
    assert peer.ask("CREATE_SESSION", {"JMQAckMode": 1})["JMQStatus"] == 414
    assert peer.ask("ADD_PRODUCER", {"JMQDestination": "q", "JMQDestType": 1})["JMQStatus"] == 414
    assert peer.consume(session, "q")["JMQStatus"] == 414
    for shown in ("1 sessions", "1 producers", "1 consumers"):
        assert said(broker, shown)


def test_destinations_subscriptions_and_transactions() -> None:
    broker = limited(max_destinations=2, max_subscriptions=0, max_transactions=0)
    peer = joined(broker)
    peer.producer("q")
    asked = {"JMQDestination": "r", "JMQDestType": QUEUE}
    assert peer.ask("CREATE_DESTINATION", asked)["JMQStatus"] == 414
    assert peer.consume(peer.session(), "a.*", TOPIC)["JMQStatus"] == 414
    assert peer.ask("START_TRANSACTION")["JMQStatus"] == 414
    for shown in ("2 destinations", "0 subscriptions", "0 transactions"):
        assert said(broker, shown)


def test_a_full_queue_refuses_and_resumes() -> None:
    broker = limited(max_kept=4, producer_credit=4)
    sender = joined(broker)
    added = sender.ask("ADD_PRODUCER", {"JMQDestination": "q", "JMQDestType": QUEUE})
    producer = added["JMQProducerID"]
    assert added["JMQSize"] == 4
    for number in range(4):
        flags = "QAC" if number == 3 else "QA"
        assert sender.send(producer, str(number), bit_flags=flags) == 200
    assert sender.received() == []  # no RESUME_FLOW before there is room
    assert sender.send(producer, "more") == sender.send(producer, "more") == 414
    assert said(broker, "Q:q: 4 messages are kept")
    second = joined(broker).ask("ADD_PRODUCER", {"JMQDestination": "q", "JMQDestType": QUEUE})
    assert (second["JMQSize"], second["JMQBytes"]) == (0, 0)
    peer = joined(broker)
    peer.consumer(peer.session(2), "q")
    peer.acknowledge(*peer.messages())
    (resumed,) = sender.received()
    found = values(resumed)
    assert (resumed.packet_type_name, found["JMQProducerID"]) == ("RESUME_FLOW", producer)
    assert found["JMQSize"] >= 1
    assert sender.send(producer, "again") == 200


def test_credit_is_renewed_at_once_where_there_is_room() -> None:
    sender = joined(Broker())
    producer = sender.producer("q")
    sender.send(producer, "x", bit_flags="QACF")
    resumed = [values(one) for one in sender.received()]
    assert [(one.get("JMQProducerID"), one["JMQSize"]) for one in resumed] == [
        (producer, 1000), (None, 5000),
    ]  # fmt: skip


def test_bytes_of_all_messages() -> None:
    broker = Broker(max_all_kept_bytes=3700)
    sender = joined(broker)
    producer = sender.producer("q")
    statuses = [sender.send(producer, "x" * 400) for _ in range(4)]
    assert statuses == [200, 200, 414, 414]
    assert said(broker, "bytes of messages are kept")
    number = sender.ask("START_TRANSACTION")["JMQTransactionID"]
    assert sender.send(producer, "x", transaction_id=number) == 200
    assert sender.send(producer, "x" * 400, transaction_id=number) == 414
    sender.lose()
    peer = joined(broker)
    peer.consumer(peer.session(2), "q")
    peer.acknowledge(*peer.messages())
    other = joined(broker)
    assert other.send(other.producer("q"), "x" * 400) == 200


def test_dead_messages() -> None:
    broker = limited(max_dead=2)
    sender = joined(broker)
    producer = sender.producer("q")
    for number in range(4):
        sender.send(producer, str(number), expiration=1)
    peer = joined(broker)
    peer.consumer(peer.session(), "mq.sys.dmq")
    assert peer.texts() == ["2", "3"]
    assert said(broker, "2 dead messages")


def test_a_packet_that_is_too_large_is_skipped() -> None:
    broker = Broker(endpoint=Limits(max_packet_bytes=2000))
    sender = joined(broker)
    producer = sender.producer("q")
    assert sender.send(producer, "x" * 5000) == 423
    assert said(broker, "over 2000")
    large = sender.packet("TEXT_MESSAGE", bit_flags="QA", consumer_id=5, body="x" * 5000)
    for at in range(0, len(large), 50):
        sender.write(large[at : at + 50])
    assert values(sender.received()[0])["JMQStatus"] == 423
    assert sender.send(producer, "small") == 200


def test_a_large_packet_before_the_login_ends_the_connection() -> None:
    broker = Broker(endpoint=Limits(max_connect_bytes=1000))
    peer = Peer(broker)
    peer.tell("HELLO", {"JMQUserAgent": "x" * 2000})
    assert peer.link.endpoint.ended is not None
    assert said(broker, "over 1000")


def test_unfinished_packets_of_all() -> None:
    broker = Broker(max_held_bytes=1000)
    sender = joined(broker)
    sender.write(sender.packet("TEXT_MESSAGE", body="x" * 5000)[:2000])
    assert said(broker, "bytes of unfinished packets")
    assert sender.link.endpoint.ended is not None


def test_who_does_not_read_gets_no_more() -> None:
    broker = Broker(max_unsent_bytes=2000)
    peer = joined(broker)
    peer.consumer(peer.session(2), "q")
    sender = joined(broker)
    producer = sender.producer("q")
    for number in range(50):
        sender.send(producer, f"{number:100}")
    assert 2000 < peer.link.endpoint.unsent_bytes < 2500
    got = len(peer.messages())
    peer.link.is_slow = False  # as its socket does
    broker.core.resume(peer.link)
    assert 0 < len(peer.messages()) < 50 - got
    found = sender.ask("BROWSE", {"JMQDestination": "q", "JMQDestType": QUEUE})
    sender.ask("DELIVER", {"JMQConsumerID": found["JMQConsumerID"]}, body=found["body"])
    assert 0 < len(sender.messages()) < 50
    assert said(broker, "of 50 messages, over 2000 bytes at once")


def test_damaged_bytes_end_one_connection_and_say_why() -> None:
    """Any change of the bytes of a client gives one line or none, and other clients go on."""
    rng = random.Random(5)
    broker = Broker()
    reader = joined(broker)
    for _ in range(300):
        peer = joined(broker)
        producer, session = peer.producer("q"), peer.session()
        asked = {"JMQDestination": "q", "JMQDestType": 1, "JMQSessionID": session}
        data = bytearray(
            peer.packet("TEXT_MESSAGE", {"a": 1}, producer_id=producer, destination="q", body="x")
            + peer.packet("ADD_CONSUMER", asked, bit_flags="A", consumer_id=3)
            + peer.packet("ACKNOWLEDGE", body=bytes(80))
            + peer.packet("START_TRANSACTION", body=bytes(136))
        )
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        before = len(broker.lines)
        peer.write(bytes(data[: rng.randrange(1, len(data) + 1)]))
        assert len(broker.lines) - before <= 5
        assert not any("\n" in line for line in broker.lines[before:])
        if peer.link.endpoint.ended is None:
            peer.lose()
    assert reader.ask("PING")["JMQStatus"] == 200
    assert broker.core.links == {reader.link}


def test_long_and_strange_texts_of_a_client() -> None:
    broker = Broker()
    for user in ("x" * 60_000, "a\nb", "\ud800"):
        peer = Peer(broker)
        peer.hello()
        body = java.encode_modified(user)
        body = len(body).to_bytes(2, "big") + body + b"\0\1x"
        assert peer.ask("AUTHENTICATE", {"JMQAuthType": "digest"}, body=body)["JMQStatus"] == 413
    peer = joined(broker, client_id="ann")
    long = "x" * 65_000
    assert peer.ask("DELETE_CONSUMER", {"JMQDurableName": long})["JMQStatus"] == 404
    assert peer.ask("SET_CLIENTID", {"JMQClientID": long})["JMQStatus"] == 400
    asked = {"JMQDestination": long, "JMQDestType": QUEUE}
    assert peer.ask("CREATE_DESTINATION", asked)["JMQStatus"] == 400
    found = peer.consume(peer.session(), "q", Selector=f"'{'x' * 8000}'")
    assert found["JMQStatus"] == 400
    assert max(map(len, broker.lines)) < 500
