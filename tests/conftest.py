"""What every test may ask for: the shared material, the examples, the hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from wireyard.errors import SourceError
from wireyard.spark.java import archive_options, find_java

ROOT = Path(__file__).resolve().parent.parent

# A session that a test builds by itself would run its tasks in whatever python3 is on PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# A Java of the tests lives for seconds or a few minutes: what its second compiler and its parallel
# collector cost does not come back. Spark's tests take 40 percent less processor time without.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
with suppress(SourceError):  # no Java
    JAVA_OPTIONS += f" {archive_options(find_java())}"
for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(name, JAVA_OPTIONS)

# What a shell starts in the background ignores SIGINT, and so would all processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines stall for seconds at a time: a deadline, or a limit for making an example, would only
# measure them.
settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "nightly",
    max_examples=10_000,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses the `shared` fixture; have folders whose files take long go first."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")
    if hasattr(config, "workerinput"):
        folders = {ROOT / "tests" / "spark": 0, ROOT / "tests": 1}
        items.sort(key=lambda item: (folders.get(item.path.parent, 2), item.path))


def pytest_collection_finish() -> None:
    """Exempt from garbage collection what is there: it would be visited again in every test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have extension modules find no leaks when Python ends."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have each worker collect a folder from another file on.

    pytest rewrites the assertions of a file where no other process has, which takes longer than
    all else of collecting: each worker then does it for its share of the files.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory):
        found = report.result
        first = len(found) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = [*found[first:], *found[:first]]
    return report


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder with the vectors and streams; skip where it is not there."""
    folder = Path(os.environ.get("WIREYARD_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(
            "no ../shared beside the checkout, and WIREYARD_SHARED does not say where it is"
        )
    return folder


@pytest.fixture(scope="session", autouse=True)
def nothing_kept() -> Iterator[None]:
    """Keep and find no derived tables: tests change how they are derived."""
    from wireyard.answers import cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "private_folder", lambda name: None)
        yield


@pytest.fixture(scope="session")
def examples() -> Path:
    """Return the folder of the examples."""
    return ROOT / "examples"


@pytest.fixture(scope="session")
def traffic(examples: Path) -> list[Path]:
    """Return the recorded directed streams of JMQ, in the order of their names."""
    return _recorded(examples, "jmq")


@pytest.fixture(scope="session")
def mqtt_traffic(examples: Path) -> list[Path]:
    """Return the recorded directed streams of MQTT, in the order of their names."""
    return _recorded(examples, "mqtt")


def _recorded(examples: Path, suffix: str) -> list[Path]:
    streams = sorted((examples / "traffic").glob(f"*.{suffix}"))
    assert streams, f"examples/traffic holds no recorded stream of {suffix}"
    return streams
