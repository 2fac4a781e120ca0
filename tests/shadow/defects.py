"""Defects planted in our own broker, and what a comparison has to find of each.

``python -m tests.shadow.defects`` plants each by three seeds in a long scenario. A seed chooses the
packet, or the message, that a defect is about.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.shadow.scenario import Defect, JmsDefect, JmsScenario, Scenario, Touched
from wireyard import jmq, mqtt
from wireyard.answers import Tables, open_tables
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.packet import decode
from wireyard.formats.mqtt.control import Packet
from wireyard.shadow import differences

Changed = Callable[[Any], Sequence[Packet]]
ROUNDS = 12
"""Of messages on two topics, before which and behind which all else happens."""
_LONG = 500


def to(client: str, kind: type[Packet], **fields: object) -> Callable[[str, Packet], bool]:
    """Return whether a packet goes to a client, is of a type, and has these fields."""
    return lambda name, packet: (
        name == client
        and isinstance(packet, kind)
        and all(getattr(packet, field) == value for field, value in fields.items())
    )


def shown(packet: Any) -> Touched:
    """Return what a difference shows of a packet: instead of CONNACK the CONNECT before it."""
    if isinstance(packet, jmq.Packet):
        return Touched("TEXT_MESSAGE", packet.destination, packet.body)
    if isinstance(packet, mqtt.Publish):
        return Touched("PUBLISH", packet.topic, packet.payload)
    return Touched("SUBACK" if isinstance(packet, mqtt.SubAck) else "CONNECT")


news = partial(to, "display", mqtt.Publish, topic="shop/1")


class Planted:
    """Changes the n-th packet that a defect is about."""

    def __init__(self, is_meant: Callable[[str, Packet], bool], change: Changed, n: int) -> None:
        self._is_meant, self._change, self._left = is_meant, change, n

    def __call__(self, scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
        self._left -= self._is_meant(client, packet)
        if self._left or not self._is_meant(client, packet):
            return (packet,)
        changed = self._change(packet)
        scenario.touched.update(map(shown, (packet, *changed)))
        return changed


class Swapped:
    """Holds the n-th packet back until the next one has gone."""

    def __init__(self, n: int, qos: int = 0) -> None:
        self._is_meant, self._left = news(qos=qos), n
        self._held: tuple[Packet, ...] = ()

    def __call__(self, scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
        if not self._is_meant(client, packet):
            return (packet,)
        self._left -= 1
        if not self._left:
            self._held = (packet,)
            return ()
        held, self._held = self._held, ()
        if held:
            scenario.touched.add(shown(packet))
        return packet, *held


def changing(is_meant: Callable[[str, Packet], bool], change: Changed, least: int = 1,
             most: int = ROUNDS // 2) -> Callable[[Random], Defect]:  # fmt: skip
    """Return a maker of a defect of one packet, the n-th by chance."""
    return lambda dice: Planted(is_meant, change, dice.randint(least, most))


def to_other(**fields: object) -> Changed:
    """Return a change of fields of a packet."""
    return lambda packet: (replace(packet, **fields),)


def nothing(packet: Packet) -> Sequence[Packet]:
    """Lose a packet."""
    return ()


def late(dice: Random) -> Defect:
    """Send all messages of a topic 50 ms later."""
    topic = dice.choice(["shop/1", "shop/2"])
    is_meant = to("display", mqtt.Publish, topic=topic)

    def wait(scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
        scenario.touched.add(Touched("PUBLISH", topic))
        scenario.wait(0.05 * is_meant(client, packet))
        return (packet,)

    return wait


def late_will(dice: Random) -> Defect:
    """Send a will 1 s later."""
    is_meant = to("display", mqtt.Publish, topic=f"gone/{dice.randrange(3)}")

    def wait(scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
        if is_meant(client, packet):
            scenario.touched.add(shown(packet))
            scenario.wait(1)
        return (packet,)

    return wait


def forgetful(dice: Random) -> Defect:
    """Forget a session while its client is away."""
    news_of = Planted(news(), nothing, dice.randint(6, ROUNDS - 1))

    def forget(scenario: Scenario, client: str, packet: Packet) -> Sequence[Packet]:
        if not news_of(scenario, client, packet):
            scenario.forget("sleeper")
            scenario.touched = {Touched("CONNECT")}
        return (packet,)

    return forget


def same_priority(dice: Random) -> JmsDefect:
    """Take messages for ones of the next lower priority, which were sent before them."""
    wanted = dice.randint(1, 9)

    def plant(scenario: JmsScenario) -> None:
        router: Any = scenario.broker.core.router
        publish = router.publish

        def lowered(message: Any, *place: Any) -> Any:
            if message.priority == wanted - 1:
                scenario.touched.add(shown(decode(message.packet)))
            message.priority -= message.priority == wanted
            return publish(message, *place)

        router.publish = lowered

    return plant


def changing_again(change: Callable[[jmq.Packet], jmq.Packet]) -> Callable[[Random], JmsDefect]:
    """Return a maker of a defect of one message that is delivered again."""

    def make(dice: Random) -> JmsDefect:
        left = dice.randint(1, 3)

        def plant(scenario: JmsScenario) -> None:
            def changed(packet: jmq.Packet) -> jmq.Packet:
                nonlocal left
                left -= "R" in packet.flags
                if left or "R" not in packet.flags:
                    return packet
                scenario.touched.update(map(shown, (packet, change(packet))))
                return change(packet)

            scenario.change = changed

        return plant

    return make


def expired(dice: Random) -> JmsDefect:
    """Deliver a message that has expired."""
    wanted = b"short %d" % dice.randrange(3)

    def plant(scenario: JmsScenario) -> None:
        scenario.touched.add(Touched("TEXT_MESSAGE", "stock", wanted))
        router: Any = scenario.broker.core.router
        is_expired = router.is_expired
        router.is_expired = lambda message: (
            is_expired(message) and not message.packet.endswith(wanted)
        )

    return plant


class Lost(NamedTuple):
    """What a defect also loses: every delivery to a client of a topic, so many of some rounds."""

    client: str
    topic: str
    count: Callable[[int], int]


class Row(NamedTuple):
    """A defect, and the difference that it is: one, or with `is_each` one for each packet."""

    make: Callable[[Random], Any]
    kind: str
    breaks: str
    is_jms: bool = False
    is_each: bool = False
    also: Lost | None = None
    rule: str | None = None


DEFECTS = {
    "lose one": Row(changing(news(), nothing), "missing", "B"),
    "twice": Row(changing(news(qos=0), lambda one: (one, one)), "twice", "neither"),
    "swap two": Row(lambda dice: Swapped(dice.randint(1, ROUNDS // 2 - 1)), "order", "B",
                    rule="MQTT-4.6.0-6"),
    "clear a retained value": Row(
        changing(to("late", mqtt.Publish, retain=True), nothing, most=3), "retained", "B",
        rule="MQTT-3.3.1-9"),
    "wrong QoS": Row(changing(news(qos=1), to_other(qos=0, packet_id=None)), "QoS", "neither"),
    # Every second message is of QoS 1, and waits for the client who is away from the fourth on.
    "forget a session": Row(forgetful, "session present", "neither",
                            also=Lost("sleeper", "shop/2", lambda rounds: rounds // 2 - 2)),
    "will late by 1 s": Row(late_will, "latency", "neither"),
    "50 ms on one topic": Row(late, "latency", "neither"),
    "drop a property": Row(changing(news(), to_other(properties=())), "property", "neither"),
    "priority order": Row(same_priority, "order", "neither", is_jms=True, is_each=True),
    "lost redelivered flag": Row(
        changing_again(lambda one: replace(one, bit_flags=one.bit_flags & ~FLAGS["R"])),
        "property", "neither", is_jms=True),
    "expired delivered": Row(expired, "extra", "neither", is_jms=True),
    "another payload": Row(changing(news(), to_other(payload=b"other")), "payload", "B"),
    "another body": Row(changing_again(lambda one: replace(one, body="other")), "payload",
                        "neither", is_jms=True),
    "retained without RETAIN": Row(
        changing(to("late", mqtt.Publish), to_other(retain=False), most=3), "retained", "B",
        rule="retained_unmarked"),
    "retained above its QoS": Row(
        changing(to("late", mqtt.Publish), to_other(qos=2), most=3), "QoS", "B",
        rule="MQTT-3.8.4-8"),
    "no will": Row(
        changing(lambda name, packet: name == "display" and getattr(packet, "topic", "")
                 .startswith("gone"), nothing, most=3), "will", "B"),
    "refused": Row(
        lambda dice: Planted(to("guest", mqtt.ConnAck),
                             lambda one: (mqtt.ConnAck(return_code=135, version_in_force=5),), 1),
        "refusal", "neither"),
    "other code": Row(
        lambda dice: Planted(to("late", mqtt.SubAck), to_other(return_codes=[0]), 1),
        "code", "neither"),
}  # fmt: skip
"""The first twelve are those that are planted by three seeds."""


def record(
    row: Row | None, seed: int, path: Path, is_jms: bool, rounds: int = ROUNDS
) -> set[Touched]:
    """Record a scenario, with a defect if there is one; return the packets that it is about."""
    kind: type[Scenario | JmsScenario] = JmsScenario if is_jms else Scenario
    began = 1_700_000_000.0 + 12_345 * seed
    more = {} if row is None else {"defect": row.make(Random(seed))}
    scenario = kind(path, began=began, **more)
    scenario.run(rounds)
    return scenario.touched


def check(
    row: Row, touched: set[Touched], sound: Path, path: Path, rounds: int = ROUNDS
) -> Counter[str]:
    """Compare a scenario with the one without its defect; return how many rows it has by class."""
    with open_tables([str(sound)]) as a, open_tables([str(path)]) as b:
        found = differences(a, b)
        frames = [_packets(tables, row.is_jms) for tables in (a, b)]
    kinds = Counter(each.difference for each in found)
    expected = Counter({row.kind: len(touched) if row.is_each else 1})
    if row.also is not None:
        expected["missing"] += row.also.count(rounds)
    assert kinds == expected, kinds
    for each in found:
        assert each.a_frame is not None and each.a_source == str(sound)
        assert each.b_frame is not None and each.b_source == str(path)
        assert (each.breaks == "neither") == (each.text is None)
        assert each.text is None or each.text != each.rule
        about = {*touched, Touched("CONNECT")} if row.kind == "will" else touched
        if each.difference == row.kind:
            assert (each.breaks, each.rule) == (row.breaks, row.rule)
        else:
            assert row.also is not None and each.client == row.also.client
            about = {Touched("PUBLISH", row.also.topic)}
        for packets, frame in zip(frames, (each.a_frame, each.b_frame), strict=True):
            assert any(_is_of(packets[frame], one) for one in about), (each, packets[frame])
    return kinds


def _packets(tables: Tables, is_jms: bool) -> dict[int, Touched]:
    """Return the packets of a recording by frame: each has one of its own."""
    columns = "destination, body FROM packets_jmq" if is_jms else "topic, payload FROM packets_mqtt"
    rows = tables.rows(f"SELECT frame, packet_type_name, {columns}")
    return {frame: Touched(*values) for frame, *values in (row.values() for row in rows)}


def _is_of(packet: Touched, meant: Touched) -> bool:
    return all(wanted in (None, one) for one, wanted in zip(packet, meant, strict=True))


def main() -> int:
    """Plant each of the twelve by three seeds; print what was found."""
    failed = 0
    with TemporaryDirectory() as folder:
        sound = {is_jms: Path(folder, f"{is_jms}.pcapng") for is_jms in (False, True)}
        for is_jms, path in sound.items():
            record(None, 0, path, is_jms, _LONG)
        for name, row in list(DEFECTS.items())[:12]:
            for seed in (1, 2, 3):
                path = Path(folder, "b.pcapng")
                touched = record(row, seed, path, row.is_jms, _LONG)
                try:
                    said = str(dict(check(row, touched, sound[row.is_jms], path, _LONG)))
                except AssertionError as error:
                    said, failed = f"WRONG: {error}", failed + 1
                print(f"{name:24} seed {seed}: {said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
