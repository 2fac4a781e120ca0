"""Open tables follow the commits of a lake, as the folders of other lakes do (`lake.views`).

What a table has and the newest commit has not is removed, what it lacks is added, in one
transaction a table. So doing it again after a crash does what was left undone.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from types import ModuleType
from typing import Final

from wireyard.errors import LakeError
from wireyard.lake.commits import is_shown
from wireyard.lake.snapshot import LakeSnapshot

__all__ = ["OPEN_FORMATS", "expire_tables", "publish_tables"]

OPEN_FORMATS: Final = {
    "delta": ("deltalake", "deltalake.exceptions", "DeltaError"),
    "iceberg": ("pyiceberg", "pyiceberg.exceptions", "CommitFailedException"),
}
"""By the name of a format, which is that of a module of this room too: the package that it takes,
and where the error is that it has when a table was changed by somebody else."""


def publish_tables(lake: LakeSnapshot, format: str) -> None:
    """Have the open tables show the commit of a lake.

    Raises
    ------
    LakeError
        The package is not installed, or a table was changed by somebody else meanwhile.
    """
    marker = lake.inner(f"_wireyard/{format}.json")
    with suppress(FileNotFoundError), lake.system.open_input_stream(marker) as file:
        if json.loads(file.read()) >= lake.commits:
            return
    module, conflict = _module(lake, format)
    for table, files in lake.record.tables.items():
        if not is_shown(table):
            continue
        try:
            module.publish_table(lake, table, files)
        except conflict as error:
            raise LakeError(f"{lake.url}: {format} table '{table}': {error}") from None
    with lake.system.open_output_stream(marker) as file:
        file.write(json.dumps(lake.commits).encode())


def expire_tables(lake: LakeSnapshot, format: str, now: datetime, retention: timedelta) -> None:
    """Delete what open tables keep for readers of commits that are over."""
    module, _ = _module(lake, format)
    for table in filter(is_shown, lake.record.tables):
        module.expire_table(lake, table, now, retention)


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
