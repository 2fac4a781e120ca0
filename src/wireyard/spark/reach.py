"""Whether Spark reaches the lake, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wireyard.spark.lake import Lake, LakeError
from wireyard.spark.urls import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_reach", "reaching"]

_REASONS = {
    "No space left on device": "No space left on device",
    "S3AFileSystem not found": "Spark has no S3A file system; its jars (hadoop-aws) are missing",
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
    with reaching(lake):
        spark.read.schema("nothing int").parquet(literal(lake.root))


@contextmanager
def reaching(lake: Lake) -> Iterator[None]:
    """Say in one line why Spark cannot write to the lake, or read it."""
    try:
        yield
    except Exception as error:
        for text, reason in _REASONS.items():
            if text in str(error):
                raise LakeError(f"{lake.url}: cannot be written ({reason})") from None
        raise
