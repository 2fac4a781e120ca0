"""The Java that Spark needs, and the archive of Spark's classes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from wireyard.errors import SourceError
from wireyard.spark import java as java_module
from wireyard.spark import session
from wireyard.spark.java import (
    Java,
    archive_options,
    check_java,
    class_archive,
    find_java,
    main,
    make_archive,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- Java -----------------------------------------------------------------------------------


def java(folder: Path, script: str) -> Path:
    """Put a Java into a folder; what it does is up to the script."""
    (folder / "bin").mkdir(parents=True)
    path = folder / "bin" / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15"),
        ('openjdk version "21-ea" 2023-09-19', "21-ea"),
        ('java version "25" 2025-09-16 LTS', "25"),
    ],
)
def test_java_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: str
) -> None:
    path = java(tmp_path, f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == f"Java {version} ({path})"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    assert check_java() == f"Java {version} ({path})"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.8.0_402\"' >&2", "bin/java is Java 1.8.0_402, Spark needs 17 or"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "bin/java is Java 11.0.2, Spark needs 17 or"),
        (
            "exit 127",
            "JAVA_HOME is .*, but there is no Java in it that starts; Spark needs Java 17",
        ),
    ],
)
def test_a_java_that_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SourceError, match=message) as caught:
        check_java()
    assert str(caught.value).endswith("apt-get install openjdk-17-jre-headless) or set JAVA_HOME")


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)  # another test may have started Java
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(SourceError, match=r"JAVA_HOME is .*none, but there is no Java"):
        session()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="Spark needs Java 17 or newer and finds none: install"):
        session()


# --- the archive of classes -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have archives be kept in a folder of the test."""
    monkeypatch.setattr(java_module, "cache_folder", lambda source: tmp_path)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_an_archive_is_for_one_build_of_java_and_one_spark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_for = Java("java", "17", "build 1")
    archive = class_archive(made_for)
    assert archive is not None and archive.parent == folder
    assert archive == class_archive(made_for)
    for other in (made_for._replace(build="build 2"), made_for._replace(path="/other/java")):
        assert class_archive(other) not in (archive, None)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")  # whose classes are others
    assert class_archive(made_for) is None
    assert archive_options(made_for) == ""
    assert not make_archive(made_for)


def test_only_an_archive_that_is_there_is_used(folder: Path) -> None:
    made_for = Java("java", "17", "build 1")
    assert archive_options(made_for) == ""
    archive = class_archive(made_for)
    assert archive is not None
    archive.touch()
    assert archive_options(made_for).split()[0] == f"-XX:SharedArchiveFile={archive}"
    assert make_archive(made_for)
    assert archive.stat().st_size == 0  # and is not made again


def test_an_archive_is_there_when_it_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java that breaks off leaves nothing; one that does not replaces what was there."""
    loader = """
import os
path = os.environ["SPARK_SUBMIT_OPTS"].rpartition("ArchiveClassesAtExit=")[2]
with open(path, "w") as file:
    file.write("classes")
"""
    made_for = Java("java", "17", "build 1")
    (folder / "spark-0.jsa").touch()
    monkeypatch.setattr(java_module, "_LOADER", "raise SystemExit(1)")
    assert not make_archive(made_for)
    assert [path.name for path in folder.iterdir()] == ["spark-0.jsa"]
    monkeypatch.setattr(java_module, "_LOADER", loader)
    assert make_archive(made_for)
    archive = class_archive(made_for)
    assert archive is not None and archive.read_text() == "classes"
    assert list(folder.iterdir()) == [archive]


def test_the_program_says_what_it_did(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java_module, "_LOADER", "raise SystemExit(1)")
    assert main() == 1
    assert capsys.readouterr().err == "the classes of Spark cannot be archived; it starts without\n"
    archive = class_archive(find_java())
    assert archive is not None
    archive.touch()
    assert main() == 0
    assert capsys.readouterr().out.startswith("the classes of Spark are archived after ")
    monkeypatch.setenv("JAVA_HOME", str(folder))
    assert main() == 1
    assert capsys.readouterr().err.startswith("there are no classes to be archived: JAVA_HOME is")


@pytest.fixture
def archive() -> Path:
    """Return the archive that `make setup` makes."""
    path = class_archive(find_java())
    if path is None or not path.is_file():
        pytest.skip("no archive of Spark's classes: python -m wireyard.spark.java makes it")
    return path


def test_a_java_with_other_classes_does_without_and_says_nothing(archive: Path) -> None:
    words = [find_java().path, *archive_options(find_java()).split(), "-version"]
    assert str(archive) in " ".join(words)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.spark
def test_spark_starts_from_the_archive(spark: SparkSession, archive: Path) -> None:
    """The archive is in Java's memory map."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text()
