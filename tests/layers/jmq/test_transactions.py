"""Conversations made by hand, and what the tables say about transactions."""

from __future__ import annotations

import struct

import pytest

from tests.layers.jmq.judge import derive, packet_tables
from tests.layers.jmq.make import Talk
from tests.layers.jmq.tables import only, rules, verdicts
from wireyard.layers.jmq.columns import follow_connections

XID = struct.pack(">iHH64s64s", 1, 1, 1, b"g", b"b")


def begun(transaction_id: int = 1 << 40) -> tuple[Talk, int]:
    talk = Talk().login()
    talk.consumer(7, None, JMQSessionID=70)
    talk.request("START_TRANSACTION", re_JMQTransactionID=transaction_id)
    return talk, transaction_id


@pytest.mark.parametrize(
    ("end", "outcome"),
    [("COMMIT_TRANSACTION", "committed"), ("ROLLBACK_TRANSACTION", "rolled_back")],
)
def test_a_transaction_decides_about_what_is_in_it(end: str, outcome: str) -> None:
    talk, one = begun()
    start = talk.rows[-1]
    first = talk.send(transaction_id=one)
    talk.acknowledge(talk.deliver(first, 7), transaction_id=one)
    assert verdicts(talk.tables()) == ["in_transaction"]
    assert only(talk.tables()["transactions"])["outcome"] == "open"
    reply = "ROLLBACK_REPLY" if outcome == "rolled_back" else ""
    talk.request(end, JMQTransactionID=one, reply=reply)
    tables = talk.tables()
    assert verdicts(tables) == [outcome]
    row = only(tables["transactions"])
    assert (row["transaction_id"], row["client"]) == (one, "10.0.0.9:50000")
    assert (row["outcome"], row["sent"], row["acknowledged"]) == (outcome, 1, 1)
    assert (row["begun_frame"], row["ended_frame"]) == (start["frame"], talk.rows[-1]["frame"])
    assert row["ended_ns"] > row["begun_ns"]
    assert only(tables["deliveries"])["transaction_id"] == one
    assert not rules(tables)


def test_a_rollback_that_wants_no_reply_is_one_at_once() -> None:
    talk, one = begun()
    talk.tell("ROLLBACK_TRANSACTION", JMQTransactionID=one)
    talk.goodbye()
    assert only(talk.tables()["transactions"])["outcome"] == "rolled_back"


def test_what_was_refused_is_not_in_a_transaction() -> None:
    talk, one = begun()
    talk.request("TEXT_MESSAGE", 500, reply="SEND_REPLY", transaction_id=one)
    delivered = talk.deliver(talk.send(), 7)
    talk.acknowledge(delivered, status=410, transaction_id=one)
    tables = talk.tables()
    row = only(tables["transactions"])
    assert (row["sent"], row["acknowledged"]) == (0, 0)
    assert verdicts(tables) == ["held"] and only(tables["deliveries"])["transaction_id"] is None


def test_a_dropped_connection_rolls_back() -> None:
    talk, one = begun()
    talk.acknowledge(talk.deliver(talk.send(), 7), transaction_id=one)
    tables = talk.tables(dropped=True)
    assert verdicts(tables) == ["rolled_back"]
    assert only(tables["transactions"])["outcome"] == "rolled_back"
    talk.ask("COMMIT_TRANSACTION", JMQTransactionID=one)
    tables = talk.tables(dropped=True)
    # Whether the commit came through was not captured.
    assert verdicts(tables) == ["in_transaction"]
    assert only(tables["transactions"])["outcome"] == "open"


def test_a_refused_commit_is_none() -> None:
    talk, one = begun()
    talk.request("COMMIT_TRANSACTION", 500, JMQTransactionID=one)
    assert only(talk.tables()["transactions"])["outcome"] == "open"
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=one)
    tables = talk.tables()
    assert only(tables["transactions"])["outcome"] == "committed" and not rules(tables)


def test_a_commit_may_begin_the_next() -> None:
    talk, one = begun()
    talk.request(
        "COMMIT_TRANSACTION", JMQTransactionID=one, JMQStartNextTransaction=True,
        re_JMQNextTransactionID=9,
    )  # fmt: skip
    talk.tell("ROLLBACK_TRANSACTION", JMQTransactionID=9)
    rows = {row["transaction_id"]: row for row in talk.tables()["transactions"]}
    outcomes = {key: row["outcome"] for key, row in rows.items()}
    assert outcomes == {one: "committed", 9: "rolled_back"}
    assert rows[9]["begun_frame"] == rows[one]["ended_frame"] == talk.rows[-2]["frame"]


def test_what_is_over_is_over() -> None:
    talk, one = begun()
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=one)
    talk.send(transaction_id=one)
    talk.request("COMMIT_TRANSACTION", 404, JMQTransactionID=one)
    tables = talk.tables()
    assert set(rules(tables)) == {"transaction_over"}
    row = only(tables["transactions"])
    assert (row["outcome"], row["sent"]) == ("committed", 0)


def xa(talk: Talk, *names: str) -> None:
    """Add requests that name their transaction by its Xid, and in the reply by its id."""
    for name in names:
        reply = "ROLLBACK_REPLY" if name == "ROLLBACK_TRANSACTION" else ""
        talk.request(name, reply=reply, body=XID, re_JMQTransactionID=9)


@pytest.mark.parametrize(
    ("names", "outcome"),
    [
        (("END_TRANSACTION",), "open"),
        (("END_TRANSACTION", "PREPARE_TRANSACTION"), "prepared"),
        (("END_TRANSACTION", "PREPARE_TRANSACTION", "COMMIT_TRANSACTION"), "committed"),
        (("END_TRANSACTION", "PREPARE_TRANSACTION", "ROLLBACK_TRANSACTION"), "rolled_back"),
        (("END_TRANSACTION", "COMMIT_TRANSACTION"), "committed"),
        (("END_TRANSACTION", "START_TRANSACTION"), "open"),
    ],
)
def test_xa_transactions(names: tuple[str, ...], outcome: str) -> None:
    talk = Talk().login()
    xa(talk, "START_TRANSACTION")
    talk.send(transaction_id=9)
    xa(talk, *names)
    tables = talk.tables()
    row = only(tables["transactions"])
    assert (row["outcome"], row["sent"]) == (outcome, 1) and not rules(tables)
    begun = next(one for one in talk.rows if one["packet_type_name"] == "START_TRANSACTION_REPLY")
    assert row["begun_frame"] == begun["frame"]


def test_a_connection_leaves_only_what_it_did_not_end() -> None:
    talk, one = begun()
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=one)
    talk.request("START_TRANSACTION", re_JMQTransactionID=9)
    uses = follow_connections(packet_tables(talk.goodbye().rows)).uses.to_pylist()
    events = [(use["transaction_id"], use["event"]) for use in uses]
    assert events == [
        (one, "start"), (one, "ask_commit"), (one, "commit"), (9, "start"), (9, "leave"),
    ]  # fmt: skip


def test_a_prepared_transaction_outlives_its_connection() -> None:
    talk = Talk().login()
    talk.consumer(7, None)
    xa(talk, "START_TRANSACTION")
    talk.acknowledge(talk.deliver(talk.send(), 7), transaction_id=9)
    xa(talk, "END_TRANSACTION", "PREPARE_TRANSACTION")
    other = Talk(client=("10.0.0.9", 50001), now_ms=talk.now_ms).login()
    ended = {(talk.source, talk.stream(True)): (None, None)}
    assert verdicts(derive(talk.rows + other.rows, ended)) == ["in_transaction"]
    xa(other, "COMMIT_TRANSACTION")
    tables = derive(talk.rows + other.rows, ended)
    assert verdicts(tables) == ["committed"] and not rules(tables)
    assert only(tables["transactions"])["client"] == "10.0.0.9:50000"
