"""JMQ clients again, with another broker of JMQ: the same requests, with the broker's numbers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import wireyard
from tests.conftest import ROOT
from wireyard import jmq
from wireyard.answers import open_tables
from wireyard.broker.access import Access, hash_password, read_users
from wireyard.broker.settings import Settings
from wireyard.cli import main
from wireyard.endpoints.jmq.packets import BLOCK
from wireyard.formats.jmq.packet import decode
from wireyard.formats.properties import Property
from wireyard.layers.jmq.rules import QUEUE
from wireyard.replay.jmq import Row, key_of, script_of
from wireyard.replay.script import Came, Send
from wireyard.shadow import Difference, differences

SYMPTOMS = ROOT / "examples/symptoms"
SENT = """
SELECT c.nth, p.packet_type_name, p.destination, p.flags, octet_length(p.body) AS size,
  map_keys(p.properties) AS properties
FROM packets_jmq p JOIN (
  SELECT client, server, row_number() OVER (ORDER BY opened_ns) AS nth FROM sessions
) c ON p.stream = c.client || '>' || c.server
ORDER BY c.nth, p."offset"
"""


def compared(a: Path, b: Path) -> list[Difference]:
    with open_tables([str(a)]) as left, open_tables([str(b)]) as right:
        return differences(left, right)


def sent(path: Path) -> list[dict[str, Any]]:
    """Return what each client sent, in order, but the numbers of the broker."""
    with open_tables([str(path)]) as tables:
        return tables.rows(SENT)


def with_user(name: str, password: str, folder: Path) -> Settings:
    (folder / "users").write_text(hash_password(name, password.encode()))
    return Settings(access=Access(read_users(str(folder / "users"))))


def replayed(
    path: Path, folder: Path, *arguments: str, settings: Settings | None = None
) -> tuple[Result, Path]:
    with wireyard.broker(settings, jmq=0) as broker:
        line = ["replay", str(path), "--to", broker.jmq_url, "--record", str(folder), *arguments]
        done = CliRunner().invoke(main, line)
    (record,) = folder.iterdir()
    return done, record


@pytest.mark.parametrize(
    "name", ["healthy", "given_back", "no_consumer", "refused", "selector", "unacknowledged"]
)
def test_recordings_of_open_mq(name: str, tmp_path: Path) -> None:
    path = SYMPTOMS / f"jms-{name}.pcap"
    settings = with_user("guest", "guest", tmp_path)
    done, record = replayed(path, tmp_path / "again", "--speed", "max", settings=settings)
    assert done.exit_code == 0, done.output
    assert sent(record) == sent(path) and len(sent(path)) >= 2
    assert [each for each in compared(path, record) if each.difference != "latency"] == []


def test_a_lake_with_both_protocols_and_other_names(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    line = ["run", str(ROOT / "examples/traffic.pcap"), "--lake", str(lake), "--engine", "process"]
    assert CliRunner().invoke(main, [*line, "-q"]).exit_code == 0
    rename = ("--rename", "shop.orders=other")
    done, record = replayed(lake, tmp_path / "again", "--speed", "max", *rename)
    # At this speed no message expires, so the three dead ones are not acknowledged.
    assert done.exit_code == 1 and "3 of its packets could not be sent" in done.stderr
    found = Counter(row["destination"] for row in sent(record))
    wanted = Counter(row["destination"] for row in sent(lake))
    assert wanted["shop.orders"] == found["other"] > 0 and "shop.orders" not in found


def test_another_consumer_of_a_queue_gets_the_message() -> None:
    """It has come then, and who got it acknowledges it; a message of a topic goes to each."""
    sent: dict[str, Any] = {
        "timestamp": 5,
        "source_ip": "10.0.0.9",
        "source_port": 9,
        "sequence": 1,
    }
    client, broker = "10.0.0.2:1>10.0.0.1:7676", "10.0.0.1:7676>10.0.0.2:1"

    def came(consumers: tuple[int, int], kind: int, *takers: int) -> list[jmq.Packet]:
        replies = [
            jmq.Packet(packet_type="ADD_CONSUMER_REPLY", consumer_id=request,
                       properties={"JMQConsumerID": Property("long", id), "JMQStatus": 200})
            for request, id in enumerate(consumers, 1)
        ]  # fmt: skip
        flags = "Q" if kind == QUEUE else ""
        return [*replies, *(
            jmq.Packet(packet_type="TEXT_MESSAGE", destination="q", bit_flags=flags, body="x",
                       consumer_id=taker, **sent)
            for taker in takers
        )]  # fmt: skip

    def played(kind: int, now: tuple[int, ...], *takers: int) -> tuple[list[bool], bytes]:
        asked: dict[str, Any] = {"JMQDestination": "q", "JMQDestType": kind}
        requests = [
            jmq.Packet(packet_type="ADD_CONSUMER", consumer_id=number, properties=asked)
            for number in (1, 2)
        ]
        recorded = came((1001, 1002), kind, *takers)
        whole = [
            (client, jmq.Packet(packet_type="HELLO")),
            (client, jmq.Packet(packet_type="TEXT_MESSAGE", destination="q", body="x", **sent)),
            *((client, request) for request in requests),
            *((broker, packet) for packet in recorded),
            (client, jmq.Packet(packet_type="ACKNOWLEDGE",
                                body=BLOCK.pack(1001, key_of(recorded[-1])))),
        ]  # fmt: skip
        script = script_of([Row(at, at, *row) for at, row in enumerate(whole)], {})
        assert script.talks is not None
        talk = script.talks({})(script.connections[0])
        keys = [step.what.key for step in script.steps if isinstance(step.what, Came)]
        last = script.steps[-1].what
        assert isinstance(last, Send)
        found = [talk.add(packet) for packet in came((2001, 2002), kind, *now)]
        body = decode(talk.send(last)).body
        return [key in keys for key in found], bytes(body or b"")[:8]

    assert played(QUEUE, (2002,), 1001) == ([True] * 3, (2002).to_bytes(8, "big"))
    assert played(QUEUE, (2001,), 1001) == ([True] * 3, (2001).to_bytes(8, "big"))
    assert played(2, (2002, 2001), 1001, 1002) == ([True] * 4, (2001).to_bytes(8, "big"))
    assert played(2, (2002,), 1001)[0] == [True, True, False]


def test_a_login_that_is_given(tmp_path: Path) -> None:
    logins, settings = tmp_path / "logins.json", with_user("ann", "right", tmp_path)
    path = SYMPTOMS / "jms-healthy.pcap"
    refused, _ = replayed(path, tmp_path / "first", settings=settings)
    assert refused.exit_code == 1
    assert "the broker refuses the connection: status 413" in refused.stderr
    logins.write_text(json.dumps({"": {"username": "ann", "password": "right"}}))
    logins.chmod(0o600)
    done, record = replayed(path, tmp_path / "again", "--logins", str(logins), settings=settings)
    assert done.exit_code == 0, done.output
    assert sent(record) == sent(path)
    assert b"right" not in record.read_bytes()
