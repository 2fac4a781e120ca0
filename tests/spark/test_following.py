"""A lake that follows a folder has what one run over the folder has, whenever it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pyarrow.dataset as ds
import pytest

from tests.spark import lakes
from tests.spark.lakes import nothing_left
from wireyard.errors import SourceError
from wireyard.lake import read_lake
from wireyard.spark.job import FEW_BYTES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KILLS = int(os.environ.get("WIREYARD_STREAM_KILLS", "3"))
"""How often the process is killed; in the suite a few times."""
_WAIT_S = 120


def tables(lake: Path) -> dict[str, list[str]]:
    """Return all rows of all tables that have some."""
    held = read_lake(str(lake))
    found = {}
    for name in held.files:
        rows = sorted(map(repr, ds.dataset(held.paths(name)).to_table().to_pylist()))
        if rows:
            found[name] = rows
    return found


@contextmanager
def following(folder: Path, lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process follow a folder; it is killed at the end if it still runs."""
    words = ["run", str(folder), "--follow", "--lake", str(lake), "-q"]
    command = [sys.executable, "-m", "wireyard", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C, and see that the process ends well."""
    process.send_signal(signal.SIGINT)
    assert process.wait(_WAIT_S) == 0, process.stderr and process.stderr.read()


def until(there: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + _WAIT_S
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def held(lake: Path) -> int:
    """Return how many inputs a lake holds."""
    with suppress(SourceError):
        return len(read_lake(str(lake), check=False).record.inputs)
    return 0


def assert_as_one_run(folder: Path, lake: Path) -> None:
    """Compare a lake with that of one run over the folder as it is now."""
    once = lake.with_name("once")
    lakes.run(once, None, folder, few_bytes=FEW_BYTES)
    found, expected = tables(lake), tables(once)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, name


def test_files_that_come(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    sources = sorted((EXAMPLES / "traffic").glob("*-c2b.jmq"))
    with following(folder, lake) as process:
        for source in sources[:3]:
            shutil.copy(source, folder)
        until(lambda: held(lake) == 3)
        for source in sources[3:]:
            shutil.copy(source, folder)
        until(lambda: held(lake) == len(sources))
        (folder / sources[0].name).write_bytes(sources[0].read_bytes()[:-5])
        time.sleep(0.5)
        stop(process)
    assert_as_one_run(folder, lake)
    nothing_left(lake)
    # It is a lake like any other: a run that follows has nothing to do.
    assert not lakes.run(lake, None, folder, few_bytes=FEW_BYTES).added


def test_killed_at_any_moment(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    rng = Random(17)
    sources = [*sorted((EXAMPLES / "traffic").glob("[a-z]*.*")), EXAMPLES / "traffic.pcap"]
    waiting = list(sources)
    rng.shuffle(waiting)
    count = len(waiting)
    each = -(-len(waiting) // (KILLS + 1))
    killed_after = 0
    for _ in range(KILLS):
        with following(folder, lake) as process:
            for source in [waiting.pop() for _ in range(min(each, len(waiting)))]:
                shutil.copy(source, folder)
                time.sleep(rng.random() / each)
            time.sleep(rng.uniform(0.5, 6.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed_after += held(lake) > 0
    for source in waiting:
        shutil.copy(source, folder)
    with following(folder, lake) as process:
        until(lambda: held(lake) == count)
        stop(process)
    assert killed_after
    assert_as_one_run(folder, lake)
    nothing_left(lake)


@pytest.mark.parametrize("words", [["--rotated"], ["--lake"]])
def test_what_cannot_be_followed(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wireyard", "run", "--follow"]
    given = [*words, "x", "--lake", "y"] if words == ["--rotated"] else ["none", "--lake", "y"]
    found = subprocess.run(
        [*command, *given], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode in (2, 3)
    assert len(found.stderr.splitlines()) == 1
    assert "Traceback" not in found.stderr
