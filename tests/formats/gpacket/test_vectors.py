"""Packets written by the shipped classes, and recorded between brokers, against their reading."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.formats.gpacket.make import gpacket
from tests.formats.jmq.test_vectors import check_body, is_property, java_refuses, threw
from tests.readings import assert_contiguous, assert_one_reading, events_of, table_of
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.gpacket.packet import LinkPacket, Packet, decode, encode, read_row
from wireyard.formats.property_rows import property_text

GPACKET = get_format("gpacket")
FOLDER = Path("vectors", "openmq")
HEADER = ("version", "packet_type", "size", "magic", "property_size", "timestamp", "sequence")


@cache
def vectors(shared: Path) -> list[tuple[dict[str, Any], bytes]]:
    index = json.loads((shared / FOLDER / "index.json").read_text())["gpacket"]
    return [(vector, (shared / FOLDER / vector["file"]).read_bytes()) for vector in index]


def of_class(shared: Path, conformance: str) -> list[tuple[dict[str, Any], bytes]]:
    chosen = [pair for pair in vectors(shared) if pair[0]["conformance"].startswith(conformance)]
    assert chosen, f"no vector is {conformance}"
    return chosen


def check_readback(data: bytes, expected: dict[str, Any]) -> None:
    """Assert that the row of a packet has every value that the shipped class read."""
    row, _ = read_row(data)
    for name in HEADER:
        assert row[name] == int(expected["header"][name]), name
    assert row["bit_flags"] == int(expected["header"]["bit_flags_hex"], 16)
    assert row["flags"] == expected["header"]["flags"]
    assert row["header_order"] == "shipped"
    # No section and an empty one are the same for them, null and {} for us.
    properties = row.get("properties")
    assert (properties is None) == (expected["properties_raw"] is None)
    assert {entry["name"] for entry in expected["properties"]} == set(properties or {})
    section = data[36:][: row["property_size"]].hex()
    for entry in expected["properties"]:
        assert properties is not None and is_property(properties[entry["name"]], entry, section)
    check_body({"body": row["payload"], "body_size": row["payload_size"]}, expected["payload"])


def test_the_index_is_what_it_was(shared: Path) -> None:
    for vector, data in vectors(shared):
        assert hashlib.sha256(data).hexdigest() == vector["sha256"], vector["name"]


def test_what_matches_java_has_every_value_of_its_reading(shared: Path) -> None:
    read = refused = 0
    for vector, data in of_class(shared, "match-java"):
        expected = vector["java_readback"]
        _, error = read_row(data)
        assert (error is not None) == java_refuses(expected), f"{vector['name']}: {error}"
        if error is not None:
            refused += 1
            with pytest.raises(DecodeError):
                decode(data)
            continue
        check_readback(data, expected)
        assert encode(decode(data)) == data, vector["name"]
        read += 1
    assert (read > 15) and (refused > 2)


def test_what_policy_decides_is_reported_or_read_and_keeps_its_place(shared: Path) -> None:
    good = gpacket(packet_type=33)
    for vector, data in of_class(shared, "malformed-or-lax"):
        stream = good + data + good
        table = table_of(stream, format=GPACKET, compiled=False)
        assert_contiguous(table, len(stream))
        statuses = table["status"].to_pylist()
        assert statuses[0] == statuses[-1] == "ok", f"{vector['name']}: {statuses}"
        assert table["offset"].to_pylist()[-1] == len(stream) - len(good), vector["name"]
        if threw(vector["java_readback"]["read"]) or threw(
            vector["java_readback"].get("properties")
        ):
            assert "malformed" in statuses, vector["name"]


def test_every_shorter_prefix_of_every_vector_is_an_error(shared: Path) -> None:
    for vector, data in vectors(shared):
        for size in range(len(data)):
            _, error = read_row(data[:size])
            shown = int.from_bytes(data[4:8], "big", signed=True) if size >= 12 else 0
            # A size that lies may be true of a prefix.
            assert error is not None or shown == size, (vector["name"], size)


@pytest.mark.parametrize("seed", range(3))
def test_all_vectors_as_one_stream_read_the_same_every_way(shared: Path, seed: int) -> None:
    rng = Random(seed)
    packets = [data for _, data in vectors(shared)]
    rng.shuffle(packets)
    assert_one_reading(b"".join(packets), rng, 1 << 21, GPACKET)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_stream_of_the_shipped_writer_is_read_exactly(shared: Path, compiled: bool) -> None:
    expected = json.loads((shared / "streams/summary.json").read_text())["gpacket"]
    data = (shared / "streams" / expected["file"]).read_bytes()
    assert len(data) == expected["bytes"]
    table = table_of(data, format=GPACKET, compiled=compiled)
    assert table.num_rows == expected["packets"]
    assert set(table["status"].to_pylist()) == {"ok"}
    assert (
        sum(len(entries or ()) for entries in table["properties"].to_pylist())
        == (expected["properties_total"])
    )
    checksum = total = 0
    for payload in table["payload"].to_pylist():
        checksum, total = zlib.crc32(payload or b"", checksum), total + len(payload or b"")
    assert (checksum, total) == (expected["crc32_all_bodies"], expected["body_bytes"])
    assert Counter(map(str, table["packet_type"].to_pylist())) == expected["by_type"]


def test_the_stream_of_the_shipped_writer_comes_back(shared: Path) -> None:
    data = (shared / "streams/gpacket_5000.stream").read_bytes()
    assert (
        b"".join(encode(event.packet) for event in events_of(data, [data], None, GPACKET)) == data
    )


# --- what brokers sent each other -----------------------------------------------------------


def cluster_streams(shared: Path) -> list[tuple[bytes, list[dict[str, Any]]]]:
    """Return each recorded direction with the rows of the brokers' own reading."""
    rows = defaultdict(list)
    with gzip.open(shared / "captures/openmq/cluster.packets.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            rows[row["stream"]].append(row)
    index = json.loads((shared / "streams/real/index.json").read_text())
    found = [
        ((shared / "streams/real" / each["file"]).read_bytes(), rows[each["stream"]])
        for each in index
        if each["file"].endswith(".gpacket")
    ]
    assert len(found) == 4
    return found


def check_link(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert row["format"] == "gpacket_link"
    for theirs, ours in {"destination_id": "destination_id", "flags": "bit_flags"}.items():
        assert row[ours] == expected[theirs]


def check_gpacket(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert "format" not in row
    for name in ("version", "timestamp", "bit_flags", "payload_size"):
        assert row[name] == expected[name], name
    assert row["sequence"] == int(expected["sequence"])
    assert hashlib.sha256(row["payload"] or b"").hexdigest() == expected["payload_sha256"]
    found = {
        name: {"type": kind, "value": property_text(kind, value)}
        for name, (kind, value) in (row.get("properties") or {}).items()
    }
    assert found == expected["properties"]


def check_nested(data: bytes, row: dict[str, Any], expected: dict[str, Any]) -> None:
    [found] = GPACKET.inner.nested(data, 0)
    assert found.format == "jmq"
    assert found.start == 36 + row["property_size"] + expected["nested_offset"]
    inner, error = get_format("jmq").read_row(data[found.start : found.stop], 0)
    assert error is None
    expected = expected["nested"]
    for name in ("version", "packet_type", "timestamp", "sequence", "destination", "bit_flags"):
        assert inner[name] == expected[name], name
    assert inner["source_ip"].hex() == expected["source_ip_hex"]
    assert hashlib.sha256(inner["body"] or b"").hexdigest() == expected["body_sha256"]


def test_recorded_streams_are_what_the_brokers_read(shared: Path) -> None:
    seen: Counter[str] = Counter()
    for data, rows in cluster_streams(shared):
        events = events_of(data, [data], None, GPACKET)
        assert len(events) == len(rows)
        for event, expected in zip(events, rows, strict=True):
            assert (event.status, event.offset, event.length) == (
                "ok", expected["offset"], expected["length"]
            )  # fmt: skip
            packet = data[event.offset : event.offset + event.length]
            assert encode(event.packet) == packet
            row, _ = read_row(packet)
            assert row["packet_type"] == expected["type"]
            if expected["format"] == "link":
                check_link(row, expected)
                assert isinstance(event.packet, LinkPacket)
            else:
                check_gpacket(row, expected)
                assert isinstance(event.packet, Packet)
                if "nested" in expected:
                    check_nested(packet, row, expected)
                    seen["nested"] += 1
            seen[expected["format"]] += 1
    assert seen == {"gpacket": 163, "link": 8, "nested": 50}


def test_every_recorded_payload_can_be_opened(shared: Path) -> None:
    for data, _ in cluster_streams(shared):
        for event in events_of(data, [data], None, GPACKET):
            row, _ = read_row(data[event.offset : event.offset + event.length])
            value = GPACKET.body.views["value"](row)
            assert not isinstance(value, bytes)
            assert (value is None) == (row["payload"] is None)


@pytest.mark.parametrize("seed", range(3))
def test_recorded_streams_read_the_same_every_way(shared: Path, seed: int) -> None:
    for data, _ in cluster_streams(shared):
        assert_one_reading(data, Random(seed), format=GPACKET)
