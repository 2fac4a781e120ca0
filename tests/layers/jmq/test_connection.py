"""Conversations made by hand, and what the tables say about them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest

from tests.layers.jmq.make import BROKER, CLIENT, Talk, block, message_id
from wireyard.formats.base import Row
from wireyard.layers.jmq.delivery import OUTCOMES, VERDICTS
from wireyard.layers.jmq.facts import RULES
from wireyard.layers.jmq.receiver import NO_ACKNOWLEDGE
from wireyard.layers.jmq.tables import tables
from wireyard.layers.jmq.walk import Walk
from wireyard.layers.tables import TABLES

Tables = dict[str, list[Row]]

XID = struct.pack(">iHH64s64s", 1, 1, 1, b"g", b"b")


def verdicts(told: Tables) -> list[str]:
    """Return the verdicts in the order in which the messages were handed over."""
    found = sorted(told["deliveries"], key=lambda row: (row["delivered_ns"], row["offset"]))
    assert all(row["outcome"] == OUTCOMES[row["verdict"]] for row in found)
    return [row["verdict"] for row in found]


def rules(told: Tables) -> list[str]:
    assert all(row["rule"] in RULES and row["text"] for row in told["violations"])
    return [row["rule"] for row in told["violations"]]


def control(told: Tables, request: str) -> list[Row]:
    found = [row for row in told["conversations"] if row["request"] == request]
    assert all(row["kind"] == "control" for row in found)
    return found


def only(rows: Iterable[Row]) -> Row:
    (row,) = rows
    return row


def test_every_row_has_the_columns_of_its_table() -> None:
    talk = Talk().login()
    talk.consumer(7)
    talk.acknowledge(talk.deliver(talk.send(reply_to="r"), 7))
    talk.request("START_TRANSACTION", re_JMQTransactionID=1)
    talk.ask("HELLO")
    told = talk.tables()
    assert set(told) == set(TABLES) - {"retained"}
    for table, rows in told.items():
        assert rows, table
        for row in rows:
            assert list(row) == [column.name for column in TABLES[table]]
            assert row["source"] == talk.source and row["stream"] and row["offset"] >= 0


# --- requests and replies -------------------------------------------------------------------


def test_a_reply_has_the_id_of_its_request() -> None:
    talk = Talk().login()
    first = talk.ask("CREATE_SESSION")
    first_id = talk.ack_id
    second = talk.ask("CREATE_DESTINATION")
    late = talk.reply("CREATE_DESTINATION_REPLY", 409)
    early = talk.reply("CREATE_SESSION_REPLY", ack_id=first_id)
    told = talk.tables()
    row = only(control(told, "CREATE_SESSION"))
    assert row["request_key"] == f"{first['stream']}@{first['offset']}"
    assert row["reply_key"] == f"{early['stream']}@{early['offset']}"
    assert (row["requester"], row["responder"]) == ("10.0.0.9:50000", "10.0.0.1:7677")
    assert (row["requested_frame"], row["replied_frame"]) == (first["frame"], early["frame"])
    assert (row["latency_ms"], row["status"]) == (3, 200)
    row = only(control(told, "CREATE_DESTINATION"))
    assert (row["requested_ns"], row["replied_ns"]) == (second["captured_ns"], late["captured_ns"])
    assert row["status"] == 409
    assert not rules(told)


def test_hello_has_two_answers_and_one_reply() -> None:
    told = Talk().login().tables()
    assert [row["request"] for row in told["conversations"]] == ["HELLO", "AUTHENTICATE"]
    assert not rules(told)


def test_a_request_without_a_reply_is_told() -> None:
    talk = Talk().login()
    asked = talk.ask("CREATE_SESSION")
    row = only(control(talk.tables(), "CREATE_SESSION"))
    assert row["requested_frame"] == asked["frame"]
    for name in ("reply_key", "replied_ns", "replied_frame", "latency_ms", "status"):
        assert row[name] is None


def test_brokers_ask_too() -> None:
    talk = Talk().login()
    talk.packet("PING", False, flags="A", consumer_id=1)
    talk.tell("PING_REPLY", consumer_id=1)
    told = talk.tables()
    row = only(control(told, "PING"))
    assert (row["requester"], row["responder"]) == ("10.0.0.1:7677", "10.0.0.9:50000")
    assert row["latency_ms"] == 1 and not rules(told)


def test_what_is_too_large_is_answered_like_a_message() -> None:
    talk = Talk().login()
    talk.request("ACKNOWLEDGE", 423, reply="SEND_REPLY")
    told = talk.tables()
    assert only(control(told, "ACKNOWLEDGE"))["status"] == 423 and not rules(told)


@pytest.mark.parametrize("name", ["COMMIT_TRANSACTION_REPLY", "CREATE_SESSION_REPLY"])
def test_a_reply_needs_a_request_of_its_kind(name: str) -> None:
    talk = Talk().login()
    talk.ask("START_TRANSACTION")
    talk.reply(name)
    told = talk.tables()
    assert rules(told) == ["reply_without_request"]
    assert only(control(told, "START_TRANSACTION"))["reply_key"] is None


def test_an_id_is_used_again_only_when_it_was_answered() -> None:
    talk = Talk().login()
    talk.ask("CREATE_SESSION")
    talk.ack_id -= 1
    talk.request("CREATE_SESSION")
    told = talk.tables()
    assert rules(told) == ["request_id_reused"]
    assert sorted(str(row["status"]) for row in control(told, "CREATE_SESSION")) == ["200", "None"]


# --- sessions -------------------------------------------------------------------------------


def test_a_session_tells_who_was_there_and_how_it_ended() -> None:
    talk = Talk().login()
    talk.request("SET_CLIENTID", JMQClientID="me")
    talk.goodbye()
    told = talk.tables()
    row = only(told["sessions"])
    assert (row["client"], row["server"]) == ("10.0.0.9:50000", "10.0.0.1:7677")
    assert (row["user"], row["client_id"], row["status"]) == ("guest", "me", 200)
    assert (row["version"], row["ended_by"]) == (500, "client")
    assert (row["packets"], row["bytes"]) == (len(talk.rows), 100 * len(talk.rows))
    assert (row["opened_frame"], row["closed_frame"]) == (1, len(talk.rows))
    assert not rules(told)


def test_a_connection_that_ends_without_goodbye_was_dropped() -> None:
    talk = Talk().login()
    assert only(talk.tables()["sessions"])["ended_by"] == "open"
    assert only(talk.tables()["sessions"])["closed_ns"] is None
    row = only(talk.tables(dropped=True)["sessions"])
    assert (row["ended_by"], row["closed_frame"]) == ("dropped", len(talk.rows))


def test_who_says_goodbye_first_ended_it() -> None:
    talk = Talk().login()
    talk.packet("GOODBYE", False, JMQGoodbyeReason=1)
    talk.tell("GOODBYE")
    assert only(talk.tables(dropped=True)["sessions"])["ended_by"] == "server"
    talk = Talk().login()
    talk.ask("GOODBYE")
    talk.packet("GOODBYE", False, JMQGoodbyeReason=1)
    assert only(talk.tables(dropped=True)["sessions"])["ended_by"] == "client"


def test_a_refused_login() -> None:
    talk = Talk()
    talk.request("HELLO")
    talk.packet("AUTHENTICATE_REQUEST", False)
    talk.request("AUTHENTICATE", 413)
    talk.tell("GOODBYE")
    talk.packet("GOODBYE", False, JMQGoodbyeReason=4)
    told = talk.tables(dropped=True)
    row = only(told["sessions"])
    assert (row["status"], row["ended_by"], row["user"]) == (413, "refused", None)
    assert not rules(told)


def test_a_version_that_the_broker_does_not_speak() -> None:
    talk = Talk()
    talk.request("HELLO", 505)
    row = only(talk.tables(dropped=True)["sessions"])
    assert (row["status"], row["ended_by"]) == (505, "refused")


def test_packets_before_the_login_and_after_the_end() -> None:
    talk = Talk()
    talk.request("HELLO")
    talk.request("CREATE_SESSION", 500)
    assert rules(talk.tables()) == ["before_login"]
    talk = Talk().login().goodbye()
    talk.tell("START")
    assert rules(talk.tables()) == ["after_goodbye"]
    talk = Talk().login()
    talk.ask("HELLO")
    assert rules(talk.tables()) == ["second_login"]


def test_a_capture_may_begin_in_the_middle() -> None:
    """What went before is not known, so nothing is held against anybody."""
    talk = Talk()
    talk.reply("CREATE_SESSION_REPLY", ack_id=12)
    one = talk.deliver(talk.send(), 70)
    other = talk.deliver(talk.send(), 71)
    talk.acknowledge(one, {**other, "sequence": 999}, other)
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=5)
    talk.goodbye()
    told = talk.tables()
    assert not rules(told)
    assert verdicts(told) == ["acknowledged", "acknowledged"]
    row = only(told["sessions"])
    assert (row["opened_ns"], row["user"], row["ended_by"]) == (None, None, "client")
    assert only(told["transactions"])["outcome"] == "committed"


def test_only_brokers_count_deliveries() -> None:
    talk = Talk()
    message = Talk(client=("10.0.0.8", 4000)).send()
    talk.deliver(message, 7)
    assert only(talk.tables()["sessions"])["client"] == "10.0.0.9:50000"
    talk.rows.clear()
    talk.send()
    assert only(talk.tables()["sessions"])["client"] == "10.0.0.9:50000"


def test_pings_do_not_tell_who_is_the_client() -> None:
    talk = Talk()
    talk.packet("PING", False)
    talk.login()
    row = only(talk.tables()["sessions"])
    assert row["client"] == "10.0.0.9:50000" and row["packets"] == len(talk.rows) - 1


def test_a_raw_stream_is_half_a_conversation() -> None:
    talk = Talk().login()
    talk.send()
    half = []
    for row in talk.rows:
        if row["src_port"] == CLIENT[1]:
            bare = {k: v for k, v in row.items() if k not in ("src_addr", "captured_ns", "frame")}
            half.append(bare | {"stream": "client.jmq"})
    told = tables(half)
    row = only(told["sessions"])
    assert (row["client"], row["server"], row["opened_ns"]) == ("client.jmq", None, None)
    assert {row["request"] for row in told["conversations"]} == {"HELLO", "AUTHENTICATE"}
    assert all(row["latency_ms"] is None for row in told["conversations"])


# --- deliveries -----------------------------------------------------------------------------


def test_a_delivery_tells_where_a_message_went() -> None:
    talk = Talk().login()
    talk.request("SET_CLIENTID", JMQClientID="me")
    talk.consumer(7, JMQDurableName="dur")
    sent = talk.ask("TEXT_MESSAGE", destination="q")
    accepted = talk.reply("SEND_REPLY")
    delivered = talk.deliver(sent, 7, "R", count=2)
    acknowledged = talk.acknowledge(delivered)
    row = only(talk.tables()["deliveries"])
    assert row["message_key"] == sent["sys_message_id"] == delivered["sys_message_id"]
    assert (row["producer"], row["producer_client_id"]) == ("10.0.0.9:50000", "me")
    assert (row["consumer"], row["client_id"]) == ("10.0.0.9:50000", "me")
    assert (row["server"], row["consumer_id"]) == ("10.0.0.1:7677", 7)
    assert (row["destination"], row["subscription"]) == ("q", "dur")
    assert (row["redelivered"], row["delivery_count"]) == (True, 2)
    assert (row["sent_frame"], row["accepted_frame"]) == (sent["frame"], accepted["frame"])
    assert row["delivered_frame"] == delivered["frame"]
    assert row["acknowledged_frame"] == acknowledged["frame"]
    assert row["acknowledged_ns"] == acknowledged["captured_ns"]
    assert (row["stream"], row["offset"]) == (delivered["stream"], delivered["offset"])
    assert (row["outcome"], row["verdict"]) == ("acknowledged", "acknowledged")


def test_a_message_that_nobody_was_seen_to_send_has_the_producer_of_its_header() -> None:
    talk = Talk().login()
    talk.consumer(7)
    elsewhere = Talk(client=("10.0.0.8", 4000)).send()
    talk.deliver(elsewhere, 7)
    row = only(talk.tables()["deliveries"])
    assert (row["producer"], row["sent_frame"]) == ("10.0.0.8:4000", None)


def held(ack_mode: int | None = 1, **values: Any) -> tuple[Talk, list[Row]]:
    """Return a conversation in which a consumer holds three messages."""
    talk = Talk().login()
    talk.consumer(7, ack_mode, JMQSessionID=70, **values)
    return talk, [talk.deliver(talk.send(), 7) for _ in range(3)]


def test_what_a_consumer_holds_is_not_acknowledged() -> None:
    talk, _ = held()
    assert verdicts(talk.tables()) == ["held"] * 3
    assert only(talk.tables()["sessions"])["in_flight_received"] == 3
    assert verdicts(talk.tables(dropped=True)) == ["left"] * 3
    talk.goodbye()
    assert verdicts(talk.tables()) == ["left"] * 3


def test_one_packet_acknowledges_many_with_a_reply_or_without() -> None:
    talk, (one, two, three) = held()
    talk.acknowledge(one, three, status=None)
    talk.acknowledge(two)
    told = talk.tables()
    assert verdicts(told) == ["acknowledged"] * 3 and not rules(told)


@pytest.mark.parametrize(
    ("properties", "verdict"),
    [
        ({"JMQAckType": 2, "JMQDeadReason": 1}, "expired"),
        ({"JMQAckType": 2, "JMQDeadReason": 0}, "dead"),
        ({"JMQAckType": 2}, "dead"),
        ({"JMQAckType": 1}, "returned_seen"),
        ({"JMSXDeliveryCountUpdateOnly": True}, "held"),
    ],
)
def test_what_an_acknowledgement_may_say(properties: dict[str, Any], verdict: str) -> None:
    talk, (one, _, _) = held()
    talk.acknowledge(one, **properties)
    told = talk.tables()
    assert verdicts(told)[0] == verdict and not rules(told)


def test_an_acknowledgement_counts_when_the_broker_says_so() -> None:
    talk, (one, two, _) = held()
    talk.acknowledge(one, status=500)
    talk.ask("ACKNOWLEDGE", body=block(two))
    assert verdicts(talk.tables()) == ["held", "acknowledging", "held"]
    first = talk.tables()["deliveries"]
    assert next(row for row in first if row["verdict"] == "held")["acknowledged_ns"] is None
    assert verdicts(talk.tables(dropped=True)) == ["left", "unconfirmed", "left"]


def test_only_what_is_held_can_be_acknowledged() -> None:
    talk, (one, two, _) = held()
    talk.acknowledge(one)
    talk.acknowledge(one, status=409)
    talk.acknowledge({**two, "consumer_id": 8}, status=404)
    told = talk.tables()
    assert rules(told) == ["acknowledged_nothing"] * 2
    assert told["violations"][0]["message_key"] == one["sys_message_id"]
    assert verdicts(told) == ["acknowledged", "held", "held"]


def test_a_body_that_is_no_list_of_acknowledgements() -> None:
    talk, (one, _, _) = held()
    talk.tell("ACKNOWLEDGE", body=block(one)[:-1])
    talk.tell("REDELIVER", body=b"x")
    told = talk.tables()
    assert rules(told) == ["malformed_records"] * 2 and verdicts(told) == ["held"] * 3


def test_old_packets_have_narrow_consumer_ids() -> None:
    talk, _ = held()
    old = talk.deliver(talk.send(), 7)
    talk.tell("ACKNOWLEDGE", body=block({**old, "version": 103}), version=103)
    assert verdicts(talk.tables()) == ["held", "held", "held", "acknowledged"]


def test_what_is_given_back_comes_again() -> None:
    talk, (one, two, three) = held()
    talk.tell("REDELIVER", body=block(two) + block(three), JMQSetRedelivered=False)
    talk.tell("REDELIVER", body=block(one), JMQSetRedelivered=True)
    again = talk.deliver(one, 7, "R", count=2)
    talk.deliver(two, 7)
    talk.acknowledge(again)
    told = talk.tables()
    assert verdicts(told) == [
        "returned_seen", "returned_unseen", "returned_unseen", "acknowledged", "held",
    ]  # fmt: skip
    assert [row["redelivered"] for row in told["deliveries"]].count(True) == 1
    assert not rules(told)


def test_a_closed_consumer_gives_back_what_came_after_the_last_it_saw() -> None:
    talk, (_, two, _) = held(2)
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, JMQBodyType=3, body=message_id(two))
    talk.acknowledge(two)
    told = talk.tables()
    assert verdicts(told) == ["held", "acknowledged", "returned_unseen"]
    talk.request("DESTROY_SESSION", JMQSessionID=70)
    told = talk.tables()
    assert verdicts(told) == ["left", "acknowledged", "returned_unseen"] and not rules(told)


def test_a_consumer_is_closed_once() -> None:
    talk, (_, two, _) = held(2)
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, body=message_id(two))
    talk.request("DELETE_CONSUMER", JMQConsumerID=7)
    assert verdicts(talk.tables()) == ["held", "held", "returned_unseen"]


@pytest.mark.parametrize("seen", [0, 1])
def test_a_closed_consumer_that_acknowledged_all_it_saw(seen: int) -> None:
    talk, rows = held()
    for row in rows[:seen]:
        talk.acknowledge(row)
    body = message_id(rows[0]) if seen else None
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, JMQBodyType=3 * seen, body=body)
    given_back = ["returned_unseen"] * (3 - seen)
    assert verdicts(talk.tables()) == ["acknowledged"] * seen + given_back


def test_a_session_takes_only_its_own_consumers_with_it() -> None:
    talk, _ = held()
    talk.consumer(8, JMQSessionID=80)
    talk.deliver(talk.send(), 8)
    talk.request("DESTROY_SESSION", JMQSessionID=70)
    assert verdicts(talk.tables()) == ["left", "left", "left", "held"]


def test_a_consumer_that_is_gone_gets_nothing() -> None:
    talk, (_, two, _) = held()
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, body=message_id(two))
    talk.deliver(talk.send(), 7)
    talk.deliver(talk.send(), 12)
    assert rules(talk.tables()) == ["unknown_consumer"] * 2


def test_a_consumer_that_could_not_be_closed_stays() -> None:
    talk, _ = held()
    talk.request("DELETE_CONSUMER", 404, JMQConsumerID=7)
    talk.request("DELETE_CONSUMER", JMQDurableName="another")
    talk.request("DESTROY_SESSION", 500, JMQSessionID=70)
    assert verdicts(talk.tables()) == ["held"] * 3


def test_a_consumer_that_was_refused_is_none() -> None:
    talk = Talk().login()
    talk.request("ADD_CONSUMER", 400, JMQAckMode=1)
    talk.deliver(talk.send(), 7)
    assert rules(talk.tables()) == ["unknown_consumer"]


def test_a_message_is_not_handed_over_while_it_is_held() -> None:
    talk, (one, _, _) = held()
    talk.deliver(one, 7)
    told = talk.tables()
    assert rules(told) == ["handed_over_twice"]
    assert verdicts(told) == ["left", "held", "held", "held"]


def test_nobody_waits_for_those_who_never_acknowledge() -> None:
    talk, _ = held(NO_ACKNOWLEDGE)
    told = talk.tables(dropped=True)
    assert verdicts(told) == ["no_ack_wanted"] * 3
    assert only(told["sessions"])["in_flight_received"] == 0


def test_a_browser_gets_copies() -> None:
    talk, (one, _, _) = held()
    talk.request("BROWSE", re_JMQConsumerID=8)
    talk.request("DELIVER", JMQConsumerID=8)
    talk.deliver(one, 8, "L")
    told = talk.tables()
    assert verdicts(told) == ["held", "held", "held", "browsed"] and not rules(told)
    assert {row["outcome"] for row in told["deliveries"]} == {"unacknowledged", "no_ack_wanted"}


def test_a_message_from_the_dead_message_queue_says_why_it_was_there() -> None:
    talk = Talk().login()
    talk.consumer(7, JMQDestination="mq.sys.dmq")
    sent = talk.send()
    row = talk.deliver(sent, 7)
    row["properties"] = {"JMS_SUN_DMQ_UNDELIVERED_REASON": {"type": "string", "value": "EXPIRED"}}
    found = only(talk.tables()["deliveries"])
    assert (found["dead_reason"], found["message_key"]) == ("EXPIRED", sent["sys_message_id"])


# --- transactions ---------------------------------------------------------------------------


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
    told = talk.tables()
    assert verdicts(told) == [outcome]
    row = only(told["transactions"])
    assert (row["transaction_id"], row["client"]) == (one, "10.0.0.9:50000")
    assert (row["outcome"], row["sent"], row["acknowledged"]) == (outcome, 1, 1)
    assert (row["begun_frame"], row["ended_frame"]) == (start["frame"], talk.rows[-1]["frame"])
    assert row["ended_ns"] > row["begun_ns"]
    assert only(told["deliveries"])["transaction_id"] == one
    assert not rules(told)


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
    told = talk.tables()
    row = only(told["transactions"])
    assert (row["sent"], row["acknowledged"]) == (0, 0)
    assert verdicts(told) == ["held"] and only(told["deliveries"])["transaction_id"] is None


def test_a_dropped_connection_rolls_back() -> None:
    talk, one = begun()
    talk.acknowledge(talk.deliver(talk.send(), 7), transaction_id=one)
    told = talk.tables(dropped=True)
    assert verdicts(told) == ["rolled_back"]
    assert only(told["transactions"])["outcome"] == "rolled_back"
    talk.ask("COMMIT_TRANSACTION", JMQTransactionID=one)
    told = talk.tables(dropped=True)
    assert verdicts(told) == ["in_transaction"]  # nothing tells whether the commit came through
    assert only(told["transactions"])["outcome"] == "open"


def test_a_refused_commit_is_none() -> None:
    talk, one = begun()
    talk.request("COMMIT_TRANSACTION", 500, JMQTransactionID=one)
    assert only(talk.tables()["transactions"])["outcome"] == "open"
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=one)
    told = talk.tables()
    assert only(told["transactions"])["outcome"] == "committed" and not rules(told)


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
    told = talk.tables()
    assert set(rules(told)) == {"transaction_over"}
    row = only(told["transactions"])
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
    told = talk.tables()
    row = only(told["transactions"])
    assert (row["outcome"], row["sent"]) == (outcome, 1) and not rules(told)
    begun = next(one for one in talk.rows if one["packet_type_name"] == "START_TRANSACTION_REPLY")
    assert row["begun_frame"] == begun["frame"]


def test_a_connection_leaves_only_what_it_did_not_end() -> None:
    talk, one = begun()
    talk.request("COMMIT_TRANSACTION", JMQTransactionID=one)
    talk.request("START_TRANSACTION", re_JMQTransactionID=9)
    walk = Walk()
    for row in talk.goodbye().rows:
        walk.take(row)
    walk.finish()
    events = [(use.transaction_id, use.event) for use in walk.facts.uses]
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
    ended = {(talk.source, talk.stream(True))}
    assert verdicts(tables(talk.rows + other.rows, ended)) == ["in_transaction"]
    xa(other, "COMMIT_TRANSACTION")
    told = tables(talk.rows + other.rows, ended)
    assert verdicts(told) == ["committed"] and not rules(told)
    assert only(told["transactions"])["client"] == "10.0.0.9:50000"


# --- flow -----------------------------------------------------------------------------------


def test_a_consumer_gets_nothing_behind_its_last() -> None:
    talk = Talk().login()
    talk.consumer(7)
    talk.deliver(talk.send(), 7, "C")
    talk.tell("RESUME_FLOW", JMQConsumerID=7, JMQSize=5)
    talk.deliver(talk.send(), 7, "FC")
    talk.tell("RESUME_FLOW")
    early = talk.deliver(talk.send(), 7)
    told = talk.tables()
    row = only(told["violations"])
    assert (row["rule"], row["message_key"]) == ("sent_while_paused", early["sys_message_id"])
    assert (row["frame"], row["captured_ns"]) == (early["frame"], early["captured_ns"])
    session = only(told["sessions"])
    assert (session["pauses"], session["paused_ns"]) == (3, (1 + 1 + 3) * 1_000_000)


def test_a_pause_ends_with_its_consumer() -> None:
    talk = Talk().login()
    talk.consumer(7)
    talk.deliver(talk.send(), 7, "C")
    talk.request("DELETE_CONSUMER", JMQConsumerID=7)
    talk.goodbye()
    session = only(talk.tables()["sessions"])
    assert (session["pauses"], session["paused_ns"]) == (1, 2_000_000)


def test_a_producer_waits_for_credit() -> None:
    talk = Talk().login()
    talk.send(flags="C", producer_id=4)
    talk.send(producer_id=5)
    talk.packet("RESUME_FLOW", False, JMQProducerID=4, JMQSize=10)
    talk.send(flags="C", producer_id=4)
    talk.request("DELETE_PRODUCER", JMQProducerID=4)
    talk.send(producer_id=4)
    talk.packet("RESUME_FLOW", False, JMQProducerID=5, JMQSize=0)
    talk.send(producer_id=5)
    told = talk.tables()
    assert not rules(told) and only(told["sessions"])["pauses"] == 3


def test_packets_of_others_say_nothing() -> None:
    talk = Talk().login()
    talk.send(parent_offset=7)
    talk.send(format="mqtt")
    assert only(talk.tables()["sessions"])["packets"] == len(talk.rows) - 2


@pytest.mark.parametrize("status", ["gap", "malformed", "garbage"])
def test_behind_what_is_missing_nothing_is_held_against_anybody(status: str) -> None:
    talk, (one, _, _) = held()
    talk.deliver(talk.send(), 7, "FC")
    talk.send(status=status)
    talk.deliver(talk.send(), 7)
    talk.deliver(one, 7)
    talk.deliver(talk.send(), 8)
    talk.acknowledge({**one, "sequence": 77})
    talk.reply("CREATE_SESSION_REPLY", ack_id=99)
    assert rules(talk.tables()) == ["sequence_gap"]
    talk.rows = [row for row in talk.rows if row["status"] == "ok"]
    assert set(rules(talk.tables())) == {
        "sequence_gap",
        "sent_while_paused",
        "handed_over_twice",
        "unknown_consumer",
        "acknowledged_nothing",
        "reply_without_request",
    }


def test_a_login_may_be_in_a_gap() -> None:
    talk = Talk()
    talk.ask("HELLO")
    talk.reply("HELLO_REPLY")
    talk.send(status="gap")
    talk.request("CREATE_SESSION")
    talk.goodbye()
    told = talk.tables()
    assert rules(told) == ["sequence_gap"]
    assert only(told["sessions"])["ended_by"] == "client"
    talk.rows = [row for row in talk.rows if row["status"] == "ok"]
    assert "before_login" in rules(talk.tables())


def test_a_hello_behind_a_gap_is_not_the_first_packet() -> None:
    talk = Talk()
    talk.ask("HELLO")
    talk.send(status="gap")
    talk.login()
    talk.reply("CREATE_SESSION_REPLY", ack_id=99)
    told = talk.tables()
    assert set(rules(told)) == {"sequence_gap"}
    assert only(told["sessions"])["opened_ns"] is None


def test_words_for_every_verdict_are_sentences() -> None:
    assert all(text and text == text.strip() for text in (*VERDICTS.values(), *RULES.values()))


def test_endpoints_of_ipv6_are_in_brackets() -> None:
    talk = Talk().login()
    for row in talk.rows:
        for end in ("src", "dst"):
            row[f"{end}_addr"] = "::1"
    told = talk.tables()
    assert only(told["sessions"])["client"] == f"[::1]:{CLIENT[1]}"
    assert only(told["sessions"])["server"] == f"[::1]:{BROKER[1]}"
