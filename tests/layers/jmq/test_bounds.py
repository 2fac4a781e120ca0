"""More open things than are kept: the oldest are evicted, and counted."""

from __future__ import annotations

import struct

import pytest

from tests.layers.jmq.judge import packet_tables
from tests.layers.jmq.make import Talk
from wireyard.layers.jmq.columns import derive_columns
from wireyard.layers.jmq.packet_row import MAX_TEXT


def test_requests_that_nobody_answers_are_forgotten_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.rules.MAX_REMEMBERED", 3)
    talk = Talk().login()
    first, second, third = (talk.send(reply_to="back")["sys_message_id"] for _ in range(3))
    replies = [
        talk.send(destination="back", correlation_id=f"ID:{key}")["sys_message_id"]
        for key in (second, first, second, third)
    ]
    found, _, _, dropped = derive_columns(packet_tables(talk.rows))
    pairs = [
        (row["request_key"], row["reply_key"])
        for row in found["conversations"].to_pylist()
        if row["kind"] == "jms"
    ]
    # The first had to go for the first reply, and the second, with its replies, for the last.
    assert set(pairs) == {
        (first, None), (second, replies[0]), (second, replies[2]), (third, replies[3]),
    }  # fmt: skip
    assert len(pairs) == 4
    assert dropped == {"MAX_REMEMBERED": 1}


def test_a_cap_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.rules.MAX_HELD", 2)
    talk = Talk().login()
    talk.consumer(7)
    talk.consumer(8)
    first, second, third = (talk.deliver(talk.send(), 7) for _ in range(3))
    fourth = talk.deliver(talk.send(), 8)
    talk.acknowledge(first, second, third, fourth)
    tables, _, _, _ = derive_columns(packet_tables(talk.rows))
    by_message = {row["message_key"]: row["verdict"] for row in tables["deliveries"].to_pylist()}
    wanted = ["held", "acknowledged", "acknowledged", "held"]
    assert [by_message[row["sys_message_id"]] for row in (first, second, third, fourth)] == wanted
    (row,) = tables["violations"].to_pylist()
    assert row["rule"] == "acknowledged_nothing" and row["text"].endswith(", 2 times")
    assert row["message_key"] == first["sys_message_id"]


def test_what_was_forgotten_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.rules.MAX_WAITING", 1)
    talk = Talk().login()
    first = talk.ask("CREATE_SESSION")
    talk.request("CREATE_DESTINATION")
    tables, _, _, dropped = derive_columns(packet_tables(talk.rows))
    assert dropped == {"MAX_WAITING": 1}
    rows = tables["conversations"].to_pylist()
    (unanswered,) = (row for row in rows if row["reply_key"] is None)
    assert unanswered["offset"] == first["offset"]


def test_an_id_that_is_used_again_takes_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk().login()
    for _ in range(3):
        talk.ask("PING")
        talk.ack_id -= 1
    talk.ack_id += 1
    talk.reply("PING_REPLY")
    talk.request("CREATE_SESSION")
    monkeypatch.setattr("wireyard.layers.jmq.rules.MAX_WAITING", 1)
    assert not derive_columns(packet_tables(talk.rows)).dropped


def test_long_texts_are_cut() -> None:
    talk = Talk().login()
    talk.consumer(7, JMQDurableName="d" * 5000)
    sent = talk.send(destination="q" * 5000, reply_to="r" * 5000)
    delivered = talk.deliver(sent, 7)
    for row in (sent, delivered):
        row["property_offset"] = 72 + 10_000
    tables = talk.tables()
    (row,) = tables["deliveries"]
    assert row["destination"] == "q" * MAX_TEXT and row["subscription"] == "d" * MAX_TEXT
    (row,) = (row for row in tables["conversations"] if row["kind"] == "jms")
    assert row["request"] == "q" * MAX_TEXT


def test_a_reply_answers_the_latest_of_requests_that_look_the_same() -> None:
    talk = Talk().login()
    for _ in range(3):
        last = talk.send(reply_to="back", correlation_id="c")
    for _ in range(2):
        talk.send(destination="back", correlation_id="c")
    rows = [row for row in talk.tables()["conversations"] if row["reply_key"]]
    keys = [row["request_key"] for row in rows if row["kind"] == "jms"]
    assert keys == [last["sys_message_id"]] * 2


def test_one_packet_breaks_a_rule_once() -> None:
    talk = Talk().login()
    talk.tell("ACKNOWLEDGE", body=struct.pack(">qq16sii", -1, -1, bytes(16), -1, -1) * 1000)
    (row,) = talk.tables()["violations"]
    assert row["rule"] == "acknowledged_nothing" and row["text"].endswith(", 1000 times")
