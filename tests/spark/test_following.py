"""A lake that follows a folder has what one run over the folder has, whenever it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

import pytest
from click.testing import CliRunner

from tests.cli.results import notes_of
from tests.spark import lakes
from tests.spark.forked import ForkedCommand, forked
from tests.spark.lakes import Silent, nothing_left
from tests.spark.soak import check_case
from wireyard.cli import main
from wireyard.cli.follow import progress_text
from wireyard.errors import SourceError
from wireyard.lake import read_lake
from wireyard.lake.writer import Lake
from wireyard.pipeline.growing import following as spark_following
from wireyard.pipeline.growing import growth as spark_growth
from wireyard.pipeline.growing.following import Progress, follow_lake
from wireyard.pipeline.inputs import watching
from wireyard.pipeline.inputs.watching import SETTLED_S
from wireyard.spark.running import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KILLS = int(os.environ.get("WIREYARD_STREAM_KILLS", "3"))
"""Number of times that the process is killed; few in the suite."""
_WAIT_S = 120
PAYLOAD = ["--payload", "shop/#=json"]
Command = subprocess.Popen[str] | ForkedCommand


def words(folder: Path, lake: Path, *how: str) -> list[str]:
    """Return the words of the command that follows a folder."""
    engine = () if "--master" in how else ("--engine", "process")
    return ["run", str(folder), "--follow", "--lake", str(lake), "-q", *PAYLOAD, *engine, *how]


def following(folder: Path, lake: Path, *how: str) -> AbstractContextManager[ForkedCommand]:
    """Have a process follow a folder; it is killed at the end if it still runs."""
    return forked(words(folder, lake, *how), lake.with_name("errors"))


@contextmanager
def started(folder: Path, lake: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process follow a folder that has loaded everything itself."""
    command = [sys.executable, "-m", "wireyard", *words(folder, lake, *how)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def errors_of(process: Command) -> str:
    """Return what a process has written to standard error, when it has ended."""
    if isinstance(process, ForkedCommand):
        return process.error_text
    assert process.stderr is not None
    return process.stderr.read()


def stop(process: Command) -> None:
    """Press Ctrl-C, and see that the process ends well."""
    process.send_signal(signal.SIGINT)
    assert process.wait(_WAIT_S) == 0, errors_of(process)


def until(there: Callable[[], bool], process: Command) -> None:
    """Wait until something is so, while a process runs."""
    end = time.monotonic() + _WAIT_S
    while not there():
        assert process.poll() is None, errors_of(process)
        assert time.monotonic() < end
        time.sleep(0.05)


def held(lake: Path) -> int:
    """Return how many inputs a lake holds."""
    with suppress(SourceError):
        return len(read_lake(str(lake), check=False).record.inputs)
    return 0


def newest(lake: Path) -> int:
    """Return the number of the newest commit, 0 if there is none."""
    found = [int(path.stem) for path in (lake / "_wireyard" / "commits").glob("0*.json")]
    return max(found, default=0)


def assert_as_one_run(folder: Path, lake: Path, *, rotated: bool = False) -> None:
    """Compare a lake with that of one run over the folder as it is now."""
    lakes.assert_as_one_run(folder, lake, payload=tuple(PAYLOAD[1:]), rotated=rotated)


def test_files_that_come(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    sources = sorted((EXAMPLES / "traffic").glob("*-c2b.jmq"))
    with started(folder, lake) as process:
        for source in sources[:3]:
            shutil.copy(source, folder)
        until(lambda: held(lake) == 3, process)
        for source in sources[3:]:
            shutil.copy(source, folder)
        until(lambda: held(lake) == len(sources), process)
        (folder / sources[0].name).write_bytes(sources[0].read_bytes()[:-5])
        time.sleep(0.5)
        stop(process)
    assert_as_one_run(folder, lake)
    nothing_left(lake)
    # It is a lake like any other: a run that follows has nothing to do.
    assert not lakes.run(lake, None, folder).added


@pytest.mark.spark
def test_ctrl_c_while_spark_runs_commits_what_there_is(tmp_path: Path) -> None:
    """Spark has a handler of its own for it, which cancels its jobs."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    shutil.copy(EXAMPLES / "traffic" / "shop-c2b.jmq", folder)
    with started(folder, lake, "--master", "local[2]") as process:
        # Files with the rows of tasks: Spark is at it.
        staged = "_wireyard/data/*/packets_*/part-0*"
        until(lambda: any(lake.glob(staged)) or held(lake) > 0, process)
        shutil.copy(EXAMPLES / "traffic" / "stock-1-c2b.mqtt", folder)
        stop(process)
        assert notes_of(errors_of(process)) == ""
    assert held(lake) == 2
    assert_as_one_run(folder, lake)
    nothing_left(lake)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    rng = Random(17)
    sources = [*sorted((EXAMPLES / "traffic").glob("[a-z]*.*")), EXAMPLES / "traffic.pcap"]
    waiting = list(sources)
    rng.shuffle(waiting)
    count = len(waiting)
    last = waiting.pop()
    each = -(-len(waiting) // KILLS)
    killed_after = 0
    for _ in range(KILLS):
        with following(folder, lake) as process:
            for source in [waiting.pop() for _ in range(min(each, len(waiting)))] or [last]:
                shutil.copy(source, folder)
                time.sleep(rng.random() / each)
            before = newest(lake)
            if rng.random() < 0.7:  # else while it starts, or before its first commit
                until(lambda: newest(lake) > before, process)  # noqa: B023
            time.sleep(rng.uniform(0.0, 3.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
        killed_after += held(lake) > 0
    before = newest(lake)
    with following(folder, lake) as process:
        shutil.copy(last, folder)
        until(lambda: held(lake) == count and newest(lake) > before, process)
        stop(process)
    assert killed_after
    assert_as_one_run(folder, lake)
    nothing_left(lake)


class Writer:
    """Writes files part by part, as captures and streams are made: half of them in `seconds`."""

    def __init__(self, folder: Path, sources: Sequence[Path], seconds: float, seed: int) -> None:
        self._folder, self._seconds = folder, seconds
        self._sources = [(path.name, path.read_bytes()) for path in sources]
        self._rng = Random(seed)
        self._thread = Thread(target=self._write)
        self._may_end = Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Write the rest, of which some is kept until then."""
        self._may_end.set()
        self._thread.join()

    def _write(self) -> None:
        began_s = time.monotonic()
        written = dict.fromkeys((name for name, _ in self._sources), 0)
        while any(written[name] < len(data) for name, data in self._sources):
            part = 1 - 0.5 ** ((time.monotonic() - began_s) / self._seconds)  # never all
            part = 1.0 if self._may_end.is_set() else part
            for name, data in self._sources:
                stop = int(len(data) * part)
                if self._rng.random() < 0.7 or part == 1.0:
                    with (self._folder / name).open("ab") as file:
                        file.write(data[written[name] : stop])
                    written[name] = stop
            time.sleep(self._rng.random() / 5)


GROWING = [
    EXAMPLES / "traffic.pcap",
    EXAMPLES / "ring.pcap",
    EXAMPLES / "traffic" / "shop-c2b.jmq",
    EXAMPLES / "traffic" / "monitor-b2c.mqtt",
]


def open_state(lake: Path) -> set[str]:
    """Return the files of which the newest commit has a state."""
    with suppress(SourceError):
        held = read_lake(str(lake), check=False).record.inputs
        return {Path(source).name for source, each in held.items() if each.files.get("_open")}
    return set()


def test_files_that_grow(tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    with following(folder, lake) as process, Writer(folder, GROWING, 20, 1) as writer:
        until(lambda: len(open_state(lake)) == len(GROWING), process)
        writer.finish()
        stop(process)
    assert_as_one_run(folder, lake)
    nothing_left(lake)
    before = read_lake(str(lake)).commits
    # Not read again as it is; read on where it goes on.
    assert not lakes.run(lake, None, folder).added
    with (folder / "shop-c2b.jmq").open("ab") as file:
        file.write((EXAMPLES / "traffic" / "stock-1-c2b.mqtt").read_bytes()[:99])
    with (folder / "traffic.pcap").open("r+b") as file:
        file.truncate(50_000)
    with following(folder, lake) as process:
        until(lambda: read_lake(str(lake), check=False).commits > before, process)
        time.sleep(SETTLED_S + 1)
        stop(process)
    assert_as_one_run(folder, lake)


@pytest.mark.parametrize("beside", [False, True])
def test_killed_while_files_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    if beside:  # facts of all packets, as those that Spark makes
        monkeypatch.setattr(spark_growth, "take_long", lambda rows: True)
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    rng = Random(18)
    states = 0
    with Writer(folder, GROWING, KILLS * 6, 2):
        for _ in range(KILLS):
            with following(folder, lake) as process:
                before = newest(lake)
                if rng.random() < 0.7:  # else while it starts, or before its first commit
                    until(lambda: newest(lake) > before, process)  # noqa: B023
                time.sleep(rng.uniform(0.0, 3.0))
                process.send_signal(signal.SIGKILL)
                process.wait()
            states += bool(open_state(lake))
    assert states  # some process went on with what another had open
    before = newest(lake)
    with following(folder, lake) as process:
        until(lambda: newest(lake) > before, process)
        stop(process)
    assert_as_one_run(folder, lake)
    nothing_left(lake)


def test_killed_while_a_capture_rotates(tmp_path: Path) -> None:
    folder, lake, rng = tmp_path / "in", tmp_path / "lake", Random(19)
    folder.mkdir()
    capture = (EXAMPLES / "traffic.pcap").read_bytes()
    head, frames = capture[: lakes.HEADER_BYTES], lakes.records(capture)
    shutil.copy(EXAMPLES / "traffic" / "shop-c2b.jmq", folder)
    ended = Event()

    def write() -> None:
        """Write the frames to ever new files, buffers full of bytes at a time."""
        waiting, number, each = list(frames), 0, len(frames) // (4 * KILLS * 6)
        while waiting:
            path, number = folder / f"traffic{number}.pcap", number + 1
            some, waiting = waiting[: 4 * each], waiting[4 * each :]
            data = head + b"".join(some)
            with path.open("wb", buffering=0) as file:
                while data and not ended.is_set():
                    size = rng.randint(1, len(data))
                    file.write(data[:size])
                    data = data[size:]
                    time.sleep(rng.random() / 2)
                file.write(data)

    writer = Thread(target=write)
    writer.start()
    states = 0
    try:
        for _ in range(KILLS):
            with following(folder, lake, "--rotated") as process:
                before = newest(lake)
                if rng.random() < 0.7:  # else while it starts, or before its first commit
                    until(lambda: newest(lake) > before, process)  # noqa: B023
                time.sleep(rng.uniform(0.0, 3.0))
                process.send_signal(signal.SIGKILL)
                process.wait()
            states += folder.name in open_state(lake)
    finally:
        ended.set()
        writer.join()
    assert states  # some process went on with what another had open
    assert len(list(folder.glob("*.pcap"))) > 10
    before = newest(lake)
    with following(folder, lake, "--rotated") as process:
        until(lambda: newest(lake) > before, process)
        stop(process)
    assert_as_one_run(folder, lake, rotated=True)
    nothing_left(lake)
    # A plain run has nothing to do, and goes on with what comes.
    assert not lakes.run(lake, None, folder, rotated=True).added


class Heard:
    """A listener that keeps its notes and lines."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, progress: Progress) -> None:
        self.lines.append(progress_text(progress))


def test_states_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SETTLED_S", 0.5)
    monkeypatch.setattr(spark_following, "_EXPIRE_S", 0.0)
    folder, lake, ended, heard = tmp_path / "in", tmp_path / "lake", Event(), Heard()
    folder.mkdir()
    data = (EXAMPLES / "traffic" / "shop-c2b.jmq").read_bytes()
    path, rng = folder / "a.jmq", Random(4)

    def follow() -> None:
        with Lake.open(str(lake)) as opened:
            rules = tuple(PAYLOAD[1:])
            given = opened, [str(folder)], None, Silent(), heard, ended.is_set
            follow_lake(*given, payload=rules)

    def wait(there: Callable[[], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while not there():
            assert time.monotonic() < end and thread.is_alive()
            time.sleep(0.02)

    thread = Thread(target=follow)
    thread.start()
    try:
        at = 0
        while not open_state(lake):
            with path.open("ab") as file:
                file.write(data[at : (at := at + rng.randint(1, 500))])
            assert at < len(data) and thread.is_alive()
            time.sleep(0.1)
        monkeypatch.setattr(spark_following, "_STATE_S", 0.0)
        wait(lambda: newest(lake) > 0 and not open_state(lake))
        before = newest(lake)
        with path.open("ab") as file:
            file.write(data[at:])
        wait(lambda: newest(lake) > before)
    finally:
        ended.set()
        thread.join()
    assert_as_one_run(folder, lake)
    nothing_left(lake)
    assert any("1 wait" in line for line in heard.lines)
    assert "wait" not in heard.lines[-1] and "behind its files" in heard.lines[-1]


def test_a_large_file_delays_no_file_that_grows(tmp_path: Path) -> None:
    folder, lake, ended = tmp_path / "in", tmp_path / "lake", Event()
    folder.mkdir()
    data = (EXAMPLES / "traffic" / "shop-c2b.jmq").read_bytes()
    large, growing = "traffic.pcap", "a.jmq"
    most_bytes = (EXAMPLES / large).stat().st_size // 2
    seen: dict[int, tuple[int, int]] = {}
    """By commit: up to which bytes the lake has the file that grows, and the large one."""

    def follow() -> None:
        with Lake.open(str(lake)) as opened:
            given = opened, [str(folder)], None, Silent(), Heard(), ended.is_set
            follow_lake(*given, most_bytes=most_bytes, payload=tuple(PAYLOAD[1:]))

    def look() -> None:
        with suppress(SourceError):
            record = read_lake(str(lake), check=False).record
            read = {
                Path(source).name: sum(one.bytes_read for one in each.ledger.values())
                for source, each in record.inputs.items()
            }
            seen[newest(lake)] = read.get(growing, 0), read.get(large, 0)

    thread = Thread(target=follow)
    thread.start()
    try:
        end, copied = time.monotonic() + _WAIT_S, False
        for at in range(0, len(data), 200):
            with (folder / growing).open("ab") as file:
                file.write(data[at : at + 200])
            look()
            if growing in open_state(lake) and not copied:
                shutil.copy(EXAMPLES / large, folder / f".{large}")
                (folder / f".{large}").rename(folder / large)
                copied = True
            if all(len({each[place] for each in seen.values() if each[1]}) > 3 for place in (0, 1)):
                break
            assert thread.is_alive() and time.monotonic() < end
            time.sleep(0.1)
        (folder / growing).write_bytes(data)
    finally:
        ended.set()
        thread.join()
    assert copied
    parts = [each for each in seen.values() if each[1]]
    assert len({large_bytes for _, large_bytes in parts}) > 3, "the large file came as a whole"
    assert len({bytes_read for bytes_read, _ in parts}) > 3, "the growing file waited for it"
    assert_as_one_run(folder, lake)
    nothing_left(lake)


@pytest.mark.spark
def test_spark_runs_the_tasks_of_a_lake_that_follows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads whole files, and the parts and the facts of those that grow."""
    monkeypatch.setattr(watching, "SETTLED_S", 0.5)
    folder, lake, ended, engine = (
        tmp_path / "in", tmp_path / "lake", Event(), SparkEngine(lambda: spark)
    )  # fmt: skip
    folder.mkdir()
    data = (EXAMPLES / "traffic.pcap").read_bytes()

    def follow() -> None:
        with Lake.open(str(lake)) as opened:
            given = opened, [str(folder)], engine, Silent(), Heard(), ended.is_set
            follow_lake(*given, payload=tuple(PAYLOAD[1:]))

    def stages() -> int:
        return engine.use.stages if engine.use else 0

    thread = Thread(target=follow)
    thread.start()
    try:
        end = time.monotonic() + _WAIT_S
        for at in range(0, len(data), 4000):
            with (folder / "a.pcap").open("ab") as file:
                file.write(data[at : at + 4000])
            time.sleep(0.1)
        while not held(lake):
            assert thread.is_alive() and time.monotonic() < end
            time.sleep(0.1)
        of_parts = stages()
        shutil.copy(EXAMPLES / "traffic" / "shop-c2b.jmq", folder)
        while held(lake) < 2:
            assert thread.is_alive() and time.monotonic() < end
            time.sleep(0.1)
        assert stages() > of_parts > 0
    finally:
        ended.set()
        thread.join()
    assert_as_one_run(folder, lake)
    nothing_left(lake)


@pytest.mark.parametrize("given", [["--rotated", "--by-content", "x"], ["none"]])
def test_what_cannot_be_followed(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["run", "--follow", *given, "--lake", "y"]
    found = CliRunner().invoke(main, line, catch_exceptions=False, prog_name="wireyard")
    assert found.exit_code in (2, 3)
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [105, 109])
def test_random_files_that_grow(number: int) -> None:
    check_case(number)
