"""Files as windows of their pages: the same rows, and errors instead of signals."""

from __future__ import annotations

import gc
import gzip
from mmap import PAGESIZE
from pathlib import Path

import pyarrow as pa
import pytest

from tests.readings import scan_source
from tests.spark.rows import GOOD, STREAM
from wireyard.errors import SourceError
from wireyard.formats import get_format
from wireyard.streams import mapped
from wireyard.streams.mapped import map_windows
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

PLAN = make_plan(get_format("jmq"))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Return the file of the stream with everything in it."""
    path = tmp_path / "stream.jmq"
    path.write_bytes(STREAM)
    return path


@pytest.mark.parametrize("window_bytes", [64, 1000, PAGESIZE, 1 << 20])
@pytest.mark.parametrize("start", [0, len(GOOD[0]), len(b"".join(GOOD[:57]))])
def test_the_rows_are_those_that_reading_finds(
    stream: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int, start: int
) -> None:
    monkeypatch.setattr(mapped, "_WINDOW_BYTES", window_bytes)
    name = str(stream)
    opened = map_windows(name, start)
    assert opened is not None and opened.size == len(STREAM) - start
    found = list(scan_stream(opened, PLAN, PLAN.framer(start)))
    expected = pa.Table.from_batches(scan_source(name, PLAN, framer=PLAN.framer(start)))
    assert len(found) > 1 or window_bytes > len(STREAM)
    assert pa.Table.from_batches(found).equals(expected)


def test_what_is_left_to_reading(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.gz").write_bytes(gzip.compress(STREAM))
    (tmp_path / "empty").touch()
    for name in ("small.gz", "empty", "none", "."):
        assert map_windows(str(tmp_path / name), 0) is None
    assert map_windows("memory://stream.jmq", 0) is None
    assert map_windows(str(stream), len(STREAM)) is None
    assert map_windows(str(stream), len(STREAM) - 1) is not None
    monkeypatch.setattr(mapped, "_POPULATE_READ", 10_000)  # what an older system says to it
    assert map_windows(str(stream), 0) is None


def test_a_file_that_is_cut_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_WINDOW_BYTES", 4 * PAGESIZE)
    path = tmp_path / "stream.jmq"
    path.write_bytes(GOOD[0] * 1000)
    opened = map_windows(str(path), 0)
    assert opened is not None
    batches = scan_stream(opened, PLAN)
    assert next(batches).num_rows > 0
    with path.open("r+b") as file:
        file.truncate(PAGESIZE)
    with pytest.raises(SourceError, match=rf"{path}: cannot be read on at byte \d+"):
        list(batches)


def test_a_map_goes_with_its_windows(stream: Path) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(stream))

    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux lists the maps of a process")
    opened = map_windows(str(stream), 0)
    assert opened is not None and maps() == 1
    rows = pa.Table.from_batches(scan_stream(opened, PLAN))
    del opened
    gc.collect()  # errors hold the frames they came through
    assert maps() == 0
    assert rows.num_rows > len(GOOD)
