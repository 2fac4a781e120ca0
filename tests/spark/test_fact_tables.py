"""The facts of packets as DataFrames: the tables of a lake, and what a filter hides."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import wireyard.spark
from tests.conftest import ROOT
from tests.spark import lakes
from wireyard.errors import UsageError
from wireyard.layers.mqtt.facts import VERDICTS
from wireyard.layers.tables import all_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CAPTURE = "traffic.pcap"
PROTOCOLS = {"mqtt": "mqtt", "jmq": "jms", "rmp": "rmp"}
TABLES = ("messages", "deliveries", "sessions", "conversations", "violations", "latencies")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> Path:
    """Return a lake of three captures, two of them with the same messages."""
    folder = tmp_path_factory.mktemp("facts")
    (folder / "again.pcap").write_bytes((examples / CAPTURE).read_bytes())
    captures = examples / CAPTURE, examples / "ring.pcap", folder / "again.pcap"
    lakes.run(folder / "lake", None, *captures, decode_as=("udp.port==7078,rmp",))
    return folder / "lake"


def read(spark: SparkSession, lake: Path, table: str) -> DataFrame:
    return spark.read.parquet(str(lake / table))


def rows(table: DataFrame) -> list[str]:
    return sorted(map(repr, table.toArrow().to_pylist()))


def in_lake(lake: Path, table: str, format: str) -> list[str]:
    """Return the rows of a table that follow from packets of a format."""
    streams = {*lakes.rows(lake, f"packets_{format}", "source", "stream")}
    return sorted(
        repr(row)
        for row in lakes.table(lake, table).to_pylist()
        if row.get("protocol", PROTOCOLS[format]) == PROTOCOLS[format]
        and ("stream" not in row or (row["source"], row["stream"]) in streams)
    )


@pytest.mark.parametrize("format", PROTOCOLS)
def test_the_tables_are_those_of_a_lake(spark: SparkSession, lake: Path, format: str) -> None:
    packets, streams = read(spark, lake, f"packets_{format}"), read(spark, lake, "streams")
    # However they were taken apart and put together.
    halves = [packets.where(f"offset % 2 = {odd}") for odd in (1, 0)]
    found = wireyard.spark.facts(halves[0].union(halves[1]), streams)
    assert found.keys() == all_tables().keys()
    for name in TABLES:
        assert rows(found[name]) == in_lake(lake, name, format), name
    counted = {*rows(found["destinations"])}
    assert counted and counted <= {*in_lake(lake, "destinations", format)}


@pytest.mark.parametrize("has_streams", [True, False])
def test_nothing_is_concluded_from_what_a_filter_hides(
    spark: SparkSession, lake: Path, has_streams: bool
) -> None:
    """PUBACK; and the end of each stream."""
    packets = read(spark, lake, "packets_mqtt")
    streams = read(spark, lake, "streams") if has_streams else None
    whole = facts_of(packets, streams)
    known = {name for name, (condition, _) in VERDICTS.items() if condition != "unknown"}
    assert whole["delivered"] > 0
    for shown in ("packet_type <> 4", "offset < 200"):
        found = facts_of(packets.where(shown), streams)
        assert found["undecided"] > whole["undecided"]
        assert {name: found[name] for name in known if found[name] > whole[name]} == {}


def facts_of(packets: DataFrame, streams: DataFrame | None) -> Counter[str]:
    """Count the verdicts on deliveries."""
    deliveries = wireyard.spark.facts(packets, streams)["deliveries"]
    return Counter(deliveries.select("verdict").toArrow()["verdict"].to_pylist())


def test_packets_that_are_not_whole_are_refused(spark: SparkSession, lake: Path) -> None:
    packets = read(spark, lake, "packets_mqtt")
    with pytest.raises(UsageError, match=r"^facts: these are no packets .* mqtt also has topic$"):
        wireyard.spark.facts(packets.drop("topic"))
    with pytest.raises(UsageError, match=r"^facts: the table of streams has no column source, "):
        wireyard.spark.facts(packets, packets.select("offset"))


def test_the_source_has_the_tables_by_name(spark: SparkSession, lake: Path, examples: Path) -> None:
    source = spark.read.format("wireyard").option("table", "deliveries")
    found = source.load(str(examples / CAPTURE))
    assert rows(found) == sorted(
        repr(row)
        for row in lakes.table(lake, "deliveries").to_pylist()
        if row["source"].endswith(CAPTURE)
    )
    streams = spark.read.format("wireyard").option("table", "streams").load(str(examples / CAPTURE))
    packets = spark.read.format("wireyard").option("protocol", "mqtt").load(str(examples / CAPTURE))
    whole = facts_of(packets, streams)
    assert whole == Counter(
        row["verdict"] for row in found.where("protocol = 'mqtt'").toArrow().to_pylist()
    )
    few = spark.read.format("wireyard").option("table", "deliveries").option("columns", "verdict")
    assert few.load(str(examples / CAPTURE)).columns == ["verdict"]


def test_the_page_runs(spark: SparkSession, examples: Path, tmp_path: Path) -> None:
    """Its blocks, one after the other, as in a notebook."""
    text = (ROOT / "docs" / "spark-facts.md").read_text()
    for name in ("captures/", "late"):  # Java has a working directory of its own
        text = re.sub(f"(['\"]){name}(['\"])", rf"\1{tmp_path}/{name}\2", text)
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / CAPTURE).write_bytes((examples / CAPTURE).read_bytes())
    names = {"spark": spark}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    written = pq.read_table(tmp_path / "late")
    assert written.num_rows > 0
    assert {"owner", "verdict", "queue_ms"} <= {*written.column_names}
