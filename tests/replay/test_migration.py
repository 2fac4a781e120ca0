"""JMQ clients of a recording as clients of MQTT, and the list of what did not survive."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import wireyard
from tests.conftest import ROOT
from tests.tap.sockets import run
from wireyard.answers import open_tables
from wireyard.broker.jmq.destinations import topic_of
from wireyard.cli import main
from wireyard.client import JmqClient

TRAFFIC = ROOT / "examples/traffic.pcap"
SENT = """
SELECT destination, destination_kind, coalesce(body, ''::BLOB) AS body, qos, persistent, properties,
  compressed, correlation_id, message_type
FROM messages m LEFT JOIN transactions t USING (transaction_id)
WHERE protocol = '{}' AND body_kind IN ('text', 'bytes', 'message')
  AND coalesce(t.outcome, 'committed') = 'committed'
"""
SURVIVED = """
SELECT subscription, outcome, count(*) AS n FROM deliveries
WHERE subscription IS NOT NULL GROUP BY ALL
"""


def migrated(path: Path, folder: Path, *arguments: str) -> tuple[Result, Counter[str], Path]:
    """Replay to a broker of our own; return what did not survive, and the record too."""
    with wireyard.broker() as broker:
        line = ["replay", str(path), "--to", broker.url, "--as", "mqtt", "--speed", "max"]
        done = CliRunner().invoke(main, [*line, "--record", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    _, _, listed = done.output.partition("did not survive:\n")
    lines = re.findall(r"^ +([\d,]+) (.*)$", listed, re.MULTILINE)
    (record,) = folder.iterdir()
    return done, Counter({what: int(count) for count, what in lines}), record


def as_text(value: str) -> str:
    """Return a property; of a number, the digits that the shortest of its types has."""
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def sent(path: Path, protocol: str) -> Counter[Any]:
    """Return the messages that MQTT can have, under the names of MQTT."""
    with open_tables([str(path)]) as tables:
        rows = tables.rows(SENT.format(protocol))
    made: Counter[Any] = Counter()
    for row in rows:
        topic, qos = row["destination"], row["qos"]
        if protocol == "jms":
            topic = "$Q/" * row["destination_kind"].endswith("queue") + topic_of(topic)
            qos = 2 * row["persistent"]
        given = (row["properties"] or {}).items()
        properties = {name: as_text(one["value"]) for name, one in given}
        others = row["correlation_id"], row["message_type"]
        body = zlib.decompress(row["body"]) if row["compressed"] else row["body"]
        made[topic, body, qos, *others, str(sorted(properties.items()))] += 1
    return made


def outcomes(path: Path) -> dict[tuple[str, str], int]:
    """Return how many deliveries of each subscription ended in each way."""
    with open_tables([str(path)]) as tables:
        assert tables.rows("SELECT rule, text FROM violations") == []
        return {(row["subscription"], row["outcome"]): row["n"] for row in tables.rows(SURVIVED)}


def test_open_mq_to_mqtt(tmp_path: Path) -> None:
    done, lost, record = migrated(TRAFFIC, tmp_path)
    assert "replays 5 connections of 5 clients and 48 messages" in done.output
    assert sent(record, "mqtt") == sent(TRAFFIC, "jms")
    assert outcomes(record) == {
        ("shop/+", "acknowledged"): 17,
        ("shop/+", "no_ack_wanted"): 26,
        ("shop/alerts", "acknowledged"): 13,  # 8 of which the selector kept away
        ("$share/jmq/$Q/shop/reminders", "acknowledged"): 2,
    }
    assert lost == {
        "transactions, whose messages are sent one by one when they are committed": 30,
        "MapMessages, which are not sent": 26,
        "StreamMessages, which are not sent": 26,
        "ObjectMessages, which are not sent": 26,
        "messages given back, or rolled back, to come again": 3,
        "messages to a queue that had no consumer, where MQTT keeps none": 3,
        "delays of a delivery: sent at once": 2,
        "queue browsers": 2,
        "logins that were refused": 1,
        "selectors, whose consumers get all messages": 1,
        "consumers of the dead message queue, or of a name that is no topic": 1,
    }


async def _talk(url: str) -> None:
    """Subscribe durably, be away, and come back; withhold an acknowledgement; roll back."""
    async with JmqClient(url, client_id="desk") as desk:
        await desk.consume("plant.>", is_topic=True, durable="all")
        await desk.consume("own", is_topic=True)
    async with JmqClient(url) as other, JmqClient(url) as till:
        jobs = [await one.consume("jobs", prefetch=1) for one in (till, other)]
        for number in range(2):
            await till.send("jobs", f"{number}")
        for consumer in jobs:
            await anext(aiter(consumer))
        orders = await till.consume("orders", acknowledges=False)
        await till.consume("orders", prefetch=1)
        for number in range(3):
            properties: dict[str, int | bytes] = {"number": number, "raw": b"\0", "ok": True}
            await till.send("plant.a", f"{number}", is_topic=True, properties=properties)
        await till.send("own", b"x", is_topic=True, priority=9)
        async with till.transaction() as transaction:
            await transaction.send("orders", b"1")
            await transaction.send("orders", b"2")
        first = await anext(aiter(orders))
        await till.acknowledge(first)
        with pytest.raises(ZeroDivisionError):
            async with till.transaction() as transaction:
                await transaction.send("orders", b"3")
                raise ZeroDivisionError
    async with JmqClient(url, client_id="desk") as desk:
        plant = await desk.consume("plant.>", is_topic=True, durable="all")
        for _ in range(3):
            await anext(aiter(plant))


def test_sessions_transactions_and_withheld_acknowledgements(tmp_path: Path) -> None:
    with wireyard.broker(jmq=0, record=tmp_path / "jmq") as broker:
        run(_talk(broker.jmq_url))
    (path,) = (tmp_path / "jmq").iterdir()
    line = ["run", str(path), "--lake", str(tmp_path / "lake"), "--engine", "process", "-q"]
    assert CliRunner().invoke(main, line).exit_code == 0
    rename = ("--rename", "$Q/#=queue/#")
    _, lost, record = migrated(tmp_path / "lake", tmp_path / "again", *rename)
    messages = Counter({(topic, body): n for (topic, body, *_), n in sent(record, "mqtt").items()})
    plant = [("plant/a", b"0"), ("plant/a", b"1"), ("plant/a", b"2")]
    orders = [("queue/orders", b"1"), ("queue/orders", b"2")]  # and not what was rolled back
    jobs = [("queue/jobs", b"0"), ("queue/jobs", b"1")]
    assert messages == Counter([*plant, ("own", b"x"), *orders, *jobs])
    assert outcomes(record) == {
        ("plant/#", "acknowledged"): 3,
        ("$share/jmq/queue/jobs", "acknowledged"): 2,
        ("$share/jmq/queue/orders", "acknowledged"): 1,
        ("$share/jmq/queue/orders", "unacknowledged"): 1,
    }
    assert lost == {
        "transactions, whose messages are sent one by one when they are committed": 2,
        "properties that are no text, number or truth value": 3,
        "messages shared by several clients, of which the broker chooses one": 2,
        "further consumers of a queue on one connection": 1,
        "priorities other than 4": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("symptoms/mqtt-healthy.pcap", "--as", "mqtt"), "no JMQ connection with a login"),
        (("traffic/shop-c2b.jmq", "--as", "mqtt"), "no JMQ connection with a login"),
    ],
)
def test_what_is_taken_is_said_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    path, *others = arguments
    line = ["replay", str(ROOT / "examples" / path), "--to", "localhost", *others]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
