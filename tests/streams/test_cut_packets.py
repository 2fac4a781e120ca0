"""Rows of packets of which the capture, or the stream, has the beginning only."""

from __future__ import annotations

from typing import Any

import pytest

import wireyard
from wireyard import gpacket, jmq, mqtt, rmp
from wireyard.formats import get_format
from wireyard.formats.base import Row

_JMQ = jmq.Packet(
    packet_type="TEXT_MESSAGE", destination="q", consumer_id=7, bit_flags="QA",
    correlation_id="c" * 40, properties={"a": 1}, body="text",
)  # fmt: skip
_PUBLISH = mqtt.Publish(topic="a/b", qos=1, packet_id=9, retain=True, payload="x" * 90)
_RMP = rmp.Message(layer=3, domain=5, client=6, data=b"abc", framed_bytes=9)
_GPACKET = gpacket.Packet(packet_type=1, bit_flags=1, properties={"a": 1}, payload=b"x" * 40)


def rows(format: str, data: bytes) -> list[Row]:
    table = wireyard.read(data, format)
    found: list[Row] = table.to_pylist(maps_as_pydicts="lossy")
    return found


def some(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.parametrize(
    ("format", "packet", "size", "known"),
    [
        ("jmq", _JMQ, 12, {"size": len(wireyard.encode(_JMQ)), "packet_type": 1, "flags": None}),
        ("jmq", _JMQ, 72, {"flags": "QA", "consumer_id": 7, "sequence": 0, "destination": None}),
        ("jmq", _JMQ, 90, {"destination": "q", "correlation_id": None, "properties": None}),
        ("jmq", _JMQ, -1, {"correlation_id": "c" * 40, "body": None, "body_size": None}),
        ("gpacket", _GPACKET, 20, {"packet_type": 1, "sequence": None}),
        ("gpacket", _GPACKET, 60, {"packet_type": 1, "sequence": 0, "bit_flags": 1}),
        ("mqtt/3.1.1", _PUBLISH, 2, {"qos": 1, "retain": True, "dup": False, "topic": None}),
        ("mqtt/3.1.1", _PUBLISH, 9, {"topic": "a/b", "packet_id": 9, "payload": None}),
        ("mqtt/3.1.1", _PUBLISH, -1, {"topic": "a/b", "payload": None, "payload_size": None}),
        ("rmp/framed", _RMP, 6, {"layer": 3, "domain": 5, "client": None, "data": None}),
    ],
)
def test_what_was_captured_of_a_header_is_in_the_row(
    format: str, packet: Any, size: int, known: dict[str, Any]
) -> None:
    data = wireyard.encode(packet)
    (row,) = rows(format, data[:size])
    assert (row["status"], row["error"]["code"]) == ("tail", "truncated")
    assert some(row, *known) == tuple(known.values())
    # Beginnings of any size: what is read of one is what the whole packet has.
    (whole,) = rows(format, data)
    shown = get_format(format).columns
    for at in range(1, len(data)):
        (row,) = rows(format, data[:at])
        for column in shown:
            if row[column.name] is not None and column.name not in ("verdict", "properties"):
                assert row[column.name] == whole[column.name], (at, column.name)
