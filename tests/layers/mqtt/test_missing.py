"""What shows that a message was passed over, and what does not."""

from __future__ import annotations

import pytest

from tests.layers.mqtt.make import Capture, deliveries_of, pair, verdicts_of
from tests.layers.mqtt.test_deliveries import away


def missed(capture: Capture) -> str:
    """Return the verdict on the message that was never delivered."""
    (row,) = (row for row in deliveries_of(capture) if "delivered_ns" not in row)
    verdict: str = row["verdict"]
    return verdict


@pytest.mark.parametrize(
    ("topic", "qos", "verdict"),
    [
        ("t/1", 1, "not_forwarded"),
        ("t/1", 2, "not_forwarded"),
        ("t/1", 0, "queued"),
        ("t/2", 0, "queued"),
        ("t/2", 1, "not_forwarded"),
        ("t/2", 2, "not_forwarded"),
    ],
)
def test_one_more_in_flight_shows_that_the_window_was_open(
    topic: str, qos: int, verdict: str
) -> None:
    capture = pair()
    for packet_id in range(1, 12):
        capture.message("pub", "t/0", b"%d" % packet_id, 1)
        capture.publish("sub", False, "t/0", b"%d" % packet_id, 1, packet_id)
    frame = capture.message("pub", "t/1", b"missed", 1)
    capture.message("pub", topic, b"later", qos)
    verdicts = {row["sent_frame"]: row["verdict"] for row in deliveries_of(capture)}
    assert verdicts[frame] == "queued"
    capture.publish("sub", False, topic, b"later", qos, 100)
    assert missed(capture) == verdict


def test_of_a_window_that_may_have_been_full_other_topics_show_nothing() -> None:
    """A broker may have a queue for each topic: only one topic is in order for certain."""
    capture = pair()
    for packet_id in range(1, 12):
        capture.message("pub", "t/0", b"%d" % packet_id, 1)
        capture.publish("sub", False, "t/0", b"%d" % packet_id, 1, packet_id)
    capture.message("pub", "t/1", b"missed", 1)
    assert missed(capture) == "queued"
    capture.acknowledge("sub", False, 1, 1)
    capture.message("pub", "t/2", b"later", 1)
    capture.publish("sub", False, "t/2", b"later", 1, 100)
    assert missed(capture) == "undecided"


def test_a_message_at_qos_1_shows_that_one_at_qos_2_was_passed() -> None:
    capture = pair()
    capture.message("pub", "t/1", b"missed", 2)
    capture.message("pub", "t/2", b"later", 1)
    assert set(verdicts_of(capture)) == {"undecided"}
    capture.hand("sub", "t/2", b"later", 1)
    assert missed(capture) == "not_forwarded"


@pytest.mark.parametrize(("acknowledged", "verdict"), [(0, "queued"), (1, "undecided")])
def test_a_window_that_was_fuller_before_may_be_open(acknowledged: int, verdict: str) -> None:
    """Twelve messages were in flight once, of which eleven are left."""
    capture = pair()
    for number in range(1, 13):
        capture.message("pub", "t/1", b"%d" % number, 1, number)
        capture.publish("sub", False, "t/1", b"%d" % number, 1, number)
    for number in range(1, acknowledged + 1):
        capture.acknowledge("sub", False, 1, number)
    capture.message("pub", "t/1", b"missed", 1, 13)
    assert missed(capture) == verdict


def test_a_message_that_was_under_way_before_passes_nothing() -> None:
    """The broker may take two messages in either order that clients send at the same time."""
    capture = pair()
    capture.publish("pub", True, "t/1", b"missed", 1, 1)
    capture.publish("pub", True, "t/1", b"other", 1, 2)
    capture.acknowledge("pub", True, 1, 1)
    capture.acknowledge("pub", True, 1, 2)
    capture.hand("sub", "t/1", b"other", 1)
    assert missed(capture) == "undecided"
    capture.message("pub", "t/2", b"later", 1)
    capture.hand("sub", "t/2", b"later", 1)
    assert missed(capture) == "not_forwarded"


@pytest.mark.parametrize(
    ("shows", "others", "verdict"),
    [
        (("leave", "ping"), (), "undecided"),
        (("leave", "later"), (), "undecided"),
        (("later", "leave"), (), "not_kept"),
        (("later", "leave", "later"), (), "not_kept"),
        (("leave", "ping"), ("t/+",), "not_kept"),
    ],
)
def test_what_a_broker_had_not_sent_when_its_subscription_ended_is_not_owed(
    shows: tuple[str, ...], others: tuple[str, ...], verdict: str
) -> None:
    capture = Capture()
    capture.connect("sub", clean=False)
    capture.subscribe("sub", "t/1", "u", *others)
    capture.connect("pub")
    capture.end("sub")
    capture.message("pub", "t/1", b"missed", 1)
    capture.connect("sub", clean=False, present=True)
    for number, show in enumerate(shows):
        if show == "leave":
            capture.unsubscribe("sub", "t/1")
        elif show == "ping":
            capture.ping("sub")
        else:
            capture.message("pub", "u", b"later %d" % number, 1)
            capture.hand("sub", "u", b"later %d" % number, 1)
    assert missed(capture) == verdict


def test_on_another_connection_nothing_is_passed() -> None:
    capture = away()
    capture.connect("sub", clean=False, present=True)
    capture.message("pub", "t", b"missed", 1)
    capture.end("sub")
    capture.connect("sub", clean=False, present=True)
    capture.message("pub", "t", b"later", 1)
    capture.hand("sub", "t", b"later", 1)
    assert missed(capture) == "undecided"


def test_a_delivery_shows_that_the_broker_took_the_message() -> None:
    capture = pair()
    capture.connect("other")
    capture.subscribe("other", "t/#")
    capture.publish("pub", True, "t/1", b"x", 0)
    capture.hand("other", "t/1", b"x", 0)
    assert sorted(verdicts_of(capture)) == ["delivered", "undecided"]
    capture.ping("sub")
    assert sorted(verdicts_of(capture)) == ["delivered", "not_forwarded"]


@pytest.mark.parametrize(
    ("before", "verdict"), [([], "offline"), ([b"x"], "undecided"), ([b"y"], "offline")]
)
def test_a_delivery_shows_that_before_the_answer_to_a_later_request(
    before: list[bytes], verdict: str
) -> None:
    """Unless it may be one of an earlier message with the same payload."""
    capture = Capture()
    for who in ("sub", "other"):
        capture.connect(who, clean=False)
        capture.subscribe(who, "t")
    capture.connect("pub")
    for payload in before:
        capture.publish("pub", True, "t", payload, 0)
        for who in ("sub", "other"):
            capture.hand(who, "t", payload, 0)
    capture.disconnect("sub")
    capture.publish("pub", True, "t", b"x", 0)
    capture.hand("other", "t", b"x", 0)
    capture.connect("sub", clean=False, present=True)
    capture.ping("pub")
    assert missed(capture) == verdict
