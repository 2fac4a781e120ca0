"""The lake changes by whole commits: whenever a run ends, readers see one commit and never two."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from wireyard.spark import swap
from wireyard.spark.lake import Change, Input, Lake, LakeError, StreamLedger
from wireyard.streams.source import filesystem

ROOT = Path(__file__).resolve().parents[2]
BEFORE = {"grown": ["a", "b", "c"], "swapped": ["old1", "old2"]}
AFTER = {"grown": ["a", "c", "d", "e"], "swapped": ["new1", "new2", "new3"]}
STEPS = 7  # before and after each of: a file goes, two come, a swap, the record, the staging


class Killed(Exception):
    """What the tests put in the place of a crash."""


class Dying(Lake):
    """A lake whose run is killed after some of the steps of a commit."""

    left = sys.maxsize

    def _take(self, step: Callable[[], None]) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        step()


def stage(lake: Lake, table: str, names: Sequence[str]) -> list[str]:
    """Stage files that hold their own names, and return them."""
    lake.make_staging([table])
    for name in names:
        system, path = filesystem(lake.staged(table, f"{name}.parquet"))
        pq.write_table(pa.table({"name": [name]}), path, filesystem=system)
    return [f"{name}.parquet" for name in names]


def one_ledger(stream: str, size: int) -> StreamLedger:
    return StreamLedger(stream, "jmq", {"bytes_read": size})


def first_commit(lake: Lake) -> None:
    grown = stage(lake, "grown", BEFORE["grown"])
    swapped = stage(lake, "swapped", BEFORE["swapped"])
    entry = Input("/in/a", "jmq", {"size": 1}, [one_ledger("/in/a", 1)], {"grown": grown[:1]})
    lake.commit(Change((entry,), append={"grown": grown}, replace={"swapped": swapped}))


def second_commit(lake: Lake) -> None:
    grown = stage(lake, "grown", ["d", "e"])
    swapped = stage(lake, "swapped", AFTER["swapped"])
    entry = Input("/in/d", "jmq", {"size": 2}, [one_ledger("/in/d", 2)], {"grown": grown})
    change = Change((entry,), {"grown": ["b.parquet"]}, {"grown": grown}, {"swapped": swapped})
    lake.commit(change)


def seen(folder: Path, table: str) -> list[str]:
    """Return what plain readers of a table see, which has to be the same for all of them."""
    by_arrow = sorted(ds.dataset(folder / table).to_table()["name"].to_pylist())
    by_duckdb = duckdb.execute(
        f"SELECT name FROM '{folder}/{table}/*.parquet' ORDER BY name"
    ).fetchall()
    assert [name for (name,) in by_duckdb] == by_arrow
    return by_arrow


def held(url: str, table: str) -> list[str]:
    """Return the rows in a folder of any store."""
    system, path = filesystem(f"{url}/{table}")
    found = ds.dataset(path, filesystem=system, format="parquet")
    return sorted(found.to_table()["name"].to_pylist()) if found.files else []


@pytest.fixture(params=["one step", "two renames"])
def swapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap folders as Linux can, and as other systems have to."""
    if request.param == "two renames":
        monkeypatch.setattr(swap, "_exchange", lambda one, other: False)


@pytest.mark.usefixtures("swapping")
def test_commits_are_seen_and_remembered(tmp_path: Path) -> None:
    for commit, state in ((first_commit, BEFORE), (second_commit, AFTER)):
        with Lake.open(str(tmp_path)) as lake:
            commit(lake)
        assert {table: seen(tmp_path, table) for table in state} == state
    with Lake.open(str(tmp_path)) as lake:
        assert lake.commits == 2
        assert set(lake.inputs) == {"/in/a", "/in/d"}
        assert lake.inputs["/in/d"].files == {"grown": ["d.parquet", "e.parquet"]}
        assert sorted(Path(path).stem for path in lake.paths("grown")) == AFTER["grown"]
        assert all(Path(path).is_file() for table in AFTER for path in lake.paths(table))


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("steps", range(STEPS))
def test_a_run_killed_in_its_commit_is_finished_by_the_next(tmp_path: Path, steps: int) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    Dying.left = sys.maxsize
    with Dying.open(str(tmp_path)) as dying:
        Dying.left = steps
        if steps == STEPS - 1:
            second_commit(dying)  # there are no more steps than we kill after
        else:
            with pytest.raises(Killed):
                second_commit(dying)
    grown, swapped = seen(tmp_path, "grown"), seen(tmp_path, "swapped")
    assert len(set(grown)) == len(grown)
    assert set(grown) <= {*BEFORE["grown"], *AFTER["grown"]}
    assert ("b" in grown) is (steps == 0)
    assert swapped in (BEFORE["swapped"], AFTER["swapped"])
    with Lake.open(str(tmp_path)) as lake:
        assert {table: seen(tmp_path, table) for table in AFTER} == AFTER
        assert (lake.commits, len(lake.inputs)) == (2, 2)
    assert not list((tmp_path / "_staging").rglob("*"))


def test_a_killed_repair_is_repaired_too(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    Dying.left = sys.maxsize
    with Dying.open(str(tmp_path)) as dying:
        Dying.left = 1
        with pytest.raises(Killed):
            second_commit(dying)
    for steps in range(STEPS):
        Dying.left = steps
        try:
            with Dying.open(str(tmp_path)):
                break
        except Killed:
            continue
    else:
        pytest.fail("the commit was never finished")
    assert {table: seen(tmp_path, table) for table in AFTER} == AFTER


def test_a_run_killed_before_its_commit_leaves_nothing(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    program = (
        "import os, sys, tests.spark.test_lake as here\n"
        "with here.Lake.open(sys.argv[1]) as lake:\n"
        "    here.stage(lake, 'grown', ['d'])\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert list((tmp_path / "_staging").rglob("*.parquet"))
    assert {table: seen(tmp_path, table) for table in BEFORE} == BEFORE
    with Lake.open(str(tmp_path)):
        assert not list((tmp_path / "_staging").rglob("*.parquet"))
    assert {table: seen(tmp_path, table) for table in BEFORE} == BEFORE


def test_what_was_staged_and_not_committed_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lake.open(str(tmp_path)) as lake:
        stage(lake, "grown", ["a"])
        raise ZeroDivisionError
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.fixture
def memory_url() -> Iterator[str]:
    """Return a folder of a store that has no rename."""
    import fsspec

    name = f"lake-{uuid4().hex}"
    yield f"memory://{name}"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.mark.parametrize("steps", range(12))
def test_a_store_without_rename_is_finished_too(memory_url: str, steps: int) -> None:
    with Lake.open(memory_url) as lake:
        first_commit(lake)
    Dying.left = sys.maxsize
    with Dying.open(memory_url) as dying:
        Dying.left = steps
        with suppress(Killed):
            second_commit(dying)
    names = held(memory_url, "swapped")
    assert len(set(names)) == len(names)
    # Old files go before new ones come, so there is never a row of both.
    assert set(names) <= set(BEFORE["swapped"]) or set(names) <= set(AFTER["swapped"])
    with Lake.open(memory_url) as lake:
        assert {table: held(memory_url, table) for table in AFTER} == AFTER
        assert lake.commits == 2


def test_two_runs_do_not_write_at_once(tmp_path: Path) -> None:
    with (
        Lake.open(str(tmp_path)),
        pytest.raises(LakeError, match="another run is writing to it"),
        Lake.open(str(tmp_path)),
    ):
        pass
    with Lake.open(str(tmp_path)):
        pass


def test_a_folder_with_other_things_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LakeError, match="is no lake and not empty"), Lake.open(str(tmp_path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(LakeError, match=r"file/lake: cannot be written \(.+\)"),
        Lake.open(str(tmp_path / "file" / "lake")),
    ):
        pass


def test_a_committed_file_that_is_gone_is_said(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    with Dying.open(str(tmp_path)) as dying:
        Dying.left = 1
        with pytest.raises(Killed):
            second_commit(dying)
    for staged in (tmp_path / "_staging").rglob("d.parquet"):
        staged.unlink()
    with (
        pytest.raises(LakeError, match=f"is damaged, a committed file is missing: .*{os.sep}d"),
        Lake.open(str(tmp_path)),
    ):
        pass
