"""Splitting inputs for the tasks of the bronze stage, and stitching the pieces of a stream.

A task guesses where its piece begins and decodes it at once. The driver joins the pieces of a
stream as ``wireyard.streams.split`` does: by induction from offset 0, so every wrong guess is
found. Such a piece is decoded again from its true beginning, and its first rows are discarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from wireyard.formats import get_format
from wireyard.pipeline.decoding.indexing import IndexedCapture
from wireyard.pipeline.decoding.results import PieceResult
from wireyard.pipeline.decoding.task import AnyPiece, Piece
from wireyard.pipeline.inputs.captures import CapturePart, cut_capture
from wireyard.pipeline.inputs.finding import FoundInput
from wireyard.pipeline.inputs.snapshot import open_snapshot
from wireyard.pipeline.inputs.tasks import group_into_tasks
from wireyard.streams.scan import load_fast_path
from wireyard.streams.source import Reading
from wireyard.streams.split import TO_THE_END, Segment, cut_evenly, stitch, walk
from wireyard.streams.window import windows_of_file


def cut_inputs(
    inputs: Iterable[FoundInput],
    split_bytes: int,
    decode_as: tuple[str, ...] = (),
    indexed: Mapping[str, IndexedCapture] = MappingProxyType({}),
    keylog: tuple[str, ...] = (),
) -> list[list[AnyPiece]]:
    """Divide inputs into tasks: large inputs are split, small ones share a task.

    A piece that begins with a guess has a task of its own, so that its file can be discarded. So
    has a part of a capture, which may have to be read again. `indexed` has the captures that have
    an index, by path.
    """
    alone: list[AnyPiece] = []
    shared: list[AnyPiece] = []
    for each in inputs:
        if each.stored:
            whole = each.path, each.files, each.format, (), (), 0, 1, each.size
            shared.append(CapturePart(*whole, stored=True))
            continue
        if each.files:
            known = indexed.get(each.path)
            parts = cut_capture(
                each.path,
                known.files if known else each.files,
                0 if each.compressed else each.size,
                format=each.format,
                decode_as=decode_as,
                keylog=keylog,
                split_bytes=split_bytes,
                index=known.extents if known else (),
            )
            for part in parts:
                (alone if part.of > 1 else shared).append(part)
            continue
        if each.format is None:
            continue
        context = get_format(each.format).context
        if not each.compressed and each.size > split_bytes:
            bounds = cut_evenly(each.size, split_bytes)
            alone += (
                Piece(
                    each.path,
                    each.format,
                    start,
                    stop,
                    each.size,
                    start == 0,
                    context,
                    each.location,
                )
                for start, stop in pairwise(bounds)
            )
            continue
        stop = TO_THE_END if each.compressed else each.size
        shared.append(
            Piece(each.path, each.format, 0, stop, each.size, True, context, each.location)
        )
    tasks: list[list[AnyPiece]] = [[piece] for piece in alone]
    return tasks + group_into_tasks(shared, split_bytes)


@dataclass(frozen=True, slots=True)
class Stitched:
    """The stitched pieces of an input."""

    kept: list[PieceResult]
    """Valid pieces in stream order; together with `again` they cover the stream."""
    again: list[Piece]
    """Pieces that must be decoded again."""


def stitch_input(
    pieces: Sequence[Piece], results: Mapping[int, PieceResult], max_packet_bytes: int | None
) -> Stitched:
    """Stitch the pieces of an input.

    The pieces are in stream order; `results` has that of each piece by its start.
    """
    if len(pieces) == 1:
        return Stitched([results[pieces[0].start]], [])
    again: list[Piece] = []

    def walk_again(start: int, stop: int, context: int) -> Segment:
        piece = replace(pieces[0], start=start, stop=stop, exact=True, context=context)
        again.append(piece)
        return _walk(piece, max_packet_bytes)

    walked: dict[int, tuple[Segment, PieceResult]] = {}
    segments: list[Segment | None] = []
    for piece in pieces:
        result = results[piece.start]
        if result.first is None:
            segments.append(None)
            continue
        contexts = piece.context, result.next_context
        segment = Segment(result.first, result.end, result.rows, *contexts)
        walked[id(segment)] = segment, result
        segments.append(segment)
    bounds = [*(piece.start for piece in pieces), pieces[-1].stop]
    joined = stitch(bounds, segments, walk_again, pieces[0].context)
    kept = [walked[id(segment)][1] for segment in joined if id(segment) in walked]
    return Stitched(kept, again)


def _walk(piece: Piece, max_packet_bytes: int | None) -> Segment:
    format = get_format(piece.format)
    fast = load_fast_path(format, piece.stop - piece.start)
    limit = max_packet_bytes or format.framing.max_packet_bytes
    with open_snapshot(piece.path, piece.size) as file:
        file.seek(piece.start)
        windows = windows_of_file(Reading(file, ours=False), file.name, piece.start)
        scanner = fast.scan_frames if fast else None
        return walk(windows, format, piece.start, piece.stop, limit, scanner, piece.context)
