"""The lake changes by whole commits: whenever a run ends, readers see one commit and never two."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from pathlib import Path
from threading import Condition, Thread
from typing import Any
from unittest import mock
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from wireyard.captures.stream_table import LEDGER
from wireyard.errors import SourceError
from wireyard.lake import LakeSnapshot, read_lake
from wireyard.lake import writer as lakes
from wireyard.lake.ledgers import LedgerSum, StreamLedger, captured_streams, streams_table
from wireyard.lake.writer import RETENTION, Change, Input, Lake, LakeError
from wireyard.streams.source import create_file, filesystem

ROOT = Path(__file__).resolve().parents[2]
BEFORE = {"grown": ["a", "b", "c"], "swapped": ["old1", "old2"]}
AFTER = {"grown": ["a", "c", "d", "e"], "swapped": ["new1", "new2", "new3"]}
NOTHING = {"grown": list[str](), "swapped": list[str]()}


def stage(lake: Lake, table: str, names: Sequence[str]) -> list[str]:
    """Stage files that hold their own names, and return them."""
    lake.make_staging([table])
    for name in names:
        system, path = filesystem(lake.staged(table, f"{name}.parquet"))
        pq.write_table(pa.table({"name": [name]}), path, filesystem=system)
    return [f"{name}.parquet" for name in names]


def first_commit(lake: Lake) -> None:
    grown = stage(lake, "grown", BEFORE["grown"])
    swapped = stage(lake, "swapped", BEFORE["swapped"])
    entry = Input("/in/a", "jmq", {"size": 1}, {}, {"grown": grown[:1]})
    lake.commit(Change((entry,), append={"grown": grown, "swapped": swapped}))


def second_change(lake: Lake) -> Change:
    grown = stage(lake, "grown", ["d", "e"])
    swapped = stage(lake, "swapped", AFTER["swapped"])
    entry = Input("/in/d", "jmq", {"size": 2}, {}, {"grown": grown})
    gone = {"grown": ["b.parquet"], "swapped": list(lake.files["swapped"])}
    return Change((entry,), gone, {"grown": grown, "swapped": swapped})


def second_commit(lake: Lake) -> None:
    lake.commit(second_change(lake))


def in_folder(folder: Path, table: str) -> list[str]:
    """Return what plain readers of a table see, which has to be the same for all of them."""
    if not (folder / table).is_dir():
        return []
    by_arrow = sorted(ds.dataset(folder / table).to_table()["name"].to_pylist())
    by_duckdb = duckdb.execute(
        f"SELECT name FROM '{folder}/{table}/*.parquet' ORDER BY name"
    ).fetchall()
    assert [name for (name,) in by_duckdb] == by_arrow
    return by_arrow


def folders(folder: Path) -> dict[str, list[str]]:
    return {table: in_folder(folder, table) for table in AFTER}


def names(snapshot: LakeSnapshot) -> dict[str, list[str]]:
    return {table: sorted(snapshot.read(table)["name"].to_pylist()) for table in AFTER}


def recorded(url: str) -> dict[str, list[str]]:
    """Return what readers of records see."""
    try:
        return names(read_lake(url))
    except SourceError:
        return NOTHING


def data_files(lake: Path) -> set[str]:
    return {path.stem for path in (lake / "_wireyard" / "data").rglob("*.parquet")}


# --- commits --------------------------------------------------------------------------------


def test_commits_are_seen_and_remembered(tmp_path: Path) -> None:
    for commit, state in ((first_commit, BEFORE), (second_commit, AFTER)):
        with Lake.open(str(tmp_path)) as lake:
            commit(lake)
        assert folders(tmp_path) == recorded(str(tmp_path)) == state
    with Lake.open(str(tmp_path)) as lake:
        assert lake.commits == 2
        assert set(lake.inputs) == {"/in/a", "/in/d"}
        assert lake.inputs["/in/d"].files == {"grown": ["d.parquet", "e.parquet"]}
        assert lake.inputs["/in/d"].stamp == {"size": 2}
        assert sorted(Path(path).stem for path in lake.paths("grown")) == AFTER["grown"]
        assert all(Path(path).is_file() for table in AFTER for path in lake.paths(table))
        (file,) = (one for one in lake.record.tables["grown"] if one.name == "d.parquet")
        assert (file.rows, file.bytes) == (1, Path(lake.path_of("grown", file)).stat().st_size)


def test_an_input_that_is_forgotten(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    with Lake.open(str(tmp_path)) as lake:
        lake.commit(Change(remove={"grown": ["a.parquet"]}, forget=frozenset({"/in/a"})))
    assert recorded(str(tmp_path))["grown"] == ["b", "c"]
    assert not read_lake(str(tmp_path)).inputs


def test_every_engine_reads_the_folders(tmp_path: Path) -> None:
    import polars

    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    found = polars.read_parquet(tmp_path / "grown" / "*.parquet")
    assert sorted(found["name"].to_list()) == BEFORE["grown"]
    both = duckdb.execute(f"SELECT name FROM read_parquet('{tmp_path}/*/*.parquet')").fetchall()
    assert len(both) == 5


# --- crashes --------------------------------------------------------------------------------


class Killed(BaseException):
    """Raised in place of a crash."""


@contextmanager
def killed_before(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Have this process die before a call that changes a folder; nothing it tries after counts."""
    calls: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*given: Any, **named: Any) -> Any:
            if len(calls) >= step:
                raise Killed
            calls.append(name)
            return call(*given, **named)

        return do

    with monkeypatch.context() as patched:
        for name in ("link", "unlink", "rename", "replace", "symlink", "mkdir"):
            patched.setattr(os, name, counted(name, getattr(os, name)))
        patched.setattr(Lake, "_discard", lambda lake: None)
        yield calls


def test_a_run_killed_in_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every single call: readers see one commit, and the next run finishes it."""
    reached = set()
    for step in range(100):
        folder = tmp_path / str(step)
        with Lake.open(str(folder)) as lake:
            first_commit(lake)
        began = read_lake(str(folder))
        with suppress(Killed), Lake.open(str(folder)) as lake:
            change = second_change(lake)
            with killed_before(step, monkeypatch) as calls:
                lake.commit(change)
        by_record, by_folder = recorded(str(folder)), folders(folder)
        assert by_record in (BEFORE, AFTER)
        assert by_folder in (BEFORE, by_record)
        reached.add((by_record == AFTER, by_folder == AFTER))
        assert names(began) == BEFORE
        with Lake.open(str(folder)) as lake:
            assert lake.commits == (2 if by_record == AFTER else 1)
        assert folders(folder) == recorded(str(folder)) == by_record
        hidden = [path for path in folder.rglob(".*") if path.name != ".."]
        assert not hidden
        if len(calls) < step:
            break
    else:
        pytest.fail("a commit has no end")
    assert reached == {(False, False), (True, False), (True, True)}


def test_a_killed_opening_is_finished_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    with pytest.raises(Killed), Lake.open(str(tmp_path)) as lake:
        change = second_change(lake)
        with killed_before(4, monkeypatch) as calls:
            lake.commit(change)
    assert calls == ["mkdir", "link", "unlink", "mkdir"]
    assert (recorded(str(tmp_path)), folders(tmp_path)) == (AFTER, BEFORE)
    for step in range(100):
        with (
            suppress(Killed),
            killed_before(step, monkeypatch) as calls,
            Lake.open(str(tmp_path)),
        ):
            pass
        assert folders(tmp_path) in (BEFORE, AFTER)
        if len(calls) < step:
            break
    assert folders(tmp_path) == AFTER


def commit_for_ever(url: str) -> None:
    """Commit again and again: a number that grows, a row of it, and all rows so far."""
    while True:
        with Lake.open(url) as lake:
            new = {table: [f"{uuid4().hex}.parquet"] for table in ("latest", "all")}
            for table, (name,) in new.items():
                lake.make_staging([table])
                rows = pa.table({"number": [lake.commits + 1]})
                pq.write_table(rows, lake.staged(table, name))
            lake.commit(Change(remove={"latest": lake.files.get("latest", [])}, append=new))


_KILLING = """
import os, random, signal, sys, time
import tests.spark.test_lake as here
random.seed(17)
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        here.commit_for_ever(sys.argv[1])
    time.sleep(random.uniform(0.05, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_a_reader_between_kills(tmp_path: Path) -> None:
    """24 runs are killed at random moments, while readers of both kinds look on."""
    lake = tmp_path / "lake"
    program = [sys.executable, "-c", _KILLING, str(lake), "24"]
    process = subprocess.Popen(program, cwd=ROOT)
    seen_commits = set()
    while process.poll() is None:
        with suppress(SourceError):
            snapshot = read_lake(str(lake))
            view = lake / "_wireyard" / "views" / f"{snapshot.commits:08d}"
            time.sleep(0.02)  # and commits go on
            assert_one_commit(snapshot.commits, snapshot.read)
            seen_commits.add(snapshot.commits)
            if view.exists():
                assert_one_commit(snapshot.commits, partial(in_view, view))
        newest = Path(os.path.realpath(lake / "_wireyard" / "newest"))
        if newest.name.isdigit():
            number = int(newest.name)
            assert_one_commit(number, partial(in_view, newest))
    assert process.returncode == 0
    assert len(seen_commits) > 5
    with Lake.open(str(lake)) as opened:
        assert_one_commit(opened.commits, opened.read)
        assert data_files(lake) == {
            Path(file.name).stem
            for table in ("latest", "all")
            for file in opened.record.tables[table]
        } | {Path(each.file.name).stem for each in opened.record.removed}


def in_view(view: Path, table: str) -> pa.Table:
    return ds.dataset(view / table).to_table()


def assert_one_commit(number: int, read: Callable[[str], pa.Table]) -> None:
    assert read("latest")["number"].to_pylist() == [number]
    assert sorted(read("all")["number"].to_pylist()) == list(range(1, number + 1))


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
    assert "d" in data_files(tmp_path)
    assert folders(tmp_path) == BEFORE
    with Lake.open(str(tmp_path)):
        assert "d" not in data_files(tmp_path)
    assert folders(tmp_path) == BEFORE


def test_what_was_staged_and_not_committed_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lake.open(str(tmp_path)) as lake:
        stage(lake, "grown", ["a"])
        raise ZeroDivisionError
    assert not list(tmp_path.rglob("*.parquet"))


def test_only_one_creates_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    create_file(path, b"one")
    with pytest.raises(FileExistsError):
        create_file(path, b"other")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"one"]


# --- readers of older commits ---------------------------------------------------------------


def test_a_reader_keeps_its_commit(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    reader = read_lake(str(tmp_path))
    listed = {table: reader.dataset(table) for table in BEFORE}
    resolved = Path(os.path.realpath(tmp_path / "swapped"))
    by_folder = ds.dataset(resolved)
    with Lake.open(str(tmp_path)) as lake:
        second_commit(lake)
    with Lake.open(str(tmp_path)):
        pass
    assert names(reader) == BEFORE
    assert {name: sorted(one.to_table()["name"].to_pylist()) for name, one in listed.items()} == (
        BEFORE
    )
    assert sorted(by_folder.to_table()["name"].to_pylist()) == BEFORE["swapped"]
    assert names(read_lake(str(tmp_path), 1)) == BEFORE


def test_a_commit_that_is_known_counts_as_long_as_it_is_the_newest(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
    known = read_lake(str(tmp_path)).record
    with Lake.open(str(tmp_path), known=known) as lake:
        assert lake.record is known
        second_commit(lake)
    with Lake.open(str(tmp_path), known=known) as lake:
        assert lake.commits == 2
        assert names(lake) == AFTER


def test_older_commits_expire(tmp_path: Path) -> None:
    with Lake.open(str(tmp_path)) as lake:
        first_commit(lake)
        second_commit(lake)
        lake.expire(RETENTION)
    assert {"b", "old1", "old2"} <= data_files(tmp_path)
    long = datetime.now(UTC) + 2 * RETENTION
    with Lake.open(str(tmp_path)) as lake, mock.patch("wireyard.lake.writer.datetime") as clock:
        clock.now.return_value = long  # what is not deleted stays listed, however old it is
        lake.commit(Change())
    assert {Path(each.file.name).stem for each in lake.record.removed} == {"b", "old1", "old2"}
    with Lake.open(str(tmp_path)) as lake:
        lake.expire(timedelta(0))
        lake.expire(timedelta(0))
    assert data_files(tmp_path) == {*AFTER["grown"], *AFTER["swapped"]}
    assert [path.name for path in (tmp_path / "_wireyard" / "views").iterdir()] == ["00000003"]
    assert folders(tmp_path) == recorded(str(tmp_path)) == AFTER
    with pytest.raises(SourceError, match=r"has no commit 1, or no longer$"):
        read_lake(str(tmp_path), 1)


def test_a_copy_whose_links_were_followed_goes_on(tmp_path: Path) -> None:
    """As of ``scp -r``: folders are in the place of links, and must not stay at the old commit."""
    with Lake.open(str(tmp_path / "lake")) as lake:
        first_commit(lake)
    copy = shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    assert not (copy / "_wireyard" / "newest").is_symlink()
    with Lake.open(str(copy)) as lake:
        assert folders(copy) == BEFORE
        second_commit(lake)
        lake.expire(timedelta(0))
    assert folders(copy) == recorded(str(copy)) == AFTER
    assert [path.name for path in (copy / "_wireyard" / "views").iterdir()] == ["00000002"]


# --- object stores --------------------------------------------------------------------------


@pytest.fixture
def memory_url() -> Iterator[str]:
    """Return a folder of a store that has no rename."""
    import fsspec

    name = f"lake-{uuid4().hex}"
    yield f"memory://{name}"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.mark.parametrize("after", [False, True])
def test_a_store_has_whole_commits(memory_url: str, after: bool) -> None:
    class Dying(Lake):
        def _commit_step(self, step: Callable[[], None]) -> None:
            if after:
                step()
            raise Killed

        def _discard(self) -> None:
            pass

    with Lake.open(memory_url) as lake:
        first_commit(lake)
    with suppress(Killed), Dying.open(memory_url) as dying:
        second_commit(dying)
    assert recorded(memory_url) == (AFTER if after else BEFORE)
    with Lake.open(memory_url) as lake:
        assert lake.commits == 1 + after
        assert names(lake) == (AFTER if after else BEFORE)


def staged_files(url: str) -> set[str]:
    from pyarrow import fs

    system, inner = filesystem(f"{url}/_wireyard/data")
    found = system.get_file_info(fs.FileSelector(inner, recursive=True, allow_not_found=True))
    return {info.base_name for info in found if info.base_name.endswith(".parquet")}


@pytest.mark.usefixtures("s3")
def test_what_another_run_writes_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://bucket/{uuid4().hex}"
    with Lake.open(url) as lake:
        first_commit(lake)
    with Lake.open(url) as lake:
        stage(lake, "grown", ["d"])
        with Lake.open(url):
            assert "d.parquet" in staged_files(url)
        monkeypatch.setattr(lakes, "ABANDONED", timedelta(seconds=-2))
        with Lake.open(url):
            assert "d.parquet" not in staged_files(url)
        with pytest.raises(LakeError, match=r"d\.parquet: is missing, and was to be committed"):
            lake.commit(Change(append={"grown": ["d.parquet"]}))
    assert recorded(url) == BEFORE


def test_an_answer_that_was_lost(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is there, and the store says that it was there before."""
    with Lake.open(memory_url) as lake:
        first_commit(lake)
        create = lake._log.create

        def twice(commit: Any) -> None:
            create(commit)
            create(commit)

        monkeypatch.setattr(lake._log, "create", twice)
        second_commit(lake)
    assert recorded(memory_url) == AFTER


class Turns:
    """Threads that go on one at a time, in an order that is given."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = list(order)
        self._changed = Condition()

    def wait(self, name: str) -> None:
        """Wait for the next turn of a thread."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._order[:1] == [name], 20)

    def end(self) -> None:
        """End the turn."""
        with self._changed:
            self._order.pop(0)
            self._changed.notify_all()

    def leave(self, name: str) -> None:
        """Take a thread out, which is in its last turn."""
        with self._changed:
            self._order = [other for other in self._order if other != name]
            self._changed.notify_all()


STEPS = 5


def race(url: str, order: Sequence[str]) -> dict[str, str | None]:
    """Have two runs do five steps each, in an order; return how each ended."""
    turns, ended = Turns(order), dict[str, str | None]()

    class Racing(Lake):
        name = ""

        def _commit_step(self, step: Callable[[], None]) -> None:
            turns.end()  # of reading what it will commit
            turns.wait(self.name)
            step()
            turns.end()
            turns.wait(self.name)

    def run(name: str) -> None:
        turns.wait(name)
        try:
            with Racing.open(url) as lake:
                lake.name = name
                turns.end()
                turns.wait(name)
                new = stage(lake, "grown", [name])
                swapped = stage(lake, "swapped", [f"{name}-after-{lake.commits}"])
                turns.end()
                turns.wait(name)
                gone = {"swapped": lake.files.get("swapped", [])}
                lake.commit(Change(remove=gone, append={"grown": new, "swapped": swapped}))
            ended[name] = None
        except LakeError as error:
            ended[name] = str(error)
        finally:
            turns.leave(name)

    threads = [Thread(target=run, args=(name,)) for name in sorted(set(order))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ended


def judge_race(url: str, ended: Mapping[str, str | None]) -> int:
    """Check that both runs are in, or one and the other was refused; return how many are in."""
    lake = read_lake(url)
    into = sorted(name for name, problem in ended.items() if problem is None)
    assert sorted(lake.read("grown")["name"].to_pylist()) == into
    assert lake.commits == len(into) >= 1
    (swapped,) = lake.read("swapped")["name"].to_pylist()
    assert swapped in {f"{name}-after-{len(into) - 1}" for name in into}
    for problem in filter(None, ended.values()):
        assert problem == (
            f"{url}: another run has committed meanwhile; nothing was added, run it again"
        )
    listed = {file.name for files in lake.record.tables.values() for file in files}
    listed |= {each.file.name for each in lake.record.removed}
    assert staged_files(url) == listed
    return len(into)


def orders() -> Iterator[list[str]]:
    """Yield every order in which two runs can do their steps."""
    for places in combinations(range(2 * STEPS), STEPS):
        yield ["a" if place in places else "b" for place in range(2 * STEPS)]


def test_two_runs_that_race(memory_url: str) -> None:
    """All 252 interleavings of two runs on a store: both are in, or one is refused."""
    into = [
        judge_race(url, race(url, order))
        for number, order in enumerate(orders())
        for url in [f"{memory_url}/{number}"]
    ]
    assert len(into) == 252
    assert set(into) == {1, 2}


@pytest.mark.usefixtures("s3")
def test_two_runs_that_race_on_s3() -> None:
    for number, order in enumerate(list(orders())[::21]):
        url = f"s3://bucket/race-{number}"
        judge_race(url, race(url, order))


@pytest.mark.usefixtures("s3")
def test_a_conditional_put_on_s3() -> None:
    create_file("s3://bucket/file", b"one")
    server = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    options = f"endpoint_override={server}&scheme=http&region=us-east-1"
    for url in ("s3://bucket/file", f"s3://testing:testing@bucket/file?{options}"):
        with pytest.raises(FileExistsError):
            create_file(url, b"other")


def test_a_store_without_conditional_put(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no conditional put is known for local://"):
        create_file(f"local://{tmp_path}/file", b"")


# --- what is no lake ------------------------------------------------------------------------


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
    with pytest.raises(SourceError, match="is no lake that 'wireyard run' has filled"):
        read_lake(str(tmp_path))


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
        (gone, cut) = lake.paths("grown")[:2]
    Path(gone).unlink()
    for opened in (Lake.open(str(tmp_path)), None):
        with pytest.raises(LakeError, match=r"is damaged: .*/a\.parquet is missing; "):
            if opened is None:
                read_lake(str(tmp_path))
            else:
                with opened:
                    pass
    with open(cut, "ab") as file:
        file.write(b"more")
    with pytest.raises(LakeError, match=r"a\.parquet is missing, and 1 more; "):
        read_lake(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"record": 4, "run": "x"}', "was written by an older wireyard; name a new folder"),
        (b'{"record": 99}', "was written by a newer wireyard; name a new folder"),
        (b'{"record": 5', "the record of commit 1 is damaged"),
        (b'{"record": 5, "tables": 7}', "the record of commit 1 is damaged"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, content: bytes, problem: str) -> None:
    commits = tmp_path / "_wireyard" / "commits"
    commits.mkdir(parents=True)
    (commits / "00000001.json").write_bytes(content)
    with pytest.raises(LakeError, match=problem), Lake.open(str(tmp_path)):
        pass


# --- ledgers --------------------------------------------------------------------------------


def test_sums_of_ledgers_are_read_back(tmp_path: Path) -> None:
    sums = {"mqtt": LedgerSum(2, 1, 90, 70, 10, 5, 5, 3, 1), "jmq": LedgerSum(1, 0, 8, 8)}
    with Lake.open(str(tmp_path)) as lake:
        lake.commit(Change((Input("/b", None, {}, sums), Input("/c", None, {}))))
    found = read_lake(str(tmp_path)).inputs
    assert (found["/b"].ledger, found["/c"].ledger) == (sums, {})


def test_what_captures_show_of_streams_is_read_by_source(tmp_path: Path) -> None:
    shown = {"transport": "tcp", "ended": "fin", "bytes_gap": 7}
    counts = {**dict.fromkeys(LEDGER, 0), "bytes_read": 2}
    ledgers = [
        StreamLedger("/a", "/a", "mqtt", counts, {"bytes_gap": 0}),  # bare: no capture shows it
        StreamLedger("/b", "y", "mqtt", counts, shown),
        StreamLedger("/c", "z", "mqtt", counts, shown),
    ]
    pq.write_table(streams_table(ledgers), tmp_path / "streams.parquet")
    columns = ("stream", "ended", "bytes_gap")
    found = captured_streams([str(tmp_path / "streams.parquet")], ["/a", "/b"], columns)
    assert [row for rows in found for row in rows.to_pylist()] == [
        {"stream": "y", "ended": "fin", "bytes_gap": 7}
    ]
