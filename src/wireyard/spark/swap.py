"""Two folders that change places."""

from __future__ import annotations

import ctypes
import os

__all__ = ["swap_folders"]

_FROM_HERE = -100  # AT_FDCWD: paths count from the working directory, and ours are absolute
_EXCHANGE = 2  # RENAME_EXCHANGE


def swap_folders(new: str, path: str) -> None:
    """Put the folder `new` in the place of `path`; what was there is then at or beside `new`.

    One step on Linux, if the file system can; elsewhere two renames, between which nothing is at
    `path`.
    """
    if not os.path.isdir(path):
        os.rename(new, path)
    elif not _exchange(new, path):
        os.rename(path, f"{new}.old")
        os.rename(new, path)


def _exchange(one: str, other: str) -> bool:
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    done: int = renameat2(_FROM_HERE, names[0], _FROM_HERE, names[1], _EXCHANGE)
    return done == 0
