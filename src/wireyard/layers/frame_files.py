"""The file that holds a frame: frames are counted over all files of a rotated capture."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

Spans = dict[str, list[tuple[int, str]]]
"""The files of each source in order, each with its first frame."""


def ends_of_captures(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the time of the last frame of each source, from rows of the table ``files``."""
    ends_ns: dict[str, int] = {}
    for row in rows:
        if (last_ns := row.get("last_ns")) is not None:  # a lake of before has no such column
            ends_ns[row["source"]] = max(last_ns, ends_ns.get(row["source"], last_ns))
    return ends_ns


class FrameFiles:
    """The files of rotated captures, with the first frame of each.

    It is made from rows of the table ``files``. A source without rows is itself the only file.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        spans: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for row in rows:
            if row["frames"]:
                spans[row["source"]].append((row["first_frame"], row["file"]))
        self.spans: Spans = {
            source: sorted(files)
            for source, files in spans.items()
            if [file for _, file in files] != [source]
        }
        """Those of the sources that are not themselves the only file."""

    @classmethod
    def of(cls, spans: Spans) -> FrameFiles:
        """Return the files with some `spans`."""
        files = cls()
        files.spans = spans
        return files

    def find(self, source: str, frame: int) -> tuple[str, int]:
        """Return the file of a frame, and the frame's number in that file."""
        spans = self.spans.get(source)
        if spans is None:
            return source, frame
        first, file = spans[max(bisect_right(spans, frame, key=lambda span: span[0]) - 1, 0)]
        return file, frame - first + 1

    def files_of(self, source: str) -> list[str]:
        """Return the files of a source, in the order of their frames."""
        return [file for _, file in self.spans.get(source, ((1, source),))]

    def locate(self, messages: pa.Table) -> pa.Table:
        """Fill the columns ``file`` and ``file_frame`` of a part of the table ``messages``."""
        from pyarrow import compute as pc  # slow to import

        files, frames = messages["source"], messages["frame"]
        sources = pc.unique(files.cast(pa.string())).to_pylist()
        rotated = [source for source in sources if source in self.spans]
        if rotated:
            texts = names_of = files.cast(pa.string()).combine_chunks()
            numbers = frames.fill_null(0).to_numpy().copy()
            known = frames.is_valid().to_numpy()
            for source in rotated:
                is_of = pc.equal(texts, source).to_numpy(zero_copy_only=False)
                rows = np.flatnonzero(is_of & known)
                firsts, names = zip(*self.spans[source], strict=True)
                places = np.searchsorted(firsts, numbers[rows], "right") - 1
                mask = np.zeros(len(numbers), np.bool_)
                mask[rows] = True
                in_files = pa.array(names).take(pa.array(places))
                names_of = pc.replace_with_mask(names_of, pa.array(mask), in_files)
                numbers[rows] -= np.array(firsts)[places] - 1
            files, frames = names_of, pa.array(numbers, mask=~known)
        for name, values in (("file", files), ("file_frame", frames)):
            place = messages.column_names.index(name)
            messages = messages.set_column(place, name, values)
        return messages
