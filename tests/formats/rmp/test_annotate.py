"""Every byte of a row has its meaning, or says why it has none."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import readings
from tests.formats.rmp.make import DOMAIN, MORE, SEGMENT, framed, message, random_packet
from tests.formats.rmp.subject import FORMATS
from wireyard.errors import DecodeError
from wireyard.formats.rmp.packet import decode

FRAMED = FORMATS["rmp/framed"].context
CONTEXTS = [format.context for format in FORMATS.values()]

check_cover = partial(readings.check_cover, format="rmp")


def test_golden_packet() -> None:
    data = bytes.fromhex("001a 0f43 0102 0001 0002 0005 0009 0102 0a000007 1b59") + b"two\x1b"
    data = data[:1] + bytes([len(data) - 2]) + data[2:]
    spec = "RMP messaging layer"
    assert [
        (mark.start, mark.stop, mark.field, mark.value, mark.spec)
        for mark in check_cover(data, FRAMED)
    ] == [
        (0, 2, "packet length", "24 bytes", spec),
        (
            2,
            4,
            "typing",
            "0x0f43 (replicated object layer; segmentation, domain, client, reply_to,"
            " reply_requested)",
            f"{spec}, typing information",
        ),
        (4, 6, "message_number", "258", f"{spec}, segmentation and reassembly"),
        (6, 8, "packet_number", "1", f"{spec}, segmentation and reassembly"),
        (8, 10, "packet_count", "2", f"{spec}, segmentation and reassembly"),
        (10, 12, "domain", "5", f"{spec}, domain filtering"),
        (12, 14, "client", "9", f"{spec}, multiple clients"),
        (14, 16, "reply_message_number", "258", f"{spec}, reply to"),
        (16, 22, "reply_source", "10.0.0.7:7001", f"{spec}, reply to"),
        (22, 26, "data", "4 bytes: 74776f1b", spec),
    ]


def test_the_length_stands_where_its_dialect_has_it() -> None:
    for label in ("rmp", "rmp/list-order"):
        data = message(0x0180, b"x", list_order="list" in label)
        fields = [mark.field for mark in check_cover(data, FORMATS[label].context)]
        assert (fields.index("data_size") < fields.index("reply_source")) is ("list" in label)


def test_foreign_bytes_are_one() -> None:
    [mark] = check_cover(b"\x10\0abc", 0)
    assert (mark.field, mark.value) == ("foreign data", "5 bytes: 1000616263")


@pytest.mark.parametrize(
    ("packet", "fields"),
    [
        (b"", ["packet length", "not readable"]),
        (message(DOMAIN)[:3], ["packet length", "typing", "not readable"]),
        (message(MORE, b"ab"), ["packet length", "typing", "data_size", "data", "not readable"]),
        (message(MORE, b"ab", length=3),
         ["packet length", "typing", "data_size", "not readable"]),
        (message(MORE, b"a") + message(SEGMENT, segment=(1, 2, 1)),
         ["packet length", "typing", "data_size", "data", "typing",
          "message_number", "packet_number", "packet_count", "not readable"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(packet: bytes, fields: list[str]) -> None:
    data = framed(packet)
    with pytest.raises(DecodeError) as caught:
        decode(data, FRAMED)
    found = check_cover(data, FRAMED)
    assert [mark.field for mark in found] == fields
    assert found[-1].value == str(caught.value)


def test_every_shorter_row_is_covered() -> None:
    rng = Random(3)
    for _ in range(50):
        packet = random_packet(rng)[:80]
        for size in range(len(packet) + 1):
            for context in CONTEXTS:
                check_cover(packet[:size], context)


@given(st.binary(max_size=60), st.sampled_from(CONTEXTS), st.integers(0, 3))
def test_any_bytes_are_covered(data: bytes, context: int, place: int) -> None:
    check_cover(data, context)
    check_cover(data, context | place << 39 | len(data) << 2)
