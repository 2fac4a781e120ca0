"""Deliveries that were captured before their messages, on another connection."""

from __future__ import annotations

import pytest

from tests.layers.mqtt.make import MS, Capture, deliveries_of, pair, tables_of, verdicts_of


def early(qos: int, by_ns: int, count: int = 3, payload: bytes = b"%d") -> Capture:
    """Return a capture in which each delivery was captured by some time before its message."""
    capture = pair(qos=qos)
    for number in range(1, count + 1):
        capture.wait(0.1)
        text = payload % number if b"%" in payload else payload
        capture.publish("sub", False, "t/1", text, qos, number)
        capture.now_ns += by_ns - MS
        capture.publish("pub", True, "t/1", text, qos, number)
        capture.acknowledge("pub", True, qos, number)
        capture.acknowledge("sub", False, qos, number)
    return capture


@pytest.mark.parametrize("payload", [b"%d", b"ON"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delivery_just_before_its_message_is_of_it(qos: int, payload: bytes) -> None:
    capture = early(qos, 20_000, payload=payload)
    tables = tables_of(capture)
    assert tables["violations"] == []
    rows = tables["deliveries"]
    assert [row["verdict"] for row in rows] == ["delivered"] * 3
    assert all(row["origin"] == "publish" for row in rows)
    assert all(row["delivered_ns"] == row["sent_ns"] for row in rows)


def test_a_delivery_long_before_a_message_is_of_another_one() -> None:
    capture = early(1, 6 * MS, count=1)
    assert sorted(row["origin"] for row in deliveries_of(capture)) == ["broker", "publish"]


def test_a_second_delivery_is_not_of_the_next_message() -> None:
    capture = pair(qos=1)
    capture.message("pub", "t/1", b"ON", 1, 1)
    capture.hand("sub", "t/1", b"ON", 1, 1)
    capture.hand("sub", "t/1", b"ON", 1, 2)
    capture.wait(0.1)
    capture.message("pub", "t/1", b"ON", 1, 2)
    capture.hand("sub", "t/1", b"ON", 1, 3)
    assert verdicts_of(capture) == ["delivered", "duplicate", "delivered"]
