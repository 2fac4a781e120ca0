"""``wireyard run`` as it is typed: what it prints, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from tests.cli.results import notes_of
from tests.make import item, items, packet
from wireyard.cli import exits, main
from wireyard.cli.spark_log import SparkLog
from wireyard.errors import LedgerError, SourceError
from wireyard.lake.commits import CommitLog
from wireyard.lake.records import Commit
from wireyard.lake.writer import Lake, LakeError
from wireyard.layers.tables import TABLES as FACTS
from wireyard.spark import sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROCESS = ("--engine", "process")
STREAM = packet(packet_type=10) + b"".join(
    packet(items=items(item(1, "orders")), sequence=n, bit_flags=1) for n in range(5)
)


def wireyard_run(*arguments: object) -> Result:
    words = ["run", *(str(word) for word in arguments)]
    return CliRunner().invoke(main, words, catch_exceptions=False, prog_name="wireyard")


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test fail that starts Spark without having asked for it."""

    def start(*arguments: Any, **named: Any) -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    monkeypatch.setattr(sessions, "session", start)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[list[str | None]]:
    """Give commands the session of the tests; yields the masters that they asked for."""
    masters: list[str | None] = []

    def start(master: str | None = None, **named: Any) -> SparkSession:
        masters.append(master)
        return spark

    monkeypatch.setattr(sessions, "session", start)
    yield masters


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "some.jmq"
    path.parent.mkdir()
    path.write_bytes(STREAM)
    return path


@pytest.mark.spark
@pytest.mark.parametrize("master", ["local[2]", "spark://there:7077"])
def test_kernels_are_ready_before_a_local_spark_starts(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def start(*arguments: Any, **named: Any) -> SparkSession:
        order.append("session")
        raise SourceError("enough")

    monkeypatch.setattr("wireyard.accelerate.load_kernels", lambda: order.append("kernels"))
    monkeypatch.setattr(sessions, "session", start)
    (tmp_path / "in.jmq").write_bytes(STREAM)
    result = wireyard_run(tmp_path / "in.jmq", "--lake", tmp_path / "lake", "--master", master)
    assert result.exit_code == 3
    assert order == (["kernels", "session"] if master.startswith("local") else ["session"])


def test_a_run_with_nothing_to_do_reads_the_record_once(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    assert wireyard_run(stream, "--lake", lake, "-q", *PROCESS).exit_code == 0
    read: list[int] = []
    read_commit = CommitLog.read

    def counted(log: CommitLog, number: int) -> Commit:
        read.append(number)
        return read_commit(log, number)

    monkeypatch.setattr(CommitLog, "read", counted)
    assert wireyard_run(stream, "--lake", lake, "-q").exit_code == 0
    assert read == [1]


def test_a_run_and_another(stream: Path, asked: list[str | None]) -> None:
    (stream.parent / "README").write_text("what this is")
    (stream.parent / "cut.jmq").write_bytes(STREAM[:-5])
    lake = stream.parent / "lake"
    result = wireyard_run(stream.parent, "--lake", lake)
    assert (result.exit_code, asked) == (exits.DONE, [None])
    (line,) = notes_of(result.stderr).splitlines()
    assert line.startswith(f"wireyard: left out: {stream.parent}/README: begins like no")
    shown = re.sub(r"\d+\.\d s|[\d.]+ k?B/s", "#", result.stdout)
    shown = re.sub(r" {2,}", "  ", shown)
    assert shown.startswith("2 inputs read, ")
    assert "in # (#); # with all tables\n" in shown
    assert "jmq  2  11  " in shown
    assert "\n5 messages to  kind  messages  bytes\norders  queue  5  " in shown
    size = 2 * len(STREAM) - 5
    last = len(packet(items=items(item(1, "orders")))) - 5
    balance = f"balances: {size:,} bytes read = {size - last:,} in packets + {last:,} tail"
    assert f"ledger  {balance}\n" in shown
    first = f"1 stream with bytes in no well-formed packet; the first: {stream.parent}/cut.jmq"
    assert f"quarantine  {first}\n" in shown
    spark = r"engine  Spark 4\S+, local\[2\]: 3 stages, 3 tasks, # \(# of it the start\)\n"
    assert re.search(spark, shown), shown

    before = sorted(lake.rglob("*.parquet"))
    again = wireyard_run(stream.parent, "--lake", lake, "--conf", "spark.ui.enabled=false")
    assert (again.exit_code, again.stderr) == (exits.DONE, result.stderr)
    assert again.stdout.startswith("nothing new: 2 inputs in the lake already, unchanged\n")
    assert re.search("engine +Spark, which was not needed\n", again.stdout)  # nor the setting
    assert sorted(lake.rglob("*.parquet")) == before
    assert len(asked) == 1


@pytest.mark.spark
@pytest.mark.usefixtures("asked")
def test_quiet_says_nothing(stream: Path, tmp_path: Path) -> None:
    result = wireyard_run(stream, "--lake", tmp_path / "lake", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (exits.DONE, "", "")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], exits.USAGE, "run: name INPUTs"),
        (["-"], exits.USAGE, "run: name INPUTs"),
        (["{in}/none.jmq"], exits.CANNOT_READ, "{in}/none.jmq: there is no such file or folder"),
        (["{in}/*.pcap"], exits.CANNOT_READ, "{in}/*.pcap: there is no such"),
        (["{in}/nothing"], exits.CANNOT_READ, "{in}/nothing: no file to read there"),
        (["{in}/words"], exits.DATA_LOST, "{in}/words: begins like no format (70 6c 61 69)"),
        (["{in}", "--format", "nntp"], exits.USAGE, "unknown format 'nntp'"),
        (["{in}/closed"], exits.CANNOT_READ, "{in}/closed: may not be read (permission denied)"),
    ],
)
def test_what_cannot_be_read(
    arguments: list[str],
    status: int,
    said: str,
    stream: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = stream.parent
    (folder / "nothing").mkdir()
    (folder / "words").write_text("plain")
    (folder / "closed").write_bytes(STREAM)
    if arguments == ["{in}/closed"]:
        refuse(folder / "closed", monkeypatch)
    words = [word.replace("{in}", str(folder)) for word in arguments]
    result = wireyard_run(*words, "--lake", tmp_path / "lake")
    assert result.exit_code == status
    (line,) = notes_of(result.stderr).splitlines()
    assert line.startswith(f"wireyard: {said.replace('{in}', str(folder))}")
    assert not (tmp_path / "lake").exists()


def refuse(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file unreadable, for a superuser too."""
    path.chmod(0)
    if os.geteuid() == 0:
        opened = Path.open

        def refusing(self: Path, *arguments: Any, **named: Any) -> Any:
            if self == path:
                raise PermissionError(13, "Permission denied", str(self))
            return opened(self, *arguments, **named)

        monkeypatch.setattr(Path, "open", refusing)


def test_a_lake_that_cannot_be_written(stream: Path) -> None:
    result = wireyard_run(stream, "--lake", stream / "lake", *PROCESS)
    assert result.exit_code == exits.CANNOT_WRITE
    assert result.stderr == f"wireyard: {stream}/lake: cannot be written (Not a directory)\n"


def test_a_folder_that_is_no_lake(stream: Path) -> None:
    result = wireyard_run(stream, "--lake", stream.parent)
    assert result.exit_code in (exits.CANNOT_WRITE, exits.CANNOT_READ)
    assert not (stream.parent / "_wireyard").exists()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (LedgerError("some.jmq: out of balance"), exits.DATA_LOST, "nothing was added to the lake"),
        (LakeError("lake: cannot be written (full)"), exits.CANNOT_WRITE, "cannot be written"),
        (
            SourceError("Spark needs Java 17"),
            exits.CANNOT_READ,
            "Spark needs Java 17; --engine process works without Spark",
        ),
        (
            RuntimeError("Call failed.\n: x.SparkException: Could not parse Master URL: 'locl'"),
            exits.CANNOT_READ,
            "wireyard: Spark does not start: Could not parse Master URL: 'locl'",
        ),
        (RuntimeError("no way"), exits.CANNOT_READ, "wireyard: Spark does not start: no way"),
    ],
)
def test_how_a_run_that_fails_ends(
    error: Exception,
    status: int,
    said: str,
    stream: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any, **named: Any) -> SparkSession:
        raise error

    monkeypatch.setattr(sessions, "session", fail)
    result = wireyard_run(stream, "--lake", tmp_path / "lake")
    assert result.exit_code == status
    (line,) = notes_of(result.stderr).splitlines()
    assert said in line
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def test_what_java_refuses_is_said_in_one_line(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = (
        "import sys; sys.exit('Using a profile\\nInvalid maximum heap size: -Xmx4gg\\nError: no')"
    )

    def fail(*arguments: Any, **named: Any) -> SparkSession:
        subprocess.run([sys.executable, "-c", refuse], check=False)
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.")

    monkeypatch.setattr(sessions, "session", fail)
    result = wireyard_run(stream, "--lake", tmp_path / "lake")
    assert result.exit_code == exits.CANNOT_READ
    (line,) = notes_of(result.stderr).splitlines()
    expected = (
        "wireyard: Spark does not start: Invalid maximum heap size: -Xmx4gg; --engine process"
    )
    assert line.startswith(expected)


def test_settings_reach_spark(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded Spark has ours too, which those of the command line replace."""
    given: list[dict[str, Any]] = []

    def start(master: str | None = None, **named: Any) -> SparkSession:
        given.append(named)
        raise SourceError("enough")

    monkeypatch.setattr(sessions, "session", start)
    monkeypatch.setattr("wireyard.accelerate.load_kernels", lambda: None)
    monkeypatch.setattr(sessions, "_has_java", lambda: False)
    options = "spark.driver.extraJavaOptions"
    for more in ((), ("--conf", f"{options}=-Dx=y"), ("--master", "spark://head:7077")):
        wireyard_run(stream, "--lake", tmp_path / "lake", *more)
    first, replaced, cluster = given
    assert first[options] == "-XX:TieredStopAtLevel=1"
    assert replaced[options] == "-Dx=y"
    assert options not in cluster


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from wireyard.answers import cache
from wireyard.cli import main
cache.private_folder = lambda name: None
for words in sys.argv[1:]:
    try:
        main(words.split("|"), prog_name="wireyard")
    except SystemExit as ended:
        print("ended", words.split("|")[0], ended.code or 0)
"""
"""Commands, one after the other, where pyspark is not installed; the exit status of each."""


def test_only_spark_needs_pyspark(examples: Path, tmp_path: Path) -> None:
    """Whole captures in a lake and the questions are answered without it."""
    capture = examples / "traffic.pcap"
    questions = {
        "sql": "|SELECT count(*) FROM deliveries", "why": "", "trace": "|shop.orders", "slow": "",
        "report": f"|-o|{tmp_path / 'report.html'}",
    }  # fmt: skip
    words = [f"{name}|{capture}{more}" for name, more in questions.items()]
    run_it = f"run|{capture}|--lake|{tmp_path / 'lake'}"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *words, f"{run_it}|--engine|process", f"{run_it}2"],
        capture_output=True,
        text=True,
        check=True,
    )
    ended = re.findall(r"^ended (\w+) (\d)$", done.stdout, re.MULTILINE)
    assert ended == [*((name, "0") for name in questions), ("run", "0"), ("run", "2")]
    assert "run: needs Spark: pip install 'wireyard[spark]', or --engine process" in done.stderr


def test_the_address_of_the_ui_is_said(
    stream: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:4040"
    monkeypatch.setattr(sessions, "session", lambda *given, **named: spark)
    monkeypatch.setattr(type(spark.sparkContext), "uiWebUrl", url)
    result = wireyard_run(stream, "--lake", tmp_path / "lake", "-q")
    assert notes_of(result.stderr) == f"wireyard: Spark's UI is at {url} while it runs\n"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("master=local", "--conf master=local: is no setting of Spark"),
        ("spark.master=local", "--conf spark.master=local: say --master local"),
    ],
)
def test_settings_that_are_refused(conf: str, said: str, stream: Path, tmp_path: Path) -> None:
    result = wireyard_run(stream, "--lake", tmp_path / "lake", "--conf", conf)
    assert result.exit_code == exits.USAGE
    assert result.stderr.startswith(f"wireyard: {said}")


def test_two_runs_at_once(stream: Path, tmp_path: Path) -> None:
    with Lake.open(str(tmp_path / "lake")):
        result = wireyard_run(stream, "--lake", tmp_path / "lake", *PROCESS)
    assert result.exit_code == exits.CANNOT_WRITE
    assert "another run is writing to it" in result.stderr


SAY = [sys.executable, "-c", "import sys; print('java says', file=sys.stderr)"]


@pytest.mark.parametrize(
    ("error", "shown"), [(None, ""), (LakeError("full"), ""), (ValueError("bug"), "java says\n")]
)
def test_what_java_says_is_shown_when_something_broke(
    error: Exception | None, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with suppress(LakeError, ValueError), SparkLog() as log:
        with log.taking():
            subprocess.run(SAY, check=True)
        if error is not None:
            raise error
    assert capfd.readouterr().err == shown


def test_an_interrupt_is_quiet_where_spark_makes_an_error_of_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt), SparkLog() as log:
        with log.taking():
            subprocess.run(SAY, check=True)
        try:
            raise KeyboardInterrupt
        finally:  # as pyspark asks for what became of the job, which was cancelled
            raise ValueError("Job 7 cancelled")
    assert capfd.readouterr().err == ""


def test_help_names_every_table() -> None:
    text = wireyard_run("--help").stdout
    assert all(table in text for table in ("packets_FORMAT", "quarantine", "ledger", *FACTS))
