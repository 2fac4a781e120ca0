"""Columnar tasks of the facts stage: run them, and write the tables that they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.stream_table import STREAMS
from wireyard.lake.ledgers import captured_streams
from wireyard.lake.parts import PartFile, read_batches, read_footer_table
from wireyard.layers.destinations import NEEDED as COUNTED
from wireyard.layers.destinations import count_messages
from wireyard.layers.facts import DerivedFiles, Facts, PacketFile
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.tables import join_tables, with_times
from wireyard.pipeline.exchange import dump, load_frame_files
from wireyard.pipeline.facts.keyed import RESULTS
from wireyard.pipeline.running import Runner
from wireyard.pipeline.typed_json import first_parameter

__all__ = [
    "COUNTS",
    "STREAM_COLUMNS",
    "Counts",
    "derive_whole",
    "dropped_rows",
    "intermediate_file",
    "run_tasks",
    "write_tables",
]

COUNTS: Final = "counts"
"""Name of the intermediate files with the messages of a file counted by destination."""
Counts = tuple[str, pa.Table]
"""The content of such a file: the name of the file of messages, and `count_messages` of it."""
_COUNTED_AT_ONCE: Final = 1 << 17
_TOGETHER: Final = 4
"""Tasks that Spark starts as one: to start a task takes Java some 30 ms, its work about 150."""


def run_tasks(
    runner: Runner,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterable[Mapping[str, Any]]],
    *,
    here: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Run tasks; yield the rows of `RESULTS` that they return."""
    do = partial(_work, work=work)
    kind = first_parameter(work)
    results = runner.run(tasks, do, RESULTS, here=here, together=_TOGETHER, kind=kind)
    yield from results.to_pylist()


def _work(
    task: Any, work: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(list(map(dict, work(task))), RESULTS)


def write_tables(
    tables: Iterable[tuple[str, pa.Table]], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write rows of tables, one file for each table; yield rows of `RESULTS`.

    Messages are also counted by destination, for the table `destinations`.
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
        written = {"file": file, "count": rows[name], "sources": sorted(sources[name])}
        yield {"kind": "fact", "name": name, **written}
    if "messages" in files:
        counts = files["messages"][0], destinations.counts()
        yield intermediate_file(COUNTS, dump(staging, counts, Counts))


STREAM_COLUMNS: Final = (
    "source", "stream", "format", "opened", "begun", "paired", "ended", "ended_frame",
    "ended_ns", "last_ns",
)  # fmt: skip
"""Columns of the table `streams` that facts follow from."""


def derive_whole(
    facts: Facts,
    files: Sequence[tuple[str, str]],
    streams: Iterable[str],
    sources: Collection[str],
) -> DerivedFiles:
    """Derive all facts of some inputs in this process.

    Parameters
    ----------
    files
        Format and path of the files with their packets.
    streams
        Files of the table `streams`.
    """
    opened = [
        PacketFile(number, format, partial(read_batches, path), partial(read_footer_table, path))
        for number, (format, path) in enumerate(files)
    ]
    none = STREAMS.empty_table().select(STREAM_COLUMNS)
    shown = pa.concat_tables([none, *captured_streams(streams, sources, STREAM_COLUMNS)])
    return facts.derive(opened, shown, sources)


class _Destinations:
    """Counts messages by destination, many at once because most destinations repeat."""

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
        """Return the results of `count_messages` for all messages."""
        if self._held:
            self._count()
        return pa.concat_tables(self._counts)

    def _count(self) -> None:
        self._counts.append(count_messages(join_tables(self._held)))
        self._held, self._rows = [], 0


def intermediate_file(name: str, path: str) -> Mapping[str, Any]:
    """Return a row of `RESULTS` for a file that a later stage reads."""
    return {"kind": "intermediate", "name": name, "file": path, "count": 0}


def dropped_rows(dropped: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Yield rows of `RESULTS` for the records that a task dropped, counted by cap."""
    for cap, count in dropped.items():
        yield {"kind": "dropped", "name": cap, "file": None, "count": count}
