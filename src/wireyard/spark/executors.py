"""Whether Spark reaches the lake, and executors on other machines can run our tasks.

A task of a cluster runs in a Python that Spark starts there. That it has what tasks import, the
wireyard of the driver and the lake in reach is checked before any work is done: what Spark says of
a missing module is a page long, once for each attempt. Where only wireyard is missing, it is sent.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from wireyard.errors import SourceError
from wireyard.spark.exchange import dump_each, load_one
from wireyard.spark.lake import Lake, LakeError
from wireyard.spark.urls import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_executors",
    "check_reach",
    "explained",
    "is_elsewhere",
    "make_archive",
    "reaching",
]

_PACKAGE: Final = "wireyard"
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
"""What Spark fails with somewhere in its text, and what we make of it."""
_FOUND: Final = pa.schema([("package", pa.int64())])
_SEEN: Final = pa.schema([("sees_lake", pa.bool_())])
_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def is_elsewhere(spark: SparkSession) -> bool:
    """Return whether tasks run in processes that this one's Java has not started."""
    master = str(spark.conf.get("spark.master", ""))
    return not master.startswith("local") or master.startswith("local-cluster")


def check_executors(spark: SparkSession, lake: Lake) -> None:
    """Have executors import what tasks run and look at the lake; send them wireyard if need be.

    Raises
    ------
    SourceError
        The Python of the executors cannot run our tasks; the text says what is missing.
    LakeError
        Executors do not see the lake.
    """
    of_folder, look = _looking()
    try:
        own = of_folder(Path(str(resources.files(_PACKAGE))))
        if own is None or any(seen != own for seen in _ask(spark, look, _FOUND)):
            _send(spark, make_archive())
        path = dump_each(lake.staged(""), [_PACKAGE])
        sees_lake = _ask(spark, partial(_say, path=path), _SEEN)
    except Exception as error:
        raise explained(error) from None
    if not all(sees_lake):
        raise LakeError(
            f"{lake.url}: Spark's executors do not see it; name a folder that all machines share,"
            " or a URL"
        )


def _ask(spark: SparkSession, work: _Work, schema: pa.Schema) -> list[Any]:
    """Have executors run a function; return the values of the one column of its rows."""
    from wireyard.spark.types import spark_schema

    tasks = min(max(int(str(spark.conf.get(_PARALLELISM, "8"))), 1), _MOST_TASKS)
    rows = spark.range(0, tasks, 1, tasks)
    values: list[Any] = rows.mapInArrow(work, spark_schema(schema)).toArrow()[0].to_pylist()
    return values


def _looking() -> tuple[Callable[[Path], int | None], _Work]:
    """Return a checksum of a package's code, and a task that returns the one of the wireyard there.

    What is defined in a function is sent as it is: the task needs no wireyard, and imports none,
    or the one that is sent would come too late. For `mapInArrow`.
    """

    def of_folder(folder: Path) -> int | None:
        from zlib import crc32

        checksum = 0
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder).as_posix()
            checksum = crc32(file.read_bytes(), crc32(name.encode(), checksum))
        return checksum or None

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from importlib.util import find_spec
        from pathlib import Path

        import pyarrow as pa

        spec = find_spec("wireyard")
        folders = spec.submodule_search_locations if spec else None
        found = of_folder(Path(folders[0])) if folders else None
        for _ in batches:
            column = pa.array([found], pa.int64())
            yield pa.RecordBatch.from_arrays([column], names=["package"])

    return of_folder, look


def _say(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Yield from an executor whether it reaches the lake. For `mapInArrow`."""
    from wireyard.spark.workers import import_tasks

    import_tasks()
    for _ in batches:
        try:
            sees_lake = load_one(path, 0) == _PACKAGE
        except OSError:
            sees_lake = False
        yield pa.RecordBatch.from_pylist([{"sees_lake": sees_lake}], _SEEN)


def explained(error: Exception) -> Exception:
    """Return an error of Spark as one line, if what executors lack explains it."""
    for pattern, said in _REASONS:
        if found := re.search(pattern, str(error)):
            return SourceError(f"Spark's executors: {said.format(found[1])}; {_REMEDY}")
    return error


# --- the lake -----------------------------------------------------------------------------

_UNREACHED: Final = {
    "No space left on device": "No space left on device",
    "S3AFileSystem not found": "Spark has no S3A file system; its jars (hadoop-aws) are missing",
    "No FileSystem for scheme": "Spark has no file system for such URLs; its jars are missing",
}
"""What Spark fails with somewhere in its text, and what we make of it."""


def check_reach(spark: SparkSession, lake: Lake) -> None:
    """Have Spark look at the lake, before any work is done for nothing.

    Raises
    ------
    LakeError
        Spark does not reach it.
    """
    with reaching(lake):
        spark.read.schema("nothing int").parquet(literal(lake.root))


@contextmanager
def reaching(lake: Lake) -> Iterator[None]:
    """Say in one line why Spark cannot write to the lake, or read it."""
    try:
        yield
    except Exception as error:
        for text, reason in _UNREACHED.items():
            if text in str(error):
                raise LakeError(f"{lake.url}: cannot be written ({reason})") from None
        raise


# --- sending --------------------------------------------------------------------------------


def make_archive() -> str:
    """Write the package as a zip file, with kernels that came compiled; return its path.

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
    """Have executors import from a zip file."""
    if hasattr(spark, "addArtifacts") and not hasattr(spark, "_jsparkSession"):
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
