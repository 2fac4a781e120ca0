"""Short connections, one after the other: their sessions and the messages in flight at the end."""

from __future__ import annotations

import pytest

from tests.layers.mqtt.make import Capture, tables_of


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
