"""The bytes behind rows: a source is opened once more, and the packets at offsets are found."""

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
from wireyard.streams.framer import GAP, Framer
from wireyard.streams.scan import load_fast_path

__all__ = ["MOST_BYTES", "MOST_SOURCE_BYTES", "Evidence", "Place", "find_evidence"]

MOST_BYTES: Final = 1 << 20
"""Of a packet; of a larger one the first are shown."""

MOST_SOURCE_BYTES: Final = 1 << 28
"""Of a source, which is read as a whole for some packets of it: a second or two."""

Place = tuple[str, str, int]
"""Source, stream and offset of a row."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The bytes of a row and what they mean."""

    format: Format
    size: int
    data: bytes
    """Up to `MOST_BYTES` of them."""
    marks: Sequence[Annotation]
    """What the bytes of a packet mean, in order; none of bytes that are no packet."""
    hidden: Collection[str]
    """Fields whose bytes are not to be shown, because a password is in them."""


def find_evidence(
    places: Collection[Place],
    files: FrameFiles,
    *,
    format: str | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str] = (),
) -> dict[Place, Evidence]:
    """Return the bytes at some places of local sources that are still there and not too large.

    Parameters
    ----------
    files
        The files of the sources that are captures.
    format, decode_as, keylog
        Those that the sources were opened with.
    """
    wanted: dict[str, dict[str, set[int]]] = {}
    for source, stream, offset in places:
        wanted.setdefault(source, {}).setdefault(stream, set()).add(offset)
    found: dict[Place, Evidence] = {}
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
                for one in opened.streams_named(streams):
                    offsets = streams[one.opened.stream]
                    for offset, evidence in _in_stream(one, offsets):
                        found[source, one.opened.stream, offset] = evidence
        except (WireError, OSError):
            continue  # who reads the rows sees that there are no bytes
    return found


def _size(paths: Sequence[str]) -> int:
    """Return the bytes of files; a folder, which is a store, counts none."""
    return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def _in_stream(one: Readable, offsets: Collection[int]) -> Iterator[tuple[int, Evidence]]:
    """Yield the rows of a stream that begin at some offsets."""
    left = set(offsets)
    framer = Framer(one.format, None, context=one.opened.context)
    fast = load_fast_path(one.format, one.opened.bytes_ahead)
    for block in one.opened.blocks(framer, fast.scan_frames if fast else None):
        starts: Mapping[int, int] = {at: row for row, at in enumerate(block.offsets.tolist())}
        for offset in sorted(left & starts.keys()):
            row = starts[offset]
            size, place = int(block.lengths[row]), int(block.places[row])
            odd = block.odd.get(row)
            data = block.data[max(place, 0) : place + min(size, MOST_BYTES)].tobytes()
            if odd is not None and odd.status == GAP:
                data = b""
            is_packet = odd is None or odd.status not in ("garbage", GAP)
            yield offset, _evidence(one.format, size, data, int(block.contexts[row]), is_packet)
        left -= starts.keys()
        if not left:
            return


def _evidence(format: Format, size: int, data: bytes, context: int, is_packet: bool) -> Evidence:
    if not is_packet or len(data) < size:
        return Evidence(format, size, data, (), ())
    row, _ = format.read_row(data, context)
    shown = format.redact(row)
    hidden = {name for name, value in row.items() if shown.get(name) is not value}
    return Evidence(format, size, data, format.annotate(data, context), hidden)
