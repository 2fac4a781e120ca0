"""Columns give the rows of the scalar steps: of recordings, pieces of them, random traffic."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.layers.mqtt.make import Capture, by_columns, without_nulls
from tests.layers.mqtt.recorded import capture_of, rows_of, streams_of
from tests.layers.mqtt.test_recorded import SCENARIOS
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.derive import derive_tables
from wireyard.layers.mqtt.directions import in_order

Row = dict[str, Any]

CONVERSATIONS: Final = int(os.environ.get("WIREYARD_CONVERSATIONS", "150"))
"""Random conversations that are tried; 100,000 take some hours."""
MUTATIONS: Final = int(os.environ.get("WIREYARD_MUTATIONS", "3"))
"""Pieces of each recording that are tried."""
SEED: Final = int(os.environ.get("WIREYARD_SEED", "1"))


def same(rows: list[Row], streams: list[Row] | None) -> None:
    """Assert that both ways give the same rows, all columns."""
    expected = derive_tables(rows, streams).tables
    found = by_columns(rows, streams)
    assert without_nulls(found) == without_nulls(expected)


@pytest.mark.parametrize("name", SCENARIOS)
def test_recordings(folder: Path, name: str) -> None:
    path = capture_of(folder, name)
    same(rows_of(path), streams_of(path))
    same(rows_of(path), None)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.startswith("bulk")])
def test_pieces_of_recordings(folder: Path, name: str) -> None:
    path = capture_of(folder, name)
    dice = random.Random(f"{name} {SEED}")
    for _ in range(MUTATIONS):
        same(in_order(mutated(rows_of(path), dice)), streams_of(path))


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


@pytest.mark.parametrize("version", [3, 4, 5])
def test_random_conversations(version: int) -> None:
    dice = random.Random(SEED * 10 + version)
    for _ in range(CONVERSATIONS // 3):
        capture = Capture(version)
        Conversation(capture, dice).run()
        rows = capture.rows
        if rows and dice.random() < 0.4:
            rows = mutated(rows, dice)
        same(rows, dice.choice((capture.streams, None)))


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
