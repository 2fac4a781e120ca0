"""Watching folders: find files that are new, have changed, or are still being written.

It polls, which works alike on every file system and store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wireyard.captures.signatures import is_capture
from wireyard.errors import SourceError
from wireyard.pipeline.inputs.listing import (
    FoundFile,
    absolute,
    is_missing,
    is_pattern,
    links_out,
    list_files,
)
from wireyard.pipeline.inputs.options import Options
from wireyard.streams.source import open_source, reading

SETTLED_S: Final = 2.0
"""A file that has not changed for so long counts as complete, until it changes again."""
_NS: Final = 1_000_000_000
_MAGIC_BYTES: Final = 4


class _Kind(Enum):
    """The kind of a file in a folder of rotated captures."""

    CAPTURE = "capture"
    COMPRESSED = "compressed capture"
    OTHER = "other"


@dataclass(slots=True)
class _Seen:
    """A file as it was at the last poll."""

    file: FoundFile
    since_s: float
    """Time of its last change, by the clock of polls."""
    grew: bool = False
    """Whether it was larger than at the poll before."""
    is_done: bool = False
    """Whether it was read as it is."""


class Watched:
    """The files at some paths, polled for changes.

    Paths are files, folders with all their contents, patterns or URLs. Files that match a pattern
    may appear later; if there is nothing at any other path, a `SourceError` is raised. Files in the
    folder `inside`, the lake, are left out. `rotated` is whether the captures in a folder are one
    rotated capture: they appear as one file with the name of the folder, and an empty file is none
    yet. `clock` is a monotonic clock in seconds and `wall_ns` the time of day in nanoseconds; tests
    replace both.
    """

    def __init__(
        self,
        paths: Sequence[str],
        inside: str,
        rotated: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.roots = tuple(absolute(path) for path in paths)
        self._options = Options(paths=self.roots, recursive=True, ignore_missing=True)
        self._inside = f"{inside}/"
        self._clock, self._wall_ns = clock, wall_ns
        self._seen: dict[str, _Seen] = {}
        self._rotated = rotated
        self._kinds: dict[str, _Kind] = {}
        self._files: dict[str, list[FoundFile]] = {}
        for path in self.roots:
            if not is_pattern(path) and is_missing(path):
                raise SourceError(f"{path}: there is no such file or folder")

    def poll(self) -> None:
        """Update the list of files."""
        now_s, wall_ns = self._clock(), self._wall_ns()
        seen = {}
        for file in self._listed():
            before = self._seen.get(file.path)
            if before is not None and before.file == file:
                seen[file.path] = before
                continue
            age_s = 0.0
            if before is None and file.modified_ns is not None:
                age_s = max((wall_ns - file.modified_ns) / _NS, 0.0)
            grew = before is not None and before.file.size < file.size
            seen[file.path] = _Seen(file, now_s - age_s, grew)
        self._seen = seen

    def _listed(self) -> Iterator[FoundFile]:
        """Yield the files there are; a rotated capture is one."""
        files = [
            file for file in list_files(self._options) if not file.path.startswith(self._inside)
        ]
        if not self._rotated:
            yield from files
            return
        links = links_out(files)
        yield from (file for file in files if file.path in links)  # to be reported, not to be read
        files = [file for file in files if file.path not in links]
        self._kinds = {file.path: self._kind_of(file) for file in files if file.size}
        self._files = {}
        for file in files:
            if file.size and self._kinds[file.path] is _Kind.OTHER:
                yield file
            elif file.size:
                self._files.setdefault(file.path.rpartition("/")[0], []).append(file)
        for folder, members in self._files.items():
            modified_ns = filter(None, (file.modified_ns for file in members))
            size = sum(file.size for file in members)
            yield FoundFile(folder, size, modified_ns=max(modified_ns, default=None))

    def _kind_of(self, file: FoundFile) -> _Kind:
        known = self._kinds.get(file.path)
        if known is not None:
            return known
        try:
            _, opened, size = open_source(file.path)
            with opened, reading(file.path):
                if not is_capture(opened.peek(_MAGIC_BYTES)):
                    return _Kind.OTHER
        except SourceError:
            return _Kind.OTHER  # its reader reports the error
        return _Kind.COMPRESSED if size is None else _Kind.CAPTURE

    def files_of(self, file: FoundFile) -> Sequence[FoundFile]:
        """Return the files of a rotated capture; of any other file, the file itself."""
        return self._files.get(file.path, [file])

    def is_rotated(self, path: str) -> bool:
        """Return whether a path is a rotated capture that can be read part by part."""
        members = self._files.get(path, ())
        return bool(members) and all(self._kinds[one.path] is _Kind.CAPTURE for one in members)

    def changed(self) -> list[FoundFile]:
        """Return the files that are not done as they are now, the oldest first."""
        files = [each.file for each in self._seen.values() if not each.is_done]
        return sorted(files, key=lambda file: (file.modified_ns or 0, file.path))

    def is_settled(self, file: FoundFile) -> bool:
        """Return whether a file has not changed for `SETTLED_S`."""
        return self._clock() - self._seen[file.path].since_s >= SETTLED_S

    def is_growing(self, file: FoundFile) -> bool:
        """Return whether a file grew when it changed last, and has not settled since."""
        return self._seen[file.path].grew and not self.is_settled(file)

    def mark_done(self, file: FoundFile) -> None:
        """Mark a file as done; it counts as changed again once it changes."""
        self._seen[file.path].is_done = True

    def unchanged_s(self, path: str) -> float | None:
        """Return the time since a file's last change; None if it is not there."""
        seen = self._seen.get(path)
        return None if seen is None else self._clock() - seen.since_s

    @property
    def count(self) -> int:
        """Number of files there are."""
        return len(self._seen)
