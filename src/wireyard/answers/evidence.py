"""Evidence: the bytes behind rows, read again from their sources."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from wireyard.captures.inputs import Readable, open_captures, open_input
from wireyard.errors import WireError
from wireyard.formats import Format, get_format
from wireyard.formats.base import Annotation
from wireyard.layers.frame_files import FrameFiles
from wireyard.streams.framer import GAP, OK, Framer
from wireyard.streams.redaction import annotate
from wireyard.streams.scan import load_fast_path

MOST_BYTES: Final = 1 << 20
"""Limit for the bytes of a packet; of a larger one the first are returned."""

MOST_SOURCE_BYTES: Final = 1 << 28
"""Limit for the size of a source, which is read as a whole for some of its packets: 1 to 2 s."""

RowPosition = tuple[str, str, int]
"""Source, stream and offset of a row."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The bytes of a row, and their meaning."""

    format: Format
    size: int
    data: bytes
    """The first bytes, up to `MOST_BYTES`."""
    marks: Sequence[Annotation]
    """Annotations of the bytes, in order; empty if they have no meaning and may be shown."""


def find_evidence(
    positions: Collection[RowPosition],
    files: FrameFiles,
    *,
    format: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
) -> dict[RowPosition, Evidence]:
    """Return the evidence for rows of local sources that still exist and are not too large.

    `files` are the files of the sources that are captures. `format`, `decode_as` and `keylog` are
    the options that the sources were opened with.
    """
    wanted: dict[str, dict[str, set[int]]] = {}
    for source, stream, offset in positions:
        wanted.setdefault(source, {}).setdefault(stream, set()).add(offset)
    found: dict[RowPosition, Evidence] = {}
    named = get_format(format) if format else None
    for source, streams in wanted.items():
        of_source = files.files_of(source)
        if not all(map(os.path.exists, of_source)) or _size(of_source) > MOST_SOURCE_BYTES:
            continue
        try:
            if of_source == [source]:
                opened = open_input(source, named, decode_as, keylog)
            else:
                opened = open_captures(of_source, named, decode_as, name=source, keylog=keylog)
            with closing(opened):
                for readable in opened.streams_named(streams):
                    name = readable.opened.stream
                    for offset, evidence in _in_stream(readable, streams[name]):
                        found[source, name, offset] = evidence
        except (WireError, OSError):
            continue  # rows of a source that cannot be read have no evidence
    return found


def _size(paths: Sequence[str]) -> int:
    """Return the total size of files; a folder, which is a store, counts as 0."""
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def _in_stream(stream: Readable, offsets: Collection[int]) -> Iterator[tuple[int, Evidence]]:
    """Yield the evidence for the rows of a stream that begin at some offsets."""
    left = set(offsets)
    framer = Framer(stream.format, None, context=stream.opened.context)
    fast = load_fast_path(stream.format, stream.opened.bytes_ahead)
    for block in stream.opened.blocks(framer, fast.scan_frames if fast else None):
        starts: Mapping[int, int] = {at: row for row, at in enumerate(block.offsets.tolist())}
        for offset in sorted(left & starts.keys()):
            row = starts[offset]
            size, place = int(block.lengths[row]), int(block.places[row])
            odd = block.odd.get(row)
            data = block.data[max(place, 0) : place + min(size, MOST_BYTES)].tobytes()
            context = int(block.contexts[row])
            if odd is not None and odd.status == GAP:
                data = b""
            status = OK if odd is None else odd.status
            marks = () if status == GAP else annotate(stream.format, data, status, context, size)
            yield offset, Evidence(stream.format, size, data, marks)
        left -= starts.keys()
        if not left:
            return
