"""Which RMP packets are messages, and what a message says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

import wireyard
from tests.formats.rmp.make import framed
from tests.layers.rmp.captured import GROUP, PORT, Sent, capture, messages, rows_of
from tests.layers.rmp.make import RING, layer, packets, plain, segment
from tests.spark.lakes import Silent, message, run, table
from tests.spark.test_facts import check
from wireyard.formats.rmp.packet import Message, encode_packet
from wireyard.lake.writer import Lake
from wireyard.layers.rmp import MessageId, QoS, Want
from wireyard.layers.rmp.chain import derive_tables, key_of
from wireyard.layers.rmp.observer import NEEDED, Observer, observe
from wireyard.pipeline.facts import rmp
from wireyard.pipeline.inputs.finding import InputOptions, list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DECODE_AS = (f"udp.port=={PORT},rmp",)
ASKER = 5001
PRODUCER = f"10.0.0.1:{ASKER}"
STREAM = f"{PRODUCER}>{GROUP}:{PORT}"


def messages_of(
    tmp_path: Path, spark: SparkSession | None, sent: Sequence[Sent], **settings: Any
) -> list[dict[str, Any]]:
    """Return the messages of a capture, in the order of stream and offset."""
    (tmp_path / "in.pcap").write_bytes(capture(sent))
    run(tmp_path / "lake", spark, tmp_path / "in.pcap", decode_as=DECODE_AS, **settings)
    found: list[dict[str, Any]] = table(tmp_path / "lake", "messages").to_pylist()
    return sorted(found, key=lambda row: (row["stream"], row["offset"]))


def said(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (one["type"], one["value"]) for name, one in row["properties"]}


def test_what_a_message_says(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "other.jmq").write_bytes(message(1))
    run(tmp_path / "lake", spark, tmp_path / "other.jmq")
    part = [segment(7, place, 3, b"part", **named) for place, named in (
        (1, {"layer": 2, "domain": 5, "client": 9, "reply_requested": True}),
        (2, {"layer": 2}),
        (3, {"layer": 2}),
    )]  # fmt: skip
    reply = plain(b"ok", reply_message_number=7, reply_source=PRODUCER, layer=9)
    foreign = b"\x10\0xyz"
    sent = [Sent(part[0]), Sent(reply, 1, 5002), Sent(part[1], 2), Sent(part[2], 2.1)]
    found = messages_of(tmp_path, spark, [*sent, Sent(foreign, 3, 5003)])
    assert [row["protocol"] for row in found] == ["jms"] + ["rmp"] * 3
    whole, answer, other = found[1:]
    assert whole == {
        **dict.fromkeys(table(tmp_path / "lake", "messages").schema.names),
        "message_key": f"{STREAM}@0",
        "protocol": "rmp",
        "sent_ns": whole["captured_ns"],
        "sent_at": whole["captured_at"],
        "captured_ns": whole["captured_ns"],
        "captured_at": whole["captured_at"],
        "producer": PRODUCER,
        "client": PRODUCER,
        "producer_client_id": "9",
        "destination": f"{GROUP}:{PORT}",
        "destination_kind": "group",
        "correlation_id": f"{PRODUCER}/7",
        "message_type": "RPC",
        "body_kind": "bytes",
        "body_size": 12,
        "body": b"partpartpart",
        "properties": whole["properties"],
        "first_seen": "sent",
        "file": str(tmp_path / "in.pcap"),
        "frame": 1,
        "file_frame": 1,
        "source": str(tmp_path / "in.pcap"),
        "stream": STREAM,
        "offset": 0,
        "length": sum(map(len, part)),
    }
    assert said(whole) == {
        "layer": ("integer", "2"),
        "domain": ("integer", "5"),
        "message_number": ("integer", "7"),
        "reply_requested": ("boolean", "true"),
        "packets": ("integer", "3"),
        "frames": ("string", "1, 3-4"),
    }
    assert (answer["correlation_id"], answer["message_type"]) == (f"{PRODUCER}/7", "layer 9")
    assert (other["body"], other["message_type"]) == (foreign, "foreign")
    assert said(other) == {"packets": ("integer", "1"), "frames": ("string", "5")}
    [minute] = [
        row
        for row in table(tmp_path / "lake", "destinations").to_pylist()
        if row["destination_kind"] == "group"
    ]
    assert (minute["destination"], minute["messages"]) == (f"{GROUP}:{PORT}", 3)
    assert minute["bytes"] == sum(map(len, (*part, reply, foreign)))


def traffic() -> list[Sent]:
    """Return what forty processes send: small and large, requests, replies, some lost or twice."""
    rng = Random(8)
    sent = []
    for port in range(ASKER, ASKER + 40):
        sender = layer(members=None)
        for n in range(40 if port == ASKER else rng.choice((1, 5, 40))):
            data = b"%d %d " % (port, n) * rng.choice((1, 1, 60))
            named: dict[str, Any] = {"qos": QoS.UNRELIABLE, "now": 0.0, "domain": n % 3}
            if port == ASKER or rng.random() < 0.1:
                sender.request(RING, data, **named, want=Want.STREAM, timeout_s=1.0)
            else:
                to = MessageId(PRODUCER, 0xFFF0 + n % 16) if rng.random() < 0.4 else None
                sender.send(RING, data, **named, reply_to=to)
        sender.flush()
        at_s = rng.random()
        for packet in packets(sender):
            at_s += 0.001
            copies = rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))
            sent += [Sent(packet, at_s + 0.0001 * copy, port) for copy in range(copies)]
    return sorted(sent, key=lambda one: one.at_s)


@pytest.mark.parametrize(("on_spark", "tasks"), [(True, 1), (True, 7), (False, 24)])
def test_the_same_messages_for_any_number_of_tasks(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    on_spark: bool,
    tasks: int,
) -> None:
    """They are divided by sender and by process; in this process a few rows at a time."""
    sent = traffic()
    by_sender: dict[Any, list[Any]] = {}
    for row in rows_of(sent):
        by_sender.setdefault(key_of(row), []).append(row)
    expected = [data for rows in by_sender.values() for data in messages(observe(rows, Observer()))]
    assert len(expected) > 300
    monkeypatch.setattr(rmp, "_MOST_PACKETS", -(-len(sent) // tasks))
    monkeypatch.setattr(rmp, "_ROWS", 3)
    divided = rmp.DIVISION._replace(most_packets=0, most_here=0)
    monkeypatch.setattr(rmp, "DIVISION", divided)
    found = messages_of(tmp_path, spark if on_spark else None, sent)
    assert sorted(row["body"] for row in found) == sorted(expected)
    assert len({row["message_key"] for row in found}) == len(found)
    path = tmp_path / "in.pcap"
    facts = derive_tables(wireyard.read(path, "rmp", list(NEEDED)).to_pylist()).tables
    replied = sum(row["reply_key"] is not None for row in facts["conversations"])
    assert replied > 20 and len(facts["conversations"]) > replied + 20
    assert len(facts["violations"]) > 20
    check(tmp_path / "lake", facts)


def test_a_message_that_was_captured_twice_is_one(tmp_path: Path, spark: SparkSession) -> None:
    packet = encode_packet([Message(data=b"a"), Message(data=b"b")])
    parts = [segment(7, place, 2, b"c") for place in (1, 2)]
    sent = [Sent(one, 0.01 * n + again) for n, one in enumerate([packet, *parts])
            for again in (0.0, 0.0001)]  # fmt: skip
    found = messages_of(tmp_path, spark, sent)
    assert [row["body"] for row in found] == [b"a", b"b", b"cc"]
    assert not len(table(tmp_path / "lake", "violations"))
    path = tmp_path / "in.pcap"
    facts = derive_tables(wireyard.read(path, "rmp", list(NEEDED)).to_pylist())
    assert facts.dropped == {"repeats": 3}


def test_a_large_message_is_one_row(tmp_path: Path, spark: SparkSession) -> None:
    sender, data = layer(60_000, members=None), Random(1).randbytes(3_000_000)
    sender.send(RING, data, qos=QoS.UNRELIABLE, now=0.0)
    sent = [Sent(packet, 0.001 * n) for n, packet in enumerate(packets(sender))]
    [row] = messages_of(tmp_path, spark, sent)
    assert (row["body"], row["body_size"]) == (data, len(data))
    assert said(row)["frames"] == ("string", f"1-{len(sent)}")


def test_a_raw_stream_has_messages(tmp_path: Path, spark: SparkSession) -> None:
    parts = [segment(7, place, 2, b"c") for place in (1, 2)]
    path = tmp_path / "in.rmp"
    path.write_bytes(framed(*parts, plain(b"x")))
    with Lake.open(str(tmp_path / "lake")) as lake:
        fill_lake(
            lake,
            list_inputs([str(path)], InputOptions("rmp/framed")).inputs,
            SparkEngine(lambda: spark),
            Silent(),
        )
    found = ds.dataset(tmp_path / "lake" / "messages").to_table().to_pylist()
    assert sorted(row["body"] for row in found) == [b"cc", b"x"]
    for row in found:
        assert row["producer"] is row["destination"] is row["destination_kind"] is None
        assert "frames" not in said(row)
