"""Packet files of bronze tasks have the packets that tracking would read from Parquet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.captures.connections import make_capture
from tests.layers.mqtt.make import Capture, table_of
from tests.spark.lakes import all_rows, divide, run
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.grids import NONE
from wireyard.layers.mqtt.packets import PACKETS, Part, new_secret, stream_numbers
from wireyard.pipeline import job
from wireyard.pipeline.decoding import packet_files
from wireyard.pipeline.decoding.packet_files import (
    UNDIVIDED,
    PacketFile,
    StreamsOfFile,
    packet_file_path,
    read_heads,
    read_packets,
)
from wireyard.pipeline.exchange import EXCHANGE
from wireyard.pipeline.facts import mqtt as mqtt_facts
from wireyard.pipeline.facts import tasks as fact_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS = ("a", "b", "c", "d")


def packets() -> pa.Table:
    """Return packets of some clients in turn, many of which have rows that are kept."""
    capture = Capture()
    for client in CLIENTS:
        capture.connect(client)
        capture.subscribe(client, "t/#")
    for number in range(40):
        client = CLIENTS[number % len(CLIENTS)]
        capture.publish(client, True, topic=f"t/{number % 3}", payload=b"x" * number, qos=0)
        if number % 7 == 0:
            capture.publish(client, False, topic="held", payload=b"y", retain=True, qos=0)
    return table_of(capture.rows)


def plain(parts: list[Part]) -> tuple[list[Any], list[Any]]:
    """Return packets and kept rows, whatever the types that they are written as."""
    tables = [part.packets.select(PACKETS.names).cast(PACKETS).to_pylist() for part in parts]
    return (
        [row for table in tables for row in table],
        [row for part in parts for row in part.rows.to_pylist()],
    )


@pytest.mark.parametrize("held", [1, 30, 1 << 17])
@pytest.mark.parametrize("batch", [1, 7, 1 << 20])
def test_each_partition_gets_the_packets_of_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, batch: int
) -> None:
    monkeypatch.setattr(packet_files, "_HELD_ROWS", held)
    table, secret = packets(), new_secret()
    evidence = StreamEvidence()
    (tmp_path / EXCHANGE).mkdir()
    file = PacketFile(packet_file_path(str(tmp_path), "lake/part-1.parquet"), secret)
    for start in range(0, table.num_rows, batch):
        [some] = table.slice(start, batch).combine_chunks().to_batches()
        stream = evidence.add_batch(some)
        file.add(Part.of(pa.Table.from_batches([some]), stream, secret, first=file.rows))
    file.close()
    # All streams there are are turned round, and one is not to be tracked.
    of_file = evidence.table()
    names = list(zip(of_file["source"].to_pylist(), of_file["stream"].to_pylist(), strict=True))
    assert len(names) == 2 * len(CLIENTS)
    numbers = {name: number for number, name in enumerate(reversed(names[1:]))}
    streams = np.array([numbers.get(name, NONE) for name in names])
    partition = np.array([number % 3 for number in range(len(numbers))])
    seen = 0
    for wanted in range(3):
        mine = {name: number for name, number in numbers.items() if partition[number] == wanted}
        expected = Part.of(table, stream_numbers(table, mine), secret, file=5)
        parts = list(read_packets([StreamsOfFile(file.path, 5, streams)], partition, wanted))
        assert plain(parts) == plain([expected])
        seen += expected.packets.num_rows
    assert 0 < seen < table.num_rows
    [none] = read_packets([StreamsOfFile(file.path, 5, streams)], partition, 3)
    assert not none.packets.num_rows and not none.rows.num_rows

    [head] = read_heads([StreamsOfFile(file.path, 5, streams)])
    assert head.secret == secret
    topics = Counter(filter(None, table["topic"].to_pylist()))
    assert head.topics == {**topics, "held": UNDIVIDED}


def test_a_file_without_packets_has_none_for_anybody(tmp_path: Path) -> None:
    table, secret = packets(), new_secret()
    nobody = np.full(table.num_rows, NONE)
    file = PacketFile(str(tmp_path / "packets"), secret)
    file.write(Part.of(table, nobody, secret))
    file.close()
    files = [StreamsOfFile(file.path, 0, np.arange(1))]
    [part] = read_packets(files, np.zeros(1, np.int64), 0)
    assert not part.packets.num_rows and not part.rows.num_rows
    assert part.rows.column_names == Part.of(table, nobody, secret).rows.column_names
    [head] = read_heads(files)
    assert not head.topics


@pytest.mark.slow
def test_tables_are_the_same_whoever_leaves_the_packets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody, since there are few; the tasks of the bronze stage; or a stage after it.

    And the same as where one task reads the whole capture.
    """
    capture = tmp_path / "in.pcap"
    capture.write_bytes(make_capture(Random(11), 300))
    split: list[int] = []
    run_tasks = fact_tasks.run_tasks

    def counted(runner: Any, tasks: Any, work: Any, **options: Any) -> Any:
        if getattr(work, "func", None) is mqtt_facts._split:
            split.append(len(tasks))
        return run_tasks(runner, tasks, work, **options)

    monkeypatch.setattr(mqtt_facts, "run_tasks", counted)
    run(tmp_path / "whole", None, capture)
    report = run(tmp_path / "few", spark, capture, split_bytes=20_000)
    assert report.repaired and not split
    divide(monkeypatch)
    monkeypatch.setattr(mqtt_facts, "MOST_PACKETS", 200)
    run(tmp_path / "left", spark, capture, split_bytes=20_000)
    assert split == [0]
    monkeypatch.setattr(job, "new_secret", lambda: None)
    run(tmp_path / "split", spark, capture, split_bytes=20_000)
    assert split[0] == 0 and split[1] > 1

    expected = all_rows(tmp_path / "whole")
    assert len(expected["packets_mqtt"]) > 1000 and len(expected["deliveries"]) > 10
    for lake in ("few", "left", "split"):
        found = all_rows(tmp_path / lake)
        assert found.keys() == expected.keys()
        for name, rows in expected.items():
            assert found[name] == rows, (lake, name)
