"""Every byte of a packet has a meaning, and no packet stops the inspector."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from tests import readings
from tests.formats.gpacket.make import gpacket, link, message, random_packet, variety
from tests.formats.gpacket.subject import SUBJECT
from tests.make import packet, section
from tests.mutations import mutate_packet

HEAD, PROPERTIES = "GPacket 3.5, packet format", "GPacket 3.5, property data"
PAYLOAD, LINK = "GPacket 3.5, payload", "cluster link protocol"

check_cover = partial(readings.check_cover, format="gpacket")


def shown(data: bytes) -> list[tuple[int, int, str, str, str]]:
    return [(a.start, a.stop, a.field, a.value, a.spec) for a in check_cover(data)]


def test_golden_packet() -> None:
    data = gpacket(packet_type=14, properties=section(("S", 4, 1)), payload=b"\1\2", bit_flags=5)
    assert shown(data) == [
        (0, 2, "version", "350", HEAD),
        (2, 4, "packet_type", "14 (G_UPDATE_DESTINATION_REPLY)", HEAD),
        (4, 8, "size", "55 bytes", HEAD),
        (8, 12, "magic", "2147476418", HEAD),
        (12, 16, "property_size", "17 bytes", HEAD),
        (16, 24, "timestamp", "1105948800001 (2005-01-17T08:00:00.001Z)", HEAD),
        (24, 32, "sequence", "1", HEAD),
        (32, 36, "bit_flags", "0x00000005 (AC)", HEAD),
        (36, 40, "property version", "1", PROPERTIES),
        (40, 44, "property count", "1", PROPERTIES),
        (44, 46, "property name length", "1 byte", PROPERTIES),
        (46, 47, "property name", "S", PROPERTIES),
        (47, 49, "property type", "4 (integer)", PROPERTIES),
        (49, 53, "S", "1", PROPERTIES),
        (53, 55, "payload", "2 bytes: 0102", PAYLOAD),
    ]


def test_the_documented_order_begins_with_the_magic() -> None:
    fields = [item.field for item in check_cover(gpacket(documented=True))]
    assert fields[:4] == ["magic", "version", "packet_type", "size"]


def test_golden_link_packet() -> None:
    assert shown(link(7, b"\xff", flags=1)) == [
        (0, 2, "version", "100", LINK),
        (2, 4, "packet_type", "7 (PING)", LINK),
        (4, 8, "size", "17 bytes", LINK),
        (8, 12, "destination_id", "0", LINK),
        (12, 16, "bit_flags", "1", LINK),
        (16, 17, "payload", "1 byte: ff", LINK),
    ]


def test_an_opened_payload_is_shown_as_json() -> None:
    last = check_cover(message(packet(), 1))[-1]
    assert '"packet": "1bffe3c2' in last.value
    assert not last.hidden
    assert check_cover(message(b"\1", 1))[-1].value == "40 bytes, not shown"


def test_an_unknown_version_shows_what_every_version_has() -> None:
    found = check_cover(gpacket(version=351))
    assert [item.field for item in found[:-1]] == ["version", "packet_type", "size", "magic"]
    assert found[-1].field == "not readable" and "351" in found[-1].value


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_every_shorter_prefix_is_covered(data: bytes) -> None:
    for size in range(min(len(data), 300)):
        check_cover(data[:size])
    check_cover(data)


def test_anything_is_covered() -> None:
    rng = Random(6)
    for _ in range(3000):
        check_cover(mutate_packet(random_packet(rng), rng, SUBJECT))
    for size in range(60):
        check_cover(rng.randbytes(size))
