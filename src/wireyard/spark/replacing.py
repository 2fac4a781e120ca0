"""Taking the rows of inputs that have changed out of the lake's files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.lake.snapshot import DamagedFile
from wireyard.layers.tables import FACTS
from wireyard.spark.lake import Change, Input, Lake
from wireyard.spark.parts import PartFile
from wireyard.streams.source import filesystem

__all__ = ["drop_damaged", "drop_inputs"]


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
