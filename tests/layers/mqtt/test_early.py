"""Packets that were captured out of order."""

from __future__ import annotations

import pytest

from tests.layers.mqtt.make import MS, Capture, deliveries_of, pair, tables_of, verdicts_of
from wireyard.formats.mqtt import layout


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


@pytest.mark.parametrize(
    ("by_ns", "handed", "verdict"),
    [
        (6 * MS, 1, "undecided"),
        (1990 * MS, 1, "undecided"),
        (2010 * MS, 1, "not_forwarded"),
        (1000 * MS, 2, "not_forwarded"),
    ],
)
def test_a_delivery_before_a_message_may_be_of_it_by_another_clock(
    by_ns: int, handed: int, verdict: str
) -> None:
    """One of a payload that comes again is of a publisher that was not captured."""
    capture = pair(qos=1)
    for number in range(2, handed + 1):
        capture.hand("sub", "t/1", b"1", 1, number)
    capture.publish("sub", False, "t/1", b"1", 1, 1)
    capture.acknowledge("sub", False, 1, 1)
    capture.now_ns += by_ns
    capture.message("pub", "t/1", b"1", 1)
    capture.ping("sub")
    rows = {row["origin"]: row["verdict"] for row in deliveries_of(capture)}
    assert rows == {"broker": "delivered", "publish": verdict}


def test_a_second_delivery_is_not_of_the_next_message() -> None:
    capture = pair(qos=1)
    capture.message("pub", "t/1", b"ON", 1, 1)
    capture.hand("sub", "t/1", b"ON", 1, 1)
    capture.hand("sub", "t/1", b"ON", 1, 2)
    capture.wait(0.1)
    capture.message("pub", "t/1", b"ON", 1, 2)
    capture.hand("sub", "t/1", b"ON", 1, 3)
    assert verdicts_of(capture) == ["delivered", "duplicate", "delivered"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_delivery_to_a_group_is_not_of_the_next_message(version: int) -> None:
    """A member has a subscription of its own too, so each of two equal messages comes twice."""
    capture = Capture(version)
    capture.connect("sub")
    capture.subscribe("sub", "$share/g/t/#", qos=1)
    capture.subscribe("sub", "t/#", qos=0)
    capture.connect("pub")
    for qos in (1, 0):
        capture.message("pub", "t/1", b"ON", qos)
        for granted in (1, 0):
            capture.hand("sub", "t/1", b"ON", min(qos, granted), 1)
    rows = deliveries_of(capture)
    assert [row["verdict"] for row in rows] == ["delivered"] * 4
    assert sorted(row["delivered_frame"] - row["sent_frame"] for row in rows) == [1, 2, 2, 4]


def test_the_end_of_a_stream_comes_behind_all_its_packets() -> None:
    """The frame with DISCONNECT and FIN was captured before the one with the acknowledgement."""
    capture = pair(qos=1)
    capture.message("pub", "t/1", b"x", 1)
    capture.hand("sub", "t/1", b"x", 1)
    acknowledgement = capture.rows[-1]
    capture.streams.append(
        {
            "source": "made.pcap", "stream": capture.stream("sub"), "begun": True, "ended": "fin",
            "ended_frame": capture.frame, "ended_ns": capture.now_ns,
        }
    )  # fmt: skip
    capture.put("sub", True, layout.DISCONNECT)
    disconnect = capture.rows[-1]
    for name in ("captured_ns", "frame"):
        first, second = acknowledgement[name], disconnect[name]
        acknowledgement[name], disconnect[name] = second, first
    tables = tables_of(capture)
    (session,) = (row for row in tables["sessions"] if row["client_id"] == "sub")
    assert session["ended_by"] == "client"
    assert [row["verdict"] for row in tables["deliveries"]] == ["delivered"]
    assert tables["violations"] == []
