"""Short connections: plain clients are tracked in one call, with the rows of an `Observer`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, by_columns, tables_of
from tests.layers.mqtt.test_columns import CONVERSATIONS, SEED, mutated, same
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
def test_random_short_connections(plain: list[str], version: int) -> None:
    dice = random.Random(SEED * 10 + version)
    sessions = 0
    for _ in range(CONVERSATIONS // 3):
        capture = Capture(version)
        Short(capture, dice).run()
        rows = capture.rows
        if rows and dice.random() < 0.3:
            rows = mutated(rows, dice)
        same(rows, dice.choice((capture.streams, None)))
        sessions += len(plain)
    assert sessions >= CONVERSATIONS // 3


class Short:
    """Random clients with short connections, most of them plain."""

    def __init__(self, capture: Capture, dice: random.Random) -> None:
        self.capture, self.dice = capture, dice
        self.is_strange = dice.random() < 0.4
        """Whether connections may be other than plain."""

    def run(self) -> None:
        """Add the packets of all clients to the capture, in random turns."""
        names = [f"client {number}" for number in range(self.dice.randrange(1, 5))]
        alive = {name: self.talk(name) for name in names}
        while alive:
            name = self.dice.choice(list(alive))
            if next(alive[name], self) is self:
                del alive[name]

    def talk(self, who: str) -> Iterator[None]:
        """Add the packets of a client; yield after each turn."""
        for _ in range(self.dice.randrange(1, 4)):
            yield from self.connection(who)

    def connection(self, who: str) -> Iterator[None]:
        """Add the packets of one connection; yield after each turn."""
        dice, capture = self.dice, self.capture
        strange = self.is_strange and dice.random() < 0.3
        values: dict[str, Any] = {"username": dice.choice((None, "somebody", "else"))}
        if capture.version == 5:
            for name in ("properties", "said"):
                maximum = dice.choice((None, None, 1, 2, 20))
                values[name] = () if maximum is None else (("receive_maximum", maximum),)
            if strange:
                values["properties"] += (("session_expiry_interval", dice.choice((0, 60))),)
        clean = not strange or dice.random() < 0.5
        capture.connect(who, clean, not clean and dice.random() < 0.5, **values)
        if strange and dice.random() < 0.5:
            capture.subscribe(who, "a/#", qos=dice.randrange(3))
        yield
        steps = [*[self.publish] * 6, self.ping, *[self.strange] * strange]
        for _ in range(dice.randrange(6)):
            dice.choice(steps)(who)
            yield
        ends = [*[capture.disconnect] * 3, self.close, *[capture.leave] * self.is_strange]
        dice.choice(ends)(who)

    def publish(self, who: str) -> None:
        """Add a message in either direction, mostly with its acknowledgement."""
        dice = self.dice
        from_client, qos, number = dice.random() < 0.7, dice.randrange(3), dice.randrange(1, 4)
        topic, retain = dice.choice(("a/b", "c")), dice.random() < 0.2
        payload = dice.choice((b"x", b"y", b""))
        self.capture.publish(who, from_client, topic, payload, qos, number, retain=retain)
        if dice.random() < 0.9:
            self.capture.acknowledge(who, from_client, qos, number)

    def ping(self, who: str) -> None:
        self.capture.ping(who)

    def strange(self, who: str) -> None:
        """Add an acknowledgement without a message."""
        kind = self.dice.choice((layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP))
        self.capture.put(who, self.dice.random() < 0.5, kind, packet_id=self.dice.randrange(1, 4))

    def close(self, who: str) -> None:
        """End one stream or both, by FIN or RST, before or after other packets."""
        dice, capture = self.dice, self.capture
        for from_client in dice.sample((True, False), dice.choice((1, 2))):
            capture.wait(dice.choice((0, 0, 0.005)))
            ended = dice.choice(("fin", "rst"))
            capture.streams.append(
                {
                    "source": "made.pcap", "begun": None,
                    "stream": capture.stream(who, from_client),
                    "ended": ended, "ended_frame": capture.frame + 1,
                    "ended_ns": capture.now_ns + dice.choice((0, 1, 2_000_000)),
                }
            )  # fmt: skip
            capture.frame += 1
        capture.leave(who)
