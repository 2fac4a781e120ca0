"""The files of rotated captures, in which frames are found."""

from __future__ import annotations

from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.tables import fact_table


def test_frames_of_several_rotated_captures_are_located() -> None:
    spans = [("a", "a/1", 1), ("a", "a/2", 5), ("b", "b/1", 1), ("b", "b/2", 3), ("c", "c", 1)]
    names = ("source", "file", "first_frame", "frames")
    frames = [("a", 4), ("b", 3), ("c", 2), ("a", 5), ("b", None), ("d", 7)]
    rows = [{"source": source, "frame": frame} for source, frame in frames]
    files = FrameFiles(dict(zip(names, (*span, 9), strict=True)) for span in spans)
    found = files.locate(fact_table("messages", rows)).select(["file", "file_frame"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("a/1", 4),
        ("b/2", 1),
        ("c", 2),
        ("a/2", 1),
        ("b", None),
        ("d", 7),
    ]
