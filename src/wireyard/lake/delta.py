"""The tables of a lake as Delta tables, by the deltalake package: ``DIR/<table>/_delta_log``.

A Delta table follows the commits of the lake, as the folders of other lakes do (`lake.views`): what
it has and the newest commit has not is removed, what it lacks is added, in one transaction a table.
So doing it again after a crash does what was left undone. Delta wants files below its table: they
get a second name there by a hard link, and in an object store a copy, which the store makes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyarrow import fs

from wireyard.errors import LakeError
from wireyard.lake.commits import DataFile
from wireyard.lake.snapshot import LakeSnapshot

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["expire_delta", "publish_delta"]

_PUBLISHED: Final = "_wireyard/delta.json"
"""The number of the commit that all tables show."""
_COMMIT: Final = "wireyard_commit"


def publish_delta(lake: LakeSnapshot) -> None:
    """Have the Delta tables show the commit of a lake.

    Raises
    ------
    LakeError
        deltalake is not installed, or a table was changed by somebody else meanwhile.
    """
    marker = lake.inner(_PUBLISHED)
    with suppress(FileNotFoundError), lake.system.open_input_stream(marker) as file:
        if json.loads(file.read()) == lake.commits:
            return
    try:
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise LakeError(
            f"{lake.url}: has Delta tables, and deltalake is not installed;"
            " pip install 'wireyard[delta]'"
        ) from None
    for table, files in lake.record.tables.items():
        try:
            _publish_table(lake, table, files)
        except DeltaError as error:
            raise LakeError(f"{lake.url}: Delta table '{table}': {error}") from None
    with lake.system.open_output_stream(marker) as file:
        file.write(json.dumps(lake.commits).encode())


def _publish_table(lake: LakeSnapshot, table: str, files: Sequence[DataFile]) -> None:
    """Make a Delta table what a table is, in one transaction."""
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

    folder, options = f"{lake.root}/{table}", _options()
    there = DeltaTable.is_deltatable(folder, options)
    delta = DeltaTable(folder, storage_options=options) if there else None
    held = set() if delta is None else _names(delta)
    wanted = {file.name: file for file in files}
    now_ms = int(lake.record.committed_at.timestamp() * 1000)
    added = [
        AddAction(name, file.bytes, {}, now_ms, True, json.dumps({"numRecords": file.rows}))
        for name, file in wanted.items()
        if name not in held
    ]
    for action in added:
        _place(lake, table, wanted[action.path])
    properties = CommitProperties(custom_metadata={_COMMIT: str(lake.commits)})
    if delta is None:
        if files:
            with lake.system.open_input_file(lake.inner_of(table, files[0])) as opened:
                schema = Schema.from_arrow(pq.read_schema(opened))
            create_table_with_add_actions(
                folder, schema, added, storage_options=options, commit_properties=properties
            )
        return
    gone = [RemoveAction(name, True, now_ms) for name in held - wanted.keys()]
    if added or gone:
        delta.create_write_transaction(
            [*added, *gone], "append", delta.schema(), commit_properties=properties
        )


def _place(lake: LakeSnapshot, table: str, file: DataFile) -> None:
    """Give a file a second name below its Delta table."""
    source, target = lake.inner_of(table, file), lake.inner(table, file.name)
    if isinstance(lake.system, fs.LocalFileSystem):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with suppress(FileExistsError):
            os.link(source, target)
    else:
        lake.system.copy_file(source, target)


def expire_delta(lake: LakeSnapshot) -> None:
    """Delete what is below Delta tables and the record lists no more; their own log stays."""
    listed = {(table, file.name) for table, files in lake.record.tables.items() for file in files}
    listed |= {(each.table, each.file.name) for each in lake.record.removed}
    for table in lake.record.tables:
        folder = fs.FileSelector(lake.inner(table), allow_not_found=True)
        for info in lake.system.get_file_info(folder):
            if info.base_name.endswith(".parquet") and (table, info.base_name) not in listed:
                lake.system.delete_file(info.path)


def _names(delta: DeltaTable) -> set[str]:
    return {uri.rpartition("/")[2] for uri in delta.file_uris()}


def _options() -> dict[str, str] | None:
    """Return what deltalake does not take from the environment by itself."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if plain else None
