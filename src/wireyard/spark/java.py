"""The Java that Spark runs on, and an archive of Spark's classes with which it starts faster.

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
"""A program that loads the classes of our jobs by using them once."""
_LOADER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java process of some seconds gains nothing from the second compiler or parallel collectors."""


class Java(NamedTuple):
    """A Java that Spark can start on."""

    path: str
    """Path of the program."""
    version: str
    """Its version, as in ``17.0.15``."""
    build: str
    """The output of ``java -version``, which differs between any two builds."""


def find_java() -> Java:
    """Return the Java that Spark would start: that of ``JAVA_HOME``, else the first on the path.

    A `SourceError` is raised if there is none, or it is too old; the text says what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise SourceError(f"Spark needs Java {OLDEST_JAVA} or newer and finds none: {_INSTALL}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        place = f"JAVA_HOME is {home}, but there is no Java in it" if home else f"{java} is no Java"
        raise SourceError(
            f"{place} that starts; Spark needs Java {OLDEST_JAVA} or newer: {_INSTALL}"
        ) from None
    # openjdk version "17.0.15" 2025-04-15   or, before Java 9,   java version "1.8.0_402"
    found = re.search(r'version "((\d+)[^"]*)"', output.stderr)
    version, major = (found[1], int(found[2])) if found else ("of unknown version", OLDEST_JAVA)
    if major < OLDEST_JAVA:
        raise SourceError(
            f"{java} is Java {version}, Spark needs {OLDEST_JAVA} or newer: {_INSTALL}"
        )
    return Java(java, version, output.stderr)


def check_java() -> str:
    """Return the version and path of the Java that Spark would start.

    Raises
    ------
    SourceError
        As :func:`find_java`.
    """
    java = find_java()
    return f"Java {java.version} ({java.path})"


# --- the archive of classes -----------------------------------------------------------------


def class_archive(java: Java) -> Path | None:
    """Return the path of the archive of the installed Spark's classes, whether it exists or not.

    It is in the folder of compiled kernels (:func:`wireyard.accelerate.cache_folder`), under a name
    that is unique for the build of Java and the installation of Spark. None if no folder is
    writable, or if Spark is not the one that was installed with Python.
    """
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    folder = cache_folder(Path(__file__))
    if folder is None or "SPARK_HOME" in os.environ or not jars.is_dir():
        return None
    made_for = f"{os.path.realpath(java.path)}\n{java.build}\n{jars}\n{jars.stat().st_mtime_ns}"
    return folder / f"spark-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"


def archive_options(java: Java) -> str:
    """Return the options that make Java load Spark's classes from the archive, if there is one.

    If Java cannot use the archive, for instance with other jars on the class path, it silently
    loads the classes one by one, as it does without the options.
    """
    archive = class_archive(java)
    if archive is None or not archive.is_file():
        return ""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off,cds+dynamic=off"


def make_archive(java: Java) -> bool:
    """Make the archive of Spark's classes, which takes some 15 s; return whether it exists.

    A session is started in a process of its own; the classes that it has loaded are archived when
    it exits (JEP 350). The file is renamed to its final name when it is complete.
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
    # Java writes the archive after Python has ended; `run` waits until both have closed the pipes.
    subprocess.run(command, env=environ, capture_output=True, check=False)
    with suppress(OSError):  # another process was first, or Spark does not start
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(archive)
        for other in archive.parent.glob("spark-*.jsa"):  # of versions before an update
            if other != archive:
                other.unlink()
    return archive.is_file()


def main() -> int:
    """Make the archive for the installed Java and Spark; return an exit status."""
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
