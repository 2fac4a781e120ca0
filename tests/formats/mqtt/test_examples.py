"""The recorded examples: what the clients said they published and received is what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wireyard
from tests.formats.mqtt.examples import events_of, logged
from tests.readings import frames_of
from wireyard.formats import sniff
from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import AUTH, PACKET_TYPES, PUBLISH


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a stream whose format its first bytes tell."""
    data = path.read_bytes()
    format = sniff(data)
    assert format is not None and format.label == "mqtt", path.name
    read = [
        format.read_row(data[one.start : one.stop], one.context) for one in frames_of(data, format)
    ]
    assert [error for _, error in read if error is not None] == []
    assert sum(wireyard.read(path)["length"].to_pylist()) == len(data)
    return [row for row, _ in read]


def messages_in(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return the messages that are none again, under the topics that aliases stand for."""
    topics: dict[int, str] = {}
    found = []
    for row in rows:
        if row["packet_type"] != PUBLISH or row["dup"]:
            continue
        topic, properties = row["topic"], row.get("properties") or []
        for one in properties:
            if one["name"] == "topic_alias":
                topic = topics[one["value"]] = topic or topics[one["value"]]
        names = sorted(map(repr, properties))
        found.append((topic, row["qos"], row["retain"], row["payload"], names))
    return found


def test_what_the_clients_told(mqtt_traffic: list[Path], examples: Path) -> None:
    directions = {"c2b": "published", "b2c": "received"}
    compared = dict.fromkeys(directions, 0)
    for path in mqtt_traffic:
        connection, _, direction = path.stem.rpartition("-")
        wanted = [
            (
                one["topic"],
                one["qos"],
                one["retain"],
                one["payload"],
                sorted(repr(pair) for item in one["properties"].items() for pair in logged(*item)),
            )
            for one in events_of(examples, connection, directions[direction])
        ]
        assert messages_in(rows_of(path)) == wanted, path.name
        compared[direction] += len(wanted)
    assert compared == {"c2b": 64, "b2c": 94}


def test_what_the_examples_hold(mqtt_traffic: list[Path]) -> None:
    streams = {path.stem: rows_of(path) for path in mqtt_traffic}
    rows = [row for rows in streams.values() for row in rows]
    assert {row["packet_type"] for row in rows} == PACKET_TYPES.keys() - {AUTH}
    versions = {row.get("version_in_force") for row in rows}
    assert versions == {4, 5, None}  # no answer tells 3.1.1 from the version before it
    resent = [(row["topic"], row["qos"]) for row in streams["till-again-c2b"] if row.get("dup")]
    assert resent == [("shop/sales/0", 1), ("shop/sales/1", 2)]
    assert [row.get("return_code") for row in streams["stranger-b2c"]] == [135]


def test_passwords_are_told_when_asked_for(mqtt_traffic: list[Path]) -> None:
    [login] = [path for path in mqtt_traffic if path.stem == "monitor-c2b"]
    columns = ["has_password", "password"]
    first = wireyard.read(login, columns=columns).slice(0, 1).to_pylist()
    assert first == [{"has_password": True, "password": b"made-up-for-this-recording"}]
