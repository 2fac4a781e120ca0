"""Folders in which only this user can write, for code and tables that are kept."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = __name__.partition(".")[0]


def private_folder(name: str) -> Path | None:
    """Return a folder in the user's cache, or else in the folder for temporary files.

    Only this user can write to it; None if there is no such folder.
    """
    owner = os.getuid() if hasattr(os, "getuid") else None
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in (Path(user_cache), Path(tempfile.gettempdir())):
        private = base / f"{PACKAGE}-{owner}"
        # A user unknown to the system has no home, and "~" is left as it is.
        if base.is_absolute() and writable(private) and _is_private(private, owner):
            return writable(private / name)
    return None


def writable(folder: Path) -> Path | None:
    """Return a folder, made if it is missing, if files can be written to it; else None."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def _is_private(folder: Path, owner: int | None) -> bool:
    """Return whether only this user can write to `folder`, whose code we would run."""
    status = folder.lstat()
    return owner is None or (
        stat.S_ISDIR(status.st_mode) and status.st_uid == owner and not status.st_mode & 0o022
    )
