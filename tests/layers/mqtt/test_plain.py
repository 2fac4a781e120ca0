"""Short connections: plain clients are tracked in one call, with the rows of an `Observer`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.mqtt.conversations import BATCH, short_connections
from tests.layers.mqtt.make import Capture, by_columns, tables_of
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt import tracking
from wireyard.layers.mqtt.plain import Plain, find_plain

Row = dict[str, Any]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the plain clients of the last call, once for each connection."""
    names: list[str] = []

    def find(*args: Any) -> Plain:
        result = find_plain(*args)
        names[:] = sorted(client.name for client in result.clients)
        return result

    monkeypatch.setattr(tracking, "find_plain", find)
    return names


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("end", ["disconnect", "end", "leave"])
def test_a_plain_connection(plain: list[str], version: int, end: str) -> None:
    capture = Capture(version)
    capture.connect("one", username="somebody")
    capture.publish("one", True, "a", b"x", 0)
    capture.publish("one", True, "b", b"y", 1, 7)
    capture.acknowledge("one", True, 1, 7)
    capture.publish("one", False, "c", b"z", 2, 7)
    getattr(capture, end)("one")
    (session,) = tables_of(capture)["sessions"]
    assert plain == ["one"]
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


@pytest.mark.parametrize(
    "begin",
    [no_connack, refused, resumed, with_will, subscribed, unexpected_ack, with_gap,
     after_disconnect, taken_over],
)  # fmt: skip
def test_a_connection_that_is_not_plain(plain: list[str], begin: Any) -> None:
    capture = Capture(4)
    begin(capture)
    capture.connect("two")
    capture.publish("two", True, "a", b"x", 1, 1)
    tables_of(capture)
    assert plain == ["two"]


def test_some_properties_make_a_connection_not_plain(plain: list[str]) -> None:
    capture = Capture(5)
    capture.connect("one", properties=(("user_property", ("a", "b")),))
    capture.connect("two", properties=(("session_expiry_interval", 1),))
    capture.connect("three", said=(("maximum_packet_size", 10),))
    by_columns(capture.rows, capture.streams)
    assert plain == ["one"]


@pytest.mark.parametrize("to_broker", [True, False])
def test_a_receive_maximum(plain: list[str], to_broker: bool) -> None:
    """It limits the side that it is sent to; a client is not plain if one is exceeded."""
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
    assert plain == ["one"]
    assert [row["rule"] for row in violations] == ["MQTT-3.3.4-7" if to_broker else "MQTT-3.3.4-9"]


def test_a_client_connects_again(plain: list[str]) -> None:
    capture = Capture(4)
    for end in (capture.disconnect, capture.end, capture.disconnect):
        capture.connect("one")
        capture.publish("one", False, "a", b"x", 1, 1)
        end("one")
    assert len(tables_of(capture)["sessions"]) == 3
    assert plain == ["one"] * 3


@pytest.mark.parametrize("version", [3, 4, 5])
def test_most_of_the_random_short_connections_are_plain(plain: list[str], version: int) -> None:
    """Their rows are judged with those of all other conversations."""
    sessions = 0
    for packets in short_connections(version, seed=1):
        by_columns(*packets)
        sessions += len(plain)
    assert sessions >= BATCH
