"""Tasks of the facts stage that take columns: to run them, and to write what they find."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.destinations import NEEDED as COUNTED
from wireyard.layers.destinations import count_messages
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.tables import join_tables, with_times
from wireyard.spark.exchange import dump, load_frame_files
from wireyard.spark.parts import PartFile
from wireyard.spark.running import Runner
from wireyard.spark.steps import FOUND

__all__ = ["COUNTS", "dropped_rows", "note_file", "run_tasks", "write_tables"]

COUNTS: Final = "counts"
"""Name of the note of how many messages in a file were sent where: the file, `count_messages`."""
_COUNTED_AT_ONCE: Final = 1 << 17
_TOGETHER: Final = 4
"""Tasks that Spark starts as one: each takes Java some 30 ms, and what it does about 150."""


def run_tasks(
    runner: Runner,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterable[Mapping[str, Any]]],
    *,
    here: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Run tasks; yield the rows of `FOUND` that they return."""
    do = partial(_work, work=work)
    yield from runner.run(tasks, do, FOUND, here=here, together=_TOGETHER).to_pylist()


def _work(
    task: Any, work: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(list(map(dict, work(task))), FOUND)


def write_tables(
    tables: Iterable[tuple[str, pa.Table]], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write rows of tables, a file a table; yield what was written.

    Messages are counted while they are there, for a table of their destinations.
    """
    captured: FrameFiles | None = None
    files: dict[str, tuple[str, PartFile]] = {}
    rows: Counter[str] = Counter()
    sources: defaultdict[str, set[str]] = defaultdict(set)
    destinations = _Destinations()
    for name, table in tables:
        if not table.num_rows:
            continue
        if name == "messages":
            captured = captured or load_frame_files(staging)
            table = captured.locate(table)
            destinations.add(table)
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
    if "messages" in files:
        yield note_file(COUNTS, dump(staging, (files["messages"][0], destinations.counts())))


class _Destinations:
    """Messages counted by where they were sent, many at a time: most keys come again."""

    def __init__(self) -> None:
        self._held: list[pa.Table] = []
        self._rows = 0
        self._counts: list[pa.Table] = []

    def add(self, messages: pa.Table) -> None:
        self._held.append(messages.select(COUNTED))
        self._rows += messages.num_rows
        if self._rows >= _COUNTED_AT_ONCE:
            self._count()

    def counts(self) -> pa.Table:
        """Return what `count_messages` returns, of all."""
        if self._held:
            self._count()
        return pa.concat_tables(self._counts)

    def _count(self) -> None:
        self._counts.append(count_messages(join_tables(self._held)))
        self._held, self._rows = [], 0


def note_file(name: str, path: str) -> Mapping[str, Any]:
    """Return a file for a later stage as a row of `FOUND`."""
    return {"kind": "note", "name": name, "file": path, "things": 0}


def dropped_rows(dropped: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Yield how many things caps made a task forget, as rows of `FOUND`."""
    for cap, things in dropped.items():
        yield {"kind": "dropped", "name": cap, "file": None, "things": things}
