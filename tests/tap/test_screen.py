"""The screen of a proxy: what it counts, what it calls stuck, and that it fits a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wireyard import mqtt
from wireyard.formats.mqtt.control import Packet
from wireyard.formats.mqtt.writing import encode
from wireyard.tap import screen as screens
from wireyard.tap.faults import Faults
from wireyard.tap.packets import PacketReader
from wireyard.tap.relay import Connection, Passing
from wireyard.tap.screen import Screen


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(screens, "time", clock)
    yield clock


async def no_port(service: str, port: int) -> int:
    return port


class Watched:
    """A screen, and connections whose packets a test writes."""

    def __init__(self, version: int = 5) -> None:
        self.screen = Screen()
        self.version = version
        self.open: list[Connection] = []
        self.screen.connections = lambda: self.open
        self.readers: dict[Connection, tuple[PacketReader, PacketReader]] = {}

    def connect(self, client_id: str) -> Connection:
        passing = Passing(print, no_port, Faults(()), self.screen, lambda _: None, lambda _: None)
        one = Connection(passing, 1883)
        one.address = "127.0.0.1:5"
        self.open.append(one)
        self.readers[one] = PacketReader(one.talk, False, 9999), PacketReader(one.talk, True, 9999)
        self.passes(one, True, mqtt.Connect(client_id=client_id, version_in_force=self.version))
        return one

    def passes(self, one: Connection, from_client: bool, *packets: Packet) -> None:
        for packet in packets:
            self.screen.passed(
                one, from_client, *self.readers[one][from_client].read(encode(packet))
            )

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        return self.screen.lines("1884 > 1883", width, height)


def publish(topic: str, **fields: Any) -> mqtt.Publish:
    return mqtt.Publish(topic=topic, payload=b"x", version_in_force=5, **fields)


def row(lines: list[str], name: str) -> list[str]:
    (line,) = (line for line in lines if line.split()[:1] == [name])
    return line.split()[1:]


def test_rates_by_destination(clock: Clock) -> None:
    watched = Watched()
    till = watched.connect("till")
    watched.passes(till, False, mqtt.ConnAck(version_in_force=5))
    watched.lines()
    clock.now += 2
    alias = publish("long/name", properties={"topic_alias": 1})
    again = publish("", properties={"topic_alias": 1})
    watched.passes(till, True, publish("a/b"), publish("a/b"), alias, again, again)
    watched.passes(till, False, publish("a/b"))
    lines = watched.lines()
    assert row(lines, "a/b") == ["1.0", "0.5", "3"]
    assert row(lines, "long/name") == ["1.5", "0.0", "3"]
    assert "2.5 packets/s" in lines[1] and "0.5 packets/s" in lines[2]
    assert lines[-1] == "nothing is stuck"
    clock.now += 1
    assert row(watched.lines(), "a/b") == ["0.0", "0.0", "3"]


def test_what_is_stuck(clock: Clock) -> None:
    watched = Watched()
    slow, silent, busy = (watched.connect(name) for name in ("slow", "silent", "busy"))
    for one in (slow, busy):
        watched.passes(one, False, mqtt.ConnAck(version_in_force=5))
    watched.passes(
        slow, False, publish("a/b", qos=1, packet_id=7), publish("c", qos=2, packet_id=8)
    )
    watched.passes(busy, True, publish("d", qos=1, packet_id=1), publish("e", qos=2, packet_id=2))
    clock.now += 4
    assert watched.lines()[-1] == "nothing is stuck"
    busy.broker.is_unread = True
    watched.passes(busy, False, mqtt.PubAck(packet_id=1), mqtt.PubComp(packet_id=2))
    watched.passes(slow, True, mqtt.PubAck(packet_id=7))
    watched.lines()
    clock.now += 6
    found = watched.lines()[-3:]
    assert found == [
        "00:00:10  silent (127.0.0.1:5): has no answer to CONNECT",
        "00:00:10  slow (127.0.0.1:5): 1 to it not acknowledged, first on c",
        "00:00:06  busy (127.0.0.1:5): the broker does not read",
    ]
    watched.open.remove(silent)
    assert not any("silent" in line for line in watched.lines())


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (60, 40)])
def test_it_fits_the_terminal(clock: Clock, width: int, height: int) -> None:
    watched = Watched()
    for number in range(60):
        one = watched.connect(f"client \x1b[2J {number} " + "x" * 100)
        watched.passes(one, True, publish(f"topic/{number}/" + "ä" * 100))
    clock.now += 10
    lines = watched.lines(width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("and ") and line.endswith("other destinations") for line in lines)
    assert lines[-1].endswith("other stuck")


def test_destinations_have_a_bound(clock: Clock) -> None:
    watched = Watched()
    one = watched.connect("c")
    for number in range(screens._MOST_TOPICS + 50):
        watched.passes(one, True, publish(f"t/{number}"))
    assert len(watched.screen._totals) == screens._MOST_TOPICS + 1
    assert row(watched.lines(), "others")[-1] == "50"
