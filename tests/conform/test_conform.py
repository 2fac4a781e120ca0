"""Our own broker keeps every rule; one that does not is found out, by the number of the rule."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import wireyard
from tests.tap.sockets import run, serving, tapped
from wireyard import mqtt
from wireyard.cli import main
from wireyard.conform import judging
from wireyard.conform.conversations import conversations
from wireyard.conform.packets import CASES
from wireyard.formats import get_format
from wireyard.formats.mqtt.writing import encode
from wireyard.streams.decoder import Decoder
from wireyard.tap.faults import Action, parse_rule


def conformed(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["conform", *map(str, arguments)])


def rows_of(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_our_own_broker_keeps_every_rule(tmp_path: Path) -> None:
    with wireyard.broker() as broker:
        done = conformed(broker.url, "--record", tmp_path, "--out", "jsonl")
    rows = rows_of(done)
    assert [row for row in rows if row["result"] != "ok"] == []
    assert done.exit_code == 0, done.output
    assert Counter(row["version"] for row in rows) == {"3.1.1": 172, "5.0": 220}
    assert len([*tmp_path.iterdir()]) == 1


def test_each_rule_that_a_client_can_break_has_a_conversation() -> None:
    cited = {(one.talk.version, one.number) for one in conversations()}
    assert (4, "MQTT-3.1.0-2") in cited and (5, "MQTT-3.3.4-9") in cited
    names = {one.name for one in conversations()}
    from_brokers = {case.name for case in CASES} - names
    assert all(name.startswith(("CONNACK", "SUBACK", "UNSUBACK", "client identifier of"))
               for name in from_brokers)  # fmt: skip


@pytest.mark.parametrize(
    ("action", "fault", "rule", "version", "text"),
    [
        ("drop", "PINGRESP", "MQTT-3.12.4-1", "5.0", "no PINGRESP to a"),
        ("duplicate", "PUBLISH to *", "MQTT-3.8.4-6", "3.1.1", "PUBLISH on "),
        ("drop", "PUBREL from *", "MQTT-4.3.3-10", "5.0", "no PUBCOMP to pub"),
        ("drop", "CONNECT", "*", "", "accepts no client"),
    ],
)
def test_a_broker_behind_a_fault_is_found_out(
    action: Action, fault: str, rule: str, version: str, text: str
) -> None:
    with wireyard.broker() as broker:
        done = asyncio.run(_through(broker.port, parse_rule(action, fault), rule))
    if not version:
        assert done.exit_code == 3 and text in done.stderr
        return
    assert done.exit_code == 1, done.output
    failed = [row for row in rows_of(done) if row["result"] == "failed"]
    assert {row["rule"] for row in failed} == {rule} and version in {
        row["version"] for row in failed
    }
    assert any(text in row["text"] and row["failed_rule"] == rule for row in failed), failed


async def _through(port: int, fault: Any, rule: str) -> Result:
    async with tapped(port, rules=[fault]) as tap:
        url = f"localhost:{tap.address[1]}"
        return await asyncio.to_thread(conformed, url, "--rule", rule, "--out", "jsonl")


def test_a_broker_that_takes_everything_is_found_out() -> None:
    results: list[Result] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(get_format("mqtt/3.1.1"))
        while data := await reader.read(1 << 16):
            decoder.receive_data(data)
            for event in decoder.events():
                if isinstance(event.packet, mqtt.Connect) and event.packet.version_in_force == 4:
                    writer.write(encode(mqtt.ConnAck()))

    async def test() -> None:
        async with serving(handle) as port:
            results.append(
                await asyncio.to_thread(conformed, f"localhost:{port}", "--rule", "MQTT-3.1.0-*")
            )

    run(test())
    (done,) = results
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(": 0 of 5 conversations as they have to be")
    assert [line.split()[:5] for line in lines if line.startswith("MQTT-")] == [
        ["MQTT-3.1.0-1", "3.1.1", "0", "of", "4"],
        ["MQTT-3.1.0-2", "3.1.1", "0", "of", "1"],
    ]
    assert lines.count("    connects twice: the connection is not ended") == 1


@pytest.mark.parametrize("out", ["text", "md"])
def test_the_name_of_a_broker_moves_no_cursor(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_version_of", lambda _: "a\x1b[2J\nb\u202e")
    with wireyard.broker() as broker:
        done = conformed(broker.url, "--rule", "MQTT-3.12*", "--out", out)
    assert done.exit_code == 0
    assert "a\\x1b[2J\\nb\\u202e" in done.stdout.splitlines()[0]


def test_a_table_for_a_page_and_mistakes() -> None:
    with wireyard.broker() as broker:
        names = ("--name", "one", "--name", "two", "--out", "md")
        done = conformed(broker.url, broker.url, "--rule", "MQTT-3.12*", *names)
    assert done.stdout.splitlines() == [
        "| rule | MQTT | | one | two |",
        "|---|---|---|---|---|",
        "| MQTT-3.12.4-1 | 3.1.1 | PINGREQ is answered | ok | ok |",
        "| MQTT-3.12.4-1 | 5.0 | PINGREQ is answered | ok | ok |",
    ]
    for arguments, status in (
        (("broker.example",), 2),
        (("false {port}",), 3),
        (("localhost:1",), 3),
    ):
        done = conformed(*arguments)
        assert done.exit_code == status and len(done.stderr.splitlines()) == 1
    with wireyard.broker() as broker:
        done = conformed(broker.url, "--rule", "MQTT-9*")
    assert done.exit_code == 2 and "no conversation is on a rule" in done.stderr


@pytest.mark.peer
def test_a_conversation_is_judged_alone_as_among_others() -> None:
    """mosquitto sends one copy, at the lower QoS: that no other comes takes a second to know."""
    if (program := shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")) is None:
        pytest.skip("mosquitto is not installed")
    done = conformed(f"{program} -p {{port}}", "--rule", "MQTT-3.3.5*", "--out", "jsonl")
    assert [row["failed_rule"] for row in rows_of(done)] == ["MQTT-3.3.5-1"]
