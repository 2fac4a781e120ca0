"""Time stamps behind the message data, as open issue 2 of the specification draws them."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

import wireyard
from tests.make import item, items, packet
from tests.readings import check_cover
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.jmq.packet import Packet, decode, encode, packet_of, read_row
from wireyard.formats.jmq.reading import STAMPS

BROKER = bytes(10) + b"\xff\xff\x0a\0\0\1"
TRAILER = struct.pack(">q16sii", 1782907200250, BROKER, 7676, 1)
TRAILER += struct.pack(">q16sii", 1782907200251, BROKER, 7676, 2)
STAMPED = packet(items=items(item(12, b"\0\0\0\5")), body=b"hello" + TRAILER)


def test_stamps_are_behind_the_message() -> None:
    found = decode(STAMPED, STAMPS)
    assert found.body == b"hello"
    assert found.timestamps is not None
    assert found.timestamps[0] == (1782907200250, BROKER, 7676, 1)
    assert encode(found) == STAMPED
    row, error = read_row(STAMPED, STAMPS)
    assert error is None and (row["body"], row["body_size"]) == (b"hello", 5)
    assert row["timestamps"] == [
        {"name": "1", "value": "1782907200250 10.0.0.1 7676"},
        {"name": "2", "value": "1782907200251 10.0.0.1 7676"},
    ]
    assert encode(packet_of(row, STAMPS)) == STAMPED
    marks = check_cover(STAMPED, STAMPS)
    assert [mark.value for mark in marks if mark.field == "time stamp"] == [
        "whence 1: 1782907200250 10.0.0.1 7676", "whence 2: 1782907200251 10.0.0.1 7676",
    ]  # fmt: skip


def test_another_dialect_has_them_in_the_body() -> None:
    """Readers skip the item, because they do not know it."""
    assert decode(STAMPED).body == b"hello" + TRAILER
    assert decode(STAMPED).timestamps is None
    assert wireyard.read(STAMPED, format="jmq/timestamps")["body"].to_pylist() == [b"hello"]


def test_packets_with_stamps_can_be_built() -> None:
    made = Packet(packet_type="TEXT_MESSAGE", body="hi", timestamps=[(5, "10.0.0.1", 7676, 1)])
    data = encode(made)
    assert data.endswith(b"hi" + struct.pack(">q16sii", 5, BROKER, 7676, 1))
    assert decode(data, STAMPS) == made
    assert decode(encode(replace(decode(data, STAMPS), body=b"longer")), STAMPS).body == b"longer"
    plain = packet()
    assert decode(plain, STAMPS).timestamps is None and encode(decode(plain, STAMPS)) == plain
    with pytest.raises(EncodeError, match="timestamps"):
        Packet(packet_type=1, timestamps=[(5, "nowhere", 7676, 1)])


@pytest.mark.parametrize(
    ("size", "body"),
    [(b"\0\0\0\6", b"hello"), (b"\0\5", b"hello"), (b"\0\0\0\5", b"hello" + TRAILER[:31])],
)
def test_a_size_or_a_stamp_that_does_not_fit(size: bytes, body: bytes) -> None:
    data = packet(items=items(item(12, size)), body=body)
    with pytest.raises(DecodeError) as caught:
        decode(data, STAMPS)
    assert caught.value.code == "malformed"
    [unread] = [mark for mark in check_cover(data, STAMPS) if mark.field == "not readable"]
    assert unread.value == str(caught.value)
    assert decode(data).body == body


@pytest.mark.parametrize("value", ["", "1 nowhere 2", "1782907200250", "9e9 10.0.0.1 1"])
def test_a_row_with_another_stamp_is_refused(value: str) -> None:
    row: dict[str, Any] = {"packet_type": 1, "timestamps": [{"name": "1", "value": value}]}
    with pytest.raises(EncodeError, match="timestamps"):
        packet_of(row, STAMPS)
