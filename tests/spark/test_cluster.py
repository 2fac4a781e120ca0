"""A cluster: executors without a folder in common that are killed, and what they lack.

``WIREYARD_CLUSTER_KILLS`` is how often an executor and a Python worker are killed (1), each time at
a random moment.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.spark.cluster import CONF, EXAMPLE, kill_one, pids, standalone
from tests.spark.lakes import (
    HELLO,
    HELLO_REPLY,
    all_rows,
    assert_as_one_run,
    message,
    nothing_left,
    run,
    table,
)
from wireyard.errors import SourceError
from wireyard.lake import read_lake
from wireyard.spark.executors import explained, make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("WIREYARD_CLUSTER_KILLS", "1"))
MESSAGES = 4_000
SPLIT_BYTES = 128 << 10
ROOT = Path(__file__).parents[2]
BASE_PYTHON = sys._base_executable  # type: ignore[attr-defined]  # without an environment
GROWING = ("one.pcap", "two.pcap", "three.pcap")
VICTIMS = ("CoarseGrainedExecutorBackend", "pyspark.daemon")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "daemons"


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[str]:
    with standalone(folder) as url:
        yield url


def rows(lake: Path, name: str) -> list[str]:
    return sorted(map(str, table(lake, name).to_pylist()))


def put(folder: Path, name: str, data: bytes) -> None:
    """Have a whole file be there at once."""
    (folder.parent / "new").write_bytes(data)
    (folder.parent / "new").rename(folder / name)


def wave(folder: Path, number: int) -> int:
    """Have a stream of some megabytes come, and a few small ones; return how many."""
    first = number * MESSAGES
    sent = map(message, range(first, first + MESSAGES))
    put(folder, f"large{number}.jmq", HELLO + b"".join(sent) + b"noise")
    for consumer in range(3):
        data = HELLO_REPLY + message(first + consumer, consumer_id=5)
        put(folder, f"small{number}-{consumer}.jmq", data)
    return 4


def test_executors_and_workers_that_are_killed_change_nothing(
    master: str, folder: Path, tmp_path: Path
) -> None:
    """Whole files, parts of growing ones, and facts in stages are read by the executors."""
    chance = random.Random(KILLS)
    killed = dict.fromkeys(VICTIMS, 0)
    capture = (ROOT / "examples" / "traffic.pcap").read_bytes()
    for attempt in range(2 * KILLS + 3):
        if min(killed.values()) >= KILLS:
            break
        own = tmp_path / str(attempt)
        lake, coming, end = own / "lake", own / "in", own / "end"
        coming.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.spark.cluster_job", master, str(SPLIT_BYTES)]
        with subprocess.Popen(
            [*command, str(lake), str(coming), str(end)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as job:
            assert job.stdout is not None
            there = 0
            for number, victim in enumerate(VICTIMS):
                there += wave(coming, number)
                staged = "_wireyard/data/*/packets_*/part-0*"
                while job.poll() is None and not list(lake.glob(staged)):
                    time.sleep(0.05)
                time.sleep(chance.random() / 2)
                if job.poll() is None:
                    killed[victim] += kill_one(pids(folder, victim), chance.randrange(9))
                for name in GROWING:
                    with (coming / name).open("ab") as grows:
                        size = chance.randrange(200_000)
                        grows.write(capture[grows.tell() :][:size])
                while job.poll() is None and len(held(lake)) < there:
                    time.sleep(0.05)
            end.touch()
            said = job.stdout.read()
        assert job.returncode == 0, said
        assert_as_one_run(coming, lake)
        nothing_left(lake)
    assert min(killed.values()) >= KILLS, killed


def held(lake: Path) -> set[str]:
    """Return the streams that a lake holds."""
    with suppress(SourceError):
        inputs = read_lake(str(lake), check=False).record.inputs
        return {source for source in inputs if source.endswith(".jmq")}
    return set()


def wireyard_run(master: str, lake: Path, *options: str, **environ: str) -> tuple[int, str]:
    """Run the command on the cluster; return its status and what it wrote to standard error."""
    conf = [part for item in CONF.items() for part in ("--conf", "=".join(item))]
    done = subprocess.run(
        [sys.executable, "-m", "wireyard", "run", str(ROOT / "examples/traffic/shop-c2b.jmq"),
         "--lake", str(lake), "--master", master, *conf, *options],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_the_example_runs_the_pipeline_on_two_workers(master: str, tmp_path: Path) -> None:
    """Its cluster is that of all tests here."""
    capture = ROOT / "examples" / "traffic.pcap"
    done = subprocess.run(
        [EXAMPLE, capture, "--lake", tmp_path / "lake"],
        env={**os.environ, "PYTHON": sys.executable, "MASTER": master},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Spark {pyspark.__version__}, {master}: 4 stages, " in done.stdout
    run(tmp_path / "here", None, capture)
    assert all_rows(tmp_path / "lake") == all_rows(tmp_path / "here")


def test_a_package_that_executors_lack_is_said_in_one_line(master: str, tmp_path: Path) -> None:
    # The same Python without its packages.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {BASE_PYTHON} -S "$@"\n')
    python.chmod(0o755)
    # One attempt of one task fails as all would.
    settings = {
        "spark.pyspark.python": python, "spark.cores.max": 1, "spark.task.maxFailures": 1,
    }  # fmt: skip
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    status, error = wireyard_run(master, tmp_path / "lake", *conf)
    assert status == 3
    (line,) = error.splitlines()
    assert line.startswith("wireyard: Spark's executors: the Python there has no module ")
    assert "--conf spark.archives" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('IOException: Cannot run program "/nowhere/python3": error=2', "no /nowhere/python3"),
        ("ModuleNotFoundError: No module named 'numba'", "no module numba"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than", "3.9"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed", "no module PyArrow"),
    ],
)
def test_what_spark_fails_with_is_one_line(text: str, said: str) -> None:
    line = str(explained(RuntimeError(f"Job aborted.\n  at org.apache.spark\n{text}\n  at x")))
    assert said in line
    assert "\n" not in line


@pytest.mark.skipif(KILLS < 2, reason="executors compile what is sent; set WIREYARD_CLUSTER_KILLS")
def test_wireyard_is_sent_to_executors_that_have_none(
    master: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    python = tmp_path / "python"
    site = Path(os.path.dirname(pytest.__file__)).parent
    # Packages of the environment but wireyard, which an editable installation has by a path file.
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}"\nexec {BASE_PYTHON} -S "$@"\n'
    )
    python.chmod(0o755)
    status, error = wireyard_run(master, lake, "--conf", f"spark.pyspark.python={python}")
    assert status == 0, error
    run(tmp_path / "here", None, ROOT / "examples/traffic/shop-c2b.jmq")
    assert rows(lake, "packets_jmq") == rows(tmp_path / "here", "packets_jmq")


def test_the_archive_is_a_package_that_runs(tmp_path: Path) -> None:
    archive = make_archive()
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
    assert "wireyard/__init__.py" in names
    assert not any("__pycache__" in name for name in names)
    code = "import wireyard.pipeline.decoding.task as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": archive},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"wireyard\.zip.wireyard.pipeline.decoding.task\.py", done.stdout)
