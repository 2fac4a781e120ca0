"""Which MQTT packets are messages, and what a message says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wireyard
from tests.formats.gpacket.make import gpacket
from tests.formats.mqtt.make import connack, connect, packet, publish, text
from tests.spark.lakes import message, rows, run, table, uncaptured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PINGREQ, PINGRESP = packet(0xC0), packet(0xD0)


def messages_of(tmp_path: Path, **streams: bytes) -> list[dict[str, Any]]:
    """Return the messages in streams, in the order of stream and offset."""
    (tmp_path / "in").mkdir()
    for name, data in streams.items():
        (tmp_path / "in" / f"{name}.mqtt").write_bytes(data)
    run(tmp_path / "lake", None, tmp_path / "in")
    found: list[dict[str, Any]] = table(tmp_path / "lake", "messages").to_pylist()
    return sorted(found, key=lambda row: (row["stream"], row["offset"]))


def alias(number: int) -> bytes:
    return b"\x23" + number.to_bytes(2, "big")


def test_which_packets_are_messages(tmp_path: Path) -> None:
    found = messages_of(
        tmp_path,
        client=connect(4, client="one") + publish(4, topic="sent") + publish(4, topic="sent"),
        broker=connack(4) + publish(4, topic="delivered"),
        broken=connect(4) + publish(4, first=0x36, topic="qos 3", packet_id=1),
    )
    assert [row["destination"] for row in found] == ["sent", "sent"]
    assert {row["producer_client_id"] for row in found} == {"one"}
    assert len({row["message_key"] for row in found}) == 2


def test_a_resend_is_no_other_message(tmp_path: Path) -> None:
    """It is one where the source does not have what it repeats; sources are apart."""
    first, again = (
        publish(4, first=first, topic="t", packet_id=7, payload=b"x") for first in (0x32, 0x3A)
    )
    alone = publish(4, first=0x3A, topic="t", packet_id=8, payload=b"x")
    found = messages_of(
        tmp_path,
        a=connect(4, client="one") + first + again,
        b=connect(4, client="one") + again + alone,
        c=connect(4, client="") + again,
    )
    assert [(Path(row["stream"]).stem, row["producer_client_id"]) for row in found] == [
        ("a", "one"),
        ("b", "one"),
        ("b", "one"),
        ("c", None),
    ]


def test_an_alias_is_the_topic_it_stands_for(tmp_path: Path) -> None:
    """One that stands for nothing makes a PUBLISH no message: that is a violation."""
    found = messages_of(
        tmp_path,
        client=connect(5, client="one")
        + publish(5, topic="first", properties=alias(1))
        + publish(5, topic="second", properties=alias(2))
        + publish(5, topic="", properties=alias(1))
        + publish(5, topic="third", properties=alias(1))
        + publish(5, topic="", properties=alias(1))
        + publish(5, topic="", properties=alias(2))
        + publish(5, topic="", properties=alias(3)),
    )
    assert [(row["producer_client_id"], row["destination"]) for row in found] == [
        ("one", "first"),
        ("one", "second"),
        ("one", "first"),
        ("one", "third"),
        ("one", "third"),
        ("one", "second"),
    ]


def test_what_a_message_says(tmp_path: Path) -> None:
    properties = b"".join(
        (
            b"\x01\x01",
            b"\x02" + (60).to_bytes(4, "big"),
            b"\x03" + text("text/plain"),
            b"\x08" + text("answers"),
            b"\x09" + text(b"\xff\x00"),
            b"\x26" + text("k") + text("first"),
            b"\x26" + text("k") + text("last"),
            b"\x26" + text("é") + text('"'),
        )
    )
    other = b"\x09" + text("id 1")
    rich, plain = messages_of(
        tmp_path,
        client=connect(5, client="one")
        + publish(5, first=0x35, topic="q", packet_id=9, payload=b"hi", properties=properties)
        + publish(5, topic="q", properties=other),
    )
    assert rich == {
        **rich,
        "protocol": "mqtt",
        "destination": "q",
        "destination_kind": "topic",
        "qos": 2,
        "retained": True,
        "body_kind": "text",
        "body_size": 2,
        "body": b"hi",
        "correlation_id": "ff00",
        "reply_to": "answers",
        "message_type": "text/plain",
        "properties": [
            ("k", {"type": "string", "value": "last"}),
            ("é", {"type": "string", "value": '"'}),
        ],
        "message_key": f"{rich['stream']}@{rich['offset']}",
    }
    assert (plain["correlation_id"], plain["body_kind"], plain["properties"]) == (
        "id 1",
        "bytes",
        None,
    )
    nulls = ("sent_ms", "captured_ns", "producer", "persistent", "priority", "transaction_id")
    assert [plain[name] for name in nulls] == [None] * len(nulls)


def test_a_direction_that_nothing_tells_is_sent(tmp_path: Path) -> None:
    found = messages_of(
        tmp_path,
        both=connect(4) + PINGRESP + publish(4, topic="both"),
        pings=connack(4) + PINGRESP + publish(4, topic="broker"),
    )
    assert [row["destination"] for row in found] == ["both"]


def test_one_lake_takes_every_format(tmp_path: Path) -> None:
    streams = {
        "a.jmq": (message(1), "jmq"),
        "b.gpacket": (gpacket(packet_type=9, payload=b"x"), "gpacket"),
        "c.mqtt": (connect(4) + publish(4, topic="t"), "mqtt"),
    }
    folder = tmp_path / "in"
    folder.mkdir()
    for name, (data, _) in streams.items():
        (folder / name).write_bytes(data)
    report = run(tmp_path / "lake", None, folder)
    assert sorted(each.format or "" for each in report.added) == ["gpacket", "jmq", "mqtt"]
    for name, (data, format) in streams.items():
        expected = wireyard.read(str(folder / name), format=format)
        assert uncaptured(table(tmp_path / "lake", f"packets_{format}")).equals(expected)
        assert expected["length"].to_pylist() and sum(expected["length"].to_pylist()) == len(data)
    assert rows(tmp_path / "lake", "messages", "protocol") == [("jms",), ("mqtt",)]
    assert rows(tmp_path / "lake", "destinations", "destination", "messages") == [
        ("orders", 1),
        ("t", 1),
    ]


def test_a_dialect_that_is_asked_for_is_read(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "middle.mqtt").write_bytes(publish(5, topic="t", properties=alias(1)))
    options = {"protocol": "mqtt/5.0"}
    frame = spark.read.format("wireyard").options(**options).load(str(tmp_path / "middle.mqtt"))
    (row,) = frame.select("topic", "version_in_force", "properties", "status").collect()
    assert (row.topic, row.version_in_force, row.status) == ("t", 5, "ok")
    assert [tuple(one) for one in row.properties] == [("topic_alias", "1")]


def test_a_stream_is_cut_where_its_version_is_known(tmp_path: Path, spark: SparkSession) -> None:
    parts = [
        connect(version, client=str(version)) + publish(version, topic="t", payload=bytes(900))
        for version in (3, 4, 5) * 20
    ]
    path = tmp_path / "long.mqtt"
    path.write_bytes(b"".join(parts))
    reader = spark.read.format("wireyard").option("protocol", "mqtt")
    frame = reader.option("maxPartitionBytes", "4000").load(str(path))
    assert frame.rdd.getNumPartitions() > 5
    found = frame.select("offset", "version_in_force", "status").orderBy("offset").toArrow()
    expected = wireyard.read(path, format="mqtt", columns=found.schema.names)
    assert found.equals(expected.cast(found.schema))
    run(tmp_path / "lake", None, path, split_bytes=3000)
    bronze = table(tmp_path / "lake", "packets_mqtt").sort_by("offset")
    assert uncaptured(bronze).equals(wireyard.read(path, format="mqtt"))
