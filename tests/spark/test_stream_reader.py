"""readStream: files that come and streams that grow, once each, also over restarts."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import wireyard
from tests.formats.mqtt.make import connect, publish
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.pipeline.inputs.options import read_options
from wireyard.spark.stream_reader import StreamReader
from wireyard.spark.types import spark_schema
from wireyard.streams.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def reader(folder: Path, protocol: str = "mqtt", **options: str) -> StreamReader:
    given = {"path": str(folder), "protocol": protocol, **options}
    captured = given.get("input") == "pcap"
    schema = spark_schema(make_plan(get_format(protocol), captured=captured).schema)
    return StreamReader(read_options(given), schema)


def batch(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a batch, in the order of their places."""
    rows = [
        row
        for partition in one.partitions(start, end)
        for found in one.read(partition)
        for row in found.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["source"], row["stream"], row["offset"]))


def old(path: Path) -> None:
    os.utime(path, (1, 1))


STREAM = connect(4) + b"".join(publish(4, payload=b"x" * size) for size in range(400))


@pytest.mark.parametrize("damage", [b"", b"\0no packet\0" * 9])
def test_a_stream_that_grows_is_cut_at_frames(tmp_path: Path, damage: bytes) -> None:
    rng = Random(3)
    data = STREAM[:5000] + damage + STREAM  # garbage, and what is found behind it
    path, one = tmp_path / "a.mqtt", reader(tmp_path)
    offset, at = one.initialOffset(), 0
    rows: list[dict[str, Any]] = []
    batches = []
    while at < len(data):
        with path.open("ab") as file:
            file.write(data[at : (at := at + rng.randint(1, 9000))])
        end = one.latestOffset(offset, ReadAllAvailable())
        found = batch(one, offset, end)
        if found:
            last = found[-1]
            assert last["offset"] + last["length"] == end["files"][str(path)][0]
        batches.append((offset, end, found))
        offset, rows = end, rows + found
    whole = wireyard.read(path, format="mqtt").to_pylist()
    complete = [row for row in whole if row["status"] != "tail"]
    assert [list(row.values()) for row in rows] == [
        list(row.values()) for row in complete[: len(rows)]
    ]
    assert len(rows) >= len(complete) - 1
    # Read again after a failure each batch has the same rows, though there is more by now.
    for start, end, found in batches:
        assert batch(reader(tmp_path), start, end) == found


def test_admission(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.mqtt").write_bytes(STREAM)
    one = reader(tmp_path, maxFilesPerTrigger="2")
    offset, counts = one.initialOffset(), []
    for _ in range(4):
        end = one.latestOffset(offset, one.getDefaultReadLimit())
        counts.append(len(end["files"]))
        offset = end
    assert counts == [2, 4, 5, 5]
    assert isinstance(one.getDefaultReadLimit(), ReadMaxFiles)
    few = reader(tmp_path, maxBytesPerTrigger="1k")
    assert isinstance(few.getDefaultReadLimit(), ReadMaxBytes)
    offset, count = few.initialOffset(), 0
    for _ in range(6):
        end = few.latestOffset(offset, few.getDefaultReadLimit())
        assert end != offset
        count += len(batch(few, offset, end))
        offset = end
    everything = few.latestOffset(offset, ReadAllAvailable())
    assert count + len(batch(few, offset, everything)) == 5 * 401


def test_whole_files_wait_until_they_stand_still(tmp_path: Path) -> None:
    capture, packed = tmp_path / "a.pcap", tmp_path / "b.mqtt.gz"
    capture.write_bytes((EXAMPLES / "traffic.pcap").read_bytes())
    packed.write_bytes(gzip.compress(STREAM))
    one = reader(tmp_path)
    assert one.latestOffset(one.initialOffset(), ReadAllAvailable()) == one.initialOffset()
    old(capture)
    old(packed)
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert {Path(path).name for path in end["files"]} == {"a.pcap", "b.mqtt.gz"}
    assert len(batch(one, one.initialOffset(), end)) == 401 + 301
    assert one.latestOffset(end, ReadAllAvailable()) == end


def test_another_file_under_the_name_begins_anew(tmp_path: Path) -> None:
    path, one = tmp_path / "a.mqtt", reader(tmp_path)
    path.write_bytes(STREAM)
    first = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    path.rename(tmp_path / "a.mqtt.1")
    path.write_bytes(STREAM[:3000])
    second = one.latestOffset(first, ReadAllAvailable())
    names = [Path(row["source"]).name for row in batch(one, first, second)]
    assert names.count("a.mqtt.1") == 401 and 0 < names.count("a.mqtt") < 401


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path, one = tmp_path / "a.mqtt", reader(tmp_path)
    path.write_bytes(STREAM)
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    path.write_bytes(STREAM[:-1])
    with pytest.raises(SourceError, match="has less than when it was looked at"):
        batch(one, one.initialOffset(), end)


def test_what_streams_do_not_have(tmp_path: Path) -> None:
    for name in ("rotated", "pushFilters"):
        with pytest.raises(UsageError, match=name):
            reader(tmp_path, **{name: "true"})


@pytest.mark.spark
def test_a_query_and_its_restart(tmp_path: Path, spark: SparkSession) -> None:
    folder, out, checkpoint = (tmp_path / name for name in ("in", "out", "checkpoint"))
    folder.mkdir()
    data = (EXAMPLES / "traffic" / "shop-c2b.jmq").read_bytes()
    path = folder / "a.jmq"

    def run() -> None:
        rows = spark.readStream.format("wireyard").option("protocol", "jmq")
        rows = rows.option("maxBytesPerTrigger", "16k")
        query = (
            rows.load(str(folder))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        assert query.awaitTermination(120)
        assert query.exception() is None

    for part in (data[:30_001], data[30_001:61_003], data[61_003:]):
        with path.open("ab") as file:
            file.write(part)
        run()
    found = spark.read.parquet(str(out)).select("source", "offset", "length", "sys_message_id")
    expected = wireyard.read(path).select(found.columns).to_pylist()
    assert sorted(map(tuple, found.collect()), key=lambda row: row[1]) == [
        tuple(row.values()) for row in expected
    ]
