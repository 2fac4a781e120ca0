"""Sessions: the settings they have, the workers they start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from wireyard.errors import SourceError, UsageError
from wireyard.spark import daemon, sessions
from wireyard.spark.java import Java
from wireyard.spark.sessions import (
    LOCAL_SETTINGS,
    SETTINGS,
    SHORT_LIVED,
    check_names,
    session,
)
from wireyard.spark.startup.sitecustomize import files_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- settings -------------------------------------------------------------------------------


class Builder:
    """Stands for Spark's builder and keeps what is set."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def appName(self, name: str) -> Builder:  # noqa: N802
        self.said["name"] = name
        return self

    def master(self, master: str) -> Builder:
        self.said["master"] = master
        return self

    def remote(self, url: str) -> Builder:
        self.said["remote"] = url
        return self

    def config(self, *, map: dict[str, Any]) -> Builder:
        self.said["config"] = map
        return self

    def getOrCreate(self) -> dict[str, Any]:  # noqa: N802
        return self.said


@pytest.fixture
def spark_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `session` return what it set in Spark's builder."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(sessions, "find_java", lambda: Java("java", "17", ""))
    monkeypatch.setattr(sessions, "_has_java", lambda: False)
    monkeypatch.setattr(sessions, "_check_applied", lambda *_: None)


def settings_of(*args: Any, **conf: Any) -> dict[str, Any]:
    said: Any = session(*args, **conf)
    assert isinstance(said, dict)
    return said


@pytest.mark.usefixtures("spark_builder")
@pytest.mark.parametrize(
    ("asked", "master"),
    [
        (None, "local[*,4]"),
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,1]", "local[3,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
    ],
)
def test_local_tasks_are_tried_again(asked: str | None, master: str) -> None:
    said = settings_of(asked)
    assert said["master"] == master
    assert {**SETTINGS, **LOCAL_SETTINGS}.items() <= said["config"].items()
    assert said["config"]["spark.python.daemon.module"] == "wireyard.spark.daemon"


@pytest.mark.usefixtures("spark_builder")
def test_the_callers_settings_go_first() -> None:
    conf = {"spark.ui.enabled": "true", "spark.driver.memory": "7g"}
    said = settings_of("local[1]", "mine", **conf)
    assert said["name"] == "mine"
    assert conf.items() <= said["config"].items()


@pytest.mark.usefixtures("spark_builder")
def test_clusters_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_check_reachable", lambda _: None)
    said = settings_of("spark://host:7077")
    assert (said["master"], said["config"]) == ("spark://host:7077", dict(SETTINGS))
    assert settings_of("sc://host:15002", **{"spark.sql.ansi.enabled": "true"}) == {
        **said,
        "remote": "sc://host:15002",
        "config": {"spark.sql.ansi.enabled": "true"},
    }


@pytest.mark.usefixtures("spark_builder")
def test_what_spark_submit_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_has_java", lambda: True)
    assert "master" not in settings_of()
    with pytest.raises(UsageError, match=r"^spark\.driver\.memory: cannot be set, because Java"):
        session(**{"spark.driver.memory": "7g"})


@pytest.mark.parametrize("master", ["spark://nohost", "spark://127.0.0.1:0x1f", "spark://:7077"])
def test_a_master_needs_a_port(master: str) -> None:
    with pytest.raises(SourceError, match=f"^{master}: names no port, as in spark://head:7077$"):
        session(master)


def test_a_master_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(
            SourceError, match=rf"^{url}: cannot be reached \(Connection refused\)$"
        ):
            session(url)
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        sessions._check_reachable(f"{url},127.0.0.1:{one.getsockname()[1]}")


@pytest.mark.usefixtures("spark_builder")
def test_a_daemon_that_workers_cannot_find_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    assert "spark.python.daemon.module" not in settings_of()["config"]
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(sessions, "_DAEMON", "no_such_module")
    assert "spark.python.daemon.module" not in settings_of()["config"]


@pytest.fixture
def handler() -> Iterator[Callable[[Any], object]]:
    """Return what sets the handler of SIGINT for a test, and begin with that of Python."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda given: signal.signal(signal.SIGINT, given)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_until_java_has_started(handler: Callable[[Any], object]) -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), sessions._interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        steps.append("started")
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_is_kept(handler: Callable[[Any], object]) -> None:
    def ours(*given: object) -> None:
        heard.append("ours")

    def sparks(*given: object) -> None:
        heard.append("spark's")

    heard: list[str] = []
    for own, kept in ((ours, ours), (signal.SIG_IGN, signal.SIG_IGN)):
        handler(own)
        with sessions._interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            handler(sparks)
        assert signal.getsignal(signal.SIGINT) is kept
    assert heard == ["ours"]
    # Python's own gives way to that which cancels jobs.
    handler(signal.default_int_handler)
    with sessions._interrupts_wait():
        handler(sparks)
    assert signal.getsignal(signal.SIGINT) is sparks


def test_memory_is_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for gigabytes, given in ((1, 1), (4, 1), (12, 4), (256, 8)):
        monkeypatch.setattr(
            "os.sysconf", lambda name, g=gigabytes: {"SC_PAGE_SIZE": 4096}.get(name, g << 18)
        )
        assert sessions._driver_gigabytes() == given


# --- workers --------------------------------------------------------------------------------


def test_installed_files_go_before_sparks_zip() -> None:
    zip_file, other = "/site/pyspark/python/lib/pyspark.zip", "/opt/spark/python/lib/pyspark.zip"
    assert files_first([zip_file, "/py4j.zip", "/site"]) == ["/py4j.zip", "/site", zip_file]
    # Another Spark than the installed one keeps its own code.
    assert files_first([other, "/site"]) == [other, "/site"]


def test_startup_leaves_the_place_to_the_sitecustomize_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("NAME = 'theirs'")
    startup = Path(sessions.__file__).with_name("startup")
    for path, expected in (([startup, tmp_path], "theirs"), ([startup], "None")):
        ran = subprocess.run(
            [sys.executable, "-c", "import sitecustomize as s; print(getattr(s, 'NAME', None))"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (ran.stdout.strip(), ran.stderr) == (expected, "")


def test_only_java_starts_with_our_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    with sessions._startup_on_path():
        ours, theirs = os.environ["PYTHONPATH"].split(os.pathsep)
        assert theirs == "/mine" and (Path(ours) / "sitecustomize.py").is_file()
    assert os.environ["PYTHONPATH"] == "/mine"
    monkeypatch.delenv("PYTHONPATH")
    with sessions._startup_on_path():
        assert os.environ["PYTHONPATH"] == ours
    assert "PYTHONPATH" not in os.environ


def test_a_worker_ends_quietly_when_nobody_listens() -> None:
    def serve(sock: socket, authenticated: bool) -> int:
        if not authenticated:
            raise BrokenPipeError
        sock.fileno()
        return 7

    served = daemon._ignoring_closed_pipes(serve)
    with socket() as sock:
        assert served(sock, True) == 7
        assert served(sock, False) == 1
    with pytest.raises(AttributeError):  # other failures are still raised
        served(None, True)  # type: ignore[arg-type]


@pytest.mark.spark
def test_workers_after_the_first_start_with_the_kernels_loaded(spark: SparkSession) -> None:
    def look(_: int) -> tuple[bool, bool, str, str]:
        import gc

        import pyarrow as pa
        import pyspark

        time.sleep(1)  # so that each task has a worker of its own
        kernels: Any = sys.modules.get("wireyard.formats.jmq.kernels")
        loaded = kernels is not None and kernels.scan_frames.origin is not None
        return (
            "wireyard.spark.reader" in sys.modules,
            loaded and gc.get_freeze_count() > 0,
            pyspark.__file__,
            pa.default_memory_pool().backend_name,
        )

    found = spark.sparkContext.parallelize(range(2), 2).map(look).collect()
    assert all(imported for imported, *_ in found)
    assert any(loaded for _, loaded, *_ in found)
    assert not any(".zip" in place for *_, place, _ in found)
    assert {pool for *_, pool in found} == {"system"}


@pytest.mark.spark
def test_what_a_session_says_of_itself(spark: SparkSession) -> None:
    for name, value in {**SETTINGS, **LOCAL_SETTINGS}.items():
        if name != "spark.log.level":
            assert spark.conf.get(name) == value
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
def test_a_task_that_fails_once_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    def stumble(number: int) -> int:
        try:
            (tmp_path / f"{number}").touch(exist_ok=False)
        except FileExistsError:
            return number
        raise OSError("once")

    assert spark.sparkContext.parallelize(range(2), 2).map(stumble).collect() == [0, 1]


@pytest.mark.spark
def test_a_setting_is_applied_or_refused(spark: SparkSession) -> None:
    """A session that is there takes some settings, and no others."""
    assert session(**{"spark.sql.ansi.enabled": "true"}) is not None
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    # Blanks around a setting are none of it.
    assert session(**{"spark.driver.host": "127.0.0.1 "}) is not None
    for name in ("spark.executor.memory", "spark.sql.warehouse.dir", "spark.driver.memory"):
        with pytest.raises(UsageError, match=f"^{re.escape(name)}.*: cannot be set, because"):
            session(**{name: "9g"})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("spark.driver.memry", "did you mean spark.driver.memory?"),
        ("spark.sql.shufle.partitions", "did you mean spark.sql.shuffle.partitions?"),
        ("spark.port.maxRetrys", "did you mean spark.port.maxRetries?"),
        ("spark.zzz", "see Spark's page on configuration"),
    ],
)
def test_a_misspelled_setting_is_refused(spark: SparkSession, name: str, nearest: str) -> None:
    with pytest.raises(
        UsageError, match=f"^{re.escape(f'{name}: is no setting of Spark; {nearest}')}$"
    ):
        check_names(spark, [name])


@pytest.mark.spark
def test_settings_of_spark_and_of_its_modules_are_accepted(spark: SparkSession) -> None:
    """Our own, those that our pages name, and names that users choose."""
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("**/*.md"))
    named = {
        *re.findall(r"--conf (spark\.[\w.]+)=", text),
        *SETTINGS,
        *LOCAL_SETTINGS,
        *SHORT_LIVED,
    }
    assert {"spark.executorEnv.AWS_ENDPOINT_URL", "spark.archives"} < named
    check_names(
        spark, {*named, "spark.hadoop.fs.s3a.endpoint", "spark.local.dir", "spark.app.name"}
    )
