"""What is held of packets that went by: nothing of what is done."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from tests.layers.mqtt.make import MS, Capture
from tests.layers.mqtt.sides import known_streams, sides_of
from tests.layers.mqtt.tracker import observer_of
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt import observer
from wireyard.layers.mqtt.connection import Connection
from wireyard.layers.mqtt.observer import MAX_LINGERING
from wireyard.layers.mqtt.records import ConnectionRecord

Row = dict[str, Any]


def alive(*kinds: type) -> int:
    return sum(type(one) in kinds for one in gc.get_objects())


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
    watch = observer_of(known)
    for place, row in enumerate(rows):
        watch.observe(row)
        if place % 500 == 0:
            ended.update(one.ended_by for one in watch.output.connections)
            watch.output.connections.clear()
            most = max(most, alive(ConnectionRecord, Connection) - before)
    watch.finish()
    ended.update(one.ended_by for one in watch.output.connections)
    assert ended == {"dropped": times}
    assert 0 < most <= 2 * MAX_LINGERING + 500


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
