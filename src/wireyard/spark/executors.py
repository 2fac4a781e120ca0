"""Checks that remote executors can run our tasks and access the lake.

On a cluster a task runs in a Python that Spark starts there. Before any work is done we check that
this Python has the modules that tasks import and the driver's wireyard, and can access the lake:
Spark would report a missing module in a page of text for each attempt. If only wireyard is missing,
it is sent.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from wireyard.errors import LakeError, SourceError
from wireyard.lake.staging import Staging, writing
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE: Final = "wireyard"
_REACHED: Final = "reached"
"""Name of a file in the lake that executors read."""
_PARALLELISM: Final = "spark.default.parallelism"
_MOST_TASKS: Final = 64
_REMEDY: Final = (
    "name a Python that has wireyard's packages on every machine with"
    " --conf spark.pyspark.python=PATH, or send one with --conf spark.archives=ENV.tar.gz#env"
    " --conf spark.pyspark.python=./env/bin/python"
)
_REASONS: Final = (
    (r"Cannot run program \"([^\"]+)\"", "there is no {0}"),
    (r"No module named '([\w.]+)'", "the Python there has no module {0}"),
    (r"Python in worker has different version: ?(\S+)", "the Python there is another version, {0}"),
    (r"PACKAGE_NOT_INSTALLED\] (\w+)", "the Python there has no module {0}"),
    (r"ImportError: ([^\n\"]+)", "the Python there cannot import what tasks need: {0}"),
)
"""Patterns in Spark's error texts, and our explanation of each."""
_CHECKSUM: Final = pa.schema([("checksum", pa.int64())])
_ACCESS: Final = pa.schema([("failure", pa.string())])
_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def is_elsewhere(spark: SparkSession) -> bool:
    """Return whether tasks run on executors that our Java process did not start."""
    master = str(spark.conf.get("spark.master", ""))
    return not master.startswith("local") or master.startswith("local-cluster")


def check_executors(spark: SparkSession) -> None:
    """Check that executors can run tasks; send them wireyard if needed.

    A `SourceError` is raised if the Python of the executors cannot run our tasks; the text names
    what is missing.
    """
    package_checksum, yield_checksum = _checksum_functions()
    try:
        own = package_checksum(Path(str(resources.files(_PACKAGE))))
        checksums = _run_on_executors(spark, yield_checksum, _CHECKSUM)
        if own is None or any(checksum != own for checksum in checksums):
            _send(spark, make_archive())
    except Exception as error:
        raise explained(error) from None


def check_access(spark: SparkSession, lake: Staging) -> None:
    """Check that executors can read what the driver writes into the lake.

    A `LakeError` is raised if they cannot; the text says why.
    """
    try:
        path = lake.staged(_REACHED)
        system, inner = filesystem(path)
        with writing(lake.url), system.open_output_stream(inner) as file:
            file.write(_PACKAGE.encode())
        failures = _run_on_executors(spark, partial(_yield_failure, path=path), _ACCESS)
    except Exception as error:
        raise explained(error) from None
    if failure := next(filter(None, failures), None):
        raise LakeError(
            f"{lake.url}: Spark's executors cannot read it ({failure}); {_advice(lake)}"
        )


def _run_on_executors(spark: SparkSession, work: _Work, schema: pa.Schema) -> list[Any]:
    """Run a function on executors; return the values of its only column."""
    from wireyard.spark.types import spark_schema

    tasks = min(max(int(str(spark.conf.get(_PARALLELISM, "8"))), 1), _MOST_TASKS)
    rows = spark.range(0, tasks, 1, tasks)
    values: list[Any] = rows.mapInArrow(work, spark_schema(schema)).toArrow()[0].to_pylist()
    return values


def _checksum_functions() -> tuple[Callable[[Path], int | None], _Work]:
    """Return a function for the checksum of a package, and a task that yields an executor's.

    They are nested because Spark then pickles them by value: the task must not import wireyard, or
    the one that is sent later would have no effect. For `mapInArrow`.
    """

    def package_checksum(folder: Path) -> int | None:
        from zlib import crc32

        checksum = 0
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder).as_posix()
            checksum = crc32(file.read_bytes(), crc32(name.encode(), checksum))
        return checksum or None

    def yield_checksum(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib.util import find_spec
        from pathlib import Path

        import pyarrow as pa

        spec = find_spec("wireyard")
        folders = spec.submodule_search_locations if spec else None
        checksum = package_checksum(Path(folders[0])) if folders else None
        for _ in batches:
            column = pa.array([checksum], pa.int64())
            yield pa.RecordBatch.from_arrays([column], names=["checksum"])

    return package_checksum, yield_checksum


def _yield_failure(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Yield why the executor cannot read a file of the lake, or None. For `mapInArrow`."""
    from wireyard.spark.workers import import_tasks

    import_tasks()
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"failure": _failure_of(path)}], _ACCESS)


@cache
def _failure_of(path: str) -> str | None:
    """Return why a file cannot be read, or None.

    Each worker tries once: a store that does not answer costs several seconds each time.
    """
    try:
        system, inner = filesystem(path)
        with system.open_input_file(inner) as file:
            same = file.read() == _PACKAGE.encode()
        return None if same else "it has other content there"
    except OSError as error:
        return error.strerror or f"{type(error).__name__}: {error}"


def _advice(lake: Staging) -> str:
    """Return how executors get access to a lake."""
    if lake.url.startswith("s3"):
        return (
            "they need the driver's endpoint and credentials in their own environment: --conf"
            " spark.executorEnv.AWS_ENDPOINT_URL=URL and the like"
        )
    if "://" in lake.url:
        return "they need the driver's credentials in their own environment"
    return "name a folder or a URL that all machines see"


def explained(error: Exception) -> Exception:
    """Return a one-line error in place of Spark's if executors lack something; else the same."""
    for pattern, reason in _REASONS:
        if match := re.search(pattern, str(error)):
            return SourceError(f"Spark's executors: {reason.format(match[1])}; {_REMEDY}")
    return error


# --- sending --------------------------------------------------------------------------------


def make_archive() -> str:
    """Write the package as a zip file, compiled kernels included; return its path.

    The file is deleted when the process ends.
    """
    folder = tempfile.mkdtemp(prefix="wireyard-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / f"{_PACKAGE}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in _files(resources.files(_PACKAGE), _PACKAGE):
            archive.writestr(name, file.read_bytes())
    return str(path)


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda one: one.name):
        if each.name == "__pycache__":
            continue
        if each.is_dir():
            yield from _files(each, f"{name}/{each.name}")
        else:
            yield f"{name}/{each.name}", each


def _send(spark: SparkSession, path: str) -> None:
    """Send a zip file to executors and put it on their import path."""
    if hasattr(spark, "addArtifacts") and not hasattr(spark, "_jsparkSession"):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
