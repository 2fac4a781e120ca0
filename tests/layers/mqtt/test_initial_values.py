"""Retained values that new subscriptions should get, at the QoS that they should have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, tables_of
from wireyard.formats.mqtt import layout

MISSING, QOS = ("MQTT-3.3.1-6", "MQTT-3.3.1-9"), ("MQTT-3.8.4-6", "MQTT-3.8.4-8")


def with_value(version: int = 4, qos: int = 1, **values: Any) -> Capture:
    """Return a capture with a publisher who sets the value of a topic."""
    capture = Capture(version)
    capture.connect("pub")
    capture.message("pub", "t/a", b"value", qos, retain=True, **values)
    capture.ping("pub")
    capture.connect("sub")
    return capture


def value(capture: Capture, qos: int, payload: bytes = b"value") -> None:
    """Hand the value over."""
    capture.hand("sub", "t/a", payload, qos, packet_id=7, retain=True)


def rules(capture: Capture) -> list[str]:
    return [row["rule"] for row in tables_of(capture)["violations"]]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("published", [1, 2])
def test_a_value_that_never_came(version: int, published: int) -> None:
    capture = with_value(version, published)
    sent = next(row for row in capture.rows if row["packet_type"] == layout.PUBLISH)
    capture.subscribe("sub", "t/#")
    assert rules(capture) == []  # It may come still.
    capture.ping("sub")
    (row,) = tables_of(capture)["violations"]
    assert row["rule"] == MISSING[version - 4]
    assert (row["client"], row["client_id"]) == ("10.0.0.1:1883", "sub")
    assert row["message_key"] == f"{sent['stream']}@{sent['offset']}"
    answer = capture.rows[-1]
    assert (row["stream"], row["offset"]) == (answer["stream"], answer["offset"])
    value(capture, published)
    assert rules(capture) == []  # Late, but it came.


def test_each_subscription_gets_it_anew() -> None:
    capture = with_value()
    for _ in range(2):
        capture.subscribe("sub", "t/#")
        value(capture, 1)
    capture.subscribe("sub", "t/a", qos=0)
    value(capture, 0)
    capture.ping("sub")
    assert rules(capture) == []
    capture.subscribe("sub", "t/#")
    capture.ping("sub")
    assert rules(capture) == ["MQTT-3.3.1-6"]


@pytest.mark.parametrize(("handling", "again"), [(0, ["MQTT-3.3.1-9"]), (1, []), (2, [])])
def test_retain_handling(handling: int, again: list[str]) -> None:
    capture = with_value(5)
    capture.subscribe("sub", "t/#", options=handling << 4)
    if handling < 2:
        value(capture, 1)
    capture.subscribe("sub", "t/#", options=handling << 4)
    capture.ping("sub")
    assert rules(capture) == again


def test_retain_handling_of_a_new_subscription() -> None:
    capture = with_value(5)
    capture.subscribe("sub", "t/#", options=1 << 4)
    capture.ping("sub")
    assert rules(capture) == ["MQTT-3.3.1-9"]


def test_what_a_broker_need_not_send() -> None:
    discarded = with_value(qos=0)
    discarded.subscribe("sub", "t/#")
    shared = with_value(5)
    shared.subscribe("sub", "$share/group/t/#")
    own = with_value(5)
    own.subscribe("pub", "t/#", options=4)
    own.ping("pub")
    large = with_value(5)
    large.connect("small", properties=(("maximum_packet_size", 20),))
    large.subscribe("small", "t/#")
    large.ping("small")
    expired = with_value(5, properties=(("message_expiry_interval", 5),))
    expired.wait(5)
    expired.subscribe("sub", "t/#")
    other = with_value()
    other.subscribe("sub", "u/#")
    for capture in (discarded, shared, own, large, expired, other):
        capture.ping("sub")
        assert rules(capture) == []


@pytest.mark.parametrize("payload", [b"", b"next"])
@pytest.mark.parametrize("qos", [1, 2])
def test_while_a_value_changes_it_may_be_either(payload: bytes, qos: int) -> None:
    """From when the message is sent until the broker has shown that it took it."""
    capture = with_value()
    capture.publish("pub", True, "t/a", payload, qos, retain=True)
    capture.subscribe("sub", "t/#")
    capture.acknowledge("pub", True, qos)
    capture.ping("sub")
    assert rules(capture) == []
    capture = with_value()
    capture.subscribe("sub", "t/#")
    capture.publish("pub", True, "t/a", payload, qos, retain=True)
    capture.ping("sub")
    capture.acknowledge("pub", True, qos)
    assert rules(capture) == []
    capture.subscribe("sub", "t/#")
    capture.ping("sub")
    assert rules(capture) == (["MQTT-3.3.1-6"] if payload else [])


def test_a_full_window_explains_it() -> None:
    capture = with_value()
    capture.subscribe("sub", "t/#", "u")
    for packet_id in range(1, 11):
        capture.publish("sub", False, "u", b"%d" % packet_id, 1, packet_id)
    capture.ping("sub")
    assert rules(capture) == []
    capture.acknowledge("sub", False, 1, packet_id=1)
    capture.ping("sub")
    assert rules(capture) == ["MQTT-3.3.1-6"]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_value_has_the_lower_qos(version: int, published: int, granted: int) -> None:
    for delivered in range(3):
        capture = with_value(version, published)
        capture.subscribe("sub", "t/#", qos=granted)
        value(capture, delivered)
        capture.ping("sub")
        tables = tables_of(capture)
        if delivered == min(published, granted):
            assert not tables["violations"]
            continue
        (row,) = tables["violations"]
        assert row["rule"] == ("retained_qos" if version == 3 else QOS[version - 4])
        assert (row["client"], row["client_id"]) == ("10.0.0.1:1883", "sub")
        packet = next(one for one in capture.rows if one["frame"] == row["frame"])
        assert (packet["topic"], packet["qos"]) == ("t/a", delivered)
        assert row["message_key"] == tables["deliveries"][0]["message_key"]


def test_the_qos_of_any_subscription_will_do() -> None:
    capture = with_value(qos=2)
    capture.subscribe("sub", "t/a", qos=0)
    capture.subscribe("sub", "t/#", qos=2)
    for qos in (0, 2):
        value(capture, qos)
    assert rules(capture) == []
    value(capture, 1)
    assert rules(capture) == ["MQTT-3.8.4-6"]


def test_a_session_that_is_older_than_the_capture_is_not_judged() -> None:
    capture = with_value()
    capture.connect("old", clean=False, present=True)
    capture.subscribe("old", "t/#", qos=1)
    capture.hand("old", "t/a", b"value", 0, retain=True)
    capture.ping("old")
    assert rules(capture) == []


def test_live_messages_with_retain_as_published_are_no_retained_values() -> None:
    capture = Capture(5)
    capture.connect("sub")
    capture.subscribe("sub", "t/#", options=8)
    capture.connect("pub")
    capture.message("pub", "t/a", b"value", 1, retain=True)
    value(capture, 1)
    capture.subscribe("sub", "t/#", options=8)
    value(capture, 1)
    capture.ping("sub")
    tables = tables_of(capture)
    assert [row["retained"] for row in tables["deliveries"]] == [False, True]
    assert [row["verdict"] for row in tables["deliveries"]] == ["delivered"] * 2
    assert not tables["violations"]


def test_what_the_capture_does_not_have_may_explain_it() -> None:
    damaged = with_value()
    damaged.subscribe("sub", "t/#")
    damaged.gap("sub", False)
    damaged.ping("sub")
    replaced = with_value()
    replaced.subscribe("sub", "t/#")
    value(replaced, 1, b"of somebody else")
    replaced.ping("sub")
    for capture in (damaged, replaced):
        assert rules(capture) == []
