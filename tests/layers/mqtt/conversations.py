"""Random conversations of clients with their broker, right, wrong and damaged.

A batch of conversations follows from the version and a seed, so its goldens can be kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from tests.layers.mqtt.make import Capture
from wireyard.formats.mqtt import layout

__all__ = ["BATCH", "Packets", "conversations", "mutated", "short_connections"]

Row = dict[str, Any]

BATCH: Final = 50
"""Conversations of a batch."""


class Packets(NamedTuple):
    """The input of a derivation."""

    rows: list[Row]
    streams: list[Row] | None
    """What is known of the streams; None if beginnings and ends are not."""


class _Traffic(Protocol):
    def run(self) -> None:
        """Add all packets to a capture."""


def conversations(version: int, seed: int, count: int = BATCH) -> Iterator[Packets]:
    """Yield conversations of up to three clients that do everything a client can do."""
    return _random(Conversation, 0.4, version, seed, count)


def short_connections(version: int, seed: int, count: int = BATCH) -> Iterator[Packets]:
    """Yield short connections of up to four clients, most of which only publish and receive."""
    return _random(Short, 0.3, version, seed, count)


def _random(
    kind: Callable[[Capture, random.Random], _Traffic],
    damaged: float,
    version: int,
    seed: int,
    count: int,
) -> Iterator[Packets]:
    dice = random.Random(seed * 10 + version)
    for _ in range(count):
        capture = Capture(version)
        kind(capture, dice).run()
        rows = capture.rows
        if rows and dice.random() < damaged:
            rows = mutated(rows, dice)
        yield Packets(rows, dice.choice((capture.streams, None)))


def mutated(rows: list[Row], dice: random.Random) -> list[Row]:
    """Return rows from some place to another, without some of them, and some of them changed."""
    first = dice.choice((0, dice.randrange(len(rows))))
    last = dice.choice((len(rows), dice.randrange(first, len(rows)) + 1))
    lost, changed = dice.choice((0, 0.01, 0.1)), dice.choice((0, 0.01, 0.1))
    found = []
    for row in rows[first:last]:
        if dice.random() < lost:
            continue
        if row.get("packet_type") is not None and dice.random() < changed:
            row = row | change(row, dice)
        found.append(row)
    return found


def change(row: Row, dice: random.Random) -> Row:
    """Return other values for a row."""
    if row["packet_type"] == layout.PUBLISH and dice.random() < 0.5:
        return {name: dice.choice((False, True)) for name in ("dup", "retain")}
    if row.get("packet_id") and dice.random() < 0.7:
        return {"packet_id": dice.randrange(1, 5)}
    code = dice.choice((0, 0, 16, 128, 135))
    return {"return_code": code} if row.get("return_code") is not None else {}


class Conversation:
    """What some clients and their broker do, right or wrong."""

    def __init__(self, capture: Capture, dice: random.Random) -> None:
        self.capture, self.dice = capture, dice
        self.is_new = capture.version == 5
        self.names = ["one", "two", "three"][: dice.randrange(1, 4)]
        self.topics = ["a", "a/b", "a/c", "b"]
        self.filters = ["a", "a/#", "+/b", "#", "b"]
        self.filters += ["$share/g/a/#", "$share/g/#"] * self.is_new
        self.payloads = [b"x", b"y", b"", b"z" * 40]

    def run(self) -> None:
        """Add all packets."""
        if self.dice.random() < 0.8:
            for name in self.names:
                self.capture.connect(name)
                wanted = self.dice.choice(self.filters)
                self.capture.subscribe(name, wanted, qos=self.dice.randrange(3))
        steps: list[Callable[[], Any]] = [
            *[self.publish] * 12, *[self.answer] * 3, *[self.connect] * 2, *[self.subscribe] * 2,
            self.leave, self.ping, self.unsubscribe, self.wait, self.lose,
        ]  # fmt: skip
        for _ in range(self.dice.randrange(5, 60)):
            self.dice.choice(steps)()

    def who(self) -> str:
        return self.dice.choice(self.names)

    def publish(self) -> None:
        dice, level = self.dice, self.dice.randrange(3)
        topic, values = dice.choice(self.topics), dict[str, Any]()
        if self.is_new and dice.random() < 0.4:
            some = [
                ("topic_alias", dice.randrange(1, 4)), ("response_topic", dice.choice(self.topics)),
                ("message_expiry_interval", dice.randrange(4)),
                ("correlation_data", dice.choice((b"1", b"2"))),
                ("subscription_identifier", dice.randrange(1, 4)),
            ]  # fmt: skip
            values["properties"] = tuple(dice.sample(some, dice.randrange(1, 4)))
            if "topic_alias" in dict(values["properties"]):
                topic = dice.choice((topic, ""))
        values |= {"dup": level > 0 and dice.random() < 0.15, "retain": dice.random() < 0.2}
        who, up, number = self.who(), dice.random() < 0.5, dice.randrange(1, 5)
        self.capture.publish(who, up, topic, dice.choice(self.payloads), level, number, **values)
        if dice.random() < 0.7:
            self.capture.acknowledge(who, up, level, number)

    def answer(self) -> None:
        dice, values = self.dice, dict[str, Any]()
        kind = dice.choice((layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP))
        if self.is_new and dice.random() < 0.3:
            values = {"return_code": 135 if kind in (layout.PUBACK, layout.PUBREC) else 146}
        number = dice.randrange(1, 5)
        self.capture.put(self.who(), dice.random() < 0.5, kind, packet_id=number, **values)

    def connect(self) -> None:
        dice, who, values = self.dice, self.who(), dict[str, Any]()
        if dice.random() < 0.4:
            values = {
                "will_topic": dice.choice(self.topics), "will_qos": dice.randrange(3),
                "will_payload": dice.choice(self.payloads), "will_retain": dice.random() < 0.5,
            }  # fmt: skip
        if self.is_new and dice.random() < 0.5:
            some = (
                ("session_expiry_interval", dice.choice((0, 1, 60))),
                ("receive_maximum", dice.choice((1, 2, 100))),
                ("maximum_packet_size", 40),
            )
            values["properties"] = some[: dice.randrange(1, 4)]
        if dice.random() < 0.7:
            self.capture.leave(who)
        clean = dice.random() < 0.5
        code = dice.choice((0, 0, 0, 135 if self.is_new else 5))
        present = not (clean or code) and dice.random() < 0.6
        self.capture.connect(who, clean, present, code, **values)

    def subscribe(self) -> None:
        dice = self.dice
        wanted = dice.sample(self.filters, dice.randrange(1, 3))
        options = dice.choice((0, 0, 4, 8, 16)) if self.is_new else 0
        if options == 4:
            wanted = [one for one in wanted if not one.startswith("$share")] or ["a"]
        self.capture.subscribe(self.who(), *wanted, qos=dice.randrange(3), options=options)

    def unsubscribe(self) -> None:
        self.capture.unsubscribe(self.who(), self.dice.choice(self.filters))

    def leave(self) -> None:
        capture = self.capture
        self.dice.choice((capture.disconnect, capture.end, capture.leave))(self.who())

    def ping(self) -> None:
        self.capture.ping(self.who())

    def wait(self) -> None:
        self.capture.wait(self.dice.choice((1, 5, 100)))

    def lose(self) -> None:
        self.capture.gap(self.who(), self.dice.random() < 0.5)


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
