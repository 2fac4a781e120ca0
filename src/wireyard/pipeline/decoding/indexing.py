"""Indexing large captures: a first stage of tasks that writes the headers of each piece to a file.

Without an index each task that reassembles conversations would have to walk over all packets of a
capture to find its own. Tasks of this stage each walk over one piece and write its headers,
partitioned by conversation (``wireyard.captures.index``). They guess where their piece begins; the
driver stitches the pieces like those of streams, and reads wrong ones again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from wireyard.captures.detection.assignment import PORT_MAPPER_PORT
from wireyard.captures.files.extents import (
    enter_extent,
    first_context,
    first_time_ns,
    stitch_extents,
    walk_records,
)
from wireyard.captures.files.file import REMOTE_AHEAD_BYTES, CaptureFile, Extent, map_extent
from wireyard.captures.index import IndexedExtent, write_index
from wireyard.captures.records import Context, describe_damage
from wireyard.errors import SourceError
from wireyard.lake.staging import writing
from wireyard.pipeline.decoding.results import HeadersResult
from wireyard.pipeline.inputs.captures import count_parts
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.streams.source import filesystem
from wireyard.streams.split import cut_evenly

_LEAST_PARTS = 5
"""Four walks over all packets of a capture take as long as writing its headers down and reading
them. A remote capture is not walked over twice."""


@dataclass(frozen=True, slots=True)
class HeaderPiece:
    """The records of a capture file that begin in ``[start, stop)``."""

    source: str
    start: int
    stop: int
    parts: int
    """Number of parts that the conversations are divided into."""
    context: Context | None
    """Context of a record that begins in it; None at the start of the file."""
    exact: bool
    """Whether a record is known to begin at `start`; else the task guesses where one does."""
    begun_ns: int
    """Time of the file's first packet, by which files are ordered."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return self.size


class IndexedCapture(NamedTuple):
    """A capture with all of its headers in files."""

    files: tuple[str, ...]
    """In the order of their packets."""
    extents: tuple[IndexedExtent, ...]
    damage: str | None
    """Why it was not read to its end."""


def cut_headers(found: FoundInput, split_bytes: int) -> list[HeaderPiece]:
    """Return the pieces of a capture; none if an index does not pay, or cannot be made.

    It does not pay for a small capture, and cannot be made of a compressed one.
    """
    of = count_parts(found.size, split_bytes, indexed=True)
    remote = "://" in found.path
    if not found.files or found.stored or found.compressed or of < (2 if remote else _LEAST_PARTS):
        return []
    pieces: list[HeaderPiece] = []
    for path in found.files:
        try:
            head = map_extent(path, 0, 0)
        except SourceError:
            return []
        context, begun_ns = first_context(head, path), first_time_ns(head, path)
        pieces += (
            HeaderPiece(path, start, stop, of, context if start else None, start == 0, begun_ns)
            for start, stop in pairwise(cut_evenly(len(head), split_bytes))
        )
    return pieces


def write_headers(piece: HeaderPiece, path: str) -> HeadersResult | None:
    """Write the headers of a piece to a path; return None if nothing in it looks like a record."""
    data = map_extent(piece.source, piece.start, piece.stop)
    first: int | None = piece.start
    if not piece.exact:
        first = enter_extent(data, piece.start, piece.stop, piece.context)
    if first is None:
        return None
    extent = Extent(first, piece.stop, piece.context, None, 0)
    if "://" in piece.source:
        stop = walk_records(data, piece.source, extent).stop
        if stop > piece.stop + REMOTE_AHEAD_BYTES:
            data = map_extent(piece.source, first, stop)
    file = CaptureFile(piece.source, data, None, extent)
    with writing(path):
        system, inner = filesystem(path)
        with system.open_output_stream(inner) as sink:
            walked, damage = write_index(sink, file, extent, piece.parts, PORT_MAPPER_PORT)
    return HeadersResult(
        source=piece.source,
        piece_start=piece.start,
        start=first,
        stop=walked.stop,
        packets=walked.packets,
        next_context=walked.next_context,
        damage=str(damage) if damage else None,
        unread_bytes=file.unread_bytes,
        path=path,
    )


class Joined(NamedTuple):
    """The stitched pieces of a capture, by file."""

    extents: list[tuple[str, list[Extent]]]
    """In the order of their packets."""
    again: list[HeaderPiece]
    """Pieces that must be read again."""


def join_headers(pieces: Sequence[HeaderPiece], written: Iterable[HeadersResult]) -> Joined:
    """Stitch the pieces of a capture; a piece in which no record was found has no result."""
    of_piece = {(each.source, each.piece_start): each for each in written}
    by_file: dict[str, list[HeaderPiece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.source, []).append(piece)
    extents = []
    again = []
    for path in sorted(by_file, key=lambda path: by_file[path][0].begun_ns):
        own = by_file[path]
        found = [_extent(piece, of_piece.get((path, piece.start))) for piece in own]
        bounds = [*(piece.start for piece in own), own[-1].stop]
        joined = stitch_extents(path, bounds, found)
        extents.append((path, joined))
        known = {(each.start, each.context) for each in found if each is not None}
        again += [
            replace(own[0], start=each.start, stop=each.stop, context=each.context, exact=True)
            for each in joined
            if (each.start, each.context) not in known
        ]
    return Joined(extents, again)


def index_of(joined: Joined, written: Iterable[HeadersResult]) -> IndexedCapture:
    """Return the index of a capture from the results of all pieces, those read again last."""
    of_extent = {(each.source, each.start): each for each in written}
    files = [path for path, _ in joined.extents]
    index = [
        IndexedExtent(of_extent[path, extent.start].path, number)
        for number, (path, extents) in enumerate(joined.extents)
        for extent in extents
    ]
    return IndexedCapture(tuple(files), tuple(index), _damage(joined, of_extent))


def _damage(joined: Joined, of_extent: Mapping[tuple[str, int], HeadersResult]) -> str | None:
    """Describe the damage of the files; the last extent of a file shows it."""
    reasons = []
    unread_bytes = 0
    for path, extents in joined.extents:
        last = extents[-1]
        written = of_extent[path, last.start]
        damage, unread = written.damage, written.unread_bytes
        if damage is None and written.stop < last.stop:
            # No task found a record behind it.
            file = CaptureFile.map(path, last)
            deque(file.records(), 0)
            damage, unread = str(file.damage) if file.damage else None, file.unread_bytes
        if damage is not None:
            reasons.append(damage)
            unread_bytes += unread
    return describe_damage(reasons[0], unread_bytes) if reasons else None


def _extent(piece: HeaderPiece, written: HeadersResult | None) -> Extent | None:
    """Return the extent that was read of a piece; None if no record was found."""
    if written is None:
        return None
    return Extent(written.start, written.stop, piece.context, written.next_context, written.packets)
