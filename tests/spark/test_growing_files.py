"""The files of a rotated capture: in which order they are read, and what does not fit in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.captures.make import Packet, pcap
from wireyard.captures.live.state import StateError
from wireyard.pipeline.growing.sources import GrowingFiles

HEAD = pcap([])


def capture(second: int, size: int = 40) -> bytes:
    """Return a capture of one packet."""
    return pcap([Packet(bytes(size), second * 10**9)])


@contextmanager
def opened(folder: Path) -> Iterator[GrowingFiles]:
    files = GrowingFiles(str(folder), rotated=True)
    try:
        yield files
    finally:
        files.close()


def paths(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.iterdir())]


def rest(files: GrowingFiles) -> bytes:
    """Read what there is, file by file."""
    found = b""
    while True:
        data = files.read(7)
        found += data
        if not data and not files.next_file():
            return found


def test_files_follow_each_other_by_their_first_packets(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(capture(1))
    (tmp_path / "c").write_bytes(HEAD)
    (tmp_path / "a").write_bytes(capture(2))
    with opened(tmp_path) as files:
        files.refresh(paths(tmp_path))
        assert files.unread_bytes == len(capture(1) + capture(2))
        assert rest(files) == capture(1) + capture(2)
        assert [*files.without_packets] == [str(tmp_path / "c")]
        with (tmp_path / "a").open("ab") as file:
            file.write(b"more")
        files.refresh(paths(tmp_path))
        assert rest(files) == b"more"
        (tmp_path / "c").write_bytes(capture(3))
        files.refresh(paths(tmp_path))
        assert not files.without_packets
        assert rest(files) == capture(3)
        assert files.position == len(capture(1) * 3) + 4
        assert len(files.stamp()["files"]) == 3
        # A ring writes over its oldest file, which is another one then.
        (tmp_path / "b").write_bytes(capture(4, 50))
        files.refresh(paths(tmp_path))
        assert rest(files) == capture(4, 50)
        os.unlink(tmp_path / "a")
        files.refresh(paths(tmp_path))
        assert rest(files) == b""
        assert len(files.stamp()["files"]) == 2


def test_another_goes_on_from_a_state(tmp_path: Path) -> None:
    for name, second in (("a", 1), ("b", 2)):
        (tmp_path / name).write_bytes(capture(second))
    with opened(tmp_path) as files:
        files.refresh(paths(tmp_path))
        rest(files)
        state = files.state(30)
    (tmp_path / "b").rename(tmp_path / "0")
    (tmp_path / "c").write_bytes(capture(3))
    with opened(tmp_path) as files:
        files.restore(state, paths(tmp_path))
        assert files.position == len(capture(1)) + 30
        assert rest(files) == capture(2)[30:] + capture(3)
    (tmp_path / "0").write_bytes(capture(5))
    with opened(tmp_path) as files, pytest.raises(StateError):
        files.restore(state, paths(tmp_path))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a", capture(1) + b"more"),  # was read to its end
        ("b", capture(2)[:50]),  # is shorter than what was read
        ("c", capture(0)),  # begins before what was read
    ],
)
def test_what_does_not_go_on(name: str, data: bytes, tmp_path: Path) -> None:
    for each, second in (("a", 1), ("b", 2)):
        (tmp_path / each).write_bytes(capture(second))
    with opened(tmp_path) as files:
        files.refresh(paths(tmp_path))
        rest(files)
        files.refresh(paths(tmp_path))
        (tmp_path / name).write_bytes(data)
        with pytest.raises(StateError):
            files.refresh(paths(tmp_path))
