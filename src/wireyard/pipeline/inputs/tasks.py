"""Planning the tasks of a batch query: large files are split, small ones share a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wireyard.errors import SourceError
from wireyard.formats.base import Format
from wireyard.pipeline.inputs.captures import CapturePart, cut_capture
from wireyard.pipeline.inputs.listing import FoundFile, is_missing
from wireyard.pipeline.inputs.options import Options
from wireyard.streams.split import TO_THE_END, plan_segments

_OPEN_BYTES = 1 << 20
"""Bytes that opening a file counts as, so that no task gets thousands of files."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a file that begin in ``[start, stop)``; `size` is their approximate bytes."""

    path: str
    start: int
    stop: int
    size: int
    context: int
    """Context of the frame at `start`."""


def plan_tasks(
    files: Sequence[FoundFile], format: Format, options: Options, captures: Mapping[str, int]
) -> list[tuple[Piece | CapturePart, ...]]:
    """Return the pieces that each task reads.

    `captures` are those among the files, with their sizes. A `SourceError` is raised if a file that
    must be split cannot be read, and the options do not ignore that.
    """
    streams = [file for file in files if file.path not in captures]
    pieces: list[Piece | CapturePart] = []
    for file in streams:
        pieces += _cut(file, format, options)
    grouped: dict[str, list[str]] = {}
    for file in files:
        if file.path in captures:
            name = file.origin if options.rotated else file.path
            grouped.setdefault(name, []).append(file.path)
    for name, paths in grouped.items():
        pieces += cut_capture(
            name,
            tuple(paths),
            sum(captures[path] for path in paths),
            format=format.label,
            decode_as=options.decode_as,
            keylog=options.keylog,
            split_bytes=options.partition_bytes,
        )
    return [tuple(task) for task in group_into_tasks(pieces, options.partition_bytes)]


def _cut(file: FoundFile, format: Format, options: Options) -> Iterator[Piece]:
    parts = -(-file.size // options.partition_bytes)
    if parts <= 1:
        yield Piece(file.path, 0, TO_THE_END, file.size, format.context)
        return
    try:
        # Equal parts, so that the last one is not much smaller.
        segments = plan_segments(file.path, format, -(-file.size // parts), options.packet_bytes)
    except SourceError:
        if options.ignore_corrupt or (options.ignore_missing and is_missing(file.path)):
            return
        raise
    for segment in segments:
        size = min(segment.stop, file.size) - segment.start
        yield Piece(file.path, segment.start, segment.stop, size, segment.context)


class Sized(Protocol):
    """A piece of input with a size."""

    @property
    def size(self) -> int:
        """Approximate number of bytes to read."""


P = TypeVar("P", bound=Sized)
T = TypeVar("T")


def group_into_tasks(pieces: Iterable[P], task_bytes: int) -> list[list[P]]:
    """Return the pieces as tasks of about `task_bytes`, in order; a larger one is a task alone."""
    return group_in_order(pieces, lambda piece: piece.size, task_bytes, _OPEN_BYTES)


def group_in_order(
    items: Iterable[T], size_of: Callable[[T], int], most: int, each: int = 0
) -> list[list[T]]:
    """Return the items as groups of up to `most`, in order; a larger item is a group alone.

    `each` is counted for each item besides its size.
    """
    groups: list[list[T]] = []
    room = 0
    for item in items:
        size = size_of(item)
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size + each
    return groups
