"""Short connections, one after the other: their sessions and the messages in flight at the end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, tables_of
from wireyard.formats.mqtt import layout


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("end", ["disconnect", "end", "leave"])
def test_a_short_connection(version: int, end: str) -> None:
    capture = Capture(version)
    capture.connect("one", username="somebody")
    capture.publish("one", True, "a", b"x", 0)
    capture.publish("one", True, "b", b"y", 1, 7)
    capture.acknowledge("one", True, 1, 7)
    capture.publish("one", False, "c", b"z", 2, 7)
    getattr(capture, end)("one")
    (session,) = tables_of(capture)["sessions"]
    ended_by = {"disconnect": "client", "end": "dropped", "leave": "open"}
    assert session["ended_by"] == ended_by[end]
    assert (session["in_flight_sent"], session["in_flight_received"]) == (0, 1)


def no_connack(capture: Capture) -> None:
    capture.put("one", True, layout.CONNECT, client_id="one", clean_start=True, keep_alive=60)


def refused(capture: Capture) -> None:
    capture.connect("one", code=5)


def resumed(capture: Capture) -> None:
    capture.connect("one", clean=False)


def with_will(capture: Capture) -> None:
    will: dict[str, Any] = {
        "will_topic": "w",
        "will_payload": b"x",
        "will_qos": 0,
        "will_retain": False,
    }
    capture.connect("one", **will)


def subscribed(capture: Capture) -> None:
    capture.connect("one")
    capture.subscribe("one", "a")


def unexpected_ack(capture: Capture) -> None:
    capture.connect("one")
    capture.acknowledge("one", True, 1, 3)


def with_gap(capture: Capture) -> None:
    capture.connect("one")
    capture.gap("one", True)


def after_disconnect(capture: Capture) -> None:
    capture.connect("one")
    capture.put("one", True, layout.DISCONNECT)
    capture.publish("one", True, "a", b"x", 0)


def taken_over(capture: Capture) -> None:
    capture.connect("one")
    capture.leave("one")
    capture.connect("one")


SESSIONS = {
    no_connack: "open", refused: "refused", resumed: "open", with_will: "open",
    subscribed: "open", unexpected_ack: "open", with_gap: "open", after_disconnect: "client",
    taken_over: "dropped",
}  # fmt: skip
"""How the first connection ends."""


@pytest.mark.parametrize("begin", SESSIONS, ids=lambda one: one.__name__)
def test_a_connection_beside_a_short_one(begin: Any) -> None:
    """What happens on one connection changes nothing on another."""
    capture = Capture(4)
    begin(capture)
    capture.connect("two")
    capture.publish("two", True, "a", b"x", 1, 1)
    *others, last = tables_of(capture)["sessions"]
    assert others[0]["ended_by"] == SESSIONS[begin]
    assert (last["client_id"], last["in_flight_sent"]) == ("two", 1)


@pytest.mark.parametrize("to_broker", [True, False])
def test_a_receive_maximum(to_broker: bool) -> None:
    """It limits the side that it is sent to."""
    capture = Capture(5)
    own, other = (("receive_maximum", 1),), (("receive_maximum", 2),)
    for name, messages in (("one", 1), ("two", 2)):
        if to_broker:
            capture.connect(name, properties=other, said=own)
        else:
            capture.connect(name, properties=own, said=other)
        for number in range(messages):
            capture.publish(name, to_broker, "a", b"x", 1, number + 1)
    violations = tables_of(capture)["violations"]
    assert [row["rule"] for row in violations] == ["MQTT-3.3.4-7" if to_broker else "MQTT-3.3.4-9"]


def test_a_client_connects_again() -> None:
    """Each connection begins with the packet identifiers free."""
    capture = Capture(4)
    for end in (capture.disconnect, capture.end, capture.disconnect):
        capture.connect("one")
        capture.publish("one", False, "a", b"x", 1, 1)
        end("one")
    tables = tables_of(capture)
    assert [row["in_flight_received"] for row in tables["sessions"]] == [1, 1, 1]
    assert not tables["violations"]
