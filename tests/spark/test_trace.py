"""``wireyard trace``: a message's story from a lake that a run has filled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from tests.captures.make import ACK, CLIENT, SERVER, SYN, ethernet, ipv4, packets, pcap, tcp
from tests.formats.mqtt.make import connack, connect, packet, publish, subscribe
from tests.spark.lakes import run
from wireyard.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def trace(*words: object) -> Result:
    return CliRunner().invoke(
        main, ["trace", *map(str, words)], catch_exceptions=False, prog_name="wireyard"
    )


def talk(port: int, turns: list[tuple[bool, bytes]]) -> list[bytes]:
    """Return the frames of a connection: who says what, in turn."""
    frames = [
        ethernet(ipv4(tcp(port, 1883, 99, flags=SYN))),
        ethernet(
            ipv4(tcp(1883, port, 199, flags=SYN | ACK, acknowledgment=100), 6, SERVER, CLIENT)
        ),
    ]
    at = [100, 200]
    for by_client, data in turns:
        ends = (port, 1883) if by_client else (1883, port)
        hosts = (CLIENT, SERVER) if by_client else (SERVER, CLIENT)
        segment = tcp(*ends, at[not by_client], data, ACK, at[by_client])
        frames.append(ethernet(ipv4(segment, 6, *hosts)))
        at[not by_client] += len(data)
    return frames


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of one capture: a publisher, a subscriber who hears it, one who does not."""
    login = (True, connect(4, client="hears")), (False, connack(4))
    hears = talk(
        5001,
        [
            *login,
            (True, subscribe(4, ("plant/+/state", 1))),
            (False, packet(0x90, b"\0\x07\x01")),
            (False, publish(4, 0x32, "plant/7/state", packet_id=1, payload=b"open")),
            (True, packet(0x40, b"\0\x01")),
        ],
    )
    deaf = talk(
        5002,
        [
            (True, connect(4, client="deaf")),
            (False, connack(4)),
            (True, subscribe(4, ("plant/#", 1))),
            (False, packet(0x90, b"\0\x07\x01")),
        ],
    )
    sends = talk(
        5003,
        [
            (True, connect(4, client="sends")),
            (False, connack(4)),
            (True, publish(4, 0x32, "plant/7/state", packet_id=9, payload=b"open")),
            (False, packet(0x40, b"\0\x09")),
        ],
    )
    frames = [*hears[:6], *deaf, *sends, *hears[6:]]
    folder = tmp_path_factory.mktemp("trace")
    (folder / "in.pcap").write_bytes(pcap(packets(frames)))
    run(folder / "lake", spark, folder / "in.pcap")
    return folder / "lake"


def test_a_message_by_its_topic_and_by_its_key(lake: Path) -> None:
    told = trace(lake, "plant/7/state")
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    key = lines[0].removeprefix("message ")
    assert key.startswith("10.0.0.1:5003>10.0.0.2:1883@")
    assert "by 10.0.0.1:5003 (client sends)" in lines[1]
    assert lines[2] == "  to topic plant/7/state: 4 bytes of bytes, QoS 1"
    assert "frame 18 shows that the broker had it" in lines[3]
    heard = next(line for line in lines if "client hears" in line)
    assert "(client hears, plant/+/state): handed over 0.0 ms later in frame 19, ack" in heard
    assert any("(client deaf, plant/#): " in line and "handed" not in line for line in lines)
    assert trace(lake, key).stdout == told.stdout
    assert trace(lake, "plant/#").stdout == told.stdout


def test_as_json_lines(lake: Path) -> None:
    (line,) = trace(lake, "plant/7/state", "--out", "jsonl").stdout.splitlines()
    story = json.loads(line)
    assert story["message"]["producer_client_id"] == "sends"
    assert {one["consumer_client_id"] for one in story["deliveries"]} == {"hears", "deaf"}


def test_what_is_not_there(lake: Path, tmp_path: Path) -> None:
    nothing = trace(lake, "plant/8")
    assert nothing.exit_code == 2 and "no message is called 'plant/8'" in nothing.stderr
    no_lake = trace(tmp_path, "plant/8")
    assert no_lake.exit_code == 3 and "is no lake that 'wireyard run' has filled" in no_lake.stderr
