"""Tasks of the facts stage that take columns: to run them, and to write what they find."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.tables import with_times
from wireyard.spark.parts import PartFile
from wireyard.spark.steps import FOUND
from wireyard.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["dropped_rows", "note_file", "run_tasks", "write_tables"]


def run_tasks(
    spark: SparkSession, tasks: Sequence[Any], work: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> Iterator[Mapping[str, Any]]:
    """Have Spark run tasks; yield the rows of `FOUND` that they return."""
    if not tasks:
        return
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    do = partial(_work, tasks=tasks, work=work)
    yield from numbers.mapInArrow(do, spark_schema(FOUND)).toArrow().to_pylist()


def _work(
    batches: Iterator[pa.RecordBatch],
    tasks: Sequence[Any],
    work: Callable[[Any], Iterable[Mapping[str, Any]]],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch["id"].to_pylist():
            yield pa.RecordBatch.from_pylist(list(map(dict, work(tasks[place]))), FOUND)


def write_tables(
    tables: Iterable[tuple[str, pa.Table]], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write rows of tables, a file a table; yield what was written."""
    files: dict[str, tuple[str, PartFile]] = {}
    rows: Counter[str] = Counter()
    sources: defaultdict[str, set[str]] = defaultdict(set)
    for name, table in tables:
        if not table.num_rows:
            continue
        timed = with_times(name, table)
        if name not in files:
            file = f"part-{uuid4().hex}.parquet"
            files[name] = file, PartFile(f"{staging}/{name}/{file}", timed.schema)
        for batch in timed.to_batches():
            files[name][1].write(batch)
        rows[name] += table.num_rows
        sources[name].update(pc.unique(timed["source"]).to_pylist())
    for name, (file, part) in files.items():
        part.close()
        found = {"file": file, "things": rows[name], "sources": sorted(sources[name])}
        yield {"kind": "fact", "name": name, **found}


def note_file(name: str, path: str) -> Mapping[str, Any]:
    """Return a file for a later stage as a row of `FOUND`."""
    return {"kind": "note", "name": name, "file": path, "things": 0}


def dropped_rows(dropped: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Yield how many things caps made a task forget, as rows of `FOUND`."""
    for cap, things in dropped.items():
        yield {"kind": "dropped", "name": cap, "file": None, "things": things}
