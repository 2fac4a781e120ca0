"""What we encode, the shipped Java classes read back as meant."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import wireyard
from tests.peer import read_back, read_bodies
from wireyard import jmq
from wireyard.formats.jmq.layout import FLAGS_OF_103, ITEMS_BY_NAME
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.properties import Properties, Property
from wireyard.formats.property_rows import property_text

pytestmark = pytest.mark.peer

TEXTS = ("", "a", "q0", "Grüße", "日本語", "x\U0001f600y", "T" * 300, "a b\tc")
EDGES = {
    "boolean": (True, False),
    "byte": (-128, 0, 127),
    "short": (-(2**15), 1, 2**15 - 1),
    "integer": (-(2**31), -1, 2**31 - 1),
    "long": (-(2**63), 1000, 2**63 - 1),
    "float": (0.5, -1.5, 3.0, float("inf")),
    "double": (0.1, -2.5e300, 4.9e-324, float("-inf")),
    "string": (*TEXTS, "nul \0 in it", "lone \ud800 half"),
}


def made_packets(version: int, count: int) -> list[Packet]:
    """Make packets that use everything the version has, each differently."""
    rng = random.Random(version)
    made = []
    for number in range(count):
        values: dict[str, Any] = {}
        for name, item in ITEMS_BY_NAME.items():
            if rng.random() < 0.5 and (version != 103 or name != "transaction_id"):
                top = 2**31 if item.width == 4 else 2**63
                # The classes take zero, and a count below one, for absent.
                values[name] = rng.randrange(1, top) if item.width else rng.choice(TEXTS)
        if version == 103:
            values["transaction_id"] = rng.randrange(-(2**31), 2**31)
        entries = {
            f"{kind}_{place}": Property(kind, rng.choice(EDGES[kind]))
            for place, kind in enumerate(rng.choices(list(EDGES), k=rng.randrange(8)))
        }
        wide = 2**31 if version == 103 else 2**63
        made.append(
            Packet(
                version=version,
                packet_type=rng.randrange(1, 80),
                expiration=rng.randrange(2**62),
                timestamp=rng.randrange(2**62),
                source_ip=rng.choice(
                    (
                        bytes(10) + b"\xff\xff" + rng.randbytes(4),
                        b"\xff\0\0\0" + rng.randbytes(6) + b"\xff\xff" + rng.randbytes(4),
                        b"\x20\x01" + rng.randbytes(14),
                    )
                ),
                source_port=rng.randrange(65536),
                sequence=number,
                priority=rng.randrange(10),
                bit_flags=rng.randrange(1 + FLAGS_OF_103 if version == 103 else 0x2000),
                consumer_id=rng.randrange(-wide, wide),
                properties=Properties(entries) if entries else None,
                body=rng.randbytes(rng.randrange(1, 200)) if rng.random() < 0.7 else None,
                **values,
            )
        )
    return made


NOT_READ_BACK = (
    "unknown_items", "property_offset", "properties", "timestamps", "message_id", "raw_header",
    "short_objects",
)  # fmt: skip
"""Fields that the classes do not have, or have in another form."""


@pytest.mark.parametrize("version", [103, 200, 301])
def test_java_reads_what_we_encode(version: int, tmp_path: Path) -> None:
    packets = made_packets(version, 300)

    read = read_back(b"".join(map(wireyard.encode, packets)), tmp_path)

    assert len(read) == len(packets)
    for ours, theirs in zip(packets, read, strict=True):
        assert theirs.get("errors", {}) == {}
        for name, value in asdict(ours).items():
            if name in NOT_READ_BACK:
                continue
            expected = value.hex() if isinstance(value, bytes) else value
            if expected is None and name in ITEMS_BY_NAME and ITEMS_BY_NAME[name].width:
                expected = 0
            assert theirs[name] == expected, name
        assert theirs["sys_message_id"] == ours.sys_message_id
        texts = {
            name: {"type": kind, "value": property_text(kind, value)}
            for name, (kind, value) in (ours.properties or {}).items()
        }
        assert (theirs["properties"] or {}) == texts


# --- packets from plain Python --------------------------------------------------------------


def test_java_reads_what_was_written_in_plain_python(tmp_path: Path) -> None:
    addresses = ("10.0.0.7", "10.0.0.7(80:1b:2c:3d:4e:5f)", "2001:db8:0:0:0:0:0:2a")
    packets = [
        jmq.Sender(address, 7676).stamp(
            jmq.Packet(
                packet_type="TEXT_MESSAGE",
                bit_flags="QPA",
                destination="orders",
                properties={
                    "b": True, "i": -5, "l": 2**40, "d": 0.1, "s": "日本語",
                    "short": jmq.Property("short", 7),
                },
                body="Grüße",
            ),
            now=1782907200250,
        )
        for address in addresses
    ]  # fmt: skip

    read = read_back(b"".join(map(wireyard.encode, packets)), tmp_path)

    for packet, address, theirs in zip(packets, addresses, read, strict=True):
        assert theirs["errors"] == {}
        assert theirs["sys_message_id"] == f"1-{address}-7676-1782907200250"
        assert (theirs["packet_type"], theirs["bit_flags"], theirs["destination"]) == (
            1, 0x15, "orders",
        )  # fmt: skip
        assert theirs["body"] == "Grüße".encode().hex()
        assert theirs["properties"] == {
            name: {"type": kind, "value": value}
            for name, kind, value in (
                ("b", "boolean", "true"), ("i", "integer", "-5"), ("l", "long", str(2**40)),
                ("d", "double", "0.1"), ("s", "string", "日本語"), ("short", "short", "7"),
            )
        }  # fmt: skip
        assert packet.sys_message_id == theirs["sys_message_id"]


def body_entry(rng: random.Random) -> tuple[Any, str, str]:
    """Return a value of a body, and its class and text in Java."""
    kind = rng.choice(["null", "bytes", "character", "plain", *EDGES])
    if kind == "null":
        return None, "null", "null"
    if kind == "bytes":
        data = rng.randbytes(rng.randrange(5))
        return data, "byte[]", data.hex()
    if kind == "character":
        unit = rng.choice("aZ é日")
        return Property(kind, unit), "Character", unit
    if kind == "plain":
        whole = rng.choice((0, -7, 2**31 - 1, 2**31, -(2**63)))
        value = rng.choice((whole, rng.choice(TEXTS), rng.random() < 0.5, rng.random() * 1e300))
        kind = jmq.Packet(packet_type=2, properties={"n": value}).properties["n"].type  # type: ignore[index]
        return value, kind.capitalize(), property_text(kind, value)
    value = rng.choice([one for one in EDGES[kind] if one != "lone \ud800 half"])
    return Property(kind, value), kind.capitalize(), property_text(kind, value)


def test_the_shipped_client_reads_bodies_that_were_written_in_plain_python(tmp_path: Path) -> None:
    rng = random.Random(7)
    packets, expected = [], []
    for number in range(300):
        entries = [body_entry(rng) for _ in range(rng.randrange(1, 30))]
        names = [""] * len(entries)
        kind = ("TEXT_MESSAGE", "BYTES_MESSAGE", "MAP_MESSAGE", "STREAM_MESSAGE")[number % 4]
        body: Any = rng.choice(TEXTS[1:])
        if kind == "TEXT_MESSAGE":
            entries, names = [(body, "String", body)], [""]
        elif kind == "BYTES_MESSAGE":
            body = rng.randbytes(rng.randrange(1, 50))
            entries, names = [(body, "byte[]", body.hex())], [""]
        elif kind == "MAP_MESSAGE":
            names = [f"{rng.choice(TEXTS)}{place}" for place in range(len(entries))]
            body = {name: entry[0] for name, entry in zip(names, entries, strict=True)}
        else:
            body = [entry[0] for entry in entries]
        packets.append(jmq.Packet(packet_type=kind, body=body))
        expected += [
            (number, name, entry[1], entry[2]) for name, entry in zip(names, entries, strict=True)
        ]

    read = read_bodies(b"".join(map(wireyard.encode, packets)), tmp_path)

    assert sorted(read) == sorted(expected)
    assert {kind for _, _, kind, _ in read} == {
        "null", "byte[]", "Boolean", "Byte", "Short", "Character", "Integer", "Long", "Float",
        "Double", "String",
    }  # fmt: skip
    streams = [entry for entry in read if entry[0] % 4 == 3]
    assert streams == [entry for entry in expected if entry[0] % 4 == 3]  # in their order
