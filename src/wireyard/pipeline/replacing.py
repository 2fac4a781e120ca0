"""The next commit of a lake: files without the rows of changed inputs, merged, split by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.errors import LakeDamaged
from wireyard.lake.commits import move_file
from wireyard.lake.parts import PartFile
from wireyard.lake.records import NO_DAY, DataFile, is_shown
from wireyard.lake.snapshot import DamagedFile
from wireyard.lake.staging import writing
from wireyard.lake.writer import Change, Input, Lake
from wireyard.layers.tables import all_tables
from wireyard.pipeline.running import Runner
from wireyard.streams.source import filesystem

OPEN_STATES: Final = "_open"
"""The table of the states from which growing inputs are continued."""
OPEN_PREFIX: Final = "open-"
"""Prefix of provisional files, which the next part of their input replaces."""
_MERGED: Final = 16
"""Number of files of one size that are merged."""
_MERGED_BYTES: Final = 8 << 20
"""Fewer files are merged if they have as many bytes together: a commit of a growing input waits
half a second for that. Files of half this size are not merged, or a merged file, which is smaller
than its parts, would be merged again."""


def is_provisional(name: str) -> bool:
    """Return whether a file is replaced by the next part of its input."""
    return name.rpartition("/")[2].startswith(OPEN_PREFIX)


class Draft:
    """The next commit of a lake, while it is prepared.

    Each step sees the results of the steps before it: the inputs there are by now, and their files,
    staged ones included. A file that is replaced or removed is so in all inputs that list it.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.inputs = dict(lake.inputs)
        """The inputs by source."""
        self.staged: dict[str, dict[str, None]] = {}
        """The names of new files, by table."""
        self.removed: dict[str, set[str]] = {}
        """The names of files of the lake that are removed, by table."""
        self.changed: set[str] = set()
        """The inputs of the lake whose facts are removed."""

    def files(self, table: str) -> list[str]:
        """Return the names of the files of a table."""
        removed = self.removed.get(table, ())
        held = [name for name in self.lake.files.get(table, ()) if name not in removed]
        return [*held, *self.staged.get(table, ())]

    def path(self, table: str, name: str) -> str:
        """Return the present path of a file."""
        is_new = name in self.staged.get(table, ())
        return self.lake.staged(table, name) if is_new else self.lake.path(table, name)

    def stage(self, table: str, names: Iterable[str]) -> None:
        """Add new files, which are written, to a table."""
        if new := dict.fromkeys(names):
            self.staged.setdefault(table, {}).update(new)

    def put(self, each: Input, files: Mapping[str, Sequence[str]]) -> None:
        """Add or change an input; it lists new files besides those that it listed before."""
        for table, names in files.items():
            self.stage(table, names)
        listed = {table: [*names, *files.get(table, ())] for table, names in each.files.items()}
        self.inputs[each.source] = replace(each, files={**files, **listed})

    def replace_files(self, table: str, become: Mapping[str, Sequence[str]]) -> None:
        """Replace files by new ones, which may be none, in all inputs that list them."""
        staged = self.staged.get(table, {})
        for name in become:
            if name in staged:
                del staged[name]
            else:
                self.removed.setdefault(table, set()).add(name)
        for source, each in self.inputs.items():
            names = each.files.get(table, ())
            if not become.keys().isdisjoint(names):
                after = dict.fromkeys(new for name in names for new in become.get(name, (name,)))
                self.inputs[source] = replace(each, files={**each.files, table: [*after]})
        self.stage(table, (new for names in become.values() for new in names))

    def drop(self, sources: Collection[str]) -> None:
        """Remove inputs and their rows."""
        tables = {table for source in sources for table in self.inputs[source].files}
        self._drop_rows(sources, tables)
        for source in sources:
            del self.inputs[source]

    def drop_facts(self, sources: Collection[str]) -> None:
        """Remove the facts of inputs; their packets stay."""
        self._drop_rows(sources, all_tables())

    def _drop_rows(self, sources: Collection[str], tables: Iterable[str]) -> None:
        """Remove the rows of inputs from tables."""
        self.changed.update(self.lake.inputs.keys() & sources)
        held = {source: self.inputs[source].files for source in sources}
        self.unlist(
            {
                source: {table: files[table] for table in tables if table in files}
                for source, files in held.items()
            }
        )

    def unlist(self, gone: Mapping[str, Mapping[str, Collection[str]]]) -> None:
        """Remove the rows of inputs from files, named by input and table.

        Files that other inputs list too are copied without these rows.
        """
        sources: defaultdict[str, defaultdict[str, set[str]]]
        sources = defaultdict(lambda: defaultdict(set))
        for source, tables in gone.items():
            files = {**self.inputs[source].files}
            for table, names in tables.items():
                files[table] = [name for name in files.get(table, ()) if name not in names]
                if not files[table]:
                    del files[table]
                for name in names:
                    sources[table][name].add(source)
            self.inputs[source] = replace(self.inputs[source], files=files)
        for table, of_file in sources.items():
            shared = of_file.keys() & {
                name for each in self.inputs.values() for name in each.files.get(table, ())
            }
            copies = {name: self._copies(table, name, of_file[name]) for name in sorted(shared)}
            self.replace_files(table, {**dict.fromkeys(of_file, ()), **copies})

    def _copies(self, table: str, name: str, sources: Collection[str]) -> list[str]:
        """Stage a copy of a file without the rows of some inputs; return its name.

        There is none of a damaged file of states: its inputs are read again as a whole.
        """
        try:
            return [_copy_without(self, table, name, sources)]
        except LakeDamaged:
            if is_shown(table):
                raise
            return []

    def change(self) -> Change:
        """Return the difference from the lake."""
        before = self.lake.inputs
        return Change(
            tuple(each for source, each in self.inputs.items() if before.get(source) is not each),
            {table: sorted(names) for table, names in self.removed.items()},
            {table: [*names] for table, names in self.staged.items()},
            frozenset(before.keys() - self.inputs.keys()),
        )


def drop_damaged(draft: Draft, damaged: Iterable[DamagedFile]) -> None:
    """Remove damaged files, and all inputs that had rows in them.

    The next run over such an input reads it as a new one.
    """
    names = {(each.table, each.file.name) for each in damaged}
    lost = [
        source
        for source, each in draft.inputs.items()
        if any((table, name) in names for table, files in each.files.items() for name in files)
    ]
    draft.drop(lost)
    for table in {table for table, _ in names}:
        draft.replace_files(table, {name: () for of, name in names if of == table})


def compact(draft: Draft) -> None:
    """Merge many small files.

    Files have the same size class if their lengths have the same power of 16. Once a table has 16
    files of a class, or `_MERGED_BYTES` in them, they are merged, mostly into one of the next
    class. So a row is rewritten once for each class, and a table has at most 15 files of each,
    besides those of the last run and of growing inputs.
    """
    excluded = _files_of_growing(draft)
    for table, files in draft.lake.record.tables.items():
        gone = {*draft.removed.get(table, ()), *excluded.get(table, ())}
        by_size: defaultdict[tuple[str, int], list[DataFile]] = defaultdict(list)
        for file in files:
            if file.name not in gone and file.bytes < _MERGED_BYTES // 2:
                by_size[_folder(file.name), file.bytes.bit_length() // 4].append(file)
        for (folder, _), alike in by_size.items():
            if len(alike) >= _MERGED or sum(file.bytes for file in alike) >= _MERGED_BYTES:
                new = _merge(draft, table, folder, [file.name for file in alike])
                draft.replace_files(table, {file.name: new for file in alike})


def _files_of_growing(draft: Draft) -> dict[str, set[str]]:
    """Return the files of growing inputs that will be replaced soon, by table."""
    files: defaultdict[str, set[str]] = defaultdict(set)
    for each in draft.inputs.values():
        # A capture that is being read may have no state, as while too little of it has arrived.
        if each.files.get(OPEN_STATES) or "growing" in each.stamp:
            for table, names in each.files.items():
                if table in all_tables():
                    files[table].update(names)
                else:
                    files[table].update(filter(is_provisional, names))
    return files


def _merge(draft: Draft, table: str, folder: str, names: Sequence[str]) -> list[str]:
    """Stage the rows of committed files as one file, or as more if a version before wrote some.

    Returns their names.
    """
    made, schema = list[str](), None
    draft.lake.make_staging([f"{table}/{folder}"])
    file: PartFile | None = None
    for name in names:
        with _opened(draft, table, name) as old:
            if file is None or old.schema_arrow != schema:
                if file is not None:
                    file.close()
                made.append(f"{folder}part-merged-{uuid4().hex}.parquet")
                schema = old.schema_arrow
                file = PartFile(draft.lake.staged(table, made[-1]), schema)
            for batch in _batches(old):
                file.write(batch)
    if file is not None:
        file.close()
    return made


@contextmanager
def _opened(draft: Draft, table: str, name: str) -> Iterator[pq.ParquetFile]:
    """Open a file whose rows are copied.

    `LakeDamaged` is raised if it is not what was written; the checksum of a copy would hide that.
    """
    if name not in draft.staged.get(table, ()):
        draft.lake.check_file(table, name)
    system, inner = filesystem(draft.path(table, name))
    with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
        yield old


def _folder(name: str) -> str:
    """Return the folder of a file within that of its table: empty, or ``day=.../``."""
    return name[: name.rfind("/") + 1]


def _batches(file: pq.ParquetFile) -> Iterable[pa.RecordBatch]:
    """Return the rows of a file, or one empty batch with its columns if it has no rows."""
    if file.metadata.num_rows:
        return cast(Iterable[pa.RecordBatch], file.iter_batches())
    return [pa.RecordBatch.from_pylist([], file.schema_arrow)]


def _copy_without(draft: Draft, table: str, name: str, sources: Iterable[str]) -> str:
    """Stage a copy of a file without the rows of some sources; return its name."""
    new = f"{name.rpartition('-')[0].removesuffix('-copy')}-copy-{uuid4().hex}.parquet"
    draft.lake.make_staging([f"{table}/{_folder(name)}"])
    gone = pa.array(sorted(sources), pa.string())
    with _opened(draft, table, name) as old:
        path, private = draft.lake.staged(table, new), not is_shown(table)
        file = PartFile(path, old.schema_arrow, private=private)
        for batch in _batches(old):
            file.write(batch.filter(pc.invert(pc.is_in(batch["source"], gone))))
        file.close()
    return new


# --- by day ---------------------------------------------------------------------------------

_TIMES: Final = (
    "captured_ns", "delivered_ns", "begun_ns", "requested_ns", "opened_ns", "from_ns", "sent_ns",
    "first_ns", "minute_ms", "sent_ms", "first_ms",
)  # fmt: skip
"""Columns that give the day of a row: the first of them that is not null."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAYS_AT_ONCE: Final = 16
"""Files that a task writes at once; each holds a row group."""
_DAY_S: Final = 24 * 60 * 60
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
"""The days since 1970 that a date can represent; times on the wire may be outside of them."""
_Split = tuple[str, str, list[str]]
"""A table, a file of it, and the files that it has become."""


def split_by_day(runner: Runner, draft: Draft) -> None:
    """Move new files to the folders of their days, if the lake is partitioned by day.

    A file with rows of one day is moved; one with rows of several days is split into a file a day.
    """
    lake = draft.lake
    if lake.partition_by is None:
        return
    new = [
        (table, name)
        for table, names in draft.staged.items()
        for name in names
        if is_shown(table) and not _folder(name)
    ]
    become: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    work = partial(_split_file, staging=lake.staged(""))
    for table, name, files in runner.run(new, work, _Split):
        become[table][name] = files
    for table, names in become.items():
        draft.replace_files(table, names)


def _split_file(file: tuple[str, str], staging: str) -> Iterator[_Split]:
    """Split a staged file into files of a day each."""
    table, name = file
    folder = f"{staging}/{table}"
    system, inner = filesystem(f"{folder}/{name}")
    with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
        times = [column for column in _TIMES if column in old.schema_arrow.names]
        # A file without rows belongs to no day.
        days = sorted(_days(old, times)) or [NO_DAY]
        become = [f"day={day}/{name}" for day in days]
        for new in become:
            system.create_dir(filesystem(f"{folder}/{_folder(new)}")[1], recursive=True)
        for first in range(0, len(days) if len(days) > 1 else 0, _DAYS_AT_ONCE):
            wanted = days[first : first + _DAYS_AT_ONCE]
            files = {
                day: PartFile(f"{folder}/day={day}/{name}", old.schema_arrow) for day in wanted
            }
            for batch in old.iter_batches():
                of_row = _days_of(batch.select(times))
                for day in set(pc.unique(of_row).to_pylist()) & files.keys():
                    files[day].write(batch.filter(pc.equal(of_row, day)))
            for each in files.values():
                each.close()
    with writing(f"{folder}/{name}"):
        if len(days) == 1:
            move_file(f"{folder}/{name}", f"{folder}/{become[0]}")
        else:
            system.delete_file(inner)
    yield table, name, become


def _days(file: pq.ParquetFile, times: Sequence[str]) -> set[str]:
    """Return the days that a file has rows of."""
    if not times:
        return set()
    batches = file.iter_batches(columns=list(times))
    return {day for batch in batches for day in pc.unique(_days_of(batch)).to_pylist()}


def _days_of(times: pa.RecordBatch) -> pa.Array:
    """Return the day of each row in UTC, as text."""
    day = pa.nulls(times.num_rows, pa.date32())
    for name, column in zip(times.schema.names, times.columns, strict=True):
        per_day = _DAY_S * (10**9 if name.endswith("_ns") else 10**3)
        days = np.floor_divide(column.fill_null(0).to_numpy(zero_copy_only=False), per_day)
        none = column.is_null().to_numpy(zero_copy_only=False) | (days < _FIRST) | (days > _LAST)
        of_column = pa.array(np.where(none, 0, days).astype(np.int32), mask=none)
        day = pc.coalesce(day, of_column.cast(pa.date32()))
    return pc.fill_null(day.cast(pa.string()), NO_DAY)
