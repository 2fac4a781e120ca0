"""A lake that follows folders: batch by batch what is new, each batch a commit.

A batch is a run like any other (`fill_lake`): what it reads is committed wholly or not at all, and
an input that the lake holds as it is is not read again. So whenever the process is killed, the
next one goes on with what the last commit does not have, and nothing is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from wireyard.spark.files import FoundFile
from wireyard.spark.inputs import look_at
from wireyard.spark.job import FEW_BYTES, fill_lake
from wireyard.spark.lake import Lake
from wireyard.spark.report import Report, Watch, new_inputs
from wireyard.spark.watching import Watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RETENTION", "Listener", "Progress", "follow_lake"]

RETENTION: Final = timedelta(minutes=5)
"""How long readers have the files of a commit after the next one: there may be one a second."""
_EXPIRE_S: Final = 30.0
_POLL_S: Final = 0.2
_POLL_SHARE: Final = 10
"""To look for files takes at most one part in so many of the time."""
_MOST_FILES: Final = 1_000
"""In one batch, so that the first rows of many do not wait for the last."""


@dataclass(slots=True)
class Progress:
    """How far the lake is behind what it follows."""

    files: int = 0
    """How many files there are."""
    waiting: int = 0
    """How many of them have bytes that are in no commit, those still written among them."""
    waiting_bytes: int = 0
    batches: int = 0
    inputs: int = 0
    """How many inputs were read."""
    read_bytes: int = 0
    lag_s: float = 0.0
    """Of the last batch: from the last change of its oldest file to the commit."""


class Listener(Protocol):
    """Who hears how following goes."""

    def note(self, text: str) -> None:
        """Hear something about an input."""

    def progress(self, progress: Progress) -> None:
        """Hear how far it is, after each look and each commit."""


@dataclass(slots=True)
class _Settings:
    format: str | None
    by_content: bool
    most_bytes: int
    fill: dict[str, Any] = field(default_factory=dict)


def follow_lake(
    lake: Lake,
    paths: Sequence[str],
    get_session: Callable[[], SparkSession],
    watch: Watch,
    listener: Listener,
    stop: Callable[[], bool],
    *,
    format: str | None = None,
    by_content: bool = False,
    most_bytes: int = FEW_BYTES,
    **settings: Any,
) -> None:
    """Read what comes to some paths into a lake, until `stop`; then what is left.

    Parameters
    ----------
    paths, format, by_content
        Those of `list_inputs`.
    stop
        Is asked a few times a second whether to end.
    most_bytes
        Read by one batch, unless a single file is larger.
    settings
        Those of `fill_lake`.

    Raises
    ------
    SourceError
        There is nothing at a path, or a file cannot be read.
    LakeError
        The lake cannot be written.
    LedgerError
        The rows of a stream do not account for its bytes.
    """
    lake.retention = RETENTION
    settings["skip_missing"] = True
    given = _Settings(format, by_content, most_bytes, settings)
    _Following(lake, Watched(paths, lake.root), get_session, watch, listener, given).run(stop)


class _Following:
    def __init__(
        self,
        lake: Lake,
        watched: Watched,
        get_session: Callable[[], SparkSession],
        watch: Watch,
        listener: Listener,
        settings: _Settings,
    ) -> None:
        self._lake, self._watched = lake, watched
        self._get_session, self._watch, self._listener = get_session, watch, listener
        self._settings = settings
        self._progress = Progress()
        self._expired_s = time.monotonic()

    def run(self, stop: Callable[[], bool]) -> None:
        while True:
            # Asked first: what was there when it was said is still read.
            stopping = stop()
            began_s = time.monotonic()
            self._watched.poll()
            took_s = time.monotonic() - began_s
            while batch := self._batch(stopping):
                self._read(batch)
            self._tell()
            if stopping:
                return
            self._expire()
            _wait(max(_POLL_S, _POLL_SHARE * took_s), stop)

    def _batch(self, stopping: bool) -> list[FoundFile]:
        """Return whole files that were not read yet, the oldest first."""
        batch: list[FoundFile] = []
        size = 0
        for file in self._watched.changed():
            if not (stopping or self._watched.is_settled(file)):
                continue
            size += file.size
            if batch and (size > self._settings.most_bytes or len(batch) == _MOST_FILES):
                break
            batch.append(file)
        return batch

    def _read(self, batch: Sequence[FoundFile]) -> None:
        """Commit what is new in some files."""
        settings = self._settings
        listing = look_at(
            batch,
            settings.format,
            roots=self._watched.roots,
            by_content=settings.by_content,
            skip_missing=True,
        )
        for text in listing.left_out:
            self._listener.note(f"left out: {text}")
        for file in batch:
            self._watched.take(file)
        new, _ = new_inputs(self._lake, listing.inputs)
        if new:
            self._lake.begin_run()
            report = fill_lake(self._lake, new, self._get_session, self._watch, **settings.fill)
            self._count(report, batch)

    def _count(self, report: Report, batch: Sequence[FoundFile]) -> None:
        for text in report.notes:
            self._listener.note(text)
        progress = self._progress
        progress.batches += 1
        progress.inputs += len(report.added)
        progress.read_bytes += sum(
            one.counts["bytes_read"] for each in report.added for one in each.streams
        )
        changed_ns = [file.modified_ns for file in batch if file.modified_ns is not None]
        if changed_ns:
            progress.lag_s = max(time.time() - min(changed_ns) / 1e9, 0.0)
        self._tell()

    def _tell(self) -> None:
        waiting = self._watched.changed()
        self._progress.files = self._watched.count
        self._progress.waiting = len(waiting)
        self._progress.waiting_bytes = sum(file.size for file in waiting)
        self._listener.progress(self._progress)

    def _expire(self) -> None:
        now_s = time.monotonic()
        if now_s - self._expired_s >= _EXPIRE_S:
            self._expired_s = now_s
            self._lake.expire(RETENTION)


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    until_s = time.monotonic() + seconds
    while not stop() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _POLL_S))
