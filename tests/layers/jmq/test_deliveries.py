"""Conversations made by hand, and what the tables say about deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.jmq.judge import derive
from tests.layers.jmq.make import MS, Talk, block, held, lose, message_id
from tests.layers.jmq.tables import only, rules, verdicts
from wireyard.layers.jmq.rules import NO_ACKNOWLEDGE


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
    assert (row["consumer"], row["consumer_client_id"]) == ("10.0.0.9:50000", "me")
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


@pytest.mark.parametrize("side", ["client", "broker", "both"])
@pytest.mark.parametrize("how", ["acknowledge", "delete"])
def test_what_may_have_been_given_back_and_delivered_again_is_undecided(
    side: str, how: str
) -> None:
    talk, deliveries = held()
    if side in ("client", "both"):
        lose(talk.tell("REDELIVER", body=block(deliveries[1])))
    if side in ("broker", "both"):
        lose(talk.packet("PING", False))
    sure = {"acknowledge": "acknowledged", "delete": "returned_unseen"}[how]
    if how == "acknowledge":
        talk.acknowledge(deliveries[1])
    else:
        talk.request("DELETE_CONSUMER", JMQConsumerID=7, body=message_id(deliveries[0]))
    found = verdicts(talk.tables())
    assert found[1] == ("undecided" if side == "both" else sure)
    talk.acknowledge(later := talk.deliver(deliveries[0], 8))
    assert later and verdicts(talk.tables())[-1] == "acknowledged"


@pytest.mark.parametrize("over", [(), (True,), (True, False)])
def test_a_slice_may_lack_the_last_packets_of_a_stream(over: tuple[bool, ...]) -> None:
    talk, _ = held()
    rows, end = talk.rows, (talk.now_ms * MS, len(talk.rows))
    ended = {(talk.source, talk.stream(side)): end for side in over}
    assert verdicts(derive(rows, ended)) == ["left" if over else "held"] * 3
    sliced = derive(rows, ended, [talk.source])
    assert verdicts(sliced) == ["left" if len(over) == 2 else "undecided"] * 3
    assert only(sliced["sessions"])["ended_by"] == ("open", None, "dropped")[len(over)]


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
    tables = talk.tables()
    assert verdicts(tables) == ["acknowledged"] * 3 and not rules(tables)


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
    tables = talk.tables()
    assert verdicts(tables)[0] == verdict and not rules(tables)


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
    tables = talk.tables()
    assert rules(tables) == ["acknowledged_nothing"] * 2
    assert tables["violations"][0]["message_key"] == one["sys_message_id"]
    assert verdicts(tables) == ["acknowledged", "held", "held"]


def test_a_body_that_is_no_list_of_acknowledgements() -> None:
    talk, (one, _, _) = held()
    talk.tell("ACKNOWLEDGE", body=block(one)[:-1])
    talk.tell("REDELIVER", body=b"x")
    tables = talk.tables()
    assert rules(tables) == ["malformed_records"] * 2 and verdicts(tables) == ["held"] * 3


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
    tables = talk.tables()
    assert verdicts(tables) == [
        "returned_seen", "returned_unseen", "returned_unseen", "acknowledged", "held",
    ]  # fmt: skip
    assert [row["redelivered"] for row in tables["deliveries"]].count(True) == 1
    assert not rules(tables)


def test_a_closed_consumer_gives_back_what_came_after_the_last_it_saw() -> None:
    talk, (_, two, _) = held(2)
    talk.request("DELETE_CONSUMER", JMQConsumerID=7, JMQBodyType=3, body=message_id(two))
    talk.acknowledge(two)
    tables = talk.tables()
    assert verdicts(tables) == ["held", "acknowledged", "returned_unseen"]
    talk.request("DESTROY_SESSION", JMQSessionID=70)
    tables = talk.tables()
    assert verdicts(tables) == ["left", "acknowledged", "returned_unseen"] and not rules(tables)


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


def test_a_message_is_not_delivered_again_while_it_is_held() -> None:
    talk, (one, _, _) = held()
    talk.deliver(one, 7)
    tables = talk.tables()
    assert rules(tables) == ["handed_over_twice"]
    assert verdicts(tables) == ["left", "held", "held", "held"]


def test_nobody_waits_for_those_who_never_acknowledge() -> None:
    talk, _ = held(NO_ACKNOWLEDGE)
    tables = talk.tables(dropped=True)
    assert verdicts(tables) == ["no_ack_wanted"] * 3
    assert only(tables["sessions"])["in_flight_received"] == 0


def test_a_browser_gets_copies() -> None:
    talk, (one, _, _) = held()
    talk.request("BROWSE", re_JMQConsumerID=8)
    talk.request("DELIVER", JMQConsumerID=8)
    talk.deliver(one, 8, "L")
    tables = talk.tables()
    assert verdicts(tables) == ["held", "held", "held", "browsed"] and not rules(tables)
    assert {row["outcome"] for row in tables["deliveries"]} == {"unacknowledged", "no_ack_wanted"}


def test_a_message_from_the_dead_message_queue_says_why_it_was_there() -> None:
    talk = Talk().login()
    talk.consumer(7, JMQDestination="mq.sys.dmq")
    sent = talk.send()
    row = talk.deliver(sent, 7)
    row["properties"] = {"JMS_SUN_DMQ_UNDELIVERED_REASON": {"type": "string", "value": "EXPIRED"}}
    found = only(talk.tables()["deliveries"])
    assert (found["dead_reason"], found["message_key"]) == ("EXPIRED", sent["sys_message_id"])
