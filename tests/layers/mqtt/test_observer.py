"""Who broke a rule, and what packets that break one do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, pair, tables_of
from wireyard.formats.mqtt import layout

Row = dict[str, Any]


@pytest.mark.parametrize("from_client", [True, False])
def test_a_violation_names_the_side_that_broke_the_rule(from_client: bool) -> None:
    capture = pair()
    capture.put("pub", from_client, layout.PUBACK, packet_id=9)
    (row,) = tables_of(capture)["violations"]
    assert row["client"] == ("10.0.0.2:40001" if from_client else "10.0.0.1:1883")
    assert row["client_id"] == "pub"


def test_pubrel_answers_any_pubrec() -> None:
    """After an error too, and also one that came for nothing (erratum M30)."""
    capture = pair(5)
    capture.publish("pub", True, "t/a", b"x", 2)
    capture.put("pub", False, layout.PUBREC, packet_id=1, return_code=0x87)
    capture.put("pub", True, layout.PUBREL, packet_id=1)
    capture.put("pub", False, layout.PUBCOMP, packet_id=1, return_code=0x92)
    tables = tables_of(capture)
    assert not tables["violations"]
    assert [row["verdict"] for row in tables["deliveries"]] == ["refused"]
    capture.put("sub", True, layout.PUBREC, packet_id=5)
    capture.put("sub", False, layout.PUBREL, packet_id=5)
    capture.put("sub", False, layout.PUBREL, packet_id=6)
    found = tables_of(capture)["violations"]
    assert [row["client"] for row in found] == ["10.0.0.2:40000", "10.0.0.1:1883"]


def malformed(row: Row, code: str) -> None:
    row |= {"status": "malformed", "verdict": code, "error": {"code": code, "message": "no"}}


@pytest.mark.parametrize("is_malformed", [True, False])
def test_a_malformed_disconnect_is_no_goodbye(is_malformed: bool) -> None:
    capture = Capture(5)
    will: dict[str, Any] = {
        "will_topic": "w",
        "will_payload": b"x",
        "will_qos": 0,
        "will_retain": False,
    }
    capture.connect("c", **will)
    capture.put("c", True, layout.DISCONNECT)
    if is_malformed:
        malformed(capture.rows[-1], "MQTT-3.14.1-1")
    capture.end("c")
    tables = tables_of(capture)
    (session,) = tables["sessions"]
    assert session["ended_by"] == ("dropped" if is_malformed else "client")
    assert [row["rule"] for row in tables["violations"]] == ["MQTT-3.14.1-1"] * is_malformed
    assert [row["origin"] for row in tables["deliveries"]] == ["will"] * is_malformed


def test_a_malformed_auth_is_a_violation() -> None:
    capture = Capture(5)
    method = (("authentication_method", "m"),)
    for at in (2, 3):
        capture.rows.clear()
        capture.connect("c", properties=method)
        capture.put("c", True, layout.AUTH, properties=method)
        malformed(capture.rows[-1], "auth_method_missing")
        capture.rows.insert(at - 1, capture.rows.pop())
        (row,) = tables_of(capture)["violations"]
        assert (row["rule"], row["client"], row["text"]) == (
            "auth_method_missing", "10.0.0.2:40000", "no",
        )  # fmt: skip


def test_a_remaining_length_without_end_is_a_violation() -> None:
    error = {"code": "remaining_length", "message": "no end"}
    capture = pair()
    capture.ping("pub")
    capture.gap("pub", True)
    capture.rows[-1] |= {"status": "garbage", "error": error}
    (row,) = tables_of(capture)["violations"]
    assert (row["rule"], row["text"]) == ("remaining_length", "no end")
    assert (row["client"], row["frame"]) == ("10.0.0.2:40001", capture.frame)
    # Behind a gap nobody knows where a packet begins.
    capture.rows.insert(-1, capture.rows[-1] | {"status": "gap", "error": None})
    assert not tables_of(capture)["violations"]
