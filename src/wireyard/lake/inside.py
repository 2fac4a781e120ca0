"""Files inside the folder of a lake: nothing else is read, moved or deleted.

The lake may come from others, and a link in it may lead anywhere. So no link is followed within
``_wireyard``, nor in the folders of open tables. Two kinds of links are part of a lake
(`lake.views`), and nothing is deleted through them: ``_wireyard/newest``, and ``DIR/<table>`` in a
lake of Parquet files.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

from pyarrow import fs

from wireyard.errors import LakeError

TEMPORARY_NAME: Final = re.compile(r"\.(?:.+-)?[0-9a-f]{32}")
"""Name of a file or a link of a writer that may have been killed before it renamed it."""
_OWN_LINK: Final = re.compile(rf"newest|{TEMPORARY_NAME.pattern}")


def check_links(root: str) -> None:
    """Check that ``_wireyard`` in a local folder is no link, and has none but those of a lake.

    A `LakeError` is raised if there is another link; the text names it.
    """
    own = f"{root}/_wireyard"
    _check(own)
    for folder in (own, f"{own}/views"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if not _OWN_LINK.fullmatch(name):
                _check(f"{folder}/{name}")


def files_below(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Return all files in a folder and in the folders in it; none if there is no such folder.

    A `LakeError` is raised if it is a local folder, and is a link or has one; the text names it.
    """
    if not isinstance(system, fs.LocalFileSystem):
        infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [info for info in infos if info.type == fs.FileType.File]
    _check(folder)
    found: list[fs.FileInfo] = []
    waiting = [folder] if os.path.isdir(folder) else []
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                _check(entry)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                with suppress(FileNotFoundError):  # a run that ends deletes what it did not commit
                    found.append(_info_of(entry))
    return found


def _info_of(entry: os.DirEntry[str]) -> fs.FileInfo:
    state = entry.stat(follow_symlinks=False)
    return fs.FileInfo(entry.path, fs.FileType.File, size=state.st_size, mtime=state.st_mtime)


def _check(path: str | os.DirEntry[str]) -> None:
    if path.is_symlink() if isinstance(path, os.DirEntry) else os.path.islink(path):
        raise LakeError(f"{os.fspath(path)} is a link, which may lead out of the lake; remove it")
