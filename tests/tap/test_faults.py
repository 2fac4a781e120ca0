"""Faults: each happens to the packets that its rule names, and to no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tap.sockets import run, serving, tapped
from wireyard import jmq, mqtt
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.formats.mqtt.writing import encode
from wireyard.tap.faults import Action, parse_rule


def publish(topic: str, payload: bytes, **fields: Any) -> bytes:
    return encode(mqtt.Publish(topic=topic, payload=payload, version_in_force=5, **fields))


CONNECT = encode(mqtt.Connect(client_id="till", version_in_force=5))
CONNACK = encode(mqtt.ConnAck(version_in_force=5))
ONE, TWO, THREE = (publish(f"a/{at}", b"payload %d" % at) for at in (1, 2, 3))
OTHER = publish("b", bytes(20_000))
ALIAS = publish("a/4", b"x", properties={"topic_alias": 1})
ALIASED = publish("", b"y", properties={"topic_alias": 1})
MANY = [ONE, TWO, OTHER, THREE, ALIAS, ALIASED]


async def exchanged(action: Action, rule: str, lines: list[str]) -> tuple[bytes, bytes, set[str]]:
    """Return what a broker and a client get if both send the same, and who saw a reset."""
    received: dict[str, bytes] = {"client": b"", "broker": b""}
    resets: set[str] = set()

    async def talk(
        name: str, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            writer.write(first)
            received[name] = await reader.readexactly(len(CONNECT if name == "broker" else CONNACK))
            writer.write(b"".join(MANY))
            writer.write_eof()
            while data := await reader.read(1 << 16):
                received[name] += data
        except (ConnectionError, asyncio.IncompleteReadError):
            resets.add(name)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk("broker", CONNACK, reader, writer)

    async with (
        serving(handle) as port,
        tapped(port, lines, rules=[parse_rule(action, rule)]) as tap,
    ):
        await talk("client", CONNECT, *await asyncio.open_connection(*tap.address))
    return received["broker"], received["client"], resets


@pytest.mark.parametrize(
    ("action", "rule", "to_broker", "to_client"),
    [
        ("drop", "PUBLISH", [], []),
        ("drop", "PUBLISH from till", [], MANY),
        ("drop", "PUBLISH to t*", MANY, []),
        ("drop", "PUBLISH to other", MANY, MANY),
        ("drop", "PUBACK", MANY, MANY),
        ("drop", "PUBLISH from till on a/+, nth 2", [ONE, OTHER, THREE, ALIAS, ALIASED], MANY),
        ("drop", "PUBLISH from till, every 3", [ONE, TWO, THREE, ALIAS], MANY),
        ("drop", "PUBLISH from till on a/4", [ONE, TWO, OTHER, THREE], MANY),
        ("drop", "PUBLISH from till on b", [ONE, TWO, THREE, ALIAS, ALIASED], MANY),
        ("duplicate", "PUBLISH from till on a/2", [ONE, TWO, *MANY[1:]], MANY),
        ("delay", "PUBLISH to till, nth 2, 20 ms", MANY, MANY),
    ],
)  # fmt: skip
def test_a_fault_is_where_its_rule_says(
    action: Action, rule: str, to_broker: list[bytes], to_client: list[bytes]
) -> None:
    async def test() -> None:
        lines: list[str] = []
        broker, client, resets = await exchanged(action, rule, lines)
        assert broker == CONNECT + b"".join(to_broker)
        assert client == CONNACK + b"".join(to_client)
        assert not resets
        changed = (to_broker != MANY) + (to_client != MANY) + (action == "delay")
        assert bool(lines) == bool(changed)
        assert all(line.startswith(f"{action}: PUBLISH ") and "till (" in line for line in lines)

    run(test())


@pytest.mark.parametrize(("rule", "passed"), [("before", MANY[:3]), ("after", MANY[:4])])
def test_a_cut_resets_both_sides_at_the_packet(rule: str, passed: list[bytes]) -> None:
    async def test() -> None:
        lines: list[str] = []
        broker, _, resets = await exchanged("cut", f"{rule} PUBLISH from till on a/3", lines)
        assert broker == CONNECT + b"".join(passed)
        assert resets == {"broker", "client"}
        assert len(lines) == 1

    run(test())


def test_a_delay_holds_what_follows_and_only_in_its_direction() -> None:
    async def test() -> None:
        order: list[str] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await reader.readexactly(len(CONNECT)) == CONNECT
            writer.write(CONNACK + ONE + TWO)
            assert await reader.readexactly(len(THREE)) == THREE
            order.append("the broker reads")

        rules = [parse_rule("delay", "PUBLISH to till on a/1, 300 ms")]
        async with serving(handle) as port, tapped(port, rules=rules) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            writer.write(CONNECT)
            assert await reader.readexactly(len(CONNACK)) == CONNACK
            writer.write(THREE)
            assert await reader.readexactly(len(ONE + TWO)) == ONE + TWO
            order.append("the client reads")
            writer.close()
        assert order == ["the broker reads", "the client reads"]

    run(test())


def test_rules_for_jmq() -> None:
    packets = [
        jmq.Packet(packet_type="TEXT_MESSAGE", destination=name, body=b"x") for name in ("q", "r")
    ]
    queue, other = map(get_format("jmq").encode, packets)

    async def test() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read())

        rules = [parse_rule("drop", "TEXT_MESSAGE on r")]
        async with serving(handle) as port, tapped(port, rules=rules) as tap:
            reader, writer = await asyncio.open_connection(*tap.address)
            writer.write(queue + other + queue)
            writer.write_eof()
            assert await reader.read() == queue + queue
            writer.close()

    run(test())


def test_what_is_no_packet_passes_with_faults() -> None:
    async def test() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read())

        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x10",
            CONNECT + b"\x30\xff\xff\xff\xff\xff" + ONE,
        ):
            async with (
                serving(handle) as port,
                tapped(port, rules=[parse_rule("drop", "PUBLISH")]) as tap,
            ):
                reader, writer = await asyncio.open_connection(*tap.address)
                writer.write(data)
                writer.write_eof()
                assert await reader.read() == data
                writer.close()

    run(test())


@pytest.mark.parametrize(
    ("action", "text", "problem"),
    [
        ("drop", "PUBLISHED", "has no packet type"),
        ("drop", "publish", "is not of the form"),
        ("drop", "PUBLISH near till", "is not of the form"),
        ("drop", "before PUBLISH", "only --cut"),
        ("drop", "PUBLISH, 50 ms", "has '50 ms'"),
        ("drop", "PUBLISH, nth 0", "has 'nth 0'"),
        ("drop", "PUBLISH, nth 1, every 2", "has 'every 2'"),
        ("delay", "PUBLISH", "has no time"),
    ],
)
def test_rules_that_are_none(action: Action, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_rule(action, text)


def test_the_rule_of_the_help() -> None:
    rule = parse_rule("cut", "before PUBACK to CLIENT, nth 3")
    assert (rule.packet_type, rule.client, rule.from_client, rule.nth) == (
        "PUBACK",
        "CLIENT",
        False,
        3,
    )
