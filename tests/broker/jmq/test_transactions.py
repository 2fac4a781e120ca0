"""Transactions, of one session and of XA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.jmq.talk import Broker, Peer, blocks, has_flag, joined, names

JOIN, END_SCAN, START_SCAN, FAIL, SUCCESS = (
    0x20_0000,
    0x80_0000,
    0x100_0000,
    0x2000_0000,
    0x400_0000,
)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def started(peer: Peer, **more: Any) -> int:
    found = peer.ask("START_TRANSACTION", more.pop("properties", None), **more)
    assert found["JMQStatus"] == 200
    return int(found["JMQTransactionID"])


def status(peer: Peer, kind: str, number: int = 0, **more: Any) -> int:
    return int(peer.ask(kind, {"JMQTransactionID": number}, **more)["JMQStatus"])


def commit(peer: Peer, number: int, **more: Any) -> int:
    return status(peer, "COMMIT_TRANSACTION", number, **more)


def receiving(broker: Broker) -> Peer:
    """Return a client with a consumer in a transacted session."""
    peer = joined(broker)
    peer.consumer(peer.session(None), "q")
    return peer


def sending(broker: Broker, *texts: str, transaction: int | None = None) -> Peer:
    peer = joined(broker)
    producer = peer.producer("q")
    for text in texts:
        assert peer.send(producer, text, transaction_id=transaction) == 200
    return peer


def xid_of(number: int) -> bytes:
    return bytes([0, 0, 0, 1, 0, 1, 0, 1, number]).ljust(136, b"\0")


def test_what_is_sent_is_passed_on_when_it_is_committed(broker: Broker) -> None:
    peer = receiving(broker)
    producer, number = peer.producer("q"), started(peer)
    assert peer.send(producer, "a", transaction_id=number) == 200
    assert peer.texts() == []
    assert commit(peer, number) == 200
    assert peer.texts() == ["a"]
    assert commit(peer, number) == 404
    assert peer.send(producer, "b", transaction_id=number) == 500


def test_the_reply_to_a_commit_comes_before_its_messages(broker: Broker) -> None:
    peer = receiving(broker)
    number = started(peer)
    peer.send(peer.producer("q"), "a", transaction_id=number)
    peer.tell("COMMIT_TRANSACTION", {"JMQTransactionID": number}, bit_flags="A", consumer_id=99)
    assert names(peer.received()) == ["COMMIT_TRANSACTION_REPLY", "TEXT_MESSAGE"]


def test_a_rollback(broker: Broker) -> None:
    """The client stops its session, gives messages back, and rolls back without a reply."""
    peer = receiving(broker)
    sending(broker, "a", "b", "c")
    number = started(peer)
    peer.send(peer.producer("q"), "d", transaction_id=number)
    first, *rest = peer.messages()
    assert peer.acknowledge(first, transaction=number) == 200
    assert peer.acknowledge(first, transaction=number) == 410
    peer.tell("REDELIVER", {"JMQSetRedelivered": False}, body=blocks(rest))
    peer.tell("REDELIVER", {"JMQSetRedelivered": True}, body=blocks([first]))
    again = peer.messages()
    peer.tell("ROLLBACK_TRANSACTION", {"JMQTransactionID": number})
    assert sorted((one.body, one.delivery_count, has_flag(one, "R")) for one in again) == [
        (b"a", 2, True), (b"b", 1, False), (b"c", 1, False),
    ]  # fmt: skip
    next_number = started(peer)
    assert peer.acknowledge(*again, transaction=next_number) == 200
    assert commit(peer, next_number) == 200
    peer.lose()
    assert receiving(broker).messages() == []


def test_acknowledged_messages_wait_for_redeliver_or_the_end(broker: Broker) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    number = started(peer)
    (message,) = peer.messages()
    peer.acknowledge(message, transaction=number)
    assert status(peer, "ROLLBACK_TRANSACTION", number) == 200
    assert peer.messages() == []
    peer.lose()
    (again,) = receiving(broker).messages()
    assert (again.delivery_count, has_flag(again, "R")) == (2, True)


@pytest.mark.parametrize("seen", [True, False])
def test_a_rollback_that_redelivers(broker: Broker, seen: bool) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    number = started(peer)
    peer.acknowledge(*peer.messages(), transaction=number)
    properties = {"JMQTransactionID": number, "JMQRedeliver": True, "JMQSetRedelivered": seen}
    peer.ask("ROLLBACK_TRANSACTION", properties)
    (again,) = peer.messages()
    assert (again.delivery_count, has_flag(again, "R")) == ((2, True) if seen else (1, False))


def test_the_end_of_a_connection_rolls_back(broker: Broker) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    number = started(peer)
    peer.acknowledge(*peer.messages(), transaction=number)
    peer.send(peer.producer("q"), "never", transaction_id=number)
    peer.lose()
    (again,) = receiving(broker).messages()
    assert (again.body, again.delivery_count) == (b"a", 2)
    assert broker.core.router.destinations[True, "q"].kept == 1


def test_a_transaction_that_failed_cannot_be_committed(broker: Broker) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    (message,) = peer.messages()
    assert peer.acknowledge(message) == 200
    number = started(peer)
    producer = peer.producer("q")
    peer.send(producer, "b", transaction_id=number)
    assert peer.acknowledge(message, transaction=number) == 410
    assert peer.send(producer, "c", transaction_id=number) == 500
    assert commit(peer, number) == 500
    assert peer.texts() == []
    assert peer.acknowledge(message, transaction=1) == 410


def test_the_next_transaction_may_begin_with_a_commit(broker: Broker) -> None:
    peer = receiving(broker)
    number = started(peer)
    found = peer.ask(
        "COMMIT_TRANSACTION", {"JMQTransactionID": number, "JMQStartNextTransaction": True}
    )
    assert commit(peer, int(found["JMQNextTransactionID"])) == 200


def test_xa_in_two_phases_over_two_connections(broker: Broker) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    xid = xid_of(1)
    number = started(peer, properties={"JMQXAFlags": 0}, body=xid)
    peer.send(peer.producer("q"), "b", transaction_id=number)
    peer.acknowledge(*peer.messages(), transaction=number)
    ended = peer.ask("END_TRANSACTION", {"JMQXAFlags": SUCCESS}, body=xid)
    assert (ended["JMQStatus"], ended["JMQTransactionID"]) == (200, number)
    assert status(peer, "PREPARE_TRANSACTION", number, body=xid) == 200
    assert peer.send(peer.producer("q"), "c", transaction_id=number) == 500
    peer.lose()
    other = receiving(broker)
    assert other.texts() == []
    found = other.ask("RECOVER_TRANSACTION", {"JMQXAFlags": START_SCAN})
    assert (found["JMQQuantity"], found["body"]) == (1, xid)
    assert other.ask("RECOVER_TRANSACTION", {"JMQXAFlags": END_SCAN})["JMQQuantity"] == 0
    assert commit(other, 0, body=xid) == 200
    assert other.texts() == ["b"]
    assert other.ask("RECOVER_TRANSACTION", {"JMQXAFlags": START_SCAN})["JMQQuantity"] == 0
    started(other, properties={"JMQXAFlags": 0}, body=xid)  # an Xid is free again


def test_xa_that_is_rolled_back_after_it_was_prepared(broker: Broker) -> None:
    peer = receiving(broker)
    sending(broker, "a")
    xid = xid_of(2)
    number = started(peer, properties={"JMQXAFlags": 0}, body=xid)
    peer.acknowledge(*peer.messages(), transaction=number)
    status(peer, "END_TRANSACTION", number, body=xid)
    status(peer, "PREPARE_TRANSACTION", number, body=xid)
    peer.lose()
    other = receiving(broker)
    assert status(other, "ROLLBACK_TRANSACTION", 0, body=xid) == 200
    (again,) = other.messages()
    assert (again.body, again.delivery_count) == (b"a", 2)


def test_xa_that_is_not_prepared_ends_with_its_connection(broker: Broker) -> None:
    peer = receiving(broker)
    started(peer, properties={"JMQXAFlags": 0}, body=xid_of(3))
    peer.lose()
    assert commit(receiving(broker), 0, body=xid_of(3)) == 404


def test_joining(broker: Broker) -> None:
    peer, xid = receiving(broker), xid_of(4)
    joins = {"JMQXAFlags": JOIN}
    assert peer.ask("START_TRANSACTION", joins, body=xid)["JMQStatus"] == 404
    number = started(peer, properties={"JMQXAFlags": 0}, body=xid)
    status(peer, "END_TRANSACTION", number, body=xid)
    assert peer.ask("START_TRANSACTION", {"JMQXAFlags": 0}, body=xid)["JMQStatus"] == 409
    assert started(joined(broker), properties=joins, body=xid) == number
    ended = peer.ask("END_TRANSACTION", {"JMQXAFlags": FAIL}, body=xid)
    assert ended["JMQStatus"] == 200
    assert status(peer, "PREPARE_TRANSACTION", number, body=xid) == 500
    assert commit(peer, number, body=xid) == 500
    assert peer.ask("START_TRANSACTION", None, body=b"short")["JMQStatus"] == 400
