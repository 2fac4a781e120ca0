"""What the broker does for JMQ clients, packet by packet."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from tests.broker.jmq.talk import (
    QUEUE,
    TOPIC,
    Broker,
    Peer,
    blocks,
    has_flag,
    joined,
    key_of,
    names,
    values,
)

LAST_SEEN = 3
NO_ACK = 32768


@pytest.fixture
def broker() -> Broker:
    return Broker()


def consuming(
    broker: Broker, name: str = "q", ack_mode: int | None = 2, kind: int = QUEUE, **more: Any
) -> tuple[Peer, int, int]:
    """Return a client with a session and a consumer."""
    peer = joined(broker)
    session = peer.session(ack_mode)
    return peer, session, peer.consumer(session, name, kind, **more)


def filled(broker: Broker, count: int, name: str = "q", **fields: Any) -> Peer:
    """Return a client that has sent numbered messages."""
    peer = joined(broker)
    producer = peer.producer(name)
    for number in range(count):
        assert peer.send(producer, str(number), **fields) == 200
    return peer


# --- logins ---------------------------------------------------------------------------------


def test_the_port_mapper_names_the_service(broker: Broker) -> None:
    broker.core.name_service(7676, has_tls=False)
    for parts in (b"101\n",), (b"1", b"01", b"\n"), (b"x" * 200,):
        link = broker.core.open_link("127.0.0.1:1")
        assert link is not None
        for part in parts:
            broker.core.receive(link, part, broker.now)
        assert link.endpoint.take() == b"101 wireyard 301\njms tcp NORMAL 7676\n.\n"
        assert link.endpoint.ended is not None
    assert broker.lines == []


def test_a_login_without_users_sends_no_password(broker: Broker) -> None:
    peer = Peer(broker)
    assert peer.hello()["JMQStatus"] == 200
    challenge = values(peer.early.pop())
    assert (challenge["JMQAuthType"], challenge["JMQChallenge"]) == ("digest", True)
    assert peer.log_in("digest", "guest", "any")["JMQStatus"] == 200


def test_users_log_in_by_basic() -> None:
    waiting: list[Any] = []
    broker = Broker(check_login=lambda *login: waiting.append(login))
    peer = Peer(broker)
    peer.hello()
    assert values(peer.early.pop())["JMQAuthType"] == "basic"
    secret = b64encode(b"secret").decode()
    with pytest.raises(AssertionError, match="no reply"):
        peer.log_in("basic", "ann", secret)
    peer.tell("CREATE_SESSION", {"JMQAckMode": 1}, bit_flags="A", consumer_id=9)
    assert peer.received() == []  # nothing is read before the answer
    user, password, done = waiting.pop()
    assert (user, password) == ("ann", b"secret")
    done(True)
    assert names(peer.received()) == ["AUTHENTICATE_REPLY", "CREATE_SESSION_REPLY"]


@pytest.mark.parametrize(("kind", "secret"), [("basic", "bm8="), ("digest", "0"), ("basic", "*")])
def test_a_refused_login_ends_the_connection(kind: str, secret: str) -> None:
    broker = Broker(check_login=lambda user, password, done: done(False))
    peer = Peer(broker)
    peer.hello()
    assert peer.log_in(kind, "ann", secret)["JMQStatus"] == 413
    assert "GOODBYE" in names(peer.early)
    assert peer.link.endpoint.ended is not None


def test_before_the_login_nothing_else_is_done(broker: Broker) -> None:
    peer = Peer(broker)
    assert peer.ask("PING")["JMQStatus"] == 200
    for kind in ("CREATE_SESSION", "AUTHENTICATE"):  # without a HELLO neither
        assert peer.ask(kind)["JMQStatus"] == 500
    peer.hello()
    assert peer.ask("CREATE_SESSION", {"JMQAckMode": 1})["JMQStatus"] == 500
    assert len(broker.lines) == 1
    assert peer.log_in("digest", "guest", "0")["JMQStatus"] == 200
    assert peer.hello()["JMQStatus"] == 500  # a second login ends it
    assert peer.link.endpoint.ended is not None


def test_a_later_level_is_refused(broker: Broker) -> None:
    found = Peer(broker).hello(level=501)
    assert (found["JMQStatus"], found["JMQProtocolLevel"]) == (505, 500)


def test_who_does_not_log_in_is_disconnected(broker: Broker) -> None:
    broker.wait(60)
    peer = Peer(broker)
    broker.wait(9)
    assert peer.link.endpoint.ended is None
    broker.wait(2)
    assert peer.link.endpoint.ended is not None


def test_what_is_not_implemented_is_answered_so(broker: Broker) -> None:
    peer = joined(broker)
    assert peer.ask("VERIFY_TRANSACTION")["JMQStatus"] == 501
    peer.write(
        peer.packet("PING", None, bit_flags="A", consumer_id=1).replace(b"\0\x36", b"\0\x63")
    )
    assert values(peer.received()[0])["JMQStatus"] == 501
    peer.tell("INFO_REQUEST")
    assert peer.received() == []


def test_goodbye(broker: Broker) -> None:
    peer = joined(broker)
    assert peer.ask("GOODBYE")["JMQStatus"] == 200
    assert broker.lines[-1].endswith("disconnected")
    other = joined(broker)
    broker.core.shut_down()
    (goodbye,) = other.received()
    assert values(goodbye)["JMQGoodbyeReason"] == 1


# --- queues ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [QUEUE, TOPIC])
def test_a_message_that_is_sent_again_is_there_once(broker: Broker, kind: int) -> None:
    peer, _, _ = consuming(broker, "d", kind=kind)
    sender = joined(broker)
    producer = sender.producer("d", kind)
    flags = "QP" if kind == QUEUE else "P"
    packet = sender.packet(
        "TEXT_MESSAGE", producer_id=producer, destination="d", body="x", bit_flags=flags
    )
    for _ in range(2):
        sender.write(packet)
    (message,) = peer.messages()
    assert peer.acknowledge(message) == 200
    assert broker.core.router.destinations[kind == QUEUE, "d"].kept == 0


def test_a_delivery_changes_id_flags_and_count_alone(broker: Broker) -> None:
    """Compares bytes: the sections are moved by the 8 bytes of the count, and else as sent."""
    peer, _, consumer = consuming(broker)
    sender = joined(broker)
    producer = sender.producer("q")
    sent = sender.packet(
        "TEXT_MESSAGE", {"a": 1, "b": "text"}, producer_id=producer, destination="q",
        correlation_id="c", body="x" * 100, bit_flags="QPA", consumer_id=77, priority=3,
    )  # fmt: skip
    sender.write(sent)
    peer.raw = b""
    peer.received()
    got, offset = peer.raw, int.from_bytes(sent[52:56], "big")
    assert len(got) == len(sent) + 8
    assert got[:8] == sent[:8] and got[12:52] == sent[12:52] and got[56:64] == sent[56:64]
    assert int.from_bytes(got[8:12], "big") == len(sent) + 8
    assert int.from_bytes(got[52:56], "big") == offset + 8
    assert int.from_bytes(got[64:72], "big") == consumer
    assert got[72:80] == bytes.fromhex("000b000400000001")
    assert got[80:] == sent[72:]


def test_properties_and_body_are_not_looked_at_without_a_selector(broker: Broker) -> None:
    peer, _, _ = consuming(broker)
    sender = joined(broker)
    producer = sender.producer("q")
    sent = bytearray(
        sender.packet(
            "TEXT_MESSAGE", {"a": 1}, producer_id=producer, destination="q", bit_flags="Q"
        )
    )
    offset = int.from_bytes(sent[52:56], "big")
    sent[offset : offset + 4] = b"\xff" * 4
    sender.write(bytes(sent))
    peer.raw = b""
    for link in broker.core.take_dirty():
        if link is peer.link:
            assert link.endpoint.take()[80:] == bytes(sent[72:])
            return
    raise AssertionError


def test_order_is_priority_then_arrival(broker: Broker) -> None:
    sender = joined(broker)
    producer = sender.producer("q")
    for number, priority in enumerate((4, 9, 0, 4, 9)):
        sender.send(producer, str(number), priority=priority)
    peer, _, _ = consuming(broker)
    assert peer.texts() == ["1", "4", "0", "3", "2"]


def test_new_messages_rotate_over_the_consumers_that_take_them(broker: Broker) -> None:
    first, _, _ = consuming(broker, Size=2)
    second, _, _ = consuming(broker)
    filled(broker, 6)
    assert (first.texts(), second.texts()) == (["0", "2"], ["1", "3", "4", "5"])


def test_the_flow_of_a_consumer(broker: Broker) -> None:
    peer, _, consumer = consuming(broker, Size=2)
    filled(broker, 6)
    assert [has_flag(one, "C") for one in peer.messages()] == [False, True]
    peer.tell("RESUME_FLOW", {"JMQConsumerID": consumer, "JMQSize": 3})
    assert [has_flag(one, "C") for one in peer.messages()] == [False, False, True]
    peer.tell("RESUME_FLOW", {"JMQConsumerID": consumer})
    assert [has_flag(one, "C") for one in peer.messages()] == [False]


def test_the_flow_of_a_connection(broker: Broker) -> None:
    peer = joined(broker, size=2)
    peer.consumer(peer.session(), "q")
    filled(broker, 5)
    assert [has_flag(one, "F") for one in peer.messages()] == [False, True]
    assert peer.ask("PING")["JMQStatus"] == 200  # replies go on
    peer.tell("RESUME_FLOW")
    assert [has_flag(one, "F") for one in peer.messages()] == [False, True]


def test_nothing_is_delivered_to_what_is_stopped(broker: Broker) -> None:
    peer, session, _ = consuming(broker)
    peer.ask("STOP", {"JMQSessionID": session})
    filled(broker, 1)
    assert peer.texts() == []
    peer.ask("STOP")
    peer.tell("START", {"JMQSessionID": session})
    assert peer.texts() == []
    peer.tell("START")
    assert peer.texts() == ["0"]


def test_acknowledgements(broker: Broker) -> None:
    peer, session, _ = consuming(broker)
    filled(broker, 3)
    first, second, third = peer.messages()
    assert peer.acknowledge(first, second) == 200
    assert peer.acknowledge(first) == 409
    assert peer.acknowledge(replace(third, consumer_id=1)) == 404
    assert peer.ask("ACKNOWLEDGE", body=b"x")["JMQStatus"] == 400
    peer.ask("DESTROY_SESSION", {"JMQSessionID": session})
    other, _, _ = consuming(broker)
    (again,) = other.messages()
    assert (again.body, again.delivery_count, has_flag(again, "R")) == (b"2", 2, True)


def test_no_acknowledge(broker: Broker) -> None:
    peer, _, _ = consuming(broker, ack_mode=NO_ACK)
    filled(broker, 2)
    assert peer.texts() == ["0", "1"]
    peer.lose()
    assert consuming(broker)[0].texts() == []


def test_messages_that_were_refused_or_are_dead(broker: Broker) -> None:
    peer, _, _ = consuming(broker)
    filled(broker, 3)
    declined, dead, expired = peer.messages()
    assert peer.acknowledge(declined, AckType=1) == 200
    (again,) = peer.messages()
    assert (again.body, again.delivery_count, has_flag(again, "R")) == (b"0", 2, True)
    assert peer.acknowledge(dead, AckType=2, DeadReason=0, Comment="broken") == 200
    assert peer.acknowledge(expired, AckType=2, DeadReason=1) == 200
    assert peer.acknowledge(again, AckType=7) == 400
    graves, _, _ = consuming(broker, "mq.sys.dmq")
    found = [(one.destination, values(one)) for one in graves.messages()]
    reasons = [one["JMS_SUN_DMQ_UNDELIVERED_REASON"] for _, one in found]
    assert reasons == ["UNDELIVERABLE", "EXPIRED"]
    assert found[0][0] == "q" and found[0][1]["JMS_SUN_DMQ_UNDELIVERED_COMMENT"] == "broken"


def test_expired_messages_go_to_the_dead_message_queue(broker: Broker) -> None:
    now = int(broker.now * 1000)
    sender = filled(broker, 1, expiration=now - 1)
    producer = sender.producer("q")
    sender.send(producer, "late", expiration=now + 500)
    sender.send(
        producer, "gone", expiration=now + 500, properties={"JMS_SUN_PRESERVE_UNDELIVERED": False}
    )
    sender.send(producer, "good", expiration=now + 5000)
    broker.wait(1)
    assert consuming(broker)[0].texts() == ["good"]
    assert consuming(broker, "mq.sys.dmq")[0].texts() == ["0", "late"]


def test_delayed_messages_come_in_their_time(broker: Broker) -> None:
    peer, _, _ = consuming(broker)
    sender = joined(broker)
    producer = sender.producer("q")
    for seconds in (200, 100, 0):
        sender.send(producer, str(seconds), delivery_time=int((broker.now + seconds) * 1000))
    assert peer.texts() == ["0"]
    broker.wait(99)
    assert peer.texts() == []
    broker.wait(2)
    assert peer.texts() == ["100"]
    broker.wait(100)
    assert peer.texts() == ["200"]


def test_a_message_twice_is_one(broker: Broker) -> None:
    sender = joined(broker)
    producer = sender.producer("q")
    packet = sender.packet("MESSAGE", None, producer_id=producer, bit_flags="QA", destination="q")
    sender.write(packet * 2)
    assert [values(one)["JMQStatus"] for one in sender.received()] == [200, 304]


def test_selectors_of_a_queue(broker: Broker) -> None:
    sender = joined(broker)
    producer = sender.producer("q")
    for number in range(4):
        sender.send(producer, str(number), properties={"n": number})
    odd, _, consumer = consuming(broker, Selector="n = 1 OR n = 3 OR n = 5", Size=1)
    assert odd.texts() == ["1"]
    odd.tell("RESUME_FLOW", {"JMQConsumerID": consumer, "JMQSize": 10})
    assert odd.texts() == ["3"]
    sender.send(producer, "5", properties={"n": 5})
    sender.send(producer, "6", properties={"n": 6})
    assert odd.texts() == ["5"]
    assert consuming(broker)[0].texts() == ["0", "2", "6"]
    assert odd.consume(odd.session(), "q", Selector="n = ")["JMQStatus"] == 400


def test_browsers(broker: Broker) -> None:
    sender = filled(broker, 3)
    holder, _, _ = consuming(broker, Size=1)
    held = holder.messages()
    asked = {"JMQDestination": "q", "JMQDestType": QUEUE}
    found = sender.ask("BROWSE", asked)
    assert len(found["body"]) == 96
    holder.acknowledge(*held)
    answer = sender.ask("DELIVER", {"JMQConsumerID": found["JMQConsumerID"]}, body=found["body"])
    copies = sender.messages()
    assert answer["JMQStatus"] == 200
    assert [(one.body, one.delivery_count, has_flag(one, "L")) for one in copies] == [
        (b"1", None, False), (b"2", None, True),
    ]  # fmt: skip
    assert sender.ask("BROWSE", asked | {"JMQSelector": "JMSPriority > 8"})["body"] == b""
    assert sender.ask("BROWSE", asked | {"JMQDestination": "r"})["JMQCanCreate"] is True
    assert sender.ask("DELIVER", {"JMQConsumerID": 1}, body=bytes(32))["JMQStatus"] == 404
    late = int(broker.now * 1000) + 100
    sender.send(sender.producer("q"), "late", expiration=late)
    assert len(sender.ask("BROWSE", asked)["body"]) == 96
    broker.now += 0.2
    broker.core.tick(broker.now)
    assert len(sender.ask("BROWSE", asked)["body"]) == 64


# --- redelivery -----------------------------------------------------------------------------


def test_redeliver_gives_messages_back_to_the_same_consumer(broker: Broker) -> None:
    peer, session, _ = consuming(broker)
    other, _, _ = consuming(broker, Size=1)
    filled(broker, 4)
    first, *rest = peer.messages()
    peer.ask("STOP", {"JMQSessionID": session})
    peer.tell("REDELIVER", {"JMQSetRedelivered": False}, body=blocks(rest))
    peer.tell("REDELIVER", {"JMQSetRedelivered": True}, body=blocks([first]))
    assert peer.messages() == []
    peer.tell("START", {"JMQSessionID": session})
    again = peer.messages()
    assert [(one.body, one.delivery_count, has_flag(one, "R")) for one in again] == [
        (b"0", 2, True), (b"2", 1, False), (b"3", 1, False),
    ]  # fmt: skip
    assert len(other.messages()) == 1


def test_the_last_seen_in_a_transaction_is_not_seen_again(broker: Broker) -> None:
    peer, _, consumer = consuming(broker)
    filled(broker, 1)
    (message,) = peer.messages()
    last = {"JMQConsumerID": consumer, "JMQBodyType": LAST_SEEN}
    last["JMQLastDeliveredIDInTransaction"] = True
    peer.ask("DELETE_CONSUMER", last, body=key_of(message))
    (again,) = consuming(broker)[0].messages()
    assert again.delivery_count == 1


def test_what_a_closed_consumer_has_seen_stays_with_its_session(broker: Broker) -> None:
    peer, session, consumer = consuming(broker)
    filled(broker, 4)
    messages = peer.messages()
    found = peer.ask(
        "DELETE_CONSUMER",
        {"JMQConsumerID": consumer, "JMQBodyType": LAST_SEEN},
        body=key_of(messages[1]),
    )
    assert found["JMQStatus"] == 200
    other, _, _ = consuming(broker)
    unseen = other.messages()
    assert [(one.body, one.delivery_count) for one in unseen] == [(b"2", 1), (b"3", 1)]
    assert peer.acknowledge(messages[0]) == 200
    peer.ask("DESTROY_SESSION", {"JMQSessionID": session})
    (seen,) = other.messages()
    assert (seen.body, seen.delivery_count, has_flag(seen, "R")) == (b"1", 2, True)
    assert peer.ask("DELETE_CONSUMER", {"JMQConsumerID": consumer})["JMQStatus"] == 404


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_end_of_a_connection_returns_all_that_it_held(broker: Broker, is_lost: bool) -> None:
    peer, session, _ = consuming(broker, Size=3)
    peer.consumer(session, "q", Size=10)
    filled(broker, 6)
    assert len(peer.messages()) == 6
    if is_lost:
        peer.lose()
    else:
        peer.ask("GOODBYE")
    again = consuming(broker)[0].messages()
    assert [(one.body, one.delivery_count) for one in again] == [
        (str(number).encode(), 2) for number in range(6)
    ]


# --- destinations ---------------------------------------------------------------------------


def created(peer: Peer, name: str, kind: int) -> int:
    asked = {"JMQDestination": name, "JMQDestType": kind}
    return int(peer.ask("CREATE_DESTINATION", asked)["JMQStatus"])


def test_names(broker: Broker) -> None:
    peer = joined(broker)
    assert created(peer, "q", QUEUE) == created(peer, "q", TOPIC) == 200
    assert created(peer, "mq.other", QUEUE) == 500
    for name in ("", "a b", "a\n", "a/b", "a#", "+", "x" * 1025):
        assert created(peer, name, QUEUE) == 400, name
    producer = peer.ask("ADD_PRODUCER", {"JMQDestination": "a.*", "JMQDestType": TOPIC})
    assert producer["JMQStatus"] == 501


def test_a_message_to_what_is_not_there_is_refused(broker: Broker) -> None:
    peer = joined(broker)
    assert peer.send(0, "x", destination="nowhere") == 500
    assert created(peer, "there", QUEUE) == 200
    assert peer.send(0, "x", destination="there") == 200


def test_temporary_destinations(broker: Broker) -> None:
    owner, other = joined(broker), joined(broker)
    name = "temporary_destination://queue/127.0.0.1/1/1"
    assert created(owner, name, QUEUE | 0x10) == 200
    assert created(owner, "plain", QUEUE | 0x10) == 400
    owner.consumer(owner.session(), name, QUEUE | 0x10)
    producer = other.producer(name, QUEUE | 0x10)
    assert other.consume(other.session(), name, QUEUE | 0x10)["JMQStatus"] == 403
    destroyed = {"JMQDestination": name, "JMQDestType": QUEUE | 0x10}
    assert other.ask("DESTROY_DESTINATION", destroyed)["JMQStatus"] == 403
    assert other.send(producer, "reply", destination=name) == 200
    assert owner.texts() == ["reply"]
    owner.lose()
    assert other.send(producer, "reply", destination=name) == 500
    assert other.ask("VERIFY_DESTINATION", destroyed)["JMQStatus"] == 404


def test_temporary_topics_end_with_their_subscriptions(broker: Broker) -> None:
    owner = joined(broker)
    name = "temporary_destination://topic/127.0.0.1/1/1"
    created(owner, name, TOPIC | 0x10)
    owner.consumer(owner.session(), name, TOPIC | 0x10)
    destroyed = {"JMQDestination": name, "JMQDestType": TOPIC | 0x10}
    assert owner.ask("DESTROY_DESTINATION", destroyed)["JMQStatus"] == 200
    assert broker.core.router.subscriptions == []


# --- topics ---------------------------------------------------------------------------------


def test_topics_and_wildcards(broker: Broker) -> None:
    patterns = ("a.b.c", "a.*.c", "a.**", "**", "a.>", "a.b", "a.*", "**.c", "a.b.c.**", "a.b.c.>")
    peers = {name: consuming(broker, name, kind=TOPIC)[0] for name in patterns}
    sender = joined(broker)
    sender.send(sender.producer("a.b.c", TOPIC), "x", TOPIC, destination="a.b.c")
    got = {name for name, peer in peers.items() if peer.texts() == ["x"]}
    assert got == {"a.b.c", "a.*.c", "a.**", "**", "a.>", "**.c", "a.b.c.**"}


def test_a_topic_keeps_nothing_without_a_subscription(broker: Broker) -> None:
    sender = joined(broker)
    producer = sender.producer("t", TOPIC)
    assert sender.send(producer, "x", TOPIC, destination="t") == 200
    peer, _, consumer = consuming(broker, "t", kind=TOPIC)
    sender.send(producer, "y", TOPIC, destination="t")
    (message,) = peer.messages()
    peer.ask("DELETE_CONSUMER", {"JMQConsumerID": consumer, "JMQBodyType": LAST_SEEN},
             body=key_of(message))  # fmt: skip
    assert peer.acknowledge(message) == 200  # it is held, though its subscription is over
    assert broker.core.router.destinations[False, "t"].kept == 0


def test_no_local(broker: Broker) -> None:
    peer = joined(broker)
    peer.consumer(peer.session(), "t", TOPIC, NoLocal=True)
    producer = peer.producer("t", TOPIC)
    peer.send(producer, "own", TOPIC, destination="t")
    other = joined(broker)
    other.send(other.producer("t", TOPIC), "other", TOPIC, destination="t")
    assert peer.texts() == ["other"]


def test_durable_subscriptions(broker: Broker) -> None:
    peer = joined(broker, client_id="ann")
    assert joined(broker).consume(0, "t", TOPIC, DurableName="d")["JMQStatus"] == 404
    anonymous = joined(broker)
    refused = anonymous.consume(anonymous.session(), "t", TOPIC, DurableName="d")
    assert refused["JMQStatus"] == 412
    session = peer.session()
    consumer = peer.consumer(session, "t", TOPIC, DurableName="d", Selector="JMSPriority = 4")
    assert peer.consume(session, "t", TOPIC, DurableName="d")["JMQStatus"] == 409
    shared = {"DurableName": "d", "JMSShare": True, "Selector": "JMSPriority = 4"}
    assert peer.consume(session, "t", TOPIC, **shared)["JMQStatus"] == 409
    assert peer.ask("DELETE_CONSUMER", {"JMQDurableName": "d"})["JMQStatus"] == 409
    peer.ask("DELETE_CONSUMER", {"JMQConsumerID": consumer, "JMQRedeliverAll": True})
    assert peer.consume(session, "t", TOPIC, **shared)["JMQStatus"] == 409  # though nobody has it
    sender = joined(broker)
    producer = sender.producer("t", TOPIC)
    for number in (4, 5):
        sender.send(producer, str(number), TOPIC, destination="t", priority=number)
    peer.consumer(session, "t", TOPIC, DurableName="d", Selector="JMSPriority = 4")
    assert peer.texts() == ["4"]
    peer.lose()
    again = joined(broker, client_id="ann")
    again.consumer(again.session(), "t", TOPIC, DurableName="d", Selector="JMSPriority = 4")
    (message,) = again.messages()
    assert (message.body, message.delivery_count) == (b"4", 2)
    again.lose()
    last = joined(broker, client_id="ann")
    last.consumer(last.session(), "other", TOPIC, DurableName="d")  # another topic replaces it
    assert last.texts() == []
    last.lose()
    end = joined(broker, client_id="ann")
    assert end.ask("DELETE_CONSUMER", {"JMQDurableName": "d"})["JMQStatus"] == 200
    assert end.ask("DELETE_CONSUMER", {"JMQDurableName": "d"})["JMQStatus"] == 404


@pytest.mark.parametrize("name", ["DurableName", "SharedSubscriptionName"])
def test_shared_subscriptions(broker: Broker, name: str) -> None:
    first, second = joined(broker), joined(broker)
    shared: dict[str, Any] = {name: "s", "JMSShare": True, "Size": 1000}
    found = [one.consume(one.session(), "t", TOPIC, **shared) for one in (first, second)]
    assert [one["JMQSize"] for one in found] == [5, 5]
    refused = first.consume(first.session(), "other", TOPIC, **shared)
    assert refused["JMQStatus"] == 409
    sender = joined(broker)
    producer = sender.producer("t", TOPIC)
    for number in range(6):
        sender.send(producer, str(number), TOPIC, destination="t")
    assert (first.texts(), second.texts()) == (["0", "2", "4"], ["1", "3", "5"])
    first.lose()
    second.lose()
    kept = [(one.name, len(one.copies)) for one in broker.core.router.subscriptions]
    assert kept == ([("s", 6)] if name == "DurableName" else [])


def test_client_ids(broker: Broker) -> None:
    first, second = joined(broker, client_id="ann"), joined(broker)
    asked = {"JMQClientID": "ann"}
    assert second.ask("SET_CLIENTID", asked)["JMQStatus"] == 409
    assert second.ask("SET_CLIENTID", {"JMQClientID": "a\nb"})["JMQStatus"] == 400
    first.lose()
    assert second.ask("SET_CLIENTID", asked)["JMQStatus"] == 200
    assert second.ask("SET_CLIENTID")["JMQStatus"] == 200
    assert joined(broker).ask("SET_CLIENTID", asked)["JMQStatus"] == 200


# --- users and what they may do -------------------------------------------------------------


def test_access() -> None:
    from wireyard.broker.access import Access

    reads = {None: ["plant/#", "$Q/orders"]}
    access = Access(None, reads, {None: ["plant/one", "$Q/#"]})  # type: ignore[arg-type]
    broker = Broker(access=access)
    peer = joined(broker)
    session = peer.session()
    kinds = {"plant.one": TOPIC, "plant.two": TOPIC, "orders": QUEUE, "bills": QUEUE}
    writes = {
        name: peer.ask("ADD_PRODUCER", {"JMQDestination": name, "JMQDestType": kind})["JMQStatus"]
        for name, kind in kinds.items()
    }
    assert writes == {"plant.one": 200, "plant.two": 403, "orders": 200, "bills": 200}
    kinds |= {"plant.*": TOPIC, "plant.>": TOPIC, "*.one": TOPIC}
    found = {name: peer.consume(session, name, kind)["JMQStatus"] for name, kind in kinds.items()}
    assert found == {
        "plant.one": 200, "plant.two": 200, "orders": 200, "bills": 403, "plant.*": 200,
        "plant.>": 200, "*.one": 403,
    }  # fmt: skip
    assert peer.send(0, "x", destination="bills") == 200
    assert peer.send(0, "x", TOPIC, destination="plant.two") == 403
    assert peer.ask("BROWSE", {"JMQDestination": "bills", "JMQDestType": 1})["JMQStatus"] == 403


def test_requests_that_name_what_is_not_there(broker: Broker) -> None:
    peer = joined(broker)
    assert peer.ask("START", {"JMQSessionID": 1})["JMQStatus"] == 404
    assert peer.ask("DESTROY_SESSION", {"JMQSessionID": 1})["JMQStatus"] == 404
    assert peer.ask("DELETE_PRODUCER", {"JMQProducerID": 1})["JMQStatus"] == 404
    assert peer.ask("CREATE_SESSION", {"JMQAckMode": 5})["JMQStatus"] == 400
    assert peer.ask("ADD_PRODUCER", {"JMQDestType": 1})["JMQStatus"] == 400
    # a property of another type counts as missing
    assert peer.ask("ADD_PRODUCER", {"JMQDestination": 7, "JMQDestType": 1})["JMQStatus"] == 400


def test_ids_are_unique(broker: Broker) -> None:
    peer = joined(broker)
    found = peer.ask("GENERATE_UID", {"JMQQuantity": 3})
    numbers = {found["body"][at : at + 8] for at in (0, 8, 16)}
    assert (found["JMQQuantity"], len(numbers), len(found["body"])) == (3, 3, 24)
    assert peer.ask("GENERATE_UID", {"JMQQuantity": 2**31 - 1})["JMQQuantity"] == 1000
    assert peer.ask("GET_LICENSE")["JMQStatus"] == 200


def test_a_packet_of_a_client_is_not_a_jmq_packet_of_another_version(broker: Broker) -> None:
    peer = joined(broker)
    peer.write(peer.packet("PING", version=200))
    assert peer.link.endpoint.ended is not None
    assert "version" in broker.lines[-1]
