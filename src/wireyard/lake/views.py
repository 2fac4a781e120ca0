"""Views: folders that show one commit of a local lake to engines that read folders.

::

    DIR/_wireyard/views/00000012/<table>/*.parquet   the files of commit 12, hard links to the data
    DIR/_wireyard/newest -> views/00000012           the one switch, replaced by a rename
    DIR/<table> -> _wireyard/newest/<table>

A view is built under a hidden name and renamed when it is complete; then the switch is replaced. So
all tables show the same commit until the next one. A resolved path (``readlink -f``) stays readable
until the view expires. In a copy of a lake by a program that follows links, such as ``scp -r``,
folders are in the place of links; the next run replaces them, if they have files of the lake alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import uuid4

from wireyard.errors import LakeError
from wireyard.lake.inside import files_below
from wireyard.lake.records import is_shown
from wireyard.lake.snapshot import LakeSnapshot

_VIEWS, _NEWEST = "_wireyard/views", "_wireyard/newest"
_DIGITS = 8
_VIEW_NAME: Final = re.compile(r"[0-9]{8,}|\.[0-9a-f]{32}")
"""Name of a view, or of the remains of one."""


def shown_commit(root: str) -> int:
    """Return the number of the commit that the folders show; 0 if they show none."""
    with suppress(OSError, ValueError):
        return int(os.path.basename(os.readlink(f"{root}/{_NEWEST}")))
    return 0


def publish_view(lake: LakeSnapshot) -> None:
    """Make the folders of a local lake show its commit; repeat it after a crash.

    A `LakeError` is raised if in the place of a table is something that the lake has not written.
    """
    root = lake.root
    tables = {name: files for name, files in lake.record.tables.items() if is_shown(name)}
    for table in tables:
        _check_place(lake, table)
    view = f"{_VIEWS}/{lake.commits:0{_DIGITS}d}"
    if not os.path.isdir(f"{root}/{view}"):
        hidden = f"{root}/{_VIEWS}/.{uuid4().hex}"
        for table, files in tables.items():
            os.makedirs(f"{hidden}/{table}")
            for file in files:
                os.makedirs(os.path.dirname(f"{hidden}/{table}/{file.name}"), exist_ok=True)
                os.link(lake.inner_of(table, file), f"{hidden}/{table}/{file.name}")
        os.makedirs(hidden, exist_ok=True)
        os.rename(hidden, f"{root}/{view}")
    for table in tables:
        if not os.path.islink(f"{root}/{table}"):
            _link(root, f"{_NEWEST}/{table}", table)
    _link(root, os.path.relpath(view, os.path.dirname(_NEWEST)), _NEWEST)


def _check_place(lake: LakeSnapshot, table: str) -> None:
    """Check that nothing but a link, or a copy of the table's own files, is in a table's place."""
    path = lake.inner(table)
    if os.path.islink(path) or not os.path.lexists(path):
        return
    own = {(file.name, file.bytes) for file in lake.record.tables[table]}
    own |= {(one.file.name, one.file.bytes) for one in lake.record.removed if one.table == table}
    found = {(file.path[len(path) + 1 :], file.size) for file in files_below(lake.system, path)}
    if not os.path.isdir(path) or not found <= own:
        raise LakeError(
            f"{lake.url}: {path} has not been written by the lake; move it away, a link to the"
            " table belongs there"
        )


def delete_views(root: str, kept: Iterable[int]) -> None:
    """Delete all views except those of some commits, and the remains of killed builders."""
    names = {f"{number:0{_DIGITS}d}" for number in kept}
    with suppress(FileNotFoundError):
        for name in filter(_VIEW_NAME.fullmatch, set(os.listdir(f"{root}/{_VIEWS}")) - names):
            shutil.rmtree(f"{root}/{_VIEWS}/{name}")


def _link(root: str, target: str, name: str) -> None:
    """Create or replace a symbolic link atomically; a folder in its place becomes remains."""
    hidden, path = f"{root}/_wireyard/.{uuid4().hex}", f"{root}/{name}"
    os.symlink(target, hidden)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, f"{root}/{_VIEWS}/.{uuid4().hex}")
    os.replace(hidden, path)
