"""Files that come to folders while somebody looks: which are new, and which are still written.

Polling, so that it is the same on every file system and store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wireyard.errors import SourceError
from wireyard.spark.files import FoundFile, absolute, is_missing, is_pattern, list_files
from wireyard.spark.options import Options

__all__ = ["SETTLED_S", "Watched"]

SETTLED_S: Final = 2.0
"""A file that has not changed for so long is whole, until it changes again."""
_NS: Final = 1_000_000_000


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
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.roots = tuple(absolute(path) for path in paths)
        self._options = Options(paths=self.roots, recursive=True, ignore_missing=True)
        self._inside = f"{inside}/"
        self._clock, self._wall_ns = clock, wall_ns
        self._seen: dict[str, _Seen] = {}
        for path in self.roots:
            if not is_pattern(path) and is_missing(path):
                raise SourceError(f"{path}: there is no such file or folder")

    def poll(self) -> None:
        """Look which files there are."""
        now_s, wall_ns = self._clock(), self._wall_ns()
        seen = {}
        for file in list_files(self._options):
            if file.path.startswith(self._inside):
                continue
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
