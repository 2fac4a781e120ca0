"""The tables of facts of JMQ packets and GPackets in Spark, where one task can hold all packets.

A message may be seen in several inputs, and its hops are numbered over all of them, so there is
one task; of more packets than it holds facts are made by steps over rows (``spark.facts``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.layers.jmq.columns import NEEDED, derive_columns
from wireyard.spark.fact_tasks import dropped_rows, run_tasks, write_tables
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FEW", "MOST_PACKETS", "is_held", "write_jmq_facts"]

MOST_PACKETS: Final = 1 << 18
"""Packets that a task holds at once, about 1.5 kB each with all that is made of them."""
FEW: Final = 1 << 14
"""Packets that need no task: to start one takes longer than to go through them."""

Files = Mapping[str, Sequence[str]]
"""Where packets are, by format."""


def is_held(files: Files) -> bool:
    """Tell whether one task can hold the packets of some files."""
    return 0 < _count(files) <= MOST_PACKETS


def _count(files: Files) -> int:
    return sum(_rows_in(path) for paths in files.values() for path in paths)


def _rows_in(path: str) -> int:
    system, inner = filesystem(path)
    with system.open_input_file(inner) as opened:
        rows: int = pq.ParquetFile(opened).metadata.num_rows
    return rows


def write_jmq_facts(
    spark: SparkSession, staging: str, files: Files, ended: Iterable[tuple[str, str]]
) -> Iterator[Mapping[str, Any]]:
    """Stage the rows of all tables; yield what was written, as rows of `FOUND`.

    Parameters
    ----------
    ended
        Source and name of the streams whose end the captures show.
    """
    work = partial(_write, staging=staging, ended=tuple(ended))
    if _count(files) <= FEW:
        yield from work(files)
    else:
        yield from run_tasks(spark, [files], work)


def _write(
    files: Files, staging: str, ended: Sequence[tuple[str, str]]
) -> Iterator[Mapping[str, Any]]:
    packets = {
        name: pa.concat_tables([_read(path) for path in paths])
        for name, paths in files.items()
        if paths
    }
    found = derive_columns(packets, ended)
    yield from write_tables(found.tables.items(), staging)
    yield from dropped_rows(found.dropped)


def _read(path: str) -> pa.Table:
    system, inner = filesystem(path)
    with system.open_input_file(inner) as opened:
        file = pq.ParquetFile(opened)
        return file.read([name for name in NEEDED if name in file.schema_arrow.names])
