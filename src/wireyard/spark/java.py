"""The Java that Spark starts on, and an archive of Spark's classes, from which it starts sooner.

``python -m wireyard.spark.java`` makes the archive for the installed Java and Spark, which takes
some 15 s and 190 MB.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wireyard.accelerate import cache_folder
from wireyard.errors import SourceError

__all__ = [
    "Java",
    "archive_options",
    "check_java",
    "class_archive",
    "find_java",
    "main",
    "make_archive",
]

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 starts on."""
_INSTALL = "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
_LOADER = """
import tempfile
from wireyard.spark import session
spark = session("local[2]")
numbers = spark.range(0, 4, 1, 2)
numbers.mapInArrow(lambda batches: batches, "id long").toArrow()
with tempfile.TemporaryDirectory() as folder:
    numbers.selectExpr("id % 2 AS key", "string(id) AS text").write.parquet(folder + "/table")
    table = spark.read.parquet(folder + "/table")
    table.groupBy("key").count().join(table, "key").orderBy("text").toArrow()
"""
"""A program that loads the classes that a job of ours uses, by using them once."""
_LOADER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that lives for seconds gains nothing from its second compiler and more collectors."""


class Java(NamedTuple):
    """A Java that Spark can start on."""

    path: str
    """Its program."""
    version: str
    """Its version, as in ``17.0.15``."""
    build: str
    """All that it says of itself, which differs between any two builds."""


def find_java() -> Java:
    """Return the Java that Spark would start: that of ``JAVA_HOME``, else the first on the path.

    Raises
    ------
    SourceError
        There is none, or it is too old; the text says what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise SourceError(f"Spark needs Java {OLDEST_JAVA} or newer and finds none: {_INSTALL}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        place = f"JAVA_HOME is {home}, but there is no Java in it" if home else f"{java} is no Java"
        raise SourceError(
            f"{place} that starts; Spark needs Java {OLDEST_JAVA} or newer: {_INSTALL}"
        ) from None
    # openjdk version "17.0.15" 2025-04-15   or, before Java 9,   java version "1.8.0_402"
    found = re.search(r'version "((\d+)[^"]*)"', said.stderr)
    version, major = (found[1], int(found[2])) if found else ("of unknown version", OLDEST_JAVA)
    if major < OLDEST_JAVA:
        raise SourceError(
            f"{java} is Java {version}, Spark needs {OLDEST_JAVA} or newer: {_INSTALL}"
        )
    return Java(java, version, said.stderr)


def check_java() -> str:
    """Return the version of the Java that Spark would start, and where it is.

    Raises
    ------
    SourceError
        As :func:`find_java`.
    """
    java = find_java()
    return f"Java {java.version} ({java.path})"


# --- the archive of classes -----------------------------------------------------------------


def class_archive(java: Java) -> Path | None:
    """Return where the archive of the installed Spark's classes is, whether it was made or not.

    It is kept where compiled kernels are (:func:`wireyard.accelerate.cache_folder`), under a name
    that another build of Java or another installation of Spark does not have. None where no folder
    can be written to, or Spark is not the one that was installed with Python.
    """
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    folder = cache_folder(Path(__file__))
    if folder is None or "SPARK_HOME" in os.environ or not jars.is_dir():
        return None
    made_for = f"{os.path.realpath(java.path)}\n{java.build}\n{jars}\n{jars.stat().st_mtime_ns}"
    return folder / f"spark-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"


def archive_options(java: Java) -> str:
    """Return the options with which Java takes Spark's classes from the archive, if there is one.

    A Java that cannot take them after all, such as one with other jars before them, loads them one
    by one without a word, as it does without the options.
    """
    archive = class_archive(java)
    if archive is None or not archive.is_file():
        return ""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off,cds+dynamic=off"


def make_archive(java: Java) -> bool:
    """Make the archive of Spark's classes, which takes some 15 s; return whether there is one.

    A session is started in a process of its own, and what it has loaded in its end is archived
    (JEP 350). The file has its name only when it is whole.
    """
    archive = class_archive(java)
    if archive is None:
        return False
    if archive.is_file():
        return True
    partial = archive.with_suffix(f".{os.getpid()}")
    options = f"{_LOADER_OPTIONS} -XX:ArchiveClassesAtExit={partial}"
    environ = os.environ | {"SPARK_LAUNCHER_OPTS": _LOADER_OPTIONS, "SPARK_SUBMIT_OPTS": options}
    command = [sys.executable, "-c", _LOADER]
    # Java archives when Python has ended: the pipes are closed when both have.
    subprocess.run(command, env=environ, capture_output=True, check=False)
    with suppress(OSError):  # another process was first, or Spark does not start
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(archive)
        for other in archive.parent.glob("spark-*.jsa"):  # of what was here before an update
            if other != archive:
                other.unlink()
    return archive.is_file()


def main() -> int:
    """Make the archive for the Java and the Spark that are found; return an exit status."""
    start = time.perf_counter()
    try:
        made = make_archive(find_java())
    except (ImportError, SourceError) as error:
        print(f"there are no classes to be archived: {error}", file=sys.stderr)
        return 1
    if not made:
        print("the classes of Spark cannot be archived; it starts without", file=sys.stderr)
        return 1
    print(f"the classes of Spark are archived after {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
