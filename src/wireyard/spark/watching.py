"""Files that come to folders while somebody looks: which are new, and which are still written.

Polling, so that it is the same on every file system and store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wireyard.captures.magic import is_capture
from wireyard.errors import SourceError
from wireyard.spark.files import FoundFile, absolute, is_missing, is_pattern, list_files
from wireyard.spark.options import Options
from wireyard.streams.source import open_source, reading

__all__ = ["SETTLED_S", "Watched"]

SETTLED_S: Final = 2.0
"""A file that has not changed for so long is whole, until it changes again."""
_NS: Final = 1_000_000_000
_MAGIC_BYTES: Final = 4


class _Kind(Enum):
    """What a file is where captures are rotated."""

    CAPTURE = "capture"
    COMPRESSED = "compressed capture"
    OTHER = "other"


@dataclass(slots=True)
class _Seen:
    """A file as it was at the last poll."""

    file: FoundFile
    since_s: float
    """From when on it has been so, by the clock of polls."""
    grew: bool = False
    """Whether it was larger than at the poll before."""
    is_taken: bool = False


class Watched:
    """The files that paths stand for, looked for again and again.

    Parameters
    ----------
    paths
        Files, folders with all that is in them, patterns or URLs. What a pattern stands for may
        come later; anything else has to be there.
    inside
        A folder, the lake, whose files are left out.
    rotated
        Whether the captures in a folder are one, that goes on in new files: they are seen as one
        file with the name of the folder. An empty file is none yet.
    clock, wall_ns
        Time in seconds that never goes back, and the time of day, for tests.

    Raises
    ------
    SourceError
        There is nothing at a path.
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
        """Look which files there are."""
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
        """Yield the files that there are, those of a rotated capture as one."""
        files = [
            file for file in list_files(self._options) if not file.path.startswith(self._inside)
        ]
        if not self._rotated:
            yield from files
            return
        self._kinds = {file.path: self._kind_of(file) for file in files if file.size}
        self._files = {}
        for file in files:
            if file.size and self._kinds[file.path] is _Kind.OTHER:
                yield file
            elif file.size:
                self._files.setdefault(file.path.rpartition("/")[0], []).append(file)
        for folder, some in self._files.items():
            size, modified_ns = sum(file.size for file in some), [file.modified_ns for file in some]
            yield FoundFile(folder, size, modified_ns=max(filter(None, modified_ns), default=None))

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
            return _Kind.OTHER  # what reads it says so
        return _Kind.COMPRESSED if size is None else _Kind.CAPTURE

    def files_of(self, file: FoundFile) -> Sequence[FoundFile]:
        """Return the files that a file stands for: of a rotated capture all, else itself."""
        return self._files.get(file.path, [file])

    def is_rotated(self, path: str) -> bool:
        """Return whether a path is a rotated capture that can be read part by part."""
        some = self._files.get(path, ())
        return bool(some) and all(self._kinds[one.path] is _Kind.CAPTURE for one in some)

    def changed(self) -> list[FoundFile]:
        """Return the files that were not taken as they are now, the oldest first."""
        found = [each.file for each in self._seen.values() if not each.is_taken]
        return sorted(found, key=lambda file: (file.modified_ns or 0, file.path))

    def is_settled(self, file: FoundFile) -> bool:
        """Return whether a file has not changed for `SETTLED_S`."""
        return self._clock() - self._seen[file.path].since_s >= SETTLED_S

    def is_growing(self, file: FoundFile) -> bool:
        """Return whether a file grew when it changed last, and has not settled since."""
        return self._seen[file.path].grew and not self.is_settled(file)

    def take(self, file: FoundFile) -> None:
        """Take note that a file is dealt with as it is, and comes again once it has changed."""
        self._seen[file.path].is_taken = True

    def unchanged_s(self, path: str) -> float | None:
        """Return how long a file has not changed; None if it is not there."""
        seen = self._seen.get(path)
        return None if seen is None else self._clock() - seen.since_s

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._seen)
