"""Following folders: read new files and the growth of open ones into a lake, a commit at a time.

A batch of whole files is a run like any other (`fill_lake`): it is committed wholly or not at all,
and an input that is unchanged in the lake is not read again. So a process may be killed at any
time; the next one continues from the last commit, and no row is there twice.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Protocol

from wireyard.lake.writer import Lake
from wireyard.pipeline.growing.growth import Growth
from wireyard.pipeline.inputs.finding import (
    InputOptions,
    Listing,
    examine_files,
    is_unchanged,
    join_rotated,
)
from wireyard.pipeline.inputs.listing import FoundFile
from wireyard.pipeline.inputs.watching import Watched
from wireyard.pipeline.job import SPLIT_BYTES, fill_lake
from wireyard.pipeline.report import Report, Watch, new_inputs
from wireyard.pipeline.running import StartCluster

RETENTION: Final = timedelta(minutes=5)
"""Time for which a replaced commit stays readable. Short, since there may be one a second."""
_EXPIRE_S: Final = 30.0
_POLL_S: Final = 0.2
_POLL_SHARE: Final = 10
"""Polling for files takes at most one part in so many of the time."""
_OF_TASKS: Final = frozenset({"skip_missing", "split_bytes"})
"""Settings of `fill_lake` that do not apply to a file that is read part by part."""
_COMMIT_S: Final = 1.0
"""Least time between two commits of growing files, unless one has more to read than a commit."""
_SHARE_OF_LARGE: Final = 4
"""A file with more unread bytes than a commit takes gets one part in so many of the commit."""
_STATE_S: Final = 600.0
"""A file's state is dropped once it has stood still for so long: if it grows, it is read again."""
_MOST_FILES: Final = 1_000
"""Files in one batch, so that the first rows of many do not wait for the last."""


@dataclass(slots=True)
class Progress:
    """How far the lake is behind the files that it follows."""

    files: int = 0
    """Number of files there are."""
    waiting: int = 0
    """Number of files with bytes that are not committed, files still being written included."""
    waiting_bytes: int = 0
    batches: int = 0
    inputs: int = 0
    """Number of inputs that were read."""
    read_bytes: int = 0
    lag_s: float = 0.0
    """Age of the last batch at its commit: time since the last change of its oldest file."""


class Listener(Protocol):
    """Receiver of notes and progress while a lake follows folders."""

    def note(self, text: str) -> None:
        """Receive a note about an input."""

    def progress(self, progress: Progress) -> None:
        """Receive the progress, after each poll and each commit."""


@dataclass(slots=True)
class _Settings:
    options: InputOptions
    rotated: bool
    most_bytes: int
    fill: dict[str, Any] = field(default_factory=dict)


def follow_lake(
    lake: Lake,
    paths: Sequence[str],
    start_cluster: StartCluster | None,
    watch: Watch,
    listener: Listener,
    stop: Callable[[], bool],
    *,
    options: InputOptions | None = None,
    rotated: bool = False,
    most_bytes: int = SPLIT_BYTES,
    **settings: Any,
) -> None:
    """Read everything that arrives at some paths into a lake, until `stop`; then read the rest.

    `paths`, `options` and `rotated` are those of `list_inputs`, and `settings` those of
    `fill_lake`. `stop` is called a few times a second and returns whether to end. A batch has at
    most `most_bytes`, unless a single file is larger.

    A `SourceError` is raised if there is nothing at a path, or a file cannot be read; a `LakeError`
    if the lake cannot be written; a `LedgerError` if the rows of a stream do not account for its
    bytes.
    """
    settings["skip_missing"] = True
    options = replace(options or InputOptions(), skip_missing=True)  # files come and go
    given = _Settings(options, rotated, most_bytes, settings)
    _Following(lake, Watched(paths, lake.root, rotated), start_cluster, watch, listener, given).run(
        stop
    )


class _Following:
    def __init__(
        self,
        lake: Lake,
        watched: Watched,
        start_cluster: StartCluster | None,
        watch: Watch,
        listener: Listener,
        settings: _Settings,
    ) -> None:
        self._lake, self._watched = lake, watched
        self._start_cluster, self._watch, self._listener = start_cluster, watch, listener
        self._settings = settings
        of_reading = {name: one for name, one in settings.fill.items() if name not in _OF_TASKS}
        self._growth = Growth(lake, start_cluster, **of_reading)
        self._progress = Progress()
        self._expired_s = time.monotonic()
        self._grown_s = -math.inf
        self._polled_s = -math.inf
        self._read_s: float | None = None
        """Time of the poll that preceded the last commit of growing files."""

    def run(self, stop: Callable[[], bool]) -> None:
        while True:
            # Before polling: files that are there at the stop are still read.
            stopping = stop()
            self._poll()
            took_s = time.monotonic() - self._polled_s
            while True:
                self._grow(stopping)
                batch = self._batch(stopping)
                if batch:
                    self._read(batch)
                if not batch:
                    break
                if not stopping:
                    self._poll()
            self._report_progress()
            if stopping:
                self._commit_facts(wait=True)
                return
            self._expire()
            _wait(max(_POLL_S, _POLL_SHARE * took_s), stop)

    # --- growing files ------------------------------------------------------------------------

    def _grow(self, stopping: bool) -> None:
        """Commit the next parts of growing files."""
        if self._settings.options.by_content:
            return
        growth = self._growth
        files = {file.path: file for file in self._watched.changed() if self._is_growing(file)}
        self._commit_facts(wait=stopping)
        for path in list(files):
            if not self._open_growing(files[path]):
                del files[path]
        most, ending, is_behind = self._plan(files, stopping)
        waited = is_behind or time.monotonic() - self._grown_s >= _COMMIT_S
        if not most or not (ending or waited):
            return
        read_bytes, notes = growth.commit(most, ending)
        before_s, self._grown_s = self._read_s, time.monotonic()
        self._read_s = self._polled_s
        # The oldest new byte arrived after the poll before the previous commit.
        self._progress.lag_s = self._grown_s - (self._polled_s if before_s is None else before_s)
        if not growth.paths:
            self._read_s = None
        for text in notes:
            self._listener.note(text)
        for path in ending & files.keys():
            if not growth.is_open(path):  # else it has grown since, or has more than was planned
                self._watched.mark_done(files[path])
        self._progress.batches += 1
        self._progress.inputs += len(ending)
        self._progress.read_bytes += read_bytes
        self._report_progress()

    def _plan(
        self, files: Mapping[str, FoundFile], stopping: bool
    ) -> tuple[dict[str, int], set[str], bool]:
        """Plan the next commit of growing files.

        Return the number of bytes to read of each file, together at most `most_bytes`; the files
        that stand still or are gone, which the commit reads to their end; and whether a file has
        more unread bytes than the commit reads.
        """
        growth, most, ending, is_behind = self._growth, dict[str, int](), set[str](), False
        left = sys.maxsize if stopping else self._settings.most_bytes
        # In the order of unread bytes, so that no file waits for a larger one.
        for path in sorted(files, key=growth.unread_bytes):
            unread = new = growth.unread_bytes(path)
            if unread > left:
                new, is_behind = left // _SHARE_OF_LARGE if len(files) > 1 else left, True
            left -= new
            stands_still = new == unread and (stopping or self._watched.is_settled(files[path]))
            if stands_still and not growth.has_to_wait(path):
                ending.add(path)
            if path in ending or new or growth.is_behind(path):
                most[path] = new
        for path in growth.paths:
            if self._watched.unchanged_s(path) is None and not growth.has_to_wait(path):
                most[path] = 0
                ending.add(path)
        return most, ending, is_behind

    def _commit_facts(self, *, wait: bool = False) -> None:
        """Commit facts of growing files that were made in the background."""
        for text in self._growth.commit_facts(wait=wait):
            self._listener.note(text)

    def _poll(self) -> None:
        self._polled_s = time.monotonic()
        self._watched.poll()

    def _is_growing(self, file: FoundFile) -> bool:
        watched = self._watched
        is_growing = watched.is_rotated(file.path) or watched.is_growing(file)
        return is_growing or self._growth.has_state(file.path) or self._is_large_beside(file)

    def _is_large_beside(self, file: FoundFile) -> bool:
        """Return whether reading a file as a whole would delay the rows of growing files.

        On a cluster a batch of its tasks does not.
        """
        is_large = self._start_cluster is None and file.size > self._settings.most_bytes
        return is_large and bool(self._growth.paths)

    def _open_growing(self, file: FoundFile) -> bool:
        """Open a file to be read part by part, or update it; return whether it is open."""
        growth, files = self._growth, self._watched.files_of(file)
        if growth.is_open(file.path) and growth.refresh(file.path, [one.path for one in files]):
            return True
        listing = self._examine(files)
        if not listing.inputs:
            return False
        found = listing.inputs[0]
        held = self._lake.record.inputs.get(file.path)
        if held is not None and is_unchanged(found.stamp, held.stamp):
            self._watched.mark_done(file)
            return False
        return growth.open_input(found)

    # --- whole files --------------------------------------------------------------------------

    def _batch(self, stopping: bool) -> list[FoundFile]:
        """Return whole files that were not read yet, the oldest first."""
        batch: list[FoundFile] = []
        size = 0
        for file in self._watched.changed():
            if not (stopping or self._watched.is_settled(file)) or self._growth.is_open(file.path):
                continue
            size += file.size
            if batch and (size > self._settings.most_bytes or len(batch) == _MOST_FILES):
                break
            batch.append(file)
        return batch

    def _read(self, batch: Sequence[FoundFile]) -> None:
        """Read and commit the new inputs among some files."""
        settings = self._settings
        listing = self._examine([one for file in batch for one in self._watched.files_of(file)])
        for text in listing.left_out:
            self._listener.note(f"left out: {text}")
        for file in batch:
            self._watched.mark_done(file)
        new, _ = new_inputs(self._lake, listing.inputs)
        if new:
            self._lake.begin_run()
            report = fill_lake(self._lake, new, self._start_cluster, self._watch, **settings.fill)
            self._count(report, batch)

    def _examine(self, files: Sequence[FoundFile]) -> Listing:
        listing = examine_files(files, self._settings.options, self._watched.roots)
        return join_rotated(listing) if self._settings.rotated else listing

    def _count(self, report: Report, batch: Sequence[FoundFile]) -> None:
        for text in report.notes:
            self._listener.note(text)
        progress = self._progress
        progress.batches += 1
        progress.inputs += len(report.added)
        progress.read_bytes += sum(
            one.bytes_read for each in report.added for one in each.ledger.values()
        )
        changed_ns = [file.modified_ns for file in batch if file.modified_ns is not None]
        if changed_ns:
            progress.lag_s = max(time.time() - min(changed_ns) / 1e9, 0.0)
        self._report_progress()

    def _report_progress(self) -> None:
        waiting = self._watched.changed()
        self._progress.files = self._watched.count
        self._progress.waiting = len(waiting)
        self._progress.waiting_bytes = sum(
            self._growth.unread_bytes(file.path) if self._growth.is_open(file.path) else file.size
            for file in waiting
        )
        self._listener.progress(self._progress)

    def _expire(self) -> None:
        now_s = time.monotonic()
        if now_s - self._expired_s >= _EXPIRE_S and not self._growth.is_making:
            self._expired_s = now_s
            self._growth.expire(self._is_over)
            self._lake.expire(RETENTION)

    def _is_over(self, path: str) -> bool:
        still_s = self._watched.unchanged_s(path)
        return still_s is None or still_s >= _STATE_S


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    until_s = time.monotonic() + seconds
    while not stop() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _POLL_S))
