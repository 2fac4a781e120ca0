"""Deadlines that pass without a packet: sessions and messages that expire, and keep-alives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, tables_of, verdicts_of
from wireyard.formats.mqtt import layout

MQTT5 = 5


def _subscribed(version: int, clean: bool, expiry_s: int | None = None, qos: int = 1) -> Capture:
    """Return a capture with a publisher, and a subscriber of a session that lasts so long."""
    capture = Capture(version)
    said = () if expiry_s is None else (("session_expiry_interval", expiry_s),)
    capture.connect("sub", clean, properties=said)
    capture.subscribe("sub", "t", qos=qos)
    capture.connect("pub")
    return capture


def _goes_on(capture: Capture, seconds: float) -> None:
    """Let time pass, with a packet of the publisher at its end."""
    capture.wait(seconds)
    capture.ping("pub")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("version", "clean", "expiry_s", "verdict"),
    [
        (3, True, None, "abandoned"), (4, True, None, "abandoned"), (5, True, None, "abandoned"),
        (5, False, 0, "abandoned"), (5, False, 5, "abandoned"), (5, False, 30, "in_flight"),
        (5, False, 0xFFFF_FFFF, "in_flight"), (3, False, None, "in_flight"),
        (4, False, None, "in_flight"),
    ],
)  # fmt: skip
def test_an_unacknowledged_delivery_ends_with_its_session(
    version: int, clean: bool, expiry_s: int | None, verdict: str, qos: int
) -> None:
    capture = _subscribed(version, clean, expiry_s, qos)
    capture.message("pub", "t", b"1", qos)
    capture.publish("sub", False, "t", b"1", qos)
    capture.end("sub")
    _goes_on(capture, 10)
    assert verdicts_of(capture) == [verdict]


def test_a_delivery_on_an_open_connection_is_in_flight() -> None:
    capture = _subscribed(4, clean=True)
    capture.message("pub", "t", b"1", 1)
    capture.publish("sub", False, "t", b"1", 1)
    _goes_on(capture, 10)
    assert verdicts_of(capture) == ["in_flight"]


def test_a_clean_session_without_subscriptions_ends_too() -> None:
    capture = Capture(4)
    capture.connect("sub")
    capture.publish("sub", False, "t", b"1", 1)
    capture.end("sub")
    capture.connect("pub")
    assert verdicts_of(capture) == ["abandoned"]


def test_the_last_disconnect_decides_when_a_session_ends() -> None:
    capture = _subscribed(MQTT5, clean=False, expiry_s=600)
    capture.message("pub", "t", b"1", 1)
    capture.publish("sub", False, "t", b"1", 1)
    capture.disconnect("sub", properties=(("session_expiry_interval", 0),))
    _goes_on(capture, 10)
    assert verdicts_of(capture) == ["abandoned"]


@pytest.mark.parametrize(
    ("session_s", "message_s", "seconds", "verdict"),
    [
        (5, None, 10, "discarded"), (30, None, 10, "queued"), (0xFFFF_FFFF, None, 10, "queued"),
        (30, 5, 10, "expired"), (30, 20, 10, "queued"), (8, 5, 10, "expired"),
        (5, 8, 10, "discarded"), (0xFFFF_FFFF, 5, 60, "expired"),
    ],
)  # fmt: skip
def test_a_waiting_message_ends_by_the_first_deadline(
    session_s: int, message_s: int | None, seconds: float, verdict: str
) -> None:
    capture = _subscribed(MQTT5, clean=False, expiry_s=session_s)
    capture.disconnect("sub")
    values: dict[str, Any] = {}
    if message_s is not None:
        values["properties"] = (("message_expiry_interval", message_s),)
    capture.message("pub", "t", b"1", 1, **values)
    _goes_on(capture, seconds)
    assert verdicts_of(capture) == [verdict]


def test_a_capture_lasts_until_its_last_packet_of_any_protocol() -> None:
    capture = _subscribed(MQTT5, clean=False, expiry_s=5)
    capture.disconnect("sub")
    capture.message("pub", "t", b"1", 1)
    assert verdicts_of(capture) == ["queued"]
    capture.streams.append(
        {"source": "made.pcap", "stream": "another", "begun": True, "ended": None,
         "last_ns": capture.now_ns + 10_000_000_000}
    )  # fmt: skip
    assert verdicts_of(capture) == ["discarded"]


def test_a_message_behind_a_full_window_ends_with_the_session() -> None:
    for session_s, verdict in ((0, "discarded"), (600, "queued")):
        capture = _subscribed(MQTT5, clean=False, expiry_s=session_s)
        for number in range(1, 12):
            capture.message("pub", "t", str(number).encode(), 1)
            if number < 11:
                capture.publish("sub", False, "t", str(number).encode(), 1, number)
        capture.end("sub")
        _goes_on(capture, 10)
        assert verdicts_of(capture)[-1] == verdict


def test_a_broker_that_kept_an_expired_session_is_believed() -> None:
    capture = _subscribed(MQTT5, clean=False, expiry_s=2)
    capture.disconnect("sub")
    capture.message("pub", "t", b"1", 1)
    capture.wait(10)
    capture.connect("sub", clean=False, present=True)
    capture.hand("sub", "t", b"1", 1)
    assert "discarded" not in verdicts_of(capture)


# --- keep-alive and the end of a connection ------------------------------------------------------


@pytest.mark.parametrize("said_s", [None, 0, 10, 120])
def test_the_keep_alive_in_force_is_the_brokers(said_s: int | None) -> None:
    capture = Capture(MQTT5)
    said = () if said_s is None else (("server_keep_alive", said_s),)
    capture.connect("one", said=said)
    capture.end("one")
    (row,) = tables_of(capture)["sessions"]
    assert row["keep_alive"] == (60 if said_s is None else said_s)


@pytest.mark.parametrize("code", [0x81, 0x8E, 0x97, 0xA0])
@pytest.mark.parametrize("reason", [None, "because"])
def test_a_session_has_the_code_of_the_brokers_disconnect(code: int, reason: str | None) -> None:
    capture = Capture(MQTT5)
    capture.connect("one")
    said = () if reason is None else (("reason_string", reason),)
    capture.put("one", False, layout.DISCONNECT, return_code=code, properties=said)
    capture.end("one")
    capture.connect("two")
    capture.disconnect("two")
    one, two = tables_of(capture)["sessions"]
    assert (one["ended_by"], one["end_code"], one["end_reason"]) == ("server", code, reason)
    assert (two["ended_by"], two["end_code"], two["end_reason"]) == ("client", None, None)
