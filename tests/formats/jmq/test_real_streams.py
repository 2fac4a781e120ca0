"""Streams of a real broker: every field of every packet as the broker's own classes read it."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import wireyard
from tests.readings import assert_events, assert_one_reading, cut, events_of, table_of
from wireyard.formats.jmq.packet import Packet, read_row

Rows = list[dict[str, Any]]

PLAIN = (
    "version",
    "packet_type",
    "timestamp",
    "expiration",
    "source_port",
    "sequence",
    "property_offset",
    "property_size",
    "encryption",
    "priority",
    "bit_flags",
    "sys_message_id",
    "destination",
    "destination_class",
    "reply_to",
    "reply_to_class",
    "correlation_id",
    "message_type",
    "body_size",
    "offset",
    "length",
)
"""What both sides call by the same name and write the same way."""
NUMBERS = ("consumer_id", "transaction_id", "producer_id", "delivery_time", "delivery_count")
PACKETS = 7560


@cache
def index(shared: Path) -> Rows:
    entries: Rows = json.loads((shared / "streams" / "real" / "index.json").read_text())
    return [entry for entry in entries if entry["format"] == "jmq"]


@cache
def broker_rows(shared: Path, capture: str) -> dict[str, Rows]:
    """Return the broker's reading of a capture, by stream."""
    path = shared / "captures" / "openmq" / f"{Path(capture).stem}.packets.jsonl.gz"
    streams: dict[str, Rows] = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if row["format"] == "jmq":
                streams.setdefault(row["stream"], []).append(row)
    return streams


def stream_bytes(shared: Path, entry: dict[str, Any]) -> bytes:
    data: bytes = (shared / "streams" / "real" / entry["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    return data


def same_property(found: tuple[str, Any], wanted: dict[str, Any], *, as_text: bool) -> bool:
    """Compare a property with the broker's text of it; floats by value, for texts differ."""
    kind, value = found
    if kind != wanted["type"]:
        return False
    if kind in ("float", "double"):
        form = ">f" if kind == "float" else ">d"
        mine, theirs = float(value), float(wanted["value"])
        return struct.pack(form, mine) == struct.pack(form, theirs)
    if kind == "boolean" and not as_text:
        return value is {"true": True, "false": False}[wanted["value"]]
    return bool(str(value) == wanted["value"])


def assert_row(row: dict[str, Any], wanted: dict[str, Any], *, as_text: bool) -> None:
    """Assert that a row has every value of the broker's."""
    for name in PLAIN:
        assert row.get(name) == wanted[name], name
    for name in NUMBERS:
        assert (row.get(name) or 0) == int(wanted[name]), name
    assert row["source_ip"].hex() == wanted["source_ip_hex"]
    # What the capture calls source_ip is the whole id; the address stands in its middle.
    assert f"-{row['source_ip_text']}-" in wanted["sys_message_id"]
    assert f"{row['packet_type_name']}({row['packet_type']})" == wanted["packet_type_name"]
    chosen = row.get("message_id")
    assert (chosen or row["sys_message_id"]) == wanted["message_id"]

    body = row["body"] or b""
    assert hashlib.sha256(body).hexdigest() == wanted["body_sha256"]
    assert len(body) == wanted["body_size"]

    properties = row.get("properties")
    if wanted["properties"] is None:
        assert properties is None
    else:
        assert properties is not None and set(properties) == set(wanted["properties"])
        for name, expected in wanted["properties"].items():
            assert same_property(properties[name], expected, as_text=as_text), name


def each_stream(shared: Path) -> list[tuple[str, bytes, Rows]]:
    found = []
    for entry in index(shared):
        rows = broker_rows(shared, entry["capture"])[entry["stream"]]
        assert len(rows) == entry["packets"]
        found.append((entry["file"], stream_bytes(shared, entry), rows))
    assert sum(len(rows) for _, _, rows in found) == PACKETS
    return found


def test_scalar_rows_are_the_brokers(shared: Path) -> None:
    for file, data, wanted in each_stream(shared):
        at = 0
        for expected in wanted:
            row, error = read_row(data[at : at + expected["length"]])
            assert error is None
            row |= {"offset": at, "length": row["size"]}
            try:
                assert_row(row, expected, as_text=False)
            except AssertionError as wrong:
                raise AssertionError(f"{file}, offset {at}: {wrong}") from wrong
            at += row["size"]
        assert at == len(data)


@pytest.mark.parametrize("compiled", [False, True])
def test_columns_are_the_brokers(shared: Path, compiled: bool) -> None:
    for file, data, wanted in each_stream(shared):
        table = table_of(data, compiled=compiled)
        assert table["status"].to_pylist() == ["ok"] * len(wanted)
        for row, expected in zip(table.to_pylist(maps_as_pydicts="strict"), wanted, strict=True):
            if row["properties"] is not None:
                row["properties"] = {
                    name: (entry["type"], entry["value"])
                    for name, entry in row["properties"].items()
                }
            try:
                assert_row(row, expected, as_text=True)
            except AssertionError as wrong:
                raise AssertionError(f"{file}, offset {row['offset']}: {wrong}") from wrong


def test_packets_are_the_brokers_and_come_back_byte_for_byte(shared: Path) -> None:
    for file, data, wanted in each_stream(shared):
        found: list[Packet] = list(wireyard.packets(data, "jmq"))
        assert len(found) == len(wanted)
        for packet, expected in zip(found, wanted, strict=True):
            encoded = wireyard.encode(packet)
            at = expected["offset"]
            assert encoded == data[at : at + expected["length"]], f"{file}, offset {at}"
            names = ("priority", "bit_flags", "destination", "sys_message_id", "timestamp")
            assert [getattr(packet, name) for name in names] == [expected[name] for name in names]


@pytest.mark.parametrize("most", [1, 60, 1500, 65536])
def test_any_chunks_give_the_same_packets(shared: Path, most: int) -> None:
    rng = Random(most)
    for _, data, _ in each_stream(shared):
        if most == 1:
            data = data[:15_000]  # an unfinished packet at the end, too
        table = table_of(data, compiled=False)
        assert_events(events_of(data, cut(data, rng, most)), table)


def test_every_reading_agrees(shared: Path) -> None:
    rng = Random(5)
    for _, data, _ in each_stream(shared):
        assert_one_reading(data, rng)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_stream_of_5000_is_exact_against_its_summary(shared: Path, compiled: bool) -> None:
    folder = shared / "streams"
    wanted = json.loads((folder / "summary.json").read_text())["jmq"]
    data = (folder / wanted["file"]).read_bytes()
    names = ["length", "packet_type", "properties", "body"]
    table = table_of(data, compiled=compiled, columns=names)
    lengths, types, properties, bodies = (table[name].to_pylist() for name in names)
    assert len(lengths) == wanted["packets"]
    assert sum(lengths) == wanted["bytes"] == len(data)
    assert sum(len(entries or ()) for entries in properties) == wanted["properties_total"]
    assert sum(len(body or b"") for body in bodies) == wanted["body_bytes"]
    assert zlib.crc32(b"".join(body or b"" for body in bodies)) == wanted["crc32_all_bodies"]
    by_type = {str(kind): count for kind, count in Counter(types).items()}
    assert by_type == wanted["by_type"]


def test_the_stream_of_5000_comes_back_byte_for_byte(shared: Path) -> None:
    path = shared / "streams" / "jmq_5000.stream"
    assert b"".join(map(wireyard.encode, wireyard.packets(path))) == path.read_bytes()
    assert_one_reading(path.read_bytes(), Random(6))
