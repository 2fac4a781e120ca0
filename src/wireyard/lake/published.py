"""Publishing a lake's commits as open tables (Delta, Iceberg), instead of folders (`lake.views`).

A table is brought to the newest commit in one transaction: missing files are added, others are
removed. So after a crash it is enough to publish again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from importlib import import_module
from types import ModuleType
from typing import Final

from pyarrow import fs

from wireyard.errors import LakeDamaged, LakeError
from wireyard.lake.inside import files_below, replace_file
from wireyard.lake.records import DataFile, is_shown
from wireyard.lake.snapshot import LakeSnapshot

OPEN_FORMATS: Final = {
    "delta": ("deltalake", "deltalake.exceptions", "DeltaError"),
    "iceberg": ("pyiceberg", "pyiceberg.exceptions", "CommitFailedException"),
}
"""By format, which is also the name of a module here: the package that it needs, and the module and
class of the error that the package raises if another writer has changed a table."""

_MARKER_BYTES: Final = 32
"""Longer than the number of a commit."""


def publish_tables(lake: LakeSnapshot, format: str) -> None:
    """Update the open tables to the commit of a lake.

    A `LakeError` is raised if the package is not installed, or another writer has changed a table
    in the meantime.
    """
    marker = lake.inner(f"_wireyard/{format}.json")
    reading = suppress(FileNotFoundError, ValueError, RecursionError)
    with reading, lake.system.open_input_stream(marker) as file:
        if json.loads(file.read(_MARKER_BYTES)) == lake.commits:
            return
    module, conflict = _module(lake, format)
    for table, files in _shown(lake).items():
        with _checking(lake, format, table, conflict):
            module.publish_table(lake, table, files)
    replace_file(lake.system, marker, json.dumps(lake.commits).encode())


def expire_tables(lake: LakeSnapshot, format: str, now: datetime, retention: timedelta) -> None:
    """Delete the files and metadata of open tables whose retention is over."""
    module, conflict = _module(lake, format)
    for table in _shown(lake):
        with _checking(lake, format, table, conflict):
            module.expire_table(lake, table, now, retention)


def _shown(lake: LakeSnapshot) -> Mapping[str, Sequence[DataFile]]:
    """Return the files of the tables for readers; no folder of them may have a link."""
    tables = {name: files for name, files in lake.record.tables.items() if is_shown(name)}
    if isinstance(lake.system, fs.LocalFileSystem):
        for table in tables:
            files_below(lake.system, lake.inner(table))
    return tables


@contextmanager
def _checking(
    lake: LakeSnapshot, format: str, table: str, conflict: type[Exception]
) -> Iterator[None]:
    """Turn errors of a format's package into one line."""
    try:
        yield
    except conflict as error:
        raise LakeError(f"{lake.url}: {format} table '{table}': {error}") from None
    except (LakeError, OSError):
        raise
    except Exception as error:
        # The packages rely on what they read, and fail in any way if it is damaged.
        reason = " ".join(str(error).split())
        raise LakeDamaged(
            f"{lake.url}: {format} table '{table}': its metadata is damaged: {reason}"
        ) from error


def _module(lake: LakeSnapshot, format: str) -> tuple[ModuleType, type[Exception]]:
    package, errors, name = OPEN_FORMATS[format]
    try:
        conflict: type[Exception] = getattr(import_module(errors), name)
        return import_module(f"wireyard.lake.{format}"), conflict
    except ImportError:
        raise LakeError(
            f"{lake.url}: has {format} tables, and {package} is not installed;"
            f" pip install 'wireyard[{format}]'"
        ) from None
