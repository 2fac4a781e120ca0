"""Files inside the folder of a lake: nothing else is read, moved or deleted.

The lake may come from others, and a link in it may lead anywhere. So no link is followed within
``_wireyard``, nor in the folders of open tables. Two kinds of links are part of a lake
(`lake.views`), and nothing is deleted through them: ``_wireyard/newest``, and ``DIR/<table>`` in a
lake of Parquet files. A pipe or a device is refused too, as to read it may never end. A file may
have another name outside of the lake (a hard link), so none is written to: another one takes its
place.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Final
from uuid import uuid4

from pyarrow import fs

from wireyard.errors import LakeError

TEMPORARY_NAME: Final = re.compile(r"\.(?:.+-)?[0-9a-f]{32}")
"""Name of a file or a link of a writer that may have been killed before it renamed it."""
_OWN_LINK: Final = re.compile(rf"newest|{TEMPORARY_NAME.pattern}")


def check_links(root: str) -> None:
    """Check that ``_wireyard`` in a local folder is no link, and has none but those of a lake.

    A `LakeError` is raised if there is another link, a pipe or a device; the text names it.
    """
    own = f"{root}/_wireyard"
    check_own(own)
    for folder in (own, f"{own}/views"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if not _OWN_LINK.fullmatch(name):
                check_own(f"{folder}/{name}")


def files_below(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Return all files in a folder and in the folders in it; none if there is no such folder.

    A `LakeError` is raised if it is a local folder, and is or has a link, a pipe or a device; the
    text names it.
    """
    if not isinstance(system, fs.LocalFileSystem):
        infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [info for info in infos if info.type == fs.FileType.File]
    check_own(folder)
    found: list[fs.FileInfo] = []
    waiting = [folder] if os.path.isdir(folder) else []
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                _refuse(entry.path, entry.is_symlink(), _is_plain(entry))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                with suppress(FileNotFoundError):  # a run that ends deletes what it did not commit
                    found.append(_info_of(entry))
    return found


def _info_of(entry: os.DirEntry[str]) -> fs.FileInfo:
    state = entry.stat(follow_symlinks=False)
    return fs.FileInfo(entry.path, fs.FileType.File, size=state.st_size, mtime=state.st_mtime)


def check_own(path: str) -> None:
    """Check that a local path, if anything is there, is a file or a folder.

    A `LakeError` is raised if it is a link, a pipe or a device; the text names it.
    """
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        _refuse(path, stat.S_ISLNK(mode), stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def _refuse(path: str, is_link: bool, is_plain: bool) -> None:
    if is_link:
        raise LakeError(f"{path} is a link, which may lead out of the lake; remove it")
    if not is_plain:
        raise LakeError(f"{path} is neither a file nor a folder; remove it")


def replace_file(system: fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file of the lake anew, and into no other file that has its name."""
    folder, _, name = path.rpartition("/")
    is_local = isinstance(system, fs.LocalFileSystem)
    target = f"{folder}/.{name}-{uuid4().hex}" if is_local else path
    with system.open_output_stream(target) as file:
        file.write(content)
    if is_local:
        os.replace(target, path)
