"""Derived tables that are kept for the next question about the same files.

Rules of this file:

1. An entry is used only if everything that it was made from is the same: wireyard's own files, the
   options, and of every input its path, device, inode, size, times of change and both ends. The
   time of the last change of an inode cannot be set back, so an edit that restores the others is
   seen. Files that changed within the last seconds before they were read are not kept: another
   change might leave the same times.
2. Only this user can write to the folder, and read it. Entries are Parquet files and JSON, as in a
   lake, so they hold no password. What was decrypted is not kept.
3. Entries that were used last stay: `MOST_BYTES` together, and `MOST_ENTRIES`, at most.
4. An entry that is incomplete, or cannot be written, is as if it were not there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import wireyard
from wireyard.accelerate.folders import private_folder
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.typed_json import from_json, to_json

MOST_BYTES: Final = 2 << 30
"""Limit for the size of all entries: a capture of 100 MB gives one of 35 MB."""
MOST_ENTRIES: Final = 256
"""Limit for their number: each is examined when one is added."""
_SETTLED_NS: Final = 2_000_000_000
_RECORD: Final = "entry.json"
_TABLES: Final = "tables"
_PATH: Final = re.compile(r"\w+/[\w-]+\.parquet")
_UNFINISHED: Final = "new-"
_UNFINISHED_S: Final = 86_400
"""Age from which on the remains of a process that ended early are removed."""


@dataclass(frozen=True)
class Entry:
    """What was derived from some inputs."""

    files: dict[str, list[str]]
    """The names of the Parquet files of each table."""
    sizes: dict[str, int]
    """The sizes of these files, by their paths within the folder of tables."""
    notes: list[str]
    lost: bool


def entry_key(found: Sequence[FoundInput], options: Mapping[str, Any], begun_ns: int) -> str | None:
    """Return the name of the entry for inputs as they are now; None if they cannot have one.

    `options` are all options with which they are read. `begun_ns` is the time, in nanoseconds since
    1970, before they were examined.
    """
    inputs = []
    for each in found:
        states = [_state(path, begun_ns) for path in each.files or (each.location or each.path,)]
        if not each.stamp or None in states:
            return None
        inputs.append([asdict(replace(each, stamp=_lasting(each.stamp))), states])
    if not inputs:
        return None
    made = json.dumps([_code(), options, inputs], sort_keys=True, default=str)
    return sha256(made.encode("utf-8", "surrogatepass")).hexdigest()


def _lasting(stamp: Any) -> Any:
    """Return a stamp, or several in one, without the items that appear once a file has settled."""
    if isinstance(stamp, list):
        return [*map(_lasting, stamp)]
    if not isinstance(stamp, Mapping):
        return stamp
    return {name: _lasting(value) for name, value in stamp.items() if name != "kept"}


def _state(path: str, begun_ns: int) -> list[Any] | None:
    """Return the state of a local file that has not changed lately, else None."""
    try:
        now = os.stat(path)
    except OSError:  # a URL, or deleted
        return None
    changed = max(now.st_mtime_ns, now.st_ctime_ns)
    if begun_ns - changed < _SETTLED_NS:
        return None
    numbers = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
    return [os.path.abspath(path), *numbers]


def _code() -> list[Any]:
    """Return the state of wireyard's own files: a newer version may derive other rows."""
    folder = Path(wireyard.__file__).parent
    stats = ((path, path.stat()) for path in sorted(folder.rglob("*.py")))
    return [[str(path), one.st_size, one.st_mtime_ns, one.st_ino] for path, one in stats]


def _root() -> Path | None:
    """Return the folder of all entries, which only this user can read."""
    folder = private_folder("answers")
    if folder is not None:
        folder.chmod(0o700)
    return folder


def find_entry(key: str, tables: str) -> Entry | None:
    """Return an entry, None if there is none, and link its files into the tables of a run.

    The files stay there if another process removes the entry.
    """
    root = _root()
    if root is None:
        return None
    folder = root / key
    try:
        entry: Entry = from_json((folder / _RECORD).read_text(), Entry)
        for path, size in entry.sizes.items():
            if not _PATH.fullmatch(path) or (folder / _TABLES / path).stat().st_size != size:
                raise ValueError(f"{path} is not as it was kept")
        for path in entry.sizes:
            _link(folder / _TABLES / path, Path(tables, path))
        os.utime(folder / _RECORD)  # it was used
    except (ValueError, OSError):  # none, or a damaged one in the place of the next
        for useless in (folder, tables):
            shutil.rmtree(useless, ignore_errors=True)
        return None
    return entry


def _link(source: Path, target: Path) -> None:
    """Give a file that nobody changes a second name, or copy it to another file system."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def keep_entry(
    key: str, tables: str, files: Mapping[str, Sequence[str]], notes: Sequence[str], lost: bool
) -> None:
    """Link the tables of a run into a new entry, and remove what was not used for longest."""
    root = _root()
    if root is None:
        return
    paths = [f"{table}/{name}" for table, names in files.items() for name in names]
    new = None
    try:
        sizes = {path: os.path.getsize(os.path.join(tables, path)) for path in paths}
        room = sum(sizes.values())
        if room > MOST_BYTES or room > shutil.disk_usage(root).free // 2:
            return
        _remove_oldest(root, MOST_BYTES - room)
        new = Path(mkdtemp(prefix=_UNFINISHED, dir=root))
        (new / _TABLES).mkdir(0o700)
        for path in paths:
            _link(Path(tables, path), new / _TABLES / path)
            (new / _TABLES / path).chmod(0o600)
        entry = Entry({table: [*names] for table, names in files.items()}, sizes, [*notes], lost)
        record = new / _RECORD
        record.touch(0o600)
        record.write_text(to_json(entry, Entry))
        new.rename(root / key)
    except OSError:  # the disk is full, or another process has just kept the same
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _remove_oldest(root: Path, most_bytes: int) -> None:
    """Remove entries, the least recently used first, until there is room for another one.

    `most_bytes` is the most bytes of those that stay.
    """
    by_use = []
    for folder in root.iterdir():
        if folder.name.startswith(_UNFINISHED):
            if time.time() - folder.stat().st_mtime > _UNFINISHED_S:
                shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            used = (folder / _RECORD).stat().st_mtime_ns
        except OSError:
            used = 0
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        by_use.append((used, size, folder))
    total = sum(size for _, size, _ in by_use)
    for left, (_, size, folder) in zip(range(len(by_use), 0, -1), sorted(by_use), strict=True):
        if total <= most_bytes and left < MOST_ENTRIES:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
