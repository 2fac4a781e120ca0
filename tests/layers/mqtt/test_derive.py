"""Tables from made captures: subscriptions, sessions, retained values, conversations, rules."""

from __future__ import annotations

from typing import Any, Final

from tests.layers.mqtt.make import MS, Capture, deliveries_of, pair, tables_of, verdicts_of
from tests.reference import mqtt
from tests.reference.order import in_order
from wireyard.formats.mqtt import FORMAT, layout
from wireyard.formats.rows import rows_to_batch
from wireyard.schema import COMMON

Row = dict[str, Any]
EXPIRY: Final = "session_expiry_interval"


def test_overlapping_subscriptions_may_give_a_copy_each() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, properties=(("subscription_identifier", 7),))
    capture.subscribe("sub", "t/1", qos=2, properties=(("subscription_identifier", 8),))
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 2)
    capture.hand("sub", "t/1", b"x", 1, 1, properties=(("subscription_identifier", 7),))
    capture.hand("sub", "t/1", b"x", 2, 2, properties=(("subscription_identifier", 8),))
    capture.message("pub", "t/1", b"x", 2)
    capture.hand("sub", "t/1", b"x", 2, 3, properties=(("subscription_identifier", 8),))
    rows = deliveries_of(capture)
    assert [row["verdict"] for row in rows] == ["delivered"] * 3
    assert sorted((row["consumer_id"], row["subscription"]) for row in rows) == [
        (7, "t/#"), (8, "t/1"), (8, "t/1"),
    ]  # fmt: skip
    assert len({row["message_key"] for row in rows}) == 2


def test_a_shared_subscription_is_served_once() -> None:
    capture = Capture(5)
    for who in ("one", "two"):
        capture.connect(who)
        capture.subscribe(who, "$share/group/t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"1", 1)
    capture.hand("two", "t", b"1", 1)
    capture.message("pub", "t", b"2", 1)
    capture.ping("one")
    assert sorted(verdicts_of(capture)) == ["delivered", "undecided"]
    capture.ping("two")
    rows = {row["verdict"]: row for row in deliveries_of(capture)}
    assert rows.keys() == {"delivered", "not_forwarded"}
    assert rows["delivered"]["consumer_client_id"] == "two"
    assert {row["subscription"] for row in rows.values()} == {"$share/group/t"}


def test_no_local_keeps_a_clients_own_messages_away() -> None:
    capture = Capture(5)
    capture.connect("both")
    capture.subscribe("both", "t", qos=1, options=4)
    capture.message("both", "t", b"x", 1)
    capture.ping("both")
    assert verdicts_of(capture) == ["no_subscriber"]


def test_aliases_are_resolved() -> None:
    capture = Capture(5)
    capture.connect("sub", properties=(("topic_alias_maximum", 5),))
    capture.subscribe("sub", "t/+")
    capture.connect("pub", said=(("topic_alias_maximum", 5),))
    for number, topic in enumerate(("t/long", "")):
        capture.message("pub", topic, b"%d" % number, 1, properties=(("topic_alias", 3),))
        capture.hand("sub", topic, b"%d" % number, 1, properties=(("topic_alias", 1),))
    capture.publish("pub", True, "", b"x", 0, properties=(("topic_alias", 4),))
    capture.publish("pub", True, "t/x", b"x", 0, properties=(("topic_alias", 6),))
    tables = tables_of(capture)
    delivered = [row for row in tables["deliveries"] if row["verdict"] == "delivered"]
    assert [row["destination"] for row in delivered] == ["t/long", "t/long"]
    rules = [row["rule"] for row in tables["violations"]]
    assert rules == ["alias_unknown", "MQTT-3.3.2-9"]


def test_a_retained_value_is_the_message_that_set_it() -> None:
    capture = Capture()
    capture.connect("pub")
    first = capture.message("pub", "t", b"1", 1, retain=True)
    capture.connect("sub")
    capture.subscribe("sub", "t", qos=1)
    capture.hand("sub", "t", b"1", 1, retain=True)
    capture.message("pub", "t", b"", 1, retain=True)
    capture.hand("sub", "t", b"", 1)
    tables = tables_of(capture)
    retained, deleted = sorted(tables["deliveries"], key=lambda row: -row["retained"])
    assert (retained["sent_frame"], retained["retained"]) == (first, True)
    assert (deleted["verdict"], deleted["retained"]) == ("delivered", False)
    (row,) = tables["retained"]
    assert (row["topic"], row["payload"], row["ended_by"]) == ("t", b"1", "deleted")
    assert row["message_key"] == retained["message_key"]


def test_wills() -> None:
    capture = pair()
    will: Row = {"will_topic": "t/w", "will_payload": b"gone", "will_qos": 1, "will_retain": False}
    capture.connect("polite", **will)
    capture.disconnect("polite")
    capture.connect("rude", **will)
    capture.end("rude")
    capture.hand("sub", "t/w", b"gone", 1)
    (row,) = deliveries_of(capture)
    login = next(one for one in capture.rows if one.get("client_id") == "rude")
    assert (row["origin"], row["verdict"], row["producer_client_id"]) == (
        "will", "delivered", "rude",
    )  # fmt: skip
    assert row["message_key"] == f"{login['stream']}@{login['offset']}"


def test_a_will_that_was_not_published() -> None:
    capture = pair()
    capture.connect("rude", will_topic="t/w", will_payload=b"", will_qos=0, will_retain=False)
    capture.end("rude")
    capture.ping("sub")
    assert verdicts_of(capture) == ["not_forwarded"]


def test_a_capture_that_begins_in_the_middle() -> None:
    """Nothing is known of the subscriptions; what is delivered still finds its message."""
    capture = Capture()
    capture.ping("sub")
    capture.ping("pub")
    sent = capture.message("pub", "t", b"x", 1)
    capture.hand("sub", "t", b"x", 1)
    capture.put("sub", False, layout.PUBREL, packet_id=9)
    capture.put("sub", True, layout.PUBCOMP, packet_id=9)
    tables = tables_of(capture)
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["sent_frame"]) == ("delivered", sent)
    assert row["subscription"] is None
    assert not tables["violations"]


def test_conversations() -> None:
    capture = pair(5)
    asked = (("response_topic", "answers"), ("correlation_data", b"\x01"))
    other = (("response_topic", "answers"), ("correlation_data", b"\x02"))
    first = capture.message("pub", "t/ask", b"?", 1, properties=asked)
    capture.message("pub", "t/ask", b"?", 1, properties=other)
    capture.wait(0.5)
    reply = capture.message("sub", "answers", b"!", 1, properties=asked[1:])
    answered, open_one = tables_of(capture)["conversations"]
    assert (answered["requested_frame"], answered["replied_frame"]) == (first, reply)
    assert (answered["kind"], answered["request"]) == ("mqtt5", "t/ask")
    assert answered["latency_ms"] == (reply - first) + 500
    assert open_one.get("reply_key") is None and open_one["request_key"] != answered["request_key"]


def test_replies_that_several_requests_could_have() -> None:
    """Each request has its own, in order; what comes after that answers the last one again."""
    capture = pair(5)
    asked = (("response_topic", "answers"),)
    requests = [capture.message("pub", "t/ask", b"?", 1, properties=asked) for _ in range(3)]
    replies = [capture.message("sub", "answers", b"!", 1) for _ in range(2)]
    capture.message("pub", "t/ask", b"?", 1, properties=asked)
    replies += [capture.message("sub", "answers", b"!", 1) for _ in range(3)]
    rows = tables_of(capture)["conversations"]
    pairs = [(row["requested_frame"], row["replied_frame"]) for row in rows]
    last = requests[-1] + 6
    assert pairs == list(zip([*requests, last, last], replies, strict=True))


def test_sessions() -> None:
    capture = Capture()
    capture.connect("kept", clean=False, username="user")
    capture.disconnect("kept")
    capture.connect("kept", clean=False, present=True)
    capture.connect("refused", code=5)
    capture.end("refused")
    rows = tables_of(capture)["sessions"]
    assert [(row["client_id"], row["status"], row["ended_by"], row["resumed"]) for row in rows] == [
        ("kept", 0, "client", False), ("kept", 0, "open", True), ("refused", 5, "refused", None),
    ]  # fmt: skip
    assert [row["packets"] for row in rows] == [3, 2, 2]
    assert rows[0]["user"] == "user" and rows[0]["bytes"] == sum(
        one["length"] for one in capture.rows[:3]
    )
    assert rows[0]["closed_ns"] - rows[0]["opened_ns"] == 2 * MS


def test_a_take_over_ends_the_first_connection() -> None:
    capture = pair()
    capture.connect("twin", clean=False)
    capture.leave("twin")
    capture.connect("twin", clean=False, present=True)
    rows = [row for row in tables_of(capture)["sessions"] if row["client_id"] == "twin"]
    assert [row["ended_by"] for row in rows] == ["dropped", "open"]


def test_what_still_comes_on_the_first_connection_counts_for_nothing() -> None:
    capture = pair()
    capture.connect("twin", clean=False)
    capture.subscribe("twin", "t/1", qos=1)
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    capture.publish("twin", False, "t/1", b"x", 1)
    first = capture.stream("twin")
    capture.leave("twin")
    capture.connect("twin", clean=False, present=True)
    capture.put("twin", True, layout.PUBACK, packet_id=1)
    late = capture.rows.pop()
    capture.rows.append(late | {"stream": first, "offset": 1000, "src_port": 40_002})
    capture.hand("twin", "t/1", b"x", 1, dup=True)
    tables = tables_of(capture)
    rows = [row for row in tables["deliveries"] if row["consumer_client_id"] == "twin"]
    assert [(row["verdict"], row["delivery_count"]) for row in rows] == [("delivered", 2)]
    assert not tables["violations"]


def test_violations() -> None:
    capture = pair()
    capture.put("pub", True, layout.PUBACK, packet_id=77)
    capture.put("sub", False, layout.PINGRESP)
    capture.put("sub", False, layout.SUBACK, packet_id=5, return_codes=(0,))
    capture.put("sub", True, layout.CONNACK, return_code=0, session_present=False)
    capture.connect("sub")
    capture.disconnect("pub")
    rows = tables_of(capture)["violations"]
    assert [(row["rule"], row["client_id"]) for row in rows] == [
        ("MQTT-2.3.1-6", "pub"), ("pingresp_unasked", "sub"), ("MQTT-2.3.1-7", "sub"),
        ("wrong_side", "sub"), ("MQTT-3.1.0-2", "sub"), ("connack_twice", "sub"),
    ]  # fmt: skip
    assert all(row["text"] and row["frame"] for row in rows)


def test_limits_of_5_0() -> None:
    """What either side said that it takes at most, and the other sent all the same."""
    capture = Capture(5)
    most = (("receive_maximum", 1), ("maximum_packet_size", 40))
    capture.connect("peer", properties=most, said=most)
    for up in (True, False):
        capture.publish("peer", up, "t", b"1", 1, 1)
        capture.publish("peer", up, "t", b"2", 1, 2)
        capture.publish("peer", up, "t", bytes(50), 0)
    capture.publish("peer", False, "t", b"3", 1, 2)
    rules = [row["rule"] for row in tables_of(capture)["violations"]]
    assert rules == [
        "MQTT-3.3.4-7", "MQTT-3.2.2-15", "MQTT-3.3.4-9", "MQTT-3.1.2-24", "MQTT-2.2.1-4",
        "MQTT-3.3.4-9",
    ]  # fmt: skip


def test_a_session_that_is_present_after_a_clean_start() -> None:
    capture = Capture()
    capture.connect("pub", clean=True, present=True)
    (row,) = tables_of(capture)["violations"]
    assert row["rule"] == "MQTT-3.2.2-1"


def test_a_stream_that_begins_without_connect() -> None:
    capture = Capture()
    capture.ping("pub")
    assert not tables_of(capture)["violations"], "the capture may have begun later"
    begins = {"source": "made.pcap", "stream": capture.stream("pub"), "begun": True, "ended": None}
    (row,) = mqtt.derive(capture.rows, [begins])["violations"]
    assert row["rule"] == "MQTT-3.1.0-1"


def test_what_a_client_sends_before_connack_counts_if_it_is_accepted() -> None:
    for code, expected in ((0, ["no_subscriber"]), (5, [])):
        capture = Capture()
        capture.put(
            "eager", True, layout.CONNECT,
            client_id="eager", clean_start=True, keep_alive=0,
        )  # fmt: skip
        capture.publish("eager", True, "t", b"x", 1)
        capture.put("eager", False, layout.CONNACK, return_code=code, session_present=False)
        if not code:
            capture.acknowledge("eager", True, 1)
        tables = tables_of(capture)
        assert [row["verdict"] for row in tables["deliveries"]] == expected
        assert not tables["violations"]


def test_rows_from_columns_give_the_same() -> None:
    """Properties are numbers and bytes in rows, text in columns."""
    capture = Capture(5)
    capture.connect("sub", properties=((EXPIRY, 100), ("topic_alias_maximum", 5)))
    capture.subscribe("sub", "t/#", properties=(("subscription_identifier", 7),))
    capture.connect("pub", said=(("receive_maximum", 20),))
    asked = (("response_topic", "t/answers"), ("correlation_data", b"\xff"))
    capture.message("pub", "t/1", b"x", 2, properties=(*asked, ("message_expiry_interval", 9)))
    more = (("subscription_identifier", 7), ("topic_alias", 1), ("user_property", ("a", "b")))
    capture.hand("sub", "t/1", b"x", 2, properties=more)
    capture.message("sub", "t/answers", b"y", 1, properties=asked[1:])
    batch = rows_to_batch((*COMMON, *FORMAT.columns), capture.rows)
    places = ("captured_ns", "frame", "src_addr", "src_port", "dst_addr", "dst_port")
    rows = [
        columns | {name: row[name] for name in places}
        for columns, row in zip(batch.to_pylist(), capture.rows, strict=True)
    ]
    assert mqtt.derive(rows) == tables_of(capture)


def test_a_raw_stream_has_no_times_and_no_other_side() -> None:
    capture = pair()
    capture.message("pub", "t", b"x", 1, retain=True)
    stream = capture.stream("pub")
    places = ("captured_ns", "frame", "src_addr", "src_port", "dst_addr", "dst_port")
    rows = [
        {key: value for key, value in row.items() if key not in places}
        for row in capture.rows
        if row["stream"] == stream
    ]
    tables = mqtt.derive(rows)
    assert [row["verdict"] for row in tables["deliveries"]] == ["undecided"]
    assert tables["sessions"][0]["opened_ns"] is None
    assert tables["retained"][0]["from_ns"] is None


def test_rows_of_streams_are_put_in_order() -> None:
    """Within a stream the order stays: what waits for a packet before it is read after that."""
    rows = [
        {"source": "s", "stream": stream, "offset": offset, "captured_ns": ns, "frame": ns}
        for stream, offset, ns in [("a", 0, 1), ("a", 1, 9), ("a", 2, 4), ("a", 3, None),
                                   ("b", 0, None), ("b", 1, 2), ("b", 2, 10)]
    ]  # fmt: skip
    assert [(row["stream"], row["offset"]) for row in in_order(rows)] == [
        ("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 2), ("a", 3), ("b", 2),
    ]  # fmt: skip
