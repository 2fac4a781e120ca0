"""Retained values that brokers send against the rules, and deliveries without a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, pair, tables_of
from tests.layers.mqtt.test_lost import lose
from wireyard.formats.mqtt import layout
from wireyard.formats.mqtt.filters import Filter

RETAIN_HANDLING = 0x10
"""In the options of a subscription, times 0 to 2."""


def stored(version: int, *payloads: bytes) -> Capture:
    """Return a capture in which a broker stores values one after the other, and a client comes."""
    capture = Capture(version)
    capture.connect("pub")
    for number, payload in enumerate(payloads, 1):
        capture.message("pub", "t/1", payload, 1, number, retain=True)
    capture.wait(1)
    capture.connect("sub")
    return capture


def found_in(capture: Capture) -> tuple[list[str], list[tuple[str, bool | None]]]:
    """Return rules that were broken, and verdicts of the client's deliveries."""
    capture.ping("sub")
    tables = tables_of(capture)
    own = [one for one in tables["deliveries"] if one.get("consumer_client_id") == "sub"]
    return (
        [row["rule"] for row in tables["violations"]],
        [(row["verdict"], row.get("retained")) for row in own],
    )


def send(capture: Capture, payload: bytes, packet_id: int = 1, retain: bool = True) -> None:
    capture.hand("sub", "t/1", payload, 1, packet_id, retain=retain)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_value_that_comes_once_with_retain_breaks_no_rule(version: int) -> None:
    capture = stored(version, b"1")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1")
    assert found_in(capture) == ([], [("delivered", True)])


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        (2, "retained_unmarked"),
        (3, "retained_unmarked"),
        (4, "MQTT-3.3.1-8"),
        (5, "retained_unmarked"),
    ],
)
def test_a_value_without_retain_is_not_missing_too(version: int, rule: str) -> None:
    capture = stored(version, b"1")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1", retain=False)
    assert found_in(capture) == ([rule], [("delivered", True)])


@pytest.mark.parametrize(("version", "rules"), [(2, ["retained_early"]), (3, []), (4, []), (5, [])])
def test_a_value_before_its_suback(version: int, rules: list[str]) -> None:
    """Only the page of 1999 has an order."""
    capture = stored(version, b"1")
    asked = (Filter("t/#", 1),)
    capture.put("sub", True, layout.SUBSCRIBE, packet_id=9, filters=asked)
    send(capture, b"1")
    capture.put("sub", False, layout.SUBACK, packet_id=9, return_codes=(1,))
    assert found_in(capture) == (rules, [("delivered", True)])


@pytest.mark.parametrize(("waits_s", "rules"), [(4, []), (5, []), (20, ["MQTT-3.3.2-5"])])
def test_a_value_that_has_expired(waits_s: int, rules: list[str]) -> None:
    """A second is not certain."""
    capture = Capture(5)
    capture.connect("pub")
    expiry = (("message_expiry_interval", 5),)
    capture.message("pub", "t/1", b"1", 1, retain=True, properties=expiry)
    capture.connect("sub")
    capture.wait(waits_s)
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1")
    assert found_in(capture) == (rules, [("delivered", True)])


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_value_that_comes_twice_for_one_subscription_is_a_duplicate(version: int) -> None:
    capture = stored(version, b"1")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1", 1)
    send(capture, b"1", 2)
    assert found_in(capture) == ([], [("delivered", True), ("duplicate", True)])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_value_comes_for_each_subscription(version: int) -> None:
    """Filters that overlap, and a subscription that is renewed."""
    capture = stored(version, b"1")
    capture.subscribe("sub", "t/#", "t/+", qos=1)
    capture.subscribe("sub", "t/#", qos=1)
    for number in (1, 2, 3):
        send(capture, b"1", number)
    assert found_in(capture) == ([], [("delivered", True)] * 3)


@pytest.mark.parametrize(
    ("version", "rule"), [(2, "retained_stale"), (3, "retained_stale"), (4, "MQTT-3.3.1-6")]
)
def test_an_older_value_is_sent_instead_of_the_latest(version: int, rule: str) -> None:
    capture = stored(version, b"1", b"2")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1")
    assert found_in(capture) == ([rule], [("delivered", True)])


@pytest.mark.parametrize(("version", "is_stale"), [(3, False), (4, True), (5, True)])
def test_a_value_that_was_deleted(version: int, is_stale: bool) -> None:
    """In 3.1 a broker may delete it, in 3.1.1 it has to."""
    capture = stored(version, b"1", b"")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"1")
    rules, _ = found_in(capture)
    assert bool(rules) == is_stale


def test_an_empty_value_is_a_value_in_1999() -> None:
    capture = stored(2, b"1", b"")
    capture.subscribe("sub", "t/#", qos=1)
    send(capture, b"")
    assert found_in(capture) == ([], [("delivered", True)])
    values = tables_of(capture)["retained"]
    assert [(one["payload"], one.get("ended_by")) for one in values] == [
        (b"1", "replaced"), (b"", None),
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "ended_by"), [(2, "replaced"), (3, "deleted"), (4, "deleted")])
def test_a_will_without_payload_is_a_value_in_1999(version: int, ended_by: str) -> None:
    capture = Capture(version)
    will: dict[str, Any] = {
        "will_topic": "t/1",
        "will_payload": b"",
        "will_qos": 1,
        "will_retain": True,
    }
    capture.connect("pub", **will)
    capture.message("pub", "t/1", b"1", 1, retain=True)
    capture.end("pub")
    capture.wait(2)
    capture.connect("late")
    tables = tables_of(capture)
    values = {one["payload"]: one.get("ended_by") for one in tables["retained"]}
    assert values == {b"1": ended_by} | ({b"": None} if version == 2 else {})


def test_later_clients_need_not_get_an_empty_value_of_1999() -> None:
    capture = stored(2, b"1", b"")
    capture.version = 4
    capture.connect("late")
    capture.subscribe("late", "t/#", qos=1)
    capture.ping("late")
    assert tables_of(capture)["violations"] == []


@pytest.mark.parametrize(("as_published", "rules"), [(0, ["MQTT-3.3.1-11"]), (8, [])])
def test_a_message_of_a_publisher_that_is_not_captured_may_be_forwarded(
    as_published: int, rules: list[str]
) -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, options=2 * RETAIN_HANDLING | as_published)
    send(capture, b"1")
    assert found_in(capture)[0] == rules


@pytest.mark.parametrize(
    ("handling", "rules"), [(0, []), (1, ["MQTT-3.3.1-10"]), (2, ["MQTT-3.3.1-11"] * 2)]
)
def test_retain_handling(handling: int, rules: list[str]) -> None:
    """The value comes for a new subscription, and again when that is renewed."""
    capture = stored(5, b"0")
    for number in (1, 2):
        # Another value, so that the first subscription is not the reason for it.
        capture.message("pub", "t/1", b"%d" % number, 1, 5 + number, retain=True)
        if number == 2:
            capture.hand("sub", "t/1", b"2", 1, 9)
        capture.subscribe("sub", "t/#", qos=1, options=handling * RETAIN_HANDLING)
        send(capture, b"%d" % number, number)
    assert found_in(capture)[0] == rules


def test_a_value_from_before_the_capture_that_was_not_wanted() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, options=2 * RETAIN_HANDLING)
    send(capture, b"1")
    assert found_in(capture) == (["MQTT-3.3.1-11"], [("delivered", True)])


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("retain", [True, False])
def test_a_client_that_has_not_subscribed(version: int, retain: bool) -> None:
    capture = stored(version, b"1")
    capture.subscribe("sub", "u/#", qos=1)
    send(capture, b"1", retain=retain)
    rules, verdicts = found_in(capture)
    assert (rules, [one for one, _ in verdicts]) == (["unsubscribed"], ["delivered"])


def test_a_subscription_may_be_answered_later_or_have_ended() -> None:
    capture = stored(4, b"1")
    capture.subscribe("sub", "u/#", qos=1)
    asked = (Filter("t/#", 1),)
    capture.put("sub", True, layout.SUBSCRIBE, packet_id=9, filters=asked)
    send(capture, b"1")
    assert tables_of(capture)["violations"] == []
    capture.put("sub", False, layout.SUBACK, packet_id=9, return_codes=(1,))
    capture.unsubscribe("sub", "t/#")
    capture.message("pub", "t/1", b"2", 1, 7)
    send(capture, b"2", 2, retain=False)
    assert found_in(capture)[0] == []


@pytest.mark.parametrize(
    ("filter", "rules"),
    [
        ("$ordered/t/#", []),
        ("$share/g/$ordered/t/#", []),
        ("$queue/t/#", []),
        ("$share/g/t/#", []),
        ("$queue/u", ["unsubscribed"]),
        ("$share/g/u", ["unsubscribed"]),
        ("$SYS/#", ["unsubscribed"]),
    ],
)
def test_a_filter_of_the_brokers_own(filter: str, rules: list[str]) -> None:
    capture = pair()
    capture.connect("other")
    capture.subscribe("other", filter, qos=1)
    capture.wait(1)
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    capture.hand("other", "t/1", b"x", 1)
    capture.ping("other")
    assert found_in(capture)[0] == rules


@pytest.mark.parametrize(("version", "rule"), [(3, "retained_live"), (4, "MQTT-3.3.1-9")])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_that_comes_with_retain(version: int, rule: str, qos: int) -> None:
    """Its publisher did not set RETAIN."""
    capture = Capture(version)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=qos)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", qos)
    capture.hand("sub", "t/1", b"x", qos, retain=True)
    assert found_in(capture) == ([rule], [("delivered", False)])


def test_a_deletion_is_forwarded_with_retain_as_published() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1, options=8)
    capture.connect("pub")
    capture.message("pub", "t/1", b"", 1, retain=True)
    capture.hand("sub", "t/1", b"", 1, retain=True)
    assert found_in(capture) == ([], [("delivered", False)])


@pytest.mark.parametrize("qos", [1, 2])
def test_of_two_deliveries_the_second_is_too_many(qos: int) -> None:
    capture = Capture()
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=qos)
    capture.connect("pub")
    capture.message("pub", "t/1", b"x", qos)
    for number in (1, 2):
        capture.hand("sub", "t/1", b"x", qos, number)
    assert found_in(capture) == ([], [("delivered", False), ("duplicate", False)])


def test_a_publisher_that_comes_back_hides_no_delivery_to_others() -> None:
    """The delivery came after both copies of the message; the subscriber was captured whole."""
    capture = Capture()
    capture.connect("sub")
    capture.subscribe("sub", "t/#", qos=1)
    capture.connect("pub", clean=False)
    capture.publish("pub", True, "t/1", b"x", 1)
    capture.end("pub")
    capture.connect("pub", clean=False, present=True)
    capture.publish("pub", True, "t/1", b"x", 1, dup=True)
    capture.acknowledge("pub", True, 1)
    capture.hand("sub", "t/1", b"x", 1)
    assert found_in(capture) == ([], [("delivered", False)])


# --- after an UNSUBACK ----------------------------------------------------------------------------

LASTS = (("session_expiry_interval", 600),)


def come(capture: Capture, is_back: bool = False) -> None:
    """Connect the client, whose session lasts from 3.1.1 on."""
    lasts = capture.version > 3
    said: dict[str, Any] = {"properties": LASTS} if capture.version == 5 else {}
    capture.connect("sub", not lasts, lasts and is_back, **said)


def subscribed(version: int) -> Capture:
    """Return a capture with a publisher, and a client that subscribed."""
    capture = Capture(version)
    come(capture)
    capture.subscribe("sub", "t/#", qos=2)
    capture.connect("pub")
    return capture


def publish(capture: Capture, wait_s: float = 1, packet_id: int = 1, qos: int = 1) -> None:
    capture.wait(wait_s)
    capture.message("pub", "t/1", b"x", qos, packet_id)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_message_that_was_published_after_the_unsuback(
    version: int, qos: int, comes_back: bool
) -> None:
    capture = subscribed(version)
    capture.unsubscribe("sub", "t/#")
    publish(capture, qos=qos)
    if comes_back:
        capture.disconnect("sub")
        come(capture, is_back=True)
    capture.hand("sub", "t/1", b"x", qos)
    capture.disconnect("sub")
    tables = tables_of(capture)
    found = [(row["rule"], row["client"], row["frame"]) for row in tables["violations"]]
    (row,) = tables["deliveries"]
    assert found == [("unsubscribed", "10.0.0.1:1883", row["delivered_frame"])]
    assert (row["verdict"], row.get("subscription")) == ("delivered", None)


def _before(capture: Capture) -> None:
    publish(capture)
    capture.unsubscribe("sub", "t/#")


def _at_once(capture: Capture) -> None:
    capture.unsubscribe("sub", "t/#")
    publish(capture, 0.004)


def _soon(capture: Capture) -> None:
    capture.unsubscribe("sub", "t/#")
    publish(capture, 0.005)


def _before_and_behind(capture: Capture) -> None:
    _before(capture)
    publish(capture, packet_id=2)


def _subscribed_otherwise(capture: Capture) -> None:
    capture.subscribe("sub", "+/1", qos=1)
    _soon(capture)


def _subscribed_twice(capture: Capture) -> None:
    capture.subscribe("sub", "t/#", qos=1)
    _soon(capture)


def _subscribed_again(capture: Capture) -> None:
    _soon(capture)
    capture.subscribe("sub", "t/#", qos=1)


def _about_to_subscribe(capture: Capture) -> None:
    _soon(capture)
    capture.put("sub", True, layout.SUBSCRIBE, packet_id=9, filters=(Filter("t/+", 1),))


def _lost(capture: Capture) -> None:
    _soon(capture)
    capture.gap("sub", True)


def _kept_too_long(capture: Capture) -> None:
    """The session had expired, but the broker resumed it."""
    capture.disconnect("sub")
    publish(capture, 1000)
    come(capture, is_back=True)


@pytest.mark.parametrize(
    ("happens", "rules"),
    [
        (_before, []), (_at_once, []), (_soon, ["unsubscribed"]), (_before_and_behind, []),
        (_subscribed_otherwise, []), (_subscribed_twice, ["unsubscribed"]),
        (_subscribed_again, []), (_about_to_subscribe, []), (_lost, []), (_kept_too_long, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("retain", [True, False])
def test_what_may_come_after_an_unsuback(
    happens: Callable[[Capture], None], rules: list[str], retain: bool
) -> None:
    """With RETAIN it may be an equal value from before the capture."""
    capture = subscribed(5)
    happens(capture)
    send(capture, b"x", 9, retain)
    found = [row["rule"] for row in tables_of(capture)["violations"]]
    assert [one for one in found if one == "unsubscribed"] == ([] if retain else rules)


def test_no_subscribe_waits_once_a_later_request_is_answered() -> None:
    capture = subscribed(5)
    _about_to_subscribe(capture)
    send(capture, b"x", 9, retain=False)
    assert found_in(capture)[0] == ["unsubscribed"]


@pytest.mark.parametrize("lost", [(), (2,)])
def test_what_may_be_forwarded_or_an_older_value_is_open(
    lost: tuple[int, ...],
) -> None:
    """It deletes the value, and comes with RETAIN, as Retain As Published asks for."""
    capture = stored(5, b"1")
    capture.subscribe("sub", "t/#", qos=1, options=8 | 2 * RETAIN_HANDLING)
    capture.message("pub", "t/1", b"", 1, 2, retain=True)
    send(capture, b"")
    lose(capture, *lost)
    assert found_in(capture) == ([], [("delivered", None if lost else False)])
