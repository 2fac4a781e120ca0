"""Running the tables above bronze: Spark SQL from Parquet to Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wireyard.formats import get_format
from wireyard.spark import tables
from wireyard.spark.lake import Lake, LakeError
from wireyard.spark.types import spark_schema
from wireyard.streams.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SILVER", "write_silver"]

SILVER = ("messages", "destinations")
"""The tables that are made anew from all of bronze with every commit."""
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_NO_SPACE = "No space left on device"


def write_silver(spark: SparkSession, lake: Lake, packets: Sequence[str]) -> None:
    """Stage the tables above bronze.

    Parameters
    ----------
    packets
        All files of JMQ packets that there will be after the commit.

    Raises
    ------
    LakeError
        The disk is full.
    """
    schema = spark_schema(make_plan(get_format("jmq")).schema)
    if packets:
        found = spark.read.schema(schema).parquet(*(_literal(lake, path) for path in packets))
    else:
        found = spark.createDataFrame([], schema)
    with _writing(spark, lake):
        _write(tables.messages(found), lake, "messages")
        sent = spark.read.parquet(_literal(lake, lake.staged("messages")))
        counted = tables.destinations(sent).coalesce(1)
        _write(counted.sortWithinPartitions("minute_ms", "destination"), lake, "destinations")


def _write(rows: DataFrame, lake: Lake, table: str) -> None:
    rows.write.parquet(_url(lake, lake.staged(table)))
    lake.sweep_staged(table)


@contextmanager
def _writing(spark: SparkSession, lake: Lake) -> Iterator[None]:
    """Have Spark write timestamps as everybody else does, whatever its session was told."""
    before = str(spark.conf.get(_TIMESTAMPS))
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    except Exception as error:
        if _NO_SPACE in str(error):
            raise LakeError(f"{lake.url}: cannot be written ({_NO_SPACE})") from None
        raise
    finally:
        spark.conf.set(_TIMESTAMPS, before)


def _url(lake: Lake, path: str) -> str:
    """Return a path of the lake as Hadoop names it, which need not be local by default."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return f"file://{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"


def _literal(lake: Lake, path: str) -> str:
    """Return a path to read that no character of is a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", _url(lake, path))
