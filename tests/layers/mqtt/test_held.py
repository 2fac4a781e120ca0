"""What is held of packets that went by: nothing of what is done."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.layers.mqtt.make import MS, Capture, tables_of
from tests.reference.mqtt_chain import derive
from tests.reference.mqtt_chain.derive import follow_clients
from tests.reference.mqtt_chain.publish import observer_of
from tests.reference.mqtt_chain.sides import known_streams, sides_of
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt import observer
from wireyard.layers.mqtt.connection import Connection
from wireyard.layers.mqtt.observer import MAX_LINGERING
from wireyard.layers.mqtt.records import Attempt, ConnectionRecord, Message
from wireyard.layers.stages import Fact, KeyedRecord

Row = dict[str, Any]


def alive(*kinds: type) -> int:
    return sum(type(one) in kinds for one in gc.get_objects())


def repeated(capture: Capture, times: int) -> Iterator[Row]:
    """Yield the packets of a capture again and again, each time a millisecond later."""
    return (
        row | {"frame": row["frame"] + 100 * time, "captured_ns": row["captured_ns"] + time * MS}
        for time in range(times)
        for row in capture.rows
    )


def test_messages_that_are_done_are_not_held() -> None:
    """Neither those that a client sent, at any QoS, nor those that were delivered to it."""
    capture = Capture()
    capture.connect("both")
    opening, capture.rows = capture.rows, []
    for qos in (0, 1, 2):
        capture.message("both", "up", bytes(100), qos, 1 + qos)
        capture.hand("both", "down", bytes(100), qos, 1 + qos)
    capture.ping("both")
    sides = sides_of([*opening, *capture.rows])
    first = [*known_streams(sides), *opening]
    gc.collect()  # what other tests have left
    before, most, noted = alive(Message, Attempt), 0, Counter[str]()
    for place, found in enumerate(follow_clients(_all(first, repeated(capture, 5000)))):
        if isinstance(found, KeyedRecord):
            noted[found.stage] += 1
        if place % 5000 == 0:
            most = max(most, alive(Message, Attempt) - before)
    assert noted == {"deliveries": 6 * 5000, "subscribers": 2}
    # Those of the packets that are taken away together, and one for each packet identifier.
    assert 0 < most <= derive._FLUSH_EVERY + 4


def _all(first: Iterable[Row], rest: Iterable[Row]) -> Iterator[Row]:
    yield from first
    yield from rest


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_payloads_are_not_held(qos: int) -> None:
    """A packet identifier may not be used again for long, and a value may be large."""
    capture = Capture()
    capture.connect("pub")
    for packet_id in range(1, 100):
        payload = b"%d" % packet_id
        capture.message("pub", "t", payload, qos, packet_id, retain=True)
    capture.ping("pub")
    watch = observer_of(known_streams(sides_of(capture.rows)))
    for row in capture.rows:
        watch.observe(row)
    if qos:
        assert [one.payload for one in watch.output.changes] == [b"%d" % n for n in range(1, 100)]
        assert not watch.output.messages
    watch.finish()
    assert len(watch.output.messages) == 99
    values = {one.value for one in watch.output.messages}
    assert values == ({None} if qos else {b"%d" % n for n in range(1, 100)})
    assert len(tables_of(capture)["retained"]) == 99


def test_connections_that_are_over_are_not_held() -> None:
    capture = Capture()
    capture.connect("flaky")
    times = 3 * MAX_LINGERING
    rows, known = [], []
    for time in range(times):
        of_connection = [
            row
            | {"stream": f"{row['stream']}#{time}", "frame": row["frame"] + 100 * time}
            | {"captured_ns": row["captured_ns"] + 100 * time * MS}
            for row in capture.rows
        ]
        rows += of_connection
        last = of_connection[-1]
        known += [
            {
                "source": "made.pcap", "stream": row["stream"], "from_client": from_client,
                "alone": False, "begun": True, "ended": "fin", "ended_frame": last["frame"] + 10,
                "ended_ns": last["captured_ns"] + 10 * MS,
            }
            for row, from_client in zip(of_connection, (True, False), strict=True)
        ]  # fmt: skip
    gc.collect()  # what other tests have left
    before, most, ended = alive(ConnectionRecord, Connection), 0, Counter[str]()
    for place, found in enumerate(follow_clients(_all(known, rows))):
        if isinstance(found, Fact):
            ended[found.row["ended_by"]] += 1
        if place % 500 == 0:
            most = max(most, alive(ConnectionRecord, Connection) - before)
    assert ended == {"dropped": times}
    assert 0 < most <= 2 * MAX_LINGERING + derive._FLUSH_EVERY


def test_packets_of_a_connection_that_is_not_held_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = Capture()
    for who in ("one", "two"):
        capture.connect(who, clean=False)
        capture.ping(who)
    capture.put("one", True, layout.PINGREQ)
    monkeypatch.setattr(observer, "MAX_CONNECTIONS", 1)
    watch = observer_of(known_streams(sides_of(capture.rows)))
    for row in capture.rows:
        watch.observe(row)
    assert [connection.client.name for connection in watch.output.connections] == ["one"]
    watch.finish()
    assert [connection.packets for connection in watch.output.connections] == [4, 4]
    assert watch.output.dropped == {"late": 1}
