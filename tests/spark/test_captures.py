"""Captures on Spark: the same rows as one reader's, however they are cut, shared and rotated."""

from __future__ import annotations

import gzip
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import wireyard
from tests.captures.make import (
    BEGAN_NS,
    Packet,
    both_ways,
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    section,
    tcp,
)
from tests.captures.test_directed import CONNECT, PUBLISH
from tests.captures.test_tls import JMS, MQTT, MQTT_KEYS
from tests.make import packet
from tests.spark.lakes import Silent, run, table
from wireyard.lake.writer import Lake
from wireyard.pipeline.inputs.finding import list_inputs
from wireyard.pipeline.job import fill_lake
from wireyard.schema import CAPTURED
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [("stream", "ascending"), ("offset", "ascending")]
CONNECTIONS = 60


def traffic() -> list[Packet]:
    """Return connections of MQTT and JMQ that go on at the same time, with a gap here and there."""
    rng = Random(3)
    turns: list[tuple[int, bytes]] = []
    for number in range(CONNECTIONS):
        mqtt = number % 3 > 0
        first, rest = (CONNECT, PUBLISH * 30) if mqtt else (packet(packet_type=10), packet() * 4)
        frames = both_ways(first, PUBLISH if mqtt else packet(), (20000 + number, 30000))
        for at in range(0, len(rest), 25):
            if rng.random() > 0.02:
                piece = rest[at : at + 25]
                segment = tcp(20000 + number, 30000, 1000 + len(first) + at, piece, 16, 500)
                frames.append(ethernet(ipv4(segment)))
        turns += [(number, frame) for frame in frames]
    order = [number for number, _ in turns]
    rng.shuffle(order)
    rests = {number: iter([f for n, f in turns if n == number]) for number in set(order)}
    frames = [next(rests[number]) for number in order]
    return [Packet(frame, BEGAN_NS + 1000 * number) for number, frame in enumerate(frames)]


TRAFFIC = traffic()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("captures") / "traffic.pcap"
    path.write_bytes(pcap(TRAFFIC))
    return path


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same capture in 60 files whose names have no order."""
    rng = Random(4)
    folder = tmp_path_factory.mktemp("rotated")
    cuts = sorted(rng.choices(range(len(TRAFFIC) + 1), k=59))
    names = rng.sample(range(1000), 60)
    for name, (start, stop) in zip(names, pairwise([0, *cuts, len(TRAFFIC)]), strict=True):
        (folder / f"{name}.pcap").write_bytes(pcap(TRAFFIC[start:stop]))
    return folder


def sorted_rows(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["source"]).sort_by(KEYS).combine_chunks()


@pytest.mark.parametrize("tasks", [1, 2, 7, 24])
def test_the_same_rows_for_any_number_of_tasks(
    spark: SparkSession, capture: Path, tasks: int
) -> None:
    split = -(-capture.stat().st_size // (4 * tasks))
    for format in ("mqtt", "jmq"):
        options = {"protocol": format, "maxPartitionBytes": str(split)}
        frame = spark.read.format("wireyard").options(**options).load(str(capture))
        assert frame.rdd.getNumPartitions() == tasks
        found = frame.toArrow()
        expected = wireyard.read(capture, format)
        assert found.schema.names == expected.schema.names
        names = [*(column.name for column in CAPTURED), "stream", "offset", "status", "size"]
        names = [name for name in names if name in found.schema.names]
        ours, theirs = (sorted_rows(rows).select(names) for rows in (found, expected))
        assert ours.to_pylist() == theirs.to_pylist()


def test_a_run_reads_all_formats_of_a_capture(capture: Path, tmp_path: Path) -> None:
    for tasks in (1, 7):
        lake = tmp_path / str(tasks)
        report = run(lake, None, capture, split_bytes=capture.stat().st_size // (4 * tasks))
        assert [each.source for each in report.added] == [str(capture)]
        for format in ("mqtt", "jmq"):
            found = table(lake, f"packets_{format}")
            assert sorted_rows(found).equals(sorted_rows(wireyard.read(capture, format)))
        ledger = table(lake, "ledger").to_pylist()
        assert len(ledger) == 2 * CONNECTIONS
        for row in ledger:
            parts = [row[f"bytes_{name}"] for name in ("ok", "malformed", "garbage", "tail")]
            assert row["bytes_read"] == sum(parts)
        streams = table(lake, "streams").to_pylist()
        assert {row["stream"] for row in streams} == {row["stream"] for row in ledger}
        assert {(row["transport"], row["begun"]) for row in streams} == {("tcp", True)}
        assert sum(row["bytes_gap"] for row in streams) > 25
        assert all(BEGAN_NS <= row["first_ns"] <= row["last_ns"] for row in streams)
        read = wireyard.read(capture, "mqtt", ["status", "length"])
        gaps = read.filter(pc.equal(read["status"], "gap"))
        assert gaps.num_rows == 3
        bad = table(lake, "quarantine").to_pylist()
        assert sum(row["status"] == "gap" for row in bad) >= gaps.num_rows
        assert all((row["first_bytes"] == "") == (row["status"] == "gap") for row in bad)


def test_pieces_that_mislead_are_read_again(tmp_path: Path) -> None:
    """In packets that carry captures most guesses are wrong, and sections change what is read."""
    inner = pcap(packets([bytes(range(40))] * 12))[24:]
    carriers = [
        ethernet(ipv4(tcp(9, 80, 1 + n * len(inner), inner), 6, f"10.0.0.{n % 5}"))
        for n in range(40)
    ]
    frames = [one.data for one in TRAFFIC[:400]]
    halves = [frames[:200] + carriers, carriers + frames[200:]]
    path = tmp_path / "mixed.pcapng"
    path.write_bytes(
        b"".join(
            section(order) + interface(order=order) + b"".join(blocks)
            for order, half in zip("<>", halves, strict=True)
            for blocks in [[enhanced(data, 10**15 + n, order=order) for n, data in enumerate(half)]]
        )
        + bytes(7)
    )
    report = run(tmp_path / "lake", None, path, split_bytes=path.stat().st_size // 40)
    assert report.repaired > 5
    assert "7 bytes are not read" in report.notes[0]
    for format in ("mqtt", "jmq"):
        with pytest.warns(UserWarning, match="7 bytes are not read"):
            expected = wireyard.read(path, format)
        assert expected.num_rows > 20
        assert sorted_rows(table(tmp_path / "lake", f"packets_{format}")).equals(
            sorted_rows(expected)
        )


def test_a_rotated_capture_is_one(
    spark: SparkSession, capture: Path, rotated: Path, tmp_path: Path
) -> None:
    found = list_inputs([str(rotated)], rotated=True).inputs
    assert [each.path for each in found] == [str(rotated)]
    with Lake.open(str(tmp_path / "lake")) as lake:
        fill_lake(lake, found, SparkEngine(lambda: spark), Silent(), split_bytes=4000)
    for format in ("mqtt", "jmq"):
        rows = table(tmp_path / "lake", f"packets_{format}")
        assert set(rows["source"].to_pylist()) == {str(rotated)}
        assert sorted_rows(rows).equals(sorted_rows(wireyard.read(capture, format)))
    spans = sorted(table(tmp_path / "lake", "files").to_pylist(), key=itemgetter("first_frame"))
    assert {row["source"] for row in spans} == {str(rotated)}
    assert {row["file"] for row in spans} == set(map(str, rotated.iterdir()))
    assert sum(row["frames"] for row in spans) == len(TRAFFIC)
    messages = table(tmp_path / "lake", "messages").to_pylist()
    assert messages
    for row in messages:
        (span,) = (
            span for span in spans
            if 0 <= row["frame"] - span["first_frame"] < span["frames"]
        )  # fmt: skip
        assert (row["file"], row["file_frame"] - 1) == (
            span["file"], row["frame"] - span["first_frame"],
        )  # fmt: skip
    options = {"protocol": "mqtt", "rotated": "true", "maxPartitionBytes": "4000"}
    frame = spark.read.format("wireyard").options(**options).load(str(rotated))
    wanted = wireyard.read(capture, "mqtt", ["frame", "captured_ns"])
    assert sorted(frame.select("frame", "captured_ns").toArrow().to_pylist(), key=str) == sorted(
        wanted.to_pylist(), key=str
    )


def test_captures_and_streams_mixed(spark: SparkSession, capture: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jmq").write_bytes(packet() * 3)
    (tmp_path / "in" / "b").write_bytes(capture.read_bytes())
    run(tmp_path / "lake", None, tmp_path / "in")
    found = table(tmp_path / "lake", "packets_jmq")
    bare = found.filter(pc.ends_with(found["source"], "a.jmq"))
    assert bare.num_rows == 3 and bare["frame"].null_count == 3
    loaded = spark.read.format("wireyard").option("protocol", "jmq").load(str(tmp_path / "in"))
    assert loaded.count() == found.num_rows
    assert loaded.filter("frame is null").count() >= 3


def test_options_of_captures(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "middle.pcap"
    path.write_bytes(pcap([Packet(frame) for frame in both_ways(PUBLISH, PUBLISH, (4000, 1999))]))
    reader = spark.read.format("wireyard")
    with pytest.raises(Exception, match="no stream in it begins like any format"):
        reader.load(str(path)).count()
    named = reader.option("decodeAs", "tcp.port==1999,mqtt/3.1.1; udp.port==1,rmp")
    assert [row.topic for row in named.load(str(path)).select("topic").collect()] == ["t", "t"]
    with pytest.raises(Exception, match="option 'input' cannot be 'tape': one of auto, pcap"):
        reader.option("input", "tape").load(str(path)).count()
    taken = spark.read.format("wireyard").options(protocol="mqtt", input="stream")
    assert set(taken.load(str(path)).toArrow()["status"].to_pylist()) != {"ok"}


def test_what_a_capture_does_not_tell_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "web.pcap"
    frames = both_ways(CONNECT, PUBLISH) + both_ways(b"GET /", b"200 OK", (5, 80))
    frames.append(ethernet(bytes(28), 0x0806))
    path.write_bytes(pcap([Packet(frame) for frame in frames]) + bytes(5))
    report = run(tmp_path / "lake", None, path)
    assert [note.startswith(f"{path}: ") for note in report.notes] == [True, True, True]
    assert "5 bytes are not read" in report.notes[0]
    assert "frames not read: 1 ARP" in report.notes[1]
    assert "2 streams, 11 bytes (" in report.notes[2]
    assert "to decode it as MQTT: --decode-as tcp.port==80,mqtt" in report.notes[2]
    assert run(tmp_path / "lake", None, path).unchanged == 1


def test_what_keys_open_is_the_same_for_any_number_of_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """From a key log, and from the secrets in a capture, whose headers are read before."""
    names = ["stream", "offset", "frame", "length", "captured_ns"]
    keys = (str(MQTT_KEYS),)
    report = run(tmp_path, None, MQTT, JMS, split_bytes=10_000, keylog=keys)
    for path, format in ((MQTT, "mqtt"), (JMS, "jmq")):
        expected = wireyard.read(path, format, names, keylog=keys).sort_by(KEYS)
        found = table(tmp_path, f"packets_{format}").select(names).sort_by(KEYS)
        assert found.to_pylist() == expected.to_pylist()
    [note] = [note for note in report.notes if "TLS 1.3 to broker.example" in note]
    assert note.startswith(f"{MQTT}: 2 streams, ")
    options = {"protocol": "mqtt", "maxPartitionBytes": "10000", "keylog": keys[0]}
    loaded = spark.read.format("wireyard").options(**options).load(str(MQTT)).select(*names)
    wanted = wireyard.read(MQTT, "mqtt", names, keylog=keys).sort_by(KEYS)
    assert loaded.toArrow().sort_by(KEYS).to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("tasks", [1, 2, 7, 24])
def test_segments_for_any_number_of_tasks(spark: SparkSession, capture: Path, tasks: int) -> None:
    expected = wireyard.segments(capture).read_all()
    split = -(-capture.stat().st_size // tasks)
    options = {"table": "tcp_segments", "maxPartitionBytes": str(split)}
    frame = spark.read.format("wireyard").options(**options).load(str(capture))
    assert frame.rdd.getNumPartitions() == tasks
    found = frame.toArrow()
    assert found.schema.names == expected.schema.names and found.num_rows > 500
    assert found.sort_by("frame").to_pylist() == expected.to_pylist()


def test_segments_of_a_rotated_capture(
    spark: SparkSession, capture: Path, rotated: Path, tmp_path: Path
) -> None:
    wanted = wireyard.segments(capture, ["frame", "flow", "seq"]).read_all()
    reader = spark.read.format("wireyard").options(table="tcp_segments", rotated="true")
    found = reader.option("columns", "frame,flow,seq").load(str(rotated))
    assert found.toArrow().sort_by("frame").to_pylist() == wanted.to_pylist()
    (tmp_path / "capture.gz").write_bytes(gzip.compress(capture.read_bytes()))
    (tmp_path / "notes.txt").write_text("no capture")
    mixed = spark.read.format("wireyard").options(table="tcp_segments").load(str(tmp_path))
    assert mixed.select("frame", "flow", "seq").toArrow().to_pylist() == wanted.to_pylist()


def test_segments_of_what_has_none(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap(TRAFFIC[:3]) + bytes(9))
    reader = spark.read.format("wireyard").option("table", "tcp_segments")
    with pytest.raises(Exception, match="9 bytes are not read"):
        reader.load(str(path)).count()
    assert reader.option("ignoreCorruptFiles", "true").load(str(path)).count() == 3
    (tmp_path / "a.jmq").write_bytes(packet())
    with pytest.raises(Exception, match=r"tcp_segments: there is no capture at .*a\.jmq"):
        reader.load(str(tmp_path / "a.jmq")).count()
    with pytest.raises(Exception, match="tcp_segments has no column 'topic'"):
        reader.option("columns", "topic").load(str(path)).count()
    with pytest.raises(Exception, match="option 'table' cannot be 'x': packets, tcp_segments, "):
        reader.option("table", "x").load(str(path))
