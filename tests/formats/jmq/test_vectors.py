"""Packets written by the shipped classes, and deliberately broken ones, against their reading."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.readings import assert_contiguous, assert_one_reading, events_of, table_of
from wireyard.errors import DecodeError
from wireyard.formats.jmq.packet import decode, encode, read_row
from wireyard.formats.properties import Property

FOLDER = Path("vectors", "openmq")

HEADER = {
    "version": "version",
    "packet_type": "packet_type",
    "packet_size": "size",
    "expiration": "expiration",
    "timestamp": "timestamp",
    "source_port": "source_port",
    "sequence": "sequence",
    "property_offset": "property_offset",
    "property_size": "property_size",
    "priority": "priority",
    "encryption": "encryption",
    "consumer_id": "consumer_id",
    "sys_message_id": "sys_message_id",
}
"""What the reading calls a header field, and what a row calls it."""

NUMBERS = ("transaction_id", "producer_id", "delivery_time", "delivery_count")
TEXTS = {
    "destination": "destination",
    "message_id_item": "message_id",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "message_type": "message_type",
    "destination_class": "destination_class",
    "reply_to_class": "reply_to_class",
}

NOT_REFUSED = {"err_bad_version_then_good"}
"""Vectors of more than one packet; they have a test of their own."""


@cache
def vectors(shared: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared / FOLDER / "index.json").read_text())["jmq"]
    return found


def of_class(shared: Path, conformance: str) -> list[tuple[dict[str, Any], bytes]]:
    chosen = [
        (vector, (shared / FOLDER / vector["file"]).read_bytes())
        for vector in vectors(shared)
        if vector["conformance"].startswith(conformance)
    ]
    assert chosen, f"no vector is {conformance}"
    return chosen


def threw(section: object) -> bool:
    return isinstance(section, dict) and "exception" in section


def is_text(found: str | None, expected: Any) -> bool:
    """Compare text with how the index writes it: as it is, or what JSON cannot hold as UTF-16."""
    if not isinstance(expected, dict):
        return bool(found == expected)
    if found is None:
        return False
    units = found.encode("utf-16-be", "surrogatepass")
    if "utf16be_hex" in expected:
        return bool(units.hex() == expected["utf16be_hex"])
    size, digest = len(units) // 2, hashlib.sha256(units).hexdigest()
    return bool((size, digest) == (expected["utf16_units"], expected["utf16be_sha256"]))


def is_property(found: Property, expected: dict[str, Any], section: str) -> bool:
    kind = expected["type"]
    if found.type != kind.lower():
        return False
    value = found.value
    match kind:
        case "STRING":
            assert isinstance(value, str)
            return is_text(value, expected["value"])
        case "FLOAT" | "DOUBLE":
            form = ">f" if kind == "FLOAT" else ">d"
            return bool(struct.pack(form, value).hex() == expected["bits"])
        case "OBJECT":
            # The reading has the object only; its bytes are in the section, slack and all.
            assert isinstance(value, bytes)
            name = expected["java_class"]
            return (
                struct.pack(">i", len(value)).hex() + value.hex() in section
                and value.startswith(b"\xac\xed\0\5")
                and (name == "java.lang.String" or name.encode() in value)
                and bytes.fromhex(expected.get("bytes_hex", "")) in value
            )
        case "BOOLEAN":
            return value is expected["value"]
        case _:
            return type(value) is int and value == int(expected["value"])


def check_readback(data: bytes, expected: dict[str, Any]) -> None:
    """Assert that the row of a packet has every value that the shipped classes read."""
    row, _ = read_row(data)
    for theirs, ours in HEADER.items():
        value = expected["header"][theirs]
        if theirs == "encryption":
            value = int(value) & 0xFF  # theirs is a signed byte (errata 18)
        assert row[ours] == (value if theirs == "sys_message_id" else int(value)), theirs
    assert row["source_ip"].hex() == expected["header"]["source_ip_hex"]
    assert row["source_ip_text"] == expected["header"]["source_ip"]
    assert row["bit_flags"] == int(expected["header"]["bit_flags_u16_hex"], 16)
    # They print the letters in an order of their own; ours is that of the bits.
    assert sorted(row["flags"]) == sorted(expected["header"]["flags"])
    name = row["packet_type_name"] or "UNKNOWN"
    assert f"{name}({row['packet_type']})" == expected["header"]["packet_type_name"]

    if not threw(expected["variable_header"]):
        for field in NUMBERS:
            # What is not there is 0 for them and null for us.
            assert (row.get(field) or 0) == int(expected["variable_header"][field]), field
        for theirs, ours in TEXTS.items():
            assert is_text(row.get(ours), expected["variable_header"][theirs]), theirs

    if not threw(expected["properties"]):
        properties = row.get("properties")
        if expected["properties"] is None:
            assert properties is None
        else:
            assert properties is not None
            assert {entry["name"] for entry in expected["properties"]} == set(properties)
            section = data[row["property_offset"] :][: row["property_size"]].hex()
            for entry in expected["properties"]:
                assert is_property(properties[entry["name"]], entry, section), entry

    check_body(row, expected["body"])


def check_body(row: dict[str, Any], expected: dict[str, Any] | None) -> None:
    if expected is None:
        assert (row["body"], row["body_size"]) == (None, 0)
        return
    assert row["body_size"] == expected["size"] == len(row["body"])
    if "hex" in expected:
        assert row["body"].hex() == expected["hex"]
    else:
        assert hashlib.sha256(row["body"]).hexdigest() == expected["sha256"]


def java_refuses(expected: dict[str, Any]) -> bool:
    sections = ("read", "variable_header", "properties")
    return any(threw(expected.get(section)) for section in sections)


def test_the_index_is_what_it_was(shared: Path) -> None:
    assert len(list((shared / FOLDER).glob("jmq_*.bin"))) == len(vectors(shared))
    for vector in vectors(shared):
        data = (shared / FOLDER / vector["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == vector["sha256"], vector["name"]


def test_what_matches_java_has_every_value_of_its_reading(shared: Path) -> None:
    for vector, data in of_class(shared, "match-java"):
        expected = vector["java_readback"]
        if expected["read"] != "ok" or vector["name"] in NOT_REFUSED:
            continue
        try:
            check_readback(data, expected)
        except AssertionError as wrong:
            raise AssertionError(f"{vector['name']}: {wrong}") from wrong
        _, error = read_row(data)
        assert (error is not None) == java_refuses(expected), f"{vector['name']}: {error}"


def test_what_java_refuses_is_an_error_with_us(shared: Path) -> None:
    refused = 0
    for vector, data in of_class(shared, "match-java"):
        if not java_refuses(vector["java_readback"]) or vector["name"] in NOT_REFUSED:
            continue
        refused += 1
        with pytest.raises(DecodeError):
            decode(data)
    assert refused > 10


def test_where_java_is_wrong_we_read_what_was_sent(shared: Path) -> None:
    for vector, data in of_class(shared, "correct-differs-from-java"):
        row, error = read_row(data)
        assert error is None, vector["name"]
        for theirs, expected in vector["correct_variable_header"].items():
            assert is_text(row[theirs], expected), vector["name"]
        check_body(row, vector["java_readback"]["body"])


def test_what_policy_decides_is_reported_or_read_and_keeps_its_place(shared: Path) -> None:
    good = (shared / FOLDER / "jmq_001_text_basic.bin").read_bytes()
    for vector, data in of_class(shared, "malformed-or-lax"):
        row, error = read_row(data)
        assert isinstance(row, dict), vector["name"]
        if error is None:
            decode(data)
        stream = good + data + good
        table = table_of(stream, compiled=False)
        assert_contiguous(table, len(stream))
        statuses = table["status"].to_pylist()
        assert statuses[0] == statuses[-1] == "ok", f"{vector['name']}: {statuses}"
        assert table["offset"].to_pylist()[-1] == len(stream) - len(good), vector["name"]


def test_after_an_unknown_version_the_next_packet_is_read(shared: Path) -> None:
    data = (shared / FOLDER / "jmq_177_err_bad_version_then_good.bin").read_bytes()
    events = events_of(data, [data])
    assert [(event.status, event.length) for event in events] == [("malformed", 110), ("ok", 110)]
    assert events[0].error is not None and events[0].error.code == "unsupported_version"


def test_well_formed_vectors_come_back_byte_for_byte(shared: Path) -> None:
    """What the shipped writer wrote, ours writes the same, but for what errata 8 rules out."""
    same = 0
    for vector, data in of_class(shared, "match-java"):
        if vector["origin"] != "java-written" or java_refuses(vector["java_readback"]):
            continue
        assert encode(decode(data)) == data, vector["name"]
        same += 1
    assert same > 50


def test_every_shorter_prefix_of_every_vector_is_an_error(shared: Path) -> None:
    for vector in vectors(shared):
        data = (shared / FOLDER / vector["file"]).read_bytes()
        if len(data) > 700:
            continue
        for size in range(len(data)):
            _, error = read_row(data[:size])
            shown = int.from_bytes(data[8:12], "big", signed=True) if size >= 12 else 0
            # A size that lies may be true of a prefix.
            assert error is not None or shown == size, (vector["name"], size)


@pytest.mark.parametrize("seed", range(5))
def test_all_vectors_as_one_stream_read_the_same_every_way(shared: Path, seed: int) -> None:
    names = [shared / FOLDER / vector["file"] for vector in vectors(shared)]
    rng = Random(seed)
    rng.shuffle(names)
    assert_one_reading(b"".join(name.read_bytes() for name in names), rng, 1 << 21)
