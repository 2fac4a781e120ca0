"""Splitting of one stream for many readers: guess, walk, stitch.

The stream is divided into pieces. Each piece is walked from a guess, its first header with
consistent fields, to the first boundary at or beyond its end. A guess may be wrong: a packet inside
the body of another one looks the same. Stitching corrects that. The first piece begins at the true
start, so its end is true. A piece whose guess equals the end of the piece before was walked
correctly; any other is walked again from that end. By induction, every resulting boundary is one
that a sequential reader would find. Wrong guesses cost time, up to that of a sequential read, but
never give a wrong result.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from wireyard.formats.base import Format
from wireyard.streams.blocks import FrameScanner, cut_blocks
from wireyard.streams.framer import Framer
from wireyard.streams.scan import load_fast_path
from wireyard.streams.source import edges_crc32, open_source, reading
from wireyard.streams.window import Window, Windows, windows_of_bytes, windows_of_file

PIECE_BYTES = 16 << 20
"""Size of a piece, and so the resolution of an index."""
TO_THE_END = 1 << 62
"""The stop of a segment that reaches to the end of its stream."""
_INDEX_VERSION = 2
_INDEX_BYTES = 64 << 20
"""Longest index that is read, of a file of some 10 TB."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that begin in ``[start, stop)`` of the stream; both ends are boundaries of rows."""

    start: int
    stop: int
    rows: int | None
    """Number of rows; None in a stream that is not split, where they were not counted."""
    context: int
    """Context of the frame at `start`."""
    next_context: int
    """Context of the frame at `stop`."""


class Walked(Protocol):
    """A walk from one boundary to another, with the contexts of the frames at both."""

    @property
    def start(self) -> int:
        """First boundary."""

    @property
    def stop(self) -> int:
        """First boundary at or beyond the end of the piece."""

    @property
    def context(self) -> Any:
        """Context at `start`, as it was assumed."""

    @property
    def next_context(self) -> Any:
        """Context at `stop`, as the walk found it."""


W = TypeVar("W", bound=Walked)
WindowsFrom = Callable[[int], Windows]


def cut_evenly(size: int, piece_bytes: int) -> list[int]:
    """Return the starts of equal pieces of about `piece_bytes`, and then the total size."""
    count = max(-(-size // piece_bytes), 1)
    return [size * part // count for part in range(count + 1)]


def guess_start(windows: Iterator[Window], format: Format, stop: int, limit: int) -> int | None:
    """Return the position before `stop` of the first header with consistent fields, if any."""
    for window in windows:
        end = min(window.stop, stop - window.base + format.framing.header_bytes)
        with window.data[:end].data as view:
            header_at, certain = format.framing.find_header(view, window.start, end, limit)
        position = window.base + header_at
        if position >= stop:
            return None
        if certain and header_at < end:
            return position
        window.start = header_at
    return None


def walk(
    windows: Iterator[Window],
    format: Format,
    start: int,
    stop: int,
    limit: int,
    scanner: FrameScanner | None,
    context: int,
) -> Segment:
    """Walk from the boundary `start` to the first boundary at or beyond `stop`."""
    framer = Framer(format, limit, start, context)
    rows = sum(len(block.offsets) for block in cut_blocks(windows, framer, scanner, stop))
    return Segment(start, framer.position, rows, context, framer.context)


def stitch(
    bounds: Sequence[int],
    walked: Sequence[W | None],
    walk_again: Callable[[int, int, Any], W],
    context: Any,
    *,
    contextual: bool = False,
) -> list[W]:
    """Join walks into segments that cover the stream.

    `bounds` has the starts of the pieces, and the stream's size. `walked` has the walk of each
    piece from its guess, None for a piece without one; `walk_again` is called with start, stop and
    context of a piece whose guess was wrong. `context` is that of the stream's first frame. With
    `contextual`, boundaries depend on the context; those of streams do not.
    """
    segments = []
    position = 0
    for stop, segment in zip(bounds[1:], walked, strict=True):
        if position >= stop:
            continue  # A frame that began earlier covers the whole piece.
        same_context = segment is None or segment.context == context or not contextual
        if segment is None or segment.start != position or not same_context:
            segment = walk_again(position, stop, context)
        segments.append(segment)
        position, context = segment.stop, segment.next_context
    return segments


def plan_segments(
    path: str,
    format: Format,
    split_bytes: int,
    max_packet_bytes: int | None = None,
    threads: int = os.cpu_count() or 1,
) -> list[Segment]:
    """Split a stream into segments of about `split_bytes`, which can be read independently.

    The walk of a local file writes an index beside it, a hidden file that later calls use while
    size, time and the checksum of both ends match. `SourceError` is raised if the file cannot be
    read.
    """
    limit = max_packet_bytes or format.framing.max_packet_bytes
    _, file, size = open_source(path)
    file.close()
    if size is None or size <= split_bytes:
        return [Segment(0, TO_THE_END, None, format.context, format.context)]
    if split_bytes < PIECE_BYTES:
        return walk_pieces(path, size, format, limit, split_bytes, threads)
    stamp = _stamp(path, format, limit, size)
    pieces = _load_index(path, stamp)
    if pieces is None:
        pieces = walk_pieces(path, size, format, limit, PIECE_BYTES, threads)
        _save_index(path, stamp, pieces)
    return _merge(pieces, split_bytes)


def walk_pieces(
    path: str, size: int, format: Format, limit: int, piece_bytes: int, threads: int = 1
) -> list[Segment]:
    """Guess, walk and stitch a file in pieces of `piece_bytes`; no index is read or written."""
    if size == 0:
        return []
    bounds = [*range(0, size, piece_bytes), size]
    if "://" in path:
        threads = 1  # Some stores share one file, with one position, among all openers.
    fast = load_fast_path(format, size)
    scanner: FrameScanner | None = fast.scan_frames if fast else None
    with _windows(path) as windows_from, ThreadPoolExecutor(threads) as pool:

        def walk_from(start: int, stop: int, context: int) -> Segment:
            with closing(windows_from(start)) as windows:
                return walk(windows, format, start, stop, limit, scanner, context)

        def enter(start: int, stop: int) -> Segment | None:
            if start == 0:
                return walk_from(0, stop, format.context)
            with closing(windows_from(start)) as windows:
                guess = guess_start(windows, format, stop, limit)
            return None if guess is None else walk_from(guess, stop, format.context)

        walked = list(pool.map(enter, bounds[:-1], bounds[1:]))
        return stitch(bounds, walked, walk_from, format.context)


@contextmanager
def _windows(path: str) -> Iterator[WindowsFrom]:
    """Provide windows of a file from any offset: mapped if it is local, else read."""
    if "://" in path:

        def read_from(start: int) -> Windows:
            name, file, _ = open_source(path, start)
            return windows_of_file(file, name, start)

        yield read_from
        return
    with reading(path), Path(path).open("rb") as file:
        pages = mmap(file.fileno(), 0, access=ACCESS_READ)
        # The mapping is closed with its last window.
        yield partial(windows_of_bytes, np.frombuffer(pages, np.uint8))


def _merge(pieces: Sequence[Segment], split_bytes: int) -> list[Segment]:
    merged: list[Segment] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and last.stop - last.start < split_bytes:
            rows = (last.rows or 0) + (piece.rows or 0)
            merged[-1] = replace(last, stop=piece.stop, rows=rows, next_context=piece.next_context)
        else:
            merged.append(piece)
    return merged


# --- the side index -------------------------------------------------------------------------


def _index_path(path: str) -> Path:
    return Path(path).with_name(f".{Path(path).name}.wyidx")


def _stamp(path: str, format: Format, limit: int, size: int) -> dict[str, object] | None:
    """Return what identifies the file of an index; None for a remote file, which has no index."""
    if "://" in path:
        return None
    with reading(path), Path(path).open("rb") as file:
        edges = edges_crc32(partial(os.pread, file.fileno()), size)
        modified_ns = os.fstat(file.fileno()).st_mtime_ns
    return {
        "index": _INDEX_VERSION,
        "format": format.label,
        "max_packet_bytes": limit,
        "size": size,
        "modified_ns": modified_ns,
        "edges_crc32": edges,
    }


def _load_index(path: str, stamp: dict[str, object] | None) -> list[Segment] | None:
    """Return the segments of the index beside a file, None unless the index matches the file.

    Others may have written it, so its segments have to make up the file.
    """
    if stamp is None or not _index_path(path).is_file():
        return None
    try:
        with _index_path(path).open("rb") as file:
            index = json.loads(file.read(_INDEX_BYTES))
        segments = [Segment(**entry) for entry in index["segments"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    values = [value for each in segments for value in asdict(each).values()]
    are_numbers = all(type(value) is int and value >= 0 for value in values)
    bounds = [(0, 0), *((each.start, each.stop) for each in segments), (stamp["size"], 0)]
    are_whole = all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    is_of_file = are_numbers and are_whole and index == _index(stamp, segments)
    return segments if is_of_file else None


def _save_index(path: str, stamp: dict[str, object] | None, pieces: Sequence[Segment]) -> None:
    """Write the index beside a file atomically, if the folder can be written."""
    if stamp is None:
        return
    target = _index_path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with part.open("x") as file:  # never through a link of others
            file.write(json.dumps(_index(stamp, pieces)))
        part.replace(target)
    except OSError:
        with suppress(OSError):
            part.unlink()


def _index(stamp: dict[str, object], pieces: Sequence[Segment]) -> dict[str, object]:
    segments = [asdict(piece) for piece in pieces]
    checksum = zlib.crc32(json.dumps(segments).encode())
    return {**stamp, "segments_crc32": checksum, "segments": segments}
