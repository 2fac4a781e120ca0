"""The tables of a lake as Iceberg tables, by the pyiceberg package: ``DIR/<table>/metadata``.

An Iceberg table follows the commits of the lake (`lake.published`). It refers to files by absolute
paths, so they stay where tasks wrote them. The folder is the catalog: ``v12.metadata.json`` is
created exclusively, as commits of the lake are, and ``version-hint.text`` names the newest version
for readers that open a table by its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from wireyard.lake.inside import replace_file
from wireyard.lake.records import DataFile
from wireyard.lake.snapshot import LakeSnapshot
from wireyard.streams.source import create_file

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

_COMMIT: Final = "wireyard_commit"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_RETRIES: Final = "commit.retry.num-retries"
_PROPERTIES: Final = {_NAME_MAPPING, _RETRIES}
_METADATA: Final = re.compile(r"v(\d+)\.metadata\.json")
_HINT: Final = "version-hint.text"


def publish_table(lake: LakeSnapshot, table: str, files: Sequence[DataFile]) -> None:
    """Update an Iceberg table to the present files of a table, in one snapshot.

    A `CommitFailedException` is raised if another writer has changed it in the meantime.
    """
    folder = _Folder(lake, table)
    iceberg = folder.load()
    if iceberg is None:
        if not files:
            return
        iceberg = folder.create(files[0])
    held = {task.file.file_path: task.file for task in iceberg.scan().plan_files()}
    wanted = [_url(lake.path_of(table, file)) for file in files if file.rows]
    new = [path for path in wanted if path not in held]
    gone = held.keys() - set(wanted)
    if not new and not gone:
        return
    with iceberg.transaction() as change:
        properties = {_COMMIT: str(lake.commits)}
        with change.update_snapshot(snapshot_properties=properties).overwrite() as snapshot:
            for path in gone:
                snapshot.delete_data_file(held[path])
            for file in parquet_files_to_data_files(iceberg.io, iceberg.metadata, iter(new)):
                snapshot.append_data_file(file)


def expire_table(lake: LakeSnapshot, table: str, now: datetime, retention: timedelta) -> None:
    """Delete snapshots whose retention is over, and the metadata that only they use."""
    folder = _Folder(lake, table)
    iceberg = folder.load()
    if iceberg is None:
        return
    before_ms = int((now - retention).timestamp() * 1000)
    # The retention of a snapshot begins with the next snapshot.
    times = [each.timestamp_ms for each in iceberg.metadata.snapshots]
    over = [
        each.snapshot_id
        for each, after_ms in zip(iceberg.metadata.snapshots, times[1:], strict=False)
        if after_ms < before_ms
    ]
    if over:
        iceberg.maintenance.expire_snapshots().by_ids(over).commit()
    folder.delete_old(iceberg, now - retention)


class _Folder(NoopCatalog):
    """The catalog of one table: the numbered files in its folder."""

    def __init__(self, lake: LakeSnapshot, table: str) -> None:
        super().__init__("wireyard")
        self._lake = lake
        self._table = table
        self._url = _url(f"{lake.root}/{table}")
        self._io = load_file_io(_properties(), self._url)

    def load(self) -> Table | None:
        """Return the table; None if there is none yet."""
        number = max(self._numbers(), default=0)
        if not number:
            return None
        path = self._path(number)
        metadata = FromInputFile.table_metadata(self._io.new_input(path))
        # Other places or properties would let the package write elsewhere, or import modules.
        if metadata.location != self._url or not metadata.properties.keys() <= _PROPERTIES:
            raise ValueError("its place or its properties are not those of the lake")
        return self._as_table(metadata, number)

    def create(self, file: DataFile) -> Table:
        """Create an empty table with the columns of a file."""
        lake = self._lake
        with lake.system.open_input_file(lake.inner_of(self._table, file)) as opened:
            schema = self._convert_schema_if_needed(pq.read_schema(opened))
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, self._url
        )
        # The files have no column ids, so readers match columns by name. A failed commit is not
        # retried, because another run may have added the same files.
        mapping = metadata.schema().name_mapping.model_dump_json()
        properties = {_NAME_MAPPING: mapping, _RETRIES: "0"}
        metadata = metadata.model_copy(update={"properties": properties})
        self._write(1, metadata)
        return self._as_table(metadata, 1)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Write the next version of the metadata, unless another writer has."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(
            table.metadata, updates, metadata_location=table.metadata_location
        )
        number = _number(table.metadata_location) + 1
        self._write(number, metadata)
        return CommitTableResponse.model_validate(
            {"metadata": metadata, "metadata-location": self._path(number)}
        )

    def delete_old(self, table: Table, before: datetime) -> None:
        """Delete metadata that was written before a time and is no longer in use."""
        current = _number(table.metadata_location)
        kept = {f"v{current}.metadata.json", _HINT}
        for snapshot in table.metadata.snapshots:
            kept.add(snapshot.manifest_list.rpartition("/")[2])
            manifests = snapshot.manifests(table.io)
            kept |= {manifest.manifest_path.rpartition("/")[2] for manifest in manifests}
        for info in self._files():
            if info.base_name not in kept and (info.mtime or before) < before:
                self._lake.system.delete_file(info.path)

    def _as_table(self, metadata: TableMetadata, number: int) -> Table:
        return Table((self._table,), metadata, self._path(number), self._io, self)

    def _write(self, number: int, metadata: TableMetadata) -> None:
        lake, folder = self._lake, f"{self._table}/metadata"
        try:
            content = metadata.model_dump_json().encode()
            create_file(f"{lake.root}/{folder}/v{number}.metadata.json", content)
        except FileExistsError:
            raise CommitFailedException(f"version {number} is there already") from None
        # With two writers the hint may name the older version; readers then see that one.
        replace_file(lake.system, lake.inner(folder, _HINT), str(number).encode())

    def _path(self, number: int) -> str:
        return f"{self._url}/metadata/v{number}.metadata.json"

    def _numbers(self) -> list[int]:
        names = (_METADATA.fullmatch(info.base_name) for info in self._files())
        return [int(name[1]) for name in names if name]

    def _files(self) -> list[fs.FileInfo]:
        folder = self._lake.inner(self._table, "metadata")
        found = self._lake.system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info for info in found if info.type == fs.FileType.File]


def _number(path: str) -> int:
    match = _METADATA.fullmatch(path.rpartition("/")[2])
    assert match is not None
    return int(match[1])


def _url(path: str) -> str:
    return path if "://" in path else f"file://{path}"


def _properties() -> dict[str, Any]:
    """Return the properties that pyiceberg does not read from the environment itself."""
    names = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_DEFAULT_REGION"}
    return {name: os.environ[key] for name, key in names.items() if key in os.environ}
