"""Captures put together from an index of their headers: what a reader of the whole capture sees."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.captures.make import Packet, pcap
from tests.captures.test_parts import streams_of, traffic
from wireyard.captures.files.extents import plan_extents
from wireyard.captures.files.file import CaptureFile
from wireyard.captures.index import IndexedExtent, read_indexed, write_index
from wireyard.captures.packets.units import Share
from wireyard.captures.read import Capture, read_captures
from wireyard.errors import SourceError
from wireyard.streams.mapped import map_places

__all__ = ["traffic"]

PORT = 7676


def index(folder: Path, paths: list[str], shares: int, piece_bytes: int) -> list[IndexedExtent]:
    extents: list[IndexedExtent] = []
    for number, path in enumerate(paths):
        for extent in plan_extents(path, piece_bytes) or ():
            target = folder / f"index-{len(extents)}"
            with target.open("wb") as sink:
                file = CaptureFile.map(path, extent)
                walked, _ = write_index(sink, file, extent, shares, PORT)
            assert walked[2:] == extent[2:] and walked.stop <= extent.stop
            extents.append(IndexedExtent(str(target), number))
    return extents


def facts(capture: Capture) -> list[object]:
    """Return all there is to know of a capture but its streams and files."""
    names = [field.name for field in fields(capture)]
    rest = set(names) - {"files", "table", "guides", "damage", "unread_bytes"}
    return [getattr(capture, name) for name in sorted(rest)]


@pytest.mark.parametrize(("files", "shares", "pieces"), [(1, 1, 1), (1, 7, 5), (6, 3, 30)])
def test_an_index_gives_what_the_whole_capture_gives(
    tmp_path: Path, traffic: list[Packet], files: int, shares: int, pieces: int
) -> None:
    rng = Random(files)
    cuts = sorted(rng.sample(range(1, len(traffic)), files - 1))
    paths = []
    for number, (start, stop) in enumerate(pairwise([0, *cuts, len(traffic)])):
        paths.append(str(tmp_path / str(number)))
        Path(paths[-1]).write_bytes(pcap(traffic[start:stop]))
    piece_bytes = sum(Path(path).stat().st_size for path in paths) // (files * pieces)
    extents = index(tmp_path, paths, shares, piece_bytes)
    assert len(extents) >= files * min(pieces, 1)
    found = 0
    for part in range(shares):
        share = Share(part, shares, PORT)
        ours, whole = (
            read_indexed(paths, extents, share),
            read_captures(paths, share=share),
        )
        assert streams_of(ours) == streams_of(whole)
        assert [one.name for one in ours.guides] == [one.name for one in whole.guides]
        assert facts(ours) == facts(whole)
        found += len(ours.streams)
    assert found > 300


def test_a_file_that_is_another_now_is_refused(tmp_path: Path, traffic: list[Packet]) -> None:
    path = tmp_path / "capture"
    path.write_bytes(pcap(traffic))
    extents = index(tmp_path, [str(path)], 2, 1 << 20)
    path.write_bytes(pcap(traffic[:10]))
    with pytest.raises(SourceError, match="is another file than before"):
        read_indexed([str(path)], extents, Share(0, 2, PORT))


def test_places_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4096)
    starts = np.array([900_000, 5, 70_000, 5], np.int64)
    data = map_places(str(path), [(starts, starts + np.array([10, 0, 5000, 3]))])
    assert data is not None and data[70_000:70_004].tolist() == [112, 113, 114, 115]
    none = np.empty(0, np.int64)
    assert map_places(str(path), [(none, none)]) is not None
    assert map_places(str(path), [(starts, starts + 3), (starts, starts + (1 << 20))]) is None
