"""Retained values: from when, until when, and what ended them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.layers.mqtt.make import Capture, tables_of

Change = tuple[int, bytes, int | None]
"""Seconds since the last one, payload, and expiry interval."""


def values_of(changes: list[Change], version: int = 5) -> list[tuple[Any, ...]]:
    """Return payload, seconds until the end, and what ended it, of the values of one topic."""
    capture = Capture(version)
    capture.connect("pub")
    for wait_s, payload, expires_s in changes:
        capture.wait(wait_s)
        expiry = () if expires_s is None else (("message_expiry_interval", expires_s),)
        properties: dict[str, Any] = {"properties": expiry} if version == 5 else {}
        capture.publish("pub", True, "t", payload, 0, retain=True, **properties)
    return [
        (
            row["payload"],
            row["to_ns"] and round((row["to_ns"] - row["from_ns"]) / 1e9),
            row["ended_by"],
        )
        for row in tables_of(capture)["retained"]
    ]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_value_stands_until_the_next_one(version: int) -> None:
    changes: list[Change] = [(0, b"1", None), (10, b"2", None), (5, b"", None), (9, b"3", None)]
    assert values_of(changes, version) == [
        (b"1", 10, "replaced"), (b"2", 5, "deleted"), (b"3", None, None),
    ]  # fmt: skip


def test_a_value_expires() -> None:
    assert values_of([(0, b"1", 5), (10, b"2", 70), (9, b"3", 7)]) == [
        (b"1", 5, "expired"), (b"2", 9, "replaced"), (b"3", 7, "expired"),
    ]  # fmt: skip


def test_nothing_deletes_what_has_expired() -> None:
    assert values_of([(0, b"1", 5), (10, b"", None), (1, b"", None)]) == [(b"1", 5, "expired")]


@pytest.mark.parametrize("seed", range(8))
def test_any_changes(seed: int) -> None:
    dice = random.Random(seed)
    changes: list[Change] = [
        (dice.randrange(4), dice.choice([b"", b"1", b"2"]), dice.choice([None, 1, 6]))
        for _ in range(20)
    ]
    assert len(values_of(changes)) == sum(payload != b"" for _, payload, _ in changes)
