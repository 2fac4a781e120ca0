"""Running the tables above bronze: Spark SQL from Parquet to Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from wireyard.formats import get_format, names
from wireyard.spark import tables
from wireyard.spark.facts import FACTS, write_facts
from wireyard.spark.lake import Input, Lake, LakeError
from wireyard.spark.tables.layers import LAYERS
from wireyard.spark.types import spark_schema
from wireyard.spark.urls import literal, url
from wireyard.streams.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SILVER", "check_reach", "write_silver"]

SILVER = ("messages", "destinations", *FACTS)
"""The tables that are made anew from all of bronze with every commit."""
_NEVER_LEFT_OUT = "jmq"
"""Whose messages are looked for where there are no packets at all: tables have columns even so."""
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_REASONS = {
    "No space left on device": "No space left on device",
    "No FileSystem for scheme": "Spark has no file system for such URLs; its jars are missing",
}
"""What Spark fails with somewhere in its text, and what we make of it."""


def check_reach(spark: SparkSession, lake: Lake) -> None:
    """Have Spark look at the lake, before any work is done for nothing.

    Raises
    ------
    LakeError
        Spark does not reach it.
    """
    with _writing(spark, lake):
        spark.read.schema("nothing int").parquet(literal(lake.root))


def write_silver(
    spark: SparkSession,
    lake: Lake,
    packets: Mapping[str, Sequence[str]],
    inputs: Collection[Input],
) -> list[str]:
    """Stage the tables above bronze; return what is to be said of inputs.

    Parameters
    ----------
    packets
        By format, all files of its packets that there will be after the commit.
    inputs
        The inputs that there will be.

    Raises
    ------
    LakeError
        The disk is full, or Spark does not reach the lake.
    """
    with _writing(spark, lake):
        frames = {
            name: _packets(spark, name, files)
            for name in names()
            if (files := packets.get(name, ())) or name == _NEVER_LEFT_OUT
        }
        messages = tables.MESSAGES.items()
        found = [find(frames[name]) for name, find in messages if packets.get(name)]
        if found:
            _write(reduce(DataFrame.unionByName, found), lake, "messages")
        notes = write_facts(LAYERS, frames, packets, lake, inputs)
        sent = spark.read.parquet(literal(lake.staged("messages")))
        counted = tables.destinations(sent).coalesce(1)
        _write(counted.sortWithinPartitions("minute_ms", "destination"), lake, "destinations")
        return notes


def _packets(spark: SparkSession, name: str, files: Sequence[str]) -> DataFrame:
    schema = spark_schema(make_plan(get_format(name), captured=True).schema)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(literal(path) for path in files))


def _write(rows: DataFrame, lake: Lake, table: str) -> None:
    rows.write.parquet(url(lake.staged(table)))
    lake.sweep_staged(table)


@contextmanager
def _writing(spark: SparkSession, lake: Lake) -> Iterator[None]:
    """Have Spark write timestamps as everybody else does, whatever its session was told."""
    before = str(spark.conf.get(_TIMESTAMPS))
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    except Exception as error:
        for text, reason in _REASONS.items():
            if text in str(error):
                raise LakeError(f"{lake.url}: cannot be written ({reason})") from None
        raise
    finally:
        spark.conf.set(_TIMESTAMPS, before)
