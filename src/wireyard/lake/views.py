"""Views: folders that show one commit of a local lake to engines that read folders.

::

    DIR/_wireyard/views/00000012/<table>/*.parquet   the files of commit 12, hard links to the data
    DIR/_wireyard/newest -> views/00000012           the one switch, replaced by a rename
    DIR/<table> -> _wireyard/newest/<table>

A view is built under a hidden name and renamed when it is complete; then the switch is replaced. So
all tables show the same commit until the next one. A resolved path (``readlink -f``) stays readable
until the view expires. In a copy of a lake by a program that follows links, such as ``scp -r``,
folders are in the place of links; the next run replaces them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from uuid import uuid4

__all__ = ["delete_views", "publish_view", "shown_commit"]

_VIEWS, _NEWEST = "_wireyard/views", "_wireyard/newest"
_DIGITS = 8


def shown_commit(root: str) -> int:
    """Return the number of the commit that the folders show; 0 if they show none."""
    with suppress(OSError, ValueError):
        return int(os.path.basename(os.readlink(f"{root}/{_NEWEST}")))
    return 0


def publish_view(root: str, number: int, files: Mapping[str, Mapping[str, str]]) -> None:
    """Make the folders of a lake show a commit; repeat it after a crash.

    Parameters
    ----------
    files
        The paths of its files, by table and name.
    """
    view = f"{_VIEWS}/{number:0{_DIGITS}d}"
    if not os.path.isdir(f"{root}/{view}"):
        hidden = f"{root}/{_VIEWS}/.{uuid4().hex}"
        for table, paths in files.items():
            os.makedirs(f"{hidden}/{table}")
            for name, path in paths.items():
                os.makedirs(os.path.dirname(f"{hidden}/{table}/{name}"), exist_ok=True)
                os.link(path, f"{hidden}/{table}/{name}")
        os.makedirs(hidden, exist_ok=True)
        os.rename(hidden, f"{root}/{view}")
    for table in files:
        if not os.path.islink(f"{root}/{table}"):
            _link(root, f"{_NEWEST}/{table}", table)
    _link(root, os.path.relpath(view, os.path.dirname(_NEWEST)), _NEWEST)


def delete_views(root: str, kept: Iterable[int]) -> None:
    """Delete all views except those of some commits, and the remains of killed builders."""
    names = {f"{number:0{_DIGITS}d}" for number in kept}
    with suppress(FileNotFoundError):
        for name in set(os.listdir(f"{root}/{_VIEWS}")) - names:
            shutil.rmtree(f"{root}/{_VIEWS}/{name}")


def _link(root: str, target: str, name: str) -> None:
    """Create or replace a symbolic link atomically; a folder in its place becomes remains."""
    hidden, path = f"{root}/_wireyard/.{uuid4().hex}", f"{root}/{name}"
    os.symlink(target, hidden)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, f"{root}/{_VIEWS}/.{uuid4().hex}")
    os.replace(hidden, path)
