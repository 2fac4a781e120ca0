"""Files that come to folders: which are whole, and which come again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from wireyard.errors import SourceError
from wireyard.pipeline.inputs.watching import SETTLED_S, Watched

NS = 1_000_000_000


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def watched(self, *paths: Path, inside: str = "/nowhere", rotated: bool = False) -> Watched:
        names = [str(path) for path in paths]
        wall_ns = lambda: int(self.now_s * NS)  # noqa: E731
        return Watched(names, inside, rotated, lambda: self.now_s, wall_ns)

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        os.utime(path, ns=(0, int(self.now_s * NS)))


def names(watched: Watched, *, settled: bool) -> list[str]:
    watched.poll()
    found = [file for file in watched.changed() if watched.is_settled(file) is settled]
    return [Path(file.path).name for file in found]


def test_a_file_is_whole_once_it_has_not_changed_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    watched = clock.watched(tmp_path)
    clock.write(tmp_path / "a", b"1")
    assert names(watched, settled=False) == ["a"]
    clock.now_s += SETTLED_S - 0.5
    clock.write(tmp_path / "a", b"12")
    assert names(watched, settled=True) == []
    clock.now_s += SETTLED_S - 0.5
    assert names(watched, settled=True) == []
    clock.now_s += 0.5
    assert names(watched, settled=True) == ["a"]


def test_an_old_file_is_whole_at_once(tmp_path: Path) -> None:
    clock = Clock()
    clock.write(tmp_path / "b", b"1")
    clock.now_s += 1
    clock.write(tmp_path / "a", b"1")
    clock.now_s += SETTLED_S
    assert names(clock.watched(tmp_path), settled=True) == ["b", "a"]  # the oldest first


def test_what_was_taken_comes_again_when_it_has_changed(tmp_path: Path) -> None:
    clock = Clock()
    watched = clock.watched(tmp_path)
    clock.write(tmp_path / "a", b"1")
    clock.now_s += SETTLED_S
    watched.poll()
    watched.mark_done(watched.changed()[0])
    assert names(watched, settled=True) == []
    clock.write(tmp_path / "a", b"12")
    assert names(watched, settled=False) == ["a"]


def test_the_lake_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    clock = Clock()
    clock.write(tmp_path / "lake" / "x", b"1")
    clock.write(tmp_path / "y", b"1")
    watched = clock.watched(tmp_path, inside=str(tmp_path / "lake"))
    assert names(watched, settled=False) == ["y"]
    assert watched.count == 1


def test_patterns_may_stand_for_nothing_yet_but_folders_are_there(tmp_path: Path) -> None:
    clock = Clock()
    watched = clock.watched(tmp_path / "*.pcap")
    assert names(watched, settled=False) == []
    clock.write(tmp_path / "a.pcap", b"1")
    clock.write(tmp_path / "a.txt", b"1")
    assert names(watched, settled=False) == ["a.pcap"]
    with pytest.raises(SourceError, match="no such file or folder"):
        clock.watched(tmp_path / "none")


def test_the_captures_of_a_folder_are_one_where_they_are_rotated(
    tmp_path: Path, examples: Path
) -> None:
    clock = Clock()
    watched = clock.watched(tmp_path, rotated=True)
    capture = (examples / "traffic.pcap").read_bytes()
    clock.write(tmp_path / "empty.pcap", b"")
    clock.write(tmp_path / "a.jmq", b"JMQ")
    clock.write(tmp_path / "b.pcap", capture[:1000])
    assert names(watched, settled=False) == [tmp_path.name, "a.jmq"]
    (folder,) = (file for file in watched.changed() if file.path == str(tmp_path))
    assert folder.size == 1000 and watched.is_rotated(folder.path)
    watched.mark_done(folder)
    clock.now_s += 3
    clock.write(tmp_path / "empty.pcap", capture[:500])
    assert names(watched, settled=False) == [tmp_path.name]
    (folder,) = (file for file in watched.changed() if file.path == str(tmp_path))
    assert watched.is_growing(folder)
    assert {Path(file.path).name for file in watched.files_of(folder)} == {"b.pcap", "empty.pcap"}
    # What is compressed is not read part by part, and so neither is the capture it is in.
    clock.write(tmp_path / "c.pcap", gzip.compress(capture[:500]))
    watched.poll()
    assert not watched.is_rotated(str(tmp_path))
