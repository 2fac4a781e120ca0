"""The tables of a lake as Delta tables, by the deltalake package: ``DIR/<table>/_delta_log``.

A Delta table follows the commits of the lake (`lake.published`). Delta needs files within the
folder of the table: they are hard-linked there, or copied by the object store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow import fs

from wireyard.lake.records import FILE_NAME, NO_DAY, DataFile
from wireyard.lake.snapshot import LakeSnapshot

_COMMIT: Final = "wireyard_commit"


def publish_table(lake: LakeSnapshot, table: str, files: Sequence[DataFile]) -> None:
    """Update a Delta table to the present files of a table, in one transaction."""
    folder, options = f"{lake.root}/{table}", _options()
    there = DeltaTable.is_deltatable(folder, options)
    delta = DeltaTable(folder, storage_options=options) if there else None
    held = set() if delta is None else _names(delta, folder)
    wanted = {file.name: file for file in files}
    now_ms = int(lake.record.committed_at.timestamp() * 1000)
    added = [
        AddAction(name, file.bytes, _day(name), now_ms, True, json.dumps({"numRecords": file.rows}))
        for name, file in wanted.items()
        if name not in held
    ]
    for action in added:
        _place(lake, table, wanted[action.path])
    properties = CommitProperties(custom_metadata={_COMMIT: str(lake.commits)})
    if delta is None:
        if files:
            with lake.system.open_input_file(lake.inner_of(table, files[0])) as opened:
                schema = pq.read_schema(opened)
            days = [] if lake.record.partition_by is None else [pa.field("day", pa.date32())]
            create_table_with_add_actions(
                folder,
                Schema.from_arrow(pa.schema([*schema, *days])),
                added,
                partition_by=[day.name for day in days],
                storage_options=options,
                commit_properties=properties,
            )
        return
    gone = [RemoveAction(name, True, now_ms) for name in held - wanted.keys()]
    if added or gone:
        delta.create_write_transaction(
            [*added, *gone],
            "append",
            delta.schema(),
            partition_by=delta.metadata().partition_columns,
            commit_properties=properties,
        )


def _place(lake: LakeSnapshot, table: str, file: DataFile) -> None:
    """Link or copy a file into the folder of its Delta table."""
    source, target = lake.inner_of(table, file), lake.inner(table, file.name)
    if isinstance(lake.system, fs.LocalFileSystem):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with suppress(FileExistsError):
            os.link(source, target)
    else:
        lake.system.copy_file(source, target)


def expire_table(lake: LakeSnapshot, table: str, now: datetime, retention: timedelta) -> None:
    """Delete the files of a Delta table that the record no longer lists; Delta's log stays."""
    listed = {file.name for file in lake.record.tables[table]}
    listed |= {each.file.name for each in lake.record.removed if each.table == table}
    folder = lake.inner(table)
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
    for info in lake.system.get_file_info(selector):
        name = info.path[len(folder) + 1 :]
        if FILE_NAME.fullmatch(name) and name not in listed:
            lake.system.delete_file(info.path)


def _names(delta: DeltaTable, folder: str) -> set[str]:
    return {uri.partition(f"{folder}/")[2] for uri in delta.file_uris()}


def _day(name: str) -> dict[str, str | None]:
    """Return the partition values of a file, by its name; the day is None for rows without one."""
    day, slash, _ = name.removeprefix("day=").partition("/")
    return {"day": None if day == NO_DAY else day} if slash else {}


def _options() -> dict[str, str] | None:
    """Return the options that deltalake does not read from the environment itself."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if plain else None
