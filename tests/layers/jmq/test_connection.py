"""Conversations made by hand, and what the tables say: requests, sessions, flow."""

from __future__ import annotations

import pytest

from tests.layers.jmq.judge import derive
from tests.layers.jmq.make import BROKER, CLIENT, OK, Talk, block, held
from tests.layers.jmq.tables import control, only, rules, verdicts
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS
from wireyard.layers.jmq.facts import VERDICTS
from wireyard.layers.jmq.rules import RULES
from wireyard.layers.tables import TABLES


def test_every_row_has_the_columns_of_its_table() -> None:
    talk = Talk().login()
    talk.consumer(7)
    talk.acknowledge(talk.deliver(talk.send(reply_to="r"), 7))
    talk.request("START_TRANSACTION", re_JMQTransactionID=1)
    talk.ask("HELLO")
    tables = talk.tables()
    assert set(tables) == set(TABLES) - {
        "retained",
        "messages",
        "destinations",
        "producers",
        "latencies",
    }
    for table, rows in tables.items():
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
    tables = talk.tables()
    row = only(control(tables, "CREATE_SESSION"))
    assert row["request_key"] == f"{first['stream']}@{first['offset']}"
    assert row["reply_key"] == f"{early['stream']}@{early['offset']}"
    assert (row["requester"], row["responder"]) == ("10.0.0.9:50000", "10.0.0.1:7677")
    assert (row["requested_frame"], row["replied_frame"]) == (first["frame"], early["frame"])
    assert (row["latency_ms"], row["status"]) == (3, 200)
    row = only(control(tables, "CREATE_DESTINATION"))
    assert (row["requested_ns"], row["replied_ns"]) == (second["captured_ns"], late["captured_ns"])
    assert row["status"] == 409
    assert not rules(tables)


def test_hello_has_two_answers_and_one_reply() -> None:
    tables = Talk().login().tables()
    assert [row["request"] for row in tables["conversations"]] == ["HELLO", "AUTHENTICATE"]
    assert not rules(tables)


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
    tables = talk.tables()
    row = only(control(tables, "PING"))
    assert (row["requester"], row["responder"]) == ("10.0.0.1:7677", "10.0.0.9:50000")
    assert row["latency_ms"] == 1 and not rules(tables)


def test_what_is_too_large_is_answered_like_a_message() -> None:
    talk = Talk().login()
    talk.request("ACKNOWLEDGE", 423, reply="SEND_REPLY")
    tables = talk.tables()
    assert only(control(tables, "ACKNOWLEDGE"))["status"] == 423 and not rules(tables)


@pytest.mark.parametrize("name", ["COMMIT_TRANSACTION_REPLY", "CREATE_SESSION_REPLY", "of no name"])
def test_a_reply_has_the_id_of_its_request_whatever_its_type(name: str) -> None:
    talk = Talk().login()
    talk.ask("START_TRANSACTION")
    talk.reply(name)
    tables = talk.tables()
    assert not rules(tables)
    assert only(control(tables, "START_TRANSACTION"))["status"] == OK


def test_types_without_a_name_are_matched_by_their_id() -> None:
    talk = Talk().login()
    talk.ask("of no name")
    talk.packet("of no name", False, consumer_id=99)
    talk.reply("of no name", 501)
    talk.packet("of no name", False, flags="A", consumer_id=7)
    talk.tell("of no name", consumer_id=7)
    tables = talk.tables()
    assert not rules(tables)
    asked, told = control(tables, "99")
    assert (asked["status"], told["reply_key"] is None) == (501, False)
    talk.reply("PING_REPLY", ack_id=4242)
    assert rules(talk.tables()) == ["reply_without_request"]


def test_an_id_is_used_again_only_when_it_was_answered() -> None:
    talk = Talk().login()
    talk.ask("CREATE_SESSION")
    talk.ack_id -= 1
    talk.request("CREATE_SESSION")
    tables = talk.tables()
    assert rules(tables) == ["request_id_reused"]
    assert sorted(str(row["status"]) for row in control(tables, "CREATE_SESSION")) == [
        "200",
        "None",
    ]


# --- sessions -------------------------------------------------------------------------------


def test_a_session_tells_who_was_there_and_how_it_ended() -> None:
    talk = Talk().login()
    talk.request("SET_CLIENTID", JMQClientID="me")
    talk.goodbye()
    tables = talk.tables()
    row = only(tables["sessions"])
    assert (row["client"], row["server"]) == ("10.0.0.9:50000", "10.0.0.1:7677")
    assert (row["user"], row["client_id"], row["status"]) == ("guest", "me", 200)
    assert (row["version"], row["ended_by"]) == (500, "client")
    assert (row["packets"], row["bytes"]) == (len(talk.rows), 100 * len(talk.rows))
    assert (row["opened_frame"], row["closed_frame"]) == (1, len(talk.rows))
    assert not rules(tables)


def test_a_connection_that_ends_without_goodbye_was_dropped() -> None:
    talk = Talk().login()
    assert only(talk.tables()["sessions"])["ended_by"] == "open"
    assert only(talk.tables()["sessions"])["closed_ns"] is None
    row = only(talk.tables(dropped=True)["sessions"])
    assert (row["ended_by"], row["closed_frame"]) == ("dropped", len(talk.rows))


def ask_again(talk: Talk, first: Row, another_id: bool) -> None:
    """Send a request again, with its id or another one."""
    talk.ack_id -= not another_id
    again = talk.ask(first["packet_type_name"], destination=first.get("destination"))
    again |= {name: first[name] for name in ("timestamp", "sequence", "sys_message_id")}
    again["bit_flags"] |= FLAGS["I"]


@pytest.mark.parametrize("another_id", [False, True])
def test_a_request_that_is_sent_again_waits_once(another_id: bool) -> None:
    """Each of its packets may be answered, and the first reply settles it."""
    talk = Talk().login()
    first = talk.ask("TEXT_MESSAGE", destination="q")
    for _ in range(2):
        ask_again(talk, first, another_id)
    assert only(talk.tables()["sessions"])["in_flight_sent"] == 1
    for number, status in enumerate((200, 304, 304)):
        talk.reply("SEND_REPLY", status, talk.ack_id - number * another_id)
        tables = talk.tables()
        assert only(tables["sessions"])["in_flight_sent"] == 0
        assert [row["status"] for row in control(tables, "TEXT_MESSAGE")] == [200]
        assert not rules(tables)
    talk.request("PING")
    assert not rules(talk.tables())
    talk.reply("SEND_REPLY", 304)
    assert rules(talk.tables()) == ["reply_without_request"]


def test_a_connection_does_not_begin_or_end_twice() -> None:
    talk = Talk()
    for name in ("HELLO", "AUTHENTICATE", "GOODBYE"):
        ask_again(talk, talk.ask(name), another_id=False)
        talk.reply(f"{name}_REPLY")
        if name == "HELLO":
            talk.reply("AUTHENTICATE_REQUEST")
    tables = talk.tables()
    assert not rules(tables)
    assert only(tables["sessions"])["ended_by"] == "client"


@pytest.mark.parametrize("shown_by", ["count", "flag B", "a later packet"])
def test_messages_before_all_others_have_a_side(shown_by: str) -> None:
    """A broker may leave the delivery count out, which the specification does not have."""
    talk = Talk()
    sent = Talk().send()
    talk.deliver(sent, 7, "B" * (shown_by == "flag B"), 1 if shown_by == "count" else None)
    talk.tell("ACKNOWLEDGE", body=block(talk.rows[0]))
    if shown_by != "a later packet":
        del talk.rows[1]
    tables = talk.tables()
    row = only(tables["sessions"])
    assert (row["client"], row["packets"]) == ("10.0.0.9:50000", len(talk.rows))
    assert len(tables["deliveries"]) == 1


def test_a_client_may_be_writing_while_the_broker_says_goodbye() -> None:
    talk = Talk().login()
    talk.packet("GOODBYE", False)
    talk.ask("TEXT_MESSAGE", destination="q")
    assert rules(talk.tables()) == []
    talk.packet("GOODBYE", True)
    talk.tell("START")
    assert rules(talk.tables()) == ["after_goodbye"]
    assert only(talk.tables()["sessions"])["ended_by"] == "server"


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
    tables = talk.tables(dropped=True)
    row = only(tables["sessions"])
    assert (row["status"], row["ended_by"], row["user"]) == (413, "refused", None)
    assert not rules(tables)


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
    tables = talk.tables()
    assert not rules(tables)
    assert verdicts(tables) == ["acknowledged", "acknowledged"]
    row = only(tables["sessions"])
    assert (row["opened_ns"], row["user"], row["ended_by"]) == (None, None, "client")
    assert only(tables["transactions"])["outcome"] == "committed"


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
    assert row["client"] == "10.0.0.9:50000" and row["packets"] == len(talk.rows)


def test_a_raw_stream_is_half_a_conversation() -> None:
    talk = Talk().login()
    talk.send()
    half = []
    for row in talk.rows:
        if row["src_port"] == CLIENT[1]:
            bare = {k: v for k, v in row.items() if k not in ("src_addr", "captured_ns", "frame")}
            half.append(bare | {"stream": "client.jmq"})
    tables = derive(half)
    row = only(tables["sessions"])
    assert (row["client"], row["server"], row["opened_ns"]) == ("client.jmq", None, None)
    assert {row["request"] for row in tables["conversations"]} == {"HELLO", "AUTHENTICATE"}
    assert all(row["latency_ms"] is None for row in tables["conversations"])


# --- flow -----------------------------------------------------------------------------------


def test_a_consumer_gets_nothing_behind_its_last() -> None:
    talk = Talk().login()
    talk.consumer(7)
    talk.deliver(talk.send(), 7, "C")
    talk.tell("RESUME_FLOW", JMQConsumerID=7, JMQSize=5)
    talk.deliver(talk.send(), 7, "FC")
    talk.tell("RESUME_FLOW")
    early = talk.deliver(talk.send(), 7)
    tables = talk.tables()
    row = only(tables["violations"])
    assert (row["rule"], row["message_key"]) == ("sent_while_paused", early["sys_message_id"])
    assert (row["frame"], row["captured_ns"]) == (early["frame"], early["captured_ns"])
    session = only(tables["sessions"])
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
    tables = talk.tables()
    assert not rules(tables) and only(tables["sessions"])["pauses"] == 3


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
    assert rules(talk.tables()) == []
    talk.rows = [row for row in talk.rows if row["status"] == "ok"]
    assert set(rules(talk.tables())) == {
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
    tables = talk.tables()
    assert rules(tables) == []
    assert only(tables["sessions"])["ended_by"] == "client"
    talk.rows = [row for row in talk.rows if row["status"] == "ok"]
    assert "before_login" in rules(talk.tables())


def test_a_hello_behind_a_gap_is_not_the_first_packet() -> None:
    talk = Talk()
    talk.ask("HELLO")
    talk.send(status="gap")
    talk.login()
    talk.reply("CREATE_SESSION_REPLY", ack_id=99)
    tables = talk.tables()
    assert rules(tables) == []
    assert only(tables["sessions"])["opened_ns"] is None


def test_words_for_every_verdict_are_sentences() -> None:
    meanings = [verdict.meaning for verdict in VERDICTS.values()]
    assert all(text and text == text.strip() for text in (*meanings, *RULES.values()))


def test_endpoints_of_ipv6_are_in_brackets() -> None:
    talk = Talk().login()
    for row in talk.rows:
        for end in ("src", "dst"):
            row[f"{end}_addr"] = "::1"
    tables = talk.tables()
    assert only(tables["sessions"])["client"] == f"[::1]:{CLIENT[1]}"
    assert only(tables["sessions"])["server"] == f"[::1]:{BROKER[1]}"
