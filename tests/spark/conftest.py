"""The one Spark session of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from wireyard.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session as ours are: two threads, tasks tried again."""
    found = session("local[2]", **{"spark.sql.shuffle.partitions": "2"})
    yield found
    found.stop()
