"""The facts of a lake are what the layers say of the same packets, whatever tasks they went to."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import wireyard
from tests.captures.make import Packet, both_ways, pcap
from tests.captures.test_directed import CONNECT, PUBLISH
from tests.formats.mqtt.make import publish as mqtt_publish
from tests.layers.jmq.judge import derive
from tests.make import item, items, long_item, packet
from tests.reference.mqtt import derive as derive_mqtt
from tests.reference.order import in_order
from tests.spark.lakes import divide, message, run, table
from wireyard.captures.read import read_capture
from wireyard.cli import main
from wireyard.lake.parts import read_batches, read_footer_table
from wireyard.lake.writer import Lake
from wireyard.layers.facts import PacketFile
from wireyard.layers.jmq.tracking import Ends
from wireyard.layers.mqtt.evidence import NEEDED as EVIDENCE_NEEDED
from wireyard.layers.mqtt.evidence import SCHEMA, StreamEvidence
from wireyard.layers.mqtt.facts import EVIDENCE
from wireyard.layers.mqtt.packets import KnownStream
from wireyard.layers.tables import TABLES
from wireyard.pipeline.facts import jmq as jmq_facts
from wireyard.pipeline.facts import mqtt as mqtt_facts
from wireyard.pipeline.facts import rmp as rmp_facts
from wireyard.pipeline.facts import tasks as fact_tasks
from wireyard.pipeline.facts.stage import write_facts
from wireyard.pipeline.running import Runner
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def ends_of(streams: Iterable[Row]) -> Ends:
    """Return the ends of streams, from rows of their table."""
    return {
        (row["source"], row["stream"]): (row["ended_ns"], row["ended_frame"])
        for row in streams
        if row["ended"]
    }


def streams_of(path: Path) -> list[Row]:
    """Return what a capture tells of its streams."""
    rows = []
    for one in read_capture(path).streams:
        frame, time_ns = one.closed or (None, None)
        begin = {"opened": one.opened, "begun": one.begun}
        end = {"ended": one.ended, "ended_frame": frame, "ended_ns": time_ns}
        rows.append({"source": str(path), "stream": one.name, **begin, **end})
    return rows


def packets_of(path: Path, *formats: str) -> list[Row]:
    rows: list[Row] = []
    for format in formats:
        rows += wireyard.read(str(path), format).to_pylist(maps_as_pydicts="lossy")
    return [dict(row) for row in in_order(rows)]


def same(found: list[Row], expected: Iterable[Mapping[str, Any]], name: str) -> None:
    """Assert that a table holds rows of a layer, in any order."""
    columns = [column.name for column in TABLES[name]]

    def plain(rows: Iterable[Mapping[str, Any]]) -> list[str]:
        return sorted(repr([row.get(column) for column in columns]) for row in rows)

    assert plain(found) == plain(expected)


OF_CHAINS = [
    name for name in TABLES if name not in ("messages", "destinations", "latencies", "producers")
]
"""The tables that the references have."""


def check(lake: Path, expected: Mapping[str, list[Row]]) -> None:
    for name in OF_CHAINS:
        rows = table(lake, name).to_pylist()
        same(rows, expected.get(name, []), name)
        for row in rows:
            for column in TABLES[name]:
                if column.unit and "since 1970" in column.unit:
                    at = row[column.name.removesuffix("_ns") + "_at"]
                    time_ns = row[column.name]
                    assert (at is None) == (time_ns is None)
                    assert at is None or round(at.timestamp() * 1e6) == time_ns // 1000


def test_recorded_captures(shared: Path, tmp_path: Path) -> None:
    recorded = shared / "captures"
    if not recorded.is_dir():
        pytest.skip("no captures in the shared folder")
    folder = tmp_path / "in"
    folder.mkdir()
    jms = ("transactions", "requests", "drops", "auth", "cluster")
    mqtt = ("sessions-v5", "wills-v4", "properties-v5")
    for name in jms:
        shutil.copy(recorded / "openmq" / f"{name}.pcap", folder)
    for name in mqtt:
        shutil.copy(recorded / "mosquitto" / f"{name}.pcap", folder)
    # The user of a JMS login stands in one body with the password.
    run(tmp_path / "lake", None, folder, split_bytes=20_000, secrets=True)
    expected: dict[str, list[Row]] = {}
    for name in jms:
        path = folder / f"{name}.pcap"
        ended = ends_of(streams_of(path))
        for one, rows in derive(packets_of(path, "jmq", "gpacket"), ended).items():
            expected.setdefault(one, []).extend(rows)
    for name in mqtt:
        path = folder / f"{name}.pcap"
        tables = derive_mqtt(packets_of(path, "mqtt"), streams_of(path))
        for one, rows in tables.items():
            expected.setdefault(one, []).extend(rows)
    assert len(expected["deliveries"]) > 300 and len(expected["sessions"]) > 60
    check(tmp_path / "lake", expected)


def test_captures_of_several_points_are_joined(
    spark: SparkSession, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divide(monkeypatch)
    paths = [examples / "points" / f"{name}.pcap" for name in ("client", "broker")]
    run(tmp_path / "lake", spark, *paths)
    ended = ends_of(row for path in paths for row in streams_of(path))
    expected = derive(chain.from_iterable(packets_of(path, "jmq") for path in paths), ended)
    assert {row["unknown"] for row in expected["hops"]} == {"first", None}
    assert len({row["clock_ahead_ns"] for row in expected["hops"]}) > 2
    found = table(tmp_path / "lake", "hops").to_pylist()
    same(found, expected["hops"], "hops")
    packets = spark.read.parquet(str(tmp_path / "lake" / "packets_jmq"))
    number = "crc32(encode(concat(if(bit_flags & 1 = 1, 'Q:', 'T:'), destination), 'UTF-8'))"
    agreed = packets.selectExpr(f"destination_hash <=> {number} as same").groupBy("same").count()
    assert [row["same"] for row in agreed.collect()] == [True]
    key = found[0]["message_key"]
    words = ["trace", str(tmp_path / "lake"), key, "--hops"]
    text = CliRunner().invoke(main, words, catch_exceptions=False).stdout
    shown = [" ".join(each.split()) for each in text.split("\n  hop ")[1:]]
    assert len(shown) == sum(row["message_key"] == key for row in found) >= 4
    assert shown[0].startswith("1 sent, 10.77.1.1:") and " of client.pcap" in shown[0]
    assert " ms (± 20." in shown[1] and " ms) after hop 1 in frame " in shown[1]


def test_bare_streams_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jmq").write_bytes(packet(packet_type=10) + message(1) + message(2))
    run(tmp_path / "lake", None, tmp_path / "a.jmq")
    check(tmp_path / "lake", derive(packets_of(tmp_path / "a.jmq", "jmq")))
    (tmp_path / "b.mqtt").write_bytes(CONNECT + PUBLISH)
    run(tmp_path / "lake", None, tmp_path / "b.mqtt")
    sessions = table(tmp_path / "lake", "sessions").to_pylist()
    assert [row["client_id"] for row in sessions if row["protocol"] == "mqtt"] == ["cd"]
    (tmp_path / "empty.jmq").write_bytes(b"")
    run(tmp_path / "other", None, tmp_path / "empty.jmq")
    check(tmp_path / "other", {})


def test_a_session_has_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(frame) for frame in both_ways(CONNECT, b"\x20\x02\x00\x00")]))
    run(tmp_path / "lake", None, path)
    (session,) = table(tmp_path / "lake", "sessions").to_pylist()
    assert (session["client"], session["server"]) == ("10.0.0.1:40000", "10.0.0.2:1999")
    assert session["status"] == 0


def test_a_capture_that_begins_in_the_middle(tmp_path: Path) -> None:
    """The table of messages and the facts take the same streams for a client's."""
    sent, received = (mqtt_publish(4, topic=topic, payload=b"x" * 30) for topic in ("up", "down"))
    clear = both_ways(PUBLISH + b"\xc0\x00", PUBLISH, (5001, 5000))
    known = both_ways(sent, received, (5002, 5000))
    opened = both_ways(sent, received, (5003, 5004))
    unknown = both_ways(sent, received, (5005, 5006))
    frames = [*clear[2:], *known[2:], *opened, *unknown[2:]]
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(frame) for frame in frames]))
    run(tmp_path / "lake", None, path, decode_as=("tcp.port==5000,mqtt", "tcp.port==5004,mqtt",
                                                   "tcp.port==5006,mqtt"))  # fmt: skip
    expected = derive_mqtt(packets_of_rule(path), streams_of(path))
    check(tmp_path / "lake", expected)
    assert {row["server"].partition(":")[2] for row in expected["sessions"]} == {"5000", "5004"}
    messages = table(tmp_path / "lake", "messages").to_pylist()
    by_producer = Counter((row["producer"], row["first_seen"]) for row in messages)
    assert by_producer == {
        ("10.0.0.1:5001", "sent"): 1, ("10.0.0.1:5002", "sent"): 1, ("10.0.0.1:5003", "sent"): 1,
        (None, None): 2,
    }  # fmt: skip


def packets_of_rule(path: Path) -> list[Row]:
    """Return the packets of a capture whose streams are all of MQTT."""
    rules = [f"tcp.port=={port},mqtt" for port in (5000, 5004, 5006)]
    rows = wireyard.read(str(path), "mqtt", decode_as=rules).to_pylist(maps_as_pydicts="lossy")
    return [dict(row) for row in in_order(rows)]


def staged(lake: Path, spark: SparkSession | None) -> tuple[dict[str, list[Row]], Sequence[str]]:
    """Run the stage anew over the packets of a lake; return its tables, and what was said."""
    with Lake.open(str(lake)) as opened:
        files = {name: opened.paths(f"packets_{name}") for name in ("jmq", "gpacket", "mqtt")}
        engine = None if spark is None else SparkEngine(lambda: spark)
        runner, inputs = Runner(engine, opened), list(opened.inputs.values())
        captured = opened.paths("streams"), opened.paths("files")
        found = write_facts(runner, opened, files, *captured, inputs)
        tables = {
            name: [
                row
                for file in found.files.get(name, ())
                for row in pq.read_table(opened.staged(name, file)).to_pylist()
            ]
            for name in TABLES
        }
    return tables, found.notes


@pytest.fixture(scope="module")
def filled(
    spark: SparkSession, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[Row]]]:
    """Return a lake of several inputs of all layers, and its facts."""
    recorded = shared / "captures"
    if not recorded.is_dir():
        pytest.skip("no captures in the shared folder")
    folder = tmp_path_factory.mktemp("in")
    for name in ("openmq/transactions", "openmq/cluster", "mosquitto/sessions-v5"):
        shutil.copy(recorded / f"{name}.pcap", folder)
    (folder / "bare.jmq").write_bytes(packet(packet_type=10) + message(1) + message(2))
    lake = tmp_path_factory.mktemp("lake")
    run(lake, spark, folder)
    return lake, {name: table(lake, name).to_pylist() for name in TABLES}


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "on_spark"), [(1, False), (2, False), (7, True), (20, False)])
def test_facts_are_the_same_whatever_tasks_they_come_from(
    spark: SparkSession,
    filled: tuple[Path, dict[str, list[Row]]],
    tasks: int,
    on_spark: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tasks are the same functions on both engines; a task of Spark takes longer to start."""
    lake, expected = filled
    for module in (jmq_facts, mqtt_facts, rmp_facts):
        divided = module.DIVISION._replace(most_packets=0, most_here=0)
        monkeypatch.setattr(module, "DIVISION", divided)
    # Of one task all that there is, of several some clients and topics.
    monkeypatch.setattr(mqtt_facts, "MOST_PACKETS", 600 // tasks)
    monkeypatch.setattr(jmq_facts, "PARTITION_PACKETS", 1800 // tasks)
    found, notes = staged(lake, spark if on_spark else None)
    assert not notes and len(found["deliveries"]) > 100 and len(found["violations"]) > 0
    for name, rows in expected.items():
        assert sorted(map(repr, found[name])) == sorted(map(repr, rows)), name


def test_no_task_has_most_of_the_packets() -> None:
    """But for a client that has most of them itself: its streams stay together."""
    packets = {"a": 500, "b": 200, "c": 90, "d": 80, "e": 70, "f": 60}
    rows, streams = [], []
    for client, count in packets.items():
        for place, name in enumerate((f"{client}>broker", f"broker>{client}")):
            rows += [{"source": "s", "stream": name, "status": "ok"}] * (count // 2 + place)
            key = ("s", "broker", client)
            streams.append(KnownStream("s", name, place == 0, key))
    streams.append(KnownStream("s", "silent", True, ("s", "broker", "g")))
    table = pa.Table.from_pylist(rows)
    absent = [name for name in EVIDENCE_NEEDED if name not in table.column_names]
    kinds = {"packet_type": pa.int32(), "return_code": pa.int32(), "captured_ns": pa.int64()}
    for name in absent:
        table = table.append_column(name, pa.nulls(len(rows), kinds.get(name, pa.string())))
    evidence = StreamEvidence()
    evidence.add(table)
    found = mqtt_facts.partition_streams(streams, evidence, 3).tolist()
    sums = Counter[int]()
    for number, (count, both) in enumerate(zip(packets.values(), found[::2], strict=False)):
        assert found[2 * number + 1] == both
        sums[both] += count
    assert sorted(sums.values()) == [240, 260, 500]


def of_mqtt(path: str) -> PacketFile:
    return PacketFile(0, "mqtt", partial(read_batches, path))


def test_evidence_is_counted_where_packets_are_decoded(
    spark: SparkSession,
    filled: tuple[Path, dict[str, list[Row]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file has it of its packets; of one that does not they are read once more."""
    lake, expected = filled
    with Lake.open(str(lake)) as opened:
        paths = opened.paths("packets_mqtt")
        sources = list(opened.inputs)
    found = [read_footer_table(path, EVIDENCE, SCHEMA) for path in paths]
    counted = [mqtt_facts.counted_evidence(of_mqtt(path), sources) for path in paths]
    assert found == counted and sum(rows.num_rows for rows in counted) > 10

    for most in (mqtt_facts.MOST_PACKETS, 50):
        divide(monkeypatch, most)
        monkeypatch.setattr(mqtt_facts, "MOST_PACKETS", most)
        monkeypatch.setattr(fact_tasks, "read_footer_table", lambda path, name, schema: None)
        again, _ = staged(lake, spark)
        for name, rows in expected.items():
            assert sorted(map(repr, again[name])) == sorted(map(repr, rows)), name


def test_what_another_attempt_left_is_not_in_a_table(
    spark: SparkSession, filled: tuple[Path, dict[str, list[Row]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, expected = filled
    make_staging = Lake.make_staging

    def with_rests(self: Lake, names: Iterable[str]) -> None:
        make_staging(self, names)
        Path(self.staged("sessions", "part-rest.parquet")).write_bytes(b"cut sh")

    monkeypatch.setattr(Lake, "make_staging", with_rests)
    found, _ = staged(lake, spark)
    assert sorted(map(repr, found["sessions"])) == sorted(map(repr, expected["sessions"]))


def test_records_that_caps_dropped_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireyard.layers.jmq.rules.MAX_REMEMBERED", 2)
    asking = items(long_item(9, 7), item(1, "orders"), item(4, "back"))
    messages = b"".join(message(number, items=asking) for number in range(5))
    (tmp_path / "a.jmq").write_bytes(messages)
    report = run(tmp_path / "lake", None, tmp_path / "a.jmq")
    note = "facts: too much was open at once; dropped: 3 above MAX_REMEMBERED"
    assert report.notes == [note]
    asked = [row["request"] for row in table(tmp_path / "lake", "conversations").to_pylist()]
    assert asked == ["orders"] * 5
