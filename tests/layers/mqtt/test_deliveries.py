"""Where messages went, in made captures: each verdict, the message and the frames it names."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from tests.layers.mqtt.make import MS, Capture, deliveries_of, pair, tables_of, verdicts_of
from tests.reference import mqtt
from wireyard.formats.mqtt import layout

Row = dict[str, Any]

EXPIRY: Final = "session_expiry_interval"


@pytest.mark.parametrize("same", [False, True], ids=["different", "same"])
@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("version", [3, 4, 5])
def test_one_of_three_is_not_forwarded(version: int, lost: int, same: bool) -> None:
    """The row names the topic, both clients and the frames, also where all payloads are one."""
    capture = pair(version)
    frames = []
    for number in range(3):
        payload = b"x" if same else b"%d" % number
        frames.append(capture.message("pub", "t/1", payload, 2, number + 1))
        if number != lost:
            capture.hand("sub", "t/1", payload, 2, number + 1)
    capture.ping("sub")
    rows = deliveries_of(capture)
    assert Counter(row["verdict"] for row in rows) == {"delivered": 2, "not_forwarded": 1}
    (missing,) = (row for row in rows if row["verdict"] == "not_forwarded")
    sent = next(row for row in capture.rows if row["frame"] == frames[lost])
    assert missing == {
        "message_key": f"{sent['stream']}@{sent['offset']}",
        "protocol": "mqtt",
        "origin": "publish",
        "producer": "10.0.0.2:40001",
        "producer_client_id": "pub",
        "consumer": "10.0.0.2:40000",
        "consumer_client_id": "sub",
        "consumer_id": None,
        "destination": "t/1",
        "subscription": "t/#",
        "sent_ns": sent["captured_ns"],
        "sent_frame": frames[lost],
        "accepted_frame": frames[lost] + 3,
        "subscribed_frame": 4,
        "verdict": "not_forwarded",
        "source": "made.pcap",
        "stream": sent["stream"],
        "offset": sent["offset"],
    }


def test_delivered() -> None:
    capture = pair()
    sent = capture.message("pub", "t/1", b"x", 2)
    attempts = capture.hand("sub", "t/1", b"x", 2, 7)
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["outcome"], row["qos"]) == ("delivered", "acknowledged", 2)
    frames = [row[name] for name in ("sent_frame", "delivered_frame", "acknowledged_frame")]
    assert frames == [sent, attempts, attempts + 3]
    assert (row["redelivered"], row["delivery_count"]) == (False, 1)
    assert row["acknowledged_ns"] - row["delivered_ns"] == 3 * MS


def test_at_qos_0_no_acknowledgement_is_wanted() -> None:
    capture = pair(qos=0)
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 0)
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["outcome"]) == ("delivered", "no_ack_wanted")


def test_qos_2_is_overtaken() -> None:
    """What came later is delivered before; payload by payload nothing is missing."""
    capture = pair()
    capture.publish("pub", True, "t/1", b"slow", 2, 1)
    capture.message("pub", "t/1", b"fast", 1, 2)
    capture.hand("sub", "t/1", b"fast", 1, 1)
    capture.acknowledge("pub", True, 2, 1)
    capture.hand("sub", "t/1", b"slow", 2, 2)
    assert verdicts_of(capture) == ["delivered", "delivered"]


def test_in_flight_at_the_end() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 2)
    capture.publish("sub", False, "t/1", b"x", 2)
    tables = tables_of(capture)
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["outcome"]) == ("in_flight", "unacknowledged")
    assert [one["in_flight_received"] for one in tables["sessions"]] == [1, 0]
    assert [one["ended_by"] for one in tables["sessions"]] == ["open", "open"]


def test_in_flight_at_a_cut_and_done_on_the_next_connection() -> None:
    """PUBREL without PUBLISH: the state follows the client id."""
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t")
    capture.connect("pub")
    capture.message("pub", "t", b"x", 2)
    capture.publish("sub", False, "t", b"x", 2)
    capture.put("sub", True, layout.PUBREC, packet_id=1)
    capture.put("sub", False, layout.PUBREL, packet_id=1)
    capture.end("sub")
    capture.connect("sub", clean=False, present=True)
    capture.put("sub", False, layout.PUBREL, packet_id=1)
    last = capture.put("sub", True, layout.PUBCOMP, packet_id=1)
    tables = tables_of(capture)
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["acknowledged_frame"]) == ("delivered", last)
    assert [one["in_flight_received"] for one in tables["sessions"]] == [1, 0, 0]
    assert [one["ended_by"] for one in tables["sessions"]] == ["dropped", "open", "open"]
    assert not tables["violations"]


def test_the_state_outlives_a_restart_of_the_broker() -> None:
    """All connections end at once; publisher and subscriber both go on where they were."""
    capture = Capture()
    for who in ("sub", "pub"):
        capture.connect(who, clean=False)
    capture.subscribe("sub", "t")
    sent = capture.publish("pub", True, "t", b"x", 2, 5)
    capture.put("pub", False, layout.PUBREC, packet_id=5)
    for who in ("sub", "pub"):
        capture.end(who)
    for who in ("sub", "pub"):
        capture.connect(who, clean=False, present=True)
    capture.put("pub", True, layout.PUBREL, packet_id=5)
    attempts = capture.hand("sub", "t", b"x", 2, 1)
    capture.put("pub", False, layout.PUBCOMP, packet_id=5)
    tables = tables_of(capture)
    (row,) = tables["deliveries"]
    assert (row["verdict"], row["sent_frame"], row["delivered_frame"]) == (
        "delivered", sent, attempts,
    )  # fmt: skip
    assert [one["in_flight_sent"] for one in tables["sessions"]] == [0, 1, 0, 0]


def test_a_lost_acknowledgement() -> None:
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t", qos=1)
    capture.connect("pub")
    capture.message("pub", "t", b"x", 1)
    capture.hand("sub", "t", b"x", 1)
    capture.end("sub")
    capture.connect("sub", clean=False, present=True)
    capture.hand("sub", "t", b"x", 1, dup=True)
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["delivery_count"], row["redelivered"]) == ("lost_ack", 2, True)


def test_a_message_resent_at_qos_1_may_arrive_twice() -> None:
    """DUP never crosses the broker: the second copy is a fresh PUBLISH of the same message."""
    capture = pair()
    capture.end("pub")
    capture.connect("pub", clean=False)
    capture.publish("pub", True, "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1, 1)
    capture.end("pub")
    capture.connect("pub", clean=False, present=True)
    capture.message("pub", "t/1", b"x", 1, dup=True)
    capture.hand("sub", "t/1", b"x", 1, 2)
    rows = deliveries_of(capture)
    assert [row["verdict"] for row in rows] == ["delivered", "duplicate"]
    assert len({row["message_key"] for row in rows}) == 1


def test_abandoned_with_its_session() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 1)
    capture.publish("sub", False, "t/1", b"x", 1)
    capture.end("sub")
    capture.connect("sub")
    assert verdicts_of(capture) == ["abandoned"]


def test_refused_by_the_broker_and_by_the_client() -> None:
    capture = pair(5)
    capture.publish("pub", True, "t/1", b"x", 1)
    capture.put("pub", False, layout.PUBACK, packet_id=1, return_code=0x87)
    capture.message("pub", "t/1", b"y", 2, 2)
    capture.publish("sub", False, "t/1", b"y", 2)
    capture.put("sub", True, layout.PUBREC, packet_id=1, return_code=0x83)
    assert sorted(verdicts_of(capture)) == ["refused", "refused_by_client"]


def test_what_the_broker_did_not_take() -> None:
    capture = pair()
    capture.publish("pub", True, "t/1", b"no PUBREL", 2)
    capture.put("pub", False, layout.PUBREC, packet_id=1)
    capture.publish("pub", True, "t/1", b"no sign", 0)
    capture.ping("sub")
    assert verdicts_of(capture) == ["unreleased", "unaccepted"]


@pytest.mark.parametrize("sign", ["ping", "disconnect"])
def test_a_later_answer_shows_that_qos_0_was_read(sign: str) -> None:
    capture = pair()
    capture.publish("pub", True, "t/1", b"x", 0)
    getattr(capture, sign)("pub")
    capture.ping("sub")
    assert verdicts_of(capture) == ["not_forwarded"]


def test_one_answer_changes_the_rows_of_all_messages_before_it() -> None:
    """So facts of all packets cannot be had for the cost of the new ones (ADR 12)."""
    capture = pair(qos=0)
    for number in range(50):
        capture.message("pub", "t/1", b"%d" % number, 0)
        if number % 2:
            capture.hand("sub", "t/1", b"%d" % number, 0)
    before = deliveries_of(capture)
    assert Counter(row["verdict"] for row in before) == {"unaccepted": 25, "delivered": 25}
    assert not any(row.get("accepted_frame") for row in before)
    capture.ping("pub")
    after = deliveries_of(capture)
    assert Counter(row["verdict"] for row in after) == {"undecided": 25, "delivered": 25}
    assert {row["accepted_frame"] for row in after} == {capture.frame}


def test_nobody_was_subscribed() -> None:
    capture = pair()
    capture.message("pub", "other", b"x", 1)
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["consumer_client_id"], row["destination"]) == (
        "no_subscriber", None, "other",
    )  # fmt: skip


def test_after_unsubscribe_nothing_is_due() -> None:
    capture = pair()
    capture.unsubscribe("sub", "t/#")
    capture.message("pub", "t/1", b"x", 1)
    capture.ping("sub")
    assert verdicts_of(capture) == ["no_subscriber"]


def test_what_is_published_while_a_subscription_begins_is_undecided() -> None:
    capture = Capture()
    capture.connect("sub")
    capture.connect("pub")
    capture.publish("pub", True, "t", b"x", 1)
    capture.subscribe("sub", "t")
    capture.put("pub", False, layout.PUBACK, packet_id=1)
    capture.ping("sub")
    assert verdicts_of(capture) == ["undecided"]


def away(version: int = 4, **values: Any) -> Capture:
    """Return a capture whose subscriber has left a session behind."""
    capture = Capture(version)
    properties = ((EXPIRY, 100),) if version == 5 else None
    capture.connect("sub", clean=False, properties=properties)
    capture.subscribe("sub", "t")
    capture.disconnect("sub")
    capture.connect("pub")
    return capture


def test_a_subscriber_who_is_away() -> None:
    capture = away()
    capture.message("pub", "t", b"1", 1)
    capture.message("pub", "t", b"0", 0)
    assert sorted(verdicts_of(capture)) == ["queued", "unaccepted"]
    capture.ping("pub")
    assert sorted(verdicts_of(capture)) == ["offline", "queued"]
    capture.connect("sub", clean=False, present=True)
    capture.hand("sub", "t", b"1", 1)
    assert sorted(verdicts_of(capture)) == ["delivered", "offline"]


def test_what_waited_is_discarded_with_the_session() -> None:
    capture = away()
    capture.message("pub", "t", b"1", 1)
    capture.connect("sub")
    capture.ping("sub")
    assert verdicts_of(capture) == ["discarded"]


def test_what_waited_is_not_kept() -> None:
    capture = away()
    capture.message("pub", "t", b"1", 1)
    capture.connect("sub", clean=False, present=True)
    capture.ping("sub")
    assert verdicts_of(capture) == ["not_kept"]


def test_what_waited_too_long_is_expired() -> None:
    capture = away(5)
    capture.message("pub", "t", b"1", 1, properties=(("message_expiry_interval", 5),))
    capture.wait(10)
    capture.connect("sub", clean=False, present=True, properties=((EXPIRY, 100),))
    capture.ping("sub")
    (row,) = deliveries_of(capture)
    assert (row["verdict"], row["outcome"]) == ("expired", "expired")


def test_a_session_that_expired_has_no_subscriptions() -> None:
    capture = away(5)
    capture.wait(200)
    capture.message("pub", "t", b"1", 1)
    assert verdicts_of(capture) == ["no_subscriber"]


def test_too_large_for_the_subscriber() -> None:
    capture = Capture(5)
    capture.connect("sub", properties=(("maximum_packet_size", 50),))
    capture.subscribe("sub", "t")
    capture.connect("pub")
    capture.message("pub", "t", bytes(60), 1)
    capture.ping("sub")
    assert verdicts_of(capture) == ["too_large"]


def test_a_full_window_holds_messages_back() -> None:
    capture = pair()
    for number in range(1, 22):
        capture.message("pub", "t/1", b"%d" % number, 1, number)
        if number <= 20:
            capture.publish("sub", False, "t/1", b"%d" % number, 1, number)
    capture.ping("sub")
    assert Counter(verdicts_of(capture)) == {"in_flight": 20, "queued": 1}


def test_a_gap_leaves_it_undecided() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 1)
    capture.gap("sub", False)
    capture.ping("sub")
    assert verdicts_of(capture) == ["undecided"]


def test_a_copy_too_many() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 2)
    capture.hand("sub", "t/1", b"x", 2, 1)
    capture.hand("sub", "t/1", b"x", 2, 2)
    assert sorted(verdicts_of(capture)) == ["delivered", "duplicate"]


@pytest.mark.parametrize(("is_served", "verdict"), [(False, "undecided"), (True, "not_forwarded")])
def test_a_broker_that_stops_publishes_no_wills(is_served: bool, verdict: str) -> None:
    """All connections end one behind the other; who is served still should have got the will."""
    capture = pair()
    will: Row = {"will_topic": "t/w", "will_payload": b"", "will_qos": 1, "will_retain": False}
    capture.connect("rude", **will)
    capture.end("rude")
    if is_served:
        capture.ping("sub")
    capture.end("sub")
    capture.ping("other")
    (row,) = deliveries_of(capture)
    assert (row["origin"], row["verdict"], row["consumer_client_id"]) == ("will", verdict, "sub")


def test_nobody_is_blamed_for_silence() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"x", 2)
    capture.ping("pub")
    endings: tuple[list[Row] | None, ...] = (None, [])
    for streams in endings:
        (row,) = mqtt.derive(capture.rows, streams)["deliveries"]
        assert row["verdict"] == "undecided"
    capture.ping("sub")
    (row,) = mqtt.derive(capture.rows)["deliveries"]
    assert row["verdict"] == "not_forwarded"
