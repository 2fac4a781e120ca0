"""What MQTT clients did, done by clients of JMQ: the same messages to the same clients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from click.testing import CliRunner

import wireyard
from tests.captures.make import both_ways, packets, pcap
from tests.conftest import ROOT
from tests.formats.mqtt.make import connack, connect, numbered, publish, subscribe
from tests.tap.sockets import run
from wireyard.answers import open_tables
from wireyard.broker.jmq.destinations import name_of
from wireyard.cli import main
from wireyard.client import Client, Message
from wireyard.replay.renaming import Renaming

TRAFFIC = ROOT / "examples/traffic.pcap"
DELIVERED = """
SELECT d.destination, coalesce(p.body, m.body) AS body, count(*) AS n
FROM deliveries d LEFT JOIN messages m USING (message_key, source)
LEFT JOIN packets_jmq p ON p.frame = d.delivered_frame AND p.source = d.source
  AND p."offset" = d."offset" AND p.stream = d.stream
WHERE d.protocol = '{}' AND d.verdict IN ('acknowledged', 'no_ack_wanted', 'delivered')
  AND coalesce(d.origin, 'publish') = 'publish' AND NOT coalesce(d.retained, false)
  AND d.destination NOT LIKE '$SYS%'
GROUP BY ALL
"""


def emigrated(path: Path, folder: Path) -> tuple[dict[str, int], Path]:
    """Replay to our broker; return what was lost, and the record."""
    with wireyard.broker(jmq=0) as broker:
        line = ["replay", str(path), "--as", "jmq", "--to", broker.jmq_url, "--speed", "max"]
        done = CliRunner().invoke(main, [*line, "--record", str(folder)])
    assert done.exit_code == 0, done.output
    (record,) = folder.iterdir()
    said = done.stdout.partition("did not survive:\n")[2].splitlines()
    lost = {text: int(number) for number, text in (one.split(None, 1) for one in said)}
    return lost, record


def delivered(path: Path, protocol: str) -> Counter[tuple[str, bytes | None]]:
    """Return how often each message was delivered, by the name that its topic has in JMS."""
    with open_tables([str(path)]) as tables:
        assert protocol == "mqtt" or tables.rows("SELECT rule, text FROM violations") == []
        rows = tables.rows(DELIVERED.format(protocol))
    named = Counter[tuple[str, bytes | None]]()
    for row in rows:
        name = name_of(row["destination"]) if protocol == "mqtt" else row["destination"]
        named[name, row["body"] or None] += row["n"]
    return named


def test_mqtt_to_jmq(tmp_path: Path) -> None:
    lost, record = emigrated(TRAFFIC, tmp_path)
    assert lost == {
        "retained values, wills and copies that JMS does not send": 10,
        "retained values, which JMS has not": 8,
        "wills": 1,
        "subscriptions to topics that begin with $": 1,
    }
    ours, theirs = delivered(record, "jms"), delivered(TRAFFIC, "mqtt")
    assert ours.total() > 80 and theirs - ours == Counter()
    assert sum((ours - theirs).values()) < 10  # an overlapping filter has a copy of its own


async def _talk(url: str) -> None:
    """Subscribe in a session that lasts and in a share, be away, come back, start clean."""
    async with Client(url, client_id="pub", will=Message("gone", b"bye")) as pub:
        async with Client(url, client_id="desk", keep_session=True) as desk:
            await desk.subscribe("plant/+/a", 1)
        async with Client(url, client_id="member") as member:
            await member.subscribe("$share/line/plant/#", 2)
            for number in range(6):
                await pub.publish("plant/1/a", b"%d" % number, qos=number % 3)
            await pub.publish("$Q/orders", b"order", qos=1)
            for _ in range(6):
                await anext(aiter(member))
            await member.unsubscribe("$share/line/plant/#")
        async with Client(url, client_id="desk", keep_session=True) as desk:
            for _ in range(4):
                await anext(aiter(desk))


def test_sessions_shares_and_queues(tmp_path: Path) -> None:
    with wireyard.broker(jmq=0, record=tmp_path / "first") as broker:
        run(_talk(broker.url))
    (path,) = (tmp_path / "first").iterdir()
    lost, record = emigrated(path, tmp_path / "again")
    assert lost == {"wills": 1}
    with open_tables([str(record)]) as tables:
        assert tables.rows("SELECT rule FROM violations") == []
        rows = tables.rows(
            "SELECT destination, verdict, count(*) AS n FROM deliveries GROUP BY ALL"
        )
        assert len(tables.rows("SELECT * FROM messages WHERE destination = 'orders'")) == 1
    # A durable subscription keeps messages of QoS 0 too.
    assert rows == [{"destination": "plant.1.a", "verdict": "acknowledged", "n": 12}]


def test_filters_behind_prefixes_are_renamed() -> None:
    renaming = Renaming(["plant/#=works/#"])
    names = ("plant/1", "$share/g/plant/+", "$queue/plant/1", "$share/plant", "$share//plant/1")
    assert [renaming.topic(name) for name in names] == [
        "works/1", "$share/g/works/+", "$queue/works/1", "$share/plant", "$share//works/1",
    ]  # fmt: skip


def test_names_of_strangers(tmp_path: Path) -> None:
    """Before 5.0 a filter may have a share name alone, and a name any characters."""
    filters = (
        "$share/g",
        "$share/",
        "$share/g/",
        "$share/a\nb/c",
        "*",
        ">",
        "x" * 1025,
        "a\x1b[31m",
    )
    wanted = b"".join(subscribe(4, (each, 1)) for each in filters)
    topics = (each for each in filters if not each.startswith("$"))
    sent = b"".join(publish(4, topic=topic) for topic in topics)
    talk = connect(4) + wanted + sent, connack(4, 0, 0) + len(filters) * numbered(4, 0x90, b"\1")
    path = tmp_path / "names.pcap"
    path.write_bytes(pcap(packets(both_ways(*talk, (40000, 1883)))))
    lost, _ = emigrated(path, tmp_path / "record")
    assert lost == {
        "messages to a topic that is no name": 1,
        "subscriptions to a topic that is no name": 4,
    }
