"""Rewrites of a lake's files: without the rows of changed inputs, merged, and split by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.lake.commits import move_file
from wireyard.lake.records import NO_DAY, DataFile, is_shown
from wireyard.lake.snapshot import DamagedFile
from wireyard.layers.tables import FACTS
from wireyard.spark.lake import Change, Input, Lake, writing
from wireyard.spark.parts import PartFile, measure
from wireyard.spark.running import Runner
from wireyard.streams.source import filesystem

__all__ = [
    "OPEN_PREFIX",
    "OPEN_STATES",
    "compact",
    "drop_damaged",
    "drop_inputs",
    "is_provisional",
    "split_by_day",
]

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


def drop_inputs(lake: Lake, changed: Collection[str], related: Collection[str]) -> Change:
    """Stage copies of files without the rows of some inputs; return the change that uses them.

    Parameters
    ----------
    changed
        Sources of the lake whose rows are removed. Files that they share with others are copied
        without their rows; all other files of theirs are removed.
    related
        Sources whose packets stay, and whose facts are removed.
    """
    remove: dict[str, list[str]] = {}
    append: dict[str, list[str]] = {}
    stays: dict[str, Input] = {}
    for table in list(lake.files):
        gone = {*changed, *related} if table in FACTS else set(changed)
        for name in {name for one in gone for name in lake.inputs[one].files.get(table, ())}:
            remove.setdefault(table, []).append(name)
            sharers = [
                stays.get(each.source, each)
                for each in lake.inputs.values()
                if name in each.files.get(table, ()) and each.source not in gone
            ]
            if not sharers:
                continue
            new = _copy_without(lake, table, name, gone)
            append.setdefault(table, []).append(new)
            for each in sharers:
                kept = [new if file == name else file for file in each.files[table]]
                stays[each.source] = replace(each, files={**each.files, table: kept})
    for one in related:
        each = stays.get(one, lake.inputs[one])
        kept_files = {table: names for table, names in each.files.items() if table not in FACTS}
        stays[one] = replace(each, files=kept_files)
    return Change(tuple(stays.values()), remove, append)


def drop_damaged(lake: Lake, damaged: Collection[DamagedFile]) -> Change:
    """Stage the removal of damaged files, and of all inputs that had rows in them.

    The next run over such an input reads it as a new one.
    """
    names = {(each.table, each.file.name) for each in damaged}
    lost = {
        source
        for source, each in lake.inputs.items()
        if any((table, name) in names for table, files in each.files.items() for name in files)
    }
    change = drop_inputs(lake, lost, ())
    remove = {table: list(files) for table, files in change.remove.items()}
    for table, name in names:
        if name not in remove.setdefault(table, []):
            remove[table].append(name)
    return replace(change, remove=remove, forget=frozenset(lost))


def compact(lake: Lake, change: Change) -> Change:
    """Stage merged files in place of many small ones; return the change with them.

    Files have the same size class if their lengths have the same power of 16. Once a table has 16
    files of a class, or `_MERGED_BYTES` in them, they are merged, mostly into one of the next
    class. So a row is rewritten once for each class, and a table has at most 15 files of each,
    besides those of the last run and of growing inputs.
    """
    merged: dict[str, dict[str, str]] = {}
    excluded = _files_of_growing(lake)
    for table, files in lake.record.tables.items():
        gone = {*change.remove.get(table, ()), *excluded.get(table, ())}
        by_size: defaultdict[tuple[str, int], list[DataFile]] = defaultdict(list)
        for file in files:
            if file.name not in gone and file.bytes < _MERGED_BYTES // 2:
                by_size[_folder(file.name), file.bytes.bit_length() // 4].append(file)
        for (folder, _), alike in by_size.items():
            if len(alike) >= _MERGED or sum(file.bytes for file in alike) >= _MERGED_BYTES:
                paths = [lake.path_of(table, file) for file in alike]
                new = _merge(lake, table, folder, paths)
                merged.setdefault(table, {}).update((file.name, new) for file in alike)
    if not merged:
        return change
    inputs = {each.source: each for each in change.inputs}
    for source, held in lake.inputs.items():
        each = inputs.get(source, held)
        files_now = {
            table: list(dict.fromkeys(merged.get(table, {}).get(name, name) for name in names))
            for table, names in each.files.items()
        }
        if files_now != each.files:
            inputs[source] = replace(each, files=files_now)
    remove = {table: list(names) for table, names in change.remove.items()}
    append = {table: list(names) for table, names in change.append.items()}
    for table, new_names in merged.items():
        remove.setdefault(table, []).extend(new_names)
        append.setdefault(table, []).extend(dict.fromkeys(new_names.values()))
    return replace(change, inputs=tuple(inputs.values()), remove=remove, append=append)


def _files_of_growing(lake: Lake) -> dict[str, set[str]]:
    """Return the files of growing inputs that will be replaced soon, by table."""
    files: defaultdict[str, set[str]] = defaultdict(set)
    for each in lake.record.inputs.values():
        if each.files.get(OPEN_STATES):
            for table, names in each.files.items():
                if table in FACTS:
                    files[table].update(names)
                else:
                    files[table].update(filter(is_provisional, names))
    return files


def _merge(lake: Lake, table: str, folder: str, paths: Sequence[str]) -> str:
    """Stage the rows of committed files as one file; return its name."""
    new = f"{folder}part-merged-{uuid4().hex}.parquet"
    lake.make_staging([f"{table}/{folder}"])
    file: PartFile | None = None
    for path in paths:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
            file = file or PartFile(lake.staged(table, new), old.schema_arrow)
            for batch in _batches(old):
                file.write(batch)
    if file is not None:
        file.close()
    return new


def _folder(name: str) -> str:
    """Return the folder of a file within that of its table: empty, or ``day=.../``."""
    return name[: name.rfind("/") + 1]


def _batches(file: pq.ParquetFile) -> Iterable[pa.RecordBatch]:
    """Return the rows of a file, or one empty batch with its columns if it has no rows."""
    if file.metadata.num_rows:
        return cast(Iterable[pa.RecordBatch], file.iter_batches())
    return [pa.RecordBatch.from_pylist([], file.schema_arrow)]


def _copy_without(lake: Lake, table: str, name: str, sources: Collection[str]) -> str:
    """Stage a copy of a committed file without the rows of some sources; return its name."""
    new = f"{_folder(name)}part-copy-{uuid4().hex}.parquet"
    lake.make_staging([f"{table}/{_folder(name)}"])
    gone = pa.array(sorted(sources), pa.string())
    system, inner = filesystem(lake.path(table, name))
    with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
        file = PartFile(lake.staged(table, new), old.schema_arrow)
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
_FEW_BYTES: Final = 64 << 20
_DAY_S: Final = 24 * 60 * 60
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
"""The days since 1970 that a date can represent; times on the wire may be outside of them."""
_SPLIT: Final = pa.schema([("name", pa.string()), ("become", pa.list_(pa.string()))])


def split_by_day(runner: Runner, lake: Lake, change: Change) -> Change:
    """Move staged files to the folders of their days, if the lake is partitioned by day.

    A file with rows of one day is moved; one with rows of several days is split into a file a day.
    """
    if lake.partition_by is None:
        return change
    new = [
        (table, name)
        for table, names in change.append.items()
        for name in names
        if is_shown(table) and not _folder(name)
    ]
    few = sum(measure(lake.staged(*one))[1] for one in new) <= _FEW_BYTES
    become: dict[tuple[str, str], list[str]] = {}
    work = partial(_split_file, staging=lake.staged(""))
    for row in runner.run(new, work, _SPLIT, here=few).to_pylist():
        table, _, name = row["name"].partition("/")
        become[table, name] = row["become"]

    def names_after(table: str, names: Iterable[str]) -> list[str]:
        return [after for name in names for after in become.get((table, name), [name])]

    append = {table: names_after(table, names) for table, names in change.append.items()}
    inputs = tuple(
        replace(
            each, files={table: names_after(table, names) for table, names in each.files.items()}
        )
        for each in change.inputs
    )
    return replace(change, inputs=inputs, append=append)


def _split_file(file: tuple[str, str], staging: str) -> Iterator[pa.RecordBatch]:
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
    yield pa.RecordBatch.from_pylist([{"name": f"{table}/{name}", "become": become}], _SPLIT)


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
