"""Tasks of the facts stage that take columns: to run them, and to write what they find."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.tables import with_times
from wireyard.spark.exchange import load_frame_files
from wireyard.spark.parts import PartFile
from wireyard.spark.running import Runner
from wireyard.spark.steps import FOUND

__all__ = ["dropped_rows", "note_file", "run_tasks", "write_tables"]


def run_tasks(
    runner: Runner,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterable[Mapping[str, Any]]],
    *,
    here: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Run tasks; yield the rows of `FOUND` that they return."""
    yield from runner.run(tasks, partial(_work, work=work), FOUND, here=here).to_pylist()


def _work(
    task: Any, work: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(list(map(dict, work(task))), FOUND)


def write_tables(
    tables: Iterable[tuple[str, pa.Table]], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write rows of tables, a file a table; yield what was written."""
    captured: FrameFiles | None = None
    files: dict[str, tuple[str, PartFile]] = {}
    rows: Counter[str] = Counter()
    sources: defaultdict[str, set[str]] = defaultdict(set)
    for name, table in tables:
        if not table.num_rows:
            continue
        if name == "messages":
            captured = captured or load_frame_files(staging)
            table = captured.locate(table)
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
