"""The facts of a lake are what the layers say of the same packets, whatever tasks they went to."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wireyard
from tests.captures.make import Packet, both_ways, pcap
from tests.captures.test_directed import CONNECT, PUBLISH
from tests.make import packet
from tests.spark.lakes import message, run, table
from wireyard.captures.read import read_capture
from wireyard.layers.jmq.tables import tables as jms_tables
from wireyard.layers.mqtt.derive import derive_tables as mqtt_tables
from wireyard.layers.mqtt.directions import in_order
from wireyard.layers.tables import TABLES
from wireyard.spark import facts
from wireyard.spark.facts import FACTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def streams_of(path: Path) -> list[Row]:
    """Return what a capture tells of its streams."""
    rows = []
    for one in read_capture(path).streams:
        frame, time_ns = one.closed or (None, None)
        told = {"begun": one.begun, "ended": one.ended, "ended_frame": frame, "ended_ns": time_ns}
        rows.append({"source": str(path), "stream": one.name, **told})
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


def check(lake: Path, expected: Mapping[str, list[Row]]) -> None:
    for name in FACTS:
        rows = table(lake, name).to_pylist()
        same(rows, expected.get(name, []), name)
        for row in rows:
            for column in TABLES[name]:
                if column.unit and "since 1970" in column.unit:
                    at = row[column.name.removesuffix("_ns") + "_at"]
                    time_ns = row[column.name]
                    assert (at is None) == (time_ns is None)
                    assert at is None or round(at.timestamp() * 1e6) == time_ns // 1000


def test_recorded_captures(spark: SparkSession, shared: Path, tmp_path: Path) -> None:
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
    run(tmp_path / "lake", spark, folder, split_bytes=20_000, secrets=True)
    expected: dict[str, list[Row]] = {}
    for name in jms:
        path = folder / f"{name}.pcap"
        ended = {(row["source"], row["stream"]) for row in streams_of(path) if row["ended"]}
        for one, rows in jms_tables(packets_of(path, "jmq", "gpacket"), ended).items():
            expected.setdefault(one, []).extend(rows)
    for name in mqtt:
        path = folder / f"{name}.pcap"
        tables = mqtt_tables(packets_of(path, "mqtt"), streams_of(path)).tables
        for one, rows in tables.items():
            expected.setdefault(one, []).extend(rows)
    assert len(expected["deliveries"]) > 300 and len(expected["sessions"]) > 60
    check(tmp_path / "lake", expected)


def test_bare_streams_and_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jmq").write_bytes(packet(packet_type=10) + message(1) + message(2))
    run(tmp_path / "lake", spark, tmp_path / "a.jmq")
    check(tmp_path / "lake", jms_tables(packets_of(tmp_path / "a.jmq", "jmq")))
    (tmp_path / "b.mqtt").write_bytes(CONNECT + PUBLISH)
    run(tmp_path / "lake", spark, tmp_path / "b.mqtt")
    sessions = table(tmp_path / "lake", "sessions").to_pylist()
    assert [row["client_id"] for row in sessions if row["protocol"] == "mqtt"] == ["cd"]
    (tmp_path / "empty.jmq").write_bytes(b"")
    run(tmp_path / "other", spark, tmp_path / "empty.jmq")
    check(tmp_path / "other", {})


def test_a_session_has_both_directions(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Packet(frame) for frame in both_ways(CONNECT, b"\x20\x02\x00\x00")]))
    run(tmp_path / "lake", spark, path)
    (session,) = table(tmp_path / "lake", "sessions").to_pylist()
    assert (session["client"], session["server"]) == ("10.0.0.1:40000", "10.0.0.2:1999")
    assert session["status"] == 0


def test_a_source_with_too_many_packets_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MAX_PACKETS", 2)
    for name, count in (("few", 2), ("many", 3)):
        (tmp_path / name).write_bytes(packet(packet_type=10) * count)
    report = run(tmp_path / "lake", spark, tmp_path / "few", tmp_path / "many")
    assert report.notes == [f"{tmp_path / 'many'}: no facts of its 3 packets, over 2"]
    sources = {row["source"] for row in table(tmp_path / "lake", "sessions").to_pylist()}
    assert sources == {str(tmp_path / "few")}
