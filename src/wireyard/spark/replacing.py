"""Files written anew: without the rows of inputs that have changed, or several as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.lake.commits import DataFile
from wireyard.lake.snapshot import DamagedFile
from wireyard.layers.tables import FACTS
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.parts import PartFile
from wireyard.streams.source import filesystem

__all__ = [
    "OPEN_PREFIX",
    "OPEN_STATES",
    "compact",
    "drop_damaged",
    "drop_inputs",
    "is_of_open",
]

OPEN_STATES: Final = "_open"
"""The table of what inputs that grow are read on from."""
OPEN_PREFIX: Final = "open-"
"""What the names of files begin with that the next part of their input takes out again."""
_MERGED: Final = 16
"""How many files of a size become one."""
_MERGED_BYTES: Final = 64 << 20
"""Files of this size are left alone."""


def is_of_open(name: str) -> bool:
    """Tell whether a file is taken out when its input has grown."""
    return name.startswith(OPEN_PREFIX)


def drop_inputs(lake: Lake, changed: Collection[str], related: Collection[str]) -> Change:
    """Stage what the lake's files are without some inputs; return the change that makes them so.

    Parameters
    ----------
    changed
        Sources that the lake holds. Files that others share with them are written anew without
        their rows, the rest goes.
    related
        Sources whose packets stay, and whose facts go.
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
            lake.make_staging([table])
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
    """Stage what the lake is without damaged files, and without the inputs that had rows in them.

    The next run that is given such an input reads it as a new one.
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
    """Stage small files as larger ones where many have gathered; return the change with them.

    Files are of a size if their lengths have the same power of 16. Once a table has 16 of a size,
    they become one file, which mostly is of the next size: a row is written anew once for each size
    that there is, and a table has 15 files of each at most, besides those of the last run, and of
    inputs that grow.
    """
    becomes: dict[str, dict[str, str]] = {}
    open_now = _of_open(lake)
    for table, files in lake.record.tables.items():
        gone = {*change.remove.get(table, ()), *open_now.get(table, ())}
        by_size: defaultdict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            if file.name not in gone and file.bytes < _MERGED_BYTES:
                by_size[file.bytes.bit_length() // 4].append(file)
        for alike in by_size.values():
            if len(alike) >= _MERGED:
                new = _merge(lake, table, [lake.path_of(table, file) for file in alike])
                becomes.setdefault(table, {}).update((file.name, new) for file in alike)
    if not becomes:
        return change
    inputs = {each.source: each for each in change.inputs}
    for source, held in lake.inputs.items():
        each = inputs.get(source, held)
        files_now = {
            table: list(dict.fromkeys(becomes.get(table, {}).get(name, name) for name in names))
            for table, names in each.files.items()
        }
        if files_now != each.files:
            inputs[source] = replace(each, files=files_now)
    remove = {table: list(names) for table, names in change.remove.items()}
    append = {table: list(names) for table, names in change.append.items()}
    for table, names_now in becomes.items():
        remove.setdefault(table, []).extend(names_now)
        append.setdefault(table, []).extend(dict.fromkeys(names_now.values()))
    return replace(change, inputs=tuple(inputs.values()), remove=remove, append=append)


def _of_open(lake: Lake) -> dict[str, set[str]]:
    """Return the files that the next part of an input takes out of their tables."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in lake.record.inputs.values():
        if each.files.get(OPEN_STATES):
            for table, names in each.files.items():
                if table in FACTS:
                    found[table].update(names)
                else:
                    found[table].update(filter(is_of_open, names))
    return found


def _merge(lake: Lake, table: str, paths: Sequence[str]) -> str:
    """Stage the rows of committed files as one file; return its name."""
    new = f"part-merged-{uuid4().hex}.parquet"
    lake.make_staging([table])
    file: PartFile | None = None
    for path in paths:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
            file = file or PartFile(lake.staged(table, new), old.schema_arrow)
            # An empty file has no batch, and one of empty files has to have its columns.
            for batch in old.iter_batches() if old.metadata.num_rows else [_no_rows(old)]:
                file.write(batch)
    if file is not None:
        file.close()
    return new


def _no_rows(file: pq.ParquetFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], file.schema_arrow)


def _copy_without(lake: Lake, table: str, name: str, sources: Collection[str]) -> str:
    """Stage a copy of a committed file without the rows of some sources; return its name."""
    new = f"part-copy-{uuid4().hex}.parquet"
    gone = pa.array(sorted(sources), pa.string())
    system, inner = filesystem(lake.path(table, name))
    with system.open_input_file(inner) as opened, pq.ParquetFile(opened) as old:
        file = PartFile(lake.staged(table, new), old.schema_arrow)
        for batch in old.iter_batches():
            file.write(batch.filter(pc.invert(pc.is_in(batch["source"], gone))))
        file.close()
    return new
