"""What JMQ clients find when a broker with a store is started again, and which rows it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.broker.jmq.talk import TOPIC, Broker, Peer, blocks, has_flag, joined
from tests.broker.jmq.test_transactions import SUCCESS, started, status, xid_of
from wireyard.errors import SourceError

SAVED = "QPA"
START_SCAN = 0x100_0000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    broker = Broker(path=path)
    yield broker
    broker.close()


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def is_empty(path: Path) -> bool:
    return not any(rows(path, f"SELECT * FROM jmq_{one}") for one in ("messages", "copies"))


def filled(broker: Broker, *texts: str, **fields: Any) -> Peer:
    peer = joined(broker)
    producer = peer.producer("q")
    for text in texts:
        assert peer.send(producer, text, **({"bit_flags": SAVED} | fields)) == 200
    return peer


def reading(broker: Broker, ack_mode: int | None = 2, **more: Any) -> Peer:
    peer = joined(broker)
    peer.consumer(peer.session(ack_mode), "q", **more)
    return peer


def subscribed(broker: Broker, **more: Any) -> Peer:
    peer = joined(broker, client_id="ann")
    asked = {"DurableName": "d", **more}
    peer.consumer(peer.session(2), "a.*", TOPIC, **asked)
    return peer


def sent_to_topic(broker: Broker, text: str, bit_flags: str = "PA") -> None:
    peer = joined(broker)
    producer = peer.producer("a.b", TOPIC)
    assert peer.send(producer, text, TOPIC, bit_flags=bit_flags, destination="a.b") == 200


def test_a_queue_has_its_persistent_messages_in_their_order(broker: Broker, path: Path) -> None:
    filled(broker, "a", "b", "c")
    filled(broker, "first", priority=9)
    filled(broker, "lost", bit_flags="QA")
    broker.restart()
    filled(broker, "d")
    peer = reading(broker)
    messages = peer.messages()
    assert [one.body for one in messages] == [b"first", b"a", b"b", b"c", b"d"]
    assert {(one.delivery_count, has_flag(one, "R")) for one in messages} == {(1, False)}
    assert peer.acknowledge(*messages) == 200
    broker.restart()
    assert is_empty(path)


def test_what_was_delivered_may_have_been_seen(broker: Broker) -> None:
    filled(broker, "a", "b", "c", "d")
    peer = reading(broker, Size=3)
    first, second, third = peer.messages()
    peer.acknowledge(first)
    peer.tell("REDELIVER", {"JMQSetRedelivered": False}, body=blocks([third]))
    broker.restart()
    again = reading(broker).messages()
    assert [(one.body, one.delivery_count, has_flag(one, "R")) for one in again] == [
        (b"b", 2, True), (b"c", 1, False), (b"d", 1, False),
    ]  # fmt: skip
    assert second.body == b"b"


def test_a_durable_subscription(broker: Broker, path: Path) -> None:
    subscribed(broker, Selector="JMSPriority > 2", NoLocal=True)
    broker.restart()
    sent_to_topic(broker, "a")
    sent_to_topic(broker, "lost", "A")
    broker.restart()
    peer = subscribed(broker, Selector="JMSPriority > 2", NoLocal=True)
    own = peer.producer("a.b", TOPIC)
    peer.send(own, "own", TOPIC, bit_flags="PA", destination="a.b")
    (message,) = peer.messages()
    assert message.body == b"a"
    peer.lose()
    other = joined(broker, client_id="ann")
    other.consumer(other.session(2), "a.b", TOPIC, DurableName="d")  # another one
    broker.restart()
    assert is_empty(path)
    assert rows(path, "SELECT topic, selector FROM jmq_subscriptions") == [("a.b", None)]
    last = joined(broker, client_id="ann")
    assert last.ask("DELETE_CONSUMER", {"JMQDurableName": "d"})["JMQStatus"] == 200
    broker.restart()
    assert rows(path, "SELECT * FROM jmq_subscriptions") == []


def test_what_does_not_outlive_the_process_is_not_written(broker: Broker, path: Path) -> None:
    peer = joined(broker)
    name = "temporary_destination://queue/127.0.0.1/1/1"
    kind = {"JMQDestination": name, "JMQDestType": 0x11}
    assert peer.ask("CREATE_DESTINATION", kind)["JMQStatus"] == 200
    peer.send(peer.producer(name), "a", bit_flags=SAVED, destination=name)
    shared = {"JMSShare": True, "SharedSubscriptionName": "s"}
    peer.consumer(peer.session(2), "a.b", TOPIC, **shared)
    sent_to_topic(broker, "b")
    broker.restart()
    for table in ("messages", "copies", "subscriptions", "transactions"):
        assert rows(path, f"SELECT * FROM jmq_{table}") == []


def test_a_message_that_is_kept_for_several(broker: Broker, path: Path) -> None:
    for client_id in ("ann", "bob"):
        peer = joined(broker, client_id=client_id)
        peer.consumer(peer.session(2), "a.b", TOPIC, DurableName="d")
    sent_to_topic(broker, "x")
    peer.acknowledge(*peer.messages())
    broker.restart()
    assert rows(path, "SELECT count(*) FROM jmq_messages") == [(1,)]
    assert rows(path, "SELECT count(*) FROM jmq_copies") == [(1,)]
    (message,) = subscribed_to(broker, "ann").messages()
    assert message.body == b"x"
    assert subscribed_to(broker, "bob").messages() == []


def subscribed_to(broker: Broker, client_id: str) -> Peer:
    peer = joined(broker, client_id=client_id)
    peer.consumer(peer.session(2), "a.b", TOPIC, DurableName="d")
    return peer


def test_a_message_whose_time_has_not_come(broker: Broker) -> None:
    filled(broker, "later", delivery_time=int(broker.now * 1000) + 50_000)
    filled(broker, "now")
    broker.restart()
    peer = reading(broker)
    assert peer.texts() == ["now"]
    broker.restart()
    broker.wait(60)
    peer = reading(broker)
    assert peer.texts() == ["now", "later"]


def test_dead_messages_and_those_that_expired_meanwhile(broker: Broker) -> None:
    filled(broker, "dead", expiration=1)
    filled(broker, "dies", expiration=int(broker.now * 1000) + 10_000)
    broker.now += 20
    broker.restart()
    assert reading(broker).messages() == []
    broker.restart()
    peer = joined(broker)
    peer.consumer(peer.session(2), "mq.sys.dmq")
    assert sorted(peer.texts()) == ["dead", "dies"]


def test_a_transaction_that_is_committed(broker: Broker, path: Path) -> None:
    filled(broker, "a")
    peer = reading(broker, None)
    number = started(peer)
    producer = peer.producer("q")
    peer.send(producer, "b", transaction_id=number, bit_flags=SAVED)
    peer.acknowledge(*peer.messages(), transaction=number)
    broker.restart()
    peer = reading(broker, None)
    (again,) = peer.messages()
    assert (again.body, again.delivery_count, has_flag(again, "R")) == (b"a", 2, True)
    number = started(peer)
    peer.send(peer.producer("q"), "b", transaction_id=number, bit_flags=SAVED)
    peer.acknowledge(again, transaction=number)
    assert status(peer, "COMMIT_TRANSACTION", number) == 200
    broker.restart()
    assert reading(broker).texts() == ["b"]


def prepared(broker: Broker, xid: bytes) -> None:
    """Prepare a transaction that takes `a` and sends `b`."""
    filled(broker, "a")
    peer = reading(broker, None)
    number = started(peer, properties={"JMQXAFlags": 0}, body=xid)
    peer.send(peer.producer("q"), "b", transaction_id=number, bit_flags=SAVED)
    peer.acknowledge(*peer.messages(), transaction=number)
    peer.ask("END_TRANSACTION", {"JMQXAFlags": SUCCESS}, body=xid)
    assert status(peer, "PREPARE_TRANSACTION", number, body=xid) == 200


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("ends_by", ["COMMIT_TRANSACTION", "ROLLBACK_TRANSACTION"])
def test_a_prepared_transaction(broker: Broker, path: Path, ends_by: str, times: int) -> None:
    xid = xid_of(7)
    prepared(broker, xid)
    for _ in range(times):
        broker.restart()
        peer = reading(broker)
        assert peer.messages() == []
    assert peer.ask("RECOVER_TRANSACTION", {"JMQXAFlags": START_SCAN})["body"] == xid
    assert status(peer, ends_by, 0, body=xid) == 200
    expected = [(b"b", 1)] if ends_by.startswith("COMMIT") else [(b"a", 2)]
    messages = peer.messages()
    assert [(one.body, one.delivery_count) for one in messages] == expected
    broker.restart()
    peer = reading(broker)
    found = peer.messages()
    assert [one.body for one in found] == [body for body, _ in expected]
    assert peer.ask("RECOVER_TRANSACTION", {"JMQXAFlags": START_SCAN})["body"] == b""
    peer.acknowledge(*found)
    broker.restart()
    assert is_empty(path)


def test_a_subscription_that_ends_while_its_messages_are_held(broker: Broker, path: Path) -> None:
    peer = joined(broker, client_id="ann")
    consumer = peer.consumer(peer.session(2), "a.b", TOPIC, DurableName="d")
    sent_to_topic(broker, "x")
    (message,) = peer.messages()
    key = blocks([message])[8:]
    peer.ask("DELETE_CONSUMER", {"JMQConsumerID": consumer, "JMQBodyType": 3}, body=key)
    assert peer.ask("DELETE_CONSUMER", {"JMQDurableName": "d"})["JMQStatus"] == 200
    for _ in range(2):
        broker.restart()
    assert is_empty(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE jmq_messages SET packet = x'00'", "jmq_messages, row '1'"),
        ("UPDATE jmq_messages SET destination = ''", "jmq_messages, row '1'"),
        ("UPDATE jmq_messages SET transaction_id = 9", "jmq_messages, row '1'"),
        ("UPDATE jmq_copies SET subscription = 9", "jmq_copies, row '1, 9'"),
        ("UPDATE jmq_copies SET message = 9", "jmq_copies, row '9, 0'"),
        ("UPDATE jmq_copies SET count = -1", "jmq_copies, row '1, 0'"),
        ("UPDATE jmq_copies SET count = 2147483647", "jmq_copies, row '1, 0'"),
        ("INSERT INTO jmq_subscriptions VALUES (3, 'a', 'b', '', 0, NULL, 0)", "jmq_subscr"),
        ("INSERT INTO jmq_subscriptions VALUES (3, 'a', 'b', 't', 0, 'a =', 0)", "jmq_subscr"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    broker: Broker, path: Path, change: str, problem: str
) -> None:
    filled(broker, "a")
    broker.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(change)
        database.commit()
    with pytest.raises(SourceError, match=problem) as caught:
        broker.start()
    assert "\n" not in str(caught.value)
