"""Bodies and properties that real clients sent, against what those clients say they sent."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.test_java_golden import first_object
from wireyard import java

MAP, STREAM, OBJECT = 3, 4, 5
COMPRESSED = 0x0400


class Seen(NamedTuple):
    key: tuple[str, ...]
    """Sequence, port and timestamp."""
    type: int
    properties: bytes
    body: bytes


def packets(data: bytes) -> Iterator[Seen]:
    """Cut a stream of JMQ 3.0.1 packets by their own headers."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(">Hi", data, at + 6)
        (timestamp,) = struct.unpack_from(">q", data, at + 20)
        port, sequence, offset, length = struct.unpack_from(">4i", data, at + 44)
        (flags,) = struct.unpack_from(">H", data, at + 62)
        body = data[at + offset + length : at + size]
        yield Seen(
            (str(sequence), str(port), str(timestamp)),
            kind,
            data[at + offset : at + offset + length],
            zlib.decompress(body) if flags & COMPRESSED and body else body,
        )
        at += size


def read(seen: Seen) -> list[Any]:
    values = java.read_objects(seen.body)
    if seen.type != STREAM:
        assert len(values) == 1
        assert first_object(seen.body)[1] == len(seen.body)
    return values


def java_text(value: Any) -> dict[str, str | None]:
    """Return a value as the clients' log has it."""
    if value is None:
        return {"type": "null", "value": None}
    word, held = value
    if word == "bytes":
        return {"type": word, "value": held.hex()}
    if word in ("float", "double"):
        return {
            "type": word,
            "value": java.float_text(held) if word == "float" else java.double_text(held),
        }
    return {"type": word, "value": str(held).lower() if word == "boolean" else str(held)}


# Text of the objects sent, as their toString has it, and what they are.
OBJECTS: dict[str, Any] = {
    "{a=b}": {"a": "b"},
    "12.50": 12.5,
    "a string": "a string",
    "7": 7,
    "[x, y, 3]": ["x", "y", 3],
    "{k=1}": {"k": 1},
    "null": None,
}


def check_body(seen: Seen, event: dict[str, Any]) -> None:
    values = read(seen)
    if seen.type == MAP:
        body = {key.value: java_text(value) for key, value in values[0].items}
        assert body == event["body"]
    elif seen.type == STREAM:
        assert [java_text(value) for value in values] == event["body"]
    elif event["class"] == "java.util.Date":
        assert event["body"] == java.plain(values[0]).strftime("%a %b %d %H:%M:%S UTC %Y")
    else:
        assert java.plain(values[0]) == OBJECTS[event["body"]]


@pytest.mark.parametrize(
    "scenario", ["acks", "bodies", "bulk", "cluster", "deadletters", "pubsub", "transactions"]
)
def test_bodies_are_what_the_clients_received(shared: Path, scenario: str) -> None:
    events = {}
    with gzip.open(shared / "captures" / "openmq" / f"{scenario}.client.jsonl.gz", "rt") as log:
        for line in log:
            event = json.loads(line)
            if event["event"] == "received":
                key = re.fullmatch(r"ID:(\d+)-.*-(\d+)-(\d+)", event["jms_message_id"])
                assert key
                events[key.groups()] = event
    checked = 0
    for file in sorted((shared / "streams" / "real").glob(f"{scenario}-*.jmq")):
        for seen in packets(file.read_bytes()):
            if seen.type in (MAP, STREAM, OBJECT) and seen.body and seen.key in events:
                check_body(seen, events[seen.key])
                checked += 1
    assert checked >= 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("body_map_empty", [{}]),
        (
            "body_stream_message",
            [True, 1, 2, "c", 3, 4, 5.0, 6.0, "s", b"\1\2", None, "s", 1000, 1000],
        ),
    ],
)
def test_bodies_of_the_vectors(shared: Path, name: str, expected: list[Any]) -> None:
    (file,) = (shared / "vectors" / "openmq").glob(f"jmq_*_{name}.bin")
    (seen,) = packets(file.read_bytes())
    assert [java.plain(value) for value in read(seen)] == expected


def test_a_compressed_map(shared: Path) -> None:
    (file,) = (shared / "vectors" / "openmq").glob("jmq_*_body_compressed_map.bin")
    (seen,) = packets(file.read_bytes())
    (value,) = read(seen)
    entries = java.plain(value)
    assert len(entries) == len(value.items) >= 9


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("props_object_bytes", "bytes"),
        ("props_object_over_256", "java.util.HashMap"),
        ("props_object_throwable", "java.lang.Exception"),
    ],
)
def test_objects_among_properties(shared: Path, name: str, class_name: str) -> None:
    (file,) = (shared / "vectors" / "openmq").glob(f"jmq_*_{name}.bin")
    (seen,) = packets(file.read_bytes())
    start = seen.properties.index(b"\xac\xed\0\5")
    (length,) = struct.unpack_from(">i", seen.properties, start - 4)
    data = seen.properties[start : start + length]
    value, end = first_object(data)
    assert not any(data[end:])
    if isinstance(value, java.JavaValue):
        assert value == ("bytes", b"\x0a\0\0\1".rjust(4))
    else:
        assert value.class_name == class_name
    if isinstance(value, java.Opaque):
        assert value.data == data[:end]
    if class_name == "java.util.HashMap":
        assert java.plain(value) == {f"key{i}": i for i in range(60)}
