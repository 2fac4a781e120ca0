"""What brokers and clients may do, and what a capture may lack: nobody is accused of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.layers.mqtt.make import Capture, Row, tables_of
from wireyard.formats.mqtt import layout

AS_PUBLISHED = 8
"""Retain As Published, in the options of a subscription."""
Sends = Sequence[tuple[str, int]]


def verdicts_of(capture: Capture, *clients: str) -> list[str]:
    """Return the verdicts of deliveries, after the broker has answered these clients."""
    capture.wait(2)
    for who in clients:
        capture.ping(who)
    return [row["verdict"] for row in tables_of(capture)["deliveries"]]


def rules_of(capture: Capture) -> list[str]:
    return [row["rule"] for row in tables_of(capture)["violations"]]


# --- RETAIN of live messages ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "others", "came"),
    [
        (("t/#",), (), [True]),
        (("t/#",), ("t/+",), [True]),
        (("t/#",), ("t/+",), [False]),
        (("t/#",), ("t/+",), [False, True]),
        (("t/#", "t/+"), (), [True, True]),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_may_keep_its_retain_for_some_subscriptions(
    filters: Sequence[str], others: Sequence[str], came: list[bool], qos: int
) -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", *filters, qos=qos, options=AS_PUBLISHED)
    if others:
        capture.subscribe("sub", *others, qos=qos)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", qos, retain=True)
    for number, retain in enumerate(came, 1):
        capture.hand("sub", "t/1", b"x", qos, number, retain=retain)
    assert verdicts_of(capture, "sub") == ["delivered"] * len(came)
    assert rules_of(capture) == []


def test_a_broker_that_takes_retain_off_delivers_and_breaks_a_rule() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, options=AS_PUBLISHED)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.hand("sub", "t/1", b"x", 1)
    assert verdicts_of(capture, "sub") == ["delivered"]
    assert rules_of(capture) == ["MQTT-3.3.1-13"]


def test_equal_messages_with_retain_that_are_delivered_after_both_were_sent() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, options=AS_PUBLISHED)
    capture.connect("pub")
    for number in (1, 2):
        capture.message("pub", "t/1", b"x", 1, number, retain=True)
    for number in (1, 2):
        capture.hand("sub", "t/1", b"x", 1, number, retain=True)
    assert verdicts_of(capture, "sub") == ["delivered", "delivered"]


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscriptions", "came"),
    [
        ([("A", "t/#"), ("A", "$share/g/t/#")], ["A"]),
        ([("A", "t/#"), ("A", "$share/g/t/#")], ["A", "A"]),
        ([("A", "t/#"), ("A", "t/+"), ("A", "$share/g/t/#")], ["A", "A"]),
        ([("A", "$share/g/t/#"), ("A", "$share/h/t/#")], ["A"]),
        ([("A", "$share/g/t/#"), ("A", "$share/h/t/#")], ["A", "A"]),
        ([("A", "$share/g/t/#"), ("A", "$share/g/t/+")], ["A"]),
        ([("A", "$share/g/t/#"), ("B", "$share/g/t/#"), ("A", "$share/h/t/#")], ["A", "B"]),
        ([("A", "$share/g/t/#"), ("B", "$share/g/t/#"), ("A", "$share/h/t/#")], ["B", "A"]),
    ],
)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_member_with_another_subscription_gets_one_copy_or_several(
    subscriptions: Sequence[tuple[str, str]], came: Sequence[str], version: int
) -> None:
    capture = Capture(version)
    clients = list(dict.fromkeys(who for who, _ in subscriptions))
    for who in clients:
        capture.connect(who)
    for who, name in subscriptions:
        capture.subscribe(who, name, qos=1)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1)
    for number, who in enumerate(came, 1):
        capture.hand(who, "t/1", b"x", 1, number)
    assert verdicts_of(capture, *clients) == ["delivered"] * len(came)


def test_a_group_of_which_nobody_got_the_message_is_missing_it() -> None:
    capture = Capture(5)
    for who, name in (("A", "t/#"), ("B", "$share/g/t/#")):
        capture.connect(who)
        capture.subscribe(who, name, qos=1)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("A", "t/1", b"x", 1)
    assert sorted(verdicts_of(capture, "A", "B")) == ["delivered", "not_forwarded"]


@pytest.mark.parametrize("came", [(0, 1, 2), (2, 1, 0)])
def test_a_copy_is_of_the_subscription_that_grants_its_qos(came: Sequence[int]) -> None:
    capture = Capture(4)
    capture.connect("sub")
    for qos, name in enumerate(("t/1", "t/+", "t/#")):
        capture.subscribe("sub", name, qos=qos)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 2)
    for number, qos in enumerate(came, 1):
        capture.hand("sub", "t/1", b"x", qos, number)
    rows = tables_of(capture)["deliveries"]
    assert {row["qos"]: row["subscription"] for row in rows} == {0: "t/1", 1: "t/+", 2: "t/#"}


# --- sessions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["broker", "client"])
def test_a_clean_session_of_3_1_is_over_though_the_next_one_is_not_clean(who: str) -> None:
    capture = Capture(3)
    up = who == "client"
    capture.connect("one", clean=True)
    capture.subscribe("one", "t/#", qos=1)
    capture.publish("one", up, "t/1", b"x", 1, 1)
    capture.disconnect("one")
    capture.connect("one", clean=False)
    capture.publish("one", up, "t/1", b"y", 1, 1)
    capture.acknowledge("one", up, 1, 1)
    assert rules_of(capture) == []


@pytest.mark.parametrize("clean", [False, True])
def test_a_session_that_was_not_clean_goes_on_in_3_1(clean: bool) -> None:
    capture = Capture(3)
    capture.connect("one", clean=False)
    capture.publish("one", True, "t/1", b"x", 1, 1)
    capture.end("one")
    capture.connect("one", clean=clean)
    capture.message("one", "t/1", b"y", 1, 1)
    assert rules_of(capture) == ([] if clean else ["id_in_use"])


def window(most: int, then: str) -> Capture:
    """Return a capture in which a client has all that it takes in flight, and one message waits."""
    properties = (("receive_maximum", most), ("session_expiry_interval", 1000))
    capture = Capture(5)
    capture.connect("sub", properties=properties)
    capture.subscribe("sub", "t/#", qos=1)
    capture.connect("pub")
    for number in range(1, most + 1):
        capture.message("pub", "t/1", b"%d" % number, 1, number)
        capture.publish("sub", False, "t/1", b"%d" % number, 1, number)
    capture.message("pub", "t/1", b"last", 1, 30)
    capture.wait(2)
    capture.ping("sub")
    if then == "acknowledged":
        capture.put("sub", True, layout.PUBACK, packet_id=1)
    capture.end("sub")
    if then == "clean":
        capture.connect("sub")
        capture.ping("sub")
    elif then == "resumed":
        capture.connect("sub", clean=False, present=True, properties=properties)
        capture.ping("sub")
    return capture


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize(
    ("then", "verdict"),
    [("", "queued"), ("clean", "discarded"), ("resumed", "queued"), ("acknowledged", "undecided")],
)
def test_a_full_window_of_any_size_keeps_a_message(most: int, then: str, verdict: str) -> None:
    (row,) = [
        row for row in tables_of(window(most, then))["deliveries"] if not row.get("delivered_frame")
    ]
    assert row["verdict"] == verdict


# --- retained values at QoS 2 -----------------------------------------------------------------


def value_at_qos_2(kind: str) -> tuple[Capture, list[bytes]]:
    """Return a capture in which a value changes at QoS 2, and the values a broker may have then."""
    capture = Capture(4)
    capture.connect("pub")
    capture.message("pub", "t/1", b"old", 1, 9, retain=True)
    new = b"" if kind == "deletes" else b"new"
    capture.publish("pub", True, "t/1", new, 2, 1, retain=True)
    capture.put("pub", False, layout.PUBREC, packet_id=1)
    if kind == "interleaved":
        capture.connect("other")
        capture.message("other", "t/1", b"other", 1, retain=True)
        capture.put("pub", True, layout.PUBREL, packet_id=1)
        capture.put("pub", False, layout.PUBCOMP, packet_id=1)
        return capture, [b"new", b"other"]
    return capture, [b"old", new]


@pytest.mark.parametrize("kind", ["unreleased", "deletes", "interleaved"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_value_changes_with_publish_or_with_pubrel(kind: str, which: int) -> None:
    capture, values = value_at_qos_2(kind)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1)
    if values[which]:
        capture.hand("sub", "t/1", values[which], 1, retain=True)
    capture.ping("sub")
    assert rules_of(capture) == []


# --- packets that were lost -------------------------------------------------------------------


def test_a_message_of_an_unknown_client_may_be_released_in_another_connection() -> None:
    capture = Capture(4)
    capture.publish("one", True, "t/1", b"x", 2, 1)
    capture.put("one", False, layout.PUBREC, packet_id=1)
    capture.end("one")
    capture.wait(5)
    capture.connect("other")
    assert verdicts_of(capture, "other") == ["undecided"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_first_seen_with_dup_has_no_time(qos: int) -> None:
    """Its first copy was before the capture, and may have been delivered."""
    capture = Capture(4)
    capture.put("sub", True, layout.PINGREQ)
    capture.subscribe("sub", "t/#", qos=qos)
    capture.put("pub", True, layout.PINGREQ)
    capture.message("pub", "t/1", b"x", qos, dup=True)
    capture.ping("sub")
    (row,) = tables_of(capture)["deliveries"]
    assert row["verdict"] == "undecided"
    capture.hand("sub", "t/1", b"x", qos)
    (row,) = tables_of(capture)["deliveries"]
    assert (row.get("sent_ns"), row.get("sent_frame")) == (None, None)
    assert row["verdict"] == ("undecided" if qos == 1 else "delivered")


def sessions_of(capture: Capture) -> list[Row]:
    return tables_of(capture)["sessions"]


def test_a_second_connect_counts_as_one_where_no_answer_was_captured() -> None:
    capture = Capture(4)
    capture.put("one", True, layout.CONNECT, client_id="one", clean_start=True, keep_alive=9)
    capture.gap("one", False)
    capture.put("one", True, layout.CONNECT, client_id="two", clean_start=True, keep_alive=5)
    (row,) = sessions_of(capture)
    assert (row["client_id"], row["keep_alive"]) == ("one", 9)
    assert rules_of(capture) == ["MQTT-3.1.0-2"]


def test_a_client_that_said_goodbye_before_its_answer_was_not_dropped() -> None:
    capture = Capture(4)
    capture.put("one", True, layout.CONNECT, client_id="one", clean_start=True, keep_alive=9)
    capture.put("one", True, layout.DISCONNECT)
    capture.end("one")
    (row,) = sessions_of(capture)
    assert row["ended_by"] == "client"


def test_a_value_that_came_twice_is_no_duplicate_where_a_subscription_may_be_lost() -> None:
    capture = Capture(4)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", 1, retain=True)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1)
    capture.gap("sub", False)
    for number in (1, 2):
        capture.hand("sub", "t/1", b"x", 1, number, retain=True)
    assert "duplicate" not in verdicts_of(capture)
